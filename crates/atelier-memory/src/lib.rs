//! What agents remember: an index over the facts in the store.
//!
//! The store has every fact (`atelier_store::Store::remember`; what agents remember by themselves it writes down
//! together with what that tells about) and an outbox for the index. [`Memory::tend`] works the outbox off: it embeds what has no vector yet, tells the
//! index, and crosses it out. So the index may be down, slow or empty, and nothing is lost; it can be told everything
//! again, and changes nothing by it.
//!
//! What the rest of the program uses:
//!
//! - [`Memory::recall`]: what bears on a step an agent is about to take, ready for its prompt. Never fails, never takes
//!   longer than twice the configured patience (250 ms): once for the search by words, if the one by meaning is slow. [`Memory::tell`] appends `CONTEXT_RETRIEVED` to the project's log.
//! - [`Memory::search`]: the same for people and tools, with filters and scores.
//! - [`Memory::settled`]: waits until searches find what was just remembered.
//! - [`Memory::ensure`]: checks that a project's collections are there; for whoever opens a worker space.
//! - [`Memory::forget`], [`Memory::reindex`], [`Memory::health`].

mod embed;
mod feeder;
mod frequencies;
mod index;
mod lexical;
mod recall;
mod search;
mod settings;

pub use embed::{EmbedError, Embedder};
pub use frequencies::Frequencies;
pub use index::{Answer, Ask, Index, IndexError, Key, Point};
pub use lexical::{Sparse, asked as lexical_query, stored as lexical_text};
pub use recall::Recalled;
pub use search::{Found, Hit, Query};
pub use settings::{EmbedderSettings, Settings};

use atelier_core::{AgentId, Event, Filter, InteractionId, event::PruneReason};
use atelier_store::{
    Collection, CollectionState, Error as StoreError, InteractionPage, Owned, Removal, Store, StoredVector,
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

/// Facts that go in one transaction when many are forgotten: others want to write, too.
const FORGET_AT_ONCE: i64 = 1000;
/// How long to wait for an index or an embedder that is known not to do its part: it may be back just now.
const IN_TROUBLE: Duration = Duration::from_secs(1);

/// A cheap handle on the memory of all agents.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    index: Index,
    embedder: Embedder,
    settings: Settings,
    frequencies: Cache<AgentId, Arc<Frequencies>>,
    /// Collections this node feeds, and since when that was last said.
    held: Mutex<HashMap<AgentId, Instant>>,
    /// Collections that have heard of more than is crossed out.
    ahead: Mutex<HashMap<AgentId, feeder::Ahead>>,
    /// Moves when the index has heard of something.
    fed: watch::Sender<u64>,
    /// Why the index or the embedder does not do its part at the moment.
    trouble: Mutex<Option<String>>,
}

impl Memory {
    /// Opens the memory over the facts in `store`: on the Qdrant server at `qdrant_url`, or in a folder beneath `data`.
    pub fn open(store: Store, settings: Settings, qdrant_url: Option<&str>, data: &Path) -> Result<Self> {
        let embedder = Embedder::open(&settings.embedder)?;
        let index = match qdrant_url {
            Some(url) => Index::server(url, settings.qdrant_api_key.as_deref())?,
            None => Index::embedded(&data.join("memory"), settings.open_collections)?,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                index,
                embedder,
                settings,
                frequencies: Cache::builder().time_to_live(Duration::from_secs(10)).max_capacity(500).build(),
                held: Mutex::default(),
                ahead: Mutex::default(),
                fed: watch::Sender::new(0),
                trouble: Mutex::default(),
            }),
        })
    }

    /// The index itself, for whoever checks what is really in it.
    pub fn index(&self) -> &Index {
        &self.inner.index
    }

    pub fn embedder(&self) -> &Embedder {
        &self.inner.embedder
    }

    /// Makes sure that a project's agents have their collections. An embedded index lays a collection out when it
    /// gets its first fact; on a server it is made here. What fails now is made when there is a fact to tell.
    pub async fn ensure(&self, owned: &Owned) -> Result<()> {
        let Inner { store, index, .. } = &*self.inner;
        let collections = store.ensure_collections(owned).await?;
        if self.makes_at_once() {
            // One that hangs is found out about once, not with every collection.
            index.ping(Duration::from_secs(1)).await?;
        }
        for collection in collections {
            match collection.state {
                CollectionState::Wanted if self.makes_at_once() => {
                    if let Some(collection) = self.claim(&collection).await? {
                        self.make(&collection).await?;
                    }
                }
                CollectionState::Live
                    if self.is_ours(&collection) && !index.exists(&key(&collection)).await? =>
                {
                    self.make_anew(&collection).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether collections are made with their agents. In an embedded index they wait for their first fact: a folder
    /// of some twenty files for everyone who never remembers anything would be a waste.
    pub fn makes_at_once(&self) -> bool {
        self.inner.index.is_shared()
    }

    /// Whether this node's index has the collection.
    fn is_ours(&self, collection: &Collection) -> bool {
        collection.index.is_some() && collection.index.as_deref() == self.inner.index.id()
    }

    /// Waits until searches find the given facts in every way, or find them gone; `false` if they do not in time, or
    /// if it is known that this will take longer: they are found by their words meanwhile.
    pub async fn settled(&self, agent: AgentId, ids: &[InteractionId], patience: Duration) -> Result<bool> {
        let mut fed = self.inner.fed.subscribe();
        let began = Instant::now();
        // Without an index here, searches go by words, which are there already.
        let patience = if self.inner.index.id().is_none() { Duration::ZERO } else { patience };
        while self.inner.store.has_unindexed(agent, self.heard(agent), ids).await? {
            let patience = if self.trouble().is_some() { patience.min(IN_TROUBLE) } else { patience };
            if began.elapsed() > patience {
                return Ok(false);
            }
            // Another node may be feeding: look again even when nothing moves here. Either way is fine.
            drop(tokio::time::timeout(Duration::from_millis(100), fed.changed()).await);
        }
        Ok(true)
    }

    /// The facts that a filter lets through, oldest first, a page at a time, with the vectors that their index has of them,
    /// or would have.
    pub async fn page(
        &self,
        agent: AgentId,
        filter: &Filter,
        after: Option<(i64, InteractionId)>,
        limit: i64,
    ) -> Result<InteractionPage> {
        let Inner { store, embedder, .. } = &*self.inner;
        let mut page = store.interaction_page(agent, filter, after, limit, true).await?;
        if !embedder.is_costly() {
            // Made when it is wanted, and not kept.
            let mut bare: Vec<_> = page
                .facts
                .iter_mut()
                .filter(|(_, vector)| !vector.as_ref().is_some_and(|made| feeder::fits(made, embedder)))
                .collect();
            let texts = bare.iter().map(|(fact, _)| fact.text.clone()).collect();
            for ((_, vector), made) in bare.iter_mut().zip(embedder.stored(texts).await?) {
                *vector = made.map(|vector| StoredVector { embedder: embedder.name().to_owned(), vector });
            }
        }
        Ok(page)
    }

    /// How many facts the index has still to hear of.
    pub async fn waiting(&self, agent: AgentId) -> Result<u64> {
        Ok(self.inner.store.count_unindexed(agent, self.heard(agent)).await?)
    }

    /// Forgets facts for good, and tells how many they were.
    pub async fn forget(
        &self,
        owned: &Owned,
        agent: AgentId,
        what: &Removal,
        reason: PruneReason,
    ) -> Result<u64> {
        let mut removed = 0;
        loop {
            let gone = self.inner.store.remove_interactions(owned.owner, agent, what, FORGET_AT_ONCE).await?;
            removed += gone;
            if gone < FORGET_AT_ONCE as u64 {
                break;
            }
        }
        if removed > 0 {
            self.inner
                .store
                .append_event(owned, Event::ContextPruned { agent_id: agent, removed, reason })
                .await?;
        }
        Ok(removed)
    }

    /// Has an agent's collection made anew from its facts, with today's embedder.
    pub async fn reindex(&self, agent: AgentId) -> Result<()> {
        let collection = self.inner.store.collection(agent).await?;
        Ok(self.inner.store.rebuild_collection(&collection).await?)
    }

    /// What an agent's collection takes, in bytes, about. Nothing where it is not made yet, or is in another index.
    pub async fn size(&self, collection: &Collection) -> Result<u64> {
        let Inner { index, settings, .. } = &*self.inner;
        let dimension = usize::try_from(collection.dimension.unwrap_or(0)).unwrap_or(0);
        if collection.state != CollectionState::Live || !self.is_ours(collection) {
            return Ok(0);
        }
        let size = tokio::time::timeout(settings.patience * 4, index.size(&key(collection), dimension)).await;
        Ok(size.map_err(|_| IndexError::Away("it does not say how large a collection is".into()))??)
    }

    /// `Ok` with what answers, or why memory is not what it should be.
    pub async fn health(&self) -> Result<String, String> {
        let Inner { index, embedder, .. } = &*self.inner;
        if let Some(trouble) = self.trouble().clone() {
            return Err(trouble);
        }
        index.ping(Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
        Ok(format!("{} answers, vectors by {}", index.kind(), embedder.name()))
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<AgentId, Instant>> {
        self.inner.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ahead(&self) -> MutexGuard<'_, HashMap<AgentId, feeder::Ahead>> {
        self.inner.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn frequencies(&self, agent: AgentId) -> Result<Arc<Frequencies>> {
        if let Some(newest) = self.ahead().get(&agent).and_then(|ahead| ahead.frequencies.clone()) {
            return Ok(newest);
        }
        if let Some(known) = self.inner.frequencies.get(&agent).await {
            return Ok(known);
        }
        let bytes = self.inner.store.frequencies(agent).await?;
        // Of another version, or none yet: every word then counts alike.
        let frequencies =
            Arc::new(bytes.and_then(|bytes| Frequencies::from_bytes(&bytes)).unwrap_or_default());
        self.inner.frequencies.insert(agent, frequencies.clone()).await;
        Ok(frequencies)
    }
}

pub(crate) fn key(collection: &Collection) -> Key {
    Key { agent: collection.agent, name: collection.name.clone() }
}
