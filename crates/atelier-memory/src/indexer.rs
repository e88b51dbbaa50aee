//! The background worker that keeps the index up to date.
//!
//! Wakeups make it faster, but it also polls, so a lost wakeup only delays it. One node at a time
//! indexes a collection. If a lease expires and two nodes overlap for a moment, the interactions
//! that both saw are indexed once more.
//!
//! An embedded index gets changes immediately and is flushed rarely. Rows of the outbox are removed
//! after a flush, so a crash before the flush only means that they are indexed again.

use crate::{
    CollectionKey, Error, Memory, Result, former_key,
    frequencies::Frequencies,
    key,
    points::{fits, points_of},
};
use atelier_core::{AgentId, Filter, InteractionId, memory::CollectionState};
use atelier_store::{Collection, IndexChange, OwnedAgent, Wakeup};
use futures::{StreamExt, stream};
use metrics::{counter, gauge};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// How many changes are indexed together.
const BATCH: i64 = 256;
/// A collection is flushed when nothing was indexed in it for this long …
const IDLE_BEFORE_FLUSH: Duration = Duration::from_secs(1);
/// … or this long after its first unflushed change, which bounds what a crash makes it index again.
const MAX_FLUSH_DELAY: Duration = Duration::from_secs(10);
/// How many collections are indexed at the same time.
const PARALLEL_COLLECTIONS: usize = 4;
/// How long a lost wakeup can go unnoticed.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How soon to look again at a collection that another node indexes: that node may be gone.
const FOREIGN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A lease lasts ten seconds and is renewed well before it expires.
const LEASE_RENEWAL: Duration = Duration::from_secs(3);
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The changes that were indexed in a collection since it was last flushed.
#[derive(Debug, Clone)]
pub(crate) struct Unflushed {
    collection: Collection,
    since: Instant,
    last: Instant,
    /// The last row of the outbox that was indexed.
    through: i64,
    ids: Vec<InteractionId>,
    /// The frequencies of words, including those of unflushed interactions.
    pub(crate) frequencies: Option<Arc<Frequencies>>,
}

impl Memory {
    /// Keeps the index up to date and checks the sizes of memories until `stop`.
    pub async fn run_background(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.run_indexing() => {}
            () = self.run_repair() => {}
            () = self.run_size_checks() => {}
            () = self.run_clean_up() => {}
        }
        let unflushed: Vec<Collection> =
            self.unflushed().values().map(|unflushed| unflushed.collection.clone()).collect();
        for collection in unflushed {
            if let Err(error) = self.checkpoint(&collection).await {
                tracing::warn!(%error, "cannot flush a collection; its last changes are indexed \
                    again");
            }
        }
        self.release().await;
        self.inner.index.close().await;
    }

    async fn run_indexing(&self) {
        if self.inner.index.id().is_none() {
            // The process that has opened the index keeps it up to date.
            return std::future::pending().await;
        }
        // Subscribed before the first look, which finds everything that was written earlier.
        let mut wakeups = self.inner.store.wakeups().subscribe();
        let mut pause = Duration::from_millis(250);
        loop {
            let round = async {
                let all_ours = self.index_all().await?;
                // New interactions come first. Between two looks, only a few old ones are embedded
                // again.
                Ok::<_, Error>((all_ours, self.reembed_next().await?))
            };
            let look_again = match round.await {
                Ok((all_ours, unfinished)) => {
                    self.problem().take();
                    pause = Duration::from_millis(250);
                    match (unfinished, all_ours) {
                        (true, _) => Duration::ZERO,
                        (false, true) => POLL_INTERVAL,
                        (false, false) => FOREIGN_POLL_INTERVAL,
                    }
                }
                Err(error) => {
                    let already_logged = self.problem().replace(error.to_string()).is_some();
                    if !already_logged {
                        tracing::warn!(%error, "memories cannot be indexed at the moment");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_RETRY_DELAY);
                    continue;
                }
            };
            let woken = async {
                while let Some(wakeup) = wakeups.next().await {
                    if matches!(wakeup, Wakeup::Memory | Wakeup::Everything) {
                        return;
                    }
                }
                // The store is closed, and this task is about to be cancelled.
                std::future::pending::<()>().await;
            };
            let first = self.unflushed().values().map(Unflushed::due).min();
            let look = first.map_or(look_again, |due| look_again.min(due - Instant::now()));
            // A wakeup and a timeout both lead to another look.
            drop(tokio::time::timeout(look, woken).await);
        }
    }

    /// Indexes every collection that has changes. Returns `false` if another node holds the lease
    /// on one of them. All collections are tried; the first error is returned.
    async fn index_all(&self) -> Result<bool> {
        let Some(index) = self.inner.index.id() else { return Ok(true) };
        // The interactions of deleted agents go first, whichever index holds their collections and
        // whether or not it answers.
        for collection in self.inner.store.abandoned_collections(index).await? {
            if let Err(error) = self.purge(&collection).await {
                // The other owners' collections are indexed anyway.
                tracing::warn!(%error, "cannot remove the interactions of a deleted agent yet");
            }
        }
        let mut changed = self.inner.store.collections_to_index(index).await?;
        // A collection with unflushed changes has rows in the outbox, unless it has moved to
        // another index meanwhile.
        let ours: HashSet<AgentId> =
            changed.iter().map(|(collection, _)| collection.agent).collect();
        self.unflushed().retain(|agent, unflushed| !unflushed.is_due() || ours.contains(agent));
        changed.retain(|(collection, newest)| match self.unflushed().get(&collection.agent) {
            Some(unflushed) => *newest > Some(unflushed.through) || unflushed.is_due(),
            // A collection that is only embedded again has nothing in the outbox.
            None => newest.is_some() || collection.former.is_none(),
        });
        gauge!("atelier_memory_waiting_collections").set(changed.len() as f64);
        let outcomes = stream::iter(changed)
            .map(|(collection, _)| self.index_one(collection))
            .buffer_unordered(PARALLEL_COLLECTIONS);
        outcomes.fold(Ok(true), |all, one| async { Ok(all? & one?) }).await
    }

    async fn purge(&self, collection: &Collection) -> Result<()> {
        while self.inner.store.purge(collection).await? {}
        Ok(())
    }

    /// Indexes one collection. Returns `false` if another node holds its lease.
    async fn index_one(&self, collection: Collection) -> Result<bool> {
        let Some(collection) = self.lease(&collection).await? else { return Ok(false) };
        // The limit is enforced once per flush, and also while the index is unreachable, because
        // the interactions in the database grow all the same.
        if collection.state != CollectionState::Gone && self.indexed_through(collection.agent) == 0
        {
            self.enforce_limit(&collection).await?;
        }
        let outcome = match collection.state {
            CollectionState::Gone => self.delete_collection(&collection).await,
            CollectionState::Wanted => self.create(&collection).await,
            CollectionState::Live => self.index_changes(&collection).await,
        };
        match outcome {
            // Somebody dropped the collection, or the index was replaced. The store still has all
            // interactions.
            Err(Error::Index(error)) if error.is_lost() => self.rebuild(&collection).await?,
            outcome => outcome?,
        }
        Ok(true)
    }

    /// Rebuilds a collection that the index has lost from the interactions in the store.
    pub(crate) async fn rebuild(&self, collection: &Collection) -> Result<()> {
        tracing::warn!(
            collection = collection.name,
            "the index has lost a collection; rebuilding it"
        );
        Ok(self.inner.store.rebuild_collection(collection).await?)
    }

    /// Takes or renews this node's lease on a collection. `None` if another node holds it.
    pub(crate) async fn lease(&self, collection: &Collection) -> Result<Option<Collection>> {
        let fresh = self
            .leases()
            .get(&collection.agent)
            .is_some_and(|(_, since)| since.elapsed() < LEASE_RENEWAL);
        if fresh && self.is_in_this_index(collection) {
            return Ok(Some(collection.clone()));
        }
        let Self { inner } = self;
        let Some(index) = inner.index.id() else { return Ok(None) };
        let leased =
            inner.store.lease_collection(collection, index, !inner.index.is_shared()).await?;
        match &leased {
            Some(_) => {
                self.leases().insert(collection.agent, (collection.owned_agent(), Instant::now()))
            }
            None => self.leases().remove(&collection.agent),
        };
        Ok(leased)
    }

    async fn release(&self) {
        let leases: Vec<OwnedAgent> = self.leases().drain().map(|(_, (agent, _))| agent).collect();
        for agent in leases {
            if let Err(error) = self.inner.store.release_collection(agent).await {
                tracing::warn!(%error, "cannot release collections; their leases will expire");
                return;
            }
        }
    }

    pub(crate) async fn create(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        let vectors = self.new_vectors(collection.agent);
        // The new collection is empty, whatever was indexed in an older one in the same place.
        self.unflushed().remove(&collection.agent);
        self.drop_other_places(collection, Some(&vectors.place)).await?;
        let place = CollectionKey { place: Some(vectors.place.clone()), ..key(collection) };
        inner.index.create(&place, self.embedder().dimension()).await?;
        inner.store.collection_created(collection, vectors).await?;
        inner.frequencies.invalidate(&collection.agent).await;
        let total = u64::try_from(collection.total).unwrap_or(0);
        match total {
            0 => drop(self.progress().remove(&collection.agent)),
            _ => self.note_progress(collection.agent, true, 0, total),
        }
        Ok(())
    }

    /// Drops what the index has of an agent in all places except the given one.
    async fn drop_other_places(&self, collection: &Collection, but: Option<&str>) -> Result<()> {
        let former = collection.former.as_ref().map(|former| former_key(collection, former));
        for place in [Some(key(collection)), former].into_iter().flatten() {
            if but.is_none() || place.place.as_deref() != but {
                self.inner.index.drop(&place).await?;
            }
        }
        Ok(())
    }

    /// Deletes the collection and the interactions of a deleted agent.
    pub(crate) async fn delete_collection(&self, collection: &Collection) -> Result<()> {
        self.purge(collection).await?;
        self.drop_other_places(collection, None).await?;
        self.inner.store.collection_dropped(collection).await?;
        self.progress().remove(&collection.agent);
        self.unflushed().remove(&collection.agent);
        self.leases().remove(&collection.agent);
        Ok(())
    }

    async fn index_changes(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        if collection.embedder.as_deref() != Some(self.embedder().name()) {
            // Vectors of two embedders do not compare. `run_repair` begins a new part.
            return Ok(());
        }
        let mut frequencies = match self.counts_frequencies() {
            true => Some(Frequencies::clone(&*self.frequencies(collection.owned_agent()).await?)),
            false => None,
        };
        loop {
            let indexed = self.indexed_through(collection.agent);
            let (changes, through) = inner.store.index_changes(collection, indexed, BATCH).await?;
            let Some(collection) = self.lease(collection).await? else { return Ok(()) };
            if changes.is_empty() {
                self.note_indexed(collection.agent, 0, true);
                break;
            }
            let ids: Vec<_> = changes.iter().map(id_of).collect();
            let (points, removed) =
                self.prepare(&collection, changes, frequencies.as_mut()).await?;
            counter!("atelier_memory_points_total").increment(points.len() as u64);
            if let Some(former) = collection.former.as_ref().filter(|_| !removed.is_empty()) {
                let former = former_key(&collection, former);
                match inner.index.apply(&former, vec![], removed.clone()).await {
                    // Searches show only what the store has, so a lost part shows nothing more.
                    Err(error) if error.is_lost() => {}
                    applied => applied?,
                }
            }
            let count = ids.len() as u64;
            inner.index.apply(&key(&collection), points, removed).await?;
            self.note_indexed(collection.agent, count, false);
            if self.record_applied(&collection, through, ids, frequencies.as_ref()) {
                self.checkpoint(&collection).await?;
            }
            inner.indexed.send_modify(|turn| *turn += 1);
        }
        if self.unflushed().get(&collection.agent).is_none_or(Unflushed::is_due) {
            self.checkpoint(collection).await?;
            self.enforce_limit(collection).await?;
            inner.index.optimize(&key(collection)).await?;
            if inner.index.needs_compaction(&key(collection)).await? {
                self.compact(collection).await?;
            }
        }
        Ok(())
    }

    /// The last row of the outbox that is indexed but not flushed yet; 0 if there is none.
    pub(crate) fn indexed_through(&self, agent: AgentId) -> i64 {
        self.unflushed().get(&agent).map_or(0, |unflushed| unflushed.through)
    }

    /// Records that a collection holds all changes up to `through`. Returns whether it is time to
    /// flush it.
    fn record_applied(
        &self,
        collection: &Collection,
        through: i64,
        ids: Vec<InteractionId>,
        frequencies: Option<&Frequencies>,
    ) -> bool {
        let mut all = self.unflushed();
        let unflushed = all.entry(collection.agent).or_insert_with(|| Unflushed {
            collection: collection.clone(),
            since: Instant::now(),
            last: Instant::now(),
            through,
            ids: Vec::new(),
            frequencies: None,
        });
        unflushed.last = Instant::now();
        unflushed.through = through;
        unflushed.ids.extend(ids);
        unflushed.frequencies = frequencies.map(|frequencies| Arc::new(frequencies.clone()));
        self.inner.index.is_durable() || unflushed.is_due()
    }

    /// Flushes a collection and removes the flushed rows from the outbox.
    pub(crate) async fn checkpoint(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        let unflushed = self.unflushed().get(&collection.agent).cloned();
        let (through, ids, frequencies) = match unflushed {
            Some(unflushed) => (unflushed.through, unflushed.ids, unflushed.frequencies),
            // There was nothing to index after all, so the collection is only marked as up to date.
            None => (0, Vec::new(), None),
        };
        let flushed = match through {
            0 => Ok(()),
            _ => inner.index.flush(&key(collection)).await,
        };
        let recorded = match flushed {
            Ok(()) => {
                let bytes = frequencies.as_deref().map(Frequencies::to_bytes);
                inner.store.mark_indexed(collection, through, ids, bytes).await.map_err(Error::from)
            }
            Err(error) => Err(error.into()),
        };
        if let (Ok(()), Some(frequencies)) = (&recorded, frequencies) {
            inner.frequencies.insert(collection.agent, frequencies).await;
        }
        // The rows are removed, or else they have to be indexed once more.
        self.unflushed().remove(&collection.agent);
        recorded
    }

    /// Builds a new generation of a collection from its interactions while searches go on in the
    /// old one. Changes that arrive meanwhile wait in the outbox.
    async fn compact(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        tracing::info!(
            collection = collection.name,
            "the log of a collection has grown; rebuilding it"
        );
        let (key, embedder) = (key(collection), self.embedder().clone());
        inner.index.begin_generation(&key, embedder.dimension()).await?;
        let (mut after, everything) = (None, Filter::default());
        loop {
            let page = self.page(collection.owned_agent(), &everything, after, BATCH).await?;
            let points = page.interactions.into_iter().map(|(interaction, vector)| {
                let vector = vector.filter(|made| fits(made, &embedder)).map(|made| made.vector);
                (interaction, vector)
            });
            inner.index.fill_generation(&key, points_of(points.collect()).await).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(inner.index.switch_generation(&key).await?)
    }
}

impl Unflushed {
    fn due(&self) -> Instant {
        (self.last + IDLE_BEFORE_FLUSH).min(self.since + MAX_FLUSH_DELAY)
    }

    fn is_due(&self) -> bool {
        self.due() <= Instant::now()
    }
}

fn id_of(change: &IndexChange) -> InteractionId {
    match change {
        IndexChange::Add { interaction, .. } => interaction.id,
        IndexChange::Remove(id) => *id,
    }
}
