//! What the MCP mounts of `atelier serve` share, whatever they stand before.

use atelier_mcp::{Mount, Offer, Run, http::Settings};
use atelier_server::McpHandler;
use moka::future::Cache;
use std::{hash::Hash, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How often a host that waits hears of it.
pub(crate) const PROGRESS: Duration = Duration::from_secs(5);
/// The sessions of a place nobody asked anything for so long are forgotten; hosts begin new ones.
const IDLE: Duration = Duration::from_secs(60 * 60);
const PLACES: u64 = 10_000;

#[derive(Clone)]
pub(crate) struct Mounts {
    /// How people reach this server.
    pub(crate) url: String,
    pub(crate) max_body: usize,
    pub(crate) stop: CancellationToken,
}

impl Mounts {
    pub(crate) fn mount(&self, offer: Offer, run: Run) -> Mount {
        let settings = Settings {
            // A page that was led here by a false name has no token.
            allowed_hosts: vec!["*".to_owned()],
            allowed_origins: vec![self.url.clone()],
            token: None,
            max_body: self.max_body,
            session_idle: IDLE,
        };
        Mount::new(offer, run, settings, &self.stop)
    }
}

/// One mount a place, so that a session of one is unknown to all others.
pub(crate) fn door<Place, Id>(
    id: impl Fn(&Place) -> Id + Send + Sync + 'static,
    make: impl Fn(Place) -> Mount + Send + Sync + 'static,
) -> McpHandler<Place>
where
    Place: Send + 'static,
    Id: Hash + Eq + Send + Sync + 'static,
{
    let make = Arc::new(make);
    let mounts: Cache<Id, Arc<Mount>> = Cache::builder().time_to_idle(IDLE).max_capacity(PLACES).build();
    Arc::new(move |place, request| {
        let (make, mounts, id) = (make.clone(), mounts.clone(), id(&place));
        Box::pin(async move {
            let mount = mounts.get_with(id, async { Arc::new(make(place)) }).await;
            mount.handle(request).await
        })
    })
}
