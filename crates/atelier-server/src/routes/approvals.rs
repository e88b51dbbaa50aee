//! Approvals, permissions, and the audit.

use crate::{
    App,
    access::{OwnSpace, OwnerOrAdmin, decider, shown_to},
    auth::{Caller, Person},
    body::{Json, OptionalJson},
    error::{Error, Result},
    path::{ApprovalInPath, GrantInPath, ProjectInPath},
    query::{Page, PageQuery},
};
use atelier_api::approvals::{
    ApproveRequest, DecideRequest, DecisionResult, DecisionResults, KeepWaitingRequest,
    RejectRequest,
};
use atelier_core::{
    Plan,
    gate::{ApprovalStatus, Audit, GatedCall, Grant},
};
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Serialize, ToSchema)]
pub(super) struct ApprovalList {
    approvals: Vec<GatedCall>,
    /// How many approvals there are in total.
    total: i64,
}

/// Everything that waits for a person.
#[derive(Serialize, ToSchema)]
pub(super) struct PendingApprovals {
    approvals: Vec<GatedCall>,
    /// How many calls wait for a decision.
    total: i64,
    /// Plans that wait for approval.
    plans: Vec<Plan>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalFilter {
    /// Only approvals with this status. The default is `pending`.
    #[param(inline)]
    status: Option<StatusFilter>,
}

#[derive(Deserialize, ToSchema, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusFilter {
    All,
    Pending,
    Approved,
    Rejected,
    Expired,
    Cancelled,
}

impl StatusFilter {
    fn status(self) -> Option<ApprovalStatus> {
        Some(match self {
            StatusFilter::All => return None,
            StatusFilter::Pending => ApprovalStatus::Pending,
            StatusFilter::Approved => ApprovalStatus::Approved,
            StatusFilter::Rejected => ApprovalStatus::Rejected,
            StatusFilter::Expired => ApprovalStatus::Expired,
            StatusFilter::Cancelled => ApprovalStatus::Cancelled,
        })
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct GrantList {
    grants: Vec<Grant>,
    /// How many permissions there are in total.
    total: usize,
}

#[derive(Serialize, ToSchema)]
pub(super) struct AuditList {
    audit: Vec<Audit>,
    /// How many entries there are in total.
    total: i64,
}

/// List the approvals of a project: the pending ones, unless a status is given
#[utoipa::path(get, path = "/my/projects/{project}/approvals", tag = "approvals",
    params(ProjectInPath, ApprovalFilter, Page),
    responses(
        (status = 200, description = "A page of approvals, with their calls", body = ApprovalList),
    ))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    PageQuery { page, filter }: PageQuery<ApprovalFilter>,
) -> Result<Reply<ApprovalList>> {
    let status = filter.status.unwrap_or(StatusFilter::Pending).status();
    let (approvals, total) =
        app.store.approvals(space.owned(), status, page.limit, page.offset).await?;
    let approvals = approvals.into_iter().map(|call| shown_to(&caller, call)).collect();
    Ok(Reply(ApprovalList { approvals, total }))
}

/// List the calls and plans that wait for your decision, in all your projects
#[utoipa::path(get, path = "/my/approvals", tag = "approvals",
    responses(
        (status = 200, description = "Everything that waits for you", body = PendingApprovals),
    ))]
pub(super) async fn mine(
    State(app): State<App>,
    caller: Caller,
) -> Result<Reply<PendingApprovals>> {
    let project = caller.place.map(|place| place.project);
    let mut approvals = app.store.pending_calls(caller.user, project).await?;
    let mut plans = app.store.pending_plans(caller.user).await?;
    if let Some(place) = caller.place {
        approvals.retain(|call| place.contains(call.project_id, call.session_id));
        plans.retain(|plan| place.contains(plan.project_id, Some(plan.session_id)));
    }
    let approvals: Vec<_> = approvals.into_iter().map(|call| shown_to(&caller, call)).collect();
    Ok(Reply(PendingApprovals { total: approvals.len() as i64, approvals, plans }))
}

/// Approve a call
///
/// With a `scope` other than `once`, also give a permission for further calls.
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/approve",
    tag = "approvals",
    params(ProjectInPath, ApprovalInPath), request_body = Option<ApproveRequest>, responses(
    (status = 200, description = "The approved call", body = GatedCall),
    (status = 409, description = "It is already decided; `detail` says how"),
))]
pub(super) async fn approve(
    State(app): State<App>,
    Person(caller): Person,
    space: OwnSpace,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<ApproveRequest>,
) -> Result<Reply<GatedCall>> {
    let by = decider(&caller, &headers);
    Ok(Reply(app.gate.approve(space.owned(), by, approval, body.scope, body.include_high).await?))
}

/// Reject a call and tell its agent the reason
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/reject", tag = "approvals",
    params(ProjectInPath, ApprovalInPath), request_body = Option<RejectRequest>, responses(
    (status = 200, description = "The rejected call", body = GatedCall),
    (status = 409, description = "It is already decided; `detail` says how"),
))]
pub(super) async fn reject(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<RejectRequest>,
) -> Result<Reply<GatedCall>> {
    check_reason(body.reason.as_deref())?;
    Ok(Reply(app.gate.reject(&owned, decider(&caller, &headers), approval, body.reason).await?))
}

/// Let the question about a call wait longer
///
/// It waits until it is answered, or for the given time from now on.
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/wait", tag = "approvals",
    params(ProjectInPath, ApprovalInPath), request_body = Option<KeepWaitingRequest>, responses(
    (status = 200, description = "The call", body = GatedCall),
    (status = 409, description = "It is already decided; `detail` says how"),
))]
pub(super) async fn keep_waiting(
    State(app): State<App>,
    Person(caller): Person,
    space: OwnSpace,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
    OptionalJson(body): OptionalJson<KeepWaitingRequest>,
) -> Result<Reply<GatedCall>> {
    let by = decider(&caller, &headers);
    Ok(Reply(app.gate.keep_waiting(space.owned(), by, approval, body.wait).await?))
}

/// Ask again about a call whose question has run out
///
/// A new call with the same parameters takes its place. If the call belongs to a task, the task goes
/// on with the new call, even if the task has ended.
#[utoipa::path(post, path = "/my/projects/{project}/approvals/{approval}/ask-again",
    tag = "approvals",
    params(ProjectInPath, ApprovalInPath), responses(
    (status = 200, description = "The new call", body = GatedCall),
    (status = 409, description = "Its question has not run out, it was asked again already, or the \
                                  agent is at work on the task"),
))]
pub(super) async fn ask_again(
    State(app): State<App>,
    Person(caller): Person,
    space: OwnSpace,
    ApprovalInPath(approval): ApprovalInPath,
    headers: HeaderMap,
) -> Result<Reply<GatedCall>> {
    Ok(Reply(app.gate.ask_again(space.owned(), decider(&caller, &headers), approval).await?))
}

fn check_reason(reason: Option<&str>) -> Result<()> {
    match reason.is_none_or(|reason| reason.chars().count() <= 2000) {
        true => Ok(()),
        false => Err(Error::Invalid("reason: must have at most 2000 characters".into())),
    }
}

/// Decide about several approvals at once
///
/// Each decision counts by itself: if one is refused, the others still apply.
#[utoipa::path(post, path = "/my/projects/{project}/approvals/decide", tag = "approvals",
    params(ProjectInPath), request_body = DecideRequest,
    responses((status = 200, description = "The result of each decision", body = DecisionResults)))]
pub(super) async fn decide(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    headers: HeaderMap,
    Json(body): Json<DecideRequest>,
) -> Result<Reply<DecisionResults>> {
    if !(1..=100).contains(&body.decisions.len()) {
        return Err(Error::Invalid("decisions: must have 1 to 100 entries".into()));
    }
    for decision in &body.decisions {
        check_reason(decision.reason.as_deref())?;
    }
    if caller.user != owned.owner && body.decisions.iter().any(|decision| decision.approve) {
        return Err(Error::Forbidden("only the project's owner may approve; an admin may reject"));
    }
    let decisions = body.decisions.into_iter().map(|decision| atelier_runtime::Decision {
        id: decision.approval_id,
        scope: decision.approve.then_some(decision.scope),
        reason: decision.reason,
    });
    let by = decider(&caller, &headers);
    let outcomes = app.gate.decide_many(&owned, &by, decisions.collect()).await;
    let result = |outcome| match outcome {
        Ok(call) => DecisionResult::Call(Box::new(call)),
        Err(error) => DecisionResult::Problem(Error::from(error).problem()),
    };
    let results = outcomes.into_iter().map(result).collect();
    Ok(Reply(DecisionResults { results }))
}

/// List the current permissions
#[utoipa::path(get, path = "/my/projects/{project}/grants",
    tag = "approvals", params(ProjectInPath),
    responses((status = 200, description = "The current permissions", body = GrantList)))]
pub(super) async fn grants(State(app): State<App>, space: OwnSpace) -> Result<Reply<GrantList>> {
    let grants = app.store.grants(space.owned()).await?;
    Ok(Reply(GrantList { total: grants.len(), grants }))
}

/// Withdraw a permission
#[utoipa::path(delete, path = "/my/projects/{project}/grants/{grant}", tag = "approvals",
    params(ProjectInPath, GrantInPath),
    responses((status = 200, description = "The withdrawn permission", body = Grant)))]
pub(super) async fn withdraw(
    State(app): State<App>,
    Person(caller): Person,
    space: OwnSpace,
    headers: HeaderMap,
    GrantInPath(grant): GrantInPath,
) -> Result<Reply<Grant>> {
    Ok(Reply(app.gate.withdraw(space.owned(), decider(&caller, &headers), grant).await?))
}

/// List every decision, newest first: who decided what, when and with which program
#[utoipa::path(get, path = "/my/projects/{project}/audit",
    tag = "approvals", params(ProjectInPath, Page),
    responses((status = 200, description = "A page of the audit", body = AuditList)))]
pub(super) async fn audit(
    State(app): State<App>,
    space: OwnSpace,
    PageQuery { page, .. }: PageQuery,
) -> Result<Reply<AuditList>> {
    let (audit, total) = app.store.audit(space.owned(), page.limit, page.offset).await?;
    Ok(Reply(AuditList { audit, total }))
}
