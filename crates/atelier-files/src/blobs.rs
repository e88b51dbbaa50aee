//! Content in and out of the object store: streamed, hashed on the way, at a flat cost in memory.

use crate::{Error, Files, Result, crash, place::Place};
use atelier_core::ConversationId;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    GetOptions, GetRange, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, WriteMultipart,
    path::Path as Key,
};
use sha2::{Digest, Sha256};
use std::{fs::File, io::Write, ops::Range};
use tokio_util::task::TaskTracker;

/// A body as it comes in.
pub type Bodies<'a> = BoxStream<'a, Result<Bytes>>;

/// What is held in memory of one file, several times over: S3 takes no smaller parts than 5 MiB.
pub(crate) const PART: usize = 8 << 20;
/// Parts on their way at a time.
const IN_FLIGHT: usize = 3;
/// How content is read: the size of a piece, and how many of them are asked for ahead of the reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    piece: usize,
    ahead: usize,
}

impl Pace {
    /// For somebody far away. One who stands still holds no more than this, and there may be many.
    pub(crate) const DOWNLOAD: Self = Self { piece: 1 << 20, ahead: 4 };
    /// For ourselves, one at a time: fewer questions to the store.
    pub(crate) const COPY: Self = Self { piece: PART, ahead: 2 };
}

/// As much as telling a kind of file takes.
pub(crate) const HEAD: usize = 4096;

/// Content that was put.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) key: Key,
    pub(crate) checksum: String,
    pub(crate) size: u64,
    /// How it begins.
    pub(crate) head: Bytes,
}

/// Hashes what passes, keeps its beginning, and writes it to a file if there is one.
struct Tap {
    hasher: Sha256,
    size: u64,
    head: BytesMut,
    file: Option<File>,
}

impl Tap {
    /// On a thread of its own: hashing and writing block.
    async fn take(mut self, part: Bytes) -> Result<Self> {
        tokio::task::spawn_blocking(move || {
            self.hasher.update(&part);
            self.size += part.len() as u64;
            let room = HEAD.saturating_sub(self.head.len()).min(part.len());
            self.head.extend_from_slice(&part[..room]);
            if let Some(file) = &mut self.file {
                file.write_all(&part)?;
            }
            Ok(self)
        })
        .await?
    }
}

/// Puts a body of unknown length, which may have at most `limit` bytes, into a new object; `tee` gets the same.
pub(crate) async fn put(
    place: &Place,
    tasks: &TaskTracker,
    conversation: ConversationId,
    mut body: Bodies<'_>,
    limit: u64,
    tee: Option<File>,
) -> Result<Put> {
    let mut tap = Tap { hasher: Sha256::new(), size: 0, head: BytesMut::new(), file: tee };
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
                None => large.insert(begin(place, tasks, conversation).await?),
            };
            upload.send(place, part.clone()).await?;
            tap = tap.take(part).await?;
        }
    }
    crash::point("size");
    let rest = buffer.freeze();
    if let Some((key, mut upload)) = large {
        if !rest.is_empty() {
            upload.send(place, rest.clone()).await?;
        }
        tap = tap.take(rest).await?;
        crash::point("checksum");
        upload.finish(place).await?;
        crash::point("object");
        let checksum = hex(&tap.hasher.finalize());
        return Ok(Put { key, checksum, size: tap.size, head: tap.head.freeze() });
    }
    tap = tap.take(rest.clone()).await?;
    crash::point("checksum");
    let checksum = hex(&tap.hasher.finalize());
    let key = put_bytes(place, conversation, &checksum, rest).await?;
    crash::point("object");
    Ok(Put { key, checksum, size: tap.size, head: tap.head.freeze() })
}

/// Puts content that is at hand as a whole.
pub(crate) async fn put_bytes(
    place: &Place,
    conversation: ConversationId,
    checksum: &str,
    content: Bytes,
) -> Result<Key> {
    let key = place.new_content(conversation, Some(checksum));
    let options = PutOptions { attributes: place.attributes(), ..Default::default() };
    place.within(place.objects.put_opts(&key, PutPayload::from_bytes(content), options)).await?;
    Ok(key)
}

async fn begin(place: &Place, tasks: &TaskTracker, conversation: ConversationId) -> Result<(Key, Multipart)> {
    let key = place.new_content(conversation, None);
    let options = PutMultipartOptions { attributes: place.attributes(), ..Default::default() };
    let upload = place.within(place.objects.put_multipart_opts(&key, options)).await?;
    let upload = WriteMultipart::new_with_chunk_size(upload, PART);
    Ok((key, Multipart { upload: Some(upload), tasks: tasks.clone() }))
}

/// A large upload that is broken off in the store, too, when it is broken off here.
struct Multipart {
    upload: Option<WriteMultipart>,
    tasks: TaskTracker,
}

impl Multipart {
    async fn send(&mut self, place: &Place, part: Bytes) -> Result<()> {
        let Some(upload) = &mut self.upload else { return Err(Error::Stopping) };
        place.within(upload.wait_for_capacity(IN_FLIGHT)).await?;
        upload.put(part);
        Ok(())
    }

    async fn finish(&mut self, place: &Place) -> Result<()> {
        let Some(mut upload) = self.upload.take() else { return Err(Error::Stopping) };
        // Once for what is on its way, once for putting it together.
        place.within(upload.wait_for_capacity(0)).await?;
        place.within(upload.finish()).await?;
        Ok(())
    }
}

impl Drop for Multipart {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.tasks.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(%error, "a broken-off upload leaves parts in the object store");
                }
            });
        }
    }
}

/// A small object whole, as it should be.
pub(crate) async fn get_checked(place: &Place, key: &Key, size: u64, checksum: &str) -> Result<Bytes> {
    let damaged = || Error::Damaged { path: key.to_string() };
    let bytes = place.within(async { place.objects.get(key).await?.bytes().await }).await;
    let bytes = bytes.map_err(|error| lost(error, key))?;
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

/// A content that is not there is no trouble of the store as a whole.
pub(crate) fn lost(error: Error, key: &Key) -> Error {
    match error {
        Error::Objects(object_store::Error::NotFound { .. }) => Error::Lost { path: key.to_string() },
        other => other,
    }
}

/// A range of an object in pieces that are asked for ahead of their reader.
pub(crate) fn get(
    files: &Files,
    key: Key,
    range: Range<u64>,
    pace: Pace,
) -> BoxStream<'static, Result<Bytes>> {
    let files = files.clone();
    let pieces = (range.start..range.end).step_by(pace.piece);
    let end = range.end;
    futures::stream::iter(pieces)
        .map(move |start| {
            let (files, key) = (files.clone(), key.clone());
            async move {
                let place = &files.place;
                let wanted = start..end.min(start + pace.piece as u64);
                let length = wanted.end - wanted.start;
                let options = GetOptions { range: Some(GetRange::Bounded(wanted)), ..Default::default() };
                let read = async { place.objects.get_opts(&key, options).await?.bytes().await };
                let bytes = place.within(read).await.map_err(|error| lost(error, &key))?;
                if bytes.len() as u64 == length {
                    Ok(bytes)
                } else {
                    Err(Error::Damaged { path: key.to_string() })
                }
            }
        })
        .buffered(pace.ahead)
        .boxed()
}

/// The same bytes, the last of them only if all together have this checksum: whoever reads to the end has the
/// content, and whoever does not is cut off before it.
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
