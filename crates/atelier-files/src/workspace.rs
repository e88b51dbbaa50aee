//! The files of one conversation, for its owner.

use crate::{Error, Files, Result, blobs, crash, manifest::Manifest, mime, place};
use atelier_core::{ConversationFile, ConversationId, FileId, FilePath, FileVersion, file::FilePathError};
use atelier_store::{
    Author, Blob, ContentKind, Edit, Edited, Expect, Fence, FileChanges, Owned, WorkspaceStorage,
};
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};
use std::time::Duration;

/// Having one is the right to act on the conversation's files: whoever makes it has checked whose it is.
#[derive(Clone)]
pub struct Workspace {
    pub(crate) files: Files,
    pub(crate) owned: Owned,
    pub(crate) conversation: ConversationId,
}

impl Workspace {
    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    /// The largest file it takes, in bytes.
    pub fn limit(&self) -> u64 {
        self.files.settings.max_upload
    }

    /// What to tell an agent that does not work in the folder yet.
    pub async fn context(&self) -> Result<crate::WorkspaceContext> {
        let folder = self.files.cache.path(self.conversation);
        Ok(crate::WorkspaceContext::new(folder, &self.list().await?))
    }

    /// All files, by path.
    pub async fn list(&self) -> Result<Vec<ConversationFile>> {
        Ok(self.files.store.files(self.conversation).await?)
    }

    pub async fn file(&self, id: FileId) -> Result<ConversationFile> {
        Ok(self.files.store.file(self.conversation, id).await?)
    }

    pub async fn versions(&self, id: FileId) -> Result<Vec<FileVersion>> {
        let file = self.file(id).await?;
        Ok(self.files.store.file_versions(&file).await?)
    }

    pub async fn version(&self, id: FileId, version: i64) -> Result<FileVersion> {
        let file = self.file(id).await?;
        Ok(self.files.store.file_version(&file, version).await?)
    }

    /// Another path, description or mark for a file.
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
        let file = self.edit_one(author, Edit::Change { file: id, to, expect }).await?;
        self.settle_copies().await;
        if let Some(to) = moved {
            self.move_in_cache(&old.file_path, &to).await;
        }
        Ok(file)
    }

    /// What a file's content is under another name. A store that does not answer keeps nobody from renaming.
    async fn kind_as(&self, file: &ConversationFile, path: &FilePath) -> Option<ContentKind> {
        let head = async {
            let key = self.content_key(&file.checksum, &file.file_path).await?;
            let head = 0..(file.file_size as u64).min(blobs::HEAD as u64);
            Ok::<_, Error>(
                blobs::get(&self.files, key, head, blobs::Pace::COPY).try_next().await?.unwrap_or_default(),
            )
        };
        match head.await {
            Ok(head) => Some(ContentKind {
                checksum: file.checksum.clone(),
                mime_type: mime::of(&head, path.file_name()),
            }),
            Err(error) => {
                tracing::warn!(%error, file = %file.file_id, "a renamed file keeps the kind it had");
                None
            }
        }
    }

    /// Row first, then objects, then cache; what fails is tried again until it is done.
    pub async fn delete(&self, author: Author, id: FileId, expect: Expect) -> Result<ConversationFile> {
        self.file(id).await?;
        let file = self.edit_one(author, Edit::Delete { file: id, expect }).await?;
        crash::point("deleted");
        self.settle_copies().await;
        // What else is due may be much, and is not for whoever deletes one file to wait for.
        self.files.remove_some().await;
        self.remove_from_cache(&file.file_path).await;
        Ok(file)
    }

    /// Makes an old version the newest again.
    pub async fn restore(
        &self,
        author: Author,
        id: FileId,
        version: i64,
        expect: Expect,
    ) -> Result<ConversationFile> {
        let file = self.file(id).await?;
        let old = self.files.store.file_version(&file, version).await?;
        if version == file.version && expect == Expect::Anything {
            return Ok(file);
        }
        // What cannot be read any more is no version to go back to.
        let key = self.content_key(&old.checksum, &file.file_path).await?;
        let found = self.files.place.within(self.files.place.objects.head(&key)).await;
        if found.map_err(|error| blobs::lost(error, &key))?.size != old.file_size as u64 {
            return Err(Error::Damaged { path: file.file_path.to_string() });
        }
        let edit = Edit::Write {
            path: file.file_path.clone(),
            original_name: old.original_name,
            description: None,
            mime_type: old.mime_type,
            blob: Blob { checksum: old.checksum, size: old.file_size, key: None, instead_of: None },
            // Whoever brings it back, it is what it was.
            source: Some(old.source),
            // Between the look and the edit somebody may have put another file there.
            expect: if expect == Expect::Anything { Expect::Checksum(vec![file.checksum]) } else { expect },
        };
        let file = self.edit_one(author, edit).await?;
        self.settle_copies().await;
        self.remove_from_cache(&file.file_path).await;
        Ok(file)
    }

    async fn edit_one(&self, author: Author, edit: Edit) -> Result<ConversationFile> {
        let edited = self.edit(author, vec![edit], None).await?;
        match edited.into_iter().next() {
            Some(Edited::Done(file)) => Ok(file),
            // Without a fence what does not fit is an error of the whole.
            _ => Err(atelier_store::Error::Precondition.into()),
        }
    }

    pub(crate) async fn edit(
        &self,
        author: Author,
        mut edits: Vec<Edit>,
        fence: Option<Fence>,
    ) -> Result<Vec<Edited>> {
        for edit in &mut edits {
            match edit {
                Edit::Write { path, blob, .. } => {
                    self.check_room(path)?;
                    self.keep_young(blob).await?;
                }
                Edit::Change { to: FileChanges { path: Some(path), .. }, .. } => self.check_room(path)?,
                Edit::Change { .. } | Edit::Delete { .. } | Edit::Complete { .. } => {}
            }
        }
        let (path, copies) = (self.files.place.workspace(self.conversation), self.files.settings.copies);
        let place = WorkspaceStorage { path, copies };
        let store = &self.files.store;
        let edited = store.edit_files(&self.owned, self.conversation, author, edits, fence, place);
        Ok(edited.await?)
    }

    /// Whether a path is short enough to have a copy in the object store.
    pub(crate) fn check_room(&self, path: &FilePath) -> Result<()> {
        let most = self.files.place.longest_path(self.conversation);
        if path.as_str().len() > most {
            return Err(FilePathError::TooLong { most }.into());
        }
        Ok(())
    }

    /// A sweep takes objects without a row once they are old, and the last file of a form may come long after the
    /// first. So what has waited for long goes to a new key, where its time begins anew.
    async fn keep_young(&self, blob: &mut Blob) -> Result<()> {
        let files = &self.files;
        let Some(old) = blob.key.as_deref().map(Key::from) else { return Ok(()) };
        if place::age(&old).is_none_or(|age| age <= files.settings.grace / 2) {
            return Ok(());
        }
        let new = files.place.new_content(self.conversation, Some(&blob.checksum));
        match files.place.move_content(&old, &new).await {
            Err(Error::Objects(object_store::Error::NotFound { .. })) => {
                return Err(Error::Broken("it took longer than unfinished uploads are kept".into()));
            }
            moved => moved?,
        }
        blob.key = Some(new.to_string());
        Ok(())
    }

    /// A link to a file's content in the object store, good for a while.
    pub async fn link(&self, id: FileId, time: Duration) -> Result<String> {
        let signer = self.files.place.signer.as_ref().ok_or(Error::NoLinks)?;
        let file = self.file(id).await?;
        let key = self.content_key(&file.checksum, &file.file_path).await?;
        let link = self.files.place.within(signer.signed_url(reqwest::Method::GET, &key, time)).await?;
        Ok(link.into())
    }

    pub(crate) async fn content_key(&self, checksum: &str, path: &FilePath) -> Result<Key> {
        let key = self.files.store.blob_key(self.conversation, checksum).await?;
        let key = key.ok_or_else(|| Error::Damaged { path: path.to_string() })?;
        Ok(Key::from(key))
    }

    /// The folder follows where nobody works in it; otherwise the next sync does it.
    async fn move_in_cache(&self, from: &FilePath, to: &FilePath) {
        let (from, to) = (from.clone(), to.clone());
        self.in_cache("move", move |cache, conversation| {
            let path = cache.path(conversation);
            if !path.exists() {
                return Ok(());
            }
            let folder = cache.folder(conversation)?;
            // Through no link: what a run has left there may lead anywhere.
            if folder.open_leaf(from.as_workspace()).is_ok() {
                folder.place(&path.join(from.as_str()), to.as_workspace())?;
                folder.take_away(from.as_workspace())?;
            }
            Ok(())
        })
        .await;
    }

    pub(crate) async fn remove_from_cache(&self, path: &FilePath) {
        let path = path.clone();
        self.in_cache("remove", move |cache, conversation| {
            if cache.path(conversation).exists() {
                cache.folder(conversation)?.take_away(path.as_workspace())?;
            }
            Ok(())
        })
        .await;
    }

    /// Does something in the local folder unless a run is at work there, or has left work there that is stored nowhere
    /// else. The cache owes nobody anything, so what fails is only told to the log.
    pub(crate) async fn in_cache(
        &self,
        what: &'static str,
        work: impl FnOnce(&crate::cache::Cache, ConversationId) -> Result<()> + Send + 'static,
    ) {
        let Some(desk) = self.files.cache.desks.try_enter(self.conversation) else { return };
        let (files, conversation) = (self.files.clone(), self.conversation);
        let done = tokio::task::spawn_blocking(move || {
            let _desk = desk;
            if Manifest::is_open(&files.cache.manifest_path(conversation))? {
                return Ok(());
            }
            work(&files.cache, conversation)
        });
        if let Err(error) = done.await.map_err(Error::from).and_then(|done| done) {
            tracing::warn!(%error, %conversation, what, "the cache is behind until the next sync");
        }
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
