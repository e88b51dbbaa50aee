//! The queue of an agent, or of a project for its plans: what waits, what runs, and who leases the
//! next.

use super::{PROJECT_LIMIT, TaskLease};
use crate::{
    Error, Owned, Result, Tx,
    db::sql,
    feed::Wakeup,
    pending::PendingRows,
    rows::{
        from_json, now,
        tasks::{FIRST_FENCE, TaskChange, TaskWrite, queue_of, read_task, write_tasks},
    },
    writer::GroupReader,
};
use atelier_core::{AgentConfig, Event, NodeId, Task, TaskStatus};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// How many tasks of a queue wait and run, and how many may run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLoad {
    pub(crate) waiting: i64,
    running: i64,
    limit: i64,
    /// Whether the queue belongs to an agent that exists.
    pub(crate) of_agent: bool,
}

/// The columns that a [`QueueLoad`] is read from; `$1` is the queue.
macro_rules! load_columns {
    () => {
        "(SELECT COUNT(*) FROM tasks WHERE queue = $1 AND status = 'queued'),
         (SELECT COUNT(*) FROM tasks WHERE queue = $1 AND status = 'running'),
         (SELECT config FROM agents WHERE id = $1)"
    };
}
pub(crate) use load_columns;

type LoadRow = (i64, i64, Option<String>);

impl QueueLoad {
    /// The load in the database, corrected by the rows of this group that are not written yet.
    pub(crate) fn read(
        group: &GroupReader,
        queue: Uuid,
        (waiting, running, config): LoadRow,
    ) -> Result<Self> {
        let of_agent = config.is_some();
        let limit = match config {
            Some(config) => from_json::<AgentConfig>(&config)?.concurrency_limit,
            None => PROJECT_LIMIT,
        };
        let mut load = Self { waiting, running, limit: limit.into(), of_agent };
        for unwritten in group.unwritten.tasks.iter().filter(|one| queue_of(&one.task) == queue) {
            match unwritten.change {
                TaskChange::Queued => load.waiting += 1,
                TaskChange::Started(_) => load.running += 1,
                TaskChange::Ended(_) => load.running -= 1,
            }
        }
        Ok(load)
    }

    async fn of_queue(group: &mut GroupReader, queue: Uuid) -> Result<Self> {
        let row: LoadRow =
            sql(concat!("SELECT ", load_columns!())).bind(queue).fetch_one(&mut group.conn).await?;
        Self::read(group, queue, row)
    }

    /// The load of a leased task's queue. Fails if the lease is lost.
    pub(crate) async fn of_leased(group: &mut GroupReader, lease: &TaskLease) -> Result<Self> {
        let row: Option<LoadRow> = sql(concat!(
            "SELECT ",
            load_columns!(),
            " FROM tasks WHERE id = $2 AND node = $3 AND fence = $4 AND status = 'running'"
        ))
        .bind(lease.queue())
        .bind(lease.task.id.0)
        .bind(lease.node.0)
        .bind(lease.fence)
        .fetch_optional(&mut group.conn)
        .await?;
        Self::read(group, lease.queue(), row.ok_or(Error::TaskLost)?)
    }

    /// The load after one running task has ended.
    pub(crate) fn without_one(self) -> Self {
        Self { running: self.running - 1, ..self }
    }

    /// Whether a waiting task could run.
    pub(crate) fn can_start_one(&self) -> bool {
        self.waiting > 0 && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.running < self.limit
    }
}

/// Writes a new task of a plan: it waits in its queue, or for the tasks that it depends on.
pub(crate) async fn insert_task(tx: &mut Tx, owned: &Owned, task: &Task) -> Result<()> {
    let new = TaskWrite { owner: owned.owner, task: task.clone(), change: TaskChange::Queued };
    write_tasks(&mut tx.conn, vec![new]).await?;
    if task.status == TaskStatus::Queued {
        tx.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.for_event() });
    }
    Ok(())
}

/// Queues a new task. If nothing is ahead of the task, `node` starts it at once.
pub(crate) fn start_or_queue(
    group: &GroupReader,
    rows: &mut PendingRows,
    owned: &Owned,
    task: &Task,
    load: QueueLoad,
    node: Option<NodeId>,
) -> Option<TaskLease> {
    rows.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.for_event() });
    let write = |task: Task, change| TaskWrite { owner: owned.owner, task, change };
    let free = load.waiting == 0 && load.has_room();
    // A call that this group settles may free a task that has begun, and such a task runs first.
    let Some(node) = node.filter(|_| free && group.unwritten.settled_calls.is_empty()) else {
        rows.tasks.push(write(task.clone(), TaskChange::Queued));
        if load.has_room() {
            rows.wake(Wakeup::Queue(owned.owner, queue_of(task)));
        }
        return None;
    };
    let task = Task { status: TaskStatus::Running, started_at: Some(now()), ..task.clone() };
    rows.emit(owned.project, owned.owner, &started(&task));
    rows.tasks.push(write(task.clone(), TaskChange::Started(node)));
    Some(TaskLease { owned: owned.clone(), task, node, fence: FIRST_FENCE })
}

/// Leases the tasks of a queue that may run to `node`. Without a node, wakes all nodes if a task
/// may run.
pub(crate) async fn lease_or_wake(
    tx: &mut Tx,
    owned: &Owned,
    queue: Uuid,
    node: Option<NodeId>,
) -> Result<Vec<TaskLease>> {
    let load = QueueLoad::of_queue(tx, queue).await?;
    if !load.can_start_one() {
        return Ok(Vec::new());
    }
    let Some(node) = node else {
        tx.wake(Wakeup::Queue(owned.owner, queue));
        return Ok(Vec::new());
    };
    let time = now();
    type Row = (String, i64, DateTime<Utc>, bool);
    let rows: Vec<Row> =
        sql("UPDATE tasks SET status = 'running', node = $2, fence = fence + 1, queued_at = NULL,
                          started_at = COALESCE(started_at, $3)
         WHERE id IN (
           SELECT id FROM tasks WHERE queue = $1 AND status = 'queued'
           ORDER BY begun DESC, priority DESC, id LIMIT $4)
         RETURNING record, fence, started_at, begun")
        .bind(queue)
        .bind(node.0)
        .bind(time)
        .bind(load.limit - load.running)
        .fetch_all(&mut tx.conn)
        .await?;
    let mut leases = Vec::with_capacity(rows.len());
    for (record, fence, started_at, begun) in rows {
        let task = read_task((record, TaskStatus::Running.as_str().to_owned(), Some(started_at)))?;
        if started_at == time {
            tx.emit(owned.project, owned.owner, &started(&task));
        }
        leases.push((begun, TaskLease { owned: owned.clone(), task, node, fence }));
    }
    // The order of the rows that an UPDATE returns is not defined.
    leases.sort_by_key(|(begun, lease)| (!begun, -lease.task.priority, lease.task.id));
    Ok(leases.into_iter().map(|(_, lease)| lease).collect())
}

fn started(task: &Task) -> Event {
    Event::TaskStarted {
        task_id: task.id,
        session_id: task.session_id,
        plan_id: task.plan_id,
        agent_id: task.agent_id,
        agent_name: task.agent_name.clone(),
    }
}
