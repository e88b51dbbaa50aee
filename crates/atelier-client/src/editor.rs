//! Editing a message in the terminal: several lines, history, completion.
//!
//! It asks the terminal for nothing (not even for the position of the cursor), so that it works in
//! every terminal, over ssh and in tmux.

mod buffer;
mod input;

use crate::{
    error::{Error, Result},
    keyboard::RawKeyboard,
    screen::columns_of_terminal,
};
use buffer::Buffer;
use input::{Input, InputParser};
use std::io::Write;
use unicode_width::UnicodeWidthChar;

/// What a person has entered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    Text(String),
    /// Ctrl-C on an empty line.
    Interrupted,
    /// Ctrl-D on an empty line, or the terminal was closed.
    End,
}

/// Completes the word before the cursor: returns the words that can replace it.
pub(crate) type Completer<'c> = &'c dyn Fn(&str) -> Vec<String>;

/// How many completions are shown.
const MAX_SHOWN: usize = 30;

pub(crate) struct Editor<'h> {
    history: &'h [String],
    /// The entry of the history that is shown; the number of entries for the new text.
    at: usize,
    /// The new text, while an entry of the history is shown.
    draft: String,
    buffer: Buffer,
    prompt: &'h str,
    /// The row of the cursor, counted from the first row of the prompt.
    cursor_row: usize,
}

impl<'h> Editor<'h> {
    pub(crate) fn new(prompt: &'h str, history: &'h [String]) -> Self {
        Self {
            history,
            at: history.len(),
            draft: String::new(),
            buffer: Buffer::default(),
            prompt,
            cursor_row: 0,
        }
    }

    /// Reads one message.
    pub(crate) async fn read(mut self, complete: Completer<'_>) -> Result<Entered> {
        let terminal_error = |error| Error::io("read", "the terminal".as_ref())(error);
        let (keyboard, mut pressed) = RawKeyboard::open().map_err(terminal_error)?;
        let mut parser = InputParser::default();
        put("\x1b[?2004h");
        self.draw();
        let entered = 'reading: loop {
            let Some(bytes) = pressed.recv().await else { break Entered::End };
            parser.add(&bytes);
            while let Some(input) = parser.next() {
                if let Some(entered) = self.apply(input, complete) {
                    break 'reading entered;
                }
            }
            self.draw();
        };
        self.buffer.move_to_end();
        self.draw();
        put("\x1b[?2004l\r\n");
        keyboard.leave(parser.into_rest(), pressed);
        Ok(entered)
    }

    fn apply(&mut self, input: Input, complete: Completer<'_>) -> Option<Entered> {
        let buffer = &mut self.buffer;
        match input {
            Input::Enter if buffer.continues() => buffer.continue_line(),
            Input::Enter if !buffer.text().trim().is_empty() => {
                return Some(Entered::Text(buffer.text().trim().to_owned()));
            }
            Input::Enter => return Some(Entered::Text(String::new())),
            Input::Text(text) => buffer.insert(&text),
            Input::NewLine => buffer.insert("\n"),
            Input::Backspace => buffer.backspace(),
            Input::Delete => buffer.delete(),
            Input::Left => buffer.left(),
            Input::Right => buffer.right(),
            Input::WordLeft => buffer.word_left(),
            Input::WordRight => buffer.word_right(),
            Input::Home => buffer.move_to_line_start(),
            Input::End => buffer.move_to_line_end(),
            Input::KillToEnd => buffer.kill_to_line_end(),
            Input::KillToStart => buffer.kill_to_line_start(),
            Input::KillWord => buffer.kill_word(),
            Input::Up if buffer.up() => {}
            Input::Up => self.show_history(self.at.saturating_sub(1)),
            Input::Down if buffer.down() => {}
            Input::Down => self.show_history(self.at + 1),
            Input::Tab => self.complete(complete),
            Input::Redraw => {
                put("\x1b[2J\x1b[H");
                self.cursor_row = 0;
            }
            Input::Interrupt if buffer.text().is_empty() => return Some(Entered::Interrupted),
            Input::Interrupt | Input::Escape => *buffer = Buffer::default(),
            Input::CtrlD if buffer.text().is_empty() => return Some(Entered::End),
            Input::CtrlD => buffer.delete(),
        }
        None
    }

    fn show_history(&mut self, at: usize) {
        if at > self.history.len() || at == self.at {
            return;
        }
        if self.at == self.history.len() {
            self.draft = self.buffer.text().to_owned();
        }
        self.at = at;
        let text = self.history.get(at).unwrap_or(&self.draft);
        self.buffer = Buffer::with(text);
    }

    fn complete(&mut self, complete: Completer<'_>) {
        let word = self.buffer.word_before_cursor().to_owned();
        let found = complete(&word);
        let Some(first) = found.first() else { return };
        let common = found.iter().fold(first.as_str(), |common, one| {
            let same = common.char_indices().zip(one.chars()).find(|((_, a), b)| a != b);
            let end = same.map_or(common.len().min(one.len()), |((at, _), _)| at);
            &common[..end]
        });
        if common.len() > word.len() {
            self.buffer.replace_word(common);
        } else if found.len() > 1 {
            let shown: Vec<&str> = found.iter().take(MAX_SHOWN).map(String::as_str).collect();
            let more = if found.len() > MAX_SHOWN { "  …" } else { "" };
            self.buffer.move_to_end();
            self.draw();
            put(&format!("\r\n\x1b[2m{}{more}\x1b[0m\r\n", shown.join("  ")));
            self.cursor_row = 0;
        }
    }

    /// Draws the prompt and the text again, and puts the cursor where it belongs.
    fn draw(&mut self) {
        let width = columns_of_terminal().unwrap_or(80);
        let up =
            if self.cursor_row > 0 { format!("\x1b[{}A", self.cursor_row) } else { String::new() };
        let mut text = format!("{up}\r\x1b[J{}", self.prompt);
        let indent = self.prompt.chars().filter_map(UnicodeWidthChar::width).sum::<usize>();
        let (mut row, mut column, mut cursor) = (0, indent, (0, indent));
        for (at, c) in self.buffer.text().char_indices() {
            if at == self.buffer.cursor() {
                cursor = (row, column);
            }
            let size = c.width().unwrap_or(0);
            if c == '\n' || column + size >= width {
                text.push_str("\r\n");
                row += 1;
                column = 0;
            }
            if c == '\n' {
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                text.push(c);
                column += size;
            }
        }
        if self.buffer.cursor() == self.buffer.text().len() {
            cursor = (row, column);
        }
        if row > cursor.0 {
            text.push_str(&format!("\x1b[{}A", row - cursor.0));
        }
        text.push('\r');
        if cursor.1 > 0 {
            text.push_str(&format!("\x1b[{}C", cursor.1));
        }
        self.cursor_row = cursor.0;
        put(&text);
    }
}

/// Prints to the terminal. If it is gone, reading notices that.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "cannot print");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(history: &[String], bytes: &[&[u8]]) -> (Option<Entered>, String) {
        let complete = |word: &str| {
            let all = ["/help", "/agent", "@notes.txt", "@notes.md"].map(str::to_owned);
            all.into_iter().filter(|one| one.starts_with(word) && !word.is_empty()).collect()
        };
        let mut editor = Editor::new("> ", history);
        let mut parser = InputParser::default();
        for part in bytes {
            parser.add(part);
            while let Some(input) = parser.next() {
                if let Some(entered) = editor.apply(input, &complete) {
                    return (Some(entered), editor.buffer.text().to_owned());
                }
            }
        }
        (None, editor.buffer.text().to_owned())
    }

    fn entered(bytes: &[u8]) -> String {
        match typed(&[], &[bytes]).0 {
            Some(Entered::Text(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_is_edited_with_the_usual_keys() {
        assert_eq!(entered("privét\r".as_bytes()), "privét");
        assert_eq!(entered(b"ac\x1b[Db\r"), "abc");
        assert_eq!(entered(b"one two\x17three\r"), "one three");
        assert_eq!(entered(b"bc\x01a\x05d\r"), "abcd");
        assert_eq!(entered(b"abc\x01\x0b\x15x\r"), "x");
        assert_eq!(entered(b"xab\x1b[D\x1b[D\x7f\x1b[3~\r"), "b");
        assert_eq!(entered(b"one two\x1b[1;5DX\r"), "one Xtwo");
    }

    #[test]
    fn message_can_have_several_lines() {
        assert_eq!(entered(b"one\ntwo\r"), "one\ntwo");
        assert_eq!(entered(b"one\x1b\rtwo\r"), "one\ntwo");
        assert_eq!(entered(b"one\\\rtwo\r"), "one\ntwo");
        // A pasted end of a line sends nothing, even if the paste arrives in parts.
        let (sent, text) = typed(&[], &[b"\x1b[200~one\rtw", b"o\x1b[31m\x1b[20", b"1~!"]);
        assert_eq!((sent, text.as_str()), (None, "one\ntwo[31m!"));
        assert_eq!(entered(b"ab\ncd\x1b[AX\r"), "abX\ncd");
    }

    #[test]
    fn history_and_completion_replace_the_text() {
        let history = ["first".to_owned(), "second".to_owned()];
        let text = |bytes: &[u8]| typed(&history, &[bytes]).1;
        assert_eq!(text(b"\x1b[A"), "second");
        assert_eq!(text(b"new\x1b[A\x1b[A\x1b[A"), "first");
        assert_eq!(text(b"new\x1b[A\x1b[B\x1b[B"), "new");
        assert_eq!(text(b"/h\t"), "/help");
        assert_eq!(text(b"see @n\t"), "see @notes.");
        assert_eq!(text(b"see @notes.m\t now"), "see @notes.md now");
    }

    #[test]
    fn interrupt_clears_the_text_and_then_leaves() {
        assert_eq!(typed(&[], &[b"text\x03"]), (None, String::new()));
        assert_eq!(typed(&[], &[b"text\x1b"]), (None, String::new()));
        assert_eq!(typed(&[], &[b"\x03"]).0, Some(Entered::Interrupted));
        assert_eq!(typed(&[], &[b"\x04"]).0, Some(Entered::End));
    }
}
