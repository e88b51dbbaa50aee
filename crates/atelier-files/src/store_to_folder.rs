//! From the object store to the folder: files that differ are fetched and checked before they
//! replace anything.

use crate::{
    ConversationWorkspace, Error, Result,
    blobs::{self, PART, ReadAhead},
    crash,
    manifest::{Entry, Manifest, clock},
    run::{Run, SyncReport},
};
use atelier_core::{ConversationFile, FilePath};
use atelier_executor::{Kind, Leaf, Stamp, Workspace as Folder};
use atelier_store::Error as StoreError;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    path::Path,
    sync::Arc,
};

/// How many files are transferred at the same time.
pub(crate) const CONCURRENCY: usize = 64;

impl Run {
    /// Makes the folder contain what the database says. Hashes every file in the folder, so that a
    /// flipped byte is found, and fetches the files that are missing or wrong.
    pub(crate) async fn update_folder(&self, open: bool) -> Result<SyncReport> {
        let store = &self.workspace.files.store;
        let rows = store.files(&self.workspace.conversation).await?;
        let keys: HashMap<String, String> =
            store.blob_keys(&self.workspace.conversation).await?.into_iter().collect();
        let wanted: Arc<HashMap<FilePath, ConversationFile>> =
            Arc::new(rows.into_iter().map(|file| (file.file_path.clone(), file)).collect());
        let taken = clock();
        let (mut stamps, mut report) = self.check_folder(&wanted).await?;
        report.unchanged = stamps.len();
        let missing: Vec<ConversationFile> =
            wanted.values().filter(|file| !stamps.contains_key(&file.file_path)).cloned().collect();
        report.fetched = missing.len();
        let keys = &keys;
        let fetches = missing.into_iter().map(|file| async move {
            let stamp = match keys.get(&file.checksum) {
                Some(key) => self.fetch(&file, Key::from(key.as_str())).await,
                None => Err(StoreError::BlobGone.into()),
            };
            (file, stamp)
        });
        let mut fetches = futures::stream::iter(fetches).buffer_unordered(CONCURRENCY);
        let mut lost = Vec::new();
        while let Some((file, stamp)) = fetches.next().await {
            match stamp {
                Ok(stamp) => drop(stamps.insert(file.file_path, stamp)),
                // One lost content must not keep the agent from working on the other files.
                Err(error) if error.is_damage() => {
                    let conversation = self.workspace.conversation.id();
                    tracing::error!(%error, %conversation, path = %file.file_path, "cannot fetch \
                        a file");
                    lost.push(file);
                }
                Err(error) => return Err(error),
            }
        }
        drop(fetches);
        report.fetched -= lost.len();
        let damaged = self.remove_unreadable(lost).await?;
        report.damaged = damaged.keys().map(ToString::to_string).collect();
        let entry = |file: &ConversationFile| {
            let stamp = *stamps.get(&file.file_path)?;
            let checksum = file.checksum.clone();
            let entry = Entry { file_id: file.file_id, version: file.version, checksum, stamp };
            Some((file.file_path.clone(), entry))
        };
        let files = wanted.values().filter_map(entry).collect();
        self.save_manifest(Manifest { open, taken, files, damaged }).await?;
        Ok(report)
    }

    /// Removes files that could not be fetched from the folder. Returns those that are damaged; the
    /// others were deleted or replaced in the meantime.
    async fn remove_unreadable(
        &self,
        lost: Vec<ConversationFile>,
    ) -> Result<HashMap<FilePath, i64>> {
        if lost.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = self.workspace.list().await?;
        let now: HashMap<_, _> = rows.iter().map(|file| (file.file_id, &file.checksum)).collect();
        let still = lost.iter().filter(|file| now.get(&file.file_id) == Some(&&file.checksum));
        let damaged = still.map(|file| (file.file_path.clone(), file.version)).collect();
        let folder = self.folder.clone();
        let remove = move || {
            lost.iter()
                .try_for_each(|file| folder.take_away(file.file_path.as_workspace()).map(drop))
        };
        tokio::task::spawn_blocking(remove).await??;
        Ok(damaged)
    }

    /// Hashes the files in the folder and removes those that should not be there. Returns the
    /// stamps of the right ones.
    async fn check_folder(
        &self,
        wanted: &Arc<HashMap<FilePath, ConversationFile>>,
    ) -> Result<(HashMap<FilePath, Stamp>, SyncReport)> {
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await??;
        let share = leaves.len().div_ceil(threads()).max(1);
        let work = leaves.chunks(share).map(|leaves| {
            let (folder, wanted, leaves) = (self.folder.clone(), wanted.clone(), leaves.to_vec());
            let workspace = self.workspace.clone();
            tokio::task::spawn_blocking(move || check(&workspace, &folder, &wanted, &leaves))
        });
        let (mut right, mut report) = (HashMap::with_capacity(leaves.len()), SyncReport::default());
        for done in futures::future::join_all(work).await {
            let (stamps, part) = done??;
            right.extend(stamps);
            report.removed += part.removed;
            report.left_alone.extend(part.left_alone);
        }
        Ok((right, report))
    }

    async fn fetch(&self, file: &ConversationFile, key: Key) -> Result<Stamp> {
        let files = &self.workspace.files;
        let size = file.file_size as u64;
        let (temp, target) = files.cache.temp()?;
        let damaged = |error| match error {
            Error::Damaged { .. } => Error::Damaged { path: file.file_path.to_string() },
            Error::Lost { .. } => Error::Lost { path: file.file_path.to_string() },
            other => other,
        };
        let mut target = Some(target);
        let bytes = if size <= PART as u64 {
            // The content may have been damaged on the way, so try once more.
            let checked = match blobs::get_checked(&files.content, &key, size, &file.checksum).await
            {
                Err(Error::Damaged { .. }) => {
                    blobs::get_checked(&files.content, &key, size, &file.checksum).await
                }
                other => other,
            };
            Some(checked.map_err(damaged)?)
        } else {
            let body = blobs::get(files, key, 0..size, ReadAhead::COPY);
            let mut body = blobs::checked(body, file.checksum.clone(), file.file_path.to_string());
            while let Some(piece) = body.try_next().await? {
                let Some(mut to) = target.take() else { return Err(Error::Stopping) };
                target = Some(
                    tokio::task::spawn_blocking(move || to.write_all(&piece).map(|()| to))
                        .await??,
                );
            }
            None
        };
        crash::point("fetched");
        let (folder, path) = (self.folder.clone(), file.file_path.clone());
        tokio::task::spawn_blocking(move || {
            if let (Some(bytes), Some(mut target)) = (bytes, target) {
                target.write_all(&bytes)?;
            }
            Run::put_file(&folder, &temp, &path)
        })
        .await?
    }
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn check(
    workspace: &ConversationWorkspace,
    folder: &Folder,
    wanted: &HashMap<FilePath, ConversationFile>,
    leaves: &[Leaf],
) -> Result<(HashMap<FilePath, Stamp>, SyncReport)> {
    let (mut right, mut report) = (HashMap::with_capacity(leaves.len()), SyncReport::default());
    for leaf in leaves {
        let Some(path) = leaf.path.to_str().and_then(|path| FilePath::parse(path).ok()) else {
            report.skip(&leaf.path, UNNAMEABLE);
            continue;
        };
        match (leaf.kind, wanted.get(&path)) {
            (Kind::File, Some(file)) if leaf.stamp.size == file.file_size as u64 => {
                match folder.open_leaf(path.as_workspace()) {
                    Ok((mut open, stamp)) => {
                        if hash(&mut open)? == file.checksum {
                            right.insert(path, stamp);
                        }
                    }
                    // Deleted since it was listed, so it is fetched.
                    Err(atelier_executor::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // The fetched file replaces it.
            (_, Some(_)) => {}
            // A file of the agent that cannot be stored stays in the folder. The agent was told so.
            (Kind::File, None) if leaf.stamp.size > workspace.limit() => {
                report.skip(&leaf.path, TOO_LARGE);
            }
            (Kind::File, None) if workspace.check_path_length(&path).is_err() => {
                report.skip(&leaf.path, UNNAMEABLE);
            }
            (Kind::File, None) => {
                folder.take_away(path.as_workspace())?;
                report.removed += 1;
            }
            (kind, None) => report.skip(&leaf.path, not_a_file(kind)),
        }
    }
    Ok((right, report))
}

pub(crate) const TOO_LARGE: &str = "it is too large";
pub(crate) const UNNAMEABLE: &str = "its name is not allowed";

pub(crate) fn not_a_file(kind: Kind) -> &'static str {
    if kind == Kind::Symlink { "it is a link" } else { "it is not a regular file" }
}

pub(crate) fn hash(file: &mut File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(blobs::hex(&hasher.finalize())),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A path in the folder as a file path; `None` if its name is not allowed.
pub(crate) fn file_path(path: &Path) -> Option<FilePath> {
    FilePath::parse(path.to_str()?).ok()
}
