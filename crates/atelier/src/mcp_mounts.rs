//! What all MCP mounts of `atelier serve` have in common.

use atelier_mcp::{Mount, MountInfo, RunTool, hosts::AllowedHosts, http::Settings};
use atelier_server::McpHandler;
use moka::future::Cache;
use std::{hash::Hash, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How often a waiting host gets a progress notification.
pub(crate) const PROGRESS: Duration = Duration::from_secs(5);
/// MCP sessions that are not used for this long are dropped. Hosts then start new ones.
const IDLE: Duration = Duration::from_secs(60 * 60);
const MAX_MOUNTS: u64 = 10_000;

#[derive(Clone)]
pub(crate) struct Mounts {
    /// The public address of this server.
    pub(crate) url: String,
    pub(crate) max_body: usize,
    pub(crate) stop: CancellationToken,
}

impl Mounts {
    pub(crate) fn mount(&self, info: MountInfo, run: RunTool) -> Mount {
        let settings = Settings {
            // Any host name is allowed, because a page that was redirected here by DNS rebinding
            // has no token.
            allowed_hosts: AllowedHosts::any(),
            allowed_origins: vec![self.url.clone()],
            token: None,
            max_body: self.max_body,
            session_idle: IDLE,
        };
        Mount::new(info, run, settings, &self.stop)
    }
}

/// One mount for each target (project or conversation), so that an MCP session of one is unknown to
/// the others.
pub(crate) fn handler<Target, Id>(
    id: impl Fn(&Target) -> Id + Send + Sync + 'static,
    make: impl Fn(Target) -> Mount + Send + Sync + 'static,
) -> McpHandler<Target>
where
    Target: Send + 'static,
    Id: Hash + Eq + Send + Sync + 'static,
{
    let make = Arc::new(make);
    let mounts: Cache<Id, Arc<Mount>> =
        Cache::builder().time_to_idle(IDLE).max_capacity(MAX_MOUNTS).build();
    Arc::new(move |target, request| {
        let (make, mounts, id) = (make.clone(), mounts.clone(), id(&target));
        Box::pin(async move {
            let mount = mounts.get_with(id, async { Arc::new(make(target)) }).await;
            mount.handle(request).await
        })
    })
}
