//! Uploads that come in parts, so that one that breaks off goes on where it was. Each part is an object of its
//! own; when all are there they are read once more, hashed and put together.

use crate::{
    Error, Intake, NewFile, Result, Workspace,
    blobs::{self, Bodies, Pace},
};
use atelier_core::{ConversationFile, FilePath, UploadId, time_delta};
use atelier_store::{Author, Edit, Expect, Part, Upload};
use chrono::Utc;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use uuid::Uuid;

/// What is announced.
#[derive(Debug, Clone)]
pub struct NewUpload {
    pub path: FilePath,
    pub original_name: String,
    pub description: Option<String>,
    pub size: u64,
}

/// An upload and the parts that are there, in order.
#[derive(Debug, Clone)]
pub struct UploadState {
    pub upload: Upload,
    pub parts: Vec<Part>,
}

/// S3 knows no more either.
const MAX_PARTS: i64 = 10_000;
/// A part is on its way as one; more of it would be a file.
const MAX_PART: u64 = 1 << 30;

impl Workspace {
    pub async fn begin_upload(&self, new: NewUpload) -> Result<UploadState> {
        let limit = self.files.settings.max_upload;
        if new.size > limit {
            return Err(Error::TooLarge { limit });
        }
        self.check_room(&new.path)?;
        let time = time_delta(self.files.settings.upload_ttl);
        let upload = Upload {
            id: UploadId(Uuid::now_v7()),
            conversation: self.conversation,
            path: new.path,
            original_name: new.original_name,
            description: new.description,
            size: new.size as i64,
            expires_at: Utc::now() + time,
            done: None,
        };
        let upload = self.files.store.begin_upload(&self.owned, upload).await?;
        Ok(UploadState { upload, parts: Vec::new() })
    }

    pub async fn upload(&self, id: UploadId) -> Result<UploadState> {
        let (upload, parts) = self.files.store.upload(self.conversation, id).await?;
        Ok(UploadState { upload, parts })
    }

    /// Takes a part. One that came before under the same number is replaced.
    pub async fn put_part(&self, id: UploadId, number: i64, body: Bodies<'_>) -> Result<Part> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(Error::Parts(format!("parts have numbers from 1 to {MAX_PARTS}")));
        }
        let UploadState { upload, parts } = self.upload(id).await?;
        if upload.done.is_some() {
            return Err(Error::Parts("the upload is complete".into()));
        }
        let others: i64 = parts.iter().filter(|part| part.number != number).map(|part| part.size).sum();
        let limit = ((upload.size - others).max(0) as u64).min(MAX_PART);
        let files = &self.files;
        let put = blobs::put(&files.place, &files.tasks, self.conversation, body, limit, None).await;
        let too_much =
            |limit| Error::Parts(format!("the part has more than the {limit} bytes that were announced"));
        let put = put.map_err(|error| match error {
            Error::TooLarge { limit } => too_much(limit),
            other => other,
        })?;
        let part = Part { number, key: put.key.to_string(), size: put.size as i64, checksum: put.checksum };
        match files.store.add_part(&self.owned, &upload, part.clone()).await {
            Ok(true) => Ok(part),
            // Others came in meanwhile, or the upload ended.
            refused => {
                files.store.discard_objects(&self.owned, vec![part.key]).await?;
                files.upkeep.notify_one();
                Err(refused.map_or_else(Into::into, |_| too_much(limit)))
            }
        }
    }

    /// Puts the parts together. They are numbered without a gap and make up what was announced. Asked again, it
    /// answers again: the first answer may have been lost on its way.
    pub async fn complete_upload(
        &self,
        author: Author,
        id: UploadId,
        expect: Expect,
    ) -> Result<ConversationFile> {
        match self.put_together(author, id, expect).await {
            Ok(file) => Ok(file),
            Err(error) => match self.upload(id).await {
                // Somebody else who completed it was faster, and the parts are gone.
                Ok(UploadState { upload: Upload { done: Some(file), .. }, .. }) => self.file(file).await,
                _ => Err(error),
            },
        }
    }

    async fn put_together(&self, author: Author, id: UploadId, expect: Expect) -> Result<ConversationFile> {
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
                "there are {size} bytes of the {announced} that were announced"
            )));
        }
        let files = self.files.clone();
        let body = futures::stream::iter(parts)
            .map(move |part| {
                let body = blobs::get(&files, Key::from(part.key.as_str()), 0..part.size as u64, Pace::COPY);
                Ok::<_, Error>(blobs::checked(body, part.checksum, format!("part {}", part.number)))
            })
            .try_flatten()
            .boxed();
        let intake: Intake = self.store(body, upload.size as u64).await?;
        let file = NewFile {
            intake,
            path: upload.path,
            original_name: upload.original_name,
            description: upload.description,
            expect,
        };
        let mut saved = self.save_and(author, vec![file], Some(Edit::Complete { upload: id })).await?;
        self.files.upkeep.notify_one();
        saved.pop().ok_or(Error::Stopping)
    }

    /// Gives an upload up, or tidies up after one that is complete.
    pub async fn end_upload(&self, id: UploadId) -> Result<()> {
        self.upload(id).await?;
        self.files.store.end_upload(&self.owned, id).await?;
        self.files.upkeep.notify_one();
        Ok(())
    }
}
