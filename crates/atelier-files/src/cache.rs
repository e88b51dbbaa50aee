//! The local folders of conversations. They may be deleted at any time: everything in them is also
//! in the object store, except the changes of a run that has not ended.

use crate::{Result, Settings, locks::ConversationLocks, manifest::Manifest};
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
    /// On this machine, only one run or one upload at a time writes into a folder.
    pub(crate) folder_locks: ConversationLocks,
    used: Mutex<HashMap<ConversationId, FolderUse>>,
}

#[derive(Debug, Clone, Copy)]
struct FolderUse {
    bytes: u64,
    at: SystemTime,
}

/// A temporary file. Dropping it removes the file, unless it was moved away.
#[derive(Debug)]
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.0.display(), "cannot remove a temporary file");
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
            // A crash may leave files that are written in part. Nobody has used them.
            match fs::remove_dir_all(root.join(TEMP)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            fs::create_dir_all(&root)?;
            let used = Mutex::new(measure(&root)?);
            Ok(Self { root, limit, folder_locks: ConversationLocks::default(), used })
        })
        .await?
    }

    pub(crate) fn path(&self, conversation: ConversationId) -> PathBuf {
        self.root.join(conversation.to_string())
    }

    pub(crate) fn manifest_path(&self, conversation: ConversationId) -> PathBuf {
        self.root.join(MANIFESTS).join(format!("{conversation}.json"))
    }

    /// Opens the conversation's folder, and creates it if it does not exist.
    pub(crate) fn folder(&self, conversation: ConversationId) -> Result<Folder> {
        let path = self.path(conversation);
        // A link instead of the folder would lead out of the cache.
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(&path)?;
        }
        fs::create_dir_all(&path)?;
        // The folder of manifests may have been deleted with the rest of the cache.
        fs::create_dir_all(self.root.join(MANIFESTS))?;
        Ok(Folder::open(&path, options())?)
    }

    /// Creates a temporary file on the same file system as the folders.
    pub(crate) fn temp(&self) -> io::Result<(TempFile, fs::File)> {
        let folder = self.root.join(TEMP);
        fs::create_dir_all(&folder)?;
        let path = folder.join(Uuid::now_v7().simple().to_string());
        let file = fs::File::create_new(&path)?;
        Ok((TempFile(path), file))
    }

    /// Records the size of a folder.
    pub(crate) fn set_size(&self, conversation: ConversationId, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(conversation, FolderUse { bytes, at: SystemTime::now() });
    }

    /// Records that a folder has grown.
    pub(crate) fn add_size(&self, conversation: ConversationId, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let before = used.get(&conversation).map_or(0, |used| used.bytes);
        used.insert(conversation, FolderUse { bytes: before + bytes, at: SystemTime::now() });
    }

    /// Removes the least recently used folders until the rest fits. Blocks.
    pub(crate) fn shrink(&self) -> Result<usize> {
        let mut candidates: Vec<(ConversationId, FolderUse)> = {
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
            // Keep folders that are in use or hold changes that are not stored yet.
            let Some(_folder_lock) = self.folder_locks.try_lock(conversation) else { continue };
            if Manifest::is_open(&self.manifest_path(conversation))? {
                continue;
            }
            self.remove(conversation)?;
            total -= used.bytes;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a folder. The caller makes sure that nobody works in it. Blocks.
    pub(crate) fn remove(&self, conversation: ConversationId) -> Result<()> {
        let ignore_missing = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        ignore_missing(fs::remove_file(self.manifest_path(conversation)))?;
        ignore_missing(fs::remove_dir_all(self.path(conversation)))?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&conversation);
        Ok(())
    }

    /// The conversations that have a folder here.
    pub(crate) fn conversations(&self) -> Vec<ConversationId> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

/// `.atelierignore` hides nothing from a sync.
fn options() -> Options {
    Options { obey_ignore: false, ..Options::default() }
}

const TEMP: &str = ".tmp";
const MANIFESTS: &str = ".manifests";

fn measure(root: &Path) -> Result<HashMap<ConversationId, FolderUse>> {
    let mut used = HashMap::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Some(conversation) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let folder = Folder::open(entry.path(), options())?;
        let bytes = folder.leaves()?.iter().map(|leaf| leaf.stamp.size).sum();
        used.insert(conversation, FolderUse { bytes, at: entry.metadata()?.modified()? });
    }
    Ok(used)
}
