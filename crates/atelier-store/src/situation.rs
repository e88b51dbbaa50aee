//! How things stand in a project when a step is taken: which machines are there, what is permitted, what its owner set.
//!
//! Read once for a group of writes, which is alone with its owner's rows: what belongs to one owner is written in one
//! lane, on every node. Whoever changes any of it within the group forgets it.

use crate::{
    Error, Result, Tx,
    clients::{Client, clients},
    db::{Conn, on},
    gate::read,
    now,
    projects::corrupt,
};
use atelier_core::{ProjectId, gate::Grant};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde_json::Value;
use std::{sync::Arc, time::Instant};

/// What a step has to know beside the call itself.
#[derive(Debug, Clone)]
pub struct Situation {
    /// The database's time, so that nodes agree.
    pub now: DateTime<Utc>,
    /// Those whose lease is good, the first to connect first: that one runs the calls.
    pub clients: Arc<[Client]>,
    /// The project's permissions that were not withdrawn.
    pub grants: Arc<[Grant]>,
    /// The project's own.
    pub settings: Arc<Value>,
    pub deleted: bool,
}

impl Situation {
    pub fn holder(&self) -> Option<&Client> {
        self.clients.first()
    }
}

impl Tx {
    pub(crate) async fn situation(&mut self, project: ProjectId) -> Result<Situation> {
        let now = self.time().await?;
        if let Some(known) = self.situations.get(&project) {
            return Ok(Situation { now, ..known.clone() });
        }
        let (settings, deleted) = settings(&mut self.conn, project).await?;
        let situation = Situation {
            now,
            clients: clients(&mut self.conn, project, now).await?.into(),
            grants: grants(&mut self.conn, project).await?.into(),
            settings: Arc::new(settings),
            deleted,
        };
        self.situations.insert(project, situation.clone());
        Ok(situation)
    }

    /// Somebody changes what a situation is made of.
    pub(crate) fn forget_situations(&mut self) {
        self.situations.clear();
    }

    /// The database's time, asked for once in a transaction and counted on from there.
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
        // One node: its own clock is the database's.
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
