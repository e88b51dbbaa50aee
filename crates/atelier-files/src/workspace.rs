//! The files of one conversation, for its owner.

use crate::{
    Error, Files, Result, agent_view::AgentRules, blobs, content_store, crash, manifest::Manifest,
    mime,
};
use atelier_core::{
    ConversationFile, ConversationId, FileId, FilePath, FileVersion,
    file::{FilePathError, FileStatus},
};
use atelier_executor::Stamp;
use atelier_store::{
    Author, Blob, ContentKind, Edit, Edited, EditedFiles, Expect, Fence, FileChanges,
    OwnedConversation, WorkspaceStorage,
};
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// The files of a conversation, for somebody who may act on it.
#[derive(Clone)]
pub struct ConversationWorkspace {
    pub(crate) files: Files,
    pub(crate) conversation: OwnedConversation,
    /// The rules that reading keeps to. `None` for the owner and for the server's own work.
    pub(crate) rules: Option<Arc<AgentRules>>,
}

impl ConversationWorkspace {
    pub fn conversation(&self) -> ConversationId {
        self.conversation.id()
    }

    /// The size of the largest allowed file, in bytes.
    pub fn limit(&self) -> u64 {
        self.files.settings.max_upload
    }

    /// The part of an agent's prompt about the workspace, before a run begins.
    pub async fn context(&self) -> Result<crate::WorkspaceContext> {
        let folder = self.files.cache.path(self.conversation.id());
        Ok(crate::WorkspaceContext::new(folder, &self.list().await?))
    }

    /// All files that exist for the reader, ordered by path.
    pub async fn list(&self) -> Result<Vec<ConversationFile>> {
        let mut files = self.files.store.files(&self.conversation).await?;
        files.retain(|file| self.shows(file));
        Ok(files)
    }

    pub async fn file(&self, id: FileId) -> Result<ConversationFile> {
        let file = self.files.store.file(&self.conversation, id).await?;
        if self.shows(&file) { Ok(file) } else { Err(atelier_store::Error::NotFound.into()) }
    }

    /// The files that agents deleted and that can be restored, ordered by path.
    pub async fn deleted(&self) -> Result<Vec<ConversationFile>> {
        let mut files = self.files.store.deleted_files(&self.conversation).await?;
        files.retain(|file| self.shows(file));
        Ok(files)
    }

    /// A file that exists or can be restored.
    pub(crate) async fn restorable(&self, id: FileId) -> Result<ConversationFile> {
        let file = self.files.store.restorable_file(&self.conversation, id).await?;
        if self.shows(&file) { Ok(file) } else { Err(atelier_store::Error::NotFound.into()) }
    }

    pub async fn versions(&self, id: FileId) -> Result<Vec<FileVersion>> {
        let file = self.restorable(id).await?;
        Ok(self.files.store.file_versions(&self.conversation, file.file_id).await?)
    }

    pub async fn version(&self, id: FileId, version: i64) -> Result<FileVersion> {
        let file = self.restorable(id).await?;
        Ok(self.files.store.file_version(&self.conversation, file.file_id, version).await?)
    }

    /// Changes the path, the description or the presented mark of a file.
    pub async fn change(
        &self,
        author: Author,
        id: FileId,
        mut to: FileChanges,
        expect: Expect,
    ) -> Result<ConversationFile> {
        let old = self.file(id).await?;
        let moved = to.path.clone().filter(|path| *path != old.file_path);
        if let Some(path) = &moved
            && path.extension() != old.file_path.extension()
        {
            to.kind = self.kind_as(&old, path).await;
        }
        let (file, generation) =
            self.edit_one(author, vec![Edit::Change { file: id, to, expect }]).await?;
        self.update_copies().await;
        let Some(to) = moved else { return Ok(self.advance(generation, |_| {}, file)) };
        match self.move_in_cache(&old.file_path, &to).await {
            Some(stamp) => {
                let change = |stamps: &mut HashMap<FilePath, Stamp>| {
                    stamps.remove(&old.file_path);
                    stamps.extend(stamp.map(|stamp| (to, stamp)));
                };
                Ok(self.advance(generation, change, file))
            }
            None => Ok(file),
        }
    }

    /// The MIME type of a file under another name; `None` if the object store does not answer,
    /// because that must not prevent renaming.
    async fn kind_as(&self, file: &ConversationFile, path: &FilePath) -> Option<ContentKind> {
        let head = async {
            let key = self.content_key(&file.checksum, &file.file_path).await?;
            let head = 0..(file.file_size as u64).min(blobs::HEAD as u64);
            Ok::<_, Error>(
                blobs::get(&self.files, key, head, blobs::ReadAhead::COPY)
                    .try_next()
                    .await?
                    .unwrap_or_default(),
            )
        };
        match head.await {
            Ok(head) => Some(ContentKind {
                checksum: file.checksum.clone(),
                mime_type: mime::of(&head, path.file_name()),
            }),
            Err(error) => {
                tracing::warn!(%error, file = %file.file_id, "a renamed file keeps its MIME type");
                None
            }
        }
    }

    /// Deletes the row first, then the objects, then the cached file. What fails is retried in the
    /// background.
    pub async fn delete(
        &self,
        author: Author,
        id: FileId,
        expect: Expect,
    ) -> Result<ConversationFile> {
        let was_deleted = self.restorable(id).await?.status == FileStatus::Deleted;
        let (file, generation) =
            self.edit_one(author, vec![Edit::Delete { file: id, expect }]).await?;
        crash::point("deleted");
        self.update_copies().await;
        // Many other removals may be due; this request must not wait for them.
        self.files.remove_some().await;
        // Another file may be at the path of a file that was deleted before.
        if was_deleted || self.remove_from_cache(&file.file_path).await {
            let path = file.file_path.clone();
            let forget = |stamps: &mut HashMap<FilePath, Stamp>| {
                if !was_deleted {
                    stamps.remove(&path);
                }
            };
            return Ok(self.advance(generation, forget, file));
        }
        Ok(file)
    }

    /// Applies a change to the known state of the folder, if the change was made in the folder as
    /// well.
    pub(crate) fn advance<T>(
        &self,
        generation: i64,
        change: impl FnOnce(&mut HashMap<FilePath, Stamp>),
        result: T,
    ) -> T {
        self.files.folders.advance(self.conversation.id(), generation, change);
        result
    }

    /// Makes an earlier version the newest one. A file that an agent deleted exists again.
    pub async fn restore(
        &self,
        author: Author,
        id: FileId,
        version: i64,
        expect: Expect,
    ) -> Result<ConversationFile> {
        loop {
            match self.restore_once(author, id, version, expect.clone()).await {
                // The file was moved in the meantime. The caller has no condition, so its new path
                // is as good; if it was deleted, it is not found now.
                Err(Error::Store(atelier_store::Error::Precondition))
                    if expect == Expect::Anything => {}
                restored => return restored,
            }
        }
    }

    async fn restore_once(
        &self,
        author: Author,
        id: FileId,
        version: i64,
        expect: Expect,
    ) -> Result<ConversationFile> {
        let file = self.restorable(id).await?;
        let is_deleted = file.status == FileStatus::Deleted;
        let old = self.files.store.file_version(&self.conversation, id, version).await?;
        if version == file.version && expect == Expect::Anything && !is_deleted {
            return Ok(file);
        }
        // A version whose content is lost cannot be restored.
        let key = self.content_key(&old.checksum, &file.file_path).await?;
        let found = self.files.content.within(self.files.content.objects.head(&key)).await;
        if found.map_err(|error| self.files.content.lost(error, &key))?.size != old.file_size as u64
        {
            return Err(Error::Damaged { path: file.file_path.to_string() });
        }
        let edit = Edit::Write {
            path: file.file_path.clone(),
            original_name: old.original_name,
            description: None,
            mime_type: old.mime_type,
            blob: Blob { checksum: old.checksum, size: old.file_size, key: None, instead_of: None },
            // The source of the content stays the same, whoever restores it.
            source: Some(old.source),
            // Another file may be at this path by now.
            expect: if expect == Expect::Anything { Expect::File(id) } else { expect },
        };
        let undelete = is_deleted.then_some(Edit::Undelete { file: id });
        let edits = undelete.into_iter().chain([edit]).collect();
        let (file, _) = self.edit_one(author, edits).await?;
        self.update_copies().await;
        self.remove_from_cache(&file.file_path).await;
        Ok(file)
    }

    /// Makes edits of one file. Returns the file and how often the conversation's files have
    /// changed.
    async fn edit_one(&self, author: Author, edits: Vec<Edit>) -> Result<(ConversationFile, i64)> {
        let EditedFiles { edited, generation } = self.edit(author, edits, None).await?;
        match edited.into_iter().last() {
            Some(Edited::Done(file)) => Ok((file, generation)),
            // Without a fence, a failed expectation is an error and not a conflict.
            _ => Err(atelier_store::Error::Precondition.into()),
        }
    }

    pub(crate) async fn edit(
        &self,
        author: Author,
        mut edits: Vec<Edit>,
        fence: Option<Fence>,
    ) -> Result<EditedFiles> {
        for edit in &mut edits {
            match edit {
                Edit::Write { path, blob, .. } => {
                    self.check_path_length(path)?;
                    self.refresh_old_object(blob).await?;
                }
                Edit::Change { to: FileChanges { path: Some(path), .. }, .. } => {
                    self.check_path_length(path)?;
                }
                Edit::Change { .. }
                | Edit::Delete { .. }
                | Edit::Undelete { .. }
                | Edit::Complete { .. } => {}
            }
        }
        let (path, copies) =
            (self.files.content.workspace(self.conversation.id()), self.files.settings.copies);
        let storage = WorkspaceStorage { path, copies };
        let store = &self.files.store;
        let edited = store.edit_files(
            self.conversation.owned(),
            self.conversation.id(),
            author,
            edits,
            fence,
            storage,
        );
        Ok(edited.await?)
    }

    /// Checks that a path is short enough for a readable copy in the object store.
    pub(crate) fn check_path_length(&self, path: &FilePath) -> Result<()> {
        let most = self.files.content.longest_path(self.conversation.id());
        if path.as_str().len() > most {
            return Err(FilePathError::TooLong { most }.into());
        }
        Ok(())
    }

    /// Moves content that was stored long ago to a new key. A sweep removes old objects without a
    /// row, and the last file of an upload form may arrive long after the first one. Under the new
    /// key the object counts as new.
    async fn refresh_old_object(&self, blob: &mut Blob) -> Result<()> {
        let files = &self.files;
        let Some(old) = blob.key.as_deref().map(Key::from) else { return Ok(()) };
        if content_store::age(&old).is_none_or(|age| age <= files.settings.grace / 2) {
            return Ok(());
        }
        let new = files.content.new_content(self.conversation.id(), Some(&blob.checksum));
        match files.content.move_content(&old, &new).await {
            Err(Error::Objects(object_store::Error::NotFound { .. })) => {
                return Err(Error::Broken(
                    "the upload took too long, and its first files were removed".into(),
                ));
            }
            moved => moved?,
        }
        blob.key = Some(new.to_string());
        Ok(())
    }

    /// A link to a file's content in the object store that is valid for `time`.
    pub async fn link(&self, id: FileId, time: Duration) -> Result<String> {
        let signer = self.files.content.signer.as_ref().ok_or(Error::NoLinks)?;
        let file = self.file(id).await?;
        self.check_readable(&file.file_path)?;
        let key = self.content_key(&file.checksum, &file.file_path).await?;
        let link =
            self.files.content.within(signer.signed_url(reqwest::Method::GET, &key, time)).await?;
        Ok(link.into())
    }

    pub(crate) async fn content_key(&self, checksum: &str, path: &FilePath) -> Result<Key> {
        let key = self.files.store.blob_key(&self.conversation, checksum).await?;
        let key = key.ok_or_else(|| Error::Damaged { path: path.to_string() })?;
        Ok(Key::from(key))
    }

    /// Moves the file in the local folder, unless a run works there. In that case the next sync
    /// does it. Returns the stamp of the file, if the folder had it.
    async fn move_in_cache(&self, from: &FilePath, to: &FilePath) -> Option<Option<Stamp>> {
        let (from, to) = (from.clone(), to.clone());
        self.in_cache("move", move |cache, conversation| {
            let path = cache.path(conversation);
            if !path.exists() {
                return Ok(None);
            }
            let folder = cache.folder(conversation)?;
            // Not through links: a link that a run has left there may lead anywhere.
            if folder.open_leaf(from.as_workspace()).is_err() {
                return Ok(None);
            }
            let stamp = folder.place(&path.join(from.as_str()), to.as_workspace())?;
            folder.take_away(from.as_workspace())?;
            Ok(Some(stamp))
        })
        .await
    }

    /// Returns whether the file is gone from the folder.
    pub(crate) async fn remove_from_cache(&self, path: &FilePath) -> bool {
        let path = path.clone();
        self.in_cache("remove", move |cache, conversation| {
            if cache.path(conversation).exists() {
                cache.folder(conversation)?.take_away(path.as_workspace())?;
            }
            Ok(())
        })
        .await
        .is_some()
    }

    /// Changes the local folder, unless a run works there or has left changes that are not stored.
    /// Failures are only logged, because the next sync corrects the cache. Returns `None` if nothing
    /// was changed.
    pub(crate) async fn in_cache<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&crate::cache::Cache, ConversationId) -> Result<T> + Send + 'static,
    ) -> Option<T> {
        let folder_lock = self.files.cache.folder_locks.try_lock(self.conversation.id())?;
        let (files, conversation) = (self.files.clone(), self.conversation.id());
        let done = tokio::task::spawn_blocking(move || {
            let _folder_lock = folder_lock;
            if Manifest::is_open(&files.cache.manifest_path(conversation))? {
                return Ok(None);
            }
            work(&files.cache, conversation).map(Some)
        });
        done.await.map_err(Error::from).and_then(|done| done).unwrap_or_else(|error| {
            tracing::warn!(%error, %conversation, what, "cannot update the cache; the next sync \
                does it");
            None
        })
    }
}

impl From<blobs::Put> for Blob {
    fn from(put: blobs::Put) -> Self {
        Self {
            checksum: put.checksum,
            size: put.size as i64,
            key: Some(put.key.to_string()),
            instead_of: None,
        }
    }
}
