//! Cancels work that is no longer wanted: a flag to check and a handle to wait on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

/// Clones share one signal: cancelling one cancels all.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    seen: AtomicU64,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Cancel {
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner {
            cancelled: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            reader,
            writer,
        })))
    }

    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        // The byte is never read, so the handle stays readable. A full pipe is readable as well.
        if let Err(error) = rustix::io::write(&self.0.writer, b"!") {
            tracing::debug!(%error, "cancel signal not written");
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// How many directory entries a search has examined, to report progress.
    pub fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, entries: u64) {
        self.0.seen.fetch_add(entries, Ordering::Relaxed);
    }

    /// A handle that is readable after cancellation.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.reader.as_fd()
    }
}
