//! Reading content: all of it or a range, as a stream, with an optional check.

use crate::{ConversationWorkspace, Error, Result, blobs, mime};
use atelier_core::{FileId, FilePath, FileVersion};
use bytes::Bytes;
use futures::stream::BoxStream;
use std::ops::Range;

/// One version of a file, ready to be read.
pub struct VersionReader {
    workspace: ConversationWorkspace,
    pub path: FilePath,
    pub version: FileVersion,
}

impl ConversationWorkspace {
    /// Opens a version of a file for reading; the newest if `version` is `None`.
    pub async fn read(&self, id: FileId, version: Option<i64>) -> Result<VersionReader> {
        let file = match version {
            None => self.file(id).await?,
            // The versions of a deleted file can be read as long as it can be restored.
            Some(_) => self.restorable(id).await?,
        };
        self.check_readable(&file.file_path)?;
        let number = version.unwrap_or(file.version);
        let version = self.files.store.file_version(&self.conversation, id, number).await?;
        Ok(VersionReader { workspace: self.clone(), path: file.file_path, version })
    }
}

impl VersionReader {
    pub fn size(&self) -> u64 {
        self.version.file_size as u64
    }

    /// Whether a browser may show it rather than save it.
    pub fn may_be_shown(&self) -> bool {
        mime::may_be_shown(&self.version.mime_type)
    }

    /// The bytes of a range, unchecked.
    pub async fn part(&self, range: Range<u64>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let key = self.workspace.content_key(&self.version.checksum, &self.path).await?;
        Ok(blobs::get(&self.workspace.files, key, range, blobs::ReadAhead::DOWNLOAD))
    }

    /// All bytes. With `check`, the stream fails before its last piece if the content is not what
    /// was stored.
    pub async fn whole(&self, check: bool) -> Result<BoxStream<'static, Result<Bytes>>> {
        let body = self.part(0..self.size()).await?;
        Ok(match check {
            true => blobs::checked(body, self.version.checksum.clone(), self.path.to_string()),
            false => body,
        })
    }

    /// All bytes in memory, checked; fails if there are more than `limit`.
    pub async fn bytes(&self, limit: u64) -> Result<Bytes> {
        if self.size() > limit {
            return Err(Error::NotText("the file is too large to compare"));
        }
        let key = self.workspace.content_key(&self.version.checksum, &self.path).await?;
        blobs::get_checked(&self.workspace.files.content, &key, self.size(), &self.version.checksum)
            .await
    }
}
