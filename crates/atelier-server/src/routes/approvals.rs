//! Approvals, standing permissions, and the record of decisions.

use crate::{
    App,
    auth::{Caller, Person},
    body::{ApprovalInPath, GrantInPath, Json, OptionalJson, Paging, Params},
    error::{Error, Result},
    guard::{Member, OwnOrAdmin, decider},
};
use atelier_api::Problem;
use atelier_core::{
    ApprovalId, Plan,
    gate::{ApprovalStatus, GatedCall, Grant, GrantScope},
};
use atelier_store::Audit;
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

#[derive(Serialize, ToSchema)]
pub(super) struct ApprovalList {
    approvals: Vec<GatedCall>,
    total: i64,
}

/// Everything that waits for a person.
#[derive(Serialize, ToSchema)]
pub(super) struct Waiting {
    approvals: Vec<GatedCall>,
    /// How many calls
    total: i64,
    plans: Vec<Plan>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// What became of them: `pending` unless said otherwise
    #[param(inline)]
    status: Option<Which>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    offset: Option<u32>,
}

#[derive(Deserialize, ToSchema, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    All,
    Pending,
    Approved,
    Rejected,
    Expired,
    Cancelled,
}

impl Which {
    fn status(self) -> Option<ApprovalStatus> {
        Some(match self {
            Which::All => return None,
            Which::Pending => ApprovalStatus::Pending,
            Which::Approved => ApprovalStatus::Approved,
            Which::Rejected => ApprovalStatus::Rejected,
            Which::Expired => ApprovalStatus::Expired,
            Which::Cancelled => ApprovalStatus::Cancelled,
        })
    }
}

#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Approval {
    scope: GrantScope,
    /// With `scope: agent`: up to HIGH, not only MEDIUM.
    include_high: bool,
}

#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rejection {
    #[schema(max_length = 2000)]
    reason: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decisions {
    #[schema(min_items = 1, max_items = 100)]
    decisions: Vec<Decision>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    approval_id: Uuid,
    approve: bool,
    #[serde(default)]
    scope: GrantScope,
    #[serde(default)]
    #[schema(max_length = 2000)]
    reason: Option<String>,
}

/// What became of one decision among many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Decided {
    Call(Box<GatedCall>),
    Problem(Problem),
}

#[derive(Serialize, ToSchema)]
pub(super) struct DecidedList {
    /// In the order of the request.
    results: Vec<Decided>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct GrantList {
    grants: Vec<Grant>,
    total: usize,
}

#[derive(Serialize, ToSchema)]
pub(super) struct AuditList {
    #[schema(value_type = Vec<Object>)]
    audit: Vec<Audit>,
    total: i64,
}

/// List what waits for a decision in a project, or what was decided
#[utoipa::path(get, path = "/my/projects/{project}/approvals", tag = "approvals", params(("project" = Uuid, Path), Filter),
    responses((status = 200, body = ApprovalList)))]
pub(super) async fn list(
    State(app): State<App>,
    space: Member,
    Params(filter): Params<Filter>,
) -> Result<Reply<ApprovalList>> {
    let page = Paging::checked(filter.limit, filter.offset)?;
    let status = filter.status.unwrap_or(Which::Pending).status();
    let (approvals, total) =
        app.store.approvals(space.owned(), status, page.limit.into(), page.offset.into()).await?;
    Ok(Reply(ApprovalList { approvals, total }))
}

/// List what waits for your decision in all your projects: calls, and plans that are not run unasked
#[utoipa::path(get, path = "/my/approvals", tag = "approvals", responses((status = 200, body = Waiting)))]
pub(super) async fn mine(State(app): State<App>, caller: Caller) -> Result<Reply<Waiting>> {
    let approvals = app.store.pending_calls(caller.user, None).await?;
    let plans = app.store.pending_plans(caller.user).await?;
    Ok(Reply(Waiting { total: approvals.len() as i64, approvals, plans }))
}

/// Approve a call, and perhaps others like it
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/approve", tag = "approvals",
    params(("project" = Uuid, Path), ("approval" = Uuid, Path)), request_body = Option<Approval>, responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "It was decided already; `detail` says how"),
))]
pub(super) async fn approve(
    State(app): State<App>,
    Person(caller): Person,
    space: Member,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<Approval>,
) -> Result<Reply<GatedCall>> {
    let by = decider(&caller, &headers);
    Ok(Reply(app.gate.approve(space.owned(), by, approval, body.scope, body.include_high).await?))
}

/// Reject a call; the reason goes to the agent
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/reject", tag = "approvals",
    params(("project" = Uuid, Path), ("approval" = Uuid, Path)), request_body = Option<Rejection>, responses(
    (status = 200, body = GatedCall),
    (status = 409, description = "It was decided already; `detail` says how"),
))]
pub(super) async fn reject(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<Rejection>,
) -> Result<Reply<GatedCall>> {
    check_reason(body.reason.as_deref())?;
    Ok(Reply(app.gate.reject(&owned, decider(&caller, &headers), approval, body.reason).await?))
}

fn check_reason(reason: Option<&str>) -> Result<()> {
    match reason.is_none_or(|reason| reason.chars().count() <= 2000) {
        true => Ok(()),
        false => Err(Error::Invalid("reason: must have at most 2000 characters".into())),
    }
}

/// Decide about many at once; each stands for itself
#[utoipa::path(post, path = "/my/projects/{project}/approvals/decide", tag = "approvals",
    params(("project" = Uuid, Path)), request_body = Decisions, responses((status = 200, body = DecidedList)))]
pub(super) async fn decide(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    headers: HeaderMap,
    Json(body): Json<Decisions>,
) -> Result<Reply<DecidedList>> {
    if !(1..=100).contains(&body.decisions.len()) {
        return Err(Error::Invalid("decisions: give 1 to 100".into()));
    }
    for decision in &body.decisions {
        check_reason(decision.reason.as_deref())?;
    }
    if caller.user != owned.owner && body.decisions.iter().any(|decision| decision.approve) {
        return Err(Error::Forbidden("only the project's owner approves; an admin may reject"));
    }
    let decisions = body.decisions.into_iter().map(|decision| atelier_runtime::Decision {
        id: ApprovalId(decision.approval_id),
        scope: decision.approve.then_some(decision.scope),
        reason: decision.reason,
    });
    let by = decider(&caller, &headers);
    let outcomes = app.gate.decide_many(&owned, &by, decisions.collect()).await;
    let told = |outcome| match outcome {
        Ok(call) => Decided::Call(Box::new(call)),
        Err(error) => Decided::Problem(Error::from(error).problem()),
    };
    let results = outcomes.into_iter().map(told).collect();
    Ok(Reply(DecidedList { results }))
}

/// List the permissions in force
#[utoipa::path(get, path = "/my/projects/{project}/grants", tag = "approvals", params(("project" = Uuid, Path)),
    responses((status = 200, body = GrantList)))]
pub(super) async fn grants(State(app): State<App>, space: Member) -> Result<Reply<GrantList>> {
    let grants = app.store.grants(space.owned()).await?;
    Ok(Reply(GrantList { total: grants.len(), grants }))
}

/// Withdraw a permission
#[utoipa::path(delete, path = "/my/projects/{project}/grants/{grant}", tag = "approvals",
    params(("project" = Uuid, Path), ("grant" = Uuid, Path)), responses((status = 200, body = Grant)))]
pub(super) async fn withdraw(
    State(app): State<App>,
    Person(caller): Person,
    space: Member,
    headers: HeaderMap,
    GrantInPath(grant): GrantInPath,
) -> Result<Reply<Grant>> {
    Ok(Reply(app.gate.withdraw(space.owned(), decider(&caller, &headers), grant).await?))
}

/// Every decision, newest first: who, when, by which program, about what exactly
#[utoipa::path(get, path = "/my/projects/{project}/audit", tag = "approvals", params(("project" = Uuid, Path), Paging),
    responses((status = 200, body = AuditList)))]
pub(super) async fn audit(State(app): State<App>, space: Member, page: Paging) -> Result<Reply<AuditList>> {
    let (audit, total) = app.store.audit(space.owned(), page.limit.into(), page.offset.into()).await?;
    Ok(Reply(AuditList { audit, total }))
}
