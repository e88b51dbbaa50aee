//! Agents of a project.

use super::DONE;
use crate::{
    App,
    auth::Person,
    body::{AgentInPath, Json, Paging},
    error::Result,
    guard::{Space, decider},
};
use atelier_core::{Agent, AgentConfig, AgentName};
use atelier_store::{AgentChanges, NewAgent};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentToMake {
    name: AgentName,
    #[serde(default, deserialize_with = "atelier_core::json::object")]
    config: AgentConfig,
}

/// What to change; what is absent stays, fields of `config` as well.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentUpdate {
    name: Option<AgentName>,
    #[schema(value_type = Option<AgentConfig>)]
    config: Option<Map<String, Value>>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct AgentList {
    agents: Vec<Agent>,
    /// How many there are in all.
    total: i64,
}

/// Add an agent to the project
#[utoipa::path(post, path = "/my/projects/{project}/agents", tag = "agents", params(("project" = uuid::Uuid, Path)),
    request_body = AgentToMake, responses(
    (status = 201, body = Agent),
    (status = 409, description = "The project has an agent of that name"),
))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    space: Space,
    Json(new): Json<AgentToMake>,
) -> Result<(StatusCode, Reply<Agent>)> {
    new.config.validate()?;
    let new = NewAgent { name: new.name, config: new.config };
    let agent = app.store.create_agent(space.owned(), new).await?;
    app.spaces.agents_created(space.owned()).await;
    // A new name may hide a starter agent's short one.
    space.forget_agents();
    Ok((StatusCode::CREATED, Reply(agent)))
}

/// List the project's agents, oldest first
#[utoipa::path(get, path = "/my/projects/{project}/agents", tag = "agents", params(("project" = uuid::Uuid, Path), Paging),
    responses((status = 200, body = AgentList)))]
pub(super) async fn list(State(app): State<App>, space: Space, page: Paging) -> Result<Reply<AgentList>> {
    let (agents, total) = app.store.agents(space.owned(), page.limit.into(), page.offset.into()).await?;
    Ok(Reply(AgentList { agents, total }))
}

/// Show an agent, by id or by name
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name; `coder` finds `agent_coder`")),
    responses((status = 200, body = Agent)))]
pub(super) async fn show(space: Space, AgentInPath(wanted): AgentInPath) -> Result<Reply<Agent>> {
    Ok(Reply(Agent::clone(&*space.agent(&wanted).await?)))
}

/// Change an agent
#[utoipa::path(put, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    request_body = AgentUpdate, responses(
    (status = 200, body = Agent),
    (status = 409, description = "The project has another agent of that name"),
))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    space: Space,
    AgentInPath(wanted): AgentInPath,
    Json(update): Json<AgentUpdate>,
) -> Result<Reply<Agent>> {
    let id = space.agent(&wanted).await?.id;
    let changes = AgentChanges { name: update.name, config: update.config };
    let agent = app.store.update_agent(space.owned(), id, changes).await??;
    space.forget_agents();
    Ok(Reply(agent))
}

/// Delete an agent
///
/// Its tasks end with it, and their model and tool calls.
#[utoipa::path(delete, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(app): State<App>,
    Person(caller): Person,
    space: Space,
    AgentInPath(wanted): AgentInPath,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let id = space.agent(&wanted).await?.id;
    app.bus.delete_agent(space.owned(), &decider(&caller, &headers), id).await?;
    space.forget_agents();
    Ok(DONE)
}
