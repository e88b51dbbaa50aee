//! Those who wait for a task or a plan to end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<Uuid, Arc<Notify>>>);

pub(crate) struct Waiter<'w> {
    waiters: &'w Waiters,
    work: Uuid,
    notify: Arc<Notify>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enlist(&self, work: Uuid) -> Waiter<'_> {
        let notify = self.lock().entry(work).or_default().clone();
        Waiter { waiters: self, work, notify }
    }

    pub(crate) fn wake(&self, work: Uuid) {
        if let Some(notify) = self.lock().get(&work) {
            // One permit is kept for whoever looks just now; all who sleep are woken.
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

impl Waiter<'_> {
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // The map's own and this one.
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.work);
        }
    }
}
