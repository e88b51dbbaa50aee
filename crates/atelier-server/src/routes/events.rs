//! Event streams: of one project, or of all of the caller's projects.

use crate::{
    App,
    access::CountedSpace,
    auth::Caller,
    error::{Error, Result},
    path::ProjectInPath,
    query::{LastEventId, Params},
    stream::{self, Filter, StreamStart},
};
use atelier_store::Scope;
use axum::{extract::State, response::Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// Where an event stream starts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StartQuery {
    /// Replay the events after this event id; `0` replays all stored events. The header
    /// `Last-Event-ID` takes precedence. Without either, the stream starts with the next event.
    after: Option<String>,
    /// Without an event id: start with the last events, as many as this number says.
    #[param(minimum = 0, maximum = 100_000)]
    tail: Option<u32>,
}

/// The largest `tail` of an event stream: how many past events it begins with.
const MAX_TAIL: u32 = 100_000;

impl StartQuery {
    pub(crate) fn start(self, last_event_id: Option<String>) -> Result<StreamStart> {
        if self.tail.is_some_and(|tail| tail > MAX_TAIL) {
            return Err(Error::Invalid(format!("tail: must be at most {MAX_TAIL}")));
        }
        Ok(StreamStart { after: last_event_id.or(self.after), tail: self.tail })
    }
}

/// One event of a stream. Comment lines between events are heartbeats.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `stream` writes")]
pub(crate) struct ServerSentEvent {
    /// The cursor to resume from, as `Last-Event-ID` or as `after`. Deltas have none.
    id: String,
    /// The event's name, in upper case.
    event: String,
    /// An `Event`, a `MessageDelta` or a `StreamReset`, as JSON.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// Follow the events of a project (server-sent events)
#[utoipa::path(get, path = "/my/projects/{project}/events", tag = "events",
    params(ProjectInPath, StartQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "The project's events",
        content_type = "text/event-stream", body = String)))]
pub(super) async fn project(
    State(app): State<App>,
    caller: Caller,
    space: CountedSpace,
    LastEventId(last): LastEventId,
    Params(query): Params<StartQuery>,
) -> Result<Response> {
    let scope = Scope::Project(space.owned().project);
    stream::open(app, caller, scope, Filter::None, query.start(last)?).await
}

/// Follow the events of all your projects (server-sent events)
///
/// Event ids are opaque here: send back the last one to resume.
#[utoipa::path(get, path = "/my/events", tag = "events",
    params(StartQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "The events of all your projects",
        content_type = "text/event-stream", body = String)))]
pub(super) async fn mine(
    State(app): State<App>,
    caller: Caller,
    LastEventId(last): LastEventId,
    Params(query): Params<StartQuery>,
) -> Result<Response> {
    if caller.place.is_some() {
        let problem = "an agent or client token follows its project: /my/projects/{project}/events";
        return Err(Error::Forbidden(problem));
    }
    let user = caller.user;
    stream::open(app, caller, Scope::User(user), Filter::None, query.start(last)?).await
}
