//! One collection in its folder: its generations, and whether it is open.

use super::engine::{catch_panic, create};
use crate::index::Result;
use qdrant_edge::EdgeShard;
use std::{
    fs::{self, File},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

const GENERATION_FILE: &str = "generation";

/// One collection, open or closed. Its folder holds generations of it, and a file that names the
/// current generation.
pub(super) struct Slot {
    pub(super) folder: PathBuf,
    pub(super) shard: RwLock<Option<EdgeShard>>,
    /// The next generation, while it is being filled.
    pub(super) next: Mutex<Option<(String, EdgeShard)>>,
    /// Locked while the collection is changed, flushed or optimized.
    pub(super) writing: Mutex<()>,
    pub(super) used: AtomicU64,
    /// Whether the collection was closed and could not be flushed.
    pub(super) flush_failed: AtomicBool,
    /// How many points there were when the graph was last built. Some of them may not be in the
    /// graph even then.
    pub(super) optimized_points: AtomicUsize,
}

impl Slot {
    /// The current generation; `None` if the creation of the collection never finished.
    pub(super) fn current_generation(&self) -> Result<Option<String>> {
        match fs::read_to_string(self.folder.join(GENERATION_FILE)) {
            Ok(generation) => Ok(Some(generation)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the current generation atomically.
    pub(super) fn set_generation(&self, generation: &str) -> Result<()> {
        let draft = self.folder.join("draft");
        fs::write(&draft, generation)?;
        File::open(&draft)?.sync_all()?;
        fs::rename(&draft, self.folder.join(GENERATION_FILE))?;
        Ok(File::open(&self.folder)?.sync_all()?)
    }

    /// Creates an empty generation and removes what a crash has left of an earlier attempt.
    pub(super) fn begin(&self, generation: &str, dimension: usize) -> Result<EdgeShard> {
        let folder = self.folder.join(generation);
        remove(&folder)?;
        fs::create_dir_all(&folder)?;
        catch_panic(|| create(&folder, dimension))
    }

    pub(super) fn next(&self) -> MutexGuard<'_, Option<(String, EdgeShard)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.shard.try_read().is_ok_and(|shard| shard.is_some())
    }

    /// Closes the collection. The engine flushes on close and panics if it cannot.
    pub(super) fn close(&self) {
        let shard = self.shard.write().unwrap_or_else(PoisonError::into_inner).take();
        if catch_unwind(AssertUnwindSafe(move || drop(shard))).is_err() {
            self.flush_failed.store(true, Ordering::Relaxed);
            tracing::warn!(folder = %self.folder.display(), "a collection could not be flushed at \
                its end");
        }
    }
}

/// Removes a collection's folder. The generation file goes first, so that a half-removed collection
/// is never taken for a whole one.
pub(super) fn remove(folder: &Path) -> Result<()> {
    for gone in [fs::remove_file(folder.join(GENERATION_FILE)), fs::remove_dir_all(folder)] {
        match gone {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// The disk space that a folder uses. Logs are allocated larger than their contents.
pub(super) fn used(folder: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        total += if meta.is_dir() { used(&entry.path())? } else { size_on_disk(&meta) };
    }
    Ok(total)
}

#[cfg(unix)]
fn size_on_disk(meta: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(meta) * 512
}

#[cfg(not(unix))]
fn size_on_disk(meta: &fs::Metadata) -> u64 {
    meta.len()
}
