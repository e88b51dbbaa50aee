//! The project's worker space: how it is, and the means to end or renew it.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    error::{Error, Result},
    guard::Space,
};
use atelier_core::{ProjectId, Role, event::CloseReason};
use atelier_runtime::Report;
use atelier_store::Owned;
use axum::{
    Json as Reply,
    extract::{Path, State},
    http::StatusCode,
};

/// Show the worker space: health and figures
#[utoipa::path(get, path = "/my/projects/{project}/worker-space", tag = "worker space", params(("project" = uuid::Uuid, Path)),
    responses((status = 200, body = Report)))]
pub(super) async fn show(space: Space) -> Reply<Report> {
    Reply(space.report().await)
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
    Path(project): Path<String>,
) -> Result<StatusCode> {
    let owned = find(&app, &project).await?;
    if owned.owner != caller.user {
        return Err(Error::NotFound);
    }
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
    Path(project): Path<String>,
) -> Result<Reply<Report>> {
    let owned = find(&app, &project).await?;
    if !may_reset(&caller, &owned) {
        return Err(Error::NotFound);
    }
    Ok(Reply(app.spaces.reset(owned).await?.report().await))
}

async fn find(app: &App, project: &str) -> Result<Owned> {
    let project: ProjectId = project.parse().map_err(|_| Error::NotFound)?;
    Ok(app.store.owned(project).await?)
}

fn may_reset(caller: &Caller, owned: &Owned) -> bool {
    owned.owner == caller.user || (caller.role == Role::Admin && owned.tenant == caller.tenant)
}
