//! Listening: plain or TLS, with limits on slow peers, until told to stop.

use crate::{App, opening::Prompt, routes};
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

/// How long a peer may take to send the head of a request, where requests are not limited more tightly.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// A server that is listening but not yet serving: its address is known.
pub struct Listening {
    listener: TcpListener,
    metrics: Option<TcpListener>,
    tls: Option<RustlsConfig>,
}

impl Listening {
    /// Binds the addresses and reads the certificate, so that what is wrong is said before anything starts.
    pub async fn bind(address: &str, settings: &crate::Settings) -> io::Result<Self> {
        let tls = match (&settings.tls_cert, &settings.tls_key) {
            (Some(cert), Some(key)) => Some(RustlsConfig::from_pem_file(cert, key).await?),
            (None, None) => None,
            _ => {
                return Err(io::Error::other("tls_cert and tls_key belong together: give both or none"));
            }
        };
        let metrics = settings.metrics_listen.as_deref().map(bind).transpose()?;
        Ok(Self { listener: bind(address)?, metrics, tls })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn url(&self) -> io::Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.address()?))
    }
}

fn bind(address: &str) -> io::Result<TcpListener> {
    let explain =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(explain)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until `stop`, then finishes what is under way within the grace time.
pub async fn serve(listening: Listening, app: App) -> io::Result<()> {
    let (stop, grace) = (app.stop.clone(), app.settings.shutdown_grace);
    let limits =
        Limits { head: app.settings.request_timeout.min(HEAD_TIMEOUT), write: app.settings.write_timeout };
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
    limits: Limits,
    tls: Option<RustlsConfig>,
    stop: CancellationToken,
    grace: Duration,
) -> io::Result<()> {
    // Around the router, because it has to happen before routing.
    let service = NormalizePathLayer::trim_trailing_slash().layer(router);
    let service = ServiceExt::<Request>::into_make_service(service);
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener)?
        .handle(handle.clone())
        .acceptor(Prompt { inner: limits, within: limits.head });
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.head);
    server.http_builder().http2().timer(TokioTimer::new()).keep_alive_interval(Some(HEAD_TIMEOUT));
    let serving = async {
        match tls {
            Some(config) => {
                let acceptor = RustlsAcceptor::new(config).acceptor(limits);
                server.map(|plain| Prompt { inner: acceptor, within: plain.within }).serve(service).await
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

/// Sets what every connection is subject to.
#[derive(Clone, Copy)]
struct Limits {
    head: Duration,
    write: Duration,
}

impl<S> Accept<TcpStream, S> for Limits {
    type Stream = Pin<Box<TimeoutStream<TcpStream>>>;
    type Service = S;
    type Future = Ready<io::Result<(Self::Stream, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Small answers must not wait for more to come.
        if let Err(error) = stream.set_nodelay(true) {
            return ready(Err(error));
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.write));
        ready(Ok((Box::pin(stream), service)))
    }
}
