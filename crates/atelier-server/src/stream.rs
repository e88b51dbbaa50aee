//! An event stream over HTTP: replay, then live, then heartbeats, until the token ends.

use crate::{App, auth::Caller, error::Result};
use atelier_core::ConversationId;
use atelier_store::{Cursor, Delta, DeltaReceiver, Scope, StoredEvent, Subscription};
use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::{BufMut, Bytes, BytesMut};
use chrono::Utc;
use futures::stream;
use metrics::gauge;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{convert::Infallible, io::Write, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

/// What of a log a reader wants to see.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Filter {
    None,
    /// What concerns one conversation.
    Session(ConversationId),
}

impl Filter {
    fn passes(self, event: &StoredEvent) -> bool {
        let Filter::Session(session) = self else { return true };
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Mentions {
            session_id: Option<ConversationId>,
            conversation_id: Option<ConversationId>,
            message: Option<Of>,
            task: Option<Of>,
            plan: Option<Of>,
            conversation: Option<Itself>,
        }
        #[derive(Deserialize)]
        struct Of {
            session_id: ConversationId,
        }
        #[derive(Deserialize)]
        struct Itself {
            id: ConversationId,
        }
        let about: Mentions = serde_json::from_str(&event.data).unwrap_or_default();
        let of = [about.message, about.task, about.plan].into_iter().flatten().map(|of| of.session_id);
        let itself = about.conversation.map(|conversation| conversation.id).or(about.conversation_id);
        of.chain(about.session_id).chain(itself).any(|mentioned| mentioned == session)
    }
}

/// Where a reader wants to begin.
pub(crate) struct Beginning {
    /// After the event of this id.
    pub(crate) after: Option<String>,
    /// Without one: with the last so many, or else with what happens next.
    pub(crate) tail: Option<u32>,
}

pub(crate) async fn open(
    app: App,
    caller: Caller,
    scope: Scope,
    filter: Filter,
    from: Beginning,
) -> Result<Response> {
    let cursor = match (&from.after, from.tail) {
        // An id that is none of ours is as good as one that is gone: the reader is told to start afresh.
        (Some(id), _) => Cursor::After(parse_id(scope, id).unwrap_or(i64::MAX)),
        (None, Some(tail)) => Cursor::Last(tail),
        (None, None) => Cursor::Now,
    };
    let (subscription, known) = app.store.subscribe(scope, cursor).await?;
    let mut greeting = BytesMut::from(&b": hello\n\n"[..]);
    if !known {
        let reset = reset(&app, &caller, scope, subscription.cursor()).await?;
        write_event(
            &mut greeting,
            &format_id(scope, subscription.cursor()),
            "STREAM_RESET",
            &reset.to_string(),
        );
    }
    let follower = Follower::new(app, caller, scope, filter, subscription, greeting.freeze());
    let body = stream::unfold(follower, |mut follower| async move {
        let chunk = follower.next().await?;
        Some((Ok::<_, Infallible>(chunk), follower))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One reader at the end of a stream.
struct Follower {
    app: App,
    caller: Caller,
    scope: Scope,
    filter: Filter,
    subscription: Subscription,
    whispers: DeltaReceiver,
    greeting: Option<Bytes>,
    revocations: watch::Receiver<()>,
    heartbeat: Pin<Box<Sleep>>,
    ends: Instant,
    _open: OpenStream,
}

impl Follower {
    fn new(
        app: App,
        caller: Caller,
        scope: Scope,
        filter: Filter,
        subscription: Subscription,
        greeting: Bytes,
    ) -> Self {
        let left = (caller.expires_at - Utc::now()).to_std().unwrap_or(Duration::ZERO);
        // Far enough for any stream, and near enough for the clock to count to.
        let ends = Instant::now() + left.min(Duration::from_secs(365 * 24 * 3600));
        Self {
            revocations: app.auth.revocations(),
            heartbeat: Box::pin(sleep_until(ends.min(Instant::now() + app.settings.heartbeat))),
            greeting: Some(greeting),
            _open: OpenStream::new(),
            app,
            caller,
            scope,
            filter,
            whispers: subscription.deltas(),
            subscription,
            ends,
        }
    }

    /// The next piece of the body; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        loop {
            if Instant::now() >= self.ends || self.app.auth.is_revoked(&self.caller) {
                return None;
            }
            tokio::select! {
                biased;
                () = self.app.stop.cancelled() => return None,
                _ = self.revocations.changed() => {}
                // Before the events: the words of a message come before the message.
                words = self.whispers.next() => {
                    if let Some(words) = self.whispered(&words) {
                        self.rest();
                        return Some(words);
                    }
                }
                events = self.subscription.next() => match events {
                    Ok(mut events) => {
                        let last = events.last().is_some_and(|event| event.name == "PROJECT_DELETED");
                        if last && matches!(self.scope, Scope::Project(_)) {
                            // Nothing comes after it.
                            self.ends = Instant::now();
                        }
                        events.retain(|event| self.filter.passes(event));
                        if events.is_empty() {
                            continue;
                        }
                        self.rest();
                        return Some(render(self.scope, &events));
                    }
                    Err(error) => {
                        // The reader comes back with its last id and is served, or told to start afresh.
                        tracing::debug!(%error, "an event stream ended");
                        return None;
                    }
                },
                () = &mut self.heartbeat => {
                    self.rest();
                    return Some(Bytes::from_static(b": alive\n\n"));
                }
            }
        }
    }

    fn whispered(&self, words: &[Arc<Delta>]) -> Option<Bytes> {
        let heard = |word: &&Arc<Delta>| match self.filter {
            Filter::None => true,
            Filter::Session(session) => word.session == session,
        };
        let mut buffer = BytesMut::new();
        for word in words.iter().filter(heard) {
            // No id: it cannot be replayed.
            write!((&mut buffer).writer(), "event: {}\ndata: {}\n\n", word.name, word.data)
                .unwrap_or_else(|error| unreachable!("writing to memory: {error}"));
        }
        (!buffer.is_empty()).then(|| buffer.freeze())
    }

    /// The next heartbeat comes after a while of silence, or when the token ends.
    fn rest(&mut self) {
        let next = Instant::now() + self.app.settings.heartbeat;
        self.heartbeat.as_mut().reset(next.min(self.ends));
    }
}

fn render(scope: Scope, events: &[Arc<StoredEvent>]) -> Bytes {
    let size = events.iter().map(|event| event.data.len() + event.name.len() + 64).sum();
    let mut buffer = BytesMut::with_capacity(size);
    for event in events {
        write_event(&mut buffer, &format_id(scope, event.number(scope)), &event.name, &event.data);
    }
    buffer.freeze()
}

fn write_event(buffer: &mut BytesMut, id: &str, name: &str, data: &str) {
    // Neither names nor JSON have line breaks, so one data line is enough.
    write!(buffer.writer(), "id: {id}\nevent: {name}\ndata: {data}\n\n")
        .unwrap_or_else(|error| unreachable!("writing to memory: {error}"));
}

/// Ids of a project's stream are its numbers; those of a user's are marked, so that one is not taken
/// for the other.
fn format_id(scope: Scope, number: i64) -> String {
    match scope {
        Scope::Project(_) => number.to_string(),
        Scope::User(_) => format!("u{number}"),
    }
}

fn parse_id(scope: Scope, id: &str) -> Option<i64> {
    let digits = match scope {
        Scope::Project(_) => id,
        Scope::User(_) if id == "0" => id,
        Scope::User(_) => id.strip_prefix('u')?,
    };
    // Only what `format_id` writes: no sign, no blanks.
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// What a reader needs who has lost the thread: how things are now.
async fn reset(app: &App, caller: &Caller, scope: Scope, at: i64) -> Result<Value> {
    let snapshot = match scope {
        Scope::Project(project) => {
            let owned = app.store.owned_by(caller.user, project).await?;
            let (agents, _) = app.store.agents(&owned, 1000, 0).await?;
            let pending = app.store.pending_calls(caller.user, Some(project)).await?;
            json!({"project": app.store.project(&owned).await?, "agents": agents, "pending": pending})
        }
        Scope::User(user) => {
            let (projects, _) = app.store.projects(user, 1000, 0).await?;
            json!({"projects": projects, "pending": app.store.pending_calls(user, None).await?})
        }
    };
    Ok(json!({
        "type": "STREAM_RESET",
        "reason": "the last event id is unknown or no longer kept",
        "last_event_id": format_id(scope, at),
        "snapshot": snapshot,
    }))
}

/// Counts as an open stream while it lives.
struct OpenStream;

impl OpenStream {
    fn new() -> Self {
        gauge!("atelier_event_streams").increment(1);
        OpenStream
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        gauge!("atelier_event_streams").decrement(1);
    }
}
