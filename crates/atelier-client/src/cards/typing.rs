//! Tells a key that answers a card from text: a key answers only if nothing else was typed shortly
//! before it, together with it, or shortly after it.

use crate::keyboard::Typed;
use std::time::{Duration, Instant};

/// Keys that arrive closer together than this are text. People type letters of a word faster.
const PAUSE: Duration = Duration::from_millis(400);

#[derive(Default)]
pub(super) struct Typing {
    /// When something was typed last.
    last: Option<Instant>,
    /// What was typed at the card since the last pause.
    run: Option<Run>,
}

enum Run {
    Key(char),
    Text,
}

impl Typing {
    /// Notes that something was typed that is no answer.
    pub(super) fn note(&mut self, at: Instant) {
        self.last = Some(at);
    }

    /// Adds what was typed at a card. Without keys, it was a paste or a key that is no character.
    pub(super) fn add(&mut self, typed: &Typed) {
        let at = typed.at;
        let continues = self.run.is_some() || self.last.is_some_and(|last| at < last + PAUSE);
        self.run = match *typed.keys {
            _ if typed.pasted => Some(Run::Text),
            [key] if !continues => Some(Run::Key(key)),
            [] if !continues => None,
            _ => Some(Run::Text),
        };
        self.last = Some(at);
    }

    /// Waits for the pause after what was typed; forever if there is nothing.
    pub(super) fn pause(&self) -> impl Future<Output = ()> + use<> {
        let end = self.run.as_ref().and(self.last).map(|last| last + PAUSE);
        async move {
            match end {
                Some(end) => tokio::time::sleep_until(end.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// The key that was typed alone; `None` if it was text.
    pub(super) fn end(&mut self) -> Option<char> {
        match self.run.take() {
            Some(Run::Key(key)) => Some(key),
            Some(Run::Text) | None => None,
        }
    }

    pub(super) fn forget(&mut self) {
        self.run = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one read has brought; text in brackets is pasted.
    fn typed(text: &str, at: Instant) -> Typed {
        let pasted = text.starts_with('[');
        let keys = text.rsplit(']').next().unwrap_or_default().chars().collect();
        Typed { keys, pasted, bytes: text.into(), at }
    }

    /// The answer to a card, from reads and their times in milliseconds.
    fn answer(reads: &[(&str, u64)]) -> Option<char> {
        let (start, mut typing) = (Instant::now(), Typing::default());
        for (keys, at) in reads {
            typing.add(&typed(keys, start + Duration::from_millis(*at)));
        }
        typing.end()
    }

    #[test]
    fn only_a_key_alone_is_an_answer() {
        assert_eq!(answer(&[("y", 0)]), Some('y'));
        assert_eq!(answer(&[("say thanks", 0)]), None);
        assert_eq!(answer(&[("s", 0), ("a", 120), ("y", 250)]), None);
        // A paste, and a key right after it.
        for paste in ["[y]", "[hey]y"] {
            assert_eq!(answer(&[(paste, 0)]), None);
            assert_eq!(answer(&[(paste, 0), ("y", 100)]), None);
        }
        // An arrow key, and a key right after it.
        assert_eq!(answer(&[("", 0), ("y", 100)]), None);
        assert_eq!(answer(&[("", 0), ("y", 500)]), Some('y'));
    }

    #[test]
    fn key_after_other_text_is_no_answer() {
        let (start, mut typing) = (Instant::now(), Typing::default());
        typing.note(start);
        typing.add(&typed("y", start + Duration::from_millis(100)));
        assert_eq!(typing.end(), None);
        typing.add(&typed("y", start + Duration::from_millis(600)));
        assert_eq!(typing.end(), Some('y'));
        typing.add(&typed("y", start + Duration::from_millis(1200)));
        typing.forget();
        assert_eq!(typing.end(), None);
    }
}
