//! Shares the process's file handles between connections and calls, so that a call never fails
//! because others have too many handles open. Connections and calls beyond their share wait.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handles for standard input and output, the runtime, the listener and the watched directory.
const RESERVED: usize = 16;
/// The most handles that one call has open at the same time.
const PER_CALL: usize = 8;
/// How many calls run at the same time. More would only compete for the disk.
const MAX_CALLS: usize = 256;

/// How many connections and calls may be open at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandleShares {
    pub(crate) connections: usize,
    pub(crate) calls: usize,
}

impl HandleShares {
    /// The shares of this process's limit.
    pub(crate) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        let free = limit.saturating_sub(RESERVED);
        let connections = (free / 2).clamp(1, Semaphore::MAX_PERMITS);
        Self { connections, calls: (free / 2 / PER_CALL).clamp(1, MAX_CALLS) }
    }
}

/// A listener that accepts a connection only when a place in the share of connections is free.
pub(crate) struct LimitedListener<L> {
    listener: L,
    free: Arc<Semaphore>,
}

impl<L> LimitedListener<L> {
    pub(crate) fn new(listener: L, connections: usize) -> Self {
        Self { listener, free: Arc::new(Semaphore::new(connections)) }
    }
}

impl<L: Listener> Listener for LimitedListener<L> {
    type Io = LimitedConnection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed. If it were, the connection would not be counted.
        let permit = self.free.clone().acquire_owned().await.ok();
        let (io, address) = self.listener.accept().await;
        (LimitedConnection { io, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that frees its place when it is dropped.
pub(crate) struct LimitedConnection<T> {
    io: T,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T: AsyncRead + Unpin> AsyncRead for LimitedConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LimitedConnection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_into_the_limit() {
        for limit in [0, 1, 20, 64, 256, 1024, 65_536, usize::MAX] {
            let shares = HandleShares::of(limit);
            assert!(shares.connections >= 1 && shares.calls >= 1, "{limit}: {shares:?}");
            if limit >= 64 {
                let used = RESERVED.saturating_add(shares.connections) + shares.calls * PER_CALL;
                assert!(used <= limit, "{limit}: {shares:?}");
            }
        }
    }
}
