//! Rows of tasks, their steps and plans.

use crate::{
    Result,
    db::{Conn, DbError, sql},
    rows::{from_json, from_name, json, now, write_rows},
};
use atelier_core::{NodeId, Plan, Task, TaskId, TaskStatus, UserId, task::Step};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The columns `record, status, started_at`.
pub(crate) type TaskRow = (String, String, Option<DateTime<Utc>>);

pub(crate) fn read_task((record, status, started_at): TaskRow) -> Result<Task> {
    let task: Task = from_json(&record)?;
    // Leasing a task changes only these two columns and leaves the record as it was.
    Ok(Task { status: from_name(status)?, started_at, ..task })
}

/// The queue of a task: its agent's, or its project's for plans and answers.
pub(crate) fn queue_of(task: &Task) -> Uuid {
    task.agent_id.map_or(task.project_id.0, |agent| agent.0)
}

/// A task to write.
pub(crate) struct TaskWrite {
    pub(crate) owner: UserId,
    pub(crate) task: Task,
    pub(crate) change: TaskChange,
}

/// How a task changes.
pub(crate) enum TaskChange {
    /// A new task waits in its queue, or for the tasks that it depends on.
    Queued,
    /// A new task runs on this node at once.
    Started(NodeId),
    /// A task that was leased with this fence has ended.
    Ended(i64),
}

/// The fence of a task's first lease.
pub(crate) const FIRST_FENCE: i64 = 1;

impl TaskChange {
    /// The node that runs the task, and the fence of its lease.
    fn lease(&self) -> (Option<Uuid>, i64) {
        match self {
            TaskChange::Queued => (None, 0),
            TaskChange::Started(node) => (Some(node.0), FIRST_FENCE),
            TaskChange::Ended(fence) => (None, *fence),
        }
    }
}

pub(crate) async fn write_tasks(conn: &mut Conn, tasks: Vec<TaskWrite>) -> Result<(), DbError> {
    write_rows!(
        conn,
        tasks,
        "INSERT INTO tasks (id, project_id, user_id, session_id, plan_id, queue, status, \
         priority, node, fence,
                            queued_at, started_at, record) ",
        |row, TaskWrite { owner, task, change }| {
            let (node, fence) = change.lease();
            row.push_bind(task.id.0)
                .push_bind(task.project_id.0)
                .push_bind(owner.0)
                .push_bind(task.session_id.0)
                .push_bind(task.plan_id.map(|id| id.0))
                .push_bind(queue_of(&task))
                .push_bind(task.status.as_str())
                .push_bind(i64::from(task.priority))
                .push_bind(node)
                .push_bind(fence)
                .push_bind((task.status == TaskStatus::Queued).then(now))
                .push_bind(task.started_at)
                .push_bind(json(&task));
        },
        " ON CONFLICT (id) DO UPDATE SET status = excluded.status, node = excluded.node,
          pending_calls = 0, queued_at = excluded.queued_at, record = excluded.record
          WHERE tasks.fence = excluded.fence AND tasks.status = 'running'"
    )
}

pub(crate) async fn write_plans(conn: &mut Conn, plans: Vec<Plan>) -> Result<(), DbError> {
    write_rows!(
        conn,
        plans,
        "INSERT INTO plans (id, project_id, session_id, status, record) ",
        |row, plan| {
            row.push_bind(plan.id.0)
                .push_bind(plan.project_id.0)
                .push_bind(plan.session_id.0)
                .push_bind(plan.status.as_str())
                .push_bind(json(&plan));
        },
        ""
    )
}

/// Writes steps by their number in their task.
pub(crate) async fn write_steps(
    conn: &mut Conn,
    steps: Vec<(TaskId, u32, Step)>,
) -> Result<(), DbError> {
    write_rows!(
        conn,
        steps,
        "INSERT INTO task_steps (task_id, step, record) ",
        |row, (task, number, step)| {
            row.push_bind(task.0).push_bind(i64::from(number)).push_bind(json(&step));
        },
        " ON CONFLICT (task_id, step) DO UPDATE SET record = excluded.record"
    )
}

/// Counts one settled call of a parked task. With the last one the task goes back to its queue,
/// ahead of tasks that have not begun. Returns the owner and the queue if the task was parked.
pub(crate) async fn settle_call(
    conn: &mut Conn,
    task: TaskId,
) -> Result<Option<(UserId, Uuid)>, DbError> {
    let row: Option<(Uuid, Uuid)> = sql("UPDATE tasks SET pending_calls = pending_calls - 1,
                status = CASE WHEN pending_calls = 1 THEN 'queued' ELSE status END,
                begun = begun OR pending_calls = 1,
                queued_at = CASE WHEN pending_calls = 1 THEN $2 ELSE queued_at END
         WHERE id = $1 AND status = 'parked' AND pending_calls > 0 RETURNING user_id, queue")
    .bind(task.0)
    .bind(now())
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|(owner, queue)| (UserId(owner), queue)))
}
