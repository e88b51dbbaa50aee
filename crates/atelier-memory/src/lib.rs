//! What agents remember: a search index over the interactions in the store.
//!
//! The store holds every interaction (`atelier_store::Store::add_interactions`) and an outbox that
//! lists which interactions the index still has to process. [`Memory::run_background`] works
//! through the outbox: it embeds texts that have no vector yet, updates the index and removes the
//! processed rows. Nothing is lost while the index is down, slow or empty, because applying a
//! change twice has the same effect as applying it once.
//!
//! The rest of the program uses:
//!
//! - [`Memory::retrieve_context`]: the memories that are relevant to an agent's next step, as text
//!   for its prompt. It never fails. The embedder and the index each have a limit of their own;
//!   after it, the store's word search answers.
//!   [`Memory::report_retrieval`] appends `CONTEXT_RETRIEVED` to the project's log.
//! - [`Memory::search`]: searches with filters and scores, for people and tools.
//! - [`Memory::wait_until_indexed`]: waits until searches find what was just remembered.
//! - [`Memory::ensure_collections`]: makes sure that a project's collections exist. Opening a
//!   worker space calls it.
//! - [`Memory::forget`], [`Memory::reindex`], [`Memory::health`].

mod embed;
mod frequencies;
mod index;
mod indexer;
mod lexical;
mod points;
mod prompt;
mod repair;
mod retrieval;
mod search;
mod settings;
mod sizes;

pub use embed::{EmbedError, Embedder, Embedders};
pub use frequencies::Frequencies;
pub use index::{CollectionKey, Index, IndexError, IndexMatches, IndexQuery, Point};
pub use lexical::{Sparse, document as lexical_document, query as lexical_query, weighted_query};
pub use prompt::RetrievedContext;
pub use search::{Hit, Query, SearchResults};
pub use settings::{EmbedderSettings, OpenAiAccess, Settings};

use atelier_core::{
    AgentId, Event, Filter, InteractionId, event::PruneReason, memory::CollectionState,
};
use atelier_store::{
    Collection, Error as StoreError, FormerPart, InteractionPage, Owned, OwnedAgent, Removal,
    Store, StoredVector,
};
use moka::future::Cache;
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Embed(#[from] EmbedError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How many interactions one transaction forgets, so that other writes get their turn.
const FORGET_BATCH: i64 = 1000;
/// How long to wait for an index or an embedder that has failed: it may just have recovered.
const PATIENCE_WITH_PROBLEM: Duration = Duration::from_secs(1);

/// A cheap handle on the memory of all agents.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    index: Index,
    embedders: Embedders,
    settings: Settings,
    frequencies: Cache<AgentId, Arc<Frequencies>>,
    /// The collections that this node indexes, and when it last renewed its lease on each.
    leases: Mutex<HashMap<AgentId, (OwnedAgent, Instant)>>,
    /// The collections that hold changes which are not flushed to disk yet.
    unflushed: Mutex<HashMap<AgentId, indexer::Unflushed>>,
    /// Changes whenever the index has processed a batch.
    indexed: watch::Sender<u64>,
    /// Why the index or the embedder fails at the moment.
    problem: Mutex<Option<String>>,
    /// The collections that this node rebuilds or embeds again.
    progress: Mutex<HashMap<AgentId, repair::Progress>>,
}

impl Memory {
    /// Opens the memory over the interactions in `store`: on the Qdrant server at `qdrant_url`, or
    /// in a folder beneath `data`.
    pub fn open(
        store: Store,
        settings: Settings,
        openai: Option<&OpenAiAccess>,
        qdrant_url: Option<&str>,
        data: &Path,
    ) -> Result<Self> {
        let embedders = Embedders::open(&settings, data, openai)?;
        if let Some(fallback) = embedders.fallback() {
            tracing::warn!("{fallback}");
        }
        let index = match qdrant_url {
            Some(url) => Index::server(url, settings.qdrant_api_key.as_deref())?,
            None => Index::embedded(&data.join("memory"), settings.open_collections)?,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                index,
                embedders,
                settings,
                frequencies: Cache::builder()
                    .time_to_live(Duration::from_secs(10))
                    .max_capacity(500)
                    .build(),
                leases: Mutex::default(),
                unflushed: Mutex::default(),
                indexed: watch::Sender::new(0),
                problem: Mutex::default(),
                progress: Mutex::default(),
            }),
        })
    }

    /// The index itself, for tests that check its contents.
    pub fn index(&self) -> &Index {
        &self.inner.index
    }

    pub fn embedder(&self) -> &Embedder {
        self.inner.embedders.current()
    }

    /// Makes sure that a project's agents have their collections. On a Qdrant server they are
    /// created here; an embedded index creates a collection with its first interaction. A
    /// collection that cannot be created now is created when there is something to index.
    pub async fn ensure_collections(&self, owned: &Owned) -> Result<()> {
        let Inner { store, index, .. } = &*self.inner;
        let collections = store.ensure_collections(owned).await?;
        if self.creates_eagerly() {
            // An index that hangs costs one timeout, not one for each collection.
            index.ping(Duration::from_secs(1)).await?;
        }
        for collection in collections {
            match collection.state {
                CollectionState::Wanted if self.creates_eagerly() => {
                    if let Some(collection) = self.lease(&collection).await? {
                        self.create(&collection).await?;
                    }
                }
                CollectionState::Live
                    if self.is_in_this_index(&collection)
                        && !index.exists(&key(&collection)).await? =>
                {
                    self.rebuild(&collection).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a collection is created together with its agent. An embedded index waits for the
    /// first interaction, because a collection is a folder of some twenty files and many agents
    /// never remember anything.
    pub fn creates_eagerly(&self) -> bool {
        self.inner.index.is_shared()
    }

    /// Whether the collection is in this node's index.
    fn is_in_this_index(&self, collection: &Collection) -> bool {
        collection.index.is_some() && collection.index.as_deref() == self.inner.index.id()
    }

    /// Whether the collection is where older versions put it in this node's index.
    fn is_in_older_place(&self, collection: &Collection) -> bool {
        collection.index.is_some() && collection.index.as_deref() == self.inner.index.older_id()
    }

    /// Waits until the index has processed the given interactions, whether they were added or
    /// deleted. Returns `false` if `patience` runs out, or sooner if the index is known to be
    /// failing. Until then searches find the interactions by their words.
    pub async fn wait_until_indexed(
        &self,
        agent: OwnedAgent,
        ids: &[InteractionId],
        patience: Duration,
    ) -> Result<bool> {
        let mut indexed = self.inner.indexed.subscribe();
        let began = Instant::now();
        // Without an index on this node searches use the store, which has the words already.
        let patience = if self.inner.index.id().is_none() { Duration::ZERO } else { patience };
        while self.inner.store.has_unindexed(agent, self.indexed_through(agent.id()), ids).await? {
            let patience = if self.problem().is_some() {
                patience.min(PATIENCE_WITH_PROBLEM)
            } else {
                patience
            };
            if began.elapsed() > patience {
                return Ok(false);
            }
            // Another node may be indexing the collection, so a timeout is a reason to look again.
            drop(tokio::time::timeout(Duration::from_millis(100), indexed.changed()).await);
        }
        Ok(true)
    }

    /// One page of the interactions that match a filter, oldest first, with their vectors. A
    /// vector that is not stored is computed again.
    pub async fn page(
        &self,
        agent: OwnedAgent,
        filter: &Filter,
        after: Option<(i64, InteractionId)>,
        limit: i64,
    ) -> Result<InteractionPage> {
        let store = &self.inner.store;
        let embedder = self.embedder();
        let mut page = store.interaction_page(agent, filter, after, limit, true).await?;
        if !embedder.is_expensive() {
            // Vectors of an inexpensive embedder are computed on demand and not stored.
            let mut bare: Vec<_> = page
                .interactions
                .iter_mut()
                .filter(|(_, vector)| {
                    !vector.as_ref().is_some_and(|made| points::fits(made, embedder))
                })
                .collect();
            let texts = bare.iter().map(|(interaction, _)| interaction.text.clone()).collect();
            for ((_, vector), made) in bare.iter_mut().zip(embedder.embed_texts(texts).await?) {
                *vector = made
                    .map(|vector| StoredVector { embedder: embedder.name().to_owned(), vector });
            }
        }
        Ok(page)
    }

    /// How many interactions the index still has to process.
    pub async fn waiting(&self, agent: OwnedAgent) -> Result<u64> {
        Ok(self.inner.store.count_unindexed(agent, self.indexed_through(agent.id())).await?)
    }

    /// Deletes interactions for good and returns how many there were.
    pub async fn forget(
        &self,
        owned: &Owned,
        agent: OwnedAgent,
        what: &Removal,
        reason: PruneReason,
    ) -> Result<u64> {
        let mut removed = 0;
        loop {
            let gone = self.inner.store.remove_interactions(agent, what, FORGET_BATCH).await?;
            removed += gone;
            if gone < FORGET_BATCH as u64 {
                break;
            }
        }
        if removed > 0 {
            self.inner
                .store
                .append_event(owned, Event::ContextPruned { agent_id: agent.id(), removed, reason })
                .await?;
        }
        Ok(removed)
    }

    /// Has an agent's collection rebuilt from its interactions, with the configured embedder.
    pub async fn reindex(&self, agent: OwnedAgent) -> Result<()> {
        let collection = self.inner.store.collection(agent).await?;
        Ok(self.inner.store.rebuild_collection(&collection).await?)
    }

    /// The approximate size of an agent's collection in bytes; 0 if it does not exist yet or is in
    /// another index.
    pub async fn size(&self, collection: &Collection) -> Result<u64> {
        let Inner { index, settings, .. } = &*self.inner;
        let dimension = usize::try_from(collection.dimension.unwrap_or(0)).unwrap_or(0);
        let is_here = self.is_in_this_index(collection) || self.is_in_older_place(collection);
        if collection.state != CollectionState::Live || !is_here {
            return Ok(0);
        }
        let size =
            tokio::time::timeout(settings.patience * 4, index.size(&key(collection), dimension))
                .await;
        let no_answer = || IndexError::Unreachable("no answer about the collection's size".into());
        Ok(size.map_err(|_| no_answer())??)
    }

    /// `Ok` with a description of the index and the embedder, or the reason why memory is degraded.
    pub async fn health(&self) -> Result<String, String> {
        let Inner { index, embedders, .. } = &*self.inner;
        if let Some(problem) = self.problem().clone() {
            return Err(problem);
        }
        index.ping(Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
        let problem =
            embedders.problem().map(|why| format!("queries are searched by words: {why}"));
        let rebuilding = self.rebuilding();
        let fallback = embedders.fallback().map(str::to_owned);
        if let Some(degraded) = problem.or(rebuilding).or(fallback) {
            return Err(degraded);
        }
        let reembedding = self.reembedding().map_or_else(String::new, |text| format!("; {text}"));
        Ok(format!(
            "{} answers, vectors by {}{reembedding}",
            index.kind(),
            embedders.current().name()
        ))
    }

    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.inner.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<AgentId, (OwnedAgent, Instant)>> {
        self.inner.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unflushed(&self) -> MutexGuard<'_, HashMap<AgentId, indexer::Unflushed>> {
        self.inner.unflushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node counts how frequent words and their pieces are.
    fn counts_frequencies(&self) -> bool {
        self.embedder().uses_frequencies() || self.inner.index.is_shared()
    }

    async fn frequencies(&self, agent: OwnedAgent) -> Result<Arc<Frequencies>> {
        if let Some(newest) =
            self.unflushed().get(&agent.id()).and_then(|unflushed| unflushed.frequencies.clone())
        {
            return Ok(newest);
        }
        if let Some(known) = self.inner.frequencies.get(&agent.id()).await {
            return Ok(known);
        }
        let bytes = self.inner.store.frequencies(agent).await?;
        // Without stored frequencies, or with some of another version, all words weigh the same.
        let frequencies =
            Arc::new(bytes.and_then(|bytes| Frequencies::from_bytes(&bytes)).unwrap_or_default());
        self.inner.frequencies.insert(agent.id(), frequencies.clone()).await;
        Ok(frequencies)
    }
}

/// The place in which the index has the vectors of a collection.
pub(crate) fn key(collection: &Collection) -> CollectionKey {
    let place = collection.place.clone();
    CollectionKey { agent: collection.agent, name: collection.name.clone(), place }
}

/// The place in which the index has the vectors of a collection's former part.
pub(crate) fn former_key(collection: &Collection, former: &FormerPart) -> CollectionKey {
    CollectionKey { place: former.place.clone(), ..key(collection) }
}
