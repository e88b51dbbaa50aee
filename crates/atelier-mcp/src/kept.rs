//! What was said on the streams of a mount, kept for a while: a host that lost its connection while a person was
//! deciding hears what it missed, the result included. The SDK alone forgets a stream with its last word.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::common::server_side_http::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::{EventId, EventStore, EventStoreError, EventStream};
use tokio::sync::watch;

/// Long enough for a machine that slept through the decision.
const AGE: Duration = Duration::from_secs(15 * 60);
/// Of all streams together. What is larger by itself is not kept.
const BYTES: usize = 8 << 20;

#[derive(Default)]
pub(crate) struct Kept(Arc<Inner>);

#[derive(Default)]
struct Inner {
    said: Mutex<Said>,
    /// The number of what was said last.
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct Said {
    last: u64,
    events: VecDeque<Event>,
    bytes: usize,
}

struct Event {
    number: u64,
    stream: Arc<str>,
    message: ServerSseMessage,
    bytes: usize,
    at: Instant,
}

impl Inner {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes after the event of this number on its stream, if it is there already.
    fn after(&self, stream: &str, number: u64) -> Option<(u64, ServerSseMessage)> {
        let said = self.said();
        let next = said.events.iter().find(|event| event.number > number && &*event.stream == stream)?;
        Some((next.number, next.message.clone()))
    }
}

impl Said {
    fn keep(&mut self, stream: &str, mut message: ServerSseMessage, now: Instant) -> u64 {
        self.last += 1;
        let number = self.last;
        message.event_id = Some(number.to_string());
        let bytes = message.message.as_deref().map_or(0, size);
        self.bytes += bytes;
        self.events.push_back(Event { number, stream: stream.into(), message, bytes, at: now });
        let too_old = |event: &Event| now.duration_since(event.at) > AGE;
        while self.bytes > BYTES || self.events.front().is_some_and(too_old) {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
        number
    }
}

/// As it goes over the wire.
fn size(message: &ServerJsonRpcMessage) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written is not sent either.
    if serde_json::to_writer(&mut count, message).is_err() { usize::MAX / 2 } else { count.0 }
}

#[async_trait::async_trait]
impl EventStore for Kept {
    async fn store_event(&self, stream: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let number = self.0.said().keep(stream, event.clone(), Instant::now());
        self.0.news.send_replace(number);
        Ok(number.to_string())
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let heard: u64 = last.parse()?;
        let known =
            self.0.said().events.iter().find(|event| event.number == heard).map(|it| it.stream.clone());
        let stream = known.ok_or("what came before is no longer kept")?;
        // Before the first look: what is said after it wakes us.
        let news = self.0.news.subscribe();
        let state = Some((self.0.clone(), stream, heard, news));
        Ok(Box::pin(stream::unfold(state, |state| async {
            let (kept, stream, heard, mut news) = state?;
            loop {
                if let Some((number, message)) = kept.after(&stream, heard) {
                    let next = (!is_last(&message)).then_some((kept, stream, number, news));
                    return Some((message, next));
                }
                news.changed().await.ok()?;
            }
        })))
    }
}

/// A stream of a call ends with its answer.
fn is_last(message: &ServerSseMessage) -> bool {
    matches!(
        message.message.as_deref(),
        Some(ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let (mut said, began) = (Said::default(), Instant::now());
        let word = || ServerSseMessage::retry(Duration::from_secs(1));
        for number in 1..=3 {
            assert_eq!(said.keep("a", word(), began), number);
        }
        assert_eq!(said.keep("b", word(), began + AGE / 2), 4);
        assert_eq!(said.keep("b", word(), began + AGE + Duration::from_secs(1)), 5);
        let left: Vec<u64> = said.events.iter().map(|event| event.number).collect();
        assert_eq!((left, said.bytes), (vec![4, 5], 0));
    }
}
