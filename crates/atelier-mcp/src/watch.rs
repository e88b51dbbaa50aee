//! Watches the workspace for changes, for hosts that subscribed to them.
//!
//! Watching a large tree costs memory and file handles, so it starts with the first subscription.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{broadcast, mpsc};

/// One write causes several events. Events within this time are reported as one change.
const SETTLE: Duration = Duration::from_millis(100);
/// How many changes a slow subscriber may be behind before it misses some.
const BACKLOG: usize = 64;

/// The changes since the previous notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Paths whose content changed, relative to the root.
    pub(crate) updated: BTreeSet<String>,
    /// Whether an entry was created or removed.
    pub(crate) list: bool,
}

#[derive(Debug)]
pub(crate) struct Watch {
    root: PathBuf,
    changes: broadcast::Sender<Arc<Change>>,
    watcher: Mutex<Option<RecommendedWatcher>>,
}

impl Watch {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, changes: broadcast::Sender::new(BACKLOG), watcher: Mutex::default() }
    }

    /// Subscribes to every change from now on. Blocks while the tree is walked for the first time.
    pub(crate) fn subscribe(
        &self,
        runtime: &tokio::runtime::Handle,
    ) -> broadcast::Receiver<Arc<Change>> {
        let changes = self.changes.subscribe();
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if watcher.is_none() {
            match self.start(runtime) {
                Ok(started) => *watcher = Some(started),
                // The tools still work, but subscribers are not notified.
                Err(error) => tracing::warn!(%error, "changes of the workspace cannot be watched"),
            }
        }
        changes
    }

    fn start(&self, runtime: &tokio::runtime::Handle) -> notify::Result<RecommendedWatcher> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let on_event = move |event: notify::Result<Event>| {
            // Sending fails only when the server shuts down.
            let _ = sender.send(event);
        };
        // Links are not followed, because they may lead out of the workspace.
        let mut watcher =
            RecommendedWatcher::new(on_event, Config::default().with_follow_symlinks(false))?;
        watcher.watch(&self.root, RecursiveMode::Recursive)?;
        // This task ends with the watcher, which holds the other end of the channel.
        runtime.spawn(gather(self.root.clone(), receiver, self.changes.clone()));
        Ok(watcher)
    }
}

async fn gather(
    root: PathBuf,
    mut events: mpsc::UnboundedReceiver<notify::Result<Event>>,
    changes: broadcast::Sender<Arc<Change>>,
) {
    while let Some(first) = events.recv().await {
        let mut change = Change::default();
        change.note(&root, first);
        tokio::time::sleep(SETTLE).await;
        while let Ok(event) = events.try_recv() {
            change.note(&root, event);
        }
        if change != Change::default() {
            // Sending fails if nobody is subscribed at the moment.
            let _ = changes.send(Arc::new(change));
        }
    }
}

impl Change {
    fn note(&mut self, root: &Path, event: notify::Result<Event>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "a change of the workspace may have been missed");
                self.list = true;
                return;
            }
        };
        let list = match event.kind {
            EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)) => return,
            EventKind::Create(_)
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Name(_)) => true,
            EventKind::Modify(_) | EventKind::Any | EventKind::Other => false,
        };
        for path in event.paths {
            let Some(path) = path.strip_prefix(root).ok().and_then(Path::to_str) else { continue };
            if is_temporary(path) {
                continue;
            }
            self.updated.insert(path.to_owned());
            self.list |= list;
        }
    }
}

/// Whether the path is one of our own temporary files.
fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(".atelier-") && name.ends_with(".tmp")
}
