//! An event stream over HTTP: stored events first, then live ones, with heartbeats, until the token
//! ends.

use crate::{App, access::shown_to, auth::Caller, error::Result, program_view::ProgramView};
use atelier_api::events::{EventEnvelope, ProjectSnapshot, Snapshot, StreamReset, UserSnapshot};
use atelier_core::{ConversationId, TokenPlace};
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
use std::{convert::Infallible, io::Write, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

/// Which events of a stream a reader wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Filter {
    None,
    /// Only events about one conversation.
    Conversation(ConversationId),
}

impl Filter {
    fn passes(self, event: &StoredEvent) -> bool {
        let Filter::Conversation(wanted) = self else { return true };
        ConversationReferences::of(event).ids().any(|id| id == wanted)
    }
}

/// Every place where an event can name a conversation. Parsing only these is much cheaper than
/// parsing the event.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ConversationReferences {
    session_id: Option<ConversationId>,
    conversation_id: Option<ConversationId>,
    conversation: Option<ConversationObject>,
    message: Option<PartOfConversation>,
    task: Option<PartOfConversation>,
    plan: Option<PartOfConversation>,
}

/// A message, task or plan.
#[derive(Deserialize)]
struct PartOfConversation {
    session_id: ConversationId,
}

#[derive(Deserialize)]
struct ConversationObject {
    id: ConversationId,
}

impl ConversationReferences {
    fn of(event: &StoredEvent) -> Self {
        serde_json::from_str(&event.data).unwrap_or_default()
    }

    fn ids(&self) -> impl Iterator<Item = ConversationId> {
        let parts = [&self.message, &self.task, &self.plan];
        let of_parts = parts.into_iter().flatten().map(|part| part.session_id);
        let whole = self.conversation.as_ref().map(|conversation| conversation.id);
        let ids = [self.session_id, self.conversation_id, whole].into_iter().flatten();
        ids.chain(of_parts)
    }
}

/// Where a stream starts.
pub(crate) struct StreamStart {
    /// After the event with this id.
    pub(crate) after: Option<String>,
    /// Without `after`: with this many of the last events. Without both: with the next event.
    pub(crate) tail: Option<u32>,
}

pub(crate) async fn open(
    app: App,
    caller: Caller,
    scope: Scope,
    filter: Filter,
    start: StreamStart,
) -> Result<Response> {
    let cursor = match (&start.after, start.tail) {
        // An id that is not ours is treated like one that is too old: the stream starts with a
        // reset.
        (Some(id), _) => Cursor::After(parse_id(scope, id).unwrap_or(i64::MAX)),
        (None, Some(tail)) => Cursor::Last(tail),
        (None, None) => Cursor::Now,
    };
    let open = app.loads.open_stream(caller.user)?;
    let (subscription, known) = app.store.subscribe(scope, cursor).await?;
    let mut preamble = BytesMut::from(&b": hello\n\n"[..]);
    if !known {
        let reset = reset(&app, &caller, scope, subscription.cursor()).await?;
        write_event(
            &mut preamble,
            &format_id(scope, subscription.cursor()),
            StreamReset::NAME,
            &reset,
        );
    }
    let reader = EventReader::new(app, caller, scope, filter, subscription, preamble.freeze());
    let reader = (reader, open);
    let body = stream::unfold(reader, |(mut reader, open)| async move {
        let chunk = reader.next().await?;
        Some((Ok::<_, Infallible>(chunk), (reader, open)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Some proxies buffer answers, which would delay events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One open stream.
struct EventReader {
    app: App,
    caller: Caller,
    scope: Scope,
    filter: Filter,
    subscription: Subscription,
    deltas: DeltaReceiver,
    /// What is sent before the first event.
    preamble: Option<Bytes>,
    revocations: watch::Receiver<()>,
    heartbeat: Pin<Box<Sleep>>,
    ends: Instant,
    _gauge: StreamGauge,
}

impl EventReader {
    fn new(
        app: App,
        caller: Caller,
        scope: Scope,
        filter: Filter,
        subscription: Subscription,
        preamble: Bytes,
    ) -> Self {
        let left = (caller.expires_at - Utc::now()).to_std().unwrap_or(Duration::ZERO);
        // The timer cannot hold every date that a token can have.
        let ends = Instant::now() + left.min(Duration::from_secs(365 * 24 * 3600));
        Self {
            revocations: app.auth.revocations(),
            heartbeat: Box::pin(sleep_until(ends.min(Instant::now() + app.settings.heartbeat))),
            preamble: Some(preamble),
            _gauge: StreamGauge::new(),
            app,
            caller,
            scope,
            filter,
            deltas: subscription.deltas(),
            subscription,
            ends,
        }
    }

    /// The next chunk of the body; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(preamble) = self.preamble.take() {
            return Some(preamble);
        }
        loop {
            if Instant::now() >= self.ends || self.app.auth.is_revoked(&self.caller) {
                return None;
            }
            tokio::select! {
                biased;
                () = self.app.stop.cancelled() => return None,
                _ = self.revocations.changed() => {}
                // Before the events, because the deltas of a message precede the message.
                deltas = self.deltas.next() => {
                    if let Some(deltas) = self.render_deltas(&deltas) {
                        self.restart_heartbeat();
                        return Some(deltas);
                    }
                }
                events = self.subscription.next() => match events {
                    Ok(mut events) => {
                        let last = events.last();
                        let deleted = last.is_some_and(|event| event.name == "PROJECT_DELETED");
                        if deleted && matches!(self.scope, Scope::Project(_)) {
                            // It is the last event of a project.
                            self.ends = Instant::now();
                        }
                        events.retain(|event| self.filter.passes(event));
                        if events.is_empty() {
                            continue;
                        }
                        return self.rendered(events).await;
                    }
                    Err(error) => {
                        // The client reconnects with its last id, and gets the following events or
                        // a reset.
                        tracing::debug!(%error, "an event stream ended");
                        return None;
                    }
                },
                () = &mut self.heartbeat => {
                    self.restart_heartbeat();
                    return Some(Bytes::from_static(b": alive\n\n"));
                }
            }
        }
    }

    /// The events as the caller may see them; `None` ends the stream.
    async fn rendered(&mut self, mut events: Vec<Arc<StoredEvent>>) -> Option<Bytes> {
        if self.caller.program().is_some() {
            events = events.into_iter().filter_map(without_call_content).collect();
        }
        if !self.caller.role.is_person() {
            let mut view = ProgramView::new(&self.app, &self.caller);
            for event in &mut events {
                let of = ConversationReferences::of(event).ids().next();
                match view.event(of, event.clone()).await {
                    Ok(shown) => *event = shown,
                    Err(error) => {
                        tracing::debug!(%error, "an event stream ended");
                        return None;
                    }
                }
            }
        }
        self.restart_heartbeat();
        Some(render(self.scope, &events))
    }

    /// Pieces of an answer. A value that must not be shown can lie across two of them, so programs
    /// wait for the whole message.
    fn render_deltas(&self, deltas: &[Arc<Delta>]) -> Option<Bytes> {
        if !self.caller.role.is_person() {
            return None;
        }
        let passes = |delta: &&Arc<Delta>| match self.filter {
            Filter::None => true,
            Filter::Conversation(wanted) => delta.session == wanted,
        };
        let mut buffer = BytesMut::new();
        for delta in deltas.iter().filter(passes) {
            // Without an id, because deltas cannot be replayed.
            write!((&mut buffer).writer(), "event: {}\ndata: {}\n\n", delta.name, delta.data)
                .unwrap_or_else(|error| unreachable!("writing to memory: {error}"));
        }
        (!buffer.is_empty()).then(|| buffer.freeze())
    }

    /// Schedules the next heartbeat: after a while without events, or when the token ends.
    fn restart_heartbeat(&mut self) {
        let next = Instant::now() + self.app.settings.heartbeat;
        self.heartbeat.as_mut().reset(next.min(self.ends));
    }
}

/// The event as programs may see it. An event that this version cannot read is not sent to them,
/// because nobody can tell what it says.
fn without_call_content(stored: Arc<StoredEvent>) -> Option<Arc<StoredEvent>> {
    let envelope: EventEnvelope = match serde_json::from_str(&stored.data) {
        Ok(envelope) => envelope,
        Err(error) => {
            tracing::warn!(%error, event = stored.name, "an event cannot be read");
            return None;
        }
    };
    let Some(event) = envelope.event.without_call_content(stored.project) else {
        return Some(stored);
    };
    match serde_json::to_string(&EventEnvelope { event, ..envelope }) {
        Ok(data) => Some(Arc::new(StoredEvent { data, ..StoredEvent::clone(&stored) })),
        Err(error) => {
            tracing::warn!(%error, event = stored.name, "an event cannot be written");
            None
        }
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
    // Neither names nor JSON contain line breaks, so one data line is enough.
    write!(buffer.writer(), "id: {id}\nevent: {name}\ndata: {data}\n\n")
        .unwrap_or_else(|error| unreachable!("writing to memory: {error}"));
}

/// Event ids of a project's stream are its numbers. Those of a user's stream have a prefix, so that
/// one is not mistaken for the other.
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
    // Only what `format_id` writes: no sign, no spaces.
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The current state, as JSON, for a reader whose cursor is unknown or too old.
async fn reset(app: &App, caller: &Caller, scope: Scope, at: i64) -> Result<String> {
    let snapshot = match scope {
        Scope::Project(project) => {
            let owned = app.store.owned_by(caller.user, project).await?;
            let (mut agents, _) = app.store.agents(&owned, 1000, 0).await?;
            let pending = app.store.pending_calls(caller.user, Some(project)).await?;
            let mut pending: Vec<_> =
                pending.into_iter().map(|call| shown_to(caller, call)).collect();
            let mut project = app.store.project(&owned).await?;
            if let Some(TokenPlace { conversation: Some(only), .. }) = caller.place {
                // The token is for the conversation and not for the rest of the project.
                pending.retain(|call| call.session_id == Some(only));
                agents.clear();
                project.settings.clear();
            }
            Snapshot::Project(ProjectSnapshot { project, agents, pending })
        }
        Scope::User(user) => {
            let (projects, _) = app.store.projects(user, 1000, 0).await?;
            let pending = app.store.pending_calls(user, None).await?;
            Snapshot::User(UserSnapshot { projects, pending })
        }
    };
    let reset = StreamReset {
        reason: "the last event id is unknown or no longer stored".into(),
        last_event_id: format_id(scope, at),
        snapshot,
    };
    let json = serde_json::to_string(&reset);
    Ok(json.unwrap_or_else(|error| unreachable!("plain values are JSON: {error}")))
}

/// Counts an open stream while it exists.
struct StreamGauge;

impl StreamGauge {
    fn new() -> Self {
        gauge!("atelier_event_streams").increment(1);
        StreamGauge
    }
}

impl Drop for StreamGauge {
    fn drop(&mut self) {
        gauge!("atelier_event_streams").decrement(1);
    }
}
