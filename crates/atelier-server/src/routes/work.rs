//! Tasks, plans, and the queues of the agent bus.

use crate::{
    App,
    access::{OwnSpace, OwnerOrAdmin, decider, shown_to},
    auth::{Caller, Person},
    body::OptionalJson,
    error::Result,
    path::{PlanInPath, ProjectInPath, TaskInPath},
    program_view::ProgramView,
    query::{Page, PageQuery},
};
use atelier_api::work::{PlanApproval, PlanDetails, PlanRejection};
use atelier_core::{
    CallId, ConversationId, Plan, Task, TaskFailure, TaskFailureCode, TaskStatus, gate::GatedCall,
    task::Step,
};
use atelier_runtime::QueueReport;
use axum::{Json as Reply, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use utoipa::{IntoParams, ToSchema};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskFilter {
    /// Only tasks of this conversation.
    session: Option<ConversationId>,
    /// Only tasks with this status.
    status: Option<TaskStatus>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanFilter {
    /// Only plans of this conversation.
    session: Option<ConversationId>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct TaskList {
    tasks: Vec<Task>,
    /// How many tasks there are in total.
    total: i64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct PlanList {
    plans: Vec<Plan>,
    /// How many plans there are in total.
    total: i64,
}

/// A task, its steps so far, and their tool calls.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskDetails {
    #[serde(flatten)]
    task: Task,
    journal: Vec<Step>,
    /// The tool calls of the steps.
    calls: Vec<GatedCall>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct BusReport {
    queues: Vec<QueueReport>,
}

/// List tasks, newest first
#[utoipa::path(get, path = "/my/projects/{project}/tasks", tag = "work",
    params(ProjectInPath, TaskFilter, Page),
    responses((status = 200, description = "A page of tasks", body = TaskList)))]
pub(super) async fn tasks(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    PageQuery { page, filter }: PageQuery<TaskFilter>,
) -> Result<Reply<TaskList>> {
    let TaskFilter { session, status } = filter;
    let (mut tasks, total) =
        app.store.tasks(space.owned(), session, status, page.limit, page.offset).await?;
    ProgramView::new(&app, &caller).tasks(&mut tasks).await?;
    Ok(Reply(TaskList { tasks, total }))
}

/// Show a task with its steps and tool calls
#[utoipa::path(get, path = "/my/projects/{project}/tasks/{task}", tag = "work",
    params(ProjectInPath, TaskInPath),
    responses((status = 200, description = "The task", body = TaskDetails)))]
pub(super) async fn task(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    TaskInPath(id): TaskInPath,
) -> Result<Reply<TaskDetails>> {
    let owned = space.owned();
    let mut task = app.store.task(owned, id).await?;
    let mut journal = app.store.steps(owned, id).await?;
    let calls = app.store.calls_of(owned, &journal).await?;
    if let Some(session) = caller.program() {
        let closed: HashSet<CallId> = calls
            .iter()
            .filter(|call| !call.is_open_to_program(session))
            .map(|call| call.tool_id)
            .collect();
        let calls = journal.iter_mut().flat_map(|step| &mut step.calls);
        for call in calls.filter(|call| call.tool_id.is_some_and(|id| closed.contains(&id))) {
            call.arguments = "{}".into();
        }
    }
    let mut view = ProgramView::new(&app, &caller);
    view.tasks(std::slice::from_mut(&mut task)).await?;
    view.steps(task.session_id, &mut journal).await?;
    let calls = calls.into_iter().map(|call| shown_to(&caller, call)).collect();
    Ok(Reply(TaskDetails { task, journal, calls }))
}

/// Cancel a task with its model call and tool calls
#[utoipa::path(post, path = "/my/projects/{project}/tasks/{task}/cancel", tag = "work",
    params(ProjectInPath, TaskInPath), responses(
    (status = 200, description = "The cancelled task", body = Task),
    (status = 409, description = "It has already ended"),
))]
pub(super) async fn cancel_task(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    TaskInPath(id): TaskInPath,
    headers: HeaderMap,
) -> Result<Reply<Task>> {
    Ok(Reply(app.bus.cancel_task(&owned, &decider(&caller, &headers), id).await?))
}

/// Resume a task that failed or was cancelled
///
/// It continues after its last step. Tool calls that had an effect are not repeated.
#[utoipa::path(post, path = "/my/projects/{project}/tasks/{task}/resume", tag = "work",
    params(ProjectInPath, TaskInPath), responses(
    (status = 200, description = "The resumed task", body = Task),
    (status = 409, description = "It has not failed, a task that it depends on did not succeed, or \
                                  its plan was never approved"),
    (status = 429, description = "Too many tasks are waiting for the agent"),
))]
pub(super) async fn resume_task(
    State(app): State<App>,
    _: Person,
    space: OwnSpace,
    TaskInPath(id): TaskInPath,
) -> Result<Reply<Task>> {
    Ok(Reply(app.bus.resume_task(space.owned(), id).await?))
}

/// List plans, newest first
#[utoipa::path(get, path = "/my/projects/{project}/plans", tag = "work",
    params(ProjectInPath, PlanFilter, Page),
    responses((status = 200, description = "A page of plans", body = PlanList)))]
pub(super) async fn plans(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    PageQuery { page, filter }: PageQuery<PlanFilter>,
) -> Result<Reply<PlanList>> {
    let (mut plans, total) =
        app.store.plans(space.owned(), filter.session, page.limit, page.offset).await?;
    ProgramView::new(&app, &caller).plans(&mut plans).await?;
    Ok(Reply(PlanList { plans, total }))
}

/// Show a plan with its tasks
#[utoipa::path(get, path = "/my/projects/{project}/plans/{plan}", tag = "work",
    params(ProjectInPath, PlanInPath),
    responses((status = 200, description = "The plan", body = PlanDetails)))]
pub(super) async fn plan(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    PlanInPath(id): PlanInPath,
) -> Result<Reply<PlanDetails>> {
    let (mut plan, mut tasks) = app.store.plan(space.owned(), id).await?;
    let mut view = ProgramView::new(&app, &caller);
    view.plans(std::slice::from_mut(&mut plan)).await?;
    view.tasks(&mut tasks).await?;
    Ok(Reply(PlanDetails { plan, tasks }))
}

/// Approve a plan, as proposed or with other tasks
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/approve", tag = "work",
    params(ProjectInPath, PlanInPath), request_body = Option<PlanApproval>, responses(
    (status = 200, description = "The approved plan", body = Plan),
    (status = 409, description = "It is not waiting for approval"),
))]
pub(super) async fn approve_plan(
    State(app): State<App>,
    _: Person,
    space: OwnSpace,
    PlanInPath(id): PlanInPath,
    OptionalJson(approval): OptionalJson<PlanApproval>,
) -> Result<Reply<Plan>> {
    Ok(Reply(app.bus.approve_plan(space.owned(), id, approval.tasks).await?))
}

/// Reject a plan
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/reject", tag = "work",
    params(ProjectInPath, PlanInPath), request_body = Option<PlanRejection>, responses(
    (status = 200, description = "The rejected plan", body = Plan),
    (status = 409, description = "It has already ended"),
))]
pub(super) async fn reject_plan(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    PlanInPath(id): PlanInPath,
    headers: HeaderMap,
    OptionalJson(rejection): OptionalJson<PlanRejection>,
) -> Result<Reply<Plan>> {
    let reason = rejection.reason.map(|reason| reason.chars().take(2000).collect::<String>());
    let detail = reason.map_or("the plan was rejected".into(), |reason| {
        format!("the plan was rejected: {reason}")
    });
    let why = TaskFailure::new(TaskFailureCode::PlanRejected, detail);
    Ok(Reply(app.bus.cancel_plan(&owned, &decider(&caller, &headers), id, why).await?))
}

/// Cancel a plan and its unfinished tasks
#[utoipa::path(post, path = "/my/projects/{project}/plans/{plan}/cancel", tag = "work",
    params(ProjectInPath, PlanInPath), responses(
    (status = 200, description = "The cancelled plan", body = Plan),
    (status = 409, description = "It has already ended"),
))]
pub(super) async fn cancel_plan(
    State(app): State<App>,
    Person(caller): Person,
    OwnerOrAdmin(owned): OwnerOrAdmin,
    PlanInPath(id): PlanInPath,
    headers: HeaderMap,
) -> Result<Reply<Plan>> {
    let why = TaskFailure::new(TaskFailureCode::Cancelled, "the plan was cancelled");
    Ok(Reply(app.bus.cancel_plan(&owned, &decider(&caller, &headers), id, why).await?))
}

/// Show the agent bus: how many tasks of each agent wait and run
#[utoipa::path(get, path = "/my/projects/{project}/bus", tag = "work", params(ProjectInPath),
    responses((status = 200, description = "The queue of each agent", body = BusReport)))]
pub(super) async fn bus(State(app): State<App>, space: OwnSpace) -> Result<Reply<BusReport>> {
    Ok(Reply(BusReport { queues: app.bus.queues(space.owned()).await? }))
}
