//! Stopping tasks, and resuming them.

use super::{AnswerOrigin, StoppedTask, lock_task, report_end, save_task};
use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, sql},
    feed::Wakeup,
    messages::check_conversation,
    plans,
    rows::{from_json, now, tasks::queue_of},
};
use atelier_core::{
    AgentId, CallId, ConversationId, Event, ProjectId, Task, TaskFailure, TaskFailureCode, TaskId,
    TaskKind, TaskStatus, task::Step,
};
use uuid::Uuid;

impl Store {
    /// Stops a task with the given status. Fails if the task has ended.
    pub async fn stop_task(
        &self,
        owned: &Owned,
        id: TaskId,
        status: TaskStatus,
        why: TaskFailure,
    ) -> Result<(Task, StoppedTask)> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut task = lock_task(tx, owned.project, id).await?;
                if task.status.is_settled() {
                    return Err(Error::TaskSettled(task.status));
                }
                let stopped = stop(tx, &owned, &mut task, status, why).await?;
                Ok((task, stopped))
            })
        })
        .await
    }

    /// Stops the open tasks and plans of a project, or of one of its conversations. With
    /// `spare_running`, running tasks are left alone. It is one transaction, so no task starts
    /// because another was stopped.
    pub async fn stop_tasks(
        &self,
        owned: &Owned,
        session: Option<ConversationId>,
        spare_running: bool,
        why: TaskFailure,
    ) -> Result<Vec<StoppedTask>> {
        let owned = owned.clone();
        // If nothing is open there is no need to wait for the writer, which may be blocked.
        if open_tasks(&mut self.db.connect().await?, owned.project, session, spare_running)
            .await?
            .is_empty()
        {
            return Ok(Vec::new());
        }
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut stopped =
                    plans::stop_plans(tx, &owned, session, spare_running, &why).await?;
                let open = open_tasks(&mut tx.conn, owned.project, session, spare_running).await?;
                stopped.extend(stop_each(tx, &owned, &open, &why).await?);
                Ok(stopped)
            })
        })
        .await
    }

    /// Queues a failed or cancelled task again. The steps in its journal are not repeated.
    pub async fn resume_task(&self, owned: &Owned, id: TaskId, max_queue: i64) -> Result<Task> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut task = lock_task(tx, owned.project, id).await?;
                if !matches!(task.status, TaskStatus::Failed | TaskStatus::Cancelled) {
                    return Err(Error::TaskSettled(task.status));
                }
                let (archived, load) =
                    check_conversation(tx, &owned, task.session_id, queue_of(&task)).await?;
                if archived {
                    return Err(Error::Archived);
                }
                if task.agent_id.is_some() && !load.of_agent {
                    return Err(Error::AgentDeleted);
                }
                let waiting = load.waiting;
                if waiting >= max_queue {
                    return Err(Error::QueueFull { waiting });
                }
                task.status = TaskStatus::Queued;
                (task.error, task.completed_at, task.started_at) = (None, None, None);
                plans::reopen(tx, &owned, &mut task).await?;
                save_task(tx, &task).await?;
                if task.status == TaskStatus::Queued {
                    tx.emit(
                        owned.project,
                        owned.owner,
                        &Event::TaskQueued { task: task.for_event() },
                    );
                    tx.wake(Wakeup::Queue(owned.owner, queue_of(&task)));
                }
                Ok(task)
            })
        })
        .await
    }
}

/// The open tasks of a project, or of one of its conversations; without the running ones if they
/// are spared.
async fn open_tasks(
    conn: &mut Conn,
    project: ProjectId,
    session: Option<ConversationId>,
    spare_running: bool,
) -> Result<Vec<TaskId>> {
    let (any, session) = (session.is_none(), session.map_or(Uuid::nil(), |session| session.0));
    let open: Vec<(Uuid,)> =
        sql("SELECT id FROM tasks WHERE project_id = $1 AND ($2 OR session_id = $3)
         AND status IN ('waiting', 'queued', 'parked', 'running') AND NOT ($4 AND status = \
         'running')
         ORDER BY id")
        .bind(project.0)
        .bind(any)
        .bind(session)
        .bind(spare_running)
        .fetch_all(conn)
        .await?;
    Ok(open.into_iter().map(|(id,)| TaskId(id)).collect())
}

/// The calls of a task's last step.
async fn open_calls(tx: &mut Tx, task: &Task) -> Result<Vec<CallId>> {
    let row: Option<(String,)> =
        sql("SELECT record FROM task_steps WHERE task_id = $1 ORDER BY step DESC LIMIT 1")
            .bind(task.id.0)
            .fetch_optional(&mut tx.conn)
            .await?;
    let Some((record,)) = row else { return Ok(Vec::new()) };
    let step: Step = from_json(&record)?;
    Ok(step.calls.iter().filter_map(|call| call.tool_id).collect())
}

/// Stops a task, whatever its status.
pub(crate) async fn stop(
    tx: &mut Tx,
    owned: &Owned,
    task: &mut Task,
    status: TaskStatus,
    why: TaskFailure,
) -> Result<StoppedTask> {
    let calls = open_calls(tx, task).await?;
    task.status = status;
    task.error = Some(why);
    task.completed_at = Some(now());
    save_task(tx, task).await?;
    report_end(tx, owned, task, AnswerOrigin::default()).await?;
    tx.wake(Wakeup::Queue(owned.owner, queue_of(task)));
    Ok(StoppedTask { task: task.id, calls })
}

/// Fails the given tasks, except those that have ended.
async fn stop_each(
    tx: &mut Tx,
    owned: &Owned,
    ids: &[TaskId],
    why: &TaskFailure,
) -> Result<Vec<StoppedTask>> {
    let mut stopped = Vec::new();
    for &id in ids {
        // Read again, because ending one task of a plan may have ended others.
        let mut task = lock_task(tx, owned.project, id).await?;
        if !task.status.is_settled() {
            stopped.push(stop(tx, owned, &mut task, TaskStatus::Failed, why.clone()).await?);
        }
    }
    Ok(stopped)
}

/// Stops every task in the queue of an agent that is being deleted.
pub(crate) async fn stop_queue(
    tx: &mut Tx,
    owned: &Owned,
    agent: AgentId,
    why: &TaskFailure,
) -> Result<Vec<StoppedTask>> {
    let rows: Vec<(Uuid,)> = sql(
        "SELECT id FROM tasks WHERE queue = $1 AND status IN ('waiting', 'queued', 'running', \
         'parked')",
    )
    .bind(agent.0)
    .fetch_all(&mut tx.conn)
    .await?;
    let ids: Vec<TaskId> = rows.into_iter().map(|(id,)| TaskId(id)).collect();
    stop_each(tx, owned, &ids, why).await
}

/// Whether the last step of a task has calls that were begun and have no result: they may have had
/// an effect. Calls at the gate are settled when their task runs.
pub(crate) async fn has_begun_calls(tx: &mut Tx, task: &Task) -> Result<bool> {
    let row: Option<(String,)> =
        sql("SELECT record FROM task_steps WHERE task_id = $1 ORDER BY step DESC LIMIT 1")
            .bind(task.id.0)
            .fetch_optional(&mut tx.conn)
            .await?;
    let Some((record,)) = row else { return Ok(false) };
    let step: Step = from_json(&record)?;
    Ok(step.calls.iter().any(|call| call.tool_id.is_none() && call.result.is_none()))
}

/// Puts a task whose node is gone back into its queue. Its record and its journal stay as they are.
pub(crate) async fn requeue_interrupted(tx: &mut Tx, owned: &Owned, task: &mut Task) -> Result<()> {
    sql("UPDATE tasks SET status = 'queued', node = NULL, queued_at = $1, begun = TRUE,
             interruptions = interruptions + 1 WHERE id = $2")
    .bind(now())
    .bind(task.id.0)
    .execute(&mut tx.conn)
    .await?;
    task.status = TaskStatus::Queued;
    tx.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.for_event() });
    tx.wake(Wakeup::Queue(owned.owner, queue_of(task)));
    Ok(())
}

/// Says what a task was doing when its node died.
pub(crate) fn interrupted(task: &Task) -> TaskFailure {
    let what = match task.kind {
        TaskKind::Plan => "planning",
        TaskKind::Answer => "writing the answer",
        TaskKind::Work => "working",
    };
    let detail = format!(
        "the server stopped while it was {what}; {} steps were done before, and resuming repeats \
         none of them",
        task.steps
    );
    TaskFailure::new(TaskFailureCode::Interrupted, detail)
}
