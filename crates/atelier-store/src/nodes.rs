//! The servers that share a database, and the tasks of those that are gone.

use crate::{
    Owned, Result, Store,
    db::{Conn, on},
    situation::database_time,
    tasks::{interrupted, lock_task, stop},
};
use atelier_core::{NodeId, TaskId, TaskStatus};
use chrono::TimeDelta;
use uuid::Uuid;

/// How long a server may be silent before its tasks count as lost.
const LEASE: TimeDelta = TimeDelta::seconds(3);

impl Store {
    /// Says that a server is there, and goes on being there.
    pub async fn node_lives(&self, node: NodeId) -> Result<()> {
        let mut conn = self.db.connect().await?;
        let until = database_time(&mut conn).await? + LEASE;
        on!(&mut conn, |c| sqlx::query(
            "INSERT INTO nodes (id, lease_until) VALUES ($1, $2)
             ON CONFLICT (id) DO UPDATE SET lease_until = $2"
        )
        .bind(node.0)
        .bind(until)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    /// Says that a server is leaving in good order.
    pub async fn node_leaves(&self, node: NodeId) -> Result<()> {
        let mut conn = self.db.connect().await?;
        on!(&mut conn, |c| sqlx::query("DELETE FROM nodes WHERE id = $1")
            .bind(node.0)
            .execute(c)
            .await
            .map(drop))?;
        Ok(())
    }

    /// Fails the tasks that were running on servers that are gone: their step was in flight, and nobody knows how
    /// far it came. Returns how many there were.
    pub async fn recover(&self, node: NodeId) -> Result<usize> {
        let mut conn = self.db.connect().await?;
        // The embedded database has one server at a time: every other is gone.
        let alone = matches!(conn, Conn::Lite(_));
        let time = database_time(&mut conn).await?;
        type Row = (Uuid, i64, Uuid, Uuid, String);
        let rows: Vec<Row> = on!(&mut conn, |c| {
            sqlx::query("DELETE FROM nodes WHERE lease_until < $1 OR ($2 AND id <> $3)")
                .bind(time - TimeDelta::minutes(10))
                .bind(alone)
                .bind(node.0)
                .execute(&mut *c)
                .await?;
            sqlx::query_as(
                "SELECT t.id, t.fence, p.id, p.user_id, p.tenant_id FROM tasks t
                 JOIN projects p ON p.id = t.project_id
                 WHERE t.status = 'running' AND t.node <> $1 AND NOT EXISTS (
                   SELECT 1 FROM nodes n WHERE n.id = t.node AND n.lease_until > $2)",
            )
            .bind(node.0)
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
