//! One lock for each conversation, within this process.

use atelier_core::ConversationId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Default)]
pub(crate) struct ConversationLocks(Mutex<HashMap<ConversationId, Arc<AsyncMutex<()>>>>);

/// When there are more locks than this, those that nobody holds are dropped.
const KEPT: usize = 1024;

impl ConversationLocks {
    fn of(&self, conversation: ConversationId) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.len() > KEPT {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(conversation).or_default().clone()
    }

    pub(crate) async fn lock(&self, conversation: ConversationId) -> OwnedMutexGuard<()> {
        self.of(conversation).lock_owned().await
    }

    pub(crate) fn try_lock(&self, conversation: ConversationId) -> Option<OwnedMutexGuard<()>> {
        self.of(conversation).try_lock_owned().ok()
    }
}
