//! Saving what a user uploads: first the content, then rows and event in one transaction, then
//! copies and cache. A crash at any point leaves no half-saved file. A later sweep removes objects
//! without a row.

use crate::{
    ConversationWorkspace, Error, Result,
    blobs::{self, BodyStream, ReadAhead},
    cache::TempFile,
    crash, mime,
};
use atelier_core::{ConversationFile, FilePath};
use atelier_executor::Stamp;
use atelier_store::{Author, Blob, Edit, Edited, EditedFiles, Expect};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};

/// Content that is in the object store but does not belong to a file yet.
#[derive(Debug)]
pub struct StoredContent {
    blob: Blob,
    head: Bytes,
    /// A local copy of the content, for the cache.
    local: Option<TempFile>,
}

/// A file to save: its content and where it goes.
pub struct NewFile {
    pub content: StoredContent,
    pub path: FilePath,
    pub original_name: String,
    pub description: Option<String>,
    pub expect: Expect,
}

impl ConversationWorkspace {
    /// Streams a body to the object store and hashes it on the way.
    pub async fn store(&self, body: BodyStream<'_>, limit: u64) -> Result<StoredContent> {
        let (local, tee) = match self.files.cache.temp() {
            Ok((temp, file)) => (Some(temp), Some(file)),
            Err(error) => {
                tracing::warn!(%error, "cannot write to the cache; files are stored without it");
                (None, None)
            }
        };
        let files = &self.files;
        let put =
            blobs::put(&files.content, &files.tasks, self.conversation.id(), body, limit, tee)
                .await?;
        let (head, local) = (put.head.clone(), local.filter(|_| put.is_copied));
        let mut blob = Blob::from(put);
        blob.instead_of = self.damaged_original(&blob).await?;
        Ok(StoredContent { blob, head, local })
    }

    /// The key of the object that should hold the same content, if that object is lost or damaged:
    /// the new upload then repairs it. The old object is read to its end, because the uploaded
    /// bytes replace it only if it is bad.
    async fn damaged_original(&self, blob: &Blob) -> Result<Option<String>> {
        let Some(kept) = self.files.store.blob_key(&self.conversation, &blob.checksum).await?
        else {
            return Ok(None);
        };
        let (store, key, size) = (&self.files.content, Key::from(kept.as_str()), blob.size as u64);
        let is_intact = async {
            let found = store.within(store.objects.head(&key)).await;
            if found.map_err(|error| self.files.content.lost(error, &key))?.size != size {
                return Ok(false);
            }
            let content = blobs::get(&self.files, key.clone(), 0..size, ReadAhead::COPY);
            let content = blobs::checked(content, blob.checksum.clone(), kept.clone());
            content.try_for_each(async |_| Ok(())).await.map(|()| true)
        };
        match is_intact.await {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(kept)),
            Err(error) if error.is_damage() => Ok(Some(kept)),
            Err(error) => Err(error),
        }
    }

    /// Removes content that is not needed after all.
    pub async fn discard(&self, contents: impl IntoIterator<Item = StoredContent>) {
        let keys: Vec<String> =
            contents.into_iter().filter_map(|content| content.blob.key).collect();
        if keys.is_empty() {
            return;
        }
        match self.files.store.discard_objects(self.conversation.owned(), keys).await {
            Ok(()) => self.files.upkeep.notify_one(),
            Err(error) => {
                tracing::warn!(%error, "cannot discard objects; the next sweep removes them");
            }
        }
    }

    /// Saves all files, or none of them.
    pub async fn save(&self, author: Author, files: Vec<NewFile>) -> Result<Vec<ConversationFile>> {
        self.save_with(author, files, None).await
    }

    /// Saves files, and makes one more edit in the same transaction.
    pub(crate) async fn save_with(
        &self,
        author: Author,
        files: Vec<NewFile>,
        last: Option<Edit>,
    ) -> Result<Vec<ConversationFile>> {
        let mut locals = Vec::with_capacity(files.len());
        let mut keys = Vec::with_capacity(files.len());
        let mut edits = Vec::with_capacity(files.len());
        for NewFile { content, path, original_name, description, expect } in files {
            // If the path has no extension, the original name helps to recognise the type.
            let name = if path.extension().is_some() { path.file_name() } else { &original_name };
            let mime_type = mime::of(&content.head, name);
            locals.push((path.clone(), content.local));
            keys.extend(content.blob.key.clone());
            let blob = content.blob;
            edits.push(Edit::Write {
                path,
                original_name,
                description,
                mime_type,
                blob,
                source: None,
                expect,
            });
        }
        edits.extend(last);
        crash::point("mime");
        let EditedFiles { edited, generation } = match self.edit(author, edits, None).await {
            Ok(edited) => edited,
            Err(error) => {
                // Discard only if nothing can have been written: a commit that failed may still
                // have happened.
                if matches!(
                    error,
                    Error::Path(_)
                        | Error::Store(
                            atelier_store::Error::Precondition
                                | atelier_store::Error::PathTaken(_)
                                | atelier_store::Error::NotFound
                        )
                ) {
                    let blob = |key| Blob {
                        checksum: String::new(),
                        size: 0,
                        key: Some(key),
                        instead_of: None,
                    };
                    let content =
                        |key| StoredContent { blob: blob(key), head: Bytes::new(), local: None };
                    self.discard(keys.into_iter().map(content)).await;
                }
                return Err(error);
            }
        };
        crash::point("row");
        self.update_copies().await;
        crash::point("copy");
        let mut placed = Vec::with_capacity(locals.len());
        for (path, local) in locals {
            let stamp = match local {
                Some(local) => self.put_in_cache(path.clone(), local).await,
                None => None,
            };
            placed.push(stamp.map(|stamp| (path, stamp)));
        }
        // The folder is current if it has got all files.
        if let Some(placed) = placed.into_iter().collect::<Option<Vec<_>>>() {
            self.advance(generation, |stamps| stamps.extend(placed), ());
        }
        crash::point("cache");
        self.files.upkeep.notify_one();
        let done = |edited| match edited {
            Edited::Done(file) => Some(file),
            Edited::Conflict(_) | Edited::Blocked(_) => None,
        };
        Ok(edited.into_iter().filter_map(done).collect())
    }

    async fn put_in_cache(&self, path: FilePath, local: TempFile) -> Option<Stamp> {
        let files = self.files.clone();
        self.in_cache("write", move |cache, conversation| {
            let folder = cache.folder(conversation)?;
            // A change that somebody has made in the folder is kept for the next sync.
            if let Ok((_, found)) = folder.open_leaf(path.as_workspace())
                && !files.folders.is_ours(conversation, &path, found)
            {
                return Ok(None);
            }
            let stamp = folder.place(local.path(), path.as_workspace())?;
            cache.add_size(conversation, stamp.size);
            files.folders.note_placed(conversation, path, stamp);
            Ok(Some(stamp))
        })
        .await
        .flatten()
    }
}
