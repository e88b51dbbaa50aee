//! The queue of an agent, or of a project for its plans: what waits in it, what runs, and who takes the next.

use super::{PROJECT_LIMIT, TaskLease, queue_of, read_task};
use crate::{
    Error, Owned, Result, Tx,
    db::{Conn, on},
    feed::Wakeup,
    now,
    projects::{corrupt, json},
    unwritten::write_rows,
};
use atelier_core::{AgentConfig, Event, NodeId, Task, TaskStatus, UserId};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// How a queue stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) waiting: i64,
    running: i64,
    limit: i64,
    /// Whether it is the queue of an agent that there is.
    pub(crate) of_agent: bool,
}

/// What `Standing` is read from, where `$1` is the queue.
macro_rules! counted {
    () => {
        "(SELECT COUNT(*) FROM tasks WHERE queue = $1 AND status = 'queued'),
         (SELECT COUNT(*) FROM tasks WHERE queue = $1 AND status = 'running'),
         (SELECT config FROM agents WHERE id = $1)"
    };
}
pub(crate) use counted;

type StandingRow = (i64, i64, Option<String>);

impl Standing {
    /// As it is with what this group has not written yet.
    pub(crate) fn read(tx: &Tx, queue: Uuid, (waiting, running, config): StandingRow) -> Result<Self> {
        let of_agent = config.is_some();
        let limit = match config {
            Some(config) => corrupt(serde_json::from_str::<AgentConfig>(&config))?.concurrency_limit,
            None => PROJECT_LIMIT,
        };
        let mut standing = Self { waiting, running, limit: limit.into(), of_agent };
        for kept in tx.unwritten_tasks().filter(|kept| queue_of(&kept.task) == queue) {
            match kept.turn {
                TaskChange::Queued => standing.waiting += 1,
                TaskChange::Started(_) => standing.running += 1,
                TaskChange::Ended(_) => standing.running -= 1,
            }
        }
        Ok(standing)
    }

    pub(crate) async fn now(tx: &mut Tx, queue: Uuid) -> Result<Self> {
        let row: StandingRow = on!(&mut tx.conn, |c| sqlx::query_as(concat!("SELECT ", counted!()))
            .bind(queue)
            .fetch_one(c)
            .await)?;
        Self::read(tx, queue, row)
    }

    /// How the queue of a task stands; refused when the lease on it is lost.
    pub(crate) async fn held(tx: &mut Tx, lease: &TaskLease) -> Result<Self> {
        let row: Option<StandingRow> = on!(&mut tx.conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            counted!(),
            " FROM tasks WHERE id = $2 AND node = $3 AND fence = $4 AND status = 'running'"
        ))
        .bind(lease.queue())
        .bind(lease.task.id.0)
        .bind(lease.node.0)
        .bind(lease.fence)
        .fetch_optional(c)
        .await)?;
        Self::read(tx, lease.queue(), row.ok_or(Error::TaskLost)?)
    }

    /// When one that runs has ended.
    pub(crate) fn without_one(self) -> Self {
        Self { running: self.running - 1, ..self }
    }

    /// Whether something waits that could run.
    pub(crate) fn can_go_on(&self) -> bool {
        self.waiting > 0 && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.running < self.limit
    }
}

/// A task as it is to be written with its group.
pub(crate) struct KeptTask {
    pub(crate) owner: UserId,
    pub(crate) task: Task,
    pub(crate) turn: TaskChange,
}

/// What has become of a task.
pub(crate) enum TaskChange {
    /// A new one, which has to wait.
    Queued,
    /// A new one, which this node runs at once.
    Started(NodeId),
    /// One that was taken with this fence has come to its end.
    Ended(i64),
}

/// The fence of a task that is taken for the first time.
const FIRST: i64 = 1;

impl TaskChange {
    /// Who runs it, and its fence.
    fn holder(&self) -> (Option<Uuid>, i64) {
        match self {
            TaskChange::Queued => (None, 0),
            TaskChange::Started(node) => (Some(node.0), FIRST),
            TaskChange::Ended(fence) => (None, *fence),
        }
    }
}

pub(crate) async fn write_tasks(conn: &mut Conn, tasks: Vec<KeptTask>) -> Result<(), sqlx::Error> {
    write_rows!(
        conn,
        tasks,
        "INSERT INTO tasks (id, project_id, user_id, session_id, plan_id, queue, status, priority, node, fence,
                            queued_at, started_at, record) ",
        |row, KeptTask { owner, task, turn }| {
            let (node, fence) = turn.holder();
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

/// Queues a new task among others, or keeps it waiting for those it depends on.
pub(crate) async fn insert_task(tx: &mut Tx, owned: &Owned, task: &Task) -> Result<()> {
    let new = KeptTask { owner: owned.owner, task: task.clone(), turn: TaskChange::Queued };
    write_tasks(&mut tx.conn, vec![new]).await?;
    if task.status == TaskStatus::Queued {
        tx.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.told() });
    }
    Ok(())
}

/// Queues a new task. Where nothing is ahead of it, it begins at once on `node`.
pub(crate) fn begin_or_queue(
    tx: &mut Tx,
    owned: &Owned,
    task: &Task,
    standing: Standing,
    node: Option<NodeId>,
) -> Option<TaskLease> {
    tx.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.told() });
    let keep = |task: Task, turn| KeptTask { owner: owned.owner, task, turn };
    let free = standing.waiting == 0 && standing.has_room();
    // A call that settled in this group may let one go on that has begun already: it is ahead of this one.
    let Some(node) = node.filter(|_| free && !tx.settles_calls()) else {
        tx.keep_task(keep(task.clone(), TaskChange::Queued));
        if standing.has_room() {
            tx.wake(Wakeup::Queue(owned.owner, queue_of(task)));
        }
        return None;
    };
    let task = Task { status: TaskStatus::Running, started_at: Some(now()), ..task.clone() };
    tell_start(tx, owned, &task);
    tx.keep_task(keep(task.clone(), TaskChange::Started(node)));
    Some(TaskLease { owned: owned.clone(), task, node, fence: FIRST })
}

/// Takes what is free to run in a queue for `node`, or lets everybody know that something may be.
pub(crate) async fn lease_or_wake(
    tx: &mut Tx,
    owned: &Owned,
    queue: Uuid,
    node: Option<NodeId>,
) -> Result<Vec<TaskLease>> {
    let standing = Standing::now(tx, queue).await?;
    if !standing.can_go_on() {
        return Ok(Vec::new());
    }
    let Some(node) = node else {
        tx.wake(Wakeup::Queue(owned.owner, queue));
        return Ok(Vec::new());
    };
    let time = now();
    type Row = (String, i64, DateTime<Utc>);
    let rows: Vec<Row> = on!(&mut tx.conn, |c| sqlx::query_as(
        "UPDATE tasks SET status = 'running', node = $2, fence = fence + 1, queued_at = NULL,
                          started_at = COALESCE(started_at, $3)
         WHERE id IN (
           SELECT id FROM tasks WHERE queue = $1 AND status = 'queued' ORDER BY priority DESC, id LIMIT $4)
         RETURNING record, fence, started_at"
    )
    .bind(queue)
    .bind(node.0)
    .bind(time)
    .bind(standing.limit - standing.running)
    .fetch_all(c)
    .await)?;
    let mut leases = Vec::with_capacity(rows.len());
    for (record, fence, started_at) in rows {
        let task = read_task((record, TaskStatus::Running.as_str().to_owned(), Some(started_at)))?;
        if started_at == time {
            tell_start(tx, owned, &task);
        }
        leases.push(TaskLease { owned: owned.clone(), task, node, fence });
    }
    leases.sort_by_key(|lease| (-lease.task.priority, lease.task.id));
    Ok(leases)
}

fn tell_start(tx: &mut Tx, owned: &Owned, task: &Task) {
    let started = Event::TaskStarted {
        task_id: task.id,
        session_id: task.session_id,
        plan_id: task.plan_id,
        agent_id: task.agent_id,
        agent_name: task.agent_name.clone(),
    };
    tx.emit(owned.project, owned.owner, &started);
}
