//! Tasks, plans, and the queues they wait in.

use crate::{
    App,
    auth::Person,
    body::{OptionalJson, Paging, Params, PlanInPath, TaskInPath},
    error::Result,
    guard::{Member, OwnOrAdmin, decider},
};
use atelier_core::{
    ConversationId, Plan, Task, TaskFailure, TaskStatus, gate::GatedCall, plan::ProposedTask, task::Step,
};
use atelier_runtime::QueueReport;
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskFilter {
    /// Only of this conversation
    session: Option<Uuid>,
    /// Only tasks in this state
    #[param(inline)]
    status: Option<TaskStatus>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    offset: Option<u32>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanFilter {
    /// Only of this conversation
    session: Option<Uuid>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    offset: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct TaskList {
    tasks: Vec<Task>,
    total: i64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct PlanList {
    plans: Vec<Plan>,
    total: i64,
}

/// A task with its journal.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskDetails {
    #[serde(flatten)]
    task: Task,
    journal: Vec<Step>,
    /// The tool calls of its steps.
    calls: Vec<GatedCall>,
}

/// A plan with its graph: each task names those it depends on.
#[derive(Serialize, ToSchema)]
pub(super) struct PlanDetails {
    #[serde(flatten)]
    plan: Plan,
    tasks: Vec<Task>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct BusReport {
    queues: Vec<QueueReport>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanApproval {
    /// To run instead of the tasks that were proposed.
    tasks: Option<Vec<ProposedTask>>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanRejection {
    #[schema(max_length = 2000)]
    reason: Option<String>,
}

/// List tasks, newest first
#[utoipa::path(get, path = "/my/projects/{project}/tasks", tag = "work", params(("project" = Uuid, Path), TaskFilter),
    responses((status = 200, body = TaskList)))]
pub(super) async fn tasks(
    State(app): State<App>,
    space: Member,
    Params(filter): Params<TaskFilter>,
) -> Result<Reply<TaskList>> {
    let page = Paging::checked(filter.limit, filter.offset)?;
    let session = filter.session.map(ConversationId);
    let (limit, offset) = (page.limit.into(), page.offset.into());
    let (tasks, total) = app.store.tasks(space.owned(), session, filter.status, limit, offset).await?;
    Ok(Reply(TaskList { tasks, total }))
}

/// Show a task, what its agent did so far, and its tool calls
#[utoipa::path(get, path = "/my/projects/{project}/tasks/{task}", tag = "work",
    params(("project" = Uuid, Path), ("task" = Uuid, Path)), responses((status = 200, body = TaskDetails)))]
pub(super) async fn task(
    State(app): State<App>,
    space: Member,
    TaskInPath(id): TaskInPath,
) -> Result<Reply<TaskDetails>> {
    let owned = space.owned();
    let task = app.store.task(owned, id).await?;
    let journal = app.store.steps(owned, id).await?;
    let calls = app.store.calls_of(owned, &journal).await?;
    Ok(Reply(TaskDetails { task, journal, calls }))
}

/// Cancel a task: its model call and its tool calls end with it
#[utoipa::path(post, path = "/my/projects/{project}/tasks/{task}/cancel", tag = "work",
    params(("project" = Uuid, Path), ("task" = Uuid, Path)), responses(
    (status = 200, body = Task),
    (status = 409, description = "It has ended already"),
))]
pub(super) async fn cancel_task(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    TaskInPath(id): TaskInPath,
    headers: HeaderMap,
) -> Result<Reply<Task>> {
    Ok(Reply(app.bus.cancel_task(&owned, &decider(&caller, &headers), id).await?))
}

/// Go on with a task that has failed or was cancelled
///
/// It goes on from its journal: nothing that had an effect is repeated.
#[utoipa::path(post, path = "/my/projects/{project}/tasks/{task}/resume", tag = "work",
    params(("project" = Uuid, Path), ("task" = Uuid, Path)), responses(
    (status = 200, body = Task),
    (status = 409, description = "It has not failed, or it may not run: what it depends on did not succeed, or its plan was never approved"),
    (status = 429, description = "Too many tasks wait for the agent already"),
))]
pub(super) async fn resume_task(
    State(app): State<App>,
    _: Person,
    space: Member,
    TaskInPath(id): TaskInPath,
) -> Result<Reply<Task>> {
    Ok(Reply(app.bus.resume_task(space.owned(), id).await?))
}

/// List plans, newest first
#[utoipa::path(get, path = "/my/projects/{project}/plans", tag = "work", params(("project" = Uuid, Path), PlanFilter),
    responses((status = 200, body = PlanList)))]
pub(super) async fn plans(
    State(app): State<App>,
    space: Member,
    Params(filter): Params<PlanFilter>,
) -> Result<Reply<PlanList>> {
    let page = Paging::checked(filter.limit, filter.offset)?;
    let (limit, offset) = (page.limit.into(), page.offset.into());
    let session = filter.session.map(ConversationId);
    let (plans, total) = app.store.plans(space.owned(), session, limit, offset).await?;
    Ok(Reply(PlanList { plans, total }))
}

/// Show a plan: its graph and how far each task is
#[utoipa::path(get, path = "/my/projects/{project}/plans/{plan}", tag = "work",
    params(("project" = Uuid, Path), ("plan" = Uuid, Path)), responses((status = 200, body = PlanDetails)))]
pub(super) async fn plan(
    State(app): State<App>,
    space: Member,
    PlanInPath(id): PlanInPath,
) -> Result<Reply<PlanDetails>> {
    let (plan, tasks) = app.store.plan(space.owned(), id).await?;
    Ok(Reply(PlanDetails { plan, tasks }))
}

/// Let a plan run that waits for it, as it is or with other tasks
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/approve", tag = "work",
    params(("project" = Uuid, Path), ("plan" = Uuid, Path)), request_body = Option<PlanApproval>, responses(
    (status = 200, body = Plan),
    (status = 409, description = "It does not wait for approval"),
))]
pub(super) async fn approve_plan(
    State(app): State<App>,
    _: Person,
    space: Member,
    PlanInPath(id): PlanInPath,
    OptionalJson(approval): OptionalJson<PlanApproval>,
) -> Result<Reply<Plan>> {
    Ok(Reply(app.bus.approve_plan(space.owned(), id, approval.tasks).await?))
}

/// Refuse a plan
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/reject", tag = "work",
    params(("project" = Uuid, Path), ("plan" = Uuid, Path)), request_body = Option<PlanRejection>, responses(
    (status = 200, body = Plan),
    (status = 409, description = "It has ended already"),
))]
pub(super) async fn reject_plan(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    PlanInPath(id): PlanInPath,
    headers: HeaderMap,
    OptionalJson(rejection): OptionalJson<PlanRejection>,
) -> Result<Reply<Plan>> {
    let reason = rejection.reason.map(|reason| reason.chars().take(2000).collect::<String>());
    let detail =
        reason.map_or("the plan was rejected".into(), |reason| format!("the plan was rejected: {reason}"));
    let why = TaskFailure::new(TaskFailure::PLAN_REJECTED, detail);
    Ok(Reply(app.bus.cancel_plan(&owned, &decider(&caller, &headers), id, why).await?))
}

/// Cancel a plan and all of its tasks that have not ended
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/cancel", tag = "work",
    params(("project" = Uuid, Path), ("plan" = Uuid, Path)), responses(
    (status = 200, body = Plan),
    (status = 409, description = "It has ended already"),
))]
pub(super) async fn cancel_plan(
    State(app): State<App>,
    Person(caller): Person,
    OwnOrAdmin(owned): OwnOrAdmin,
    PlanInPath(id): PlanInPath,
    headers: HeaderMap,
) -> Result<Reply<Plan>> {
    let why = TaskFailure::new("cancelled", "the plan was cancelled");
    Ok(Reply(app.bus.cancel_plan(&owned, &decider(&caller, &headers), id, why).await?))
}

/// The agent bus: what waits and what runs, for each agent
#[utoipa::path(get, path = "/my/projects/{project}/bus", tag = "work", params(("project" = Uuid, Path)),
    responses((status = 200, body = BusReport)))]
pub(super) async fn bus(State(app): State<App>, space: Member) -> Result<Reply<BusReport>> {
    Ok(Reply(BusReport { queues: app.bus.queues(space.owned()).await? }))
}
