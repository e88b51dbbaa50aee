//! The cache of a project's agents: loaded on first use, dropped after a while or when they change.

use crate::Result;
use atelier_core::{Agent, AgentId};
use atelier_store::{AgentRef, Owned, OwnedAgent, Store};
use metrics::counter;
use moka::{future::Cache, notification::RemovalCause};
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// An agent of a worker space.
pub struct LoadedAgent {
    owned: OwnedAgent,
    agent: Agent,
}

impl LoadedAgent {
    /// The right to act on what the agent remembers.
    pub fn owned(&self) -> OwnedAgent {
        self.owned
    }
}

impl Deref for LoadedAgent {
    type Target = Agent;
    fn deref(&self) -> &Agent {
        &self.agent
    }
}

pub(crate) struct AgentCache {
    agents: Cache<AgentId, Arc<LoadedAgent>>,
    names: Cache<String, AgentId>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Counts invalidations, so that an agent that was read before one does not stay in the cache.
    generation: AtomicU64,
    overflowed: Arc<AtomicBool>,
    capacity: u64,
}

impl AgentCache {
    pub(crate) fn new(ttl: Duration, capacity: u64) -> Self {
        let overflowed = Arc::new(AtomicBool::new(false));
        let flag = overflowed.clone();
        let agents = Cache::builder()
            .time_to_live(ttl)
            .max_capacity(capacity)
            .eviction_listener(move |_, _, cause| {
                if cause == RemovalCause::Size {
                    flag.store(true, Ordering::Relaxed);
                }
            })
            .build();
        Self {
            agents,
            names: Cache::builder().time_to_live(ttl).max_capacity(capacity * 2).build(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            overflowed,
            capacity,
        }
    }

    pub(crate) async fn get(
        &self,
        store: &Store,
        owned: &Owned,
        wanted: &AgentRef,
    ) -> Result<Arc<LoadedAgent>> {
        let id = match wanted {
            AgentRef::Id(id) => Some(*id),
            AgentRef::Name(name) => self.names.get(name).await,
        };
        if let Some(id) = id
            && let Some(agent) = self.agents.get(&id).await
        {
            self.hits.fetch_add(1, Ordering::Relaxed);
            counter!("atelier_agent_cache_hits_total").increment(1);
            return Ok(agent);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        counter!("atelier_agent_cache_misses_total").increment(1);
        let generation = self.generation.load(Ordering::SeqCst);
        let (owned, agent) = store.agent(owned, wanted).await?;
        let agent = Arc::new(LoadedAgent { owned, agent });
        self.agents.insert(agent.id, agent.clone()).await;
        if let AgentRef::Name(name) = wanted {
            self.names.insert(name.clone(), agent.id).await;
        }
        // The agent may have been read before an update that has emptied the cache in the meantime.
        if self.generation.load(Ordering::SeqCst) != generation {
            self.drop_entries();
        }
        // moka evicts later; run it now, so that an overflow is noticed by the request that caused
        // it.
        self.agents.run_pending_tasks().await;
        Ok(agent)
    }

    pub(crate) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.drop_entries();
    }

    fn drop_entries(&self) {
        self.names.invalidate_all();
        self.agents.invalidate_all();
    }

    /// Whether an agent was dropped for lack of space since the last call.
    pub(crate) fn take_overflow(&self) -> bool {
        self.overflowed.swap(false, Ordering::Relaxed)
    }

    pub(crate) async fn len(&self) -> u64 {
        self.agents.run_pending_tasks().await;
        self.agents.entry_count()
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }
}
