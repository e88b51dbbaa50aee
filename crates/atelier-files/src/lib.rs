//! Conversation workspaces: files that belong to a conversation rather than to somebody's machine.
//!
//! Two layers. The object store (disk, S3, GCS, Azure) holds every version's content and is, with the rows in
//! the database, the truth; the local folder is a cache that may be deleted at any time.
//!
//! What a server needs is [`Files`], and from it, for one conversation and its owner, a [`Workspace`]:
//!
//! ```ignore
//! let workspace = files.workspace(&owned, &conversation);          // whose it is was checked by the caller
//! let stored = workspace.store(body, limit).await?;                // content first …
//! let files = workspace.save(author, vec![stored.at(path)]).await?; // … then rows and event
//! ```
//!
//! What an agent's run needs:
//!
//! ```ignore
//! let run = workspace.sync_to_local(wait).await?;   // waits for the lease, or Error::Locked
//! prompt.push_str(&run.context().await?.to_string());
//! // … file tools of the executor act on run.folder(), with Policy::for_own_files() …
//! let shown = run.present_files(&paths, description).await?;
//! let report = run.sync_back().await?;              // as often as wanted; tells conflicts
//! let report = run.end().await?;                    // the last sync, and the lease is free
//! ```

mod blobs;
mod cache;
mod context;
mod copies;
mod crash;
mod diff;
mod error;
mod intake;
mod locks;
mod manifest;
mod mime;
mod parts;
mod place;
mod pull;
mod push;
mod reading;
mod run;
mod settings;
mod sweep;
mod workspace;
mod zip;

pub use blobs::Bodies;
pub use context::{ContextFile, WorkspaceContext};
pub use error::{Error, Result};
pub use intake::{Intake, NewFile};
pub use mime::is_text;
pub use parts::{NewUpload, UploadState};
pub use reading::Reading;
pub use run::{Conflict, LeftAlone, Renamed, Run, SyncReport};
pub use settings::Settings;
pub use sweep::Swept;
pub use workspace::Workspace;

use atelier_core::{Conversation, ConversationId};
use atelier_store::{Owned, Store};
use std::{ops::Deref, path::Path, sync::Arc};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// A cheap handle on the object store, the cache and what goes on beside the requests.
#[derive(Clone)]
pub struct Files(Arc<Parts>);

pub struct Parts {
    store: Store,
    place: place::Place,
    cache: cache::Cache,
    settings: Settings,
    /// Copies of one conversation are made one after the other, so that no older one lands on a newer one.
    copying: locks::Locks,
    /// Rung when there is something to remove or to copy.
    upkeep: Notify,
    /// Leases that are given back, uploads that are broken off.
    tasks: TaskTracker,
}

impl Deref for Files {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Files {
    /// `url` is where content is kept (`file:///…`, `s3://…`, `gs://…`, `az://…`); without one, in `data`.
    pub async fn open(settings: Settings, url: Option<&str>, data: &Path, store: Store) -> Result<Self> {
        let place = place::Place::open(url, data, &settings)?;
        let cache = cache::Cache::open(&settings, data).await?;
        let parts = Parts {
            store,
            place,
            cache,
            settings,
            copying: locks::Locks::default(),
            upkeep: Notify::new(),
            tasks: TaskTracker::new(),
        };
        Ok(Self(Arc::new(parts)))
    }

    /// The files of a conversation, for its owner.
    pub fn workspace(&self, owned: &Owned, conversation: &Conversation) -> Workspace {
        self.workspace_of(owned, conversation.id)
    }

    fn workspace_of(&self, owned: &Owned, conversation: ConversationId) -> Workspace {
        Workspace { files: self.clone(), owned: owned.clone(), conversation }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where content is kept, fit to be shown.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    /// Where a conversation's files lie in the object store.
    pub fn workspace_path(&self, conversation: ConversationId) -> String {
        self.place.workspace(conversation)
    }

    /// Looks whether the place can be used, without making anything; what `doctor` goes by.
    pub async fn examine(settings: &Settings, url: Option<&str>, data: &Path) -> Result<String> {
        match url {
            None => Ok("in the data folder".into()),
            Some(url) => {
                let place = place::Place::open(Some(url), data, settings)?;
                place.ping().await?;
                Ok(format!("{place} answers"))
            }
        }
    }

    /// Waits for what was begun in the background.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
