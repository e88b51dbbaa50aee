//! Reads what decisions about tool calls depend on: connected machines, permissions and restrictions.
//!
//! A context is read once for a group of writes. All writes of one owner use the same lane on every node,
//! so nothing else changes the owner's rows meanwhile. A write that changes them drops the contexts.

use crate::{
    Error, Result, Tx,
    clients::clients,
    db::{Conn, on},
    gate::read,
    now,
    projects::corrupt,
};
use atelier_core::{
    ProjectId,
    gate::{DecisionContext, Grant},
    policy::Restrictions,
};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde_json::Value;
use std::{sync::Arc, time::Instant};

impl Tx {
    pub(crate) async fn decision_context(&mut self, project: ProjectId) -> Result<DecisionContext> {
        let now = self.time().await?;
        if let Some(known) = self.contexts.get(&project) {
            return Ok(DecisionContext { now, ..known.clone() });
        }
        let (settings, deleted) = settings(&mut self.conn, project).await?;
        let restrictions = Restrictions::from_setting(settings.get("policy"));
        let context = DecisionContext {
            now,
            clients: clients(&mut self.conn, project, now).await?.into(),
            grants: grants(&mut self.conn, project).await?.into(),
            restrictions: restrictions.map(|own| own.map(Arc::new)),
            deleted,
        };
        self.contexts.insert(project, context.clone());
        Ok(context)
    }

    /// Drops the contexts, because this write changes what they are made of.
    pub(crate) fn forget_contexts(&mut self) {
        self.contexts.clear();
    }

    /// The database's time: asked for once in a transaction, and advanced by the local clock from there.
    pub(crate) async fn time(&mut self) -> Result<DateTime<Utc>, sqlx::Error> {
        let (time, asked) = match self.clock {
            Some(clock) => clock,
            None => *self.clock.insert((database_time(&mut self.conn).await?, Instant::now())),
        };
        let passed = TimeDelta::from_std(asked.elapsed()).unwrap_or(TimeDelta::zero());
        Ok((time + passed).trunc_subsecs(6))
    }
}

pub(crate) async fn database_time(conn: &mut Conn) -> Result<DateTime<Utc>, sqlx::Error> {
    match conn {
        // SQLite has one node, whose clock counts.
        Conn::Lite(_) => Ok(now()),
        Conn::Pg(conn) => {
            let (time,): (DateTime<Utc>,) =
                sqlx::query_as("SELECT clock_timestamp()").fetch_one(&mut **conn).await?;
            Ok(time.trunc_subsecs(6))
        }
    }
}

pub(crate) async fn grants(conn: &mut Conn, project: ProjectId) -> Result<Vec<Grant>> {
    let rows: Vec<(String,)> = on!(conn, |c| sqlx::query_as(
        "SELECT record FROM grants WHERE project_id = $1 AND withdrawn_at IS NULL ORDER BY id"
    )
    .bind(project.0)
    .fetch_all(c)
    .await)?;
    rows.into_iter().map(read).collect()
}

async fn settings(conn: &mut Conn, project: ProjectId) -> Result<(Value, bool)> {
    let row: Option<(String, bool)> = on!(conn, |c| {
        sqlx::query_as("SELECT settings, deleted_at IS NOT NULL FROM projects WHERE id = $1")
            .bind(project.0)
            .fetch_optional(c)
            .await
    })?;
    let (settings, deleted) = row.ok_or(Error::NotFound)?;
    Ok((corrupt(serde_json::from_str(&settings))?, deleted))
}
