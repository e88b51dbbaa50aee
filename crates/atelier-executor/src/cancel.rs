//! What connects running work with whoever waits for it: a flag and a handle by which it is
//! cancelled, and what is known of it before it ends.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::pipe::{PipeFlags, pipe_with};

/// Clones share one signal: cancelling one cancels all.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<Inner>);

/// Takes what a command prints, while it runs.
type Listener = Box<dyn Fn(&[u8]) + Send + Sync>;

struct Inner {
    cancelled: AtomicBool,
    seen: AtomicU64,
    listener: OnceLock<Listener>,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

impl Cancel {
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner {
            cancelled: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            listener: OnceLock::new(),
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

    /// Passes on what a command or script prints, as it comes. Only the first listener counts. It
    /// must not block, because the command waits for it.
    pub fn on_output(&self, listener: impl Fn(&[u8]) + Send + Sync + 'static) {
        if self.0.listener.set(Box::new(listener)).is_err() {
            tracing::debug!("the output of this call has a listener already");
        }
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.0.listener.get().is_some()
    }

    pub(crate) fn printed(&self, bytes: &[u8]) {
        if let Some(listener) = self.0.listener.get().filter(|_| !bytes.is_empty()) {
            listener(bytes);
        }
    }

    /// A handle that is readable after cancellation.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.reader.as_fd()
    }
}
