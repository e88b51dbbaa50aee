//! Keeps the messages on a mount's streams for a while. A host that lost its connection while a
//! person was deciding gets the messages that it missed, including the result. The SDK itself
//! forgets a stream after its last message.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::common::server_side_http::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::{
    EventId, EventStore, EventStoreError, EventStream,
};
use tokio::sync::watch;

/// How long messages are kept for a host that has lost its connection, for example because its
/// computer was asleep.
const MAX_AGE: Duration = Duration::from_secs(15 * 60);
/// The limit for all streams together. A larger message is not kept.
const MAX_BYTES: usize = 8 << 20;

/// The newest messages of all streams of a mount.
#[derive(Default)]
pub(crate) struct ReplayBuffer(Arc<Inner>);

#[derive(Default)]
struct Inner {
    messages: Mutex<KeptMessages>,
    /// The number of the newest message.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct KeptMessages {
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
    fn messages(&self) -> MutexGuard<'_, KeptMessages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first message after the given number on its stream, if it has arrived.
    fn after(&self, stream: &str, number: u64) -> Option<(u64, ServerSseMessage)> {
        let messages = self.messages();
        let next = messages
            .events
            .iter()
            .find(|event| event.number > number && &*event.stream == stream)?;
        Some((next.number, next.message.clone()))
    }
}

impl KeptMessages {
    fn keep(&mut self, stream: &str, mut message: ServerSseMessage, now: Instant) -> u64 {
        self.last += 1;
        let number = self.last;
        message.event_id = Some(number.to_string());
        let bytes = message.message.as_deref().map_or(0, size);
        self.bytes += bytes;
        self.events.push_back(Event { number, stream: stream.into(), message, bytes, at: now });
        let too_old = |event: &Event| now.duration_since(event.at) > MAX_AGE;
        while self.bytes > MAX_BYTES || self.events.front().is_some_and(too_old) {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
        number
    }
}

/// The size of the message in bytes, as it is sent.
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
    // A message that cannot be serialised is not sent either.
    if serde_json::to_writer(&mut count, message).is_err() { usize::MAX / 2 } else { count.0 }
}

#[async_trait::async_trait]
impl EventStore for ReplayBuffer {
    async fn store_event(
        &self,
        stream: &str,
        event: &ServerSseMessage,
    ) -> Result<EventId, EventStoreError> {
        let number = self.0.messages().keep(stream, event.clone(), Instant::now());
        self.0.newest.send_replace(number);
        Ok(number.to_string())
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let received: u64 = last.parse()?;
        let known = self
            .0
            .messages()
            .events
            .iter()
            .find(|event| event.number == received)
            .map(|it| it.stream.clone());
        let stream = known.ok_or("the events after this id are no longer kept")?;
        // Subscribed before the first look, so that later messages wake this stream.
        let newest = self.0.newest.subscribe();
        let state = Some((self.0.clone(), stream, received, newest));
        Ok(Box::pin(stream::unfold(state, |state| async {
            let (kept, stream, received, mut newest) = state?;
            loop {
                if let Some((number, message)) = kept.after(&stream, received) {
                    let next = (!is_last(&message)).then_some((kept, stream, number, newest));
                    return Some((message, next));
                }
                newest.changed().await.ok()?;
            }
        })))
    }
}

/// The stream of a call ends with the answer to the call.
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
        let (mut messages, began) = (KeptMessages::default(), Instant::now());
        let message = || ServerSseMessage::retry(Duration::from_secs(1));
        for number in 1..=3 {
            assert_eq!(messages.keep("a", message(), began), number);
        }
        assert_eq!(messages.keep("b", message(), began + MAX_AGE / 2), 4);
        assert_eq!(messages.keep("b", message(), began + MAX_AGE + Duration::from_secs(1)), 5);
        let left: Vec<u64> = messages.events.iter().map(|event| event.number).collect();
        assert_eq!((left, messages.bytes), (vec![4, 5], 0));
    }
}
