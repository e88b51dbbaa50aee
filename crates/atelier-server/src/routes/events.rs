//! Event streams: of one project, or of all of the caller's.

use crate::{
    App,
    auth::Caller,
    body::{LastEventId, Params},
    error::Result,
    guard::Space,
    stream::{self, Filter},
};
use atelier_store::Scope;
use axum::{extract::State, response::Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct From {
    /// Replay what came after this event id; `0` replays all that is kept. The header
    /// `Last-Event-ID` comes before it. Without either, the stream begins with what happens next.
    pub(crate) after: Option<String>,
}

/// What each event of a stream holds. Comments between them are heartbeats.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `stream` writes")]
pub(crate) struct ServerSentEvent {
    /// Where to resume: as `Last-Event-ID`, or as `after`.
    id: String,
    /// The event's name, in upper case.
    event: String,
    /// An `Event`, as JSON.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// Follow what happens in a project (server-sent events)
#[utoipa::path(get, path = "/my/projects/{project}/events", tag = "events",
    params(("project" = uuid::Uuid, Path), From, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = ServerSentEvent)))]
pub(super) async fn project(
    State(app): State<App>,
    caller: Caller,
    space: Space,
    LastEventId(last): LastEventId,
    Params(from): Params<From>,
) -> Result<Response> {
    let scope = Scope::Project(space.owned().project);
    stream::open(app, caller, scope, Filter::None, last.or(from.after)).await
}

/// Follow what happens in all your projects (server-sent events)
///
/// Event ids are opaque here: hand back the last one to resume.
#[utoipa::path(get, path = "/my/events", tag = "events",
    params(From, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = ServerSentEvent)))]
pub(super) async fn mine(
    State(app): State<App>,
    caller: Caller,
    LastEventId(last): LastEventId,
    Params(from): Params<From>,
) -> Result<Response> {
    let user = caller.user;
    stream::open(app, caller, Scope::User(user), Filter::None, last.or(from.after)).await
}
