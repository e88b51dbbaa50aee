//! Tool calls: asking for them, following them, and the client's side of them.

use crate::{
    App,
    auth::{Asker, Caller, Person, Runner},
    body::{CallInPath, Json, Paging, Params, preferred_wait},
    error::{Error, Result},
    guard::{Member, OwnOrAdmin, decider},
};
use atelier_core::{
    ClientId, ConversationId, Role,
    gate::{CallFailure, CallPreview, CallRating, CallStatus, GatedCall},
    policy::{
        Extension,
        catalog::{ToolInfo, catalog},
    },
};
use atelier_runtime::{Ask, Named};
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolRequest {
    #[schema(max_length = 100)]
    tool_name: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    tool_params: Map<String, Value>,
    /// The agent that asks, by id or name.
    agent_id: Option<String>,
    session_id: Option<Uuid>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ToolCallList {
    tools: Vec<GatedCall>,
    total: i64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ToolCatalog {
    tools: Vec<ToolInfo>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ServerPolicy {
    /// In the form of the configuration's `policy`.
    #[schema(value_type = Object)]
    extension: Extension,
    /// Commands are refused on machines that cannot hold them in.
    demand_isolation: bool,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only calls in this state
    status: Option<CallStatus>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    offset: Option<u32>,
}

/// What a call would change, or why it cannot be done: then it ends with that, and nobody is asked.
#[derive(ToSchema)]
#[serde(untagged)]
pub(super) enum Preview {
    Shown(Shown),
    Impossible(Impossible),
}

impl<'de> Deserialize<'de> for Preview {
    /// By the one field that tells them apart, so that what is wrong with the others can be said.
    fn deserialize<D: Deserializer<'de>>(body: D) -> std::result::Result<Self, D::Error> {
        let body = Value::deserialize(body)?;
        match body.get("error") {
            Some(_) => Impossible::deserialize(body).map(Self::Impossible),
            None => Shown::deserialize(body).map(Self::Shown),
        }
        .map_err(D::Error::custom)
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    client_id: Uuid,
    /// Of the file as it is; none where there is none yet.
    base_checksum: Option<String>,
    diff: String,
    /// What the client finds the call to be; only what is stricter counts.
    rating: Option<CallRating>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Impossible {
    client_id: Uuid,
    error: CallFailure,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    client_id: Uuid,
    #[serde(deserialize_with = "atelier_core::json::whole")]
    attempt: u32,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Outcome {
    client_id: Uuid,
    #[serde(deserialize_with = "atelier_core::json::whole")]
    attempt: u32,
    /// What the tool answered: `success`, its own fields, `error` and `code` on failure.
    #[schema(value_type = Object)]
    result: Map<String, Value>,
}

/// Ask for a tool call
///
/// Answers at once with its state; with `Prefer: wait=30` when it is settled, or after that many seconds (at most
/// `server.request_timeout`).
#[utoipa::path(post, path = "/my/projects/{project}/tools/execute", tag = "tools",
    params(("project" = Uuid, Path), ("Prefer" = Option<String>, Header)),
    request_body = ToolRequest, responses((status = 200, body = GatedCall)))]
pub(super) async fn execute(
    State(app): State<App>,
    Asker(caller): Asker,
    space: Member,
    headers: HeaderMap,
    Json(request): Json<ToolRequest, true>,
) -> Result<Reply<GatedCall>> {
    if request.tool_name.chars().count() > 100 {
        return Err(Error::Invalid("tool_name: must have at most 100 characters".into()));
    }
    let agent_id = match &request.agent_id {
        Some(agent) => Some(space.named_agent(agent).await?.id),
        None => None,
    };
    if let Some(session) = request.session_id {
        // What is permitted in a conversation is for that one; another project's does not exist here.
        app.store.conversation(space.owned(), ConversationId(session)).await?;
    }
    let named = if caller.role == Role::Agent { Named::ByItself } else { Named::ByOwner };
    let ask = Ask {
        tool_name: request.tool_name,
        tool_params: request.tool_params.into(),
        agent_id,
        session_id: request.session_id.map(ConversationId),
        task_id: None,
    };
    Ok(Reply(match preferred_wait(&app, &headers) {
        Some(time) => app.gate.execute_and_wait(space.owned(), ask, named, time).await?,
        None => app.gate.execute(space.owned(), ask, named).await?,
    }))
}

/// List tool calls, newest first
///
/// Of those with more than 64 KiB of parameters or result, long texts are cut short, with `$link` to the whole call.
#[utoipa::path(get, path = "/my/projects/{project}/tools", tag = "tools", params(("project" = Uuid, Path), Filter),
    responses((status = 200, body = ToolCallList)))]
pub(super) async fn list(
    State(app): State<App>,
    space: Member,
    Params(filter): Params<Filter>,
) -> Result<Reply<ToolCallList>> {
    let page = Paging::checked(filter.limit, filter.offset)?;
    let owned = space.owned();
    let (tools, total) = app
        .store
        .calls(owned, filter.status.map(CallStatus::as_str), page.limit.into(), page.offset.into())
        .await?;
    let tools = tools.into_iter().map(GatedCall::in_brief).collect();
    Ok(Reply(ToolCallList { tools, total }))
}

/// The tools there are
#[utoipa::path(get, path = "/my/projects/{project}/tools/available", tag = "tools", params(("project" = Uuid, Path)),
    responses((status = 200, body = ToolCatalog)))]
pub(super) async fn available(_: Member) -> Reply<ToolCatalog> {
    Reply(ToolCatalog { tools: catalog() })
}

/// The server's own rules for tool calls
///
/// What it adds to the rules that every Atelier has. A client judges by them as well, as far as its owner accepts them.
#[utoipa::path(get, path = "/my/policy", tag = "tools", responses((status = 200, body = ServerPolicy)))]
pub(super) async fn policy(State(app): State<App>, _: Caller) -> Reply<ServerPolicy> {
    let extension = app.gate.extension().clone();
    Reply(ServerPolicy { extension, demand_isolation: app.gate.demands_isolation() })
}

/// Show a tool call
#[utoipa::path(get, path = "/my/projects/{project}/tools/{tool}", tag = "tools",
    params(("project" = Uuid, Path), ("tool" = Uuid, Path)), responses((status = 200, body = GatedCall)))]
pub(super) async fn show(
    State(app): State<App>,
    space: Member,
    CallInPath(call): CallInPath,
) -> Result<Reply<GatedCall>> {
    Ok(Reply(app.store.call(space.owned(), call).await?))
}

/// Cancel a tool call that is not settled yet
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/cancel", tag = "tools",
    params(("project" = Uuid, Path), ("tool" = Uuid, Path)), responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "It is settled already"),
))]
pub(super) async fn cancel(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    CallInPath(call): CallInPath,
    headers: HeaderMap,
) -> Result<Reply<GatedCall>> {
    Ok(Reply(app.gate.cancel(&owned, decider(&caller, &headers), call).await?))
}

/// From the client: what a call would change
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/preview", tag = "clients",
    params(("project" = Uuid, Path), ("tool" = Uuid, Path)), request_body = Preview, responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "Nobody asks for it any more, or not this client"),
))]
pub(super) async fn preview(
    State(app): State<App>,
    _: Runner,
    space: Member,
    CallInPath(call): CallInPath,
    Json(preview): Json<Preview, true>,
) -> Result<Reply<GatedCall>> {
    let owned = space.owned();
    Ok(Reply(match preview {
        Preview::Shown(Shown { client_id, base_checksum, diff, rating }) => {
            let preview = CallPreview { base_checksum, diff };
            app.gate.previewed(owned, call, ClientId(client_id), preview, rating).await?
        }
        Preview::Impossible(Impossible { client_id, error }) => {
            app.gate.preview_failed(owned, call, ClientId(client_id), error).await?
        }
    }))
}

/// From the client: it begins with a call, which nobody else will then
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/claim", tag = "clients",
    params(("project" = Uuid, Path), ("tool" = Uuid, Path)), request_body = Claim, responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "It is not this client's to run, or not any more"),
))]
pub(super) async fn claim(
    State(app): State<App>,
    _: Runner,
    space: Member,
    CallInPath(call): CallInPath,
    Json(claim): Json<Claim>,
) -> Result<Reply<GatedCall>> {
    Ok(Reply(app.gate.claim(space.owned(), call, ClientId(claim.client_id), claim.attempt).await?))
}

/// From the client: what came of a call
///
/// The same result again is fine, another is refused. A result with `code: "stale"` says that the file has
/// changed since it was shown, one with `code: "approval_required"` and its own `verdict`, `rule` and `error` that the
/// call is more than what was approved: either way the person is asked again.
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/result", tag = "clients",
    params(("project" = Uuid, Path), ("tool" = Uuid, Path)), request_body = Outcome, responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "It was not sent to this client, or has another result"),
))]
pub(super) async fn result(
    State(app): State<App>,
    _: Runner,
    space: Member,
    CallInPath(call): CallInPath,
    Json(outcome): Json<Outcome, true>,
) -> Result<Reply<GatedCall>> {
    let Outcome { client_id, attempt, result } = outcome;
    Ok(Reply(app.gate.finish(space.owned(), call, ClientId(client_id), attempt, result.into()).await?))
}
