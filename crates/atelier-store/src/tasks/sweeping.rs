//! Removing tasks that ended long ago.

use crate::{Result, Store, db::sql, rows::first_id};
use atelier_core::UserId;
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// How many tasks one transaction removes, so that other writes get their turn.
const BATCH: i64 = 500;

/// SQL condition: the task `t` was made before the id `$first`, has ended, and did not run after
/// `$before`. The tasks of a plan are removed together, when the plan has ended.
macro_rules! is_old {
    ($first:literal, $before:literal) => {
        concat!(
            "(t.id < ",
            $first,
            " AND t.status IN ('completed', 'failed', 'cancelled')
              AND (t.started_at IS NULL OR t.started_at < ",
            $before,
            ") AND (t.plan_id IS NULL OR NOT (
                EXISTS (SELECT 1 FROM plans p WHERE p.id = t.plan_id
                        AND p.status NOT IN ('completed', 'failed', 'cancelled'))
                OR EXISTS (SELECT 1 FROM tasks o WHERE o.plan_id = t.plan_id
                           AND (o.id >= ",
            $first,
            " OR o.started_at >= ",
            $before,
            ")))))"
        )
    };
}

impl Store {
    /// Removes tasks that ended before this time, with their journals and plans. The messages stay
    /// in their conversations. Returns how many tasks it removed.
    pub async fn sweep_tasks(&self, before: DateTime<Utc>) -> Result<u64> {
        let first = first_id(before);
        let mut conn = self.db.connect().await?;
        let projects: Vec<(Uuid, Uuid)> = sql(concat!(
            "SELECT p.id, p.user_id FROM projects p WHERE EXISTS (
                     SELECT 1 FROM tasks t WHERE t.project_id = p.id AND ",
            is_old!("$1", "$2"),
            ")"
        ))
        .bind(first)
        .bind(before)
        .fetch_all(&mut conn)
        .await?;
        drop(conn);
        let mut removed = 0;
        for (project, owner) in projects {
            loop {
                let batch = self.sweep_batch(project, UserId(owner), first, before).await?;
                removed += batch;
                if batch < BATCH as u64 {
                    break;
                }
            }
        }
        Ok(removed)
    }

    async fn sweep_batch(
        &self,
        project: Uuid,
        owner: UserId,
        first: Uuid,
        before: DateTime<Utc>,
    ) -> Result<u64> {
        self.write(owner, move |tx| {
            Box::pin(async move {
                let old: Vec<(Uuid,)> = sql(concat!(
                    "SELECT t.id FROM tasks t WHERE t.project_id = $3 AND ",
                    is_old!("$1", "$2"),
                    " ORDER BY t.id LIMIT $4"
                ))
                .bind(first)
                .bind(before)
                .bind(project)
                .bind(BATCH)
                .fetch_all(&mut tx.conn)
                .await?;
                for (id,) in &old {
                    for table in [
                        "DELETE FROM withheld_steps WHERE task_id = $1",
                        "DELETE FROM task_steps WHERE task_id = $1",
                        "DELETE FROM tasks WHERE id = $1",
                    ] {
                        sql(table).bind(*id).execute(&mut tx.conn).await?;
                    }
                }
                sql("DELETE FROM plans WHERE project_id = $1 AND id < $2
                         AND status IN ('completed', 'failed', 'cancelled')
                         AND NOT EXISTS (SELECT 1 FROM tasks WHERE plan_id = plans.id)")
                .bind(project)
                .bind(first)
                .execute(&mut tx.conn)
                .await?;
                Ok(old.len() as u64)
            })
        })
        .await
    }
}
