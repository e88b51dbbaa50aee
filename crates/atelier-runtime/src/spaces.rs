//! All worker spaces of this node: opened on first use, closed when they are idle.

use crate::{
    Error, NodeHealth, Result, TrackedRequest, WorkerSpace, settings::WorkerSpaceSettings,
};
use atelier_core::{
    Event, ProjectId, UserId,
    event::{Alert, CloseReason},
};
use atelier_memory::Memory;
use atelier_store::{Error as StoreError, Owned, Store, Trouble, Wakeup};
use metrics::{counter, gauge};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

/// How long opening a space waits for its memory collections.
const COLLECTIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of one worker space. It is filled once, however many requests need the space at the
/// same time.
type Slot = Arc<OnceCell<Arc<WorkerSpace>>>;

/// All worker spaces of this node.
#[derive(Clone)]
pub struct Spaces {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    memory: Memory,
    node: NodeHealth,
    settings: WorkerSpaceSettings,
    slots: Mutex<HashMap<ProjectId, Slot>>,
}

impl Spaces {
    pub fn new(
        store: Store,
        memory: Memory,
        node: NodeHealth,
        settings: WorkerSpaceSettings,
    ) -> Self {
        let slots = Mutex::default();
        Self { inner: Arc::new(Inner { store, memory, node, settings, slots }) }
    }

    /// How long running requests may take to finish when a space is closed.
    pub fn grace(&self) -> Duration {
        self.inner.settings.grace
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ProjectId, Slot>> {
        self.inner.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn existing(&self, project: ProjectId) -> Option<Arc<WorkerSpace>> {
        self.slots().get(&project)?.get().cloned()
    }

    fn all(&self) -> Vec<Arc<WorkerSpace>> {
        self.slots().values().filter_map(|slot| slot.get().cloned()).collect()
    }

    /// The space of a project for its owner, opened if necessary. Everybody else gets the same "not
    /// found" as for a project that does not exist.
    pub async fn enter(&self, user: UserId, project: ProjectId) -> Result<Arc<WorkerSpace>> {
        let space = match self.existing(project) {
            Some(space) => space,
            None => {
                // Ownership is checked before the space is opened, so that a stranger opens
                // nothing.
                let owned = self.inner.store.owned_by(user, project).await?;
                self.open(owned).await?
            }
        };
        if space.owned().owner != user {
            return Err(StoreError::NotFound.into());
        }
        space.requests.touch();
        Ok(space)
    }

    /// Enters the space and tracks a request in it. `what` names the request in alerts.
    pub async fn begin(
        &self,
        user: UserId,
        project: ProjectId,
        what: &str,
    ) -> Result<(Arc<WorkerSpace>, TrackedRequest)> {
        loop {
            let space = self.enter(user, project).await?;
            match space.requests.begin(what.to_owned()).await {
                // The space was closed between the two calls, so open a new one.
                Err(Error::SpaceClosed) => {}
                task => return Ok((space, task?)),
            }
        }
    }

    async fn open(&self, owned: Owned) -> Result<Arc<WorkerSpace>> {
        let slot = self.slots().entry(owned.project).or_default().clone();
        let space = slot
            .get_or_try_init(|| async {
                let Inner { store, node, settings, .. } = &*self.inner;
                let space =
                    WorkerSpace::new(owned.clone(), store.clone(), node.clone(), settings.clone());
                self.ensure_collections(&owned).await;
                let ready = Event::WorkerSpaceReady { user_prefix: space.user_prefix() };
                match store.append_event(&owned, ready).await {
                    // A database that cannot write can still answer requests that read.
                    Err(error) if error.trouble().is_some_and(Trouble::allows_reads) => {
                        tracing::warn!(%error, "cannot record that a space was opened");
                    }
                    recorded => recorded?,
                }
                counter!("atelier_worker_space_initializations_total").increment(1);
                tracing::info!(project = %owned.project, "worker space ready");
                Ok::<_, Error>(Arc::new(space))
            })
            .await?;
        Ok(space.clone())
    }

    /// Creates the collections of new agents before the request is answered, if the index is a
    /// server.
    pub async fn agents_created(&self, owned: &Owned) {
        if self.inner.memory.creates_eagerly() {
            self.ensure_collections(owned).await;
        }
    }

    /// Makes sure that the project's agents have their collections. A space opens even if that
    /// fails: interactions are stored, and indexed when the index is back.
    async fn ensure_collections(&self, owned: &Owned) {
        match tokio::time::timeout(COLLECTIONS_TIMEOUT, self.inner.memory.ensure_collections(owned))
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, project = %owned.project, "the memory is not ready");
            }
            Err(_) => {
                tracing::warn!(project = %owned.project, "the memory is not ready: the index does \
                    not answer");
            }
        }
    }

    /// Removes the space if it is open and `matches`, so that the next request opens a new one.
    fn remove_if(
        &self,
        project: ProjectId,
        matches: impl Fn(&WorkerSpace) -> bool,
    ) -> Option<Arc<WorkerSpace>> {
        let mut slots = self.slots();
        let space = slots.get(&project)?.get().filter(|space| matches(space))?.clone();
        slots.remove(&project);
        Some(space)
    }

    /// Closes a space. Running requests may finish within the grace time.
    pub async fn close(&self, owned: &Owned, reason: CloseReason) -> Result<()> {
        // Checked under the lock, because a request may have arrived since the space was found
        // idle.
        let idle = |space: &WorkerSpace| space.requests.idle_for() > self.inner.settings.inactivity;
        let matches = |space: &WorkerSpace| reason != CloseReason::Inactive || idle(space);
        if let Some(space) = self.remove_if(owned.project, matches) {
            let ended = space.requests.finish(self.inner.settings.grace).await;
            self.announce_closed(&space, reason, ended).await?;
        }
        Ok(())
    }

    /// Ends everything in the space immediately and opens it again.
    pub async fn reset(&self, owned: Owned) -> Result<Arc<WorkerSpace>> {
        if let Some(space) = self.remove_if(owned.project, |_| true) {
            let ended = space.requests.end();
            self.announce_closed(&space, CloseReason::Reset, ended).await?;
        }
        self.open(owned).await
    }

    /// Closes the space of a deleted project, without an event.
    pub fn remove_deleted(&self, project: ProjectId) {
        if let Some(space) = self.remove_if(project, |_| true) {
            space.requests.end();
            space.forget_agents();
        }
    }

    /// A wakeup proves nothing, so this looks whether the project exists.
    async fn remove_if_deleted(&self, project: ProjectId) {
        let Some(space) = self.existing(project) else { return };
        let found = self.inner.store.project(space.owned()).await;
        if matches!(found, Err(StoreError::NotFound)) {
            self.remove_deleted(project);
        }
    }

    async fn announce_closed(
        &self,
        space: &WorkerSpace,
        reason: CloseReason,
        ended: usize,
    ) -> Result<()> {
        space.forget_agents();
        tracing::info!(project = %space.owned().project, ?reason, ended, "worker space closed");
        self.inner.store.append_event(space.owned(), Event::WorkerSpaceClosed { reason }).await?;
        Ok(())
    }

    /// Empties the agent cache of the project's space, if the space is open here.
    pub fn forget_agents(&self, project: ProjectId) {
        if let Some(space) = self.existing(project) {
            space.forget_agents();
        }
    }

    /// Runs until `stop`: follows changes on other nodes, raises alerts, and closes idle spaces.
    pub async fn run_background(self, stop: CancellationToken) {
        let WorkerSpaceSettings { inactivity, hung_after, .. } = self.inner.settings;
        let pace = (inactivity.min(hung_after) / 4)
            .clamp(Duration::from_millis(50), Duration::from_secs(5));
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow_wakeups() => {}
            () = self.check_periodically(pace) => {}
        }
    }

    async fn follow_wakeups(&self) {
        let mut wakeups = self.inner.store.wakeups().subscribe();
        while let Some(wakeup) = wakeups.next().await {
            match wakeup {
                Wakeup::Agents(project) => self.forget_agents(project),
                Wakeup::ProjectDeleted(project) => self.remove_if_deleted(project).await,
                Wakeup::Everything => self.all().iter().for_each(|space| space.forget_agents()),
                Wakeup::Tokens | Wakeup::Queue(..) | Wakeup::Work(_) | Wakeup::Memory => {}
            }
        }
    }

    async fn check_periodically(&self, pace: Duration) {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check_all().await;
        }
    }

    async fn check_all(&self) {
        // All at the same time, because the writes of one owner may have to wait.
        let checks = self.all().into_iter().map(|space| async move {
            for (alert, detail) in space.take_alerts() {
                self.raise_alert(&space, alert, detail).await;
            }
            if space.requests.idle_for() > self.inner.settings.inactivity
                && let Err(error) = self.close(space.owned(), CloseReason::Inactive).await
            {
                tracing::warn!(%error, project = %space.owned().project, "cannot record that a \
                    space was closed");
            }
        });
        futures::future::join_all(checks).await;
    }

    async fn raise_alert(&self, space: &WorkerSpace, alert: Alert, detail: String) {
        let project = space.owned().project;
        tracing::warn!(%project, ?alert, detail, "worker space alert");
        let label = match alert {
            Alert::CacheOverflow => "cache_overflow",
            Alert::HungTask => "hung_task",
        };
        counter!("atelier_worker_space_alerts_total", "alert" => label).increment(1);
        // With a timeout, so that a store that hangs does not block the alerts of other spaces.
        let append =
            self.inner.store.append_event(space.owned(), Event::WorkerSpaceAlert { alert, detail });
        match tokio::time::timeout(Duration::from_secs(5), append).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, %project, "cannot record an alert"),
            Err(_) => tracing::warn!(%project, "cannot record an alert: the store does not answer"),
        }
    }

    /// Sets the gauges that `/metrics` shows.
    pub async fn update_gauges(&self) {
        let (mut loaded, mut active, mut waiting) = (0, 0, 0);
        let spaces = self.all();
        for space in &spaces {
            loaded += space.agents.len().await;
            active += space.requests.active();
            waiting += space.requests.waiting();
        }
        gauge!("atelier_worker_spaces").set(spaces.len() as f64);
        gauge!("atelier_agent_cache_entries").set(loaded as f64);
        gauge!("atelier_active_tasks").set(active as f64);
        gauge!("atelier_waiting_requests").set(waiting as f64);
        match self.inner.store.work_figures().await {
            Ok((queued, agents)) => {
                gauge!("atelier_queued_tasks").set(queued as f64);
                gauge!("atelier_active_agents").set(agents as f64);
            }
            Err(error) => tracing::warn!(%error, "cannot count the tasks of agents"),
        }
    }
}
