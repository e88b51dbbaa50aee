//! Qdrant Edge: an index in this process, with a folder for each agent.
//!
//! This module makes up for what the engine does not do. Unflushed changes are lost in a crash, and
//! a flush writes and syncs a dozen files, so the indexer flushes from time to time and repeats
//! unflushed changes after a crash. `flush` panics when it races an update, and deletes that are
//! flushed during `optimize` can come back, so one lock guards all three. A panic of the engine
//! ends the operation, not the process. The engine writes through memory maps, and the system ends
//! a process that does so on a full disk, so every operation first checks that there is space.

mod engine;
mod slot;

use super::{
    CollectionKey, IndexError, IndexMatches, IndexQuery, Point, Result, WORDS, beam, disk,
};
use crate::embed::blocking;
use engine::{catch_panic, conditions, insert, sparse};
use qdrant_edge::{
    CountRequest, EdgeShard, NamedQuery, PointId, PointOperations, QuantizationSearchParams,
    QueryEnum, SearchParams, SearchRequest, UpdateOperation, Vector,
};
use slot::{Slot, remove, used};
use std::{
    collections::HashMap,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};
use uuid::Uuid;

/// The engine never shortens its log, which takes about eight kilobytes per point and is mapped
/// into memory when a collection is opened. A collection is rebuilt when its log is this many times
/// larger than its points need.
const LOG_LIMIT_FACTOR: u64 = 3;
const LOG_BYTES_PER_POINT: u64 = 8 * 1024;
/// Logs smaller than this are never compacted.
const SMALL_LOG: u64 = 64 << 20;

/// A search scans this many points outside the graph in a few milliseconds; with more, the graph is
/// rebuilt.
const MAX_UNOPTIMIZED: usize = 5_000;

#[derive(Clone)]
pub(super) struct Edge(Arc<Inner>);

struct Inner {
    root: PathBuf,
    id: String,
    max_open: usize,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    clock: AtomicU64,
    /// Allows one `optimize` at a time, because it uses all cores.
    optimizing: tokio::sync::Semaphore,
    /// The lock on the folder, held while this process uses it.
    _lock: File,
}

impl Edge {
    /// `None` if another process uses the folder.
    pub(super) fn open(root: &Path, max_open: usize) -> Result<Option<Self>> {
        fs::create_dir_all(root)?;
        let lock = File::create(root.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        Ok(Some(Self(Arc::new(Inner {
            root: root.to_owned(),
            id: read_or_create_id(root)?,
            max_open: max_open.max(1),
            slots: Mutex::default(),
            clock: AtomicU64::new(0),
            optimizing: tokio::sync::Semaphore::new(1),
            _lock: lock,
        }))))
    }

    pub(super) fn id(&self) -> &str {
        &self.0.id
    }

    pub(super) async fn create(&self, key: &CollectionKey, dimension: usize) -> Result<()> {
        self.run(key, move |inner, slot| {
            let _writing = slot.writing();
            slot.close();
            slot.flush_failed.store(false, Ordering::Relaxed);
            slot.optimized_points.store(0, Ordering::Relaxed);
            remove(&slot.folder)?;
            disk::check(&inner.root, 0)?;
            let shard = slot.begin("1", dimension)?;
            slot.set_generation("1")?;
            *slot.shard.write().unwrap_or_else(PoisonError::into_inner) = Some(shard);
            inner.close_least_recently_used(slot);
            Ok(())
        })
        .await
    }

    pub(super) async fn exists(&self, key: &CollectionKey) -> Result<bool> {
        self.run(key, |_, slot| Ok(slot.current_generation()?.is_some())).await
    }

    pub(super) async fn apply(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
        removed: Vec<Uuid>,
    ) -> Result<()> {
        self.run(key, move |inner, slot| {
            let _writing = slot.writing();
            disk::check(&inner.root, 0)?;
            inner.with(slot, |shard| {
                if !removed.is_empty() {
                    let ids = removed.into_iter().map(PointId::Uuid).collect();
                    shard.update(UpdateOperation::PointOperation(
                        PointOperations::DeletePoints { ids },
                    ))?;
                }
                insert(shard, points)
            })
        })
        .await
    }

    pub(super) async fn flush(&self, key: &CollectionKey) -> Result<()> {
        self.run(key, |inner, slot| {
            let _writing = slot.writing();
            disk::check(&inner.root, 0)?;
            // The changes are lost whether or not the collection was opened again since.
            if slot.flush_failed.swap(false, Ordering::Relaxed) {
                return Err(IndexError::Failed(
                    "it could not be flushed when it was closed".into(),
                ));
            }
            match &*slot.shard.read().unwrap_or_else(PoisonError::into_inner) {
                Some(shard) => catch_panic(|| {
                    shard.flush();
                    Ok(())
                }),
                // Closing the collection has flushed it.
                None => Ok(()),
            }
        })
        .await
    }

    pub(super) async fn search(
        &self,
        key: &CollectionKey,
        ask: IndexQuery,
    ) -> Result<IndexMatches> {
        self.run(key, move |inner, slot| {
            disk::check_for_reading(&inner.root)?;
            inner.with(slot, |shard| {
                let filter = conditions(&ask.filter)?;
                let params = SearchParams {
                    hnsw_ef: Some(beam(&ask.filter)),
                    quantization: Some(QuantizationSearchParams {
                        ignore: false,
                        rescore: Some(true),
                        oversampling: Some(2.0),
                    }),
                    ..SearchParams::default()
                };
                let search = |vector: Vector, using: Option<&str>| {
                    let query = NamedQuery { query: vector.into(), using: using.map(Into::into) };
                    let found = shard.search(SearchRequest {
                        query: QueryEnum::Nearest(query),
                        filter: filter.clone(),
                        params: Some(params),
                        limit: ask.limit,
                        offset: 0,
                        with_payload: None,
                        with_vector: None,
                        score_threshold: None,
                    })?;
                    let uuid = |id| match id {
                        PointId::Uuid(id) => Some(id),
                        PointId::NumId(_) => None,
                    };
                    Ok::<_, IndexError>(
                        found
                            .into_iter()
                            .filter_map(|point| Some((uuid(point.id)?, point.score)))
                            .collect(),
                    )
                };
                Ok(IndexMatches {
                    dense: match ask.vector {
                        Some(vector) => search(Vector::new_dense(vector), None)?,
                        None => Vec::new(),
                    },
                    lexical: match ask.words {
                        Some(words) if !words.is_empty() => search(sparse(words)?, Some(WORDS))?,
                        _ => Vec::new(),
                    },
                })
            })
        })
        .await
    }

    pub(super) async fn drop(&self, key: &CollectionKey) -> Result<()> {
        self.run(key, |_, slot| {
            let _writing = slot.writing();
            slot.close();
            remove(&slot.folder)
        })
        .await?;
        self.0.slots().remove(&folder_name(key));
        Ok(())
    }

    pub(super) async fn count(&self, key: &CollectionKey) -> Result<u64> {
        self.run(key, |inner, slot| {
            inner.with(slot, |shard| {
                Ok(shard.count(CountRequest { filter: None, exact: true })? as u64)
            })
        })
        .await
    }

    pub(super) async fn indexed_fields(&self, key: &CollectionKey) -> Result<Vec<String>> {
        self.run(key, |inner, slot| {
            inner.with(slot, |shard| {
                let mut fields: Vec<String> =
                    shard.info().payload_schema.keys().map(ToString::to_string).collect();
                fields.sort_unstable();
                Ok(fields)
            })
        })
        .await
    }

    pub(super) async fn size(&self, key: &CollectionKey, _: usize) -> Result<u64> {
        self.run(key, |_, slot| if slot.folder.exists() { used(&slot.folder) } else { Ok(0) }).await
    }

    pub(super) async fn collections(&self) -> Result<Vec<String>> {
        let inner = self.0.clone();
        blocking(move || {
            let mut names = Vec::new();
            for entry in fs::read_dir(&inner.root)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            names.sort_unstable();
            Ok(names)
        })
        .await
    }

    pub(super) async fn is_optimized(&self, key: &CollectionKey) -> Result<bool> {
        self.run(key, |inner, slot| {
            inner.with(slot, |shard| {
                let info = shard.info();
                // The engine indexes words immediately and counts them together with the vectors
                // that are in a graph.
                let in_graph = info.indexed_vectors_count.saturating_sub(info.points_count);
                // After deletions, the same number of newer points is outside the graph.
                let optimized_points =
                    slot.optimized_points.fetch_min(info.points_count, Ordering::Relaxed);
                Ok(info.points_count.saturating_sub(in_graph.max(optimized_points))
                    < MAX_UNOPTIMIZED)
            })
        })
        .await
    }

    pub(super) async fn optimize(&self, key: &CollectionKey) -> Result<()> {
        if self.is_optimized(key).await? {
            return Ok(());
        }
        let _turn =
            self.0.optimizing.acquire().await.map_err(|_| IndexError::Failed("closed".into()))?;
        self.run(key, |inner, slot| {
            let _writing = slot.writing();
            // The segments are written anew before the old ones are removed.
            disk::check(&inner.root, 2 * used(&slot.folder)?)?;
            inner.with(slot, |shard| {
                shard.optimize()?;
                shard.flush();
                slot.optimized_points.store(shard.info().points_count, Ordering::Relaxed);
                Ok(())
            })
        })
        .await
    }

    pub(super) async fn needs_compaction(&self, key: &CollectionKey) -> Result<bool> {
        self.run(key, |inner, slot| {
            let Some(generation) = slot.current_generation()? else { return Ok(false) };
            let log = used(&slot.folder.join(generation).join("wal"))?;
            let points = inner.with(slot, |shard| Ok(shard.info().points_count as u64))?;
            Ok(log > SMALL_LOG.max(points * LOG_BYTES_PER_POINT * LOG_LIMIT_FACTOR))
        })
        .await
    }

    pub(super) async fn begin_generation(
        &self,
        key: &CollectionKey,
        dimension: usize,
    ) -> Result<()> {
        self.run(key, move |inner, slot| {
            disk::check(&inner.root, 0)?;
            let now = slot.current_generation()?.ok_or(IndexError::CollectionMissing)?;
            let next = now
                .parse::<u64>()
                .map_or_else(|_| "1".to_owned(), |number| (number + 1).to_string());
            let shard = slot.begin(&next, dimension)?;
            *slot.next() = Some((next, shard));
            Ok(())
        })
        .await
    }

    pub(super) async fn fill_generation(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
    ) -> Result<()> {
        self.run(key, move |inner, slot| {
            disk::check(&inner.root, 0)?;
            match &*slot.next() {
                Some((_, shard)) => catch_panic(|| {
                    insert(shard, points)?;
                    shard.flush();
                    Ok(())
                }),
                None => Err(IndexError::CollectionMissing),
            }
        })
        .await
    }

    pub(super) async fn switch_generation(&self, key: &CollectionKey) -> Result<()> {
        let _turn =
            self.0.optimizing.acquire().await.map_err(|_| IndexError::Failed("closed".into()))?;
        self.run(key, move |inner, slot| {
            let (name, shard) = slot.next().take().ok_or(IndexError::CollectionMissing)?;
            disk::check(&inner.root, 2 * used(&slot.folder.join(&name))?)?;
            catch_panic(|| {
                shard.optimize()?;
                shard.flush();
                Ok(())
            })?;
            let _writing = slot.writing();
            let old = slot.current_generation()?.ok_or(IndexError::CollectionMissing)?;
            // From here on the new generation is the current one, even after a crash.
            slot.set_generation(&name)?;
            slot.close();
            *slot.shard.write().unwrap_or_else(PoisonError::into_inner) = Some(shard);
            Ok(fs::remove_dir_all(slot.folder.join(old))?)
        })
        .await
    }

    pub(super) async fn ping(&self) -> Result<()> {
        let inner = self.0.clone();
        blocking(move || disk::check(&inner.root, 0)).await
    }

    pub(super) async fn close(&self) {
        let inner = self.0.clone();
        blocking(move || {
            let slots: Vec<_> = inner.slots().values().cloned().collect();
            for slot in slots {
                let _writing = slot.writing();
                slot.close();
            }
        })
        .await;
    }

    async fn run<T: Send + 'static>(
        &self,
        key: &CollectionKey,
        work: impl FnOnce(&Inner, &Slot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (inner, slot) = (self.0.clone(), self.0.slot(folder_name(key)));
        blocking(move || work(&inner, &slot)).await
    }
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, name: String) -> Arc<Slot> {
        let mut slots = self.slots();
        let folder = self.root.join(&name);
        let slot = slots.entry(name).or_insert_with(|| {
            Arc::new(Slot {
                folder,
                shard: RwLock::new(None),
                next: Mutex::new(None),
                writing: Mutex::new(()),
                used: AtomicU64::new(0),
                flush_failed: AtomicBool::new(false),
                optimized_points: AtomicUsize::new(0),
            })
        });
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        slot.clone()
    }

    /// Works with a collection and opens it first if it is closed.
    fn with<T>(&self, slot: &Slot, work: impl FnOnce(&EdgeShard) -> Result<T>) -> Result<T> {
        loop {
            let shard = slot.shard.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(shard) = &*shard {
                return catch_panic(|| work(shard));
            }
            drop(shard);
            self.load(slot)?;
        }
    }

    fn load(&self, slot: &Slot) -> Result<()> {
        let mut shard = slot.shard.write().unwrap_or_else(PoisonError::into_inner);
        if shard.is_none() {
            // Without a current generation, the creation of the collection never finished.
            let generation = slot.current_generation()?.ok_or(IndexError::CollectionMissing)?;
            disk::check(&self.root, 0)?;
            let folder = slot.folder.join(generation);
            let loaded = catch_panic(|| Ok(EdgeShard::load(&folder, None)?));
            *shard = Some(loaded.map_err(|error| IndexError::Damaged(error.to_string()))?);
            drop(shard);
            self.close_least_recently_used(slot);
        }
        Ok(())
    }

    /// Closes the least recently used collections, because each open one costs some sixty memory
    /// maps.
    fn close_least_recently_used(&self, but: &Slot) {
        let mut open: Vec<Arc<Slot>> =
            self.slots().values().filter(|slot| slot.is_open()).cloned().collect();
        if open.len() <= self.max_open {
            return;
        }
        open.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        let surplus = open.len() - self.max_open;
        for slot in open.iter().filter(|slot| !std::ptr::eq(&raw const ***slot, but)).take(surplus)
        {
            // A collection that is being written stays open; the next call tries again.
            if let Ok(_writing) = slot.writing.try_lock() {
                slot.close();
            }
        }
    }
}

/// The folder of a collection.
fn folder_name(key: &CollectionKey) -> String {
    key.place.clone().unwrap_or_else(|| key.agent.to_string())
}

/// The id of the index in a folder. A file that is missing or damaged is written anew: the
/// collections are then found to be in another index, and are rebuilt.
fn read_or_create_id(root: &Path) -> Result<String> {
    let place = root.join("id");
    match fs::read(&place) {
        Ok(bytes) => {
            let id = String::from_utf8_lossy(&bytes);
            let is_ours =
                |id: &&str| id.strip_prefix("edge-").is_some_and(|id| id.parse::<Uuid>().is_ok());
            if let Some(id) = Some(id.trim()).filter(is_ours) {
                return Ok(id.to_owned());
            }
            tracing::warn!(file = %place.display(), "the id of the memory index is damaged; the \
                index is rebuilt");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(%error, file = %place.display(), "the id of the memory index cannot be \
                read; the index is rebuilt");
        }
    }
    let id = format!("edge-{}", Uuid::now_v7());
    let draft = root.join("id.draft");
    fs::write(&draft, &id)?;
    File::open(&draft)?.sync_all()?;
    if place.is_dir() {
        fs::remove_dir_all(&place)?;
    }
    fs::rename(&draft, &place)?;
    Ok(id)
}
