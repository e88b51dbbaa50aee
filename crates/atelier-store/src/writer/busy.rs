//! Since when each lane has been busy with its current group.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

#[derive(Clone)]
pub(super) struct BusyLanes(Arc<Mutex<Vec<Option<Instant>>>>);

impl BusyLanes {
    pub(super) fn new(lanes: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; lanes])))
    }

    pub(super) fn set(&self, lane: usize, since: Option<Instant>) {
        self.lanes()[lane] = since;
    }

    /// How many lanes have been busy with one group for longer than `limit`.
    pub(super) fn stuck(&self, limit: Duration) -> usize {
        let is_stuck = |since: &&Instant| since.elapsed() > limit;
        self.lanes().iter().flatten().filter(is_stuck).count()
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
