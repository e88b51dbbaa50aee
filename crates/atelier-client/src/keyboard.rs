//! Reads keys as they are pressed, without waiting for the end of a line.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr},
};
use std::{
    io::{IsTerminal, Stdin},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};
use tokio::sync::mpsc::{self, error::SendError};

pub(crate) const ESCAPE: char = '\u{1b}';

/// Whether a person can read the output and answer.
pub(crate) fn is_attended(output: &impl IsTerminal) -> bool {
    std::io::stdin().is_terminal() && output.is_terminal()
}

/// What one read of the terminal has brought.
pub(crate) struct Typed {
    /// The keys among it. Pasted text gives none.
    pub(crate) keys: Vec<char>,
    /// Whether a part of it was pasted.
    pub(crate) pasted: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: Instant,
}

/// The terminal in single-key mode, until this is dropped. Ctrl-C is still a signal.
pub(crate) struct Keyboard {
    before: Termios,
}

impl Keyboard {
    pub(crate) fn open() -> std::io::Result<(Self, mpsc::UnboundedReceiver<Typed>)> {
        let (keys, pressed) = mpsc::unbounded_channel();
        let before = set_mode(LocalModes::ICANON | LocalModes::ECHO, InputModes::IXON)?;
        consume(Consumer::Keys(KeyDecoder::default(), keys))?;
        Ok((Self { before }, pressed))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

/// The terminal in raw mode, until this is dropped: every key is input, also Ctrl-C.
pub(crate) struct RawKeyboard {
    before: Termios,
}

impl RawKeyboard {
    /// Ends the reading. What was not read is kept for the next time, before what comes later.
    pub(crate) fn leave(self, mut rest: Vec<u8>, mut pressed: mpsc::UnboundedReceiver<Vec<u8>>) {
        pressed.close();
        while let Ok(bytes) = pressed.try_recv() {
            rest.extend(bytes);
        }
        typed_ahead().splice(..0, rest);
    }

    pub(crate) fn open() -> std::io::Result<(Self, mpsc::UnboundedReceiver<Vec<u8>>)> {
        let (bytes, pressed) = mpsc::unbounded_channel();
        let local = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        let before = set_mode(local, InputModes::IXON | InputModes::ICRNL)?;
        consume(Consumer::Bytes(bytes))?;
        Ok((Self { before }, pressed))
    }
}

impl Drop for RawKeyboard {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

/// Switches modes of the terminal off. Returns the modes that it had.
fn set_mode(local: LocalModes, input: InputModes) -> std::io::Result<Termios> {
    let stdin = std::io::stdin();
    let before = tcgetattr(&stdin)?;
    let mut mode = before.clone();
    mode.local_modes -= local;
    // Without IXON: Ctrl-S would stop the output, and with it all calls that print something.
    mode.input_modes -= input;
    tcsetattr(&stdin, OptionalActions::Now, &mode)?;
    Ok(before)
}

fn restore(before: &Termios) {
    if let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Now, before) {
        tracing::debug!(%error, "cannot restore the terminal");
    }
}

/// Who gets what is typed now.
enum Consumer {
    Keys(KeyDecoder, mpsc::UnboundedSender<Typed>),
    Bytes(mpsc::UnboundedSender<Vec<u8>>),
}

/// Reading from a terminal cannot be interrupted, so one thread reads until the process ends, and
/// whoever needs the keyboard takes it over.
static CONSUMER: Mutex<Option<Consumer>> = Mutex::new(None);
static READER: OnceLock<()> = OnceLock::new();
/// What was typed while nobody read a message.
static TYPED_AHEAD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn typed_ahead() -> MutexGuard<'static, Vec<u8>> {
    TYPED_AHEAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what was typed while nobody reads a message, for the next one. The terminal may have turned
/// Enter into a line feed.
pub(crate) fn keep_for_later(typed: &[u8]) {
    typed_ahead().extend(typed.iter().map(|&byte| if byte == b'\n' { b'\r' } else { byte }));
}

fn consume(consumer: Consumer) -> std::io::Result<()> {
    let mut current = CONSUMER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Consumer::Bytes(bytes) = &consumer {
        let ahead = std::mem::take(&mut *typed_ahead());
        if !ahead.is_empty() && bytes.send(ahead).is_err() {
            unreachable!("the receiver is still here");
        }
    }
    *current = Some(consumer);
    drop(current);
    if READER.set(()).is_ok() {
        std::thread::Builder::new().name("keyboard".to_owned()).spawn(read)?;
    }
    Ok(())
}

fn read() {
    let stdin = std::io::stdin();
    let (mut typed, mut buffer) = (Vec::new(), [0; 256]);
    loop {
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) => break,
            Ok(count) => typed.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        // Escape is a key, or the beginning of a sequence.
        if typed.ends_with(&[ESCAPE as u8]) && more_follows(&stdin) {
            continue;
        }
        let typed = std::mem::take(&mut typed);
        match &mut *CONSUMER.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Consumer::Bytes(bytes)) => {
                if let Err(SendError(typed)) = bytes.send(typed) {
                    keep_for_later(&typed);
                }
            }
            Some(Consumer::Keys(decoder, keys)) => {
                let mut pressed = decoder.decode(&typed);
                pressed.extend(decoder.end());
                let pasted = std::mem::take(&mut decoder.pasted);
                let typed = Typed { keys: pressed, pasted, bytes: typed, at: Instant::now() };
                if let Err(SendError(typed)) = keys.send(typed) {
                    keep_for_later(&typed.bytes);
                }
            }
            None => {}
        }
    }
    // The terminal is closed: whoever waits for a key learns it.
    *CONSUMER.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Reads a line from standard input. In a terminal, `prompt` is printed and the line is not shown.
pub fn read_secret(prompt: &str) -> std::io::Result<String> {
    let stdin = std::io::stdin();
    let mut line = String::new();
    if !stdin.is_terminal() {
        stdin.read_line(&mut line)?;
        return Ok(line.trim().to_owned());
    }
    eprint!("{prompt}");
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO;
    tcsetattr(&stdin, OptionalActions::Now, &silent)?;
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Now, &before)?;
    eprintln!();
    read?;
    Ok(line.trim().to_owned())
}

/// Whether more input follows immediately, so that Escape is the beginning of a sequence.
fn more_follows(stdin: &Stdin) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut [PollFd::new(stdin, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Turns the bytes of a terminal into keys. Arrow keys, keypad keys and keys with Alt arrive as
/// Escape and further characters, which may be letters that would decide something. Such a sequence
/// gives no key; a single Escape does.
#[derive(Default)]
struct KeyDecoder {
    /// The first bytes of a character whose rest is missing.
    incomplete: Vec<u8>,
    state: SequenceState,
    /// Whether pasted text has arrived.
    pasted: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum SequenceState {
    #[default]
    Outside,
    AfterEscape,
    /// A sequence that ends with a letter or a similar character. `number` is its parameter, if it
    /// is the only one.
    Long {
        first: bool,
        number: Option<u16>,
    },
    /// A sequence with this many more characters.
    Short(u8),
    /// A report of the terminal, up to its terminator.
    Report,
    /// Pasted text, after this many characters of its terminator.
    Paste(usize),
}

/// The parameter of the sequence at the beginning of pasted text.
const PASTE: u16 = 200;
const PASTE_END: [char; 6] = [ESCAPE, '[', '2', '0', '1', '~'];

/// The parameter of a sequence with one more character.
fn parameter(number: Option<u16>, next: char) -> Option<u16> {
    number?.checked_mul(10)?.checked_add(u16::try_from(next.to_digit(10)?).ok()?)
}

/// How many characters of the terminator of a paste have arrived, with one more character.
fn paste_end(arrived: usize, next: char) -> SequenceState {
    match PASTE_END[arrived] == next {
        true if arrived + 1 == PASTE_END.len() => SequenceState::Outside,
        true => SequenceState::Paste(arrived + 1),
        false => SequenceState::Paste(usize::from(next == ESCAPE)),
    }
}

impl KeyDecoder {
    fn decode(&mut self, bytes: &[u8]) -> Vec<char> {
        self.incomplete.extend_from_slice(bytes);
        // An incomplete character waits for its rest. Invalid bytes give no deciding key.
        let whole = match std::str::from_utf8(&self.incomplete) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.incomplete.len(),
        };
        let text: Vec<u8> = self.incomplete.drain(..whole).collect();
        String::from_utf8_lossy(&text).chars().filter_map(|one| self.key(one)).collect()
    }

    fn key(&mut self, one: char) -> Option<char> {
        let (state, key) = match (self.state, one) {
            (SequenceState::Outside, ESCAPE) => (SequenceState::AfterEscape, None),
            (SequenceState::Outside, key) => (SequenceState::Outside, Some(key)),
            (SequenceState::AfterEscape, ESCAPE) => (SequenceState::AfterEscape, Some(ESCAPE)),
            (SequenceState::Long { .. } | SequenceState::Short(_), ESCAPE) => {
                (SequenceState::AfterEscape, None)
            }
            (SequenceState::AfterEscape, '[') => {
                (SequenceState::Long { first: true, number: Some(0) }, None)
            }
            (SequenceState::Paste(arrived), one) => (paste_end(arrived, one), None),
            (SequenceState::AfterEscape, 'O') => (SequenceState::Short(1), None),
            (SequenceState::AfterEscape, ']' | 'P' | 'X' | '^' | '_') => {
                (SequenceState::Report, None)
            }
            (SequenceState::Report, ESCAPE) => (SequenceState::AfterEscape, None),
            (SequenceState::Report, one) if one != '\u{7}' => (SequenceState::Report, None),
            (SequenceState::Long { number, .. }, ' '..='?') => {
                (SequenceState::Long { first: false, number: parameter(number, one) }, None)
            }
            (SequenceState::Long { number: Some(PASTE), .. }, '~') => {
                (SequenceState::Paste(0), None)
            }
            // Mouse clicks of old terminals, and function keys of the Linux console.
            (SequenceState::Long { first: true, .. }, 'M') => (SequenceState::Short(3), None),
            (SequenceState::Long { first: true, .. }, '[') => (SequenceState::Short(1), None),
            (SequenceState::Short(more @ 2..), _) => (SequenceState::Short(more - 1), None),
            (_, _) => (SequenceState::Outside, None),
        };
        self.pasted |= matches!(state, SequenceState::Paste(_));
        self.state = state;
        key
    }

    /// Whether the last character was Escape, which is a key or the beginning of a sequence.
    fn is_after_escape(&self) -> bool {
        self.state == SequenceState::AfterEscape
    }

    /// Ends the input. A last Escape was the key itself.
    fn end(&mut self) -> Option<char> {
        self.is_after_escape().then(|| {
            self.state = SequenceState::Outside;
            ESCAPE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(parts: &[&[u8]]) -> String {
        let mut decoder = KeyDecoder::default();
        let mut keys: String = parts.iter().flat_map(|part| decoder.decode(part)).collect();
        keys.extend(decoder.end());
        keys
    }

    #[test]
    fn escape_sequences_give_no_keys() {
        assert_eq!(typed(&["nä\u{7f}\r".as_bytes()]), "nä\u{7f}\r");
        // Arrow keys of several terminals, the keypad, Alt with a letter, Delete, a mouse click,
        // reports.
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
    fn pasted_text_gives_no_keys() {
        for paste in ["y", "s\r", "\x1b[31my\x1b", "\x1b[200~y\x1b[20\x1b[2", "né"] {
            let pasted = format!("\x1b[200~{paste}\x1b[201~");
            assert_eq!(typed(&[pasted.as_bytes()]), "", "{paste:?}");
            let bytes: Vec<&[u8]> = pasted.as_bytes().chunks(1).collect();
            assert_eq!(typed(&bytes), "", "{paste:?} in parts");
            assert_eq!(typed(&[b"x", pasted.as_bytes(), b"z"]), "xz", "{paste:?}");
        }
    }

    #[test]
    fn single_escape_is_a_key() {
        assert_eq!(typed(&[b"\x1b"]), "\x1b");
        assert_eq!(typed(&[b"n\x1b\x1b"]), "n\x1b\x1b");
    }

    #[test]
    fn character_can_arrive_in_parts() {
        let (first, second) = "ä".as_bytes().split_at(1);
        assert_eq!(typed(&[first, second]), "ä");
        assert_eq!(typed(&[b"\xff", b"y"]), "\u{fffd}y");
    }
}
