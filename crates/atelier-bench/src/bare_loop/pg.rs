//! The loop on PostgreSQL, one statement at a time, on as many connections as the server uses for
//! writes.

use super::{Template, name};
use anyhow::Result;
use atelier_testkit::Database;
use sqlx::{
    PgConnection,
    types::{
        Uuid,
        chrono::{DateTime, Utc},
    },
};

/// Number of writer lanes, equal to `PG_LANES` in the store.
const LANES: usize = 4;

pub(crate) struct Lane {
    db: PgConnection,
    template: Template,
    time: DateTime<Utc>,
}

/// Each lane writes for its own user, so that no lane waits for the counter of another.
pub(super) async fn open(database: &Database) -> Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let mut db = database.connect().await;
        let (mut template, time) = template(&mut db).await?;
        template.user = Uuid::now_v7();
        sqlx::query("INSERT INTO users (id, tenant_id, created_at) VALUES ($1, $2, $3)")
            .bind(template.user)
            .bind(&template.tenant)
            .bind(time)
            .execute(&mut db)
            .await?;
        lanes.push(Lane { db, template, time });
    }
    Ok(lanes)
}

impl Lane {
    /// Writes this many projects in one transaction.
    pub(super) async fn commit(&mut self, projects: usize) -> Result<()> {
        let Self { db, template, time } = self;
        sqlx::query("BEGIN").execute(&mut *db).await?;
        let count = (projects * template.events.len()) as i64;
        let (mut number,): (i64,) = sqlx::query_as(
            "UPDATE users SET event_seq = event_seq + $1 WHERE id = $2 RETURNING event_seq - $1",
        )
        .bind(count)
        .bind(template.user)
        .fetch_one(&mut *db)
        .await?;
        for _ in 0..projects {
            let id = Uuid::now_v7();
            sqlx::query(
                "INSERT INTO projects
                 (id, tenant_id, user_id, name, workspace, settings, created_at, updated_at, \
                 event_seq)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8)",
            )
            .bind(id)
            .bind(&template.tenant)
            .bind(template.user)
            .bind(name(id))
            .bind(&template.workspace)
            .bind(&template.settings)
            .bind(*time)
            .bind(template.events.len() as i64)
            .execute(&mut *db)
            .await?;
            for (agent, config) in &template.agents {
                sqlx::query(
                    "INSERT INTO agents (id, project_id, name, status, config, created_at, \
                     updated_at)
                     VALUES ($1, $2, $3, 'active', $4, $5, $5)",
                )
                .bind(Uuid::now_v7())
                .bind(id)
                .bind(agent)
                .bind(config)
                .bind(*time)
                .execute(&mut *db)
                .await?;
            }
            for (seq, (event, data)) in (1i64..).zip(&template.events) {
                number += 1;
                sqlx::query(
                    "INSERT INTO events (project_id, seq, user_id, user_seq, name, data, created_at)
                     VALUES ($1, $2, $3, $4, $5, $6, $7)",
                )
                .bind(id)
                .bind(seq)
                .bind(template.user)
                .bind(number)
                .bind(event)
                .bind(data)
                .bind(*time)
                .execute(&mut *db)
                .await?;
            }
        }
        sqlx::query("COMMIT").execute(&mut *db).await?;
        Ok(())
    }
}

async fn template(db: &mut PgConnection) -> Result<(Template, DateTime<Utc>)> {
    let (project, tenant, user, workspace, settings, time): (Uuid, _, Uuid, _, _, _) =
        sqlx::query_as(
            "SELECT id, tenant_id, user_id, workspace, settings, created_at FROM projects LIMIT 1",
        )
        .fetch_one(&mut *db)
        .await?;
    let agents =
        sqlx::query_as("SELECT name, config FROM agents WHERE project_id = $1 ORDER BY id")
            .bind(project)
            .fetch_all(&mut *db)
            .await?;
    let events =
        sqlx::query_as("SELECT name, data FROM events WHERE project_id = $1 ORDER BY seq LIMIT 5")
            .bind(project)
            .fetch_all(&mut *db)
            .await?;
    let template = Template { tenant, user, workspace, settings, agents, events };
    Ok((template, time))
}
