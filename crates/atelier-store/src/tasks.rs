//! The agent bus: a durable queue for each agent, and who runs what.
//!
//! Everything about one owner's tasks is written in one lane, on every node: so counting what runs and taking
//! the next task is one step that nobody comes between, and an agent's limit holds across nodes. A task that was
//! taken carries a fence; whoever has lost it in the meantime cannot write about it any more.

mod ending;
mod look;
mod queue;

pub(crate) use ending::{interrupted, settle_queue, stop};
pub use look::QueueState;
pub(crate) use queue::{
    KeptTask, Standing, TaskChange, begin_or_queue, counted, insert_task, lease_or_wake, write_tasks,
};

use crate::{
    Error, Owned, Result, Store, Tx,
    db::on,
    feed::Wakeup,
    gate::{new_ids, remember, store_decision},
    memos,
    messages::add_message,
    now, plans,
    projects::{corrupt, json},
};
use atelier_core::{
    CallId, Event, Invalid, Message, MessageId, MessageRole, NodeId, ProjectId, Task, TaskFailure, TaskId,
    TaskStatus, Usage, UserId,
    event::TaskCall,
    gate::{GateRules, NewCall},
    policy::verdict::Verdict,
    task::Step,
};
use chrono::{DateTime, Utc};
use std::sync::Arc;
use uuid::Uuid;

/// How many tasks of the project itself, plans and answers, run at once.
pub const PROJECT_LIMIT: u32 = 10;

/// What a task that has begun is ahead of those that have not.
const BEGUN: i64 = 1_000_000;

/// The right to run a task: it is running, on this node, for this time.
#[derive(Debug, Clone)]
pub struct TaskLease {
    pub owned: Owned,
    pub task: Task,
    pub node: NodeId,
    pub fence: i64,
}

impl TaskLease {
    pub fn queue(&self) -> Uuid {
        queue_of(&self.task)
    }
}

/// A task that was ended from outside, and the calls it was waiting for.
#[derive(Debug)]
pub struct StoppedTask {
    pub task: TaskId,
    pub calls: Vec<CallId>,
}

/// What parking a task led to.
#[derive(Debug)]
pub struct Parked {
    /// Tasks that became free to run.
    pub leases: Vec<TaskLease>,
    /// How the calls of the task were rated.
    pub verdicts: Vec<Verdict>,
}

/// What a call to a model has used that nobody waited for.
#[derive(Debug, Clone, Copy)]
pub struct AbandonedUsage {
    pub ran_ms: u64,
    pub usage: Usage,
    pub cost: f64,
}

/// What a finished task says.
#[derive(Debug, Clone)]
pub struct TaskAnswer {
    pub text: String,
    pub model: Option<String>,
}

pub(crate) fn queue_of(task: &Task) -> Uuid {
    task.agent_id.map_or(task.project_id.0, |agent| agent.0)
}

type TaskRow = (String, String, Option<DateTime<Utc>>);

pub(crate) fn read_task((record, status, started_at): TaskRow) -> Result<Task> {
    let task: Task = corrupt(serde_json::from_str(&record))?;
    // Taking a task changes these two only, and leaves the record as it was.
    let status = corrupt(serde_json::from_value(serde_json::Value::String(status)))?;
    Ok(Task { status, started_at, ..task })
}

/// Writes a task that this node runs; refused when it has lost it.
async fn save_leased(tx: &mut Tx, lease: &TaskLease, task: &Task, pending_calls: i64) -> Result<()> {
    let node = (task.status == TaskStatus::Running).then_some(lease.node.0);
    let queued = (task.status == TaskStatus::Queued).then(now);
    let saved: u64 = on!(&mut tx.conn, |c| sqlx::query(
        "UPDATE tasks SET status = $1, node = $2, pending_calls = $3, record = $4, queued_at = $5,
                priority = CASE WHEN $1 = 'queued' AND priority < $6 THEN priority + $6 ELSE priority END
         WHERE id = $7 AND node = $8 AND fence = $9 AND status = 'running'"
    )
    .bind(task.status.as_str())
    .bind(node)
    .bind(pending_calls)
    .bind(json(task))
    .bind(queued)
    .bind(BEGUN)
    .bind(task.id.0)
    .bind(lease.node.0)
    .bind(lease.fence)
    .execute(c)
    .await
    .map(|done| done.rows_affected()))?;
    if saved == 0 { Err(Error::TaskLost) } else { Ok(()) }
}

/// Writes a task that nobody runs.
pub(crate) async fn save_task(tx: &mut Tx, task: &Task) -> Result<()> {
    let queued = (task.status == TaskStatus::Queued).then(now);
    on!(&mut tx.conn, |c| sqlx::query(
        "UPDATE tasks SET status = $1, node = NULL, fence = fence + 1, pending_calls = 0, started_at = $2,
                          queued_at = $3, record = $4 WHERE id = $5"
    )
    .bind(task.status.as_str())
    .bind(task.started_at)
    .bind(queued)
    .bind(json(task))
    .bind(task.id.0)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Ends a task that this node runs, without telling of it.
pub(crate) async fn end_leased(
    tx: &mut Tx,
    lease: &TaskLease,
    task: &Task,
    step: Option<&Step>,
) -> Result<()> {
    save_leased(tx, lease, task, 0).await?;
    tx.wake(Wakeup::Work(task.id.0));
    match step {
        Some(step) => journal(tx, lease, task, step).await.map(drop),
        None => Ok(()),
    }
}

/// Writes a step; whether it was not there before. What it used is told once, however often it is written.
async fn journal(tx: &mut Tx, lease: &TaskLease, task: &Task, step: &Step) -> Result<bool> {
    let new: u64 = on!(&mut tx.conn, |c| {
        sqlx::query(
        "INSERT INTO task_steps (task_id, step, record) VALUES ($1, $2, $3) ON CONFLICT (task_id, step) DO NOTHING"
    )
    .bind(task.id.0)
    .bind(i64::from(task.steps))
    .bind(json(step))
    .execute(c)
    .await
    .map(|done| done.rows_affected())
    })?;
    if new == 0 {
        on!(&mut tx.conn, |c| sqlx::query(
            "UPDATE task_steps SET record = $3 WHERE task_id = $1 AND step = $2"
        )
        .bind(task.id.0)
        .bind(i64::from(task.steps))
        .bind(json(step))
        .execute(c)
        .await
        .map(drop))?;
        return Ok(false);
    }
    tell_usage(tx, &lease.owned, task, step);
    Ok(true)
}

fn tell_usage(tx: &mut Tx, owned: &Owned, task: &Task, step: &Step) {
    let used = Event::Usage {
        task_id: task.id,
        session_id: task.session_id,
        agent_id: task.agent_id,
        model: step.model.clone(),
        usage: step.usage,
        cost: step.cost,
    };
    tx.emit(owned.project, owned.owner, &used);
}

/// Ends a task of no plan: looks, and then keeps what comes of it. Gives who is to take the next from its queue, if there
/// is one that can run.
async fn finish_alone(
    tx: &mut Tx,
    lease: &TaskLease,
    task: Task,
    step: Option<Step>,
    model: Option<String>,
    next: Option<NodeId>,
) -> Result<Option<NodeId>> {
    let owned = &lease.owned;
    let standing = Standing::held(tx, lease).await?.without_one();
    if let Some(step) = &step {
        tell_usage(tx, owned, &task, step);
    }
    settled(tx, owned, &task, model).await?;
    if let Some(step) = step {
        // A new one: a step that is in the journal is counted in the record, and the model was asked since.
        tx.keep_step(task.id, task.steps, step);
    }
    tx.keep_task(KeptTask { owner: owned.owner, task, turn: TaskChange::Ended(lease.fence) });
    if standing.can_go_on() && next.is_none() {
        tx.wake(Wakeup::Queue(owned.owner, lease.queue()));
    }
    Ok(next.filter(|_| standing.can_go_on()))
}

/// Tells what a step is about to do.
fn progress(tx: &mut Tx, owned: &Owned, task: &Task, step: &Step) {
    let told =
        |call: &atelier_core::task::StepCall| TaskCall { name: call.name.clone(), tool_id: call.tool_id };
    let progress = Event::TaskProgress {
        task_id: task.id,
        session_id: task.session_id,
        step: task.steps,
        text: step.text.chars().take(2000).collect(),
        calls: step.calls.iter().map(told).collect(),
    };
    tx.emit(owned.project, owned.owner, &progress);
}

impl Store {
    /// Takes what is free to run in a queue.
    pub async fn lease_tasks(&self, owned: &Owned, queue: Uuid, node: NodeId) -> Result<Vec<TaskLease>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move { lease_or_wake(tx, &owned, queue, Some(node)).await })
        })
        .await
    }

    /// Notes what the model said, before anything of it is done; the task goes on running.
    pub async fn record_step(&self, lease: &TaskLease, task: Task, step: Step) -> Result<()> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                save_leased(tx, &lease, &task, 0).await?;
                let new = journal(tx, &lease, &task, &step).await?;
                // Of calls at the gate it is told when they are there to be looked at.
                if new && !step.calls.is_empty() && step.calls.iter().all(|call| call.tool_id.is_none()) {
                    progress(tx, &lease.owned, &task, &step);
                }
                Ok(())
            })
        })
        .await
    }

    /// Hands the calls of a step to the gate, all together, and parks the task until they are settled. What
    /// becomes free to run is taken for `next`.
    pub async fn park(
        &self,
        lease: &TaskLease,
        mut task: Task,
        step: Step,
        (rules, calls): (Arc<GateRules>, Vec<NewCall>),
        next: Option<NodeId>,
    ) -> Result<Result<Parked, Invalid>> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                let owned = &lease.owned;
                let context = tx.decision_context(owned.project).await?;
                let begin = |new| rules.begin(owned.project, new, &context, new_ids());
                let begun: Result<Vec<_>, Invalid> = calls.into_iter().map(begin).collect();
                let begun = match begun {
                    Ok(begun) => begun,
                    Err(invalid) => return Ok(Err(invalid)),
                };
                let open = begun.iter().filter(|(call, _)| !call.status.is_settled()).count();
                // Where everything was refused at once there is nothing to wait for.
                task.status = if open > 0 { TaskStatus::Parked } else { TaskStatus::Queued };
                save_leased(tx, &lease, &task, open as i64).await?;
                journal(tx, &lease, &task, &step).await?;
                progress(tx, owned, &task, &step);
                let leases = lease_or_wake(tx, owned, lease.queue(), next).await?;
                // Last, because it cannot fail.
                let verdicts = begun.iter().map(|(call, _)| call.risk_level).collect();
                for (call, effects) in begun {
                    remember(tx, owned, &call);
                    store_decision(tx, owned, call, effects);
                }
                Ok(Ok(Parked { leases, verdicts }))
            })
        })
        .await
    }

    /// Ends a task with a result or a failure, tells the conversation, and lets what waited for it go on. What
    /// becomes free to run is taken for `next`.
    pub async fn finish(
        &self,
        lease: &TaskLease,
        mut task: Task,
        step: Option<Step>,
        outcome: Result<TaskAnswer, TaskFailure>,
        next: Option<NodeId>,
    ) -> Result<Vec<TaskLease>> {
        let mut model = None;
        match outcome {
            Ok(spoken) => {
                task.status = TaskStatus::Completed;
                task.result = Some(spoken.text);
                model = spoken.model;
            }
            Err(failure) => {
                task.status = TaskStatus::Failed;
                task.error = Some(failure);
            }
        }
        task.completed_at = Some(now());
        let lease = lease.clone();
        if task.plan_id.is_none() {
            let (owned, queue) = (lease.owned.clone(), lease.queue());
            let finished = self.write_kept(owned.owner, move |tx| {
                Box::pin(async move { finish_alone(tx, &lease, task, step, model, next).await })
            });
            return match finished.await? {
                Some(node) => self.lease_tasks(&owned, queue, node).await,
                None => Ok(Vec::new()),
            };
        }
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                end_leased(tx, &lease, &task, step.as_ref()).await?;
                settled(tx, &lease.owned, &task, model).await?;
                lease_or_wake(tx, &lease.owned, lease.queue(), next).await
            })
        })
        .await
    }

    /// Puts a task back that was taken and not worked on any further. What its record and journal tell of it stays.
    pub async fn release_task(&self, lease: &TaskLease) -> Result<()> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                let given: u64 = on!(&mut tx.conn, |c| sqlx::query(
                    "UPDATE tasks SET status = 'queued', node = NULL, queued_at = $1,
                            priority = CASE WHEN priority < $2 THEN priority + $2 ELSE priority END
                     WHERE id = $3 AND node = $4 AND fence = $5 AND status = 'running'"
                )
                .bind(now())
                .bind(BEGUN)
                .bind(lease.task.id.0)
                .bind(lease.node.0)
                .bind(lease.fence)
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?;
                if given == 0 {
                    return Err(Error::TaskLost);
                }
                tx.wake(Wakeup::Queue(lease.owned.owner, lease.queue()));
                Ok(())
            })
        })
        .await
    }

    /// Counts what a call to a model used until it was given up: also for a task that was ended since.
    pub async fn count_abandoned_usage(&self, lease: &TaskLease, used: AbandonedUsage) -> Result<()> {
        let (owned, id) = (lease.owned.clone(), lease.task.id);
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut task = lock_task(tx, owned.project, id).await?;
                task.ran_ms += used.ran_ms;
                task.usage += used.usage;
                task.cost += used.cost;
                // Nothing but the record: whoever gave it up has no say about the task any more.
                on!(&mut tx.conn, |c| sqlx::query("UPDATE tasks SET record = $1 WHERE id = $2")
                    .bind(json(&task))
                    .bind(id.0)
                    .execute(c)
                    .await
                    .map(drop))?;
                Ok(())
            })
        })
        .await
    }
}

pub(crate) async fn lock_task(tx: &mut Tx, project: ProjectId, id: TaskId) -> Result<Task> {
    let row: Option<TaskRow> = on!(&mut tx.conn, |c| sqlx::query_as(
        "UPDATE tasks SET status = status WHERE id = $1 AND project_id = $2
         RETURNING record, status, started_at"
    )
    .bind(id.0)
    .bind(project.0)
    .fetch_optional(c)
    .await)?;
    read_task(row.ok_or(Error::NotFound)?)
}

/// A task has come to its end: tells of it, answers in the conversation, moves its plan on.
async fn settled(tx: &mut Tx, owned: &Owned, task: &Task, model: Option<String>) -> Result<()> {
    let told = task.told();
    let event = match task.status {
        TaskStatus::Completed => Event::TaskCompleted { task: told },
        TaskStatus::Cancelled => Event::TaskCancelled { task: told },
        _ => Event::TaskFailed { task: told },
    };
    tx.wake(Wakeup::Work(task.id.0));
    memos::task(tx, owned, task);
    match task.plan_id {
        None => answer(tx, owned, task, model),
        Some(plan) => {
            tx.emit(owned.project, owned.owner, &event);
            return plans::moved(tx, owned, plan, task, model).await;
        }
    }
    tx.emit(owned.project, owned.owner, &event);
    Ok(())
}

/// Says in the conversation what came of a task.
pub(crate) fn answer(tx: &mut Tx, owned: &Owned, task: &Task, model: Option<String>) {
    let content = match (&task.result, &task.error) {
        (Some(result), _) => result.clone(),
        (None, Some(error)) if task.status == TaskStatus::Cancelled => {
            format!("I stopped: {}.", error.detail.trim_end_matches('.'))
        }
        (None, Some(error)) => format!("I could not finish this: {}.", error.detail.trim_end_matches('.')),
        (None, None) => return,
    };
    let message = Message {
        id: MessageId(crate::new_id()),
        project_id: task.project_id,
        session_id: task.session_id,
        role: MessageRole::Assistant,
        content,
        attachments: Vec::new(),
        agent_id: task.agent_id,
        agent_name: task.agent_name.clone(),
        model,
        usage: Some(task.usage),
        cost: (task.cost > 0.0).then_some(task.cost),
        task_id: Some(task.id),
        plan_id: task.plan_id,
        created_at: now(),
    };
    add_message(tx, owned, message);
}

/// A call that a task waits for is settled; with the last of them, the task goes back to its queue, ahead of
/// those that have not begun.
pub(crate) async fn call_settled(tx: &mut Tx, id: TaskId) -> Result<(), sqlx::Error> {
    let row: Option<(Uuid, Uuid)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "UPDATE tasks SET pending_calls = pending_calls - 1,
                status = CASE WHEN pending_calls = 1 THEN 'queued' ELSE status END,
                priority = CASE WHEN pending_calls = 1 AND priority < $3 THEN priority + $3 ELSE priority END,
                queued_at = CASE WHEN pending_calls = 1 THEN $2 ELSE queued_at END
         WHERE id = $1 AND status = 'parked' AND pending_calls > 0 RETURNING user_id, queue"
    )
    .bind(id.0)
    .bind(now())
    .bind(BEGUN)
    .fetch_optional(c)
    .await)?;
    if let Some((owner, queue)) = row {
        tx.wake(Wakeup::Queue(UserId(owner), queue));
    }
    Ok(())
}
