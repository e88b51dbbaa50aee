//! Searching memory: for people, for tools, and for the prompts of agents (`prompt.rs`).

use crate::{
    CollectionKey, Embedder, Error, Frequencies, IndexError, Memory, Result,
    embed::blocking,
    former_key,
    index::{IndexMatches, IndexQuery},
    key,
    lexical::{self, Sparse},
    search::{
        CANDIDATES, Hit, PartMatches, Query, Ranked, SearchResults, finish, fuse, fuse_parts,
    },
};
use atelier_core::{Filter, Interaction, InteractionId, SearchMode, memory::CollectionState};
use atelier_store::{Collection, Error as StoreError, OwnedAgent};
use chrono::Utc;
use metrics::{counter, histogram};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Up to this many unindexed interactions are scored one by one. With more, the store searches.
const MAX_UNINDEXED: usize = 100;

/// The state of a collection before a search.
struct SearchState {
    collection: Collection,
    /// Interactions that the index does not have yet.
    unindexed: Vec<Interaction>,
    frequencies: Arc<Frequencies>,
}

impl SearchState {
    /// The parts of the collection with their embedders; the main part is the first.
    fn parts(&self) -> impl Iterator<Item = (CollectionKey, &str)> {
        let collection = &self.collection;
        let main = (key(collection), collection.embedder.as_deref().unwrap_or_default());
        let former = collection.former.as_ref();
        std::iter::once(main)
            .chain(former.map(|former| (former_key(collection, former), former.embedder.as_str())))
    }
}

impl Memory {
    /// Finds the interactions that are relevant to a text. If the index does not answer in time,
    /// the store's word search does.
    pub async fn search(&self, agent: OwnedAgent, query: &Query) -> Result<SearchResults> {
        let began = Instant::now();
        let found = self.search_or_fall_back(agent, query).await;
        histogram!("atelier_memory_search_seconds").record(began.elapsed().as_secs_f64());
        found
    }

    async fn search_or_fall_back(&self, agent: OwnedAgent, query: &Query) -> Result<SearchResults> {
        let degraded = match self.search_index(agent, query).await {
            Ok(found) => {
                if found.degraded.is_some() {
                    counter!("atelier_memory_fallbacks_total", "cause" => "embedder").increment(1);
                }
                return Ok(found);
            }
            // Without the store there is nothing to search.
            Err(Error::Store(error)) => return Err(error.into()),
            Err(error) => error,
        };
        let cause = if matches!(degraded, Error::Embed(_)) { "embedder" } else { "index" };
        counter!("atelier_memory_fallbacks_total", "cause" => cause).increment(1);
        let answer = self.search_words_in_store(agent, query).await?;
        // The store can only search by words, whatever mode was requested.
        let mode = if query.mode == SearchMode::Dense { SearchMode::Lexical } else { query.mode };
        let hits = self.interactions(agent, query, fuse(&answer, mode, 0.0)).await?;
        let degraded = Some(degraded.to_string());
        Ok(SearchResults { hits, degraded, ..SearchResults::default() })
    }

    async fn search_words_in_store(
        &self,
        agent: OwnedAgent,
        query: &Query,
    ) -> Result<IndexMatches> {
        let store = &self.inner.store;
        let found = store.search_text(agent, &query.text, &query.filter, CANDIDATES as i64).await?;
        let lexical = found.into_iter().map(|(id, score)| (id.0, score)).collect();
        Ok(IndexMatches { dense: Vec::new(), lexical })
    }

    /// Searches the index. The embedder and the index have limits of their own.
    async fn search_index(&self, agent: OwnedAgent, query: &Query) -> Result<SearchResults> {
        let patience = self.inner.settings.patience;
        let Some(state) = self.in_time(patience, self.search_state(agent)).await? else {
            return Ok(SearchResults::default());
        };
        let (vectors, embedder_problem) = self.query_vectors(&state, query).await?;
        let searched = self.search_parts(agent, query, &state, vectors);
        let (parts, former_problem) = self.in_time(patience, searched).await?;
        // Words make up for vectors that are not indexed yet. The result is only degraded if the
        // search uses no words or if the index is failing.
        let behind = || match (state.unindexed.len(), query.mode) {
            (0, _) | (_, SearchMode::Lexical) => None,
            (count, SearchMode::Dense) => Some(IndexError::Behind(count as u64).to_string()),
            (_, SearchMode::Hybrid) => self.problem().clone(),
        };
        let degraded = embedder_problem.or(former_problem).or_else(behind);
        let min_similarity =
            parts.iter().map(|part| part.min_similarity).fold(f32::INFINITY, f32::min);
        let hits = self.interactions(agent, query, fuse_parts(parts, query.mode)).await?;
        Ok(SearchResults { hits, degraded, min_similarity })
    }

    async fn in_time<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => Err(IndexError::Slow(patience).into()),
        }
    }

    /// The state of an agent's collection; `None` if the agent remembers nothing.
    async fn search_state(&self, agent: OwnedAgent) -> Result<Option<SearchState>> {
        let inner = &*self.inner;
        let collection = match inner.store.collection(agent).await {
            Err(StoreError::NotFound) => return Ok(None),
            Ok(collection) if collection.total == 0 => return Ok(None),
            collection => collection?,
        };
        if collection.state != CollectionState::Live {
            return Err(IndexError::NotCreated.into());
        }
        if inner.index.id().is_none() {
            // The error says why this node has no index.
            inner.index.ping(inner.settings.patience).await?;
        }
        if !self.is_in_this_index(&collection) && !self.is_in_older_place(&collection) {
            return Err(IndexError::OtherIndex(collection.index.unwrap_or_default()).into());
        }
        // Read before the index is searched, so that an interaction which is indexed meanwhile is
        // found twice rather than never.
        let unindexed = self.unindexed(agent).await?;
        let frequencies = self.frequencies(agent).await?;
        Ok(Some(SearchState { collection, unindexed, frequencies }))
    }

    /// The vector of the query for each part of the collection, and why there is none for the main
    /// part. A part whose embedder this server cannot use is searched by words.
    async fn query_vectors(
        &self,
        state: &SearchState,
        query: &Query,
    ) -> Result<(Vec<Option<Vec<f32>>>, Option<String>)> {
        let (mut vectors, mut problem) = (Vec::new(), None);
        for (number, (_, name)) in state.parts().enumerate() {
            if query.mode == SearchMode::Lexical {
                vectors.push(None);
                continue;
            }
            let embedders = &self.inner.embedders;
            let Some(embedder) = embedders.by_name(name) else {
                vectors.push(None);
                problem =
                    problem.or_else(|| Some(IndexError::OtherEmbedder(name.into()).to_string()));
                continue;
            };
            match embedders.embed_query(embedder, &query.text, &state.frequencies).await {
                Ok(vector) => vectors.push(vector),
                Err(error) if query.mode == SearchMode::Dense && number == 0 => {
                    return Err(error.into());
                }
                // The search by words goes on without the embedder.
                Err(error) => {
                    vectors.push(None);
                    problem = problem.or(Some(error.to_string()));
                }
            }
        }
        Ok((vectors, problem))
    }

    /// Searches all parts of a collection. Also returns why the former part could not be searched.
    async fn search_parts(
        &self,
        agent: OwnedAgent,
        query: &Query,
        state: &SearchState,
        vectors: Vec<Option<Vec<f32>>>,
    ) -> Result<(Vec<PartMatches>, Option<String>)> {
        let inner = &*self.inner;
        let by_words = query.mode != SearchMode::Dense;
        let (mut parts, mut problem) = (Vec::new(), None);
        for ((key, name), vector) in state.parts().zip(vectors) {
            let is_main = parts.is_empty();
            // A shared collection does not weigh words; one agent's words must not depend on
            // another's.
            let words = by_words.then(|| match inner.index.weighs_words(&key) {
                true => lexical::query(&query.text),
                false => lexical::weighted_query(&query.text, &state.frequencies),
            });
            let limit = CANDIDATES.max(query.k);
            let filter = query.filter.clone();
            let ask = IndexQuery { vector, words: words.clone(), filter, limit };
            let began = Instant::now();
            let answer = inner.index.search(&key, ask).await;
            histogram!("atelier_memory_index_seconds").record(began.elapsed().as_secs_f64());
            let mut matches = match answer {
                Err(error) if is_main => {
                    if error.is_lost() {
                        self.rebuild(&state.collection).await?;
                    }
                    return Err(error.into());
                }
                Err(error) => {
                    problem = Some(error.to_string());
                    self.search_words_in_store(agent, query).await?
                }
                Ok(matches) => matches,
            };
            if is_main && let Some(words) = words {
                let unindexed = state.unindexed.clone();
                self.add_unindexed(agent, unindexed, &query.filter, words, &mut matches).await?;
            }
            let embedder = inner.embedders.by_name(name).unwrap_or(&Embedder::Builtin);
            parts.push(PartMatches {
                matches,
                dense_weight: embedder.dense_weight(),
                min_similarity: embedder.min_similarity(),
            });
        }
        Ok((parts, problem))
    }

    /// The interactions that are not indexed yet. Fails if there are too many to score one by one.
    async fn unindexed(&self, agent: OwnedAgent) -> Result<Vec<Interaction>> {
        let store = &self.inner.store;
        let ids = store
            .first_unindexed(agent, self.indexed_through(agent.id()), MAX_UNINDEXED as i64 + 1)
            .await?;
        if ids.len() > MAX_UNINDEXED {
            return Err(IndexError::Behind(self.waiting(agent).await?).into());
        }
        Ok(store.interactions(agent, &ids).await?)
    }

    /// Adds unindexed interactions that share words with the query. Only the index knows how rare a
    /// word is, so their scores are scaled by the score of the index's own best match.
    async fn add_unindexed(
        &self,
        agent: OwnedAgent,
        mut unindexed: Vec<Interaction>,
        filter: &Filter,
        words: Sparse,
        answer: &mut IndexMatches,
    ) -> Result<()> {
        unindexed.retain(|interaction| {
            filter.admits(interaction)
                && answer.lexical.iter().all(|(id, _)| *id != interaction.id.0)
        });
        if unindexed.is_empty() {
            return Ok(());
        }
        let best = answer.lexical.first().copied();
        let known = match best {
            Some((id, _)) => {
                self.inner.store.interactions(agent, &[InteractionId(id)]).await?.pop()
            }
            None => None,
        };
        let found = blocking(move || {
            let common =
                |interaction: &Interaction| lexical::document(&interaction.text).score(&words);
            let worth = match (best, known.map(|interaction| common(&interaction))) {
                (Some((_, score)), Some(common)) if common > 0.0 => score / common,
                _ => 1.0,
            };
            let scored =
                unindexed.iter().map(|interaction| (interaction.id.0, worth * common(interaction)));
            scored.filter(|(_, score)| *score > 0.0).collect::<Vec<_>>()
        });
        answer.lexical.extend(found.await);
        answer.lexical.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(())
    }

    /// Loads the interactions behind ranked ids. Ids that the store no longer has are left out.
    async fn interactions(
        &self,
        agent: OwnedAgent,
        query: &Query,
        fused: Ranked,
    ) -> Result<Vec<Hit>> {
        let all = query.recency_days.is_some() || query.unique;
        let mut hits = Vec::new();
        let mut rest = fused.into_iter();
        while hits.len() < query.k || all {
            let some: Vec<_> =
                rest.by_ref().take(if all { usize::MAX } else { query.k - hits.len() }).collect();
            if some.is_empty() {
                break;
            }
            let ids: Vec<InteractionId> = some.iter().map(|(id, ..)| InteractionId(*id)).collect();
            let interactions = self.inner.store.interactions(agent, &ids).await?;
            let mut interactions: HashMap<Uuid, Interaction> = interactions
                .into_iter()
                .map(|interaction| (interaction.id.0, interaction))
                .collect();
            hits.extend(some.into_iter().filter_map(|(id, score, parts)| {
                Some(Hit { interaction: interactions.remove(&id)?, score, parts })
            }));
        }
        Ok(finish(hits, query, Utc::now()))
    }
}
