//! Projects of the caller.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    body::{Json, Paging},
    error::{Error, Result},
    guard::{OwnProject, Space},
};
use atelier_core::{Project, ProjectName, WorkspaceKind};
use axum::{Json as Reply, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewProject {
    name: ProjectName,
    #[serde(default)]
    workspace: WorkspaceKind,
    #[serde(default)]
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
}

/// What to change; what is absent stays. `settings` are replaced as a whole.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectChanges {
    name: Option<ProjectName>,
    workspace: Option<WorkspaceKind>,
    #[schema(value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ProjectList {
    projects: Vec<Project>,
    /// How many there are in all.
    total: i64,
}

/// Create a project with its starter agents
#[utoipa::path(post, path = "/my/projects", tag = "projects", request_body = NewProject, responses(
    (status = 201, body = Project),
    (status = 409, description = "You have a project of that name"),
))]
pub(super) async fn create(
    State(app): State<App>,
    Person(caller): Person,
    Json(new): Json<NewProject>,
) -> Result<(StatusCode, Reply<Project>)> {
    check_settings(&app, Some(&new.settings))?;
    let agents = app.starter_pack.clone();
    let created = app
        .store
        .create_project(caller.user, caller.tenant.clone(), new.name, new.workspace, new.settings, agents)
        .await?;
    let owned = app.store.owned_by(caller.user, created.id).await?;
    app.spaces.agents_created(&owned).await;
    Ok((StatusCode::CREATED, Reply(created)))
}

/// List your projects, oldest first
#[utoipa::path(get, path = "/my/projects", tag = "projects", params(Paging), responses(
    (status = 200, body = ProjectList),
))]
pub(super) async fn list(State(app): State<App>, caller: Caller, page: Paging) -> Result<Reply<ProjectList>> {
    let (projects, total) = app.store.projects(caller.user, page.limit.into(), page.offset.into()).await?;
    Ok(Reply(ProjectList { projects, total }))
}

/// Show a project
#[utoipa::path(get, path = "/my/projects/{project}", tag = "projects", params(("project" = uuid::Uuid, Path)), responses(
    (status = 200, body = Project),
))]
pub(super) async fn show(State(app): State<App>, space: Space) -> Result<Reply<Project>> {
    Ok(Reply(app.store.project(space.owned()).await?))
}

/// Change a project
#[utoipa::path(put, path = "/my/projects/{project}", tag = "projects", params(("project" = uuid::Uuid, Path)),
    request_body = ProjectChanges, responses(
    (status = 200, body = Project),
    (status = 409, description = "You have another project of that name"),
))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    space: Space,
    Json(changes): Json<ProjectChanges>,
) -> Result<Reply<Project>> {
    let ProjectChanges { name, workspace, settings } = changes;
    check_settings(&app, settings.as_ref())?;
    Ok(Reply(app.store.update_project(space.owned(), name, workspace, settings).await?))
}

fn check_settings(app: &App, settings: Option<&Map<String, Value>>) -> Result<()> {
    if let Some(settings) = settings {
        app.gate.check_wishes(settings.get("policy"))?;
        atelier_runtime::ProjectSettings::of(settings)?;
    }
    match settings.is_none_or(atelier_core::agent::fits) {
        true => Ok(()),
        false => Err(Error::Invalid("settings: must be at most 65536 bytes of JSON".into())),
    }
}

/// Delete a project, its agents and all the server holds for it
///
/// Files on your own machine are not touched.
#[utoipa::path(delete, path = "/my/projects/{project}", tag = "projects", params(("project" = uuid::Uuid, Path)), responses(
    (status = 204, description = "Deleted"),
))]
pub(super) async fn delete(
    State(app): State<App>,
    _: Person,
    OwnProject(owned): OwnProject,
) -> Result<StatusCode> {
    app.store.delete_project(&owned).await?;
    // Ends what runs there; this request is not among it.
    app.spaces.remove_deleted(owned.project);
    Ok(DONE)
}
