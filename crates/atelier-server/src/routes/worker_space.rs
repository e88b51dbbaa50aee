//! The worker space of a project: its state, and how to close or reset it.

use super::DONE;
use crate::{
    App,
    access::{OwnProject, OwnSpace, OwnerOrAdmin, decider},
    auth::Person,
    error::Result,
    path::ProjectInPath,
};
use atelier_core::{TaskFailure, TaskFailureCode, event::CloseReason};
use atelier_runtime::Report;
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
};

/// Show the worker space: its health and its figures
#[utoipa::path(get, path = "/my/projects/{project}/worker-space", tag = "worker space",
    params(ProjectInPath), responses(
        (status = 200, description = "The worker space", body = Report),
    ))]
pub(super) async fn show(space: OwnSpace) -> Result<Reply<Report>> {
    // The worker space does not count this request: it must answer even when the worker space is
    // full or hangs.
    Ok(Reply(space.report().await))
}

/// Close the worker space: release what the server holds for the project
///
/// Running work may finish first. The next request creates a new worker space. Your files and
/// everything that is stored stay.
#[utoipa::path(delete, path = "/my/projects/{project}/worker-space", tag = "worker space",
    params(ProjectInPath), responses((status = 204, description = "Closed")))]
pub(super) async fn close(
    State(app): State<App>,
    Person(caller): Person,
    OwnProject(owned): OwnProject,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let why = TaskFailure::new(TaskFailureCode::SessionEnded, "the session was ended");
    app.bus.stop_gracefully(&owned, &decider(&caller, &headers), &why, app.spaces.grace()).await?;
    app.spaces.close(&owned, CloseReason::SessionEnded).await?;
    Ok(DONE)
}

/// Reset the worker space: end everything immediately and start again
///
/// For the owner and for admins of the owner's tenant.
#[utoipa::path(post, path = "/my/projects/{project}/worker-space/reset", tag = "worker space",
    params(ProjectInPath), responses(
        (status = 200, description = "The new worker space", body = Report),
    ))]
pub(super) async fn reset(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    headers: HeaderMap,
) -> Result<Reply<Report>> {
    let why = TaskFailure::new(TaskFailureCode::WorkerSpaceReset, "the worker space was reset");
    app.bus.stop_all(&owned, None, &decider(&caller, &headers), &why).await?;
    Ok(Reply(app.spaces.reset(owned).await?.report().await))
}
