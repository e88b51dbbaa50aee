//! Configuration of the HTTP server.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How long a request may take until its answer begins.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// The largest body of a JSON request, in bytes.
    pub body_limit: usize,
    /// The largest body that may hold a file, in bytes: tool calls and their results.
    pub file_body_limit: usize,
    /// How many requests a user may begin in a second on one node; 0 means as many as they like.
    pub user_requests_per_second: u32,
    /// How many requests of a user may run at a time on one node. A request that waits for a tool
    /// call runs.
    pub user_requests: usize,
    /// How many event streams a user may have open on one node. It is never more than three eighths
    /// of the files that the process may open.
    pub user_streams: usize,
    /// How often an event stream sends a heartbeat.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// A reader that accepts no bytes for this long is disconnected. It can resume where it was.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// How long a stopping node goes on serving while `/ready` answers 503, so that a balancer
    /// sends requests to other nodes. A node without other nodes stops at once.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    /// How long a stopping server waits for open requests.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
    /// The address that people use to reach this server, for links. The default is the address it
    /// listens on.
    pub public_url: Option<String>,
    /// A separate address for `/metrics`. If it is set, the main address does not answer
    /// `/metrics`.
    pub metrics_listen: Option<String>,
    /// The certificate chain (PEM), to serve over TLS without a proxy.
    pub tls_cert: Option<PathBuf>,
    /// The private key (PEM) of the certificate.
    pub tls_key: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            body_limit: 2 * 1024 * 1024,
            // 100 MB in base64 or with every other byte escaped.
            file_body_limit: 210 * 1024 * 1024,
            user_requests_per_second: 64_000,
            user_requests: 1000,
            user_streams: 500,
            heartbeat: Duration::from_secs(15),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
            public_url: None,
            metrics_listen: None,
            tls_cert: None,
            tls_key: None,
        }
    }
}
