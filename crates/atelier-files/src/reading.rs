//! Handing content out: whole or a part of it, streamed, checked when asked for.

use crate::{Error, Result, Workspace, blobs, mime};
use atelier_core::{FileId, FilePath, FileVersion};
use bytes::Bytes;
use futures::stream::BoxStream;
use std::ops::Range;

/// One version of a file, ready to be read.
pub struct Reading {
    workspace: Workspace,
    pub path: FilePath,
    pub version: FileVersion,
}

impl Workspace {
    /// A version of a file, the newest unless told otherwise.
    pub async fn read(&self, id: FileId, version: Option<i64>) -> Result<Reading> {
        let file = self.file(id).await?;
        let version = self.files.store.file_version(&file, version.unwrap_or(file.version)).await?;
        Ok(Reading { workspace: self.clone(), path: file.file_path, version })
    }
}

impl Reading {
    pub fn size(&self) -> u64 {
        self.version.file_size as u64
    }

    /// Whether a browser may show it rather than save it.
    pub fn may_be_shown(&self) -> bool {
        mime::may_be_shown(&self.version.mime_type)
    }

    /// The bytes of a range.
    pub async fn part(&self, range: Range<u64>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let key = self.workspace.content_key(&self.version.checksum, &self.path).await?;
        Ok(blobs::get(&self.workspace.files, key, range, blobs::Pace::DOWNLOAD))
    }

    /// All bytes. Checked, the stream fails before its last piece if they are not what was put in.
    pub async fn whole(&self, check: bool) -> Result<BoxStream<'static, Result<Bytes>>> {
        let body = self.part(0..self.size()).await?;
        Ok(match check {
            true => blobs::checked(body, self.version.checksum.clone(), self.path.to_string()),
            false => body,
        })
    }

    /// All bytes at once and checked, where there are not too many.
    pub async fn bytes(&self, limit: u64) -> Result<Bytes> {
        if self.size() > limit {
            return Err(Error::NotText("the file is too large to be compared"));
        }
        let key = self.workspace.content_key(&self.version.checksum, &self.path).await?;
        blobs::get_checked(&self.workspace.files.place, &key, self.size(), &self.version.checksum).await
    }
}
