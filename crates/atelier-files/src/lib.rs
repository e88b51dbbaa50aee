//! Conversation workspaces: files that belong to a conversation rather than to somebody's machine.
//!
//! There are two layers. The object store (disk, S3, GCS, Azure) holds the content of every version
//! and is, together with the rows in the database, the source of truth. The local folder is a cache
//! that may be deleted at any time.
//!
//! A server opens [`Files`] once, and gets from it a [`ConversationWorkspace`] for one
//! conversation:
//!
//! ```ignore
//! let workspace = files.workspace(&owned_conversation);
//! let content = workspace.store(body, limit).await?;                // first the content …
//! let files = workspace.save(author, vec![new_file(content, path)]).await?; // … then rows and event
//! ```
//!
//! An agent's run works like this:
//!
//! ```ignore
//! let run = workspace.sync_to_local(wait).await?;   // waits for the lease, or Error::Locked
//! prompt.push_str(&run.context().await?.to_string());
//! // … the executor's file tools act on run.folder(), with Policy::for_own_files() …
//! let presented = run.present_files(&paths, description).await?;
//! let report = run.sync_back().await?;              // as often as needed; reports conflicts
//! let report = run.end().await?;                    // syncs once more and releases the lease
//! ```

mod agent_view;
mod archive;
mod blobs;
mod cache;
mod content_store;
mod context;
mod copies;
mod crash;
mod diff;
mod error;
mod folder_states;
mod folder_to_store;
mod locks;
mod manifest;
mod mime;
mod objects;
mod outside_runs;
mod parts;
mod reading;
mod run;
mod saving;
mod settings;
mod store_to_folder;
mod sweep;
mod workspace;
mod zip;

pub use blobs::BodyStream;
pub use context::{ContextFile, WorkspaceContext};
pub use error::{Error, Result};
pub use mime::is_text;
pub use objects::{ObjectContent, Objects};
pub use outside_runs::OutsideRun;
pub use parts::{NewUpload, UploadState};
pub use reading::VersionReader;
pub use run::{Conflict, Renamed, Run, SkippedFile, SyncReport};
pub use saving::{NewFile, StoredContent};
pub use settings::Settings;
pub use sweep::SweepReport;
pub use workspace::ConversationWorkspace;

use atelier_core::ConversationId;
use atelier_store::{OwnedConversation, Store};
use std::{ops::Deref, path::Path, sync::Arc, time::Duration};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// How long the object store may take to answer a question about its health.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// How many bytes can still be written to the disk of a folder.
pub fn free_bytes(folder: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A cheap handle on the object store, the cache and their background work.
#[derive(Clone)]
pub struct Files(Arc<Inner>);

pub struct Inner {
    store: Store,
    content: content_store::ContentStore,
    cache: cache::Cache,
    settings: Settings,
    /// Readable copies of one conversation are made one after another, so that no older copy
    /// replaces a newer one.
    copying: locks::ConversationLocks,
    /// Runs of programs outside this server.
    outside_runs: outside_runs::OutsideRuns,
    /// The known states of the local folders.
    folders: folder_states::FolderStates,
    /// Notified when there is something to remove or to copy.
    upkeep: Notify,
    /// Background tasks that make copies, release leases and abort uploads.
    tasks: TaskTracker,
}

impl Deref for Files {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Files {
    /// `url` says where content is kept (`file:///…`, `s3://…`, `gs://…`, `az://…`). Without it,
    /// content is kept in the data folder.
    pub async fn open(
        settings: Settings,
        url: Option<&str>,
        data: &Path,
        store: Store,
    ) -> Result<Self> {
        let content = content_store::ContentStore::open(url, data, &settings)?;
        let cache = cache::Cache::open(&settings, data).await?;
        let inner = Inner {
            store,
            content,
            cache,
            settings,
            copying: locks::ConversationLocks::default(),
            folders: folder_states::FolderStates::default(),
            outside_runs: outside_runs::OutsideRuns::default(),
            upkeep: Notify::new(),
            tasks: TaskTracker::new(),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The files of a conversation, for somebody who may act on it.
    pub fn workspace(&self, conversation: &OwnedConversation) -> ConversationWorkspace {
        ConversationWorkspace {
            files: self.clone(),
            conversation: conversation.clone(),
            rules: None,
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The place where content is kept, without credentials.
    pub fn location(&self) -> String {
        self.content.to_string()
    }

    /// The local folder of a conversation, whether it exists or not.
    pub fn folder(&self, conversation: ConversationId) -> std::path::PathBuf {
        self.cache.path(conversation)
    }

    /// The prefix of a conversation's readable copies in the object store.
    pub fn workspace_path(&self, conversation: ConversationId) -> String {
        self.content.workspace(conversation)
    }

    /// Checks whether the object store can be used, without creating anything. For `atelier
    /// doctor`.
    pub async fn examine(settings: &Settings, url: Option<&str>, data: &Path) -> Result<String> {
        match url {
            None => Ok("in the data folder".into()),
            Some(url) => {
                let content = content_store::ContentStore::open(Some(url), data, settings)?;
                content.ping().await?;
                Ok(format!("{content} answers"))
            }
        }
    }

    /// `Ok` with a description of the object store, or the reason why it cannot be used.
    pub async fn health(&self) -> Result<String, String> {
        match tokio::time::timeout(PING_TIMEOUT, self.content.ping()).await {
            Ok(Ok(())) => Ok("the object store answers".into()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the object store returned an error");
                Err("the object store returned an error".into())
            }
            Err(_) => Err("the object store does not answer".into()),
        }
    }

    /// The folder with the content, if it is on a disk of this server.
    pub fn content_folder(&self) -> Option<&Path> {
        self.content.disk.as_deref()
    }

    /// How many readable copies are still to be made.
    pub async fn stale_copies(&self) -> Result<i64> {
        Ok(self.store.stale_copies().await?)
    }

    /// Waits for background tasks to end.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
