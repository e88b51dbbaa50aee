//! The project's worker space: how it is, and the means to end or renew it.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    body::ProjectInPath,
    error::Result,
    guard::{OwnOrAdmin, OwnProject, decider},
};
use atelier_core::{TaskFailure, event::CloseReason};
use atelier_runtime::Report;
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
};

/// Show the worker space: health and figures
#[utoipa::path(get, path = "/my/projects/{project}/worker-space", tag = "worker space", params(("project" = uuid::Uuid, Path)),
    responses((status = 200, body = Report)))]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    ProjectInPath(project): ProjectInPath,
) -> Result<Reply<Report>> {
    // Not as a task of the space: it has to answer even when the space is full or hangs.
    Ok(Reply(app.spaces.enter(caller.user, project).await?.report().await))
}

/// End the session: release what the server holds for the project
///
/// What is running may finish first. The next request makes a new worker space; your files and
/// everything stored stay.
#[utoipa::path(delete, path = "/my/projects/{project}/worker-space", tag = "worker space", params(("project" = uuid::Uuid, Path)),
    responses((status = 204, description = "Released")))]
pub(super) async fn end(
    State(app): State<App>,
    Person(caller): Person,
    OwnProject(owned): OwnProject,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let why = TaskFailure::new("session_ended", "the session was ended");
    app.bus.stop_gracefully(&owned, &decider(&caller, &headers), &why, app.spaces.grace()).await?;
    app.spaces.close(&owned, CloseReason::SessionEnded).await?;
    Ok(DONE)
}

/// Reset the worker space: end everything at once and begin anew
///
/// For the owner, and for an admin of the owner's tenant.
#[utoipa::path(post, path = "/my/projects/{project}/worker-space/reset", tag = "worker space", params(("project" = uuid::Uuid, Path)),
    responses((status = 200, body = Report)))]
pub(super) async fn reset(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    headers: HeaderMap,
) -> Result<Reply<Report>> {
    let why = TaskFailure::new("worker_space_reset", "the worker space was reset");
    app.bus.stop_all(&owned, None, &decider(&caller, &headers), &why).await?;
    Ok(Reply(app.spaces.reset(owned).await?.report().await))
}
