//! The health of this node: everything that its requests need, each part with a reason.

use crate::{Health, Part, Status};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_store::{KeyCheck, Store, Trouble};
use metrics::gauge;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// How long the database may take for a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// For how long a healthy result is used again. Anybody may ask, and a probe writes.
const REUSE: Duration = Duration::from_millis(250);
/// A group of writes that takes longer than this keeps its lane from others.
const STUCK: Duration = Duration::from_secs(5);
/// A disk with less space than this counts as full.
const FULL: u64 = 1 << 20;
/// A disk with less space than this is worth a warning.
const LITTLE: u64 = 256 << 20;

/// A cheap handle on the parts that decide whether this node may take requests.
#[derive(Clone)]
pub struct NodeHealth(Arc<Inner>);

struct Inner {
    store: Store,
    memory: Memory,
    files: Files,
    keys: Vec<KeyCheck>,
    data: PathBuf,
    last: Mutex<Option<(Instant, Vec<Part>)>>,
    draining: AtomicBool,
}

impl NodeHealth {
    pub fn new(
        store: Store,
        memory: Memory,
        files: Files,
        keys: Vec<KeyCheck>,
        data: PathBuf,
    ) -> Self {
        let (last, draining) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Inner { store, memory, files, keys, data, last, draining }))
    }

    /// Says from now on that this node is about to stop, so that balancers send requests elsewhere.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// The health of the node as a whole.
    pub async fn report(&self) -> Health {
        let mut parts = self.parts().await;
        if self.0.draining.load(Ordering::Relaxed) {
            parts.push(Part::new("node", Status::Unhealthy, "this node is stopping"));
        }
        Health::of(parts)
    }

    /// All parts. Requests at the same time share a probe.
    pub async fn parts(&self) -> Vec<Part> {
        let mut last = self.0.last.lock().await;
        if let Some((probed, parts)) = &*last
            && probed.elapsed() < REUSE
            && parts.iter().all(|part| part.status == Status::Healthy)
        {
            return parts.clone();
        }
        let (store, memory, objects) = tokio::join!(self.store(), self.memory(), self.objects());
        let keys = match store.status {
            Status::Healthy => self.keys().await,
            _ => Part::new("keys", Status::Degraded, "not known without the database"),
        };
        let mut parts = vec![store, self.disk(), objects, memory, keys, self.lanes(), self.pool()];
        parts.extend(self.notifications());
        *last = Some((Instant::now(), parts.clone()));
        parts
    }

    /// Whether the database can be written.
    async fn store(&self) -> Part {
        let kind = self.0.store.kind();
        let probe = tokio::time::timeout(PROBE_TIMEOUT, self.0.store.probe()).await;
        match probe.unwrap_or(Err(Trouble::NoAnswer)) {
            Ok(()) => Part::new("store", Status::Healthy, format!("{kind} answers")),
            Err(trouble) => {
                tracing::warn!(%trouble, "the database cannot be written");
                Part::new("store", Status::Unhealthy, format!("{kind}: {trouble}"))
            }
        }
    }

    /// Without the index a node is only degraded: tasks continue, and searches are by words.
    async fn memory(&self) -> Part {
        match self.0.memory.health().await {
            Ok(how) => Part::new("memory", Status::Healthy, how),
            Err(why) => Part::new("memory", Status::Degraded, why),
        }
    }

    /// Without the object store a node is only degraded: everything but files works.
    async fn objects(&self) -> Part {
        match self.0.files.health().await {
            Ok(how) => Part::new("object_store", Status::Healthy, how),
            Err(why) => Part::new("object_store", Status::Degraded, why),
        }
    }

    /// The fullest of the disks that this node writes to.
    fn disk(&self) -> Part {
        let Inner { store, files, data, .. } = &*self.0;
        // With PostgreSQL, the data folder has only what can be made again.
        let mut folders = vec![(data.as_path(), store.kind() == "sqlite")];
        folders.extend(files.content_folder().map(|folder| (folder, true)));
        let check = |(folder, is_vital)| match atelier_files::free_bytes(folder) {
            Err(error) => {
                tracing::warn!(%error, "cannot tell how much space a disk has");
                Part::new("disk", Status::Degraded, "the free space is not known")
            }
            Ok(free) => {
                let megabytes = free >> 20;
                match free {
                    ..FULL if is_vital => {
                        Part::new("disk", Status::Unhealthy, "disk full: nothing can be stored")
                    }
                    ..FULL => {
                        Part::new("disk", Status::Degraded, "disk full: files are not cached")
                    }
                    FULL..LITTLE => Part::new(
                        "disk",
                        Status::Degraded,
                        format!("little space is left: {megabytes} MB"),
                    ),
                    _ => Part::new("disk", Status::Healthy, format!("{megabytes} MB are free")),
                }
            }
        };
        let worst = folders.into_iter().map(check).max_by_key(|part| part.status);
        worst.unwrap_or_else(|| Part::new("disk", Status::Healthy, "no disk is used"))
    }

    async fn keys(&self) -> Part {
        match self.0.store.differing_keys(&self.0.keys).await {
            Ok(names) if names.is_empty() => {
                Part::new("keys", Status::Healthy, "the keys are those of all nodes")
            }
            Ok(names) => Part::new(
                "keys",
                Status::Unhealthy,
                format!("this node has another {} than the other nodes", names.join(" and ")),
            ),
            Err(error) => {
                tracing::warn!(%error, "cannot compare the keys of this node");
                Part::new("keys", Status::Degraded, "the keys could not be compared")
            }
        }
    }

    fn lanes(&self) -> Part {
        let load = self.0.store.load(STUCK);
        let waiting = load.waiting_writes;
        match load.stuck_lanes {
            0 => Part::new("lanes", Status::Healthy, format!("{waiting} writes wait")),
            stuck => {
                let all = stuck == load.lanes;
                let status = if all { Status::Unhealthy } else { Status::Degraded };
                let reason = format!(
                    "{stuck} of {} lanes have been busy with one group for over {} seconds",
                    load.lanes,
                    STUCK.as_secs()
                );
                Part::new("lanes", status, reason)
            }
        }
    }

    fn pool(&self) -> Part {
        let load = self.0.store.load(STUCK);
        let (used, size) = (load.connections_in_use, load.connections);
        match load.is_exhausted {
            false => {
                Part::new("pool", Status::Healthy, format!("{used} of {size} connections in use"))
            }
            true => Part::new(
                "pool",
                Status::Degraded,
                format!("all {size} connections were in use, and requests waited in vain"),
            ),
        }
    }

    /// How messages between nodes travel, if Redis is configured for it.
    fn notifications(&self) -> Option<Part> {
        Some(match self.0.store.redis_works()? {
            true => Part::new("notifications", Status::Healthy, "Redis carries them"),
            false => Part::new(
                "notifications",
                Status::Degraded,
                "Redis does not answer: PostgreSQL carries them",
            ),
        })
    }

    /// Sets the gauges that `/metrics` shows. Those that need the database keep their values while
    /// it does not answer.
    pub async fn update_gauges(&self) {
        let Inner { store, files, .. } = &*self.0;
        let load = store.load(STUCK);
        gauge!("atelier_database_connections").set(load.connections as f64);
        gauge!("atelier_database_connections_in_use").set(load.connections_in_use as f64);
        gauge!("atelier_waiting_writes").set(load.waiting_writes as f64);
        let ask = async { tokio::join!(store.live_nodes(), files.stale_copies()) };
        let Ok((nodes, copies)) = tokio::time::timeout(PROBE_TIMEOUT, ask).await else { return };
        if let Ok(nodes) = nodes {
            gauge!("atelier_live_nodes").set(nodes as f64);
        }
        if let Ok(copies) = copies {
            gauge!("atelier_stale_copies").set(copies as f64);
        }
    }
}
