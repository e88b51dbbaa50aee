//! Wakes requests that wait for a task or a plan to end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct CompletionSignals(Mutex<HashMap<Uuid, Arc<Notify>>>);

pub(crate) struct CompletionSignal<'w> {
    signals: &'w CompletionSignals,
    id: Uuid,
    notify: Arc<Notify>,
}

impl CompletionSignals {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self, id: Uuid) -> CompletionSignal<'_> {
        let notify = self.lock().entry(id).or_default().clone();
        CompletionSignal { signals: self, id, notify }
    }

    pub(crate) fn wake(&self, id: Uuid) {
        if let Some(notify) = self.lock().get(&id) {
            // `notify_waiters` wakes all that wait now; `notify_one` wakes one that is about to
            // wait.
            notify.notify_waiters();
            notify.notify_one();
        }
    }

    pub(crate) fn wake_all(&self) {
        for notify in self.lock().values() {
            notify.notify_waiters();
            notify.notify_one();
        }
    }
}

impl CompletionSignal<'_> {
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for CompletionSignal<'_> {
    fn drop(&mut self) {
        let mut waiting = self.signals.lock();
        // Only the map and this value still refer to it.
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.id);
        }
    }
}
