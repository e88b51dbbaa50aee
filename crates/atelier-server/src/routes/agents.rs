//! The agents of a project.

use super::{DONE, models::check_model};
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

/// An agent, and the model that answers for it.
#[derive(Serialize, ToSchema)]
pub(super) struct AgentView {
    #[serde(flatten)]
    agent: Agent,
    /// What its model resolves to now, such as `anthropic/claude-sonnet-4-5`, or `demo`; null if no
    /// model can answer.
    answered_by: Option<String>,
    /// Why no model can answer.
    model_problem: Option<String>,
}

impl AgentView {
    async fn of(app: &App, space: &CountedSpace, agent: Agent) -> Result<Self> {
        let access = app.model_keys.of(&space.owned().tenant, Some(space.owned().owner)).await?;
        let model = app.model_keys.models().resolve(&agent.config.model, &access).await;
        let (answered_by, model_problem) = match model {
            Ok(model) => (Some(model.name().to_owned()), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self { agent, answered_by, model_problem })
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct AgentList {
    agents: Vec<AgentView>,
    /// How many agents the project has in total.
    total: i64,
}

/// Add an agent to the project
#[utoipa::path(post, path = "/my/projects/{project}/agents", tag = "agents", params(ProjectInPath),
    request_body = NewAgentRequest, responses(
    (status = 201, description = "The new agent", body = AgentView),
    (status = 409, description = "The project already has an agent with this name"),
))]
pub(super) async fn create(
    State(app): State<App>,
    Person(caller): Person,
    space: CountedSpace,
    Json(new): Json<NewAgentRequest>,
) -> Result<(StatusCode, Reply<AgentView>)> {
    new.config.validate()?;
    check_model(&app, &caller, "config.model", &new.config.model).await?;
    atelier_runtime::check_tools(&new.config.tools)?;
    let new = NewAgent { name: new.name, config: new.config };
    let agent = app.store.create_agent(space.owned(), new).await?;
    app.spaces.agents_created(space.owned()).await;
    // The new name may be the short name that found a starter agent so far.
    space.forget_agents();
    Ok((StatusCode::CREATED, Reply(AgentView::of(&app, &space, agent).await?)))
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
    let mut views = Vec::with_capacity(agents.len());
    for agent in agents {
        views.push(AgentView::of(&app, &space, agent).await?);
    }
    Ok(Reply(AgentList { agents: views, total }))
}

/// Show an agent
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(ProjectInPath, AgentInPath),
    responses((status = 200, description = "The agent", body = AgentView)))]
pub(super) async fn show(
    State(app): State<App>,
    space: CountedSpace,
    AgentInPath(wanted): AgentInPath,
) -> Result<Reply<AgentView>> {
    let agent = Agent::clone(&**space.agent(&wanted).await?);
    Ok(Reply(AgentView::of(&app, &space, agent).await?))
}

/// Change an agent
#[utoipa::path(put, path = "/my/projects/{project}/agents/{agent}", tag = "agents",
    params(ProjectInPath, AgentInPath),
    request_body = AgentUpdate, responses(
    (status = 200, description = "The changed agent", body = AgentView),
    (status = 409, description = "The project has another agent with this name"),
))]
pub(super) async fn update(
    State(app): State<App>,
    Person(caller): Person,
    space: CountedSpace,
    AgentInPath(wanted): AgentInPath,
    Json(update): Json<AgentUpdate>,
) -> Result<Reply<AgentView>> {
    let agent = space.agent(&wanted).await?;
    let id = agent.id;
    if let Some(changes) = &update.config {
        // What the agent has already stays as it is, even if it is not known any more.
        let changed = agent.config.with(changes.clone())?;
        if changed.model != agent.config.model {
            check_model(&app, &caller, "config.model", &changed.model).await?;
        }
        if changed.tools != agent.config.tools {
            atelier_runtime::check_tools(&changed.tools)?;
        }
    }
    let changes = AgentChanges { name: update.name, config: update.config };
    let agent = app.store.update_agent(space.owned(), id, changes).await??;
    space.forget_agents();
    Ok(Reply(AgentView::of(&app, &space, agent).await?))
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
