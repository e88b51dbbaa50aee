//! Keys as they are pressed, without waiting for the end of a line.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr},
};
use std::io::{IsTerminal, Stdin};
use tokio::sync::mpsc;

pub(crate) const ESCAPE: char = '\u{1b}';

/// Whether somebody sits there who can be asked, and sees it.
pub(crate) fn attended(output: &impl IsTerminal) -> bool {
    std::io::stdin().is_terminal() && output.is_terminal()
}

/// The terminal gives keys one by one until this is dropped. Ctrl-C stays a signal.
pub(crate) struct Keyboard {
    before: Termios,
}

impl Keyboard {
    pub(crate) fn open() -> std::io::Result<(Self, mpsc::UnboundedReceiver<char>)> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut single = before.clone();
        single.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // Ctrl-S would stop the output, and with it whoever has something to say: the calls.
        single.input_modes -= InputModes::IXON;
        tcsetattr(&stdin, OptionalActions::Now, &single)?;
        let (keys, pressed) = mpsc::unbounded_channel();
        // Reading a terminal cannot be interrupted, so this thread ends with the process.
        std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || read(&keys))?;
        Ok((Self { before }, pressed))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before) {
            tracing::debug!(%error, "the terminal stays as it is");
        }
    }
}

fn read(keys: &mpsc::UnboundedSender<char>) {
    let stdin = std::io::stdin();
    let (mut typed, mut buffer) = (Typed::default(), [0; 256]);
    loop {
        let count = match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        let mut pressed = typed.take(&buffer[..count]);
        if typed.is_after_escape() && !more_comes(&stdin) {
            pressed.extend(typed.end());
        }
        if pressed.into_iter().any(|key| keys.send(key).is_err()) {
            return;
        }
    }
}

/// Whether the rest of a sequence is on its way.
fn more_comes(stdin: &Stdin) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut [PollFd::new(stdin, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Keys out of what a terminal sends. An arrow, a key of the keypad or one held with Alt comes as Escape and others, among
/// which may be letters that decide something: such a sequence is no key here, and Escape alone is one.
#[derive(Default)]
struct Typed {
    /// The beginning of a character.
    cut: Vec<u8>,
    place: Place,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    AfterEscape,
    /// Goes on until a letter or its like.
    Long {
        first: bool,
    },
    /// So many more.
    Short(u8),
    /// An answer of the terminal, until its end.
    Answer,
}

impl Typed {
    fn take(&mut self, bytes: &[u8]) -> Vec<char> {
        self.cut.extend_from_slice(bytes);
        // What is cut in the middle of a character waits for the rest; what is none decides nothing.
        let whole = match std::str::from_utf8(&self.cut) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.cut.len(),
        };
        let text: Vec<u8> = self.cut.drain(..whole).collect();
        String::from_utf8_lossy(&text).chars().filter_map(|one| self.key(one)).collect()
    }

    fn key(&mut self, one: char) -> Option<char> {
        let (place, key) = match (self.place, one) {
            (Place::Outside, ESCAPE) => (Place::AfterEscape, None),
            (Place::Outside, key) => (Place::Outside, Some(key)),
            (Place::AfterEscape, ESCAPE) => (Place::AfterEscape, Some(ESCAPE)),
            (Place::Long { .. } | Place::Short(_), ESCAPE) => (Place::AfterEscape, None),
            (Place::AfterEscape, '[') => (Place::Long { first: true }, None),
            (Place::AfterEscape, 'O') => (Place::Short(1), None),
            (Place::AfterEscape, ']' | 'P' | 'X' | '^' | '_') => (Place::Answer, None),
            (Place::Answer, ESCAPE) => (Place::AfterEscape, None),
            (Place::Answer, one) if one != '\u{7}' => (Place::Answer, None),
            (Place::Long { .. }, ' '..='?') => (Place::Long { first: false }, None),
            // Where an old mouse was clicked, and keys of the Linux console.
            (Place::Long { first: true }, 'M') => (Place::Short(3), None),
            (Place::Long { first: true }, '[') => (Place::Short(1), None),
            (Place::Short(more @ 2..), _) => (Place::Short(more - 1), None),
            (_, _) => (Place::Outside, None),
        };
        self.place = place;
        key
    }

    /// The key itself, or the beginning of a sequence: time tells.
    fn is_after_escape(&self) -> bool {
        self.place == Place::AfterEscape
    }

    /// Nothing more comes: it was the key itself.
    fn end(&mut self) -> Option<char> {
        self.is_after_escape().then(|| {
            self.place = Place::Outside;
            ESCAPE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(parts: &[&[u8]]) -> String {
        let mut typed = Typed::default();
        let mut keys: String = parts.iter().flat_map(|part| typed.take(part)).collect();
        keys.extend(typed.end());
        keys
    }

    #[test]
    fn sequences_of_a_terminal_are_no_keys() {
        assert_eq!(typed(&["nä\u{7f}\r".as_bytes()]), "nä\u{7f}\r");
        // Arrows of several terminals, the keypad, Alt with a letter, Delete, a click, answers to questions.
        for sequence in [
            "\x1b[A",
            "\x1b[a",
            "\x1bOa",
            "\x1bOy",
            "\x1by",
            "\x1b[3~",
            "\x1b[<0;5;5M",
            "\x1b[1;5s",
            "\x1b[?2026;2$y",
            "\x1b]52;c;eXk=\x07",
            "\x1bP1$r0y\x1b\\",
            "\x1b[Myyy",
            "\x1b[[A",
            "\x1b[\x1b[a",
        ] {
            assert_eq!(typed(&[sequence.as_bytes()]), "", "{sequence:?}");
            let bytes: Vec<&[u8]> = sequence.as_bytes().chunks(1).collect();
            assert_eq!(typed(&bytes), "", "{sequence:?} in parts");
            assert_eq!(typed(&[b"x", sequence.as_bytes(), b"z"]), "xz", "{sequence:?}");
        }
    }

    #[test]
    fn escape_alone_is_a_key() {
        assert_eq!(typed(&[b"\x1b"]), "\x1b");
        assert_eq!(typed(&[b"n\x1b\x1b"]), "n\x1b\x1b");
    }

    #[test]
    fn a_character_may_come_in_parts() {
        let (first, second) = "ä".as_bytes().split_at(1);
        assert_eq!(typed(&[first, second]), "ä");
        assert_eq!(typed(&[b"\xff", b"y"]), "\u{fffd}y");
    }
}
