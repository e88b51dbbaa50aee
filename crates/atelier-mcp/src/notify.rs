//! Notifies hosts of changes in the workspace: by subscription since revision 2026-07-28, by
//! session before.

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

/// State that is kept between the requests of a host with a connection or a session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The paths of subscribed resources, relative to the root.
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

    /// Notifies the host of changes until its session ends.
    pub(crate) fn follow(
        self: &Arc<Self>,
        changes: Changes,
        peer: Peer<RoleServer>,
        root_name: String,
    ) {
        let stop = CancellationToken::new();
        if self.follower.set(stop.clone().drop_guard()).is_ok() {
            tokio::spawn(notify_session(Arc::downgrade(self), changes, peer, root_name, stop));
        }
    }
}

async fn notify_session(
    session: Weak<Session>,
    mut changes: Changes,
    peer: Peer<RoleServer>,
    root_name: String,
    stop: CancellationToken,
) {
    while let Some(change) = next(&mut changes, stop.cancelled()).await {
        let Some(session) = session.upgrade() else { return };
        let updated: Vec<&String> =
            change.updated.iter().filter(|path| session.wants(path)).collect();
        // The reference is released before the next wait. Otherwise the session would wait for its
        // own end.
        drop(session);
        for path in updated {
            let changed = ResourceUpdatedNotificationParam::new(uri::of(&root_name, path));
            log_failure(peer.notify_resource_updated(changed).await);
        }
        if change.list {
            log_failure(peer.notify_resource_list_changed().await);
        }
    }
}

/// Notifies a subscriber of changes to its resources. Each resource is a path and the name that the
/// subscriber used.
pub(crate) async fn notify_subscriber(
    mut changes: Changes,
    context: &SubscriptionContext,
    wanted: &[(String, String)],
) {
    let list = context.accepted().resources_list_changed == Some(true);
    while let Some(change) = next(&mut changes, context.cancelled()).await {
        for (_, uri) in wanted.iter().filter(|(path, _)| change.updated.contains(path)) {
            log_failure(context.sink().notify_resource_updated(uri.clone()).await);
        }
        if list && change.list {
            log_failure(context.sink().notify_resource_list_changed().await);
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
        // The missed changes are unknown, so the host is told that the list may have changed.
        Err(RecvError::Lagged(_)) => Some(Arc::new(Change { list: true, ..Change::default() })),
        Err(RecvError::Closed) => None,
    }
}

/// Ignores that a host has disconnected.
pub(crate) fn log_failure<E: std::fmt::Display>(outcome: Result<(), E>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "cannot notify a host of a change");
    }
}
