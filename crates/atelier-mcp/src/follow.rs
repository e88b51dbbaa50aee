//! Telling hosts what changed in the workspace: by subscription on 2026-07-28, by session before.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rmcp::RoleServer;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::{Peer, SubscriptionContext};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::uri;
use crate::watch::Change;

pub(crate) type Changes = broadcast::Receiver<Arc<Change>>;

/// What is remembered between requests of a host that has a connection or a session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Paths, relative to the root.
    subscribed: Mutex<HashSet<String>>,
    follower: OnceLock<DropGuard>,
}

impl Session {
    pub(crate) fn is_followed(&self) -> bool {
        self.follower.get().is_some()
    }

    pub(crate) fn add(&self, path: String) {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
    }

    pub(crate) fn remove(&self, path: &str) {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    fn wants(&self, path: &str) -> bool {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
    }

    /// Tells the host about changes until its session ends.
    pub(crate) fn follow(self: &Arc<Self>, changes: Changes, peer: Peer<RoleServer>, root_name: String) {
        let stop = CancellationToken::new();
        if self.follower.set(stop.clone().drop_guard()).is_ok() {
            tokio::spawn(tell_session(Arc::downgrade(self), changes, peer, root_name, stop));
        }
    }
}

async fn tell_session(
    session: Weak<Session>,
    mut changes: Changes,
    peer: Peer<RoleServer>,
    root_name: String,
    stop: CancellationToken,
) {
    while let Some(change) = next(&mut changes, stop.cancelled()).await {
        let Some(session) = session.upgrade() else { return };
        let updated: Vec<&String> = change.updated.iter().filter(|path| session.wants(path)).collect();
        // Held no longer, or the session would wait for its own end.
        drop(session);
        for path in updated {
            let changed = ResourceUpdatedNotificationParam::new(uri::of(&root_name, path));
            told(peer.notify_resource_updated(changed).await);
        }
        if change.list {
            told(peer.notify_resource_list_changed().await);
        }
    }
}

/// Tells a subscriber about its resources, given as path and the name it used.
pub(crate) async fn tell_subscriber(
    mut changes: Changes,
    context: &SubscriptionContext,
    wanted: &[(String, String)],
) {
    let list = context.accepted().resources_list_changed == Some(true);
    while let Some(change) = next(&mut changes, context.cancelled()).await {
        for (_, uri) in wanted.iter().filter(|(path, _)| change.updated.contains(path)) {
            told(context.sink().notify_resource_updated(uri.clone()).await);
        }
        if list && change.list {
            told(context.sink().notify_resource_list_changed().await);
        }
    }
}

async fn next(changes: &mut Changes, stop: impl Future<Output = ()>) -> Option<Arc<Change>> {
    let change = tokio::select! {
        () = stop => return None,
        change = changes.recv() => change,
    };
    match change {
        Ok(change) => Some(change),
        // Which ones were missed is unknown; that something changed is not.
        Err(RecvError::Lagged(_)) => Some(Arc::new(Change { list: true, ..Change::default() })),
        Err(RecvError::Closed) => None,
    }
}

/// A host that went away is told nothing.
pub(crate) fn told<E: std::fmt::Display>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a change was not told");
    }
}
