//! Wakes requests that wait for a call to settle. However many requests wait in a project, one task
//! reads the project's log and wakes each request for its own call only.

use atelier_core::{CallId, Event, ProjectId};
use atelier_store::{Cursor, Scope, Store, StoredEvent};
use futures::{StreamExt, stream::FuturesUnordered};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// How long a request waits before it reads its call again even if nothing wakes it, because a
/// wakeup may be lost.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the reader of a project continues after the last request, because the next request
/// often follows soon.
const IDLE_READER_TIME: Duration = Duration::from_secs(10);

/// The requests of a project that wait, by their calls.
type ProjectWaiters = HashMap<CallId, Vec<oneshot::Sender<()>>>;

/// The requests of all projects that wait for calls to settle.
#[derive(Clone)]
pub(super) struct CallWaiters {
    /// The waiting requests of every project that has a reader.
    projects: Arc<Mutex<HashMap<ProjectId, ProjectWaiters>>>,
    /// Asks `serve` to start the reader of a project.
    start_reader: mpsc::UnboundedSender<ProjectId>,
    readers_to_start: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<ProjectId>>>,
}

/// A request that waits for a call to settle.
pub(super) struct CallWaiter {
    all: CallWaiters,
    project: ProjectId,
    call: CallId,
    settled: oneshot::Receiver<()>,
}

impl CallWaiter {
    pub(super) async fn wait(&mut self) {
        // The caller reads the call in any case: after the wakeup, after the end of the reader, and
        // after the timeout.
        drop(tokio::time::timeout(CHECK_INTERVAL, &mut self.settled).await);
    }
}

impl Drop for CallWaiter {
    /// Removes the request, because no later event may mention a call that has settled already.
    fn drop(&mut self) {
        self.settled.close();
        if let Some(waiters) = self.all.projects().get_mut(&self.project)
            && let Some(senders) = waiters.get_mut(&self.call)
        {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiters.remove(&self.call);
            }
        }
    }
}

impl CallWaiters {
    pub(super) fn new() -> Self {
        let (start_reader, readers_to_start) = mpsc::unbounded_channel();
        let readers_to_start = Arc::new(tokio::sync::Mutex::new(readers_to_start));
        Self { projects: Arc::default(), start_reader, readers_to_start }
    }

    fn projects(&self) -> MutexGuard<'_, HashMap<ProjectId, ProjectWaiters>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that is woken when the call settles after this moment.
    pub(super) fn subscribe(&self, project: ProjectId, call: CallId) -> CallWaiter {
        let (sender, settled) = oneshot::channel();
        let mut projects = self.projects();
        let waiters = projects.entry(project).or_insert_with(|| {
            // If no reader can be started any more, the wait ends with its timeout.
            self.start_reader.send(project).ok();
            ProjectWaiters::new()
        });
        waiters.entry(call).or_default().push(sender);
        drop(projects);
        CallWaiter { all: self.clone(), project, call, settled }
    }

    /// Runs the readers of all projects with waiting requests, until dropped.
    pub(super) async fn serve(&self, store: &Store) {
        let mut readers_to_start = self.readers_to_start.lock().await;
        let mut readers = FuturesUnordered::new();
        loop {
            tokio::select! {
                project = readers_to_start.recv() => match project {
                    Some(project) => readers.push(self.read(store, project)),
                    None => return,
                },
                Some(()) = readers.next() => {}
            }
        }
    }

    async fn read(&self, store: &Store, project: ProjectId) {
        if let Err(error) = self.follow(store, project).await {
            // The requests that still wait read their calls again, and start the next reader.
            tracing::debug!(%error, %project, "the reader for waiting calls has ended");
            self.projects().remove(&project);
        }
    }

    async fn follow(&self, store: &Store, project: ProjectId) -> Result<(), atelier_store::Error> {
        let (mut events, _) = store.subscribe(Scope::Project(project), Cursor::Now).await?;
        // Calls may have settled before this moment, so every request reads its call once.
        self.wake(project, |waiters| waiters.drain().map(|(_, senders)| senders).collect());
        loop {
            let Ok(events) = tokio::time::timeout(IDLE_READER_TIME, events.next()).await else {
                if self.remove_if_unused(project) {
                    return Ok(());
                }
                continue;
            };
            let events = events?;
            self.wake(project, |waiters| {
                events.iter().filter_map(|event| waiters.remove(&settled(event)?)).collect()
            });
        }
    }

    fn wake(
        &self,
        project: ProjectId,
        which: impl FnOnce(&mut ProjectWaiters) -> Vec<Vec<oneshot::Sender<()>>>,
    ) {
        let senders = self.projects().get_mut(&project).map(which).unwrap_or_default();
        // Some of the requests may have ended.
        for sender in senders.into_iter().flatten() {
            sender.send(()).ok();
        }
    }

    /// Removes the project if no request waits there, and returns whether it is removed.
    fn remove_if_unused(&self, project: ProjectId) -> bool {
        let mut projects = self.projects();
        let Some(waiters) = projects.get(&project) else { return true };
        let nobody = waiters.is_empty();
        if nobody {
            projects.remove(&project);
        }
        nobody
    }
}

/// The call that has settled, according to the event.
fn settled(event: &StoredEvent) -> Option<CallId> {
    if event.name != "TOOL_CALL_UPDATED" {
        return None;
    }
    match serde_json::from_str(&event.data) {
        Ok(Event::ToolCallUpdated { tool_id, status, .. }) => {
            status.is_settled().then_some(tool_id)
        }
        _ => None,
    }
}
