//! A submitted write: how it uses the database, whether it is begun, and who waits for it.

use super::{Tx, owner_locks::OwnerLock};
use crate::{Error, Result, db::DbError, pending::PendingRows, read_cache::Prefetch};
use futures::{FutureExt, future::BoxFuture};
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio::sync::oneshot;

/// Decides whether a write is begun or given up, of which exactly one happens.
#[derive(Clone, Default)]
pub(super) struct OnceFlag(Arc<AtomicBool>);

impl OnceFlag {
    /// Whether this is the first call.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How a write uses the database.
#[derive(Clone, Copy)]
pub(super) enum WriteMode {
    Direct,
    /// A direct write that leaves what the group has read valid.
    DirectWithCache,
    /// A deferred write, and the row that its group reads for it, if any.
    Deferred(Option<Prefetch>),
}

/// A submitted write, its result type hidden.
pub(super) trait Job: Send {
    fn mode(&self) -> WriteMode;
    fn lock(&self) -> OwnerLock;
    /// Whether the write can still begin: it has neither begun nor been given up, and somebody waits
    /// for its answer.
    fn can_begin(&self) -> bool;
    /// Whether the write waits on if it cannot be begun.
    fn is_patient(&self) -> bool;
    /// Runs the write. Returns its rows; `None` if it failed.
    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, Option<PendingRows>>;
    /// Sends the answer of the write.
    fn settle(self: Box<Self>, commit: Result<(), Arc<DbError>>);
}

pub(super) struct Write<T, F> {
    pub(super) work: Option<F>,
    pub(super) mode: WriteMode,
    pub(super) lock: OwnerLock,
    pub(super) begun: OnceFlag,
    pub(super) patient: bool,
    pub(super) submitted: Instant,
    pub(super) outcome: Option<Result<T>>,
    pub(super) reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send + 'static,
    F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<(T, PendingRows)>> + Send + 'static,
{
    fn mode(&self) -> WriteMode {
        self.mode
    }

    fn lock(&self) -> OwnerLock {
        self.lock
    }

    fn can_begin(&self) -> bool {
        !self.reply.is_closed() && !self.begun.is_taken()
    }

    fn is_patient(&self) -> bool {
        self.patient
    }

    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, Option<PendingRows>> {
        Box::pin(async move {
            // Nobody waits for the answer any more, so nobody was promised that it happens.
            if self.reply.is_closed() || !self.begun.take() {
                return None;
            }
            let work = self.work.take()?;
            metrics::histogram!("atelier_lane_wait_seconds")
                .record(self.submitted.elapsed().as_secs_f64());
            // A panic in one write must not end its lane, and with it every later write.
            let outcome = AssertUnwindSafe(work(tx)).catch_unwind().await;
            let outcome =
                outcome.unwrap_or_else(|_| Err(Error::Corrupt("a write panicked".into())));
            let (outcome, rows) = match outcome {
                Ok((answer, rows)) => (Ok(answer), Some(rows)),
                Err(error) => (Err(error), None),
            };
            self.outcome = Some(outcome);
            rows
        })
    }

    fn settle(self: Box<Self>, commit: Result<(), Arc<DbError>>) {
        let outcome = match (commit, self.outcome) {
            // A write that failed by itself keeps its own error, whatever became of the group.
            (_, Some(Err(error))) => Err(error),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Err(error), _) => Err(Error::Commit(error)),
            (Ok(()), None) => Err(Error::Closed),
        };
        // Nobody may wait for the answer any more; the write stands all the same.
        drop(self.reply.send(outcome));
    }
}
