//! An agent's run in a conversation's folder, from the first sync to the last. Across all nodes, a
//! conversation has at most one run at a time.

use crate::{
    ConversationWorkspace, Error, Result, cache::TempFile, context::WorkspaceContext,
    manifest::Manifest,
};
use atelier_core::{ConversationFile, ConversationId, FilePath};
use atelier_executor::Workspace as Folder;
use atelier_store::{Author, Edit, Edited, Fence};
use serde::Serialize;
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::OwnedMutexGuard, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// The result of a sync.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SyncReport {
    /// How many files were copied from the object store into the folder.
    pub fetched: usize,
    /// How many files were already up to date.
    pub unchanged: usize,
    /// How many files were removed from the folder because they had been deleted.
    pub removed: usize,
    /// Paths of new files that were saved from the folder to the object store.
    pub created: Vec<String>,
    pub modified: Vec<String>,
    pub deleted: Vec<String>,
    pub renamed: Vec<Renamed>,
    /// Files that somebody else changed during the run. Both versions are kept.
    pub conflicts: Vec<Conflict>,
    /// Entries of the folder that cannot be stored.
    pub left_alone: Vec<SkippedFile>,
    /// Files whose content the object store has lost. They are not in the folder; writing a new
    /// version repairs them.
    pub damaged: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Renamed {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Conflict {
    pub path: String,
    /// Path of the agent's version; null if the agent only deleted the file.
    pub kept_as: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LeftAlone))]
pub struct SkippedFile {
    pub path: String,
    pub why: &'static str,
}

impl SyncReport {
    pub(crate) fn skip(&mut self, path: &Path, why: &'static str) {
        self.left_alone.push(SkippedFile { path: path.to_string_lossy().into_owned(), why });
    }

    /// Remarks for the agent that made the changes about how they were saved. Each begins with a
    /// line break.
    pub fn remarks(&self) -> String {
        let mut text = String::new();
        for conflict in &self.conflicts {
            // Writing into a String does not fail.
            let _ = match &conflict.kept_as {
                Some(kept) => write!(
                    text,
                    "\nSomebody else changed {} at the same time. Their version is there now; \
                     yours was saved as {kept}.",
                    conflict.path
                ),
                None => {
                    write!(
                        text,
                        "\nSomebody else changed {} at the same time, so it was not deleted.",
                        conflict.path
                    )
                }
            };
        }
        for left in &self.left_alone {
            let _ = write!(text, "\n{} was not stored: {}.", left.path, left.why);
        }
        for path in &self.damaged {
            let _ = write!(text, "\n{path} is damaged in the object store and cannot be read.");
        }
        text
    }

    pub(crate) fn add(&mut self, later: SyncReport) {
        self.fetched += later.fetched;
        self.unchanged = later.unchanged;
        self.removed += later.removed;
        self.created.extend(later.created);
        self.modified.extend(later.modified);
        self.deleted.extend(later.deleted);
        self.renamed.extend(later.renamed);
        self.damaged.extend(later.damaged);
        self.add_remarks(later.conflicts, later.left_alone);
    }

    /// Adds the conflicts and skipped files that another sync found.
    fn add_remarks(&mut self, conflicts: Vec<Conflict>, left_alone: Vec<SkippedFile>) {
        self.conflicts.extend(conflicts);
        for left in left_alone {
            if !self.left_alone.contains(&left) {
                self.left_alone.push(left);
            }
        }
    }
}

/// The right to work in a conversation's folder. Dropping it releases the lease. Changes that were
/// not synced stay in the folder, and the next run on this machine saves them.
pub struct Run {
    pub(crate) workspace: ConversationWorkspace,
    pub(crate) folder: Arc<Folder>,
    pub(crate) fence: Fence,
    pub(crate) path: PathBuf,
    first: SyncReport,
    /// How often the conversation's files have changed, if the folder has all those changes.
    generation: Mutex<Option<i64>>,
    /// Conflicts and skipped files that earlier syncs of this run found.
    between: Mutex<SyncReport>,
    _folder_lock: OwnedMutexGuard<()>,
    _lease: Lease,
}

impl ConversationWorkspace {
    /// Takes the lease, saves what a crashed run has left in the folder, and updates the folder.
    /// Waits at most `wait` for another run to end, then fails with [`Error::Locked`].
    pub async fn sync_to_local(&self, wait: Duration) -> Result<Run> {
        let deadline = Instant::now() + wait;
        let folder_lock = self.lock_folder(deadline).await?;
        self.begin(folder_lock, deadline, true, Trust::Stamps).await
    }

    /// Updates the folder as `sync_to_local` does, but without starting a run. Reads every file in
    /// the folder, so that damage is found.
    pub async fn sync(&self, wait: Duration) -> Result<SyncReport> {
        let deadline = Instant::now() + wait;
        let folder_lock = self.lock_folder(deadline).await?;
        let run = self.begin(folder_lock, deadline, false, Trust::Nothing).await?;
        let report = run.first.clone();
        run.release().await?;
        Ok(report)
    }

    /// A folder with the newest versions, for reading one file (`touched`) or looking around.
    /// Readers do not wait for each other or for runs, unless the folder is outdated.
    pub async fn current_folder(
        &self,
        touched: Option<&FilePath>,
        wait: Duration,
    ) -> Result<PathBuf> {
        let path = self.files.cache.path(self.conversation.id());
        if self.is_current(touched).await? {
            return Ok(path);
        }
        let deadline = Instant::now() + wait;
        let folder_lock = match self.files.cache.folder_locks.try_lock(self.conversation.id()) {
            Some(folder_lock) => folder_lock,
            // A run is changing the file.
            None if touched.is_some() && self.is_current(None).await? => return Ok(path),
            None => self.lock_folder(deadline).await?,
        };
        // Somebody else may have synced the folder in the meantime.
        if !self.is_current(touched).await? {
            let run = self.begin(folder_lock, deadline, false, Trust::Stamps).await?;
            run.release().await?;
        }
        Ok(path)
    }

    async fn is_current(&self, touched: Option<&FilePath>) -> Result<bool> {
        let (files, conversation) = (self.files.clone(), self.conversation.id());
        let generation = files.store.files_generation(&self.conversation).await?;
        let touched = touched.cloned();
        let look = move || {
            let path = files.cache.path(conversation);
            files.folders.is_current(&path, conversation, generation, touched.as_ref())
        };
        Ok(tokio::task::spawn_blocking(look).await?)
    }

    async fn lock_folder(&self, deadline: Instant) -> Result<OwnedMutexGuard<()>> {
        let lock = self.files.cache.folder_locks.lock(self.conversation.id());
        tokio::time::timeout_at(deadline, lock).await.map_err(|_| Error::Locked)
    }

    async fn begin(
        &self,
        folder_lock: OwnedMutexGuard<()>,
        deadline: Instant,
        open: bool,
        trust: Trust,
    ) -> Result<Run> {
        let lease = Lease::take(self, deadline).await?;
        let path = self.files.cache.path(self.conversation.id());
        let folder = self.local_folder().await?;
        let (fence, first) = (lease.fence, SyncReport::default());
        let mut run = Run {
            workspace: self.clone(),
            folder,
            fence,
            path,
            first,
            generation: Mutex::new(None),
            between: Mutex::default(),
            _folder_lock: folder_lock,
            _lease: lease,
        };
        if run.manifest().await?.is_some_and(|manifest| manifest.open) {
            run.first = run.record_changes(MissingFiles::Unknown).await?;
        }
        for tries in 1.. {
            match run.update_folder(open, trust).await {
                Ok(updated) => {
                    run.first.add(updated);
                    break;
                }
                // Somebody deleted the folder in the meantime, so create it again.
                Err(Error::Folder(_) | Error::Io(_))
                    if tries < 3 && !run.folder.is_at(&run.path) =>
                {
                    run.folder = self.local_folder().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(run)
    }

    async fn local_folder(&self) -> Result<Arc<Folder>> {
        let workspace = self.clone();
        let folder = move || workspace.files.cache.folder(workspace.conversation.id());
        Ok(Arc::new(tokio::task::spawn_blocking(folder).await??))
    }
}

impl Run {
    pub fn conversation(&self) -> ConversationId {
        self.workspace.conversation()
    }

    /// The folder that the run's file tools act in.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The result of the first sync.
    pub fn report(&self) -> &SyncReport {
        &self.first
    }

    /// The part of the agent's prompt about the workspace.
    pub async fn context(&self) -> Result<WorkspaceContext> {
        Ok(WorkspaceContext::new(self.path.clone(), &self.workspace.list().await?))
    }

    /// Saves what changed in the folder since the last sync.
    pub async fn sync_back(&self) -> Result<SyncReport> {
        let mut report = self.record_changes(MissingFiles::Deleted).await?;
        if !report.conflicts.is_empty() {
            // The folder now has to show both versions: the other one, and the agent's beside it.
            let updated = self.update_folder(true, Trust::Stamps).await?;
            report.fetched += updated.fetched;
        }
        Ok(report)
    }

    /// Presents files to the user. Syncs first, so that the files are stored.
    pub async fn present_files(
        &self,
        paths: &[FilePath],
        description: Option<String>,
    ) -> Result<Vec<ConversationFile>> {
        let SyncReport { conflicts, left_alone, .. } = self.sync_back().await?;
        self.between
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add_remarks(conflicts, left_alone);
        let mut ids = Vec::with_capacity(paths.len());
        for path in paths {
            let file =
                self.workspace.files.store.file_at(&self.workspace.conversation, path).await?;
            ids.push(file.ok_or_else(|| Error::NoSuchFile(path.to_string()))?.file_id);
        }
        let workspace = &self.workspace;
        let store = &workspace.files.store;
        Ok(store
            .present_files(
                workspace.conversation.owned(),
                workspace.conversation.id(),
                ids,
                description,
            )
            .await?)
    }

    /// Syncs for the last time and releases the folder. The report includes the conflicts and
    /// skipped files of all syncs of the run.
    pub async fn end(self) -> Result<SyncReport> {
        let mut report = self.sync_back().await?;
        let SyncReport { conflicts, left_alone, mut damaged, .. } = self.first.clone();
        // Writing a new version has repaired these files.
        damaged.retain(|path| !report.modified.contains(path));
        report.damaged = damaged;
        report.add_remarks(conflicts, left_alone);
        let between =
            std::mem::take(&mut *self.between.lock().unwrap_or_else(PoisonError::into_inner));
        report.add_remarks(between.conflicts, between.left_alone);
        let mut manifest = self.manifest().await?.unwrap_or_default();
        manifest.open = false;
        self.save_state(&manifest);
        self.save_manifest(manifest).await?;
        self.release().await?;
        Ok(report)
    }

    /// Makes edits as the agent. Notes whether the folder still has all changes of the
    /// conversation's files.
    pub(crate) async fn edit(&self, edits: Vec<Edit>) -> Result<Vec<Edited>> {
        let made = self.workspace.edit(Author::Agent, edits, Some(self.fence)).await?;
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        *generation = generation.filter(|last| last + 1 == made.generation).map(|last| last + 1);
        Ok(made.edited)
    }

    pub(crate) fn set_generation(&self, generation: i64) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) = Some(generation);
    }

    /// Notes that readers may trust the files of the manifest, unless somebody else has changed
    /// any.
    pub(crate) fn save_state(&self, manifest: &Manifest) {
        let (files, conversation) = (&self.workspace.files, self.workspace.conversation.id());
        let generation = *self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        match generation {
            Some(generation) => {
                let stamps = manifest.files.iter();
                let stamps = stamps.map(|(path, entry)| (path.clone(), entry.stamp)).collect();
                files.folders.set(conversation, self.folder.clone(), generation, stamps);
            }
            None => files.folders.forget(conversation),
        }
    }

    async fn release(self) -> Result<()> {
        let files = self.workspace.files.clone();
        let Run { _folder_lock, _lease: lease, .. } = self;
        lease.release().await;
        drop(_folder_lock);
        tokio::task::spawn_blocking(move || files.cache.shrink()).await??;
        Ok(())
    }

    pub(crate) async fn manifest(&self) -> Result<Option<Manifest>> {
        let path = self.workspace.files.cache.manifest_path(self.workspace.conversation.id());
        tokio::task::spawn_blocking(move || Manifest::load(&path)).await?
    }

    pub(crate) async fn save_manifest(&self, manifest: Manifest) -> Result<()> {
        let path = self.workspace.files.cache.manifest_path(self.workspace.conversation.id());
        let bytes = manifest.files.values().map(|entry| entry.stamp.size).sum();
        self.workspace.files.cache.set_size(self.workspace.conversation.id(), bytes);
        tokio::task::spawn_blocking(move || manifest.save(&path)).await?
    }

    /// Moves a complete file into the folder. Blocks.
    pub(crate) fn put_file(
        folder: &Folder,
        temp: &TempFile,
        path: &FilePath,
    ) -> Result<atelier_executor::Stamp> {
        Ok(folder.place(temp.path(), path.as_workspace())?)
    }
}

/// The files that a sync trusts without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Files whose size, times and inode are those of the last sync.
    Stamps,
    /// Every file is read.
    Nothing,
}

/// The meaning of a file in the manifest that is not in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingFiles {
    /// A run is at work, so it has deleted the file.
    Deleted,
    /// A run crashed here some time ago. The file may have been lost with the cache, so it is not
    /// deleted.
    Unknown,
}

/// The lease on the folder. It is renewed until this value is dropped, then released.
struct Lease {
    fence: Fence,
    stop: CancellationToken,
    keeper: Option<JoinHandle<()>>,
}

/// How often to check whether another node has ended its run.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Lease {
    async fn take(workspace: &ConversationWorkspace, deadline: Instant) -> Result<Self> {
        let files = &workspace.files;
        let time = files.settings.lease;
        let fence = loop {
            let lease = files.store.lease_workspace(
                workspace.conversation.owned(),
                workspace.conversation.id(),
                time,
            );
            if let Some(fence) = lease.await? {
                break fence;
            }
            if Instant::now() + POLL_INTERVAL > deadline {
                return Err(Error::Locked);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let stop = CancellationToken::new();
        let keeper = keep_renewed(workspace.clone(), fence, stop.clone());
        Ok(Self { fence, stop, keeper: Some(files.tasks.spawn(keeper)) })
    }

    async fn release(mut self) {
        self.stop.cancel();
        if let Some(keeper) = self.keeper.take()
            && let Err(error) = keeper.await
        {
            tracing::warn!(%error, "cannot release a lease; it will expire");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn keep_renewed(workspace: ConversationWorkspace, fence: Fence, stop: CancellationToken) {
    let time = workspace.files.settings.lease;
    let renew = |time| {
        workspace.files.store.renew_workspace(
            workspace.conversation.owned(),
            workspace.conversation.id(),
            fence,
            time,
        )
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(time / 3) => {}
        }
        match renew(time).await {
            Ok(()) => {}
            Err(atelier_store::Error::LeaseLost) => {
                // The run notices by itself, because every write carries the fence.
                tracing::warn!(conversation = %workspace.conversation.id(), "a run lost its lease");
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot renew a lease; will try again"),
        }
    }
    if let Err(error) = renew(Duration::ZERO).await {
        tracing::debug!(%error, "cannot release a lease; it will expire");
    }
}
