//! The agents of a project.

use super::DONE;
use crate::{
    App,
    access::{CountedSpace, decider},
    auth::Person,
    body::Json,
    error::Result,
    path::{AgentInPath, ProjectInPath},
    query::{Page, PageQuery},
};
use atelier_core::{Agent, AgentConfig, AgentName, PartialAgentConfig};
use atelier_store::{AgentChanges, NewAgent};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewAgent)]
pub(super) struct NewAgentRequest {
    name: AgentName,
    #[serde(default, deserialize_with = "atelier_core::json::object")]
    #[schema(value_type = PartialAgentConfig)]
    config: AgentConfig,
}

/// The fields to change. Absent fields stay as they are; this also holds for the fields of
/// `config`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentUpdate {
    name: Option<AgentName>,
    config: Option<PartialAgentConfig>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct AgentList {
    agents: Vec<Agent>,
    /// How many agents the project has in total.
    total: i64,
}

/// Add an agent to the project
#[utoipa::path(post, path = "/my/projects/{project}/agents", tag = "agents", params(ProjectInPath),
    request_body = NewAgentRequest, responses(
    (status = 201, description = "The new agent", body = Agent),
    (status = 409, description = "The project already has an agent with this name"),
))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    space: CountedSpace,
    Json(new): Json<NewAgentRequest>,
) -> Result<(StatusCode, Reply<Agent>)> {
    new.config.validate()?;
    let new = NewAgent { name: new.name, config: new.config };
    let agent = app.store.create_agent(space.owned(), new).await?;
    app.spaces.agents_created(space.owned()).await;
    // The new name may be the short name that found a starter agent so far.
    space.forget_agents();
    Ok((StatusCode::CREATED, Reply(agent)))
}

/// List the project's agents, oldest first
#[utoipa::path(get, path = "/my/projects/{project}/agents",
    tag = "agents", params(ProjectInPath, Page),
    responses((status = 200, description = "A page of the project's agents", body = AgentList)))]
pub(super) async fn list(
    State(app): State<App>,
    space: CountedSpace,
    PageQuery { page, .. }: PageQuery,
) -> Result<Reply<AgentList>> {
    let (agents, total) = app.store.agents(space.owned(), page.limit, page.offset).await?;
    Ok(Reply(AgentList { agents, total }))
}

/// Show an agent
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(ProjectInPath, AgentInPath),
    responses((status = 200, description = "The agent", body = Agent)))]
pub(super) async fn show(
    space: CountedSpace,
    AgentInPath(wanted): AgentInPath,
) -> Result<Reply<Agent>> {
    Ok(Reply(Agent::clone(&**space.agent(&wanted).await?)))
}

/// Change an agent
#[utoipa::path(put, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(ProjectInPath, AgentInPath),
    request_body = AgentUpdate, responses(
    (status = 200, description = "The changed agent", body = Agent),
    (status = 409, description = "The project has another agent with this name"),
))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    space: CountedSpace,
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
/// Its tasks are cancelled, with their model calls and tool calls.
#[utoipa::path(delete, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(ProjectInPath, AgentInPath),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(app): State<App>,
    Person(caller): Person,
    space: CountedSpace,
    AgentInPath(wanted): AgentInPath,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let id = space.agent(&wanted).await?.id;
    app.bus.delete_agent(space.owned(), &decider(&caller, &headers), id).await?;
    space.forget_agents();
    Ok(DONE)
}
