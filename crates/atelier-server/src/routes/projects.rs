//! The caller's projects.

use super::{DONE, models::check_model};
use crate::{
    App,
    access::{CountedSpace, OwnProject},
    auth::{Caller, Person},
    body::Json,
    error::{Error, Result},
    path::ProjectInPath,
    query::{Page, PageQuery},
};
use atelier_api::projects::ProjectList;
use atelier_core::{Project, ProjectName, TokenPlace, WorkspaceKind};
use atelier_store::Error as StoreError;
use axum::{Json as Reply, extract::State, http::StatusCode};
use serde::Deserialize;
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

/// The fields to change. Absent fields stay as they are; `settings` are replaced as a whole.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectChanges {
    name: Option<ProjectName>,
    workspace: Option<WorkspaceKind>,
    #[schema(value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
}

/// Create a project with its starter agents
#[utoipa::path(post, path = "/my/projects", tag = "projects", request_body = NewProject, responses(
    (status = 201, description = "The new project", body = Project),
    (status = 409, description = "You already have a project with this name"),
))]
pub(super) async fn create(
    State(app): State<App>,
    Person(caller): Person,
    Json(new): Json<NewProject>,
) -> Result<(StatusCode, Reply<Project>)> {
    check_settings(&app, &caller, Some(&new.settings)).await?;
    let agents = app.starter_pack.clone();
    let created = app
        .store
        .create_project(
            caller.user,
            caller.tenant.clone(),
            new.name,
            new.workspace,
            new.settings,
            agents,
        )
        .await?;
    let owned = app.store.owned_by(caller.user, created.id).await?;
    app.spaces.agents_created(&owned).await;
    Ok((StatusCode::CREATED, Reply(created)))
}

/// List your projects, oldest first
///
/// A `client` or `agent` token sees the project that it is for.
#[utoipa::path(get, path = "/my/projects", tag = "projects", params(Page), responses(
    (status = 200, description = "A page of your projects", body = ProjectList),
))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    PageQuery { page, .. }: PageQuery,
) -> Result<Reply<ProjectList>> {
    let (projects, total) = match caller.place {
        None => app.store.projects(caller.user, page.limit, page.offset).await?,
        Some(place) => page.of(own_project(&app, &caller, place).await?.into_iter().collect()),
    };
    Ok(Reply(ProjectList { projects, total }))
}

/// The project that a role token is for, unless it is only for a conversation or the project is
/// gone.
async fn own_project(app: &App, caller: &Caller, place: TokenPlace) -> Result<Option<Project>> {
    if place.conversation.is_some() {
        return Ok(None);
    }
    match app.store.owned_by(caller.user, place.project).await {
        Ok(owned) => Ok(Some(app.store.project(&owned).await?)),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Show a project
#[utoipa::path(get, path = "/my/projects/{project}",
    tag = "projects", params(ProjectInPath), responses(
    (status = 200, description = "The project", body = Project),
))]
pub(super) async fn show(State(app): State<App>, space: CountedSpace) -> Result<Reply<Project>> {
    Ok(Reply(app.store.project(space.owned()).await?))
}

/// Change a project
#[utoipa::path(put, path = "/my/projects/{project}", tag = "projects", params(ProjectInPath),
    request_body = ProjectChanges, responses(
    (status = 200, description = "The changed project", body = Project),
    (status = 409, description = "You have another project with this name"),
))]
pub(super) async fn update(
    State(app): State<App>,
    Person(caller): Person,
    space: CountedSpace,
    Json(changes): Json<ProjectChanges>,
) -> Result<Reply<Project>> {
    let ProjectChanges { name, workspace, settings } = changes;
    check_settings(&app, &caller, settings.as_ref()).await?;
    Ok(Reply(app.store.update_project(space.owned(), name, workspace, settings).await?))
}

async fn check_settings(
    app: &App,
    caller: &Caller,
    settings: Option<&Map<String, Value>>,
) -> Result<()> {
    if let Some(settings) = settings {
        app.gate.check_restrictions(settings.get("policy"))?;
        let parsed = atelier_runtime::ProjectSettings::check(settings)?;
        check_model(app, caller, "settings.planner.model", &parsed.planner.model).await?;
    }
    match settings.is_none_or(atelier_core::agent::fits) {
        true => Ok(()),
        false => Err(Error::Invalid("settings: must be at most 65536 bytes of JSON".into())),
    }
}

/// Delete a project with its agents and everything that the server stores for it
///
/// Files on your own machines are not touched.
#[utoipa::path(delete, path = "/my/projects/{project}",
    tag = "projects", params(ProjectInPath), responses(
    (status = 204, description = "Deleted"),
))]
pub(super) async fn delete(
    State(app): State<App>,
    _: Person,
    OwnProject(owned): OwnProject,
) -> Result<StatusCode> {
    app.store.delete_project(&owned).await?;
    // Ends the requests that run in the worker space. This request is not one of them.
    app.spaces.remove_deleted(owned.project);
    Ok(DONE)
}
