//! What is going on in a worker space: how much at once, since when, and the means to end it.

use crate::{Error, Result};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) struct RequestTracker {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    max_waiting: usize,
    running: Mutex<HashMap<u64, RunningRequest>>,
    next: AtomicU64,
    idle: Notify,
    last_use: Mutex<Instant>,
    stop: CancellationToken,
}

struct RunningRequest {
    what: String,
    since: Instant,
    reported: bool,
}

/// Something running in a worker space; it is over when this is dropped.
pub struct TrackedRequest {
    tracker: Arc<RequestTracker>,
    number: u64,
    _slot: OwnedSemaphorePermit,
}

impl TrackedRequest {
    /// Runs `work`, or gives it up when the space is reset.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.tracker.stop.cancelled() => Err(Error::SpaceClosed),
            done = work => Ok(done),
        }
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        let mut running = self.tracker.running();
        running.remove(&self.number);
        let idle = running.is_empty();
        drop(running);
        self.tracker.touch();
        if idle {
            self.tracker.idle.notify_waiters();
        }
    }
}

impl RequestTracker {
    pub(crate) fn new(max_active: usize, max_waiting: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(max_active)),
            waiting: AtomicUsize::new(0),
            max_waiting,
            running: Mutex::default(),
            next: AtomicU64::new(0),
            idle: Notify::new(),
            last_use: Mutex::new(Instant::now()),
            stop: CancellationToken::new(),
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u64, RunningRequest>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts as use, though nothing runs.
    pub(crate) fn touch(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits for slots, then counts as running until the task is dropped.
    pub(crate) async fn begin(self: &Arc<Self>, what: String) -> Result<TrackedRequest> {
        self.touch();
        if self.stop.is_cancelled() {
            return Err(Error::SpaceClosed);
        }
        let slots = match self.slots.clone().try_acquire_owned() {
            Ok(slots) => slots,
            Err(_) => self.wait_for_slot().await?,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running().insert(number, RunningRequest { what, since: Instant::now(), reported: false });
        Ok(TrackedRequest { tracker: self.clone(), number, _slot: slots })
    }

    async fn wait_for_slot(&self) -> Result<OwnedSemaphorePermit> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingGuard(&self.waiting);
        if waiting >= self.max_waiting {
            return Err(Error::Busy { waiting });
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Error::SpaceClosed),
            slots = self.slots.clone().acquire_owned() => slots.map_err(|_| Error::SpaceClosed),
        }
    }

    pub(crate) fn active(&self) -> usize {
        self.running().len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// For how long nothing has been asked of the space.
    pub(crate) fn idle_for(&self) -> Duration {
        if self.active() + self.waiting() > 0 {
            return Duration::ZERO;
        }
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// How many have been running for longer than `limit`.
    pub(crate) fn hung(&self, limit: Duration) -> usize {
        self.running().values().filter(|task| task.since.elapsed() > limit).count()
    }

    /// Those among them that were not reported before.
    pub(crate) fn newly_hung(&self, limit: Duration) -> Vec<String> {
        let mut running = self.running();
        let hung = running.values_mut().filter(|task| !task.reported && task.since.elapsed() > limit);
        hung.map(|task| {
            task.reported = true;
            task.what.clone()
        })
        .collect()
    }

    /// Waits until nothing runs, at most `grace`; then ends what is left. Returns how many that were.
    pub(crate) async fn finish(&self, grace: Duration) -> usize {
        let idle = async {
            loop {
                let notified = self.idle.notified();
                if self.active() == 0 {
                    return;
                }
                notified.await;
            }
        };
        // Out of time is an answer too: it is in the count.
        drop(tokio::time::timeout(grace, idle).await);
        self.end()
    }

    /// Ends everything at once.
    pub(crate) fn end(&self) -> usize {
        let ended = self.active();
        self.stop.cancel();
        ended
    }
}

struct WaitingGuard<'w>(&'w AtomicUsize);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
