//! Runs of programs outside this server that work in a conversation's folder. A program begins a
//! run, changes files in the folder with tools of its own, and ends the run; the changes become
//! versions of the agent.
//!
//! A run that its program neither renews nor ends is ended by the server: what it changed is stored.
//! If the server stops meanwhile, the next sync of the folder stores the changes.

use crate::{ConversationWorkspace, Error, Files, Result, Run, SyncReport};
use atelier_core::{ConversationId, RunId};
use serde::Serialize;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use uuid::Uuid;

/// A run that a program has begun.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutsideRun {
    pub run_id: RunId,
    /// The folder on the server's machine that the program works in.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub workspace_path: PathBuf,
    /// How many seconds the run lasts unless it is renewed. Then the server ends it.
    pub lease_seconds: u64,
    /// The result of the sync before the run.
    pub sync: SyncReport,
}

#[derive(Default)]
pub(crate) struct OutsideRuns(Mutex<HashMap<RunId, HeldRun>>);

struct HeldRun {
    conversation: ConversationId,
    run: Run,
    until: Instant,
}

impl OutsideRuns {
    fn take(&self, is_it: impl Fn(RunId, &HeldRun) -> bool) -> Option<Run> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = runs.iter().find(|(id, held)| is_it(**id, held)).map(|(id, _)| *id)?;
        runs.remove(&found).map(|held| held.run)
    }
}

impl ConversationWorkspace {
    /// Syncs the folder and keeps other runs out of it, until the run ends or `lease` has passed.
    pub async fn begin_outside_run(&self, wait: Duration, lease: Duration) -> Result<OutsideRun> {
        let run = self.sync_to_local(wait).await?;
        let (workspace_path, sync) = (run.folder().to_owned(), run.report().clone());
        let run_id = RunId(Uuid::now_v7());
        let held =
            HeldRun { conversation: self.conversation(), run, until: Instant::now() + lease };
        let mut runs = self.files.outside_runs.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(run_id, held);
        Ok(OutsideRun { run_id, workspace_path, lease_seconds: lease.as_secs(), sync })
    }

    /// Gives a run more time, from now.
    pub fn renew_outside_run(&self, run: RunId, lease: Duration) -> Result<()> {
        let mut runs = self.files.outside_runs.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = runs.get_mut(&run).filter(|held| held.conversation == self.conversation());
        held.ok_or(Error::NoSuchRun)?.until = Instant::now() + lease;
        Ok(())
    }

    /// Stores what changed during the run, and ends it.
    pub async fn end_outside_run(&self, run: RunId) -> Result<SyncReport> {
        let is_it =
            |id: RunId, held: &HeldRun| id == run && held.conversation == self.conversation();
        let run = self.files.outside_runs.take(is_it).ok_or(Error::NoSuchRun)?;
        run.end().await
    }
}

impl Files {
    /// Ends the runs that were not renewed in time. Runs until dropped.
    pub(crate) async fn end_expired_runs(&self) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            while let Some(run) = self.outside_runs.take(|_, held| held.until <= now) {
                let conversation = run.conversation();
                match run.end().await {
                    Ok(_) => {
                        tracing::info!(%conversation, "ended a run that was not renewed in time");
                    }
                    Err(error) => {
                        tracing::warn!(%error, %conversation, "changes of a run are not stored \
                            yet; the next sync stores them");
                    }
                }
            }
        }
    }
}
