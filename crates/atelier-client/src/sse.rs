//! Server-sent events, read as they arrive.

use std::time::Duration;

/// The server sends something at least every 15 s. After three times as long, the connection counts
/// as dead.
const SILENCE: Duration = Duration::from_secs(45);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: String,
}

pub(crate) struct Stream {
    response: reqwest::Response,
    parser: Parser,
}

impl Stream {
    pub(crate) fn new(response: reqwest::Response) -> Self {
        Self { response, parser: Parser::default() }
    }

    /// The next event; `None` when the connection has ended for any reason.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.parser.next() {
                return Some(message);
            }
            let chunk = tokio::time::timeout(SILENCE, self.response.chunk()).await;
            self.parser.push(&chunk.ok()?.ok()??);
        }
    }
}

/// Turns bytes into messages. Takes linear time, because a message of megabytes arrives in
/// thousands of pieces.
#[derive(Default)]
struct Parser {
    buffer: Vec<u8>,
    /// The buffer contains no line break before this position.
    scanned: usize,
    message: Message,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Message> {
        while let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=self.scanned + end).collect();
            self.scanned = 0;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let message = std::mem::take(&mut self.message);
                // A block without data is a comment or empty.
                if !message.data.is_empty() {
                    return Some(message);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.message.id = value.to_owned(),
                "event" => self.message.name = value.to_owned(),
                "data" if self.message.data.is_empty() => self.message.data = value.to_owned(),
                "data" => {
                    self.message.data.push('\n');
                    self.message.data.push_str(value);
                }
                _ => {}
            }
        }
        self.scanned = self.buffer.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_give_the_same_messages() {
        let text = ": hello\n\nid: 1\nevent: A\ndata: {\"x\":1}\n\n: alive\n\nid: 2\r\nevent: \
            B\r\ndata: é\r\ndata: y\r\n\r\nid: 3\n";
        let message = |id: &str, name: &str, data: &str| Message {
            id: id.to_owned(),
            name: name.to_owned(),
            data: data.to_owned(),
        };
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                parser.push(piece);
                found.extend(std::iter::from_fn(|| parser.next()));
            }
            assert_eq!(
                found,
                [message("1", "A", "{\"x\":1}"), message("2", "B", "é\ny")],
                "pieces of {size}"
            );
        }
    }
}
