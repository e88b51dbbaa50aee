//! What the person sees: one line for each thing that happens, and cards where they are asked.

use atelier_core::path::is_unprintable;
use chrono::Local;
use serde_json::Value;
use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where lines and cards go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Standard,
    /// Standard output is for what somebody asked for.
    Error,
}

pub(crate) struct Screen {
    pub(crate) colours: bool,
    output: Output,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What waits behind a card.
    held: Option<Vec<Piece>>,
    /// Words were said, and their line has not ended.
    open: bool,
}

enum Piece {
    Line(String),
    Words(String),
}

/// As wide as what stands before a line.
const TIME: &str = "          ";

/// Pieces kept back behind a card; with more than this something else is wrong.
const HELD: usize = 500;

impl Screen {
    pub(crate) fn on(output: Output, colours: bool) -> Self {
        Self { colours, output, state: Mutex::default() }
    }

    /// Something that happened. Comes after the card, when there is one.
    pub(crate) fn line(&self, text: &str) {
        let text = visible(text);
        let parts = match self.columns() {
            Some(columns) => folded(&text, columns - TIME.len()),
            None => vec![text],
        };
        let time = Local::now().format("%H:%M:%S");
        self.show(Piece::Line(format!("{time}  {}\n", parts.join(&format!("\n{TIME}")))));
    }

    /// A part of an answer, for standard output: the caller has made it safe to show.
    pub(crate) fn words(&self, text: &str) {
        self.show(Piece::Words(text.to_owned()));
    }

    /// Ends the line of an answer, if words are on it.
    pub(crate) fn end_words(&self) {
        if self.state().open {
            self.words("\n");
        }
    }

    fn show(&self, piece: Piece) {
        let mut state = self.state();
        match &mut state.held {
            // What is asked for is not dropped, however much it is.
            Some(held) if held.len() < HELD || matches!(piece, Piece::Words(_)) => held.push(piece),
            Some(_) => {}
            None => self.put(&mut state, &piece),
        }
    }

    fn put(&self, state: &mut State, piece: &Piece) {
        match piece {
            Piece::Line(text) => {
                if std::mem::take(&mut state.open) {
                    print(Output::Standard, "\n");
                }
                print(self.output, text);
            }
            Piece::Words(text) => {
                print(Output::Standard, text);
                state.open = !text.ends_with('\n');
            }
        }
    }

    /// As it is, at once: the caller has made it safe to show.
    pub(crate) fn raw(&self, text: &str) {
        print(self.output, text);
    }

    /// From here on lines wait, so that the card stays together.
    pub(crate) fn hold(&self) {
        self.state().held.get_or_insert_default();
    }

    pub(crate) fn release(&self) {
        let mut state = self.state();
        let held = state.held.take();
        held.into_iter().flatten().for_each(|piece| self.put(&mut state, &piece));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many columns a card has: a usual number where nobody says.
    pub(crate) fn width(&self) -> usize {
        self.columns().unwrap_or(80)
    }

    /// How many columns a line has, where it is a terminal that says so.
    fn columns(&self) -> Option<usize> {
        let size = match self.output {
            Output::Standard => rustix::termios::tcgetwinsize(std::io::stdout()),
            Output::Error => rustix::termios::tcgetwinsize(std::io::stderr()),
        };
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        (columns > 0).then_some(columns.max(30))
    }

    pub(crate) fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A closed output is no reason to stop serving calls.
fn print(output: Output, text: &str) {
    let write = |mut out: Box<dyn Write>| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let written = match output {
        Output::Standard => write(Box::new(std::io::stdout().lock())),
        Output::Error => write(Box::new(std::io::stderr().lock())),
    };
    if let Err(error) = written {
        tracing::debug!(%error, "nobody reads the output");
    }
}

/// What agents write must not move the cursor, colour a card or turn text around: such characters are shown.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            // Good in names, but not seen, so that they could hide a difference here.
            '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{e0000}'..='\u{e0fff}' => {
                shown.extend(c.escape_unicode());
            }
            c if is_unprintable(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// The text in parts that fit into so many columns: what a terminal breaks by itself begins at the edge, where it could
/// pass for something that this program says. Wide characters are allowed for; a part may be narrower than it could be.
pub(crate) fn folded(text: &str, columns: usize) -> Vec<String> {
    let (mut parts, mut last, mut used) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        let width = match c {
            '\t' => 8,
            c if c.is_ascii() => 1,
            _ => 2,
        };
        if used + width > columns && !last.is_empty() {
            parts.push(std::mem::take(&mut last));
            used = 0;
        }
        last.push(c);
        used += width;
    }
    parts.push(last);
    parts
}

/// A call in one line.
pub(crate) fn summary(tool: &str, params: &Value) -> String {
    let field = |name: &str| params[name].as_str().unwrap_or_default();
    let text = match tool {
        "execute_command" => argv(params),
        "move_file" => format!("move_file {} → {}", field("source"), field("destination")),
        _ => format!("{tool} {}", field("path")),
    };
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// The words of a command, so that it is clear where each ends.
pub(crate) fn argv(params: &Value) -> String {
    let words = std::iter::once(&params["command"]).chain(params["args"].as_array().into_iter().flatten());
    let words = words.map(|word| {
        let word = word.as_str().unwrap_or_default();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:@,+%".contains(&b);
        if !word.is_empty() && word.bytes().all(plain) { word.to_owned() } else { format!("{word:?}") }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_an_agent_writes_moves_the_cursor() {
        assert_eq!(visible("a\u{1b}[2Jb\rc\u{202e}d\te"), "a\\u{1b}[2Jb\\rc\\u{202e}d\te");
        for hidden in ['\u{ad}', '\u{61c}', '\u{200d}', '\u{2028}', '\u{fff9}', '\u{e0041}'] {
            assert_eq!(visible(&hidden.to_string()), hidden.escape_unicode().to_string());
        }
    }

    #[test]
    fn long_lines_are_broken_here_and_not_by_the_terminal() {
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("abcdefghi", 4), ["abcd", "efgh", "i"]);
        assert_eq!(folded("aäöb\tc", 4), ["aä", "öb", "\t", "c"]);
    }

    #[test]
    fn a_command_shows_where_its_words_end() {
        let params = json!({"command": "git", "args": ["commit", "-m", "a b", ""]});
        assert_eq!(summary("execute_command", &params), r#"git commit -m "a b" """#);
    }
}
