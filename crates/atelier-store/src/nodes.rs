//! The servers that share a database, and what those that are gone have left: tasks, and leases on collections and
//! conversations' folders.

use crate::{
    Owned, Result, Store,
    db::{Conn, on},
    rows::database_time,
    tasks::{interrupted, lock_task, stop},
};
use atelier_core::{NodeId, TaskId, TaskStatus};
use chrono::TimeDelta;
use uuid::Uuid;

/// How long a server may be silent before what it holds counts as left.
const LEASE: TimeDelta = TimeDelta::seconds(3);

/// In SQL: whether the server that has something is another one, and gone. One that was silent itself until a moment ago
/// cannot tell: when a database that did not answer anybody comes back, all have been silent. `$holder` has to name its
/// table.
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
    /// Which of the servers that share the database this one is.
    pub fn node(&self) -> NodeId {
        self.feeds.node
    }

    /// To be called by a server that begins: it is there from now on.
    pub async fn register_node(&self) -> Result<()> {
        let mut conn = self.db.connect().await?;
        if let Conn::Lite(conn) = &mut conn {
            // The embedded database has one server at a time: every other is gone.
            sqlx::query("DELETE FROM nodes").execute(&mut **conn).await?;
        }
        drop(conn);
        self.renew_node().await
    }

    /// Says that this server is still there.
    pub async fn renew_node(&self) -> Result<()> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let until = time + LEASE;
        // Whoever is new may have come in the middle of such a silence, unless it is alone.
        let judges_from = if matches!(conn, Conn::Lite(_)) { time } else { until };
        on!(&mut conn, |c| sqlx::query(
            "INSERT INTO nodes (id, lease_until, judges_from) VALUES ($1, $2, $3)
             ON CONFLICT (id) DO UPDATE SET lease_until = $2,
             judges_from = CASE WHEN nodes.lease_until < $4 THEN $2 ELSE nodes.judges_from END"
        )
        .bind(self.node().0)
        .bind(until)
        .bind(judges_from)
        .bind(time)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    /// Says that this server is leaving in good order.
    pub async fn unregister_node(&self) -> Result<()> {
        let mut conn = self.db.connect().await?;
        on!(&mut conn, |c| sqlx::query("DELETE FROM nodes WHERE id = $1")
            .bind(self.node().0)
            .execute(c)
            .await
            .map(drop))?;
        Ok(())
    }

    /// Fails the tasks that were running on servers that are gone: their step was in flight, and nobody knows how
    /// far it came. Returns how many there were.
    pub async fn recover_tasks(&self) -> Result<usize> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        type Row = (Uuid, i64, Uuid, Uuid, String);
        let rows: Vec<Row> = on!(&mut conn, |c| {
            sqlx::query(concat!(
                "DELETE FROM nodes WHERE lease_until < $1 AND ",
                is_gone!("nodes.id", "$2", "$3")
            ))
            .bind(time - TimeDelta::minutes(10))
            .bind(self.node().0)
            .bind(time)
            .execute(&mut *c)
            .await?;
            sqlx::query_as(concat!(
                "SELECT t.id, t.fence, p.id, p.user_id, p.tenant_id FROM tasks t
                 JOIN projects p ON p.id = t.project_id WHERE t.status = 'running' AND ",
                is_gone!("t.node", "$1", "$2")
            ))
            .bind(self.node().0)
            .bind(time)
            .fetch_all(&mut *c)
            .await
        })?;
        drop(conn);
        let found = rows.len();
        for (task, fence, project, owner, tenant) in rows {
            let owned = Owned::from_row((project, owner, tenant))?;
            self.write(owned.owner, move |tx| {
                Box::pin(async move {
                    let mut lost = lock_task(tx, owned.project, TaskId(task)).await?;
                    let (now,): (i64,) = on!(&mut tx.conn, |c| {
                        sqlx::query_as("SELECT fence FROM tasks WHERE id = $1").bind(task).fetch_one(c).await
                    })?;
                    // Another server may have been quicker.
                    if lost.status == TaskStatus::Running && now == fence {
                        let why = interrupted(&lost);
                        stop(tx, &owned, &mut lost, TaskStatus::Failed, why).await?;
                    }
                    Ok(())
                })
            })
            .await?;
        }
        Ok(found)
    }
}
