//! The local folders of conversations. All of it may be deleted at any time: what is in a folder is in the
//! object store, too, but for what a run that is not finished has made there.

use crate::{Result, Settings, locks::Locks, manifest::Manifest};
use atelier_core::ConversationId;
use atelier_executor::{Options, Workspace as Folder};
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};
use uuid::Uuid;

pub(crate) struct Cache {
    root: PathBuf,
    limit: u64,
    /// One run or one upload at a time writes into a folder of this machine.
    pub(crate) desks: Locks,
    used: Mutex<HashMap<ConversationId, Used>>,
}

#[derive(Debug, Clone, Copy)]
struct Used {
    bytes: u64,
    at: SystemTime,
}

/// A file that is gone unless it was put in its place.
#[derive(Debug)]
pub(crate) struct Temp(PathBuf);

impl Temp {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.0.display(), "a temporary file stays behind");
            }
            _ => {}
        }
    }
}

impl Cache {
    pub(crate) async fn open(settings: &Settings, data: &Path) -> Result<Self> {
        let root = settings.cache.clone().unwrap_or_else(|| data.join("workspaces"));
        let root = std::path::absolute(root)?;
        let limit = settings.cache_bytes;
        tokio::task::spawn_blocking(move || {
            // What a crash left half written was never in its place.
            match fs::remove_dir_all(root.join(TEMP)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            fs::create_dir_all(&root)?;
            let used = Mutex::new(measure(&root)?);
            Ok(Self { root, limit, desks: Locks::default(), used })
        })
        .await?
    }

    pub(crate) fn path(&self, conversation: ConversationId) -> PathBuf {
        self.root.join(conversation.to_string())
    }

    pub(crate) fn manifest_path(&self, conversation: ConversationId) -> PathBuf {
        self.root.join(MANIFESTS).join(format!("{conversation}.json"))
    }

    /// The conversation's folder, made if need be.
    pub(crate) fn folder(&self, conversation: ConversationId) -> Result<Folder> {
        let path = self.path(conversation);
        // A link in its place would lead out of the cache.
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(&path)?;
        }
        fs::create_dir_all(&path)?;
        // It may have been deleted with everything else.
        fs::create_dir_all(self.root.join(MANIFESTS))?;
        Ok(Folder::open(&path, Options { obey_ignore: false, ..Options::default() })?)
    }

    /// A file to write into, on the same file system as the folders.
    pub(crate) fn temp(&self) -> io::Result<(Temp, fs::File)> {
        let place = self.root.join(TEMP);
        fs::create_dir_all(&place)?;
        let path = place.join(Uuid::now_v7().simple().to_string());
        let file = fs::File::create_new(&path)?;
        Ok((Temp(path), file))
    }

    /// Notes what a folder holds now.
    pub(crate) fn holds(&self, conversation: ConversationId, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(conversation, Used { bytes, at: SystemTime::now() });
    }

    /// Notes that a folder got more.
    pub(crate) fn grew(&self, conversation: ConversationId, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let before = used.get(&conversation).map_or(0, |used| used.bytes);
        used.insert(conversation, Used { bytes: before + bytes, at: SystemTime::now() });
    }

    /// Removes the folders that were not used for the longest time, until the rest fits. Blocks.
    pub(crate) fn shrink(&self) -> Result<usize> {
        let mut candidates: Vec<(ConversationId, Used)> = {
            let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.iter().map(|(id, used)| (*id, *used)).collect()
        };
        let mut total: u64 = candidates.iter().map(|(_, used)| used.bytes).sum();
        candidates.sort_unstable_by_key(|(_, used)| used.at);
        let mut removed = 0;
        for (conversation, used) in candidates {
            if total <= self.limit {
                break;
            }
            // In use, or with work in it that is not in the object store yet.
            let Some(_desk) = self.desks.try_enter(conversation) else { continue };
            if Manifest::is_open(&self.manifest_path(conversation))? {
                continue;
            }
            self.remove(conversation)?;
            total -= used.bytes;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a folder, which nobody may be working in. Blocks.
    pub(crate) fn remove(&self, conversation: ConversationId) -> Result<()> {
        let gone = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        gone(fs::remove_file(self.manifest_path(conversation)))?;
        gone(fs::remove_dir_all(self.path(conversation)))?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&conversation);
        Ok(())
    }

    /// The conversations that have a folder here.
    pub(crate) fn conversations(&self) -> Vec<ConversationId> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

const TEMP: &str = ".tmp";
const MANIFESTS: &str = ".manifests";

fn measure(root: &Path) -> Result<HashMap<ConversationId, Used>> {
    let mut used = HashMap::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Some(conversation) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let folder = Folder::open(entry.path(), Options { obey_ignore: false, ..Options::default() })?;
        let bytes = folder.leaves()?.iter().map(|leaf| leaf.stamp.size).sum();
        used.insert(conversation, Used { bytes, at: entry.metadata()?.modified()? });
    }
    Ok(used)
}
