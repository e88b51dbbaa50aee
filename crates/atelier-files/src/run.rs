//! A run of an agent in a conversation's folder: one at a time on all nodes, from the first sync to the last.

use crate::{Error, Result, Workspace, cache::Temp, context::WorkspaceContext, manifest::Manifest};
use atelier_core::{ConversationFile, FilePath};
use atelier_executor::Workspace as Folder;
use atelier_store::Fence;
use serde::Serialize;
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::OwnedMutexGuard, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// What a sync did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SyncReport {
    /// Files that came from the object store into the folder.
    pub fetched: usize,
    /// Files that were in step already.
    pub unchanged: usize,
    /// Files that were removed from the folder because they are deleted.
    pub removed: usize,
    /// Paths that went from the folder into the object store.
    pub created: Vec<String>,
    pub modified: Vec<String>,
    pub deleted: Vec<String>,
    pub renamed: Vec<Renamed>,
    /// Files that somebody else changed meanwhile: both versions are kept.
    pub conflicts: Vec<Conflict>,
    /// What is in the folder and stays there only.
    pub left_alone: Vec<LeftAlone>,
    /// Files that the object store has lost: they are not in the folder. A new version mends them.
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
    /// Where the agent's version went; nowhere if all it did was delete the file.
    pub kept_as: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeftAlone {
    pub path: String,
    pub why: &'static str,
}

impl SyncReport {
    pub(crate) fn leave(&mut self, path: &Path, why: &'static str) {
        self.left_alone.push(LeftAlone { path: path.to_string_lossy().into_owned(), why });
    }

    /// What whoever made the changes has to know about how they were taken: lines that each begin a new one.
    pub fn remarks(&self) -> String {
        let mut text = String::new();
        for conflict in &self.conflicts {
            // Writing into a String does not fail.
            let _ = match &conflict.kept_as {
                Some(kept) => write!(
                    text,
                    "\nSomebody else changed {} meanwhile: their version stands there, yours is kept as {kept}.",
                    conflict.path
                ),
                None => {
                    write!(text, "\nSomebody else changed {} meanwhile: it was not deleted.", conflict.path)
                }
            };
        }
        for left in &self.left_alone {
            let _ = write!(text, "\n{} is not stored: {}.", left.path, left.why);
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
        self.tell(later.conflicts, later.left_alone);
    }

    /// What another sync found that whoever made the changes has to know.
    fn tell(&mut self, conflicts: Vec<Conflict>, left_alone: Vec<LeftAlone>) {
        self.conflicts.extend(conflicts);
        for left in left_alone {
            if !self.left_alone.contains(&left) {
                self.left_alone.push(left);
            }
        }
    }
}

/// A run that may work in the folder. Dropping it gives the lease back and leaves the last changes to the next
/// run on this machine, which finds and keeps them.
pub struct Run {
    pub(crate) workspace: Workspace,
    pub(crate) folder: Arc<Folder>,
    pub(crate) fence: Fence,
    pub(crate) path: PathBuf,
    first: SyncReport,
    /// What syncs in between found that somebody has to know.
    between: Mutex<SyncReport>,
    _desk: OwnedMutexGuard<()>,
    _lease: Lease,
}

impl Workspace {
    /// Takes the lease, carries over what a run that did not end has left, and brings the folder in step. Waits
    /// so long for another run to end, then says [`Error::Locked`].
    pub async fn sync_to_local(&self, wait: Duration) -> Result<Run> {
        self.begin(wait, true).await
    }

    /// The same without a run to follow: nobody works in the folder afterwards.
    pub async fn sync(&self, wait: Duration) -> Result<SyncReport> {
        let run = self.begin(wait, false).await?;
        let report = run.first.clone();
        run.leave().await?;
        Ok(report)
    }

    async fn begin(&self, wait: Duration, open: bool) -> Result<Run> {
        let deadline = Instant::now() + wait;
        let desk = tokio::time::timeout_at(deadline, self.files.cache.desks.enter(self.conversation));
        let desk = desk.await.map_err(|_| Error::Locked)?;
        let lease = Lease::take(self, deadline).await?;
        let path = self.files.cache.path(self.conversation);
        let folder = self.local_folder().await?;
        let (fence, first) = (lease.fence, SyncReport::default());
        let mut run = Run {
            workspace: self.clone(),
            folder,
            fence,
            path,
            first,
            between: Mutex::default(),
            _desk: desk,
            _lease: lease,
        };
        if run.manifest().await?.is_some_and(|manifest| manifest.open) {
            run.first = run.push(Trust::Leftovers).await?;
        }
        for tries in 1.. {
            match run.pull(open).await {
                Ok(pulled) => {
                    run.first.add(pulled);
                    break;
                }
                // Somebody deleted it meanwhile: it is made anew.
                Err(Error::Folder(_) | Error::Io(_)) if tries < 3 && !run.folder.is_at(&run.path) => {
                    run.folder = self.local_folder().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(run)
    }

    async fn local_folder(&self) -> Result<Arc<Folder>> {
        let workspace = self.clone();
        let folder = move || workspace.files.cache.folder(workspace.conversation);
        Ok(Arc::new(tokio::task::spawn_blocking(folder).await??))
    }
}

impl Run {
    /// The folder that the run's file tools act in.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// What the first sync did.
    pub fn report(&self) -> &SyncReport {
        &self.first
    }

    /// What to tell the agent.
    pub async fn context(&self) -> Result<WorkspaceContext> {
        Ok(WorkspaceContext::new(self.path.clone(), &self.workspace.list().await?))
    }

    /// Carries over what changed in the folder since the last sync.
    pub async fn sync_back(&self) -> Result<SyncReport> {
        let mut report = self.push(Trust::Run).await?;
        if !report.conflicts.is_empty() {
            // The folder shows what is true now: the other's version, and the agent's beside it.
            let pulled = self.pull(true).await?;
            report.fetched += pulled.fetched;
        }
        Ok(report)
    }

    /// Shows files to the person, after a sync that makes sure they are there to be shown.
    pub async fn present_files(
        &self,
        paths: &[FilePath],
        description: Option<String>,
    ) -> Result<Vec<ConversationFile>> {
        let SyncReport { conflicts, left_alone, .. } = self.sync_back().await?;
        self.between.lock().unwrap_or_else(PoisonError::into_inner).tell(conflicts, left_alone);
        let mut ids = Vec::with_capacity(paths.len());
        for path in paths {
            let file = self.workspace.files.store.file_at(self.workspace.conversation, path).await?;
            ids.push(file.ok_or_else(|| Error::NoSuchFile(path.to_string()))?.file_id);
        }
        let workspace = &self.workspace;
        let store = &workspace.files.store;
        Ok(store.present_files(&workspace.owned, workspace.conversation, ids, description).await?)
    }

    /// The last sync; then the next run may begin. What those before found that somebody has to know is told too.
    pub async fn end(self) -> Result<SyncReport> {
        let mut report = self.sync_back().await?;
        let SyncReport { conflicts, left_alone, mut damaged, .. } = self.first.clone();
        // What was written anew is whole again.
        damaged.retain(|path| !report.modified.contains(path));
        report.damaged = damaged;
        report.tell(conflicts, left_alone);
        let between = std::mem::take(&mut *self.between.lock().unwrap_or_else(PoisonError::into_inner));
        report.tell(between.conflicts, between.left_alone);
        let mut manifest = self.manifest().await?.unwrap_or_default();
        manifest.open = false;
        self.save_manifest(manifest).await?;
        self.leave().await?;
        Ok(report)
    }

    async fn leave(self) -> Result<()> {
        let files = self.workspace.files.clone();
        let Run { _desk, _lease: lease, .. } = self;
        lease.give_back().await;
        drop(_desk);
        tokio::task::spawn_blocking(move || files.cache.shrink()).await??;
        Ok(())
    }

    pub(crate) async fn manifest(&self) -> Result<Option<Manifest>> {
        let path = self.workspace.files.cache.manifest_path(self.workspace.conversation);
        tokio::task::spawn_blocking(move || Manifest::load(&path)).await?
    }

    pub(crate) async fn save_manifest(&self, manifest: Manifest) -> Result<()> {
        let path = self.workspace.files.cache.manifest_path(self.workspace.conversation);
        let bytes = manifest.files.values().map(|entry| entry.stamp.size).sum();
        self.workspace.files.cache.holds(self.workspace.conversation, bytes);
        tokio::task::spawn_blocking(move || manifest.save(&path)).await?
    }

    /// Puts a finished file into the folder. Blocks.
    pub(crate) fn place(folder: &Folder, temp: &Temp, path: &FilePath) -> Result<atelier_executor::Stamp> {
        Ok(folder.place(temp.path(), path.as_workspace())?)
    }
}

/// What may be concluded from the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A run is at work: what is gone was deleted by it.
    Run,
    /// A run died here, some time ago. What is gone may have been lost with the cache, so nothing is deleted.
    Leftovers,
}

/// The right to work in the folder, renewed until it is dropped, then given back.
struct Lease {
    fence: Fence,
    stop: CancellationToken,
    keeper: Option<JoinHandle<()>>,
}

/// How often somebody who waits looks again: another node may have ended its run.
const LOOK: Duration = Duration::from_millis(200);

impl Lease {
    async fn take(workspace: &Workspace, deadline: Instant) -> Result<Self> {
        let files = &workspace.files;
        let time = files.settings.lease;
        let fence = loop {
            let lease = files.store.lease_workspace(&workspace.owned, workspace.conversation, time);
            if let Some(fence) = lease.await? {
                break fence;
            }
            if Instant::now() + LOOK > deadline {
                return Err(Error::Locked);
            }
            tokio::time::sleep(LOOK).await;
        };
        let stop = CancellationToken::new();
        let keeper = keep(workspace.clone(), fence, stop.clone());
        Ok(Self { fence, stop, keeper: Some(files.tasks.spawn(keeper)) })
    }

    async fn give_back(mut self) {
        self.stop.cancel();
        if let Some(keeper) = self.keeper.take()
            && let Err(error) = keeper.await
        {
            tracing::warn!(%error, "a lease was not given back; it ends by itself");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn keep(workspace: Workspace, fence: Fence, stop: CancellationToken) {
    let time = workspace.files.settings.lease;
    let renew =
        |time| workspace.files.store.renew_workspace(&workspace.owned, workspace.conversation, fence, time);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(time / 3) => {}
        }
        match renew(time).await {
            Ok(()) => {}
            Err(atelier_store::Error::LeaseLost) => {
                // Every write of the run carries the fence, so it learns of this by itself.
                tracing::warn!(conversation = %workspace.conversation, "a run lost its lease");
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot renew a lease; trying again"),
        }
    }
    if let Err(error) = renew(Duration::ZERO).await {
        tracing::debug!(%error, "a lease was not given back; it ends by itself");
    }
}
