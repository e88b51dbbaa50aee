//! Plans: their tasks, and what happens to a plan when one of its tasks ends.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::sql,
    feed::Wakeup,
    messages::add_message,
    rows::{
        json, new_id, now, page, read_record,
        tasks::{TaskRow, queue_of, read_task},
    },
    tasks::{self, AnswerOrigin, StoppedTask, TaskLease, insert_task, save_task},
};
use atelier_core::{
    AgentId, AgentName, ConversationId, Event, Message, MessageId, MessageRole, NodeId, Plan,
    PlanId, PlanStatus, ProjectId, Task, TaskFailure, TaskFailureCode, TaskId, TaskKind,
    TaskStatus, Usage, UserId,
    plan::{ProposedTask, advance, fail_dependants, order},
    remembered::KnownSecrets,
    task::Step,
};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A proposed task and the agent that it is assigned to.
#[derive(Debug, Clone)]
pub struct AssignedTask {
    pub proposed: ProposedTask,
    pub agent_id: AgentId,
    pub agent_name: AgentName,
}

async fn save_plan(tx: &mut Tx, plan: &Plan) -> Result<()> {
    sql("UPDATE plans SET status = $1, record = $2 WHERE id = $3")
        .bind(plan.status.as_str())
        .bind(json(plan))
        .bind(plan.id.0)
        .execute(&mut tx.conn)
        .await?;
    Ok(())
}

async fn lock_plan(tx: &mut Tx, project: ProjectId, id: PlanId) -> Result<Plan> {
    let row: Option<(String,)> =
        sql("UPDATE plans SET status = status WHERE id = $1 AND project_id = $2 RETURNING record")
            .bind(id.0)
            .bind(project.0)
            .fetch_optional(&mut tx.conn)
            .await?;
    read_record(row.ok_or(Error::NotFound)?)
}

async fn tasks_of(tx: &mut Tx, plan: PlanId) -> Result<Vec<Task>> {
    let rows: Vec<TaskRow> =
        sql("SELECT record, status, started_at FROM tasks WHERE plan_id = $1 ORDER BY id")
            .bind(plan.0)
            .fetch_all(&mut tx.conn)
            .await?;
    rows.into_iter().map(read_task).collect()
}

impl Store {
    /// Ends the planner's task and creates the tasks of its plan. Unless the owner has to approve
    /// the plan, tasks without dependencies are queued at once.
    pub async fn finish_planning(
        &self,
        lease: &TaskLease,
        mut task: Task,
        step: Option<Step>,
        assigned: Vec<AssignedTask>,
        ask: bool,
        next: Option<NodeId>,
    ) -> Result<Vec<TaskLease>> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                let owned = &lease.owned;
                let Some(plan) = task.plan_id else {
                    return Err(Error::Corrupt("a planner without a plan".into()));
                };
                task.status = TaskStatus::Completed;
                task.completed_at = Some(now());
                tasks::end_leased(tx, &lease, &task, step.as_ref()).await?;
                tx.emit(
                    owned.project,
                    owned.owner,
                    &Event::TaskCompleted { task: task.for_event() },
                );
                let mut plan = lock_plan(tx, owned.project, plan).await?;
                let mut made = make_tasks(&plan, assigned);
                plan.status = if ask { PlanStatus::PendingApproval } else { PlanStatus::Running };
                plan.needs_approval = ask;
                save_plan(tx, &plan).await?;
                if !ask {
                    advance(&mut made, now());
                }
                let tasks: Vec<Task> = made.iter().map(Task::for_event).collect();
                tx.emit(
                    owned.project,
                    owned.owner,
                    &Event::PlanCreated { plan: plan.clone(), tasks: tasks.clone() },
                );
                if ask {
                    tx.emit(
                        owned.project,
                        owned.owner,
                        &Event::PlanApprovalRequest { plan, tasks },
                    );
                }
                let mut leases = Vec::new();
                for task in &made {
                    insert_task(tx, owned, task).await?;
                }
                for task in made.iter().filter(|task| task.status == TaskStatus::Queued) {
                    leases.extend(tasks::lease_or_wake(tx, owned, queue_of(task), next).await?);
                }
                leases.extend(tasks::lease_or_wake(tx, owned, lease.queue(), next).await?);
                Ok(leases)
            })
        })
        .await
    }

    /// Approves a plan, as it is or with other tasks.
    pub async fn approve_plan(
        &self,
        owned: &Owned,
        id: PlanId,
        other: Option<Vec<AssignedTask>>,
    ) -> Result<Plan> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut plan = lock_plan(tx, owned.project, id).await?;
                if plan.status != PlanStatus::PendingApproval {
                    return Err(Error::PlanSettled(plan.status));
                }
                (plan.status, plan.needs_approval) = (PlanStatus::Running, false);
                save_plan(tx, &plan).await?;
                let mut work = work_of(tasks_of(tx, id).await?);
                if let Some(other) = other {
                    // None of the old tasks has run. Cancelled ones are removed too.
                    for task in &work {
                        sql("DELETE FROM tasks WHERE id = $1")
                            .bind(task.id.0)
                            .execute(&mut tx.conn)
                            .await?;
                    }
                    work = make_tasks(&plan, other);
                    for task in &work {
                        insert_task(tx, &owned, task).await?;
                    }
                    let tasks = work.iter().map(Task::for_event).collect();
                    tx.emit(
                        owned.project,
                        owned.owner,
                        &Event::PlanCreated { plan: plan.clone(), tasks },
                    );
                }
                tx.emit(owned.project, owned.owner, &Event::PlanUpdated { plan: plan.clone() });
                release(tx, &owned, &mut work).await?;
                Ok(plan)
            })
        })
        .await
    }

    /// Cancels a plan and its tasks that have not ended.
    pub async fn cancel_plan(
        &self,
        owned: &Owned,
        id: PlanId,
        why: TaskFailure,
    ) -> Result<(Plan, Vec<StoppedTask>)> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut plan = lock_plan(tx, owned.project, id).await?;
                if plan.status.is_settled() {
                    return Err(Error::PlanSettled(plan.status));
                }
                let ends = (PlanStatus::Cancelled, TaskStatus::Cancelled);
                let stopped = end_with_tasks(tx, &owned, &mut plan, ends, &why).await?;
                Ok((plan, stopped))
            })
        })
        .await
    }

    pub async fn plan(&self, owned: &Owned, id: PlanId) -> Result<(Plan, Vec<Task>)> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> =
            sql("SELECT record FROM plans WHERE id = $1 AND project_id = $2")
                .bind(id.0)
                .bind(owned.project.0)
                .fetch_optional(&mut conn)
                .await?;
        let plan = read_record(row.ok_or(Error::NotFound)?)?;
        let rows: Vec<TaskRow> =
            sql("SELECT record, status, started_at FROM tasks WHERE plan_id = $1 ORDER BY id")
                .bind(id.0)
                .fetch_all(&mut conn)
                .await?;
        Ok((plan, rows.into_iter().map(read_task).collect::<Result<_>>()?))
    }

    /// The plans of all of a user's projects that wait for approval, oldest first.
    pub async fn pending_plans(&self, user: UserId) -> Result<Vec<Plan>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = sql("SELECT l.record FROM projects p CROSS JOIN plans l
             WHERE p.user_id = $1 AND p.deleted_at IS NULL
             AND l.project_id = p.id AND l.status = 'pending_approval' ORDER BY l.id LIMIT 1000")
        .bind(user.0)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read_record).collect()
    }

    /// The project's plans, newest first.
    pub async fn plans(
        &self,
        owned: &Owned,
        session: Option<ConversationId>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Plan>, i64)> {
        let mut conn = self.db.connect().await?;
        let (any, session) = (session.is_none(), session.map_or(Uuid::nil(), |session| session.0));
        let (rows, total) = page!(
            &mut conn,
            SELECT "record",
            FROM "plans WHERE project_id = $1 AND ($2 OR session_id = $3)",
            ORDER BY "id DESC",
            [owned.project.0, any, session],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_record).collect::<Result<_>>()?, total))
    }
}

fn make_tasks(plan: &Plan, assigned: Vec<AssignedTask>) -> Vec<Task> {
    let proposed: Vec<ProposedTask> = assigned.iter().map(|task| task.proposed.clone()).collect();
    let ids: BTreeMap<&str, TaskId> =
        proposed.iter().map(|task| (task.id.as_str(), TaskId(new_id()))).collect();
    let order = order(&proposed).unwrap_or_else(|| (0..proposed.len()).collect());
    order
        .into_iter()
        .map(|n| {
            let AssignedTask { proposed, agent_id, agent_name } = &assigned[n];
            Task {
                id: ids[proposed.id.as_str()],
                project_id: plan.project_id,
                session_id: plan.session_id,
                message_id: plan.message_id,
                plan_id: Some(plan.id),
                kind: TaskKind::Work,
                key: Some(proposed.id.clone()),
                description: proposed.description.clone(),
                agent_id: Some(*agent_id),
                agent_name: Some(agent_name.clone()),
                depends_on: proposed
                    .depends_on
                    .iter()
                    .filter_map(|id| ids.get(id.as_str()).copied())
                    .collect(),
                ..new_task(plan, TaskKind::Work)
            }
        })
        .collect()
}

fn new_task(plan: &Plan, kind: TaskKind) -> Task {
    Task {
        id: TaskId(new_id()),
        project_id: plan.project_id,
        session_id: plan.session_id,
        message_id: plan.message_id,
        plan_id: Some(plan.id),
        kind,
        key: None,
        description: String::new(),
        agent_id: None,
        agent_name: None,
        depends_on: Vec::new(),
        status: TaskStatus::Waiting,
        priority: 0,
        steps: 0,
        usage: Usage::default(),
        cost: 0.0,
        ran_ms: 0,
        result: None,
        error: None,
        created_at: now(),
        started_at: None,
        completed_at: None,
    }
}

fn work_of(tasks: Vec<Task>) -> Vec<Task> {
    tasks.into_iter().filter(|task| task.kind == TaskKind::Work).collect()
}

/// Queues the tasks of a plan whose dependencies are completed.
async fn release(tx: &mut Tx, owned: &Owned, work: &mut [Task]) -> Result<()> {
    let changed = advance(work, now());
    save_changed(tx, owned, changed.iter().map(|&n| &work[n])).await
}

/// Writes and reports tasks that were queued or that failed with a task they depend on.
async fn save_changed<'t>(
    tx: &mut Tx,
    owned: &Owned,
    changed: impl Iterator<Item = &'t Task>,
) -> Result<()> {
    for task in changed {
        save_task(tx, task).await?;
        let (owner, project) = (owned.owner, owned.project);
        match task.status {
            TaskStatus::Queued => {
                tx.emit(project, owner, &Event::TaskQueued { task: task.for_event() });
                tx.wake(Wakeup::Queue(owner, queue_of(task)));
            }
            _ => {
                tx.emit(project, owner, &Event::TaskFailed { task: task.for_event() });
                tx.wake(Wakeup::Work(task.id.0));
            }
        }
    }
    Ok(())
}

/// Moves a plan on after one of its tasks has ended: other tasks may start, or the plan itself
/// ends.
pub(crate) async fn task_ended(
    tx: &mut Tx,
    owned: &Owned,
    id: PlanId,
    ended: &Task,
    origin: AnswerOrigin,
) -> Result<()> {
    let mut plan = lock_plan(tx, owned.project, id).await?;
    if plan.status.is_settled() {
        return Ok(());
    }
    match ended.kind {
        // A planner's task ends here only if it failed.
        TaskKind::Plan | TaskKind::Answer => {
            tasks::add_answer(&mut tx.rows, owned, ended, origin);
            plan.error = ended.error.clone();
            let status = match ended.status {
                TaskStatus::Completed => PlanStatus::Completed,
                TaskStatus::Cancelled => PlanStatus::Cancelled,
                _ => PlanStatus::Failed,
            };
            end(tx, owned, &mut plan, status).await
        }
        TaskKind::Work => {
            let mut work = work_of(tasks_of(tx, id).await?);
            // Tasks of a plan that waits for approval are not queued.
            let changed = match plan.needs_approval {
                true => fail_dependants(&mut work, now()),
                false => advance(&mut work, now()),
            };
            save_changed(tx, owned, changed.iter().map(|&n| &work[n])).await?;
            if work.iter().all(|task| task.status.is_settled()) {
                conclude(tx, owned, &mut plan, &work, origin).await?;
            }
            Ok(())
        }
    }
}

/// Ends a plan whose tasks have all ended. The result of a single task is the answer; the results
/// of several tasks are summed up by one more task.
async fn conclude(
    tx: &mut Tx,
    owned: &Owned,
    plan: &mut Plan,
    work: &[Task],
    origin: AnswerOrigin,
) -> Result<()> {
    let succeeded = work.iter().any(|task| task.status == TaskStatus::Completed);
    if work.len() == 1 || !succeeded {
        let Some(task) = work.iter().find(|task| task.status != TaskStatus::Waiting) else {
            return Ok(());
        };
        tasks::add_answer(&mut tx.rows, owned, task, origin);
        plan.error = task.error.clone();
        let status = if succeeded { PlanStatus::Completed } else { PlanStatus::Failed };
        return end(tx, owned, plan, status).await;
    }
    let description = "Answer the person from the results of the plan".into();
    let task = Task { status: TaskStatus::Queued, description, ..new_task(plan, TaskKind::Answer) };
    insert_task(tx, owned, &task).await?;
    tx.wake(Wakeup::Queue(owned.owner, owned.project.0));
    Ok(())
}

async fn end(tx: &mut Tx, owned: &Owned, plan: &mut Plan, status: PlanStatus) -> Result<()> {
    plan.status = status;
    plan.completed_at = Some(now());
    save_plan(tx, plan).await?;
    tx.emit(owned.project, owned.owner, &Event::PlanUpdated { plan: plan.clone() });
    tx.wake(Wakeup::Work(plan.id.0));
    Ok(())
}

/// Ends a plan and its tasks that have not ended, and adds the reason to the conversation.
async fn end_with_tasks(
    tx: &mut Tx,
    owned: &Owned,
    plan: &mut Plan,
    (status, of_tasks): (PlanStatus, TaskStatus),
    why: &TaskFailure,
) -> Result<Vec<StoppedTask>> {
    let message = Message {
        id: MessageId(new_id()),
        project_id: plan.project_id,
        session_id: plan.session_id,
        role: MessageRole::Assistant,
        content: format!("I stopped: {}.", why.detail.trim_end_matches('.')),
        attachments: Vec::new(),
        agent_id: None,
        agent_name: None,
        model: None,
        usage: None,
        cost: None,
        task_id: None,
        plan_id: Some(plan.id),
        created_at: now(),
    };
    add_message(&mut tx.rows, owned, message, &KnownSecrets::default());
    plan.error = Some(why.clone());
    // The plan ends before its tasks, so that the end of a task does not start others.
    end(tx, owned, plan, status).await?;
    let mut stopped = Vec::new();
    for mut task in tasks_of(tx, plan.id).await? {
        if !task.status.is_settled() {
            stopped.push(tasks::stop(tx, owned, &mut task, of_tasks, why.clone()).await?);
        }
    }
    Ok(stopped)
}

/// Ends the open plans of a project, or of one of its conversations. With `spare_running`, plans
/// with a running task are left alone.
pub(crate) async fn stop_plans(
    tx: &mut Tx,
    owned: &Owned,
    session: Option<ConversationId>,
    spare_running: bool,
    why: &TaskFailure,
) -> Result<Vec<StoppedTask>> {
    let (any, session) = (session.is_none(), session.map_or(Uuid::nil(), |session| session.0));
    let open: Vec<(Uuid,)> =
        sql("SELECT id FROM plans p WHERE project_id = $1 AND ($2 OR session_id = $3)
         AND status IN ('planning', 'pending_approval', 'running') AND NOT ($4 AND EXISTS (
           SELECT 1 FROM tasks t WHERE t.plan_id = p.id AND t.status = 'running'))
         ORDER BY id")
        .bind(owned.project.0)
        .bind(any)
        .bind(session)
        .bind(spare_running)
        .fetch_all(&mut tx.conn)
        .await?;
    let mut stopped = Vec::new();
    for (id,) in open {
        let mut plan = lock_plan(tx, owned.project, PlanId(id)).await?;
        let ends = (PlanStatus::Failed, TaskStatus::Failed);
        stopped.extend(end_with_tasks(tx, owned, &mut plan, ends, why).await?);
    }
    Ok(stopped)
}

/// Reopens the plan of a task that is resumed. Tasks that failed because of the task wait for it
/// again, and the task waits for its own dependencies.
pub(crate) async fn reopen(tx: &mut Tx, owned: &Owned, task: &mut Task) -> Result<()> {
    let Some(id) = task.plan_id else { return Ok(()) };
    let mut plan = lock_plan(tx, owned.project, id).await?;
    if plan.needs_approval {
        return Err(Error::PlanNotApproved);
    }
    let others = tasks_of(tx, id).await?;
    let awaited = others.iter().filter(|other| task.depends_on.contains(&other.id));
    for other in awaited.filter(|other| other.status != TaskStatus::Completed) {
        if other.status.is_settled() {
            return Err(Error::DependencyUnfinished(other.id));
        }
        task.status = TaskStatus::Waiting;
    }
    plan.status =
        if task.kind == TaskKind::Plan { PlanStatus::Planning } else { PlanStatus::Running };
    (plan.error, plan.completed_at) = (None, None);
    save_plan(tx, &plan).await?;
    tx.emit(owned.project, owned.owner, &Event::PlanUpdated { plan });
    for mut other in others.into_iter().filter(|other| other.id != task.id) {
        if other.error.as_ref().is_some_and(|error| error.code == TaskFailureCode::DependencyFailed)
        {
            other.status = TaskStatus::Waiting;
            (other.error, other.completed_at) = (None, None);
            save_task(tx, &other).await?;
        }
        // This answer would end the plan without the resumed task. A new one is made when the task
        // has ended.
        if other.kind == TaskKind::Answer
            && task.kind == TaskKind::Work
            && !other.status.is_settled()
        {
            other.status = TaskStatus::Cancelled;
            other.error =
                Some(TaskFailure::new(TaskFailureCode::Outdated, "a task of the plan was resumed"));
            other.completed_at = Some(now());
            save_task(tx, &other).await?;
            tx.emit(owned.project, owned.owner, &Event::TaskCancelled { task: other.for_event() });
            tx.wake(Wakeup::Work(other.id.0));
        }
    }
    Ok(())
}
