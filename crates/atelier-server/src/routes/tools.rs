//! Tool calls: requesting them, following them, and what machines report about them.

use crate::{
    App,
    access::{CallSpace, OwnSpace, OwnerOrAdmin, decider, shown_to},
    auth::{Caller, Person, ToolRequester, ToolRunner},
    body::Json,
    error::{Error, Result},
    idempotency::IdempotencyKey,
    path::{CallInPath, ProjectInPath},
    query::{Page, PageQuery, preferred_wait},
};
use atelier_api::tools::{
    Claim, OutcomeReport, PreviewFailed, PreviewReport, PreviewShown, ServerPolicy, ToolCallList,
};
use atelier_core::{
    CallId, ConversationId, Role, WorkspaceKind,
    gate::{AskedBy, CallPreview, CallStatus, GatedCall, NewCall, Previewed},
    tools::ToolInfo,
};
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolRequest {
    #[schema(max_length = 100)]
    tool_name: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    tool_params: Map<String, Value>,
    /// The agent that requests the call, by id or name.
    agent_id: Option<String>,
    /// The conversation that the call belongs to.
    session_id: Option<ConversationId>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ToolCatalog {
    tools: Vec<ToolInfo>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CallFilter {
    /// Only calls with this status.
    status: Option<CallStatus>,
}

/// Request a tool call
///
/// Answers immediately with the current state of the call. With `Prefer: wait=30`, the answer comes
/// when the call is settled, or after that many seconds (at most `server.request_timeout`).
///
/// With an `Idempotency-Key`, the request can be sent again within a day after its answer was lost:
/// the same key and body get the same call, as it is by then.
#[utoipa::path(post, path = "/my/projects/{project}/tools/execute", tag = "tools",
    params(ProjectInPath, ("Prefer" = Option<String>, Header), IdempotencyKey),
    request_body = ToolRequest, responses(
        (status = 200, description = "The call", body = GatedCall),
        (status = 422,
            description = "The body is not valid, or the key was used for another request"),
    ))]
pub(super) async fn execute(
    State(app): State<App>,
    ToolRequester(caller): ToolRequester,
    space: CallSpace,
    headers: HeaderMap,
    Json(request): Json<ToolRequest, true>,
) -> Result<Reply<GatedCall>> {
    if request.tool_name.chars().count() > 100 {
        return Err(Error::Invalid("tool_name: must have at most 100 characters".into()));
    }
    let key = IdempotencyKey::read(&headers)?;
    let key = key.map(|key| key.of_request(&caller, &("execute", space.conversation, &request)));
    let agent_id = match &request.agent_id {
        Some(agent) => Some(space.named_agent(agent).await?.id),
        None => None,
    };
    let session_id = request.session_id.or(space.conversation);
    space.check(session_id)?;
    if let Some(session) = session_id {
        // Permissions hold for one conversation, so it must be a conversation of this project.
        app.store.conversation(space.owned(), session).await?;
    }
    let asked_by = if caller.role == Role::Agent { AskedBy::Program } else { AskedBy::Owner };
    let new = NewCall {
        id: CallId(Uuid::now_v7()),
        tool_name: request.tool_name,
        workspace: WorkspaceKind::Client,
        tool_params: request.tool_params.into(),
        agent_id,
        session_id,
        task_id: None,
        asked_by,
        requested_by: caller.program(),
    };
    let call = match preferred_wait(&app, &headers) {
        Some(time) => app.gate.execute_and_wait(space.owned(), new, key, time).await?,
        None => app.gate.execute_once(space.owned(), new, key).await?,
    };
    Ok(Reply(shown_to(&caller, call)))
}

/// List tool calls, newest first
///
/// An `agent` token sees the parameters and results of its own calls and of calls that needed no
/// approval; of the others it sees only that they were made.
///
/// If a call has more than 64 KiB of parameters or result, its long texts are shortened, with
/// `$link` to the whole call.
#[utoipa::path(get, path = "/my/projects/{project}/tools", tag = "tools",
    params(ProjectInPath, CallFilter, Page),
    responses((status = 200, description = "A page of calls", body = ToolCallList)))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    PageQuery { page, filter }: PageQuery<CallFilter>,
) -> Result<Reply<ToolCallList>> {
    let status = filter.status.map(CallStatus::as_str);
    let (tools, total) = app.store.calls(space.owned(), status, page.limit, page.offset).await?;
    let tools = tools.into_iter().map(|call| shown_to(&caller, call).in_brief()).collect();
    Ok(Reply(ToolCallList { tools, total }))
}

/// List the tools that agents can use
#[utoipa::path(get, path = "/my/projects/{project}/tools/available",
    tag = "tools", params(ProjectInPath),
    responses((status = 200, description = "All tools", body = ToolCatalog)))]
pub(super) async fn available(State(app): State<App>, _: OwnSpace) -> Reply<ToolCatalog> {
    let policy = app.gate.policy();
    Reply(ToolCatalog { tools: policy.tools().available(policy.limits()) })
}

/// Show the server's own rules for tool calls
///
/// They are added to the built-in rules. A machine also applies them, as far as its owner accepts
/// them.
#[utoipa::path(get, path = "/my/policy", tag = "tools",
    responses((status = 200, description = "The server's own rules", body = ServerPolicy)))]
pub(super) async fn policy(State(app): State<App>, _: Caller) -> Reply<ServerPolicy> {
    let extension = app.gate.extension().clone();
    Reply(ServerPolicy { extension, demand_isolation: app.gate.demands_isolation() })
}

/// Show a tool call
///
/// An `agent` token sees the parameters and the result only of its own calls and of calls that
/// needed no approval.
#[utoipa::path(get, path = "/my/projects/{project}/tools/{tool}", tag = "tools",
    params(ProjectInPath, CallInPath),
    responses((status = 200, description = "The call", body = GatedCall)))]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    space: CallSpace,
    CallInPath(call): CallInPath,
) -> Result<Reply<GatedCall>> {
    let call = app.store.call(space.owned(), call).await?;
    space.check(call.session_id)?;
    Ok(Reply(shown_to(&caller, call)))
}

/// Cancel a tool call that is not settled yet
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/cancel", tag = "tools",
    params(ProjectInPath, CallInPath), responses(
    (status = 200, description = "The cancelled call", body = GatedCall),
    (status = 409, description = "It is already settled"),
))]
pub(super) async fn cancel(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    CallInPath(call): CallInPath,
    headers: HeaderMap,
) -> Result<Reply<GatedCall>> {
    Ok(Reply(app.gate.cancel(&owned, decider(&caller, &headers), call).await?))
}

/// From a machine: report what a call would change
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/preview", tag = "clients",
    params(ProjectInPath, CallInPath), request_body = PreviewReport, responses(
    (status = 200, description = "The call", body = GatedCall),
    (status = 409, description = "The preview is not needed, or not from this machine"),
))]
pub(super) async fn preview(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    CallInPath(call): CallInPath,
    Json(report): Json<PreviewReport, true>,
) -> Result<Reply<GatedCall>> {
    let owned = space.owned();
    Ok(Reply(match report {
        PreviewReport::Shown(PreviewShown {
            client_id,
            base_checksum,
            diff,
            rating,
            unchanged,
        }) => {
            let preview = CallPreview { base_checksum, diff };
            let shown = Previewed { preview, rating, unchanged };
            app.gate.previewed(owned, call, runner.as_machine(client_id), shown).await?
        }
        PreviewReport::Failed(PreviewFailed { client_id, error }) => {
            app.gate.preview_failed(owned, call, runner.as_machine(client_id), error).await?
        }
    }))
}

/// From a machine: claim a call before running it
///
/// A claimed call is never sent again.
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/claim", tag = "clients",
    params(ProjectInPath, CallInPath), request_body = Claim, responses(
    (status = 200, description = "The claimed call", body = GatedCall),
    (status = 409, description = "The call was not sent to this machine, or it is already settled"),
))]
pub(super) async fn claim(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    CallInPath(call): CallInPath,
    Json(claim): Json<Claim>,
) -> Result<Reply<GatedCall>> {
    let machine = runner.as_machine(claim.client_id);
    Ok(Reply(app.gate.claim(space.owned(), call, machine, claim.attempt).await?))
}

/// From a machine: report the outcome of a call
///
/// The same result may be sent again; a different one is refused. `code: "stale"` means that the
/// file has changed since its preview. `code: "approval_required"`, with `verdict`, `rule` and
/// `error`, means that the machine rates the call higher than what was approved. In both cases the
/// person is asked again.
#[utoipa::path(post, path = "/my/projects/{project}/tools/{tool}/result", tag = "clients",
    params(ProjectInPath, CallInPath), request_body = OutcomeReport, responses(
    (status = 200, description = "The call", body = GatedCall),
    (status = 409, description = "The call was not sent to this machine, or it has another result"),
))]
pub(super) async fn result(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    CallInPath(call): CallInPath,
    Json(report): Json<OutcomeReport, true>,
) -> Result<Reply<GatedCall>> {
    let OutcomeReport { client_id, attempt, result } = report;
    let machine = runner.as_machine(client_id);
    Ok(Reply(app.gate.finish(space.owned(), call, machine, attempt, result).await?))
}
