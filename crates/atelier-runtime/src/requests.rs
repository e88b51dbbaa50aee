//! The requests in a worker space: how many run at once, since when, and how to end them.

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

/// Counts the requests in a worker space and limits how many run at the same time.
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
    /// When the request last made progress.
    since: Instant,
    /// How long it may take until it makes progress again, beyond the limit for all requests.
    allowed: Duration,
    reported: bool,
}

impl RunningRequest {
    fn hangs(&self, limit: Duration) -> bool {
        self.since.elapsed() > limit.saturating_add(self.allowed)
    }
}

/// A request that runs in a worker space, until this value is dropped.
pub struct TrackedRequest {
    tracker: Arc<RequestTracker>,
    number: u64,
    _slot: OwnedSemaphorePermit,
}

impl TrackedRequest {
    /// Records that the request has made progress, and how long the next progress may take: a model
    /// that uses the time which it was given does not hang.
    pub(crate) fn progress(&self, allowed: Duration) {
        if let Some(request) = self.tracker.running().get_mut(&self.number) {
            (request.since, request.allowed, request.reported) = (Instant::now(), allowed, false);
        }
    }

    /// Runs `work`, unless the space is reset first.
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

    /// Records that the space was used.
    pub(crate) fn touch(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits for a free slot. The request counts as running until the returned value is dropped.
    pub(crate) async fn begin(self: &Arc<Self>, what: String) -> Result<TrackedRequest> {
        self.touch();
        if self.stop.is_cancelled() {
            return Err(Error::SpaceClosed);
        }
        let slot = match self.slots.clone().try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => self.wait_for_slot().await?,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (since, allowed) = (Instant::now(), Duration::ZERO);
        self.running().insert(number, RunningRequest { what, since, allowed, reported: false });
        Ok(TrackedRequest { tracker: self.clone(), number, _slot: slot })
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
            slot = self.slots.clone().acquire_owned() => slot.map_err(|_| Error::SpaceClosed),
        }
    }

    pub(crate) fn active(&self) -> usize {
        self.running().len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How long the space has not been used.
    pub(crate) fn idle_for(&self) -> Duration {
        if self.active() + self.waiting() > 0 {
            return Duration::ZERO;
        }
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// How many requests make no progress for longer than `limit` beyond what they are allowed.
    pub(crate) fn hung(&self, limit: Duration) -> usize {
        self.running().values().filter(|request| request.hangs(limit)).count()
    }

    /// Requests that hang and were not reported before.
    pub(crate) fn newly_hung(&self, limit: Duration) -> Vec<String> {
        let mut running = self.running();
        let hung = running.values_mut().filter(|request| !request.reported && request.hangs(limit));
        hung.map(|request| {
            request.reported = true;
            request.what.clone()
        })
        .collect()
    }

    /// Waits at most `grace` for running requests, then ends the rest. Returns how many were ended.
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
        // After the timeout, `end` counts the requests that are still running.
        drop(tokio::time::timeout(grace, idle).await);
        self.end()
    }

    /// Ends all requests immediately. Returns how many there were.
    pub(crate) fn end(&self) -> usize {
        let ended = self.active();
        self.stop.cancel();
        ended
    }
}

/// Counts a waiting request until it is dropped.
struct WaitingGuard<'w>(&'w AtomicUsize);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
