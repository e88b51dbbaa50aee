//! The worker space of one project.

use crate::{
    Health, NodeHealth, Part, Result, Status,
    agents::{AgentCache, LoadedAgent},
    requests::RequestTracker,
    settings::WorkerSpaceSettings,
};
use atelier_core::{ProjectId, event::Alert};
use atelier_store::{AgentRef, Owned, QueueState, Store};
use chrono::{DateTime, Utc};
use serde::Serialize;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use utoipa::ToSchema;
use uuid::Uuid;

/// The server-side resources of one project while it is in use. It is also the right to act on the
/// project.
pub struct WorkerSpace {
    owned: Owned,
    settings: WorkerSpaceSettings,
    store: Store,
    node: NodeHealth,
    created_at: DateTime<Utc>,
    pub(crate) agents: AgentCache,
    pub(crate) requests: Arc<RequestTracker>,
    /// Stays true once the cache was too small, because it will be too small again.
    overflowed: AtomicBool,
}

/// A worker space as its owner sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkerSpace)]
pub struct Report {
    #[schema(value_type = Uuid)]
    pub project_id: ProjectId,
    pub user_prefix: String,
    pub created_at: DateTime<Utc>,
    pub idle_seconds: u64,
    pub active_tasks: usize,
    /// Tasks of the project's agents that wait in their queues.
    pub queued_tasks: i64,
    /// Agents of the project that are at work on a task.
    pub active_agents: usize,
    /// Requests that wait for a free slot.
    pub waiting_requests: usize,
    pub agent_cache: CacheReport,
    pub health: Health,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CacheReport {
    /// How many agents are loaded.
    pub size: u64,
    pub capacity: u64,
    pub ttl_seconds: u64,
    pub hits: u64,
    pub misses: u64,
}

impl WorkerSpace {
    pub(crate) fn new(
        owned: Owned,
        store: Store,
        node: NodeHealth,
        settings: WorkerSpaceSettings,
    ) -> Self {
        Self {
            agents: AgentCache::new(settings.agent_ttl, settings.agent_cache),
            requests: Arc::new(RequestTracker::new(settings.max_active, settings.max_waiting)),
            created_at: Utc::now(),
            overflowed: AtomicBool::new(false),
            owned,
            store,
            node,
            settings,
        }
    }

    pub fn owned(&self) -> &Owned {
        &self.owned
    }

    /// The prefix of the names of this space's resources, so that no two spaces share one.
    pub fn user_prefix(&self) -> String {
        format!("user{}_{}", self.owned.owner, self.owned.project)
    }

    pub async fn agent(&self, wanted: &AgentRef) -> Result<Arc<LoadedAgent>> {
        self.agents.get(&self.store, &self.owned, wanted).await
    }

    /// Empties the agent cache, because an agent has changed.
    pub fn forget_agents(&self) {
        self.agents.clear();
    }

    /// The alerts since the last call.
    pub(crate) fn take_alerts(&self) -> Vec<(Alert, String)> {
        let mut alerts = Vec::new();
        if self.agents.take_overflow() && !self.overflowed.swap(true, Ordering::Relaxed) {
            let detail = format!(
                "more agents are in use than the cache of {} holds; raise worker_space.agent_cache",
                self.agents.capacity()
            );
            alerts.push((Alert::CacheOverflow, detail));
        }
        let limit = self.settings.hung_after;
        for task in self.requests.newly_hung(limit) {
            alerts
                .push((Alert::HungTask, format!("{task} has made no progress for over {limit:?}")));
        }
        alerts
    }

    pub async fn report(&self) -> Report {
        let queues = self.store.queues(&self.owned).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot count the tasks of a project");
            Vec::new()
        });
        let at_work = |(queue, state): &&(Uuid, QueueState)| {
            state.active > 0 && *queue != self.owned.project.0
        };
        Report {
            project_id: self.owned.project,
            user_prefix: self.user_prefix(),
            created_at: self.created_at,
            idle_seconds: self.requests.idle_for().as_secs(),
            active_tasks: self.requests.active(),
            queued_tasks: queues.iter().map(|(_, state)| state.queued).sum(),
            active_agents: queues.iter().filter(at_work).count(),
            waiting_requests: self.requests.waiting(),
            agent_cache: CacheReport {
                size: self.agents.len().await,
                capacity: self.agents.capacity(),
                ttl_seconds: self.settings.agent_ttl.as_secs(),
                hits: self.agents.hits.load(Ordering::Relaxed),
                misses: self.agents.misses.load(Ordering::Relaxed),
            },
            health: self.health().await,
        }
    }

    async fn health(&self) -> Health {
        let mut parts = self.node.parts().await;
        let cache = match self.overflowed.load(Ordering::Relaxed) {
            false => Part::new("agent_cache", Status::Healthy, "all agents in use fit"),
            true => Part::new(
                "agent_cache",
                Status::Degraded,
                "more agents are in use than the cache holds",
            ),
        };
        let tasks = match self.requests.hung(self.settings.hung_after) {
            0 => Part::new("tasks", Status::Healthy, "no request hangs"),
            n => Part::new("tasks", Status::Degraded, format!("requests that hang: {n}")),
        };
        parts.extend([cache, tasks]);
        Health::of(parts)
    }
}
