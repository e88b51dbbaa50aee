//! A reader of server-sent events that waits for them.

use crate::PATIENCE;
use futures::{Stream, StreamExt};
use serde_json::Value;
use std::pin::Pin;

#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl SseEvent {
    /// The number of the event in a project's stream.
    pub fn number(&self) -> u64 {
        self.id.parse().unwrap()
    }
}

type Chunks = Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>;

/// An open stream. Dropping it closes the connection.
pub struct Events {
    chunks: Chunks,
    buffer: Vec<u8>,
}

impl Events {
    pub fn new(response: reqwest::Response) -> Self {
        let chunks = response.bytes_stream().map(|chunk| chunk.map(Vec::from));
        Self { chunks: Box::pin(chunks), buffer: Vec::new() }
    }

    /// The next event; `None` if the server has ended the stream. Comments are skipped.
    pub async fn try_next(&mut self) -> Option<SseEvent> {
        let event = async {
            loop {
                if let Some(event) = parse(&self.block().await?) {
                    return Some(event);
                }
            }
        };
        // The timeout covers the whole wait. Heartbeats do not extend it.
        tokio::time::timeout(PATIENCE, event).await.expect("an event in time")
    }

    pub async fn next(&mut self) -> SseEvent {
        self.try_next().await.expect("the stream goes on")
    }

    /// The next event with this name. Other events are skipped.
    pub async fn until(&mut self, name: &str) -> SseEvent {
        loop {
            let event = self.next().await;
            if event.name == name {
                return event;
            }
        }
    }

    /// The next `count` events.
    pub async fn take(&mut self, count: usize) -> Vec<SseEvent> {
        let mut events = Vec::with_capacity(count);
        while events.len() < count {
            events.push(self.next().await);
        }
        events
    }

    /// Waits for a heartbeat or any other comment.
    pub async fn comment(&mut self) -> String {
        loop {
            let block =
                tokio::time::timeout(PATIENCE, self.block()).await.expect("a comment in time");
            let block = block.expect("the stream goes on");
            if let Some(comment) = block.strip_prefix(": ") {
                return comment.to_owned();
            }
        }
    }

    /// Everything up to the next blank line.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Some(String::from_utf8(block).unwrap().trim_end().to_owned());
            }
            // A broken connection ends the stream, as in a browser.
            self.buffer.extend(self.chunks.next().await?.ok()?);
        }
    }
}

fn parse(block: &str) -> Option<SseEvent> {
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .map(str::to_owned)
    };
    Some(SseEvent {
        id: field("id").unwrap_or_default(),
        name: field("event")?,
        data: serde_json::from_str(&field("data")?).expect("data is JSON"),
    })
}
