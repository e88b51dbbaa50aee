//! Reading and writing content in the object store: streamed, hashed on the way, with bounded
//! memory.

use crate::{Error, Files, Result, content_store::ContentStore, crash};
use atelier_core::ConversationId;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    GetOptions, GetRange, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    WriteMultipart, path::Path as Key,
};
use sha2::{Digest, Sha256};
use std::{fs::File, io::Write, ops::Range};
use tokio_util::task::TaskTracker;

/// The body of an upload as it arrives.
pub type BodyStream<'a> = BoxStream<'a, Result<Bytes>>;

/// Size of a part of a multipart upload. S3 accepts no parts below 5 MiB. Several parts of a file
/// are in memory at once.
pub(crate) const PART: usize = 8 << 20;
/// How many parts of one upload are sent at the same time.
const IN_FLIGHT: usize = 3;

/// How content is read: the size of a piece, and how many pieces are requested ahead of the reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAhead {
    piece: usize,
    ahead: usize,
}

impl ReadAhead {
    /// For downloads. There may be many, and a slow one holds this much memory.
    pub(crate) const DOWNLOAD: Self = Self { piece: 1 << 20, ahead: 4 };
    /// For the server itself, one file at a time: larger pieces mean fewer requests.
    pub(crate) const COPY: Self = Self { piece: PART, ahead: 2 };
}

/// How many bytes of a file are needed to recognise its type.
pub(crate) const HEAD: usize = 4096;

/// Content that was stored.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) key: Key,
    pub(crate) checksum: String,
    pub(crate) size: u64,
    /// The first bytes of the content.
    pub(crate) head: Bytes,
    /// Whether the local copy is complete.
    pub(crate) is_copied: bool,
}

/// Hashes what is written, keeps the first bytes, and copies everything to a file if there is one.
struct HashingWriter {
    hasher: Sha256,
    size: u64,
    head: BytesMut,
    file: Option<File>,
}

impl HashingWriter {
    /// Runs on a blocking thread, because hashing and writing block.
    async fn write(mut self, part: Bytes) -> Result<Self> {
        tokio::task::spawn_blocking(move || {
            self.hasher.update(&part);
            self.size += part.len() as u64;
            let room = HEAD.saturating_sub(self.head.len()).min(part.len());
            self.head.extend_from_slice(&part[..room]);
            // The local copy is only for the cache: without space for it, the upload goes on.
            if let Some(file) = &mut self.file
                && let Err(error) = file.write_all(&part)
            {
                tracing::warn!(%error, "cannot write to the cache; a file is stored without it");
                self.file = None;
            }
            Ok(self)
        })
        .await?
    }

    fn into_put(self, key: Key) -> Put {
        let (checksum, is_copied) = (hex(&self.hasher.finalize()), self.file.is_some());
        Put { key, checksum, size: self.size, head: self.head.freeze(), is_copied }
    }
}

/// Stores a body of unknown length, at most `limit` bytes, as a new object, and copies it to `tee`.
pub(crate) async fn put(
    store: &ContentStore,
    tasks: &TaskTracker,
    conversation: ConversationId,
    mut body: BodyStream<'_>,
    limit: u64,
    tee: Option<File>,
) -> Result<Put> {
    let mut writer =
        HashingWriter { hasher: Sha256::new(), size: 0, head: BytesMut::new(), file: tee };
    let mut buffer = BytesMut::new();
    let mut large: Option<(Key, Multipart)> = None;
    let mut received = 0;
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        received += chunk.len() as u64;
        if received > limit {
            return Err(Error::TooLarge { limit });
        }
        buffer.extend_from_slice(&chunk);
        while buffer.len() >= PART {
            let part = buffer.split_to(PART).freeze();
            let (_, upload) = match &mut large {
                Some(large) => large,
                None => large.insert(begin(store, tasks, conversation).await?),
            };
            upload.send(store, part.clone()).await?;
            writer = writer.write(part).await?;
        }
    }
    crash::point("size");
    let rest = buffer.freeze();
    if let Some((key, mut upload)) = large {
        if !rest.is_empty() {
            upload.send(store, rest.clone()).await?;
        }
        writer = writer.write(rest).await?;
        crash::point("checksum");
        upload.finish(store).await?;
        crash::point("object");
        return Ok(writer.into_put(key));
    }
    writer = writer.write(rest.clone()).await?;
    crash::point("checksum");
    let checksum = hex(&writer.hasher.clone().finalize());
    let key = put_bytes(store, conversation, &checksum, rest).await?;
    crash::point("object");
    Ok(writer.into_put(key))
}

/// Stores content that is already in memory.
pub(crate) async fn put_bytes(
    store: &ContentStore,
    conversation: ConversationId,
    checksum: &str,
    content: Bytes,
) -> Result<Key> {
    let key = store.new_content(conversation, Some(checksum));
    let options = PutOptions { attributes: store.attributes(), ..Default::default() };
    store.within(store.objects.put_opts(&key, PutPayload::from_bytes(content), options)).await?;
    Ok(key)
}

async fn begin(
    store: &ContentStore,
    tasks: &TaskTracker,
    conversation: ConversationId,
) -> Result<(Key, Multipart)> {
    let key = store.new_content(conversation, None);
    let options = PutMultipartOptions { attributes: store.attributes(), ..Default::default() };
    let upload = store.within(store.objects.put_multipart_opts(&key, options)).await?;
    let upload = WriteMultipart::new_with_chunk_size(upload, PART);
    Ok((key, Multipart { upload: Some(upload), tasks: tasks.clone() }))
}

/// A multipart upload. Dropping it unfinished aborts it in the object store.
struct Multipart {
    upload: Option<WriteMultipart>,
    tasks: TaskTracker,
}

impl Multipart {
    async fn send(&mut self, store: &ContentStore, part: Bytes) -> Result<()> {
        let Some(upload) = &mut self.upload else { return Err(Error::Stopping) };
        store.within(upload.wait_for_capacity(IN_FLIGHT)).await?;
        upload.put(part);
        Ok(())
    }

    async fn finish(&mut self, store: &ContentStore) -> Result<()> {
        let Some(mut upload) = self.upload.take() else { return Err(Error::Stopping) };
        // The timeout holds once for the parts that are still being sent, and once for completing
        // the upload.
        store.within(upload.wait_for_capacity(0)).await?;
        store.within(upload.finish()).await?;
        Ok(())
    }
}

impl Drop for Multipart {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.tasks.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(%error, "cannot abort an upload; its parts stay in the object \
                        store");
                }
            });
        }
    }
}

/// Reads a small object as a whole and checks its size and checksum.
pub(crate) async fn get_checked(
    store: &ContentStore,
    key: &Key,
    size: u64,
    checksum: &str,
) -> Result<Bytes> {
    let damaged = || Error::Damaged { path: key.to_string() };
    let bytes = store.within(async { store.objects.get(key).await?.bytes().await }).await;
    let bytes = bytes.map_err(|error| store.lost(error, key))?;
    if bytes.len() as u64 != size {
        return Err(damaged());
    }
    let (bytes, found) = tokio::task::spawn_blocking(move || {
        let found = hex(&Sha256::digest(&bytes));
        (bytes, found)
    })
    .await?;
    if found == checksum { Ok(bytes) } else { Err(damaged()) }
}

/// A range of an object, in pieces that are requested ahead of the reader.
pub(crate) fn get(
    files: &Files,
    key: Key,
    range: Range<u64>,
    read_ahead: ReadAhead,
) -> BoxStream<'static, Result<Bytes>> {
    let files = files.clone();
    let pieces = (range.start..range.end).step_by(read_ahead.piece);
    let end = range.end;
    futures::stream::iter(pieces)
        .map(move |start| {
            let (files, key) = (files.clone(), key.clone());
            async move {
                let store = &files.content;
                let wanted = start..end.min(start + read_ahead.piece as u64);
                let length = wanted.end - wanted.start;
                let options =
                    GetOptions { range: Some(GetRange::Bounded(wanted)), ..Default::default() };
                let read = async { store.objects.get_opts(&key, options).await?.bytes().await };
                let bytes = store.within(read).await.map_err(|error| store.lost(error, &key))?;
                if bytes.len() as u64 == length {
                    Ok(bytes)
                } else {
                    Err(Error::Damaged { path: key.to_string() })
                }
            }
        })
        .buffered(read_ahead.ahead)
        .boxed()
}

/// Passes the bytes on, but the last piece only if the checksum of all is right. So a reader that
/// gets to the end has the right content.
pub(crate) fn checked(
    body: impl Stream<Item = Result<Bytes>> + Send + 'static,
    checksum: String,
    shown: String,
) -> BoxStream<'static, Result<Bytes>> {
    struct State {
        hasher: Sha256,
        held: Option<Bytes>,
        done: bool,
    }
    let state = State { hasher: Sha256::new(), held: None, done: false };
    let body = Box::pin(body);
    futures::stream::try_unfold((body, state), move |(mut body, mut state)| {
        let (checksum, shown) = (checksum.clone(), shown.clone());
        async move {
            if state.done {
                return Ok(None);
            }
            loop {
                match body.try_next().await? {
                    Some(piece) => {
                        let mut hasher = std::mem::take(&mut state.hasher);
                        let (hasher, piece) = tokio::task::spawn_blocking(move || {
                            hasher.update(&piece);
                            (hasher, piece)
                        })
                        .await?;
                        state.hasher = hasher;
                        if let Some(before) = state.held.replace(piece) {
                            return Ok(Some((before, (body, state))));
                        }
                    }
                    None => {
                        state.done = true;
                        let found = hex(&std::mem::take(&mut state.hasher).finalize());
                        if found != checksum {
                            return Err(Error::Damaged { path: shown });
                        }
                        return Ok(state.held.take().map(|last| (last, (body, state))));
                    }
                }
            }
        }
    })
    .boxed()
}

pub(crate) fn hex(digest: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    digest.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
