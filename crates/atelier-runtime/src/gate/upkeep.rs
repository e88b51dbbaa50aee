//! Inputs from the clock: calls whose time is up, machines that have gone silent, old records.

use super::Gate;
use crate::{Error, Result};
use atelier_core::{
    CallId,
    gate::{CallStatus, GateInput, GatedCall},
};
use atelier_store::{Disconnect, Error as StoreError, Owned};
use chrono::{DateTime, TimeDelta, Utc};
use std::time::Duration;

impl Gate {
    /// Removes calls and audit records that were kept long enough. Returns how many calls it
    /// removed.
    pub async fn sweep(&self, now: DateTime<Utc>) -> Result<u64> {
        // A time too long to compute means that nothing is removed.
        let ago = |days: u32| {
            let days = TimeDelta::try_days(days.into());
            days.and_then(|days| now.checked_sub_signed(days)).unwrap_or(DateTime::UNIX_EPOCH)
        };
        Ok(self.store.sweep_calls(ago(self.keep_days), ago(self.keep_audit_days)).await?)
    }

    /// Acts on calls whose deadline has passed, disconnects silent machines, and wakes requests
    /// that wait for calls. Runs until dropped.
    pub async fn run_background(&self) {
        tokio::join!(self.check_periodically(), self.waiters.serve(&self.store));
    }

    async fn check_periodically(&self) {
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (due, silent) =
                tokio::join!(self.act_on_due_calls(), self.disconnect_silent_machines());
            if let Err(error) = due {
                tracing::warn!(%error, "cannot look for calls whose deadline has passed");
            }
            if let Err(error) = silent {
                tracing::warn!(%error, "cannot look for machines that have gone silent");
            }
        }
    }

    async fn disconnect_silent_machines(&self) -> Result<()> {
        // All at the same time, because the writes of one owner may have to wait.
        let silent = self.store.silent_clients().await?;
        let disconnect = silent.into_iter().map(|(owned, client)| async move {
            match self.client_left(&owned, client, Disconnect::LeaseExpired).await {
                Ok(()) => {
                    tracing::info!(project = %owned.project, %client, "a machine has been silent \
                        for too long");
                }
                // The machine came back, or disconnected by itself.
                Err(Error::Store(StoreError::NotFound)) => {}
                // The other silent machines are disconnected anyway.
                Err(error) => tracing::warn!(%error, %client, "cannot disconnect a silent machine"),
            }
        });
        futures::future::join_all(disconnect).await;
        Ok(())
    }

    async fn act_on_due_calls(&self) -> Result<()> {
        // All decisions are made concurrently, so that they share commits.
        let due = self.store.due_calls(256).await?;
        let late = due
            .into_iter()
            .map(|(owned, id)| async move { (self.let_time_pass(&owned, id).await, owned, id) });
        for (late, owned, id) in futures::future::join_all(late).await {
            match late {
                // The project was deleted meanwhile.
                Err(Error::Store(StoreError::NotFound)) => {}
                late => {
                    let status = late?.status;
                    if matches!(status, CallStatus::Expired | CallStatus::Unknown) {
                        tracing::info!(project = %owned.project, call = %id, status = status.as_str(), "the call's time is up");
                    }
                }
            }
        }
        Ok(())
    }

    async fn let_time_pass(&self, owned: &Owned, id: CallId) -> Result<GatedCall> {
        Ok(self.decide(owned, id, GateInput::TimePassed).await?.call)
    }
}
