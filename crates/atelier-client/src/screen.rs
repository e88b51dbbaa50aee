//! Output to the terminal: one line for each thing that happens, and cards for approvals.

use atelier_core::{tools::ToolTable, visible::visible};
use chrono::Local;
use serde_json::Value;
use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Where lines and cards are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Standard,
    /// Standard error, if standard output is for the answer.
    Error,
    /// Nowhere: another screen shows what happens.
    Nowhere,
}

pub(crate) struct Screen {
    pub(crate) colours: bool,
    output: OutputStream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Output that waits until the card is answered.
    held: Option<Vec<Entry>>,
    /// Whether a part of an answer was printed whose line has not ended.
    open: bool,
}

enum Entry {
    Line(String),
    Answer(String),
}

/// As wide as the time at the beginning of a line.
const INDENT: &str = "          ";

/// How many lines may wait behind a card. Further lines are dropped.
const MAX_HELD: usize = 500;

impl Screen {
    pub(crate) fn on(output: OutputStream, colours: bool) -> Self {
        Self { colours, output, state: Mutex::default() }
    }

    /// Prints a line with the time. While a card is shown, the line waits.
    pub(crate) fn line(&self, text: &str) {
        let text = visible(text);
        let parts = match self.columns() {
            Some(columns) => wrapped(&text, columns - INDENT.len()),
            None => vec![text],
        };
        let time = Local::now().format("%H:%M:%S");
        self.show(Entry::Line(format!("{time}  {}\n", parts.join(&format!("\n{INDENT}")))));
    }

    /// Prints a part of an answer to standard output. The caller has escaped it.
    pub(crate) fn answer(&self, text: &str) {
        self.show(Entry::Answer(text.to_owned()));
    }

    /// Ends the line of an answer, if it has not ended.
    pub(crate) fn end_answer(&self) {
        if self.state().open {
            self.answer("\n");
        }
    }

    fn show(&self, piece: Entry) {
        let mut state = self.state();
        match &mut state.held {
            // An answer is never dropped, however long it is.
            Some(held) if held.len() < MAX_HELD || matches!(piece, Entry::Answer(_)) => {
                held.push(piece);
            }
            Some(_) => {}
            None => self.put(&mut state, &piece),
        }
    }

    fn put(&self, state: &mut State, piece: &Entry) {
        match piece {
            Entry::Line(text) => {
                if std::mem::take(&mut state.open) {
                    print(OutputStream::Standard, "\n");
                }
                print(self.output, text);
            }
            Entry::Answer(text) => {
                print(OutputStream::Standard, text);
                state.open = !text.ends_with('\n');
            }
        }
    }

    /// Prints text immediately and unchanged. The caller has escaped it.
    pub(crate) fn raw(&self, text: &str) {
        print(self.output, text);
    }

    /// From now on, lines wait until `release`, so that they do not interrupt a card.
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

    /// The width of a card, in columns; 80 if the output is not a terminal.
    pub(crate) fn width(&self) -> usize {
        self.columns().unwrap_or(80)
    }

    /// The width of the terminal, in columns; `None` if the output is not a terminal.
    fn columns(&self) -> Option<usize> {
        match self.output {
            OutputStream::Standard => columns_of(std::io::stdout()),
            OutputStream::Error => columns_of(std::io::stderr()),
            OutputStream::Nowhere => None,
        }
    }

    pub(crate) fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The width of the terminal that standard output goes to.
pub(crate) fn columns_of_terminal() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn columns_of(output: impl rustix::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(output);
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    (columns > 0).then_some(columns.max(30))
}

/// Prints text. Errors are ignored, because calls are served even if nobody reads the output.
fn print(output: OutputStream, text: &str) {
    let write = |mut out: Box<dyn Write>| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let written = match output {
        OutputStream::Standard => write(Box::new(std::io::stdout().lock())),
        OutputStream::Error => write(Box::new(std::io::stderr().lock())),
        OutputStream::Nowhere => Ok(()),
    };
    if let Err(error) = written {
        tracing::debug!(%error, "cannot print");
    }
}

/// Splits text into parts that fit into the given columns. If the terminal wrapped the line, the
/// rest would begin at the left edge and could look like output of this program. Non-ASCII
/// characters count as two columns wide.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
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

/// A tool call in one line.
pub(crate) fn summary(tool: &str, params: &Value) -> String {
    let text = match ToolTable::builtin().get(tool) {
        Some(tool) if tool.runs_commands() => tool.summarize(params),
        Some(tool) => format!("{} {}", tool.name, tool.summarize(params)),
        None => tool.to_owned(),
    };
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_lines_are_wrapped() {
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(wrapped("abcdefghi", 4), ["abcd", "efgh", "i"]);
        assert_eq!(wrapped("aäöb\tc", 4), ["aä", "öb", "\t", "c"]);
    }

    #[test]
    fn arguments_with_spaces_are_quoted() {
        let params = json!({"command": "git", "args": ["commit", "-m", "a b", ""]});
        assert_eq!(summary("execute_command", &params), r#"git commit -m "a b" """#);
    }
}
