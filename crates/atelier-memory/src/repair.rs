//! Keeps the collections complete: embeds memories again after a change of the embedder, and
//! rebuilds collections that an index has lost.
//!
//! After a change of the embedder, the vectors in the index become the former part of a collection.
//! New interactions go to a new part, and the old ones follow in the background, the newest first.
//! Searches look into both parts, each with its own embedder.

use crate::{
    CollectionKey, Error, Memory, Result, former_key, key,
    points::{fits, points_of},
};
use atelier_core::{AgentId, memory::CollectionState};
use atelier_store::{Collection, FormerPart, NewVectors};
use metrics::counter;
use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

/// How many interactions are embedded again at a time. A new interaction waits for at most these.
const BATCH: i64 = 32;
/// How often to look for collections that another embedder or another index has.
const SEARCH_INTERVAL: Duration = Duration::from_secs(30);

/// How far the work on one collection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    rebuilding: bool,
    done: u64,
    total: u64,
}

impl Memory {
    /// Looks for collections that have to be embedded again or rebuilt, until the server stops.
    pub(crate) async fn run_repair(&self) {
        if self.inner.index.id().is_none() {
            // The process that has opened the index looks after it.
            return std::future::pending().await;
        }
        let mut pause = Duration::from_millis(250);
        let mut verified = false;
        loop {
            let work = async {
                self.begin_outdated().await?;
                self.adopt_foreign().await?;
                if !verified {
                    self.verify().await?;
                }
                Ok::<_, Error>(())
            };
            match work.await {
                Ok(()) => {
                    verified = true;
                    tokio::time::sleep(SEARCH_INTERVAL).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot look after the collections at the moment");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(SEARCH_INTERVAL);
                }
            }
        }
    }

    /// The vectors that this node makes for an agent.
    pub(crate) fn new_vectors(&self, agent: AgentId) -> NewVectors {
        let (index, embedder) = (&self.inner.index, self.embedder());
        NewVectors {
            index: index.id().unwrap_or_default().to_owned(),
            embedder: embedder.name().to_owned(),
            dimension: i64::try_from(embedder.dimension()).unwrap_or(i64::MAX),
            place: index.place(agent, embedder.name(), embedder.dimension()),
        }
    }

    /// Begins to embed memories again if another embedder has made their vectors, or if they are in
    /// the place that older versions used.
    async fn begin_outdated(&self) -> Result<()> {
        let (index, store) = (&self.inner.index, &self.inner.store);
        let Some(id) = index.id() else { return Ok(()) };
        let current = self.embedder().name();
        for collection in store.outdated_collections(id, index.older_id(), current).await? {
            let from = collection.index.clone().unwrap_or_default();
            let leased = store.lease_collection(&collection, &from, !index.is_shared()).await?;
            // Another node takes care of it otherwise.
            let Some(collection) = leased else { continue };
            match collection.state {
                CollectionState::Live => self.begin_reembedding(&collection).await?,
                CollectionState::Wanted => self.rebuild(&collection).await?,
                CollectionState::Gone => self.delete_collection(&collection).await?,
            }
        }
        Ok(())
    }

    async fn begin_reembedding(&self, collection: &Collection) -> Result<()> {
        let vectors = self.new_vectors(collection.agent);
        if collection.former.is_some() || collection.place.as_deref() == Some(&vectors.place) {
            // The embedder was changed again before all was done. This is rare, so the collection
            // is built from nothing; meanwhile it is searched by words.
            return self.rebuild(collection).await;
        }
        tracing::info!(
            collection = collection.name,
            from = collection.embedder,
            to = vectors.embedder,
            "embedding a memory again"
        );
        let place = CollectionKey { place: Some(vectors.place.clone()), ..key(collection) };
        self.inner.index.create(&place, self.embedder().dimension()).await?;
        let keeps_frequencies = !self.counts_frequencies();
        self.inner.store.begin_reembedding(collection, vectors, keeps_frequencies).await?;
        self.unflushed().remove(&collection.agent);
        self.inner.frequencies.invalidate(&collection.agent).await;
        Ok(())
    }

    /// Embeds the next interactions of a collection again. Returns whether there was something to
    /// do.
    pub(crate) async fn reembed_next(&self) -> Result<bool> {
        let (index, store) = (&self.inner.index, &self.inner.store);
        let Some(id) = index.id() else { return Ok(false) };
        for (collection, _) in store.collections_to_index(id).await? {
            if collection.former.is_none() || collection.state != CollectionState::Live {
                continue;
            }
            let Some(collection) = self.lease(&collection).await? else { continue };
            if let Some(former) = &collection.former {
                self.reembed(&collection, former).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn reembed(&self, collection: &Collection, former: &FormerPart) -> Result<()> {
        let (index, store) = (&self.inner.index, &self.inner.store);
        if !self.progress().contains_key(&collection.agent) {
            let left = store.count_below(collection, former.below).await?;
            let total = u64::try_from(collection.total).unwrap_or(0).max(left);
            self.note_progress(collection.agent, false, total - left, total);
        }
        let rows = store.interactions_below(collection, former.below, BATCH).await?;
        let Some(below) = rows.last().map(|(seq, ..)| *seq) else {
            index.drop(&former_key(collection, former)).await?;
            store.save_reembedding(collection, None, None).await?;
            self.progress().remove(&collection.agent);
            // Finds out whether the collection still needs anything.
            self.checkpoint(collection).await?;
            tracing::info!(collection = collection.name, "a memory is embedded again");
            return Ok(());
        };
        let count = rows.len() as u64;
        let embedder = self.embedder();
        let rows = rows
            .into_iter()
            .map(|(seq, interaction, vector)| {
                let vector = vector.filter(|made| fits(made, embedder)).map(|made| made.vector);
                (seq, interaction, vector)
            })
            .collect();
        let points = points_of(self.embedded(collection, rows).await?).await;
        let mut frequencies = match self.counts_frequencies() {
            true => Some((*self.frequencies(collection.owned_agent()).await?).clone()),
            false => None,
        };
        if let Some(frequencies) = &mut frequencies {
            self.count_points(&points, frequencies);
        }
        counter!("atelier_memory_points_total").increment(points.len() as u64);
        match index.apply(&key(collection), points, vec![]).await {
            Err(error) if error.is_lost() => return self.rebuild(collection).await,
            applied => applied?,
        }
        index.flush(&key(collection)).await?;
        let bytes = frequencies.as_ref().map(crate::Frequencies::to_bytes);
        store.save_reembedding(collection, Some(below), bytes).await?;
        if frequencies.is_some() {
            self.inner.frequencies.invalidate(&collection.agent).await;
        }
        if let Some(progress) = self.progress().get_mut(&collection.agent) {
            progress.done = (progress.done + count).min(progress.total);
        }
        Ok(())
    }

    /// Rebuilds collections that only another index has, if no other node can reach that index.
    /// This happens after the folder of the index, or its id, was lost.
    async fn adopt_foreign(&self) -> Result<()> {
        let (index, store) = (&self.inner.index, &self.inner.store);
        let Some(id) = index.id() else { return Ok(()) };
        for collection in store.foreign_collections(id, index.older_id()).await? {
            self.rebuild(&collection).await?;
        }
        Ok(())
    }

    /// Looks once at every collection of this index, and rebuilds those that are missing, damaged
    /// or incomplete.
    async fn verify(&self) -> Result<()> {
        let (index, store) = (&self.inner.index, &self.inner.store);
        for collection in store.collections().await? {
            let is_settled = collection.state == CollectionState::Live
                && collection.former.is_none()
                && collection.total > 0
                && self.is_in_this_index(&collection)
                && self.waiting(collection.owned_agent()).await? == 0;
            if !is_settled {
                continue;
            }
            let lost = match index.count(&key(&collection)).await {
                Ok(count) => count < u64::try_from(collection.total).unwrap_or(0),
                Err(error) if error.is_lost() => true,
                Err(error) => return Err(error.into()),
            };
            // A change in the meantime explains the difference, and the indexer knows about it.
            if lost
                && store.collection(collection.owned_agent()).await? == collection
                && self.waiting(collection.owned_agent()).await? == 0
            {
                self.rebuild(&collection).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, HashMap<AgentId, Progress>> {
        self.inner.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_progress(&self, agent: AgentId, rebuilding: bool, done: u64, total: u64) {
        self.progress().insert(agent, Progress { rebuilding, done, total });
    }

    /// Records that some interactions of a collection that is rebuilt were indexed, or that all of
    /// them are.
    pub(crate) fn note_indexed(&self, agent: AgentId, count: u64, all: bool) {
        let mut work = self.progress();
        if let Some(progress) = work.get_mut(&agent).filter(|progress| progress.rebuilding) {
            progress.done = (progress.done + count).min(progress.total);
            if all {
                work.remove(&agent);
            }
        }
    }

    /// A description of the collections that are being rebuilt, for people.
    pub(crate) fn rebuilding(&self) -> Option<String> {
        let (memories, done, total) = self.sum_of_progress(true)?;
        Some(format!(
            "the index is being rebuilt: {done} of {total} interactions of {memories} memories are \
             done; until then they are searched by words"
        ))
    }

    /// A description of the memories that are being embedded again, for people.
    pub(crate) fn reembedding(&self) -> Option<String> {
        let (memories, done, total) = self.sum_of_progress(false)?;
        Some(format!(
            "embedding again: {done} of {total} interactions of {memories} memories are done"
        ))
    }

    fn sum_of_progress(&self, rebuilding: bool) -> Option<(usize, u64, u64)> {
        let work = self.progress();
        let work = work.values().filter(|progress| progress.rebuilding == rebuilding);
        let sum = |(memories, done, total): (usize, u64, u64), one: &Progress| {
            (memories + 1, done + one.done, total + one.total)
        };
        Some(work.fold((0, 0, 0), sum)).filter(|(memories, ..)| *memories > 0)
    }
}
