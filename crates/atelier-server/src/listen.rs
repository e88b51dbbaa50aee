//! Listening: plain or TLS, with limits for slow peers, until the server stops.

use crate::{App, first_bytes::FirstBytesDeadline, routes};
use axum::{Router, ServiceExt, extract::Request};
use axum_server::{
    Handle,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use std::{
    future::{Ready, ready},
    io,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    time::Duration,
};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::Layer;
use tower_http::normalize_path::NormalizePathLayer;

/// How long a peer may take to send the head of a request, unless `request_timeout` is shorter.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// A server that listens but does not serve yet: its address is known.
pub struct Listening {
    listener: TcpListener,
    metrics: Option<TcpListener>,
    tls: Option<RustlsConfig>,
}

impl Listening {
    /// Binds the addresses and reads the certificate, so that mistakes are reported before anything
    /// starts.
    pub async fn bind(address: &str, settings: &crate::Settings) -> io::Result<Self> {
        let tls = match (&settings.tls_cert, &settings.tls_key) {
            (Some(cert), Some(key)) => Some(RustlsConfig::from_pem_file(cert, key).await?),
            (None, None) => None,
            _ => {
                return Err(io::Error::other(
                    "tls_cert and tls_key belong together: set both or neither",
                ));
            }
        };
        let metrics = settings.metrics_listen.as_deref().map(bind).transpose()?;
        Ok(Self { listener: bind(address)?, metrics, tls })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }
}

fn bind(address: &str) -> io::Result<TcpListener> {
    let explain = |error: io::Error| {
        let is_port = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit());
        let fix = match is_port {
            true => format!("it needs a host; write 127.0.0.1:{address}"),
            false => error.to_string(),
        };
        io::Error::new(error.kind(), format!("cannot listen on {address}: {fix}"))
    };
    let listener = TcpListener::bind(address).map_err(explain)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until the app stops, then finishes open requests within the grace period.
pub async fn serve(listening: Listening, app: App) -> io::Result<()> {
    let (stop, grace) = (app.stop.clone(), app.settings.shutdown_grace);
    let limits = ConnectionLimits {
        head: app.settings.request_timeout.min(HEAD_TIMEOUT),
        write: app.settings.write_timeout,
    };
    let router = routes::all(app.clone());
    let main = run(listening.listener, router, limits, listening.tls, stop.clone(), grace);
    let metrics = async {
        match listening.metrics {
            Some(listener) => {
                let router = routes::metrics().with_state(app.clone());
                run(listener, router, limits, None, stop, grace).await
            }
            None => Ok(()),
        }
    };
    tokio::try_join!(main, metrics)?;
    Ok(())
}

async fn run(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    tls: Option<RustlsConfig>,
    stop: CancellationToken,
    grace: Duration,
) -> io::Result<()> {
    // Around the router, because paths must be normalized before routing.
    let service = NormalizePathLayer::trim_trailing_slash().layer(router);
    let service = ServiceExt::<Request>::into_make_service_with_connect_info::<SocketAddr>(service);
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener)?
        .handle(handle.clone())
        .acceptor(FirstBytesDeadline { inner: limits, within: limits.head });
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.head);
    server.http_builder().http2().timer(TokioTimer::new()).keep_alive_interval(Some(HEAD_TIMEOUT));
    let serving = async {
        match tls {
            Some(config) => {
                let acceptor = RustlsAcceptor::new(config).acceptor(limits);
                let with_tls = server
                    .map(|plain| FirstBytesDeadline { inner: acceptor, within: plain.within });
                with_tls.serve(service).await
            }
            None => server.serve(service).await,
        }
    };
    let stopping = async {
        stop.cancelled().await;
        handle.graceful_shutdown(Some(grace));
    };
    let (served, ()) = tokio::join!(serving, stopping);
    served
}

/// Timeouts of every connection.
#[derive(Clone, Copy)]
struct ConnectionLimits {
    head: Duration,
    write: Duration,
}

impl<S> Accept<TcpStream, S> for ConnectionLimits {
    type Stream = Pin<Box<TimeoutStream<TcpStream>>>;
    type Service = S;
    type Future = Ready<io::Result<(Self::Stream, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Small answers must not wait until more bytes fill a packet.
        if let Err(error) = stream.set_nodelay(true) {
            return ready(Err(error));
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.write));
        ready(Ok((Box::pin(stream), service)))
    }
}
