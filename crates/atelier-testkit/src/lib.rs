//! A real `atelier serve` on a free port with temporary data, users with tokens, readers that wait
//! for events instead of for time, and a model with scripted answers.

#![expect(
    clippy::disallowed_methods,
    reason = "starts the program under test, which is no tool call"
)]
#![expect(clippy::unwrap_used, reason = "a test kit fails by panicking")]

mod events;
mod hostile;
mod model;
mod postgres;
mod qdrant;
mod s3;
mod server;
mod user;

pub use events::{Events, SseEvent};
pub use hostile::{Harm, Hostile};
pub use model::{Asked, Reply, ScriptedModel};
pub use postgres::{Database, PostgresServer};
pub use qdrant::{Qdrant, qdrant_url};
pub use s3::Bucket;
pub use server::{Backend, Builder, Server, Sql};
pub use user::{Answer, User, answer, file};

use std::{path::Path, time::Duration};

/// How long a test waits before it fails. It is never how long something takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Asks again until there is an answer, for states that no event reports.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The address of a service, from the environment (as `make test` sets it) or from the file that
/// `make services` has written.
pub(crate) fn service(variable: &str, what: &str) -> String {
    if let Ok(value) = std::env::var(variable) {
        return value;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.services/env");
    let written = std::fs::read_to_string(file).unwrap_or_default();
    let found = written.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {what} for tests: run `make services` first")).to_owned()
}

pub(crate) fn free_port() -> u16 {
    use std::net::{Ipv4Addr, TcpListener};
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// The address of the real Redis that `make services` starts, as `host:port`.
pub fn redis_address() -> String {
    let url = service("ATELIER_TEST_REDIS_URL", "Redis");
    url.strip_prefix("redis://").unwrap().trim_end_matches('/').to_owned()
}

/// An HTTP client for tests, without proxies and redirects.
pub fn http() -> reqwest::Client {
    // The first caller installs the provider. All callers want the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .build()
        .unwrap()
}
