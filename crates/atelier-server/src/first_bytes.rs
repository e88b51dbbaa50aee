//! A deadline for the first bytes of a connection. hyper waits for them without one, to tell HTTP/1
//! from HTTP/2; after that its own timeouts apply.

use axum_server::accept::Accept;
use futures::{FutureExt, future::BoxFuture};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// The length of the HTTP/2 preface. Once hyper has read that many bytes, it knows the protocol.
const PREFACE: usize = 24;

/// Accepts as `inner` does, and gives up on a peer that sends nothing in time.
#[derive(Clone)]
pub(crate) struct FirstBytesDeadline<A> {
    pub(crate) inner: A,
    pub(crate) within: Duration,
}

impl<A, S> Accept<TcpStream, S> for FirstBytesDeadline<A>
where
    A: Accept<TcpStream, S, Future: Send + 'static>,
{
    type Stream = DeadlineStream<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, A::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let within = self.within;
        let accepted = self.inner.accept(stream, service);
        async move {
            let (stream, service) = accepted.await?;
            Ok((
                DeadlineStream { stream, read: 0, deadline: Some(Box::pin(sleep(within))) },
                service,
            ))
        }
        .boxed()
    }
}

pub(crate) struct DeadlineStream<S> {
    stream: S,
    read: usize,
    /// `None` once the first bytes are there, so that the timer costs nothing afterwards.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(deadline) = &mut self.deadline {
            if read.is_pending() && deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.read += buffer.filled().len() - before;
            if self.read >= PREFACE {
                self.deadline = None;
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
