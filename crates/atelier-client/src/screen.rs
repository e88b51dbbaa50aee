//! What the person sees: one line for each thing that happens, and cards where they are asked.

use chrono::Local;
use serde_json::Value;
use std::{
    io::Write,
    sync::{Mutex, PoisonError},
};

pub(crate) struct Screen {
    pub(crate) colours: bool,
    held: Mutex<Option<Vec<String>>>,
}

/// Lines kept back behind a card; with more than this something else is wrong.
const HELD: usize = 500;

impl Screen {
    pub(crate) fn new(colours: bool) -> Self {
        Self { colours, held: Mutex::new(None) }
    }

    /// Something that happened. Comes after the card, when there is one.
    pub(crate) fn line(&self, text: &str) {
        let line = format!("{}  {}\n", Local::now().format("%H:%M:%S"), visible(text));
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(lines) if lines.len() < HELD => lines.push(line),
            Some(_) => {}
            None => print(&line),
        }
    }

    /// As it is, at once: the caller has made it safe to show.
    pub(crate) fn raw(&self, text: &str) {
        print(text);
    }

    /// From here on lines wait, so that the card stays together.
    pub(crate) fn hold(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    }

    pub(crate) fn release(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        held.into_iter().flatten().for_each(|line| print(&line));
    }

    pub(crate) fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A closed standard output is no reason to stop serving calls.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "nobody reads the output");
    }
}

/// What agents write must not move the cursor, colour a card or turn text around: such characters are shown.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(c),
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                shown.extend(c.escape_unicode());
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
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
    }

    #[test]
    fn a_command_shows_where_its_words_end() {
        let params = json!({"command": "git", "args": ["commit", "-m", "a b", ""]});
        assert_eq!(summary("execute_command", &params), r#"git commit -m "a b" """#);
    }
}
