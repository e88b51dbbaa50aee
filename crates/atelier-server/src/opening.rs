//! A deadline for the first bytes of a connection. hyper waits for them without one, to tell HTTP/1 from
//! HTTP/2; from then on its own limits hold.

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

/// As many bytes as HTTP/2 begins with; after so many, hyper has decided.
const DECIDED: usize = 24;

/// Accepts as `inner` does, and gives up on a peer that does not begin in time.
#[derive(Clone)]
pub(crate) struct Prompt<A> {
    pub(crate) inner: A,
    pub(crate) within: Duration,
}

impl<A, S> Accept<TcpStream, S> for Prompt<A>
where
    A: Accept<TcpStream, S, Future: Send + 'static>,
{
    type Stream = Opening<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, A::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let within = self.within;
        let accepted = self.inner.accept(stream, service);
        async move {
            let (stream, service) = accepted.await?;
            Ok((Opening { stream, read: 0, deadline: Some(Box::pin(sleep(within))) }, service))
        }
        .boxed()
    }
}

pub(crate) struct Opening<S> {
    stream: S,
    read: usize,
    /// Gone once the connection has begun, so that it costs nothing afterwards.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
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
            if self.read >= DECIDED {
                self.deadline = None;
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
