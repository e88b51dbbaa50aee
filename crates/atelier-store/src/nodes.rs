//! The nodes that share a database, and the tasks of nodes that are gone.

use crate::{
    Error, Owned, Result, Store,
    db::{Conn, sql},
    rows::database_time,
    tasks::{has_begun_calls, interrupted, lock_task, requeue_interrupted, stop},
};
use atelier_core::{NodeId, Task, TaskFailure, TaskFailureCode, TaskId, TaskStatus};
use chrono::TimeDelta;
use uuid::Uuid;

/// How long a node may be silent before its leases end.
const LEASE: TimeDelta = TimeDelta::seconds(3);

/// A task that ran on a node that is gone.
#[derive(Debug)]
pub struct LostTask {
    pub id: TaskId,
    owned: Owned,
    fence: i64,
}

/// What became of a task whose node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostTaskOutcome {
    /// The task is in its queue again.
    Resumed,
    Failed,
    /// Another node has recovered it already.
    Recovered,
}

/// How often a task goes on by itself. The task itself may be what ends its nodes.
const MAX_INTERRUPTIONS: i32 = 3;

/// SQL condition: the node `$holder` is another node than `$this`, and its lease has run out. The
/// condition is false if this node was silent itself until a moment ago: while the database does
/// not answer, all nodes are silent. `$holder` must be qualified with its table.
macro_rules! is_gone {
    ($holder:literal, $this:literal, $now:literal) => {
        concat!(
            "(",
            $holder,
            " <> ",
            $this,
            " AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = ",
            $holder,
            " AND n.lease_until > ",
            $now,
            ") AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = ",
            $this,
            " AND n.lease_until > ",
            $now,
            " AND n.judges_from <= ",
            $now,
            "))"
        )
    };
}
pub(crate) use is_gone;

impl Store {
    /// This node among those that share the database.
    pub fn node(&self) -> NodeId {
        self.feeds.node
    }

    /// Registers this node when it starts.
    pub async fn register_node(&self) -> Result<()> {
        let mut conn = self.db.connect().await?;
        if matches!(conn, Conn::Lite(_)) {
            // SQLite has one node at a time, so every other node is gone.
            sql("DELETE FROM nodes").execute(&mut conn).await?;
        }
        drop(conn);
        self.renew_node().await
    }

    /// Extends this node's lease.
    pub async fn renew_node(&self) -> Result<()> {
        let mut conn = self.db.connect_vital().await?;
        let time = database_time(&mut conn).await?;
        let until = time + LEASE;
        // This node may have started while the database did not answer the other nodes. So it waits
        // for one lease before it judges them, unless it is the only node (SQLite).
        let judges_from = if matches!(conn, Conn::Lite(_)) { time } else { until };
        let (peers,): (i64,) =
            sql("INSERT INTO nodes (id, lease_until, judges_from) VALUES ($1, $2, $3)
                 ON CONFLICT (id) DO UPDATE SET lease_until = $2,
                 judges_from = CASE WHEN nodes.lease_until < $4 THEN $2 ELSE nodes.judges_from END
                 RETURNING (SELECT COUNT(*) FROM nodes n WHERE n.id <> $1 AND n.lease_until > $4)")
            .bind(self.node().0)
            .bind(until)
            .bind(judges_from)
            .bind(time)
            .fetch_one(&mut conn)
            .await?;
        self.feeds.note_peers(peers > 0);
        Ok(())
    }

    /// Removes this node when it stops.
    pub async fn unregister_node(&self) -> Result<()> {
        let mut conn = self.db.connect_vital().await?;
        sql("DELETE FROM nodes WHERE id = $1").bind(self.node().0).execute(&mut conn).await?;
        Ok(())
    }

    /// The tasks that ran on nodes that are gone. Forgets nodes that have been gone for long.
    pub async fn lost_tasks(&self) -> Result<Vec<LostTask>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        type Row = (Uuid, i64, Uuid, Uuid, String);
        sql(concat!(
            "DELETE FROM nodes WHERE lease_until < $1 AND ",
            is_gone!("nodes.id", "$2", "$3")
        ))
        .bind(time - TimeDelta::minutes(10))
        .bind(self.node().0)
        .bind(time)
        .execute(&mut conn)
        .await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT t.id, t.fence, p.id, p.user_id, p.tenant_id FROM tasks t
                 JOIN projects p ON p.id = t.project_id WHERE t.status = 'running' AND ",
            is_gone!("t.node", "$1", "$2")
        ))
        .bind(self.node().0)
        .bind(time)
        .fetch_all(&mut conn)
        .await?;
        let read = |(task, fence, project, owner, tenant)| {
            let owned = Owned::from_row((project, owner, tenant))?;
            Ok(LostTask { id: TaskId(task), owned, fence })
        };
        rows.into_iter().map(read).collect()
    }

    /// Recovers a task that ran on a node that is gone. With `resume`, a task that waited for its
    /// model goes back to its queue: nothing of that step was done. Every other task fails, because
    /// nobody knows how far its last step came.
    pub async fn recover_lost_task(&self, lost: LostTask, resume: bool) -> Result<LostTaskOutcome> {
        self.recover(lost, resume, interrupted).await
    }

    /// Recovers a task that this node has leased and does not run, because its run broke off.
    pub async fn recover_orphaned_task(&self, id: TaskId, resume: bool) -> Result<LostTaskOutcome> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i64, Uuid, Uuid, String)> =
            sql("SELECT t.fence, p.id, p.user_id, p.tenant_id FROM tasks t
                 JOIN projects p ON p.id = t.project_id
                 WHERE t.id = $1 AND t.node = $2 AND t.status = 'running'")
            .bind(id.0)
            .bind(self.node().0)
            .fetch_optional(&mut conn)
            .await?;
        drop(conn);
        let Some((fence, project, owner, tenant)) = row else {
            return Ok(LostTaskOutcome::Recovered);
        };
        let owned = Owned::from_row((project, owner, tenant))?;
        let why = |_: &Task| {
            let detail = "something went wrong on the server; its log says what";
            TaskFailure::new(TaskFailureCode::Interrupted, detail)
        };
        match self.recover(LostTask { id, owned, fence }, resume, why).await {
            Err(Error::NotFound) => Ok(LostTaskOutcome::Recovered),
            outcome => outcome,
        }
    }

    async fn recover(
        &self,
        lost: LostTask,
        resume: bool,
        why: fn(&Task) -> TaskFailure,
    ) -> Result<LostTaskOutcome> {
        let LostTask { id, owned, fence } = lost;
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut task = lock_task(tx, owned.project, id).await?;
                let (now, interruptions): (i64, i32) =
                    sql("SELECT fence, interruptions FROM tasks WHERE id = $1")
                        .bind(id.0)
                        .fetch_one(&mut tx.conn)
                        .await?;
                if task.status != TaskStatus::Running || now != fence {
                    return Ok(LostTaskOutcome::Recovered);
                }
                let resume = resume && interruptions < MAX_INTERRUPTIONS;
                if resume && !has_begun_calls(tx, &task).await? {
                    requeue_interrupted(tx, &owned, &mut task).await?;
                    return Ok(LostTaskOutcome::Resumed);
                }
                let why = why(&task);
                stop(tx, &owned, &mut task, TaskStatus::Failed, why).await?;
                Ok(LostTaskOutcome::Failed)
            })
        })
        .await
    }
}
