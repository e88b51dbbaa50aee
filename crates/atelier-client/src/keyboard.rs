//! Keys as they are pressed, without waiting for the end of a line.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{IsTerminal, Read};
use tokio::sync::mpsc;

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
    let mut stdin = std::io::stdin().lock();
    let (mut pending, mut buffer) = (Vec::new(), [0; 256]);
    while let Ok(count @ 1..) = stdin.read(&mut buffer) {
        pending.extend_from_slice(&buffer[..count]);
        // What is cut in the middle of a character waits for the rest; what is none is dropped.
        let whole = match std::str::from_utf8(&pending) {
            Ok(_) => pending.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => pending.len(),
        };
        let text: Vec<u8> = pending.drain(..whole).collect();
        if String::from_utf8_lossy(&text).chars().any(|key| keys.send(key).is_err()) {
            return;
        }
    }
}
