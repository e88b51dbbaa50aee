//! From the object store to the folder: files that differ are fetched and checked before they
//! replace anything.

use crate::{
    ConversationWorkspace, Error, Result,
    blobs::{self, PART, ReadAhead},
    crash,
    folder_to_store::ChangedFile,
    manifest::{Entry, Manifest, clock},
    run::{Run, SyncReport, Trust},
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
    time::SystemTime,
};

/// How many files are transferred at the same time.
pub(crate) const CONCURRENCY: usize = 64;
/// How often changes outside a run are stored before a sync gives up.
const ROUNDS: usize = 3;

impl Run {
    /// Makes the folder contain the files that the database lists, and fetches those that are
    /// missing or wrong. Content in the folder that no version of any file ever had was put there
    /// outside a run: it becomes a version, or a copy beside the existing version.
    pub(crate) async fn update_folder(&self, open: bool, trust: Trust) -> Result<SyncReport> {
        let known = Arc::new(self.manifest().await?.unwrap_or_default());
        let mut outside = SyncReport::default();
        for _ in 0..ROUNDS {
            let (wanted, generation) = self.wanted().await?;
            let taken = clock();
            let found = self.check_folder(&wanted, &known, trust).await?;
            let (unknown, others) = self.split_unknown(found.others).await?;
            if unknown.is_empty() {
                let found = CheckedFolder { others, ..found };
                let corrected = self.correct_folder(&wanted, generation, found, (open, taken));
                outside.add(corrected.await?);
                return Ok(outside);
            }
            // A change in a folder that was current is based on the newest versions.
            let folders = &self.workspace.files.folders;
            let was_current =
                folders.generation(self.workspace.conversation.id()) == Some(generation);
            let base = if was_current { newest(&wanted) } else { Manifest::clone(&known) };
            outside.add(self.record_outside_changes(&unknown, base).await?);
        }
        // Somebody keeps writing into the folder.
        Err(Error::Locked)
    }

    /// The files that the folder should have, and the generation that they belong to.
    async fn wanted(&self) -> Result<(Arc<HashMap<FilePath, ConversationFile>>, i64)> {
        let store = &self.workspace.files.store;
        // Read before the files: they may be newer than the generation, but not older.
        let generation = store.files_generation(&self.workspace.conversation).await?;
        let rows = store.files(&self.workspace.conversation).await?;
        let wanted = rows.into_iter().map(|file| (file.file_path.clone(), file)).collect();
        Ok((Arc::new(wanted), generation))
    }

    /// Separates content that no version of any file ever had from content that can be replaced.
    async fn split_unknown(
        &self,
        others: Vec<ChangedFile>,
    ) -> Result<(Vec<ChangedFile>, Vec<ChangedFile>)> {
        let (mut unknown, mut replaceable) = (Vec::new(), Vec::new());
        for other in others {
            let (store, conversation) = (&self.workspace.files.store, &self.workspace.conversation);
            let had = other.checksum.is_empty()
                || store.had_content(conversation, &other.checksum).await?;
            if had { replaceable.push(other) } else { unknown.push(other) }
        }
        Ok((unknown, replaceable))
    }

    /// Removes what should not be in the folder, fetches what is missing, and saves the manifest.
    async fn correct_folder(
        &self,
        wanted: &Arc<HashMap<FilePath, ConversationFile>>,
        generation: i64,
        found: CheckedFolder,
        (open, taken): (bool, i64),
    ) -> Result<SyncReport> {
        let CheckedFolder { right: mut stamps, others, mut report } = found;
        let unwanted: Vec<FilePath> = others
            .into_iter()
            .map(|other| other.path)
            .filter(|path| !wanted.contains_key(path))
            .collect();
        report.removed = unwanted.len();
        let folder = self.folder.clone();
        let remove = move || {
            unwanted.iter().try_for_each(|path| folder.take_away(path.as_workspace()).map(drop))
        };
        tokio::task::spawn_blocking(remove).await??;
        report.unchanged = stamps.len();
        let missing: Vec<ConversationFile> =
            wanted.values().filter(|file| !stamps.contains_key(&file.file_path)).cloned().collect();
        report.fetched = missing.len();
        let keys = match missing.is_empty() {
            true => HashMap::new(),
            false => {
                let store = &self.workspace.files.store;
                store.blob_keys(&self.workspace.conversation).await?.into_iter().collect()
            }
        };
        let keys: &HashMap<String, String> = &keys;
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
        let manifest = Manifest { open, taken, files, damaged };
        self.set_generation(generation);
        self.save_state(&manifest);
        self.save_manifest(manifest).await?;
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

    /// Compares the files in the folder with those that should be there.
    async fn check_folder(
        &self,
        wanted: &Arc<HashMap<FilePath, ConversationFile>>,
        known: &Arc<Manifest>,
        trust: Trust,
    ) -> Result<CheckedFolder> {
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await??;
        let share = leaves.len().div_ceil(threads()).max(1);
        let work = leaves.chunks(share).map(|leaves| {
            let (run, leaves) = (FolderCheck::new(self, wanted, known, trust), leaves.to_vec());
            tokio::task::spawn_blocking(move || run.check(&leaves))
        });
        let mut all = CheckedFolder::default();
        for done in futures::future::join_all(work).await {
            let CheckedFolder { right, others, report } = done??;
            all.right.extend(right);
            all.others.extend(others);
            all.report.left_alone.extend(report.left_alone);
        }
        Ok(all)
    }

    async fn fetch(&self, file: &ConversationFile, key: Key) -> Result<Stamp> {
        let files = &self.workspace.files;
        let size = file.file_size as u64;
        let (temp, target) = files.cache.temp()?;
        let damaged = |error| match error {
            Error::Damaged { .. } => Error::Damaged { path: file.file_path.to_string() },
            Error::Lost { .. } => Error::Lost { path: file.file_path.to_string() },
            Error::Expired { .. } => Error::Expired { path: file.file_path.to_string() },
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
        let written_at = SystemTime::from(file.updated_at);
        tokio::task::spawn_blocking(move || {
            if let Some(mut target) = target {
                target.write_all(&bytes.unwrap_or_default())?;
                // The file tells when its content was written, not when it was fetched.
                target.set_modified(written_at)?;
            }
            Run::put_file(&folder, &temp, &path)
        })
        .await?
    }
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A manifest with the newest versions.
fn newest(wanted: &HashMap<FilePath, ConversationFile>) -> Manifest {
    let stamp = Stamp { size: 0, modified: 0, changed: 0, inode: 0 };
    let entry = |file: &ConversationFile| {
        let checksum = file.checksum.clone();
        Entry { file_id: file.file_id, version: file.version, checksum, stamp }
    };
    let files = wanted.values().map(|file| (file.file_path.clone(), entry(file))).collect();
    Manifest { files, ..Manifest::default() }
}

/// The result of checking a folder.
#[derive(Default)]
struct CheckedFolder {
    /// Files with the content that they should have.
    right: HashMap<FilePath, Stamp>,
    /// Files with other content. The checksum is empty if the file need not be kept: it is an older
    /// version, or damaged.
    others: Vec<ChangedFile>,
    report: SyncReport,
}

/// Compares a part of a folder with what should be there.
struct FolderCheck {
    workspace: ConversationWorkspace,
    folder: Arc<Folder>,
    wanted: Arc<HashMap<FilePath, ConversationFile>>,
    known: Arc<Manifest>,
    trust: Trust,
}

impl FolderCheck {
    fn new(
        run: &Run,
        wanted: &Arc<HashMap<FilePath, ConversationFile>>,
        known: &Arc<Manifest>,
        trust: Trust,
    ) -> Self {
        Self {
            workspace: run.workspace.clone(),
            folder: run.folder.clone(),
            wanted: wanted.clone(),
            known: known.clone(),
            trust,
        }
    }

    /// Compares the files with those that should be there. Blocks.
    fn check(&self, leaves: &[Leaf]) -> Result<CheckedFolder> {
        let mut found = CheckedFolder::default();
        for leaf in leaves {
            let Some(path) = file_path(&leaf.path) else {
                found.report.skip(&leaf.path, UNNAMEABLE);
                continue;
            };
            let wanted = self.wanted.get(&path);
            match leaf.kind {
                // A file of the agent that cannot be stored stays in the folder. The agent was told
                // so.
                Kind::File if wanted.is_none() && leaf.stamp.size > self.workspace.limit() => {
                    found.report.skip(&leaf.path, TOO_LARGE);
                }
                Kind::File if self.workspace.check_path_length(&path).is_err() => {
                    found.report.skip(&leaf.path, UNNAMEABLE);
                }
                Kind::File => self.check_file(path, leaf.stamp, wanted, &mut found)?,
                // The fetched file replaces it.
                _ if wanted.is_some() => {}
                kind => found.report.skip(&leaf.path, not_a_file(kind)),
            }
        }
        Ok(found)
    }

    fn check_file(
        &self,
        path: FilePath,
        stamp: Stamp,
        wanted: Option<&ConversationFile>,
        found: &mut CheckedFolder,
    ) -> Result<()> {
        let entry = self.known.files.get(&path);
        let entry = entry.filter(|entry| self.known.is_unchanged(entry, stamp));
        let (checksum, stamp) = match entry {
            Some(entry) if self.trust == Trust::Stamps => (entry.checksum.clone(), stamp),
            _ => match self.folder.open_leaf(path.as_workspace()) {
                Ok((mut open, stamp)) => (hash(&mut open)?, stamp),
                // Deleted since it was listed, so it is fetched.
                Err(atelier_executor::Error::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        if wanted.is_some_and(|file| file.checksum == checksum) {
            found.right.insert(path, stamp);
        } else {
            // A file that nobody has touched since the last sync is outdated or damaged.
            let checksum = if entry.is_some() { String::new() } else { checksum };
            found.others.push(ChangedFile { path, stamp, checksum });
        }
        Ok(())
    }
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
