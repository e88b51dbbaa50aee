//! Uploads in parts, so that an interrupted upload can continue. Each part is an object of its own.
//! When all parts have arrived they are read again, hashed and joined.

use crate::{
    ConversationWorkspace, Error, NewFile, Result,
    blobs::{self, BodyStream, ReadAhead},
};
use atelier_core::{ConversationFile, FilePath, UploadId, time_delta};
use atelier_store::{Author, Edit, Expect, Part, Upload};
use chrono::Utc;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use uuid::Uuid;

/// An upload that the client announces.
#[derive(Debug, Clone)]
pub struct NewUpload {
    pub path: FilePath,
    pub original_name: String,
    pub description: Option<String>,
    pub size: u64,
}

/// An upload and the parts that have arrived, in order.
#[derive(Debug, Clone)]
pub struct UploadState {
    pub upload: Upload,
    pub parts: Vec<Part>,
}

/// The most parts of an upload, as in S3.
const MAX_PARTS: i64 = 10_000;
/// The largest part of an upload, in bytes.
const MAX_PART: u64 = 1 << 30;

impl ConversationWorkspace {
    pub async fn begin_upload(&self, new: NewUpload) -> Result<UploadState> {
        let limit = self.files.settings.max_upload;
        if new.size > limit {
            return Err(Error::TooLarge { limit });
        }
        self.check_path_length(&new.path)?;
        let time = time_delta(self.files.settings.upload_ttl);
        let upload = Upload {
            id: UploadId(Uuid::now_v7()),
            conversation: self.conversation.id(),
            path: new.path,
            original_name: new.original_name,
            description: new.description,
            size: new.size as i64,
            expires_at: Utc::now() + time,
            done: None,
        };
        let upload = self.files.store.begin_upload(self.conversation.owned(), upload).await?;
        Ok(UploadState { upload, parts: Vec::new() })
    }

    pub async fn upload(&self, id: UploadId) -> Result<UploadState> {
        let (upload, parts) = self.files.store.upload(&self.conversation, id).await?;
        Ok(UploadState { upload, parts })
    }

    /// Stores a part. It replaces an earlier part with the same number.
    pub async fn put_part(&self, id: UploadId, number: i64, body: BodyStream<'_>) -> Result<Part> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(Error::Parts(format!("part numbers go from 1 to {MAX_PARTS}")));
        }
        let UploadState { upload, parts } = self.upload(id).await?;
        if upload.done.is_some() {
            return Err(Error::Parts("the upload is complete".into()));
        }
        let others: i64 =
            parts.iter().filter(|part| part.number != number).map(|part| part.size).sum();
        let limit = ((upload.size - others).max(0) as u64).min(MAX_PART);
        let files = &self.files;
        let put =
            blobs::put(&files.content, &files.tasks, self.conversation.id(), body, limit, None)
                .await;
        let too_much = |limit| {
            Error::Parts(format!(
                "the part is larger than the {limit} bytes that are left of the announced size"
            ))
        };
        let put = put.map_err(|error| match error {
            Error::TooLarge { limit } => too_much(limit),
            other => other,
        })?;
        let part = Part {
            number,
            key: put.key.to_string(),
            size: put.size as i64,
            checksum: put.checksum,
        };
        match files.store.add_part(self.conversation.owned(), &upload, part.clone()).await {
            Ok(true) => Ok(part),
            // Other parts have arrived in the meantime, or the upload has ended.
            refused => {
                files.store.discard_objects(self.conversation.owned(), vec![part.key]).await?;
                files.upkeep.notify_one();
                Err(refused.map_or_else(Into::into, |_| too_much(limit)))
            }
        }
    }

    /// Joins the parts. There must be no gap, and the size must be the announced one. Calling this
    /// again returns the same file, because the first answer may have been lost.
    pub async fn complete_upload(
        &self,
        author: Author,
        id: UploadId,
        expect: Expect,
    ) -> Result<ConversationFile> {
        match self.assemble(author, id, expect).await {
            Ok(file) => Ok(file),
            Err(error) => match self.upload(id).await {
                // Another request has completed the upload, and the parts are gone.
                Ok(UploadState { upload: Upload { done: Some(file), .. }, .. }) => {
                    self.file(file).await
                }
                _ => Err(error),
            },
        }
    }

    async fn assemble(
        &self,
        author: Author,
        id: UploadId,
        expect: Expect,
    ) -> Result<ConversationFile> {
        let UploadState { upload, parts } = self.upload(id).await?;
        if let Some(file) = upload.done {
            return self.file(file).await;
        }
        let gap = parts.iter().zip(1..).find(|(part, number)| part.number != *number);
        if let Some((_, number)) = gap {
            return Err(Error::Parts(format!("part {number} is missing")));
        }
        let size: i64 = parts.iter().map(|part| part.size).sum();
        if size != upload.size {
            let announced = upload.size;
            return Err(Error::Parts(format!(
                "{size} of the announced {announced} bytes have arrived"
            )));
        }
        let files = self.files.clone();
        let body = futures::stream::iter(parts)
            .map(move |part| {
                let body = blobs::get(
                    &files,
                    Key::from(part.key.as_str()),
                    0..part.size as u64,
                    ReadAhead::COPY,
                );
                Ok::<_, Error>(blobs::checked(body, part.checksum, format!("part {}", part.number)))
            })
            .try_flatten()
            .boxed();
        let content = self.store(body, upload.size as u64).await?;
        let file = NewFile {
            content,
            path: upload.path,
            original_name: upload.original_name,
            description: upload.description,
            expect,
        };
        let mut saved =
            self.save_with(author, vec![file], Some(Edit::Complete { upload: id })).await?;
        self.files.upkeep.notify_one();
        saved.pop().ok_or(Error::Stopping)
    }

    /// Aborts an upload, or cleans up after a completed one.
    pub async fn end_upload(&self, id: UploadId) -> Result<()> {
        self.upload(id).await?;
        self.files.store.end_upload(self.conversation.owned(), id).await?;
        self.files.upkeep.notify_one();
        Ok(())
    }
}
