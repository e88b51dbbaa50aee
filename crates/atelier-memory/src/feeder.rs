//! The worker that tells the index what came and went, and sees to it that no memory grows without bounds.
//!
//! Woken by the bell, and correct without it. Of several nodes, one feeds a collection at a time; should two, for a
//! moment, the facts involved are looked at once more.
//!
//! An embedded index is told at once and flushed rarely: what it has heard is crossed out in the outbox when it is
//! flushed, and told again should there be a crash before.

use crate::{
    Embedder, Error, IndexError, Memory, Result,
    embed::{blocking, builtin},
    frequencies::Frequencies,
    index::Point,
    key, lexical,
};
use atelier_core::{AgentId, Filter, Interaction, InteractionId, event::PruneReason};
use atelier_store::{
    Collection, CollectionState, Error as StoreError, Fullness, IndexChange, Removal, StoredVector, Wakeup,
};
use futures::{StreamExt, stream};
use metrics::{counter, gauge};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// A fact of a collection with its place in the outbox, and its vector once there is one.
type Fact = (i64, Interaction, Option<Vec<f32>>);

/// Facts told at a time.
const BATCH: i64 = 256;
/// A collection is flushed when it has heard nothing new for so long …
const QUIET: Duration = Duration::from_secs(1);
/// … or has waited for that so long: the most that a crash makes it hear twice.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// Collections that are fed at the same time.
const AT_ONCE: usize = 4;
/// How long a lost ring can go unnoticed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How soon to look again at what another node feeds: it may be gone.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// A lease holds for ten seconds, while its node is there; it is renewed well before.
const RENEW: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How far ahead of what is crossed out an index is: what it has heard since it was last flushed.
#[derive(Debug, Clone)]
pub(crate) struct Ahead {
    collection: Collection,
    since: Instant,
    last: Instant,
    /// The last line of the outbox that it has heard of.
    through: i64,
    ids: Vec<InteractionId>,
    /// With what it has heard counted in.
    pub(crate) frequencies: Option<Arc<Frequencies>>,
}

impl Memory {
    /// Feeds the index and looks after sizes until `stop`.
    pub async fn tend(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.feed() => {}
            () = self.sweep() => {}
        }
        let ahead: Vec<Collection> = self.ahead().values().map(|ahead| ahead.collection.clone()).collect();
        for collection in ahead {
            if let Err(error) = self.checkpoint(&collection).await {
                tracing::warn!(%error, "the index hears again of what was not flushed");
            }
        }
        self.release().await;
        self.inner.index.close().await;
    }

    async fn feed(&self) {
        if self.inner.index.id().is_none() {
            // Whoever has the index feeds it.
            return std::future::pending().await;
        }
        // Heard from here on: what was written before is found by the first look.
        let mut bell = self.inner.store.wakeups().subscribe();
        let mut pause = Duration::from_millis(250);
        loop {
            let look_again = match self.feed_all().await {
                Ok(all_ours) => {
                    self.trouble().take();
                    pause = Duration::from_millis(250);
                    if all_ours { LOOK_AGAIN } else { LOOK_AFTER }
                }
                Err(error) => {
                    let told = self.trouble().replace(error.to_string()).is_some();
                    if !told {
                        tracing::warn!(%error, "memories wait to be told to the index");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            let rung = async {
                while let Some(ring) = bell.next().await {
                    if matches!(ring, Wakeup::Memory | Wakeup::Everything) {
                        return;
                    }
                }
                // The store is gone, and soon this is, too.
                std::future::pending::<()>().await;
            };
            let first = self.ahead().values().map(Ahead::due).min();
            let look = first.map_or(look_again, |due| look_again.min(due - Instant::now()));
            // Out of time is a reason to look as well.
            drop(tokio::time::timeout(look, rung).await);
        }
    }

    /// Feeds every collection there is something to do about, and says whether none of them is another node's. The first
    /// trouble is told; the others were tried.
    async fn feed_all(&self) -> Result<bool> {
        let Some(index) = self.inner.index.id() else { return Ok(true) };
        // Whatever index has their collections, and whether it answers or not: what agents that are gone remembered goes.
        for collection in self.inner.store.abandoned_collections(index).await? {
            while self.inner.store.purge(&collection).await? {}
        }
        let mut restless = self.inner.store.collections_to_index(index).await?;
        // What has lines to cross out is restless, unless it is another index's by now.
        let ours: HashSet<AgentId> = restless.iter().map(|(collection, _)| collection.agent).collect();
        self.ahead().retain(|agent, ahead| !ahead.is_due() || ours.contains(agent));
        restless.retain(|(collection, newest)| match self.ahead().get(&collection.agent) {
            Some(ahead) => *newest > Some(ahead.through) || ahead.is_due(),
            None => true,
        });
        gauge!("atelier_memory_waiting_collections").set(restless.len() as f64);
        let outcomes =
            stream::iter(restless).map(|(collection, _)| self.feed_one(collection)).buffer_unordered(AT_ONCE);
        outcomes.fold(Ok(true), |all, one| async { Ok(all? & one?) }).await
    }

    /// `false` if another node has it.
    async fn feed_one(&self, collection: Collection) -> Result<bool> {
        let Some(collection) = self.claim(&collection).await? else { return Ok(false) };
        // Before the first of what comes between two flushes and after the last; also while the index is away, for then
        // it is the database that would grow.
        if collection.state != CollectionState::Gone && self.heard(collection.agent) == 0 {
            self.bound(&collection).await?;
        }
        let outcome = match collection.state {
            CollectionState::Gone => self.end(&collection).await,
            CollectionState::Wanted => self.make(&collection).await,
            CollectionState::Live => self.tell_changes(&collection).await,
        };
        match outcome {
            // Somebody dropped it, or the index is another: its facts are all still there.
            Err(Error::Index(IndexError::Missing)) => self.make_anew(&collection).await?,
            outcome => outcome?,
        }
        Ok(true)
    }

    /// The index has lost a collection. Its facts are all still there.
    pub(crate) async fn make_anew(&self, collection: &Collection) -> Result<()> {
        tracing::warn!(collection = collection.name, "the index has lost a collection; it is made anew");
        Ok(self.inner.store.rebuild_collection(collection).await?)
    }

    /// Takes a collection for this node, or says again that it has it.
    pub(crate) async fn claim(&self, collection: &Collection) -> Result<Option<Collection>> {
        let fresh = self.held().get(&collection.agent).is_some_and(|since| since.elapsed() < RENEW);
        if fresh && self.is_ours(collection) {
            return Ok(Some(collection.clone()));
        }
        let Self { inner } = self;
        let Some(index) = inner.index.id() else { return Ok(None) };
        let claimed = inner.store.lease_collection(collection, index, !inner.index.is_shared()).await?;
        match &claimed {
            Some(_) => self.held().insert(collection.agent, Instant::now()),
            None => self.held().remove(&collection.agent),
        };
        Ok(claimed)
    }

    async fn release(&self) {
        let held: Vec<AgentId> = self.held().drain().map(|(agent, _)| agent).collect();
        for agent in held {
            let release = async {
                let collection = self.inner.store.collection(agent).await?;
                self.inner.store.release_collection(&collection).await
            };
            match release.await {
                // Its agent was deleted meanwhile.
                Ok(()) | Err(StoreError::NotFound) => {}
                Err(error) => {
                    tracing::warn!(%error, "collections are let go when their time is up");
                    return;
                }
            }
        }
    }

    pub(crate) async fn make(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        let (name, dimension) = (inner.embedder.name(), inner.embedder.dimension());
        // What another of that name had heard, this one has not.
        self.ahead().remove(&collection.agent);
        inner.index.make(&key(collection), dimension).await?;
        inner
            .store
            .collection_created(collection, name, i64::try_from(dimension).unwrap_or(i64::MAX))
            .await?;
        inner.frequencies.invalidate(&collection.agent).await;
        Ok(())
    }

    /// Its agent is gone: so is everything it remembered.
    async fn end(&self, collection: &Collection) -> Result<()> {
        while self.inner.store.purge(collection).await? {}
        self.inner.index.drop(&key(collection)).await?;
        self.inner.store.collection_dropped(collection).await?;
        self.ahead().remove(&collection.agent);
        self.held().remove(&collection.agent);
        Ok(())
    }

    async fn tell_changes(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        if collection.embedder.as_deref() != Some(inner.embedder.name()) {
            // Vectors of two embedders in one collection would be found by neither. Searches say what to do.
            return Ok(());
        }
        let mut frequencies = match inner.embedder.counts() {
            true => Some(Frequencies::clone(&*self.frequencies(collection.agent).await?)),
            false => None,
        };
        loop {
            let heard = self.heard(collection.agent);
            let (changes, through) = inner.store.index_changes(collection.agent, heard, BATCH).await?;
            let Some(collection) = self.claim(collection).await? else { return Ok(()) };
            if changes.is_empty() {
                break;
            }
            let ids: Vec<_> = changes.iter().map(id_of).collect();
            let (points, removed) = self.prepare(&collection, changes, frequencies.as_mut()).await?;
            counter!("atelier_memory_points_total").increment(points.len() as u64);
            inner.index.apply(&key(&collection), points, removed).await?;
            if self.hear(&collection, through, ids, frequencies.as_ref()) {
                self.checkpoint(&collection).await?;
            }
            inner.fed.send_modify(|turn| *turn += 1);
        }
        if self.ahead().get(&collection.agent).is_none_or(Ahead::is_due) {
            self.checkpoint(collection).await?;
            self.bound(collection).await?;
            inner.index.tidy(&key(collection)).await?;
            if inner.index.is_worn(&key(collection)).await? {
                self.renew(collection).await?;
            }
        }
        Ok(())
    }

    /// The last line of the outbox that a collection has heard of and that is not crossed out yet.
    pub(crate) fn heard(&self, agent: AgentId) -> i64 {
        self.ahead().get(&agent).map_or(0, |ahead| ahead.through)
    }

    /// A collection has heard of all lines up to `through`. Whether it is time to flush it.
    fn hear(
        &self,
        collection: &Collection,
        through: i64,
        ids: Vec<InteractionId>,
        frequencies: Option<&Frequencies>,
    ) -> bool {
        let mut all = self.ahead();
        let ahead = all.entry(collection.agent).or_insert_with(|| Ahead {
            collection: collection.clone(),
            since: Instant::now(),
            last: Instant::now(),
            through,
            ids: Vec::new(),
            frequencies: None,
        });
        ahead.last = Instant::now();
        ahead.through = through;
        ahead.ids.extend(ids);
        ahead.frequencies = frequencies.map(|frequencies| Arc::new(frequencies.clone()));
        self.inner.index.is_durable() || ahead.is_due()
    }

    /// Makes sure that an index keeps what it has heard, and crosses it out.
    async fn checkpoint(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        let ahead = self.ahead().get(&collection.agent).cloned();
        let (through, ids, frequencies) = match ahead {
            Some(ahead) => (ahead.through, ahead.ids, ahead.frequencies),
            // Nothing to hear of after all: what is restless need not be.
            None => (0, Vec::new(), None),
        };
        let flushed = match through {
            0 => Ok(()),
            _ => inner.index.flush(&key(collection)).await,
        };
        let told = match flushed {
            Ok(()) => {
                let bytes = frequencies.as_deref().map(Frequencies::to_bytes);
                inner.store.mark_indexed(collection, through, ids, bytes).await.map_err(Error::from)
            }
            Err(error) => Err(error.into()),
        };
        if let (Ok(()), Some(frequencies)) = (&told, frequencies) {
            inner.frequencies.insert(collection.agent, frequencies).await;
        }
        // Crossed out, or else to be told once more.
        self.ahead().remove(&collection.agent);
        told
    }

    /// Makes a new generation of a collection from its facts, while searches go on in the old one. What comes or goes
    /// meanwhile waits in the outbox.
    async fn renew(&self, collection: &Collection) -> Result<()> {
        let Self { inner } = self;
        tracing::info!(collection = collection.name, "the log of a collection has grown; it is made anew");
        let (key, embedder) = (key(collection), inner.embedder.clone());
        inner.index.begin_next(&key, embedder.dimension()).await?;
        let (mut after, everything) = (None, Filter::default());
        loop {
            let page = self.page(collection.agent, &everything, after, BATCH).await?;
            let points = page.facts.into_iter().map(|(fact, vector)| {
                let vector = vector.filter(|made| fits(made, &embedder)).map(|made| made.vector);
                (fact, vector)
            });
            inner.index.fill_next(&key, points_of(points.collect()).await).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(inner.index.switch_to_next(&key).await?)
    }

    /// Points for what came, ids for what went. What has no vector of this embedder yet gets one, and keeps it where it was
    /// costly to make.
    async fn prepare(
        &self,
        collection: &Collection,
        changes: Vec<IndexChange>,
        frequencies: Option<&mut Frequencies>,
    ) -> Result<(Vec<Point>, Vec<uuid::Uuid>)> {
        let embedder = &self.inner.embedder;
        let (mut removed, mut facts): (Vec<_>, Vec<Fact>) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                IndexChange::Remove(id) => removed.push(id.0),
                IndexChange::Add { seq, fact, vector } => {
                    let vector = vector.filter(|made| fits(made, embedder));
                    facts.push((seq, fact, vector.map(|made| made.vector)));
                }
            }
        }
        let bare: Vec<String> = facts
            .iter()
            .filter(|(.., vector)| vector.is_none())
            .map(|(_, fact, _)| fact.text.clone())
            .collect();
        if !bare.is_empty() {
            let mut made = embedder.stored(bare).await?.into_iter();
            let mut fresh = Vec::new();
            for (seq, _, vector) in facts.iter_mut().filter(|(.., vector)| vector.is_none()) {
                *vector = made.next().flatten();
                fresh.extend(vector.clone().map(|vector| (*seq, vector)));
            }
            if embedder.is_costly() {
                self.inner.store.save_vectors(collection, embedder.name(), fresh).await?;
            }
        }
        let facts: Vec<_> = facts.into_iter().map(|(_, fact, vector)| (fact, vector)).collect();
        let points = points_of(facts).await;
        if let Some(frequencies) = frequencies {
            points.iter().for_each(|point| frequencies.count(&builtin::distinct(&point.fact.text)));
        }
        Ok((points, removed))
    }

    /// Warns at 80 % of what an agent may remember; at 100 % the oldest go.
    async fn bound(&self, collection: &Collection) -> Result<()> {
        let store = &self.inner.store;
        match store.check_fullness(collection.agent, collection.owner).await {
            Ok(Fullness::Full { keep }) => {
                let owned = match store.owned(collection.project).await {
                    Err(StoreError::NotFound) => return Ok(()),
                    owned => owned?,
                };
                let removed =
                    self.forget(&owned, collection.agent, &Removal::Beyond(keep), PruneReason::Limit).await?;
                if removed > 0 {
                    tracing::info!(agent = %collection.agent, removed, "a memory was full; its oldest part is gone");
                }
                Ok(())
            }
            // Its agent was deleted meanwhile.
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks at the sizes of all collections, from time to time.
    async fn sweep(&self) {
        let mut turns = tokio::time::interval(self.inner.settings.sweep.max(Duration::from_millis(10)));
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let sweep = async {
                for collection in self.inner.store.collections().await? {
                    self.bound(&collection).await?;
                }
                Ok::<_, Error>(())
            };
            if let Err(error) = sweep.await {
                tracing::warn!(%error, "cannot look at the sizes of memories");
            }
        }
    }
}

impl Ahead {
    fn due(&self) -> Instant {
        (self.last + QUIET).min(self.since + CHECKPOINT)
    }

    fn is_due(&self) -> bool {
        self.due() <= Instant::now()
    }
}

/// Whether a vector can stand beside this embedder's own. Many have the same number of numbers: the name decides. One
/// without a direction, which somebody may have imported, is near to nothing.
pub(crate) fn fits(made: &StoredVector, embedder: &Embedder) -> bool {
    let length_squared: f32 = made.vector.iter().map(|value| value * value).sum();
    made.embedder == embedder.name()
        && made.vector.len() == embedder.dimension()
        && length_squared.is_normal()
}

/// Facts as the index holds them. Long texts have many words: off the threads that answer requests.
async fn points_of(facts: Vec<(Interaction, Option<Vec<f32>>)>) -> Vec<Point> {
    let point = |(fact, vector): (Interaction, Option<Vec<f32>>)| {
        let words = lexical::stored(&fact.text);
        Point { fact, vector, words }
    };
    blocking(move || facts.into_iter().map(point).collect()).await
}

fn id_of(change: &IndexChange) -> InteractionId {
    match change {
        IndexChange::Add { fact, .. } => fact.id,
        IndexChange::Remove(id) => *id,
    }
}
