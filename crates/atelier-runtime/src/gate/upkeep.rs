//! What time decides.

use super::{Gate, decide};
use crate::{Error, Result};
use atelier_core::{
    CallId,
    gate::{CallStatus, GatedCall},
};
use atelier_store::{Decided, Disconnect, Error as StoreError, Owned};
use chrono::{DateTime, TimeDelta, Utc};
use std::time::Duration;

impl Gate {
    /// Removes what was kept long enough; says how many calls.
    pub async fn sweep(&self, now: DateTime<Utc>) -> Result<u64> {
        // Longer than there is time means for ever.
        let ago = |days: u32| {
            let days = TimeDelta::try_days(days.into());
            days.and_then(|days| now.checked_sub_signed(days)).unwrap_or(DateTime::UNIX_EPOCH)
        };
        Ok(self.store.sweep_calls(ago(self.keep_days), ago(self.keep_audit_days)).await?)
    }

    /// Lets time decide what nobody else did, and wakes those who wait for calls. Runs until dropped.
    pub async fn tend(&self) {
        tokio::join!(self.rounds(), self.waiting.serve(&self.store));
    }

    async fn rounds(&self) {
        let mut rounds = tokio::time::interval(Duration::from_millis(500));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let (due, silent) = tokio::join!(self.round(), self.give_up_silent());
            if let Err(error) = due {
                tracing::warn!(%error, "cannot look for calls whose time is up");
            }
            if let Err(error) = silent {
                tracing::warn!(%error, "cannot look for machines that have gone silent");
            }
        }
    }

    async fn give_up_silent(&self) -> Result<()> {
        for (owned, client) in self.store.silent_clients().await? {
            match self.client_left(&owned, client, Disconnect::LeaseExpired).await {
                Ok(()) => tracing::info!(project = %owned.project, %client, "a machine has gone silent"),
                // It came back, or left by itself.
                Err(Error::Store(StoreError::NotFound)) => {}
                // No reason to leave out the others.
                Err(error) => tracing::warn!(%error, %client, "cannot give up a machine that is silent"),
            }
        }
        Ok(())
    }

    async fn round(&self) -> Result<()> {
        // All at once, so that they share commits: however many there are, none waits for the others.
        let due = self.store.due_calls(256).await?;
        let late = due
            .into_iter()
            .map(|(owned, id)| async move { (self.let_time_pass(&owned, id).await, owned, id) });
        for (late, owned, id) in futures::future::join_all(late).await {
            // Of a project that was deleted meanwhile.
            match late {
                Err(Error::Store(StoreError::NotFound)) => {}
                late => {
                    let status = late?.status;
                    if matches!(status, CallStatus::Expired | CallStatus::Unknown) {
                        tracing::info!(project = %owned.project, call = %id, status = status.as_str(), "time is up");
                    }
                }
            }
        }
        Ok(())
    }

    async fn let_time_pass(&self, owned: &Owned, id: CallId) -> Result<GatedCall> {
        self.step_alone(owned, id, |call, now| {
            let events = call.time_passes(now);
            let decided = call.status == CallStatus::Expired && !events.is_empty();
            let audit = decided.then(|| decide::audit(call, "expired", None, None, now));
            Ok(Decided { events, audit, grant: None })
        })
        .await
    }
}
