//! What the bytes of a terminal in raw mode mean.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    /// Sends the message.
    Enter,
    /// Alt-Enter or Ctrl-J: begins a new line of the message.
    NewLine,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    WordLeft,
    WordRight,
    KillToEnd,
    KillToStart,
    KillWord,
    Tab,
    Escape,
    Redraw,
    /// Ctrl-C.
    Interrupt,
    CtrlD,
}

const PASTE_END: &[u8] = b"\x1b[201~";

/// Turns bytes into inputs. A character or a paste may arrive in parts.
#[derive(Default)]
pub(super) struct InputParser {
    left: Vec<u8>,
    pasting: bool,
}

impl InputParser {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.left.extend_from_slice(bytes);
    }

    /// The next input. `None` until more bytes arrive.
    pub(super) fn next(&mut self) -> Option<Input> {
        while let Some((input, used)) = self.parse() {
            self.left.drain(..used);
            if input.is_some() {
                return input;
            }
        }
        None
    }

    /// The bytes that have given no input yet.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.left
    }

    /// What the next bytes mean, if they mean anything, and how many they are. `None` until more
    /// bytes arrive.
    fn parse(&mut self) -> Option<(Option<Input>, usize)> {
        if self.pasting {
            return self.pasted();
        }
        let &first = self.left.first()?;
        let input = match first {
            0x1b => return self.sequence(),
            b'\r' => Input::Enter,
            b'\n' => Input::NewLine,
            0x7f | 0x08 => Input::Backspace,
            0x01 => Input::Home,
            0x02 => Input::Left,
            0x03 => Input::Interrupt,
            0x04 => Input::CtrlD,
            0x05 => Input::End,
            0x06 => Input::Right,
            b'\t' => Input::Tab,
            0x0b => Input::KillToEnd,
            0x0c => Input::Redraw,
            0x0e => Input::Down,
            0x10 => Input::Up,
            0x15 => Input::KillToStart,
            0x17 => Input::KillWord,
            0..0x20 => return Some((None, 1)),
            _ => return self.characters(),
        };
        Some((Some(input), 1))
    }

    fn characters(&self) -> Option<(Option<Input>, usize)> {
        let end = self.left.iter().position(|&byte| byte < 0x20 || byte == 0x7f);
        let bytes = &self.left[..end.unwrap_or(self.left.len())];
        let valid = match std::str::from_utf8(bytes) {
            Ok(text) => text.len(),
            Err(error) if error.valid_up_to() > 0 => error.valid_up_to(),
            // The rest of a character is missing.
            Err(error) if error.error_len().is_none() && end.is_none() => return None,
            Err(_) => return Some((None, 1)),
        };
        let text = String::from_utf8_lossy(&bytes[..valid]).into_owned();
        Some((Some(Input::Text(text)), valid))
    }

    /// A key that arrives as Escape and further characters. The reader waits for all of them, so
    /// that a single Escape is the key itself.
    fn sequence(&mut self) -> Option<(Option<Input>, usize)> {
        let Some(&second) = self.left.get(1) else { return Some((Some(Input::Escape), 1)) };
        let (start, one_more) = match second {
            b'[' => (2, false),
            b'O' => (2, true),
            b'\r' | b'\n' => return Some((Some(Input::NewLine), 2)),
            b'b' => return Some((Some(Input::WordLeft), 2)),
            b'f' => return Some((Some(Input::WordRight), 2)),
            0x7f => return Some((Some(Input::KillWord), 2)),
            0x1b => return Some((Some(Input::Escape), 1)),
            _ => return Some((None, 2)),
        };
        let is_final = |byte: &u8| one_more || (0x40..=0x7e).contains(byte);
        let end = start + self.left[start..].iter().position(is_final)?;
        let input = match &self.left[start..=end] {
            b"A" => Some(Input::Up),
            b"B" => Some(Input::Down),
            b"C" => Some(Input::Right),
            b"D" => Some(Input::Left),
            b"H" | b"1~" | b"7~" => Some(Input::Home),
            b"F" | b"4~" | b"8~" => Some(Input::End),
            b"3~" => Some(Input::Delete),
            b"1;5C" | b"1;3C" => Some(Input::WordRight),
            b"1;5D" | b"1;3D" => Some(Input::WordLeft),
            b"200~" => {
                self.pasting = true;
                None
            }
            _ => None,
        };
        Some((input, end + 1))
    }

    /// Pasted text, in which no key has a meaning. Control characters are left out.
    fn pasted(&mut self) -> Option<(Option<Input>, usize)> {
        let end = self.left.windows(PASTE_END.len()).position(|window| window == PASTE_END)?;
        self.pasting = false;
        let text = String::from_utf8_lossy(&self.left[..end]);
        let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\t', "    ");
        let text: String = text.chars().filter(|&c| c == '\n' || !c.is_control()).collect();
        Some((Some(Input::Text(text)), end + PASTE_END.len()))
    }
}
