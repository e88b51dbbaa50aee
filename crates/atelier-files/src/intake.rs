//! What comes in from a person: content first, then rows and event in one transaction, then copies and cache, so
//! that a crash anywhere leaves nothing half. Objects without a row are swept up later.

use crate::{
    Error, Result, Workspace,
    blobs::{self, Bodies, Pace},
    cache::Temp,
    crash, mime,
};
use atelier_core::{ConversationFile, FilePath};
use atelier_store::{Author, Blob, Edit, Edited, Expect};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};

/// Content that is in the object store and has no name yet.
#[derive(Debug)]
pub struct Intake {
    blob: Blob,
    head: Bytes,
    /// The same content, ready for the cache.
    local: Option<Temp>,
}

/// Content with its place.
pub struct NewFile {
    pub intake: Intake,
    pub path: FilePath,
    pub original_name: String,
    pub description: Option<String>,
    pub expect: Expect,
}

impl Workspace {
    /// Streams a body to the object store, hashing on the way.
    pub async fn store(&self, body: Bodies<'_>, limit: u64) -> Result<Intake> {
        let (local, tee) = match self.files.cache.temp() {
            Ok((temp, file)) => (Some(temp), Some(file)),
            Err(error) => {
                tracing::warn!(%error, "the cache cannot be written; files are kept all the same");
                (None, None)
            }
        };
        let files = &self.files;
        let put = blobs::put(&files.place, &files.tasks, self.conversation, body, limit, tee).await?;
        let head = put.head.clone();
        let mut blob = Blob::from(put);
        blob.instead_of = self.lost(&blob).await?;
        Ok(Intake { blob, head, local })
    }

    /// The object that should hold the same content and does not: somebody who brings it again mends what was lost.
    /// It is read to its end, because the bytes that were brought are kept only if those are bad.
    async fn lost(&self, blob: &Blob) -> Result<Option<String>> {
        let Some(kept) = self.files.store.blob_key(self.conversation, &blob.checksum).await? else {
            return Ok(None);
        };
        let (place, key, size) = (&self.files.place, Key::from(kept.as_str()), blob.size as u64);
        let looked = async {
            let found = place.within(place.objects.head(&key)).await;
            if found.map_err(|error| blobs::lost(error, &key))?.size != size {
                return Ok(false);
            }
            let content = blobs::get(&self.files, key.clone(), 0..size, Pace::COPY);
            let content = blobs::checked(content, blob.checksum.clone(), kept.clone());
            content.try_for_each(async |_| Ok(())).await.map(|()| true)
        };
        match looked.await {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(kept)),
            Err(error) if error.is_damage() => Ok(Some(kept)),
            Err(error) => Err(error),
        }
    }

    /// Content that turned out to be of no use.
    pub async fn discard(&self, intakes: impl IntoIterator<Item = Intake>) {
        let keys: Vec<String> = intakes.into_iter().filter_map(|intake| intake.blob.key).collect();
        if keys.is_empty() {
            return;
        }
        match self.files.store.discard_objects(&self.owned, keys).await {
            Ok(()) => self.files.upkeep.notify_one(),
            Err(error) => tracing::warn!(%error, "objects without a row stay until the next sweep"),
        }
    }

    /// Makes files of it: all of them, or none.
    pub async fn save(&self, author: Author, files: Vec<NewFile>) -> Result<Vec<ConversationFile>> {
        self.save_and(author, files, None).await
    }

    /// The same, and what is to be done in the same transaction.
    pub(crate) async fn save_and(
        &self,
        author: Author,
        files: Vec<NewFile>,
        last: Option<Edit>,
    ) -> Result<Vec<ConversationFile>> {
        let mut locals = Vec::with_capacity(files.len());
        let mut keys = Vec::with_capacity(files.len());
        let mut edits = Vec::with_capacity(files.len());
        for NewFile { intake, path, original_name, description, expect } in files {
            // Its name here says what it is; where that says nothing, the name it came with.
            let name = if path.extension().is_some() { path.file_name() } else { &original_name };
            let mime_type = mime::of(&intake.head, name);
            locals.push((path.clone(), intake.local));
            keys.extend(intake.blob.key.clone());
            let blob = intake.blob;
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
        let edited = match self.edit(author, edits, None).await {
            Ok(edited) => edited,
            Err(error) => {
                // Only where nothing can have come of it: a commit that failed may have happened.
                if matches!(
                    error,
                    Error::Path(_)
                        | Error::Store(
                            atelier_store::Error::Precondition
                                | atelier_store::Error::PathTaken(_)
                                | atelier_store::Error::NotFound
                        )
                ) {
                    let blob =
                        |key| Blob { checksum: String::new(), size: 0, key: Some(key), instead_of: None };
                    let intake = |key| Intake { blob: blob(key), head: Bytes::new(), local: None };
                    self.discard(keys.into_iter().map(intake)).await;
                }
                return Err(error);
            }
        };
        crash::point("row");
        self.settle_copies().await;
        crash::point("copy");
        for (path, local) in locals {
            if let Some(local) = local {
                self.put_in_cache(path, local).await;
            }
        }
        crash::point("cache");
        self.files.upkeep.notify_one();
        let done = |edited| match edited {
            Edited::Done(file) => Some(file),
            Edited::Conflict(_) | Edited::Blocked(_) => None,
        };
        Ok(edited.into_iter().filter_map(done).collect())
    }

    async fn put_in_cache(&self, path: FilePath, local: Temp) {
        self.in_cache("write", move |cache, conversation| {
            let stamp = cache.folder(conversation)?.place(local.path(), path.as_workspace())?;
            cache.grew(conversation, stamp.size);
            Ok(())
        })
        .await;
    }
}
