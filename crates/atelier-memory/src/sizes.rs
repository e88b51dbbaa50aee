//! Keeps memories within their limits, and removes what older versions should not have stored.

use crate::{Error, Memory, Result, indexer::MAX_RETRY_DELAY};
use atelier_core::event::PruneReason;
use atelier_store::{Collection, Error as StoreError, Fullness, Removal};
use std::time::Duration;

const MIN_SWEEP: Duration = Duration::from_millis(10);

impl Memory {
    /// Warns the user at 80 % of an agent's limit and deletes the oldest interactions at 100 %.
    pub(crate) async fn enforce_limit(&self, collection: &Collection) -> Result<()> {
        let store = &self.inner.store;
        match store.check_fullness(collection).await {
            Ok(Fullness::Full { keep }) => {
                let owned = match store.owned_by(collection.owner, collection.project).await {
                    Err(StoreError::NotFound) => return Ok(()),
                    owned => owned?,
                };
                let removed = self
                    .forget(
                        &owned,
                        collection.owned_agent(),
                        &Removal::Beyond(keep),
                        PruneReason::Limit,
                    )
                    .await?;
                if removed > 0 {
                    let agent = collection.agent;
                    tracing::info!(%agent, removed, "a memory was full; its oldest part is \
                        deleted");
                }
                Ok(())
            }
            // The agent was deleted meanwhile.
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes secrets from memories that older versions stored. Once all are clean it looks again
    /// at the interval of the size checks, because a node of an older version may still be running.
    pub(crate) async fn run_clean_up(&self) {
        let mut pause = Duration::from_millis(250);
        loop {
            match self.inner.store.clean_memory().await {
                Ok(true) => pause = Duration::from_millis(250),
                Ok(false) => tokio::time::sleep(self.inner.settings.sweep.max(MIN_SWEEP)).await,
                Err(error) => {
                    tracing::warn!(%error, "old memories cannot be cleaned at the moment");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    /// Checks the sizes of the memories of all agents at the configured interval.
    pub(crate) async fn run_size_checks(&self) {
        let mut checks = tokio::time::interval(self.inner.settings.sweep.max(MIN_SWEEP));
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let check_all = async {
                for collection in self.inner.store.collections().await? {
                    self.enforce_limit(&collection).await?;
                }
                Ok::<_, Error>(())
            };
            if let Err(error) = check_all.await {
                tracing::warn!(%error, "cannot check the sizes of memories");
            }
        }
    }
}
