//! One lock a conversation, on this machine.

use atelier_core::ConversationId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Default)]
pub(crate) struct Locks(Mutex<HashMap<ConversationId, Arc<AsyncMutex<()>>>>);

/// Locks that nobody holds are forgotten when there are so many.
const KEPT: usize = 1024;

impl Locks {
    fn of(&self, conversation: ConversationId) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.len() > KEPT {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(conversation).or_default().clone()
    }

    pub(crate) async fn enter(&self, conversation: ConversationId) -> OwnedMutexGuard<()> {
        self.of(conversation).lock_owned().await
    }

    pub(crate) fn try_enter(&self, conversation: ConversationId) -> Option<OwnedMutexGuard<()>> {
        self.of(conversation).try_lock_owned().ok()
    }
}
