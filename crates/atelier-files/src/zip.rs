//! All files of a conversation in one archive, which is made while it is sent.

use crate::{ConversationWorkspace, Error, Result, blobs};
use async_zip::{
    Compression, ZipDateTime, ZipDateTimeBuilder, ZipEntryBuilder, ZipString,
    tokio::write::ZipFileWriter,
};
use atelier_core::ConversationFile;
use bytes::Bytes;
use chrono::{DateTime, Datelike, Timelike, Utc};
use futures::{AsyncWriteExt, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::path::Path as Key;
use tokio::io::DuplexStream;
use tokio_util::io::ReaderStream;

/// How many bytes of the archive are made ahead of the reader.
const AHEAD: usize = 1 << 20;

impl ConversationWorkspace {
    /// A ZIP archive of the newest version of every file that the reader may have. The stream
    /// fails at the first damaged content.
    pub async fn archive(&self) -> Result<BoxStream<'static, Result<Bytes>>> {
        let mut files = self.list().await?;
        files.retain(|file| self.check_readable(&file.file_path).is_ok());
        let (reader, writer) = tokio::io::duplex(AHEAD);
        let workspace = self.clone();
        // A file that fails must fail the stream: some programs accept an archive that merely ends
        // early.
        let (outcome, failed) = tokio::sync::oneshot::channel();
        self.files.tasks.spawn(async move {
            drop(outcome.send(workspace.write_archive(files, writer).await));
        });
        let bytes = ReaderStream::with_capacity(reader, 64 << 10).map_err(Error::from);
        let end = futures::stream::once(async move {
            match failed.await {
                Ok(Ok(())) => Ok(Bytes::new()),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::Stopping),
            }
        });
        Ok(bytes.chain(end).boxed())
    }

    async fn write_archive(
        &self,
        files: Vec<ConversationFile>,
        writer: DuplexStream,
    ) -> Result<()> {
        let broken = |error: async_zip::error::ZipError| Error::Broken(error.to_string());
        let mut archive = ZipFileWriter::with_tokio(writer);
        for file in files {
            // File paths are checked when they are created, so unpacking never leaves the target
            // folder.
            let name = ZipString::from(file.file_path.to_string());
            let entry = ZipEntryBuilder::new(name, Compression::Stored)
                .unix_permissions(0o644)
                .last_modification_date(zip_time(file.updated_at));
            let mut entry = archive.write_entry_stream(entry).await.map_err(broken)?;
            let key: Key = self.content_key(&file.checksum, &file.file_path).await?;
            let body =
                blobs::get(&self.files, key, 0..file.file_size as u64, blobs::ReadAhead::DOWNLOAD);
            let mut body = blobs::checked(body, file.checksum, file.file_path.to_string());
            while let Some(piece) = body.try_next().await? {
                entry.write_all(&piece).await?;
            }
            entry.close().await.map_err(broken)?;
        }
        archive.close().await.map_err(broken)?;
        Ok(())
    }
}

/// The time in UTC. The ZIP format knows no time zones.
fn zip_time(time: DateTime<Utc>) -> ZipDateTime {
    ZipDateTimeBuilder::new()
        .year(time.year())
        .month(time.month())
        .day(time.day())
        .hour(time.hour())
        .minute(time.minute())
        .second(time.second())
        .build()
}
