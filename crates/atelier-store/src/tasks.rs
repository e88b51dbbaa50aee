//! The agent bus: a durable queue for each agent, and which node runs which task.
//!
//! Two nodes never write for one owner at the same time. So a write that counts the running tasks
//! and leases the next one is never interleaved with another, and an agent's limit holds across
//! nodes. A lease has a fence: a node that has lost its lease cannot change the task any more.

mod ending;
mod queue;
mod reads;
mod sweeping;

pub(crate) use ending::{has_begun_calls, interrupted, requeue_interrupted, stop, stop_queue};
pub(crate) use queue::{QueueLoad, insert_task, lease_or_wake, load_columns, start_or_queue};
pub use reads::QueueState;

use crate::{
    Error, Owned, Result, Store, Tx,
    auto_interactions::remember_task,
    db::on,
    feed::Wakeup,
    gate::{new_ids, remember, store_decision},
    messages::add_message,
    pending::PendingRows,
    plans,
    rows::{
        json, new_id, now,
        tasks::{TaskChange, TaskRow, TaskWrite, queue_of, read_task},
    },
    writer::GroupReader,
};
use atelier_core::{
    CallId, Event, Invalid, Message, MessageId, MessageRole, NodeId, ProjectId, Task, TaskFailure,
    TaskId, TaskStatus, Usage,
    event::TaskCall,
    gate::{GateRules, NewCall},
    policy::verdict::Verdict,
    remembered::{KnownSecrets, has_withheld_calls},
    task::{Step, StepCall},
};
use std::sync::Arc;
use uuid::Uuid;

/// How many tasks of a project's own queue (plans and answers) run at once.
pub const PROJECT_LIMIT: u32 = 10;

/// A node's hold on a running task. A later lease of the same task has a higher fence.
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

/// A task that somebody stopped, and the calls that it was waiting for.
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

/// What a call to a model used that gave no answer.
#[derive(Debug, Clone)]
pub struct AbandonedUsage {
    pub model: String,
    pub ran_ms: u64,
    pub usage: Usage,
    pub cost: f64,
}

/// The answer of a finished task.
#[derive(Debug, Clone)]
pub struct TaskAnswer {
    pub text: String,
    pub model: Option<String>,
}

/// Where an answer comes from.
#[derive(Default)]
pub(crate) struct AnswerOrigin {
    model: Option<String>,
    /// What was read of secret files in the conversation: the answer may quote it.
    secrets: KnownSecrets,
}

/// Writes a task that this node runs. Fails if the lease is lost. A task that goes back to its
/// queue has begun: it runs before tasks that have not.
async fn save_leased(
    tx: &mut Tx,
    lease: &TaskLease,
    task: &Task,
    pending_calls: i64,
) -> Result<()> {
    let node = (task.status == TaskStatus::Running).then_some(lease.node.0);
    let queued = (task.status == TaskStatus::Queued).then(now);
    let saved: u64 = on!(&mut tx.conn, |c| {
        sqlx::query(
        "UPDATE tasks SET status = $1, node = $2, pending_calls = $3, record = $4, queued_at = $5,
                begun = begun OR $1 = 'queued'
         WHERE id = $6 AND node = $7 AND fence = $8 AND status = 'running'"
    )
    .bind(task.status.as_str())
    .bind(node)
    .bind(pending_calls)
    .bind(json(task))
    .bind(queued)
    .bind(task.id.0)
    .bind(lease.node.0)
    .bind(lease.fence)
    .execute(c)
    .await
    .map(|done| done.rows_affected())
    })?;
    if saved == 0 { Err(Error::TaskLost) } else { Ok(()) }
}

/// Writes a task that no node runs, or that is taken away from the node that runs it.
pub(crate) async fn save_task(tx: &mut Tx, task: &Task) -> Result<()> {
    let queued = (task.status == TaskStatus::Queued).then(now);
    on!(&mut tx.conn, |c| {
        sqlx::query(
            "UPDATE tasks SET status = $1, node = NULL, fence = fence + 1, pending_calls = 0, \
         started_at = $2,
                          queued_at = $3, record = $4 WHERE id = $5",
        )
        .bind(task.status.as_str())
        .bind(task.started_at)
        .bind(queued)
        .bind(json(task))
        .bind(task.id.0)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Writes the end of a task that this node runs, without an event.
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

/// Writes a step, and says whether it is new. Its usage is reported and counted once, however often
/// the step is written.
async fn journal(tx: &mut Tx, lease: &TaskLease, task: &Task, step: &Step) -> Result<bool> {
    if has_withheld_calls(step) {
        on!(&mut tx.conn, |c| {
            sqlx::query(
                "INSERT INTO withheld_steps (task_id, step, session_id) VALUES ($1, $2, $3)
                 ON CONFLICT (task_id, step) DO NOTHING",
            )
            .bind(task.id.0)
            .bind(i64::from(task.steps))
            .bind(task.session_id.0)
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    let new: u64 = on!(&mut tx.conn, |c| {
        sqlx::query(
        "INSERT INTO task_steps (task_id, step, record) VALUES ($1, $2, $3) ON CONFLICT (task_id, \
         step) DO NOTHING"
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
    tx.rows.count_step(&lease.owned, task, step);
    Ok(true)
}

/// Ends a task that belongs to no plan. Returns the node that is to lease the next task of the
/// queue, if one can run.
async fn finish_deferred(
    group: &mut GroupReader,
    lease: &TaskLease,
    task: Task,
    step: Option<Step>,
    origin: AnswerOrigin,
    next: Option<NodeId>,
) -> Result<(Option<NodeId>, PendingRows)> {
    let owned = &lease.owned;
    let load = QueueLoad::of_leased(group, lease).await?.without_one();
    let mut rows = PendingRows::default();
    if let Some(step) = &step {
        rows.count_step(owned, &task, step);
    }
    rows.wake(Wakeup::Work(task.id.0));
    remember_task(&mut rows, owned, &task, &origin.secrets);
    add_answer(&mut rows, owned, &task, origin);
    rows.emit(owned.project, owned.owner, &end_event(&task));
    if let Some(step) = step {
        // The step is new: a step in the journal is counted in the task's record, and the model was
        // asked again since.
        rows.steps.push((task.id, task.steps, step));
    }
    rows.tasks.push(TaskWrite { owner: owned.owner, task, change: TaskChange::Ended(lease.fence) });
    if load.can_start_one() && next.is_none() {
        rows.wake(Wakeup::Queue(owned.owner, lease.queue()));
    }
    Ok((next.filter(|_| load.can_start_one()), rows))
}

/// The event that reports which calls a step is about to make.
fn progress_event(task: &Task, step: &Step) -> Event {
    let call = |call: &StepCall| TaskCall { name: call.name.clone(), tool_id: call.tool_id };
    Event::TaskProgress {
        task_id: task.id,
        session_id: task.session_id,
        step: task.steps,
        text: step.text.chars().take(2000).collect(),
        calls: step.calls.iter().map(call).collect(),
    }
}

impl Store {
    /// Leases the tasks of a queue that may run.
    pub async fn lease_tasks(
        &self,
        owned: &Owned,
        queue: Uuid,
        node: NodeId,
    ) -> Result<Vec<TaskLease>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move { lease_or_wake(tx, &owned, queue, Some(node)).await })
        })
        .await
    }

    /// Records what the model answered, before anything of it is done. The task goes on running.
    pub async fn record_step(&self, lease: &TaskLease, task: Task, step: Step) -> Result<()> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                save_leased(tx, &lease, &task, 0).await?;
                let new = journal(tx, &lease, &task, &step).await?;
                // Calls at the gate are reported when they exist there.
                if new
                    && !step.calls.is_empty()
                    && step.calls.iter().all(|call| call.tool_id.is_none())
                {
                    let owned = &lease.owned;
                    tx.emit(owned.project, owned.owner, &progress_event(&task, &step));
                }
                Ok(())
            })
        })
        .await
    }

    /// Sends the calls of a step to the gate, all together, and parks the task until they are
    /// settled. Leases the tasks that may run now to `next`.
    pub async fn park(
        &self,
        lease: &TaskLease,
        mut task: Task,
        step: Step,
        (rules, calls): (Arc<GateRules>, Vec<NewCall>),
        next: Option<NodeId>,
    ) -> Result<Result<Parked, Invalid>> {
        let lease = lease.clone();
        self.write_with_cache(lease.owned.owner, move |tx| {
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
                // If the gate refused all calls at once, there is nothing to wait for.
                task.status = if open > 0 { TaskStatus::Parked } else { TaskStatus::Queued };
                save_leased(tx, &lease, &task, open as i64).await?;
                journal(tx, &lease, &task, &step).await?;
                tx.emit(owned.project, owned.owner, &progress_event(&task, &step));
                let leases = lease_or_wake(tx, owned, lease.queue(), next).await?;
                let verdicts = begun.iter().map(|(call, _)| call.risk_level).collect();
                for (call, effects) in begun {
                    remember(&mut tx.rows, owned, &call);
                    store_decision(&mut tx.rows, owned, call, effects);
                }
                Ok(Ok(Parked { leases, verdicts }))
            })
        })
        .await
    }

    /// Ends a task with an answer or a failure, adds the answer to the conversation, and frees the
    /// tasks that waited for this one. Leases the tasks that may run now to `next`.
    pub async fn finish(
        &self,
        lease: &TaskLease,
        mut task: Task,
        step: Option<Step>,
        outcome: Result<TaskAnswer, TaskFailure>,
        next: Option<NodeId>,
    ) -> Result<Vec<TaskLease>> {
        let secrets = self.secrets_shown_in(task.session_id).await?;
        let mut origin = AnswerOrigin { model: None, secrets };
        match outcome {
            Ok(answer) => {
                task.status = TaskStatus::Completed;
                task.result = Some(answer.text);
                origin.model = answer.model;
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
            let finished = self.write_deferred(owned.owner, None, move |group| {
                Box::pin(
                    async move { finish_deferred(group, &lease, task, step, origin, next).await },
                )
            });
            return match finished.await? {
                Some(node) => self.lease_tasks(&owned, queue, node).await,
                None => Ok(Vec::new()),
            };
        }
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                end_leased(tx, &lease, &task, step.as_ref()).await?;
                report_end(tx, &lease.owned, &task, origin).await?;
                lease_or_wake(tx, &lease.owned, lease.queue(), next).await
            })
        })
        .await
    }

    /// Puts a leased task back into its queue. Its record and its journal stay as they are.
    pub async fn release_task(&self, lease: &TaskLease) -> Result<()> {
        let lease = lease.clone();
        self.write(lease.owned.owner, move |tx| {
            Box::pin(async move {
                let released: u64 = on!(&mut tx.conn, |c| {
                    sqlx::query(
                    "UPDATE tasks SET status = 'queued', node = NULL, queued_at = $1, begun = TRUE
                     WHERE id = $2 AND node = $3 AND fence = $4 AND status = 'running'"
                )
                .bind(now())
                .bind(lease.task.id.0)
                .bind(lease.node.0)
                .bind(lease.fence)
                .execute(c)
                .await
                .map(|done| done.rows_affected())
                })?;
                if released == 0 {
                    return Err(Error::TaskLost);
                }
                tx.wake(Wakeup::Queue(lease.owned.owner, lease.queue()));
                Ok(())
            })
        })
        .await
    }

    /// Counts what an abandoned call to a model used, even if its task has ended or was deleted
    /// since.
    pub async fn count_abandoned_usage(
        &self,
        lease: &TaskLease,
        used: AbandonedUsage,
    ) -> Result<()> {
        let (owned, task) = (lease.owned.clone(), lease.task.clone());
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let AbandonedUsage { model, usage, cost, ran_ms } = used;
                tx.rows.at_commit.usage.add(&owned, &task, &model, 0, usage, cost);
                let mut task = match lock_task(tx, owned.project, task.id).await {
                    Err(Error::NotFound) => return Ok(()),
                    task => task?,
                };
                task.ran_ms += ran_ms;
                task.usage += usage;
                task.cost += cost;
                // Only the record is written, because the lease may be lost by now.
                on!(&mut tx.conn, |c| sqlx::query("UPDATE tasks SET record = $1 WHERE id = $2")
                    .bind(json(&task))
                    .bind(task.id.0)
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

fn end_event(task: &Task) -> Event {
    let task_view = task.for_event();
    match task.status {
        TaskStatus::Completed => Event::TaskCompleted { task: task_view },
        TaskStatus::Cancelled => Event::TaskCancelled { task: task_view },
        _ => Event::TaskFailed { task: task_view },
    }
}

/// Reports that a task has ended: with an event, in its agent's memory, and to its plan or, if it
/// has none, with an answer in the conversation.
async fn report_end(tx: &mut Tx, owned: &Owned, task: &Task, origin: AnswerOrigin) -> Result<()> {
    tx.wake(Wakeup::Work(task.id.0));
    remember_task(&mut tx.rows, owned, task, &origin.secrets);
    let event = end_event(task);
    match task.plan_id {
        None => {
            add_answer(&mut tx.rows, owned, task, origin);
            tx.emit(owned.project, owned.owner, &event);
            Ok(())
        }
        Some(plan) => {
            tx.emit(owned.project, owned.owner, &event);
            plans::task_ended(tx, owned, plan, task, origin).await
        }
    }
}

/// Adds the outcome of a task to the conversation.
pub(crate) fn add_answer(rows: &mut PendingRows, owned: &Owned, task: &Task, origin: AnswerOrigin) {
    let content = match (&task.result, &task.error) {
        (Some(result), _) => result.clone(),
        (None, Some(error)) if task.status == TaskStatus::Cancelled => {
            format!("I stopped: {}.", error.detail.trim_end_matches('.'))
        }
        (None, Some(error)) => {
            format!("I could not finish this: {}.", error.detail.trim_end_matches('.'))
        }
        (None, None) => return,
    };
    let message = Message {
        id: MessageId(new_id()),
        project_id: task.project_id,
        session_id: task.session_id,
        role: MessageRole::Assistant,
        content,
        attachments: Vec::new(),
        agent_id: task.agent_id,
        agent_name: task.agent_name.clone(),
        model: origin.model,
        usage: Some(task.usage),
        cost: (task.cost > 0.0).then_some(task.cost),
        task_id: Some(task.id),
        plan_id: task.plan_id,
        created_at: now(),
    };
    add_message(rows, owned, message, &origin.secrets);
}
