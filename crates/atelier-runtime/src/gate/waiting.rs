//! Those who wait for calls to settle. However many they are, one reader of a project's log wakes them all, and each
//! only for its own call.

use atelier_core::{CallId, Event, ProjectId};
use atelier_store::{Cursor, Scope, Store, StoredEvent};
use futures::{StreamExt, stream::FuturesUnordered};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// How long a lost wake-up can go unnoticed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a reader stays when nobody waits: the next call is often not far.
const LINGER: Duration = Duration::from_secs(10);

type Waiters = HashMap<CallId, Vec<oneshot::Sender<()>>>;

/// For every project with a reader, those who wait there.
#[derive(Clone)]
pub(super) struct Waiting {
    projects: Arc<Mutex<HashMap<ProjectId, Waiters>>>,
    readers: mpsc::UnboundedSender<ProjectId>,
    wanted: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<ProjectId>>>,
}

/// Becomes ready when something may have happened to a call.
pub(super) struct Woken {
    waiting: Waiting,
    project: ProjectId,
    call: CallId,
    woken: oneshot::Receiver<()>,
}

impl Woken {
    pub(super) async fn wait(&mut self) {
        // Woken, given up on, or long enough: the caller looks in any case.
        drop(tokio::time::timeout(LOOK_AGAIN, &mut self.woken).await);
    }
}

impl Drop for Woken {
    /// Nobody is kept whom nothing will wake: the call may have settled long ago.
    fn drop(&mut self) {
        self.woken.close();
        if let Some(waiters) = self.waiting.projects().get_mut(&self.project)
            && let Some(senders) = waiters.get_mut(&self.call)
        {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                waiters.remove(&self.call);
            }
        }
    }
}

impl Waiting {
    pub(super) fn new() -> Self {
        let (readers, wanted) = mpsc::unbounded_channel();
        Self { projects: Arc::default(), readers, wanted: Arc::new(tokio::sync::Mutex::new(wanted)) }
    }

    fn projects(&self) -> MutexGuard<'_, HashMap<ProjectId, Waiters>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes when the call settles, from now on.
    pub(super) fn on(&self, project: ProjectId, call: CallId) -> Woken {
        let (sender, woken) = oneshot::channel();
        let mut projects = self.projects();
        let waiters = projects.entry(project).or_insert_with(|| {
            // Nobody to start it means nobody to wake us: the wait ends by itself.
            self.readers.send(project).ok();
            Waiters::new()
        });
        waiters.entry(call).or_default().push(sender);
        drop(projects);
        Woken { waiting: self.clone(), project, call, woken }
    }

    /// Reads for those who wait. Runs until dropped.
    pub(super) async fn serve(&self, store: &Store) {
        let mut wanted = self.wanted.lock().await;
        let mut readers = FuturesUnordered::new();
        loop {
            tokio::select! {
                project = wanted.recv() => match project {
                    Some(project) => readers.push(self.read(store, project)),
                    None => return,
                },
                Some(()) = readers.next() => {}
            }
        }
    }

    async fn read(&self, store: &Store, project: ProjectId) {
        if let Err(error) = self.follow(store, project).await {
            // Whoever still waits looks again, and starts the next reader.
            tracing::debug!(%error, %project, "the reader for waiting calls has ended");
            self.projects().remove(&project);
        }
    }

    async fn follow(&self, store: &Store, project: ProjectId) -> Result<(), atelier_store::Error> {
        let (mut events, _) = store.subscribe(Scope::Project(project), Cursor::Now).await?;
        // What settled before this moment was missed: all look once.
        self.wake(project, |waiters| waiters.drain().map(|(_, senders)| senders).collect());
        loop {
            let Ok(events) = tokio::time::timeout(LINGER, events.next()).await else {
                if self.leave(project) {
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

    fn wake(&self, project: ProjectId, which: impl FnOnce(&mut Waiters) -> Vec<Vec<oneshot::Sender<()>>>) {
        let woken = self.projects().get_mut(&project).map(which).unwrap_or_default();
        // Some have gone.
        for sender in woken.into_iter().flatten() {
            sender.send(()).ok();
        }
    }

    /// Ends the reading if nobody waits.
    fn leave(&self, project: ProjectId) -> bool {
        let mut projects = self.projects();
        let Some(waiters) = projects.get(&project) else { return true };
        let nobody = waiters.is_empty();
        if nobody {
            projects.remove(&project);
        }
        nobody
    }
}

/// The call that an event says has settled.
fn settled(event: &StoredEvent) -> Option<CallId> {
    if event.name != "TOOL_CALL_UPDATED" {
        return None;
    }
    match serde_json::from_str(&event.data) {
        Ok(Event::ToolCallUpdated { tool_id, status, .. }) => status.is_settled().then_some(tool_id),
        _ => None,
    }
}
