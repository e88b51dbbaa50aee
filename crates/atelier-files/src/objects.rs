//! Objects of any object store, to copy them from one to another: for backups and migrations.

use crate::{Error, Result, Settings, content_store::ContentStore};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStoreExt, PutPayload, WriteMultipart, path::Path as Key};
use sha2::{Digest, Sha256};
use std::path::Path;
use tokio::io::AsyncWriteExt;

/// An object larger than this is sent in parts.
const WHOLE: u64 = 8 << 20;

/// An object store, or a folder.
pub struct Objects(ContentStore);

/// The size and the checksum of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectContent {
    pub size: u64,
    /// The SHA-256 of the content, in hexadecimal digits.
    pub checksum: String,
}

/// Hashes an object as it passes.
#[derive(Default)]
struct Passing(Sha256, u64);

impl Passing {
    fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
        self.1 += piece.len() as u64;
    }

    fn content(self) -> ObjectContent {
        let checksum = self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        ObjectContent { size: self.1, checksum }
    }
}

impl Objects {
    /// Opens the store that a server with these settings uses.
    pub fn open(url: Option<&str>, data: &Path, settings: &Settings) -> Result<Self> {
        ContentStore::open(url, data, settings).map(Self)
    }

    /// Opens a store by its URL alone.
    pub fn at(url: &str) -> Result<Self> {
        let settings = Settings { prefix: String::new(), ..Settings::default() };
        ContentStore::open(Some(url), Path::new("."), &settings).map(Self)
    }

    /// Reads an object into memory; `None` if it does not exist.
    pub async fn read(&self, key: &str) -> Result<Option<Bytes>> {
        match self.0.objects.get(&parsed(key)?).await {
            Ok(object) => Ok(Some(object.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn write(&self, key: &str, content: Bytes) -> Result<()> {
        self.0.objects.put(&parsed(key)?, PutPayload::from(content)).await?;
        Ok(())
    }

    /// The size of an object; `None` if it does not exist.
    pub async fn size(&self, key: &str) -> Result<Option<u64>> {
        match self.0.objects.head(&parsed(key)?).await {
            Ok(object) => Ok(Some(object.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the store has an object below this prefix, or any object.
    pub async fn has_any(&self, prefix: &str) -> Result<bool> {
        let prefix = (!prefix.is_empty()).then(|| parsed(prefix)).transpose()?;
        Ok(self.0.objects.list(prefix.as_ref()).next().await.transpose()?.is_some())
    }

    /// Reads an object and returns its size and checksum; `None` if it does not exist.
    pub async fn content(&self, key: &str) -> Result<Option<ObjectContent>> {
        let mut passing = Passing::default();
        let found = self.pass(key, async |piece: Bytes| {
            passing.add(&piece);
            Ok(())
        });
        Ok(found.await?.then(|| passing.content()))
    }

    /// Copies an object to a file; `None` if the object does not exist.
    pub async fn download(&self, key: &str, file: &Path) -> Result<Option<ObjectContent>> {
        let mut target = tokio::fs::File::create(file).await?;
        let mut passing = Passing::default();
        let found = self.pass(key, async |piece: Bytes| {
            passing.add(&piece);
            Ok(target.write_all(&piece).await?)
        });
        let found = found.await?;
        target.sync_all().await?;
        Ok(found.then(|| passing.content()))
    }

    /// Copies a file into the store.
    pub async fn upload(&self, file: &Path, key: &str) -> Result<ObjectContent> {
        let file = tokio::fs::File::open(file).await?;
        let size = file.metadata().await?.len();
        let pieces = tokio_util::io::ReaderStream::with_capacity(file, 1 << 20);
        self.put(key, size, pieces.map_err(Error::from)).await
    }

    /// Copies an object to another store; `None` if the object does not exist.
    pub async fn copy(
        &self,
        key: &str,
        target: &Objects,
        target_key: &str,
    ) -> Result<Option<ObjectContent>> {
        match self.0.objects.get(&parsed(key)?).await {
            Ok(object) => {
                let size = object.meta.size;
                let pieces = object.into_stream().map_err(Error::from);
                Ok(Some(target.put(target_key, size, pieces).await?))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes an object on in pieces; `false` if it does not exist.
    async fn pass(
        &self,
        key: &str,
        mut each: impl AsyncFnMut(Bytes) -> Result<()>,
    ) -> Result<bool> {
        let mut pieces = match self.0.objects.get(&parsed(key)?).await {
            Ok(object) => object.into_stream(),
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        while let Some(piece) = pieces.try_next().await? {
            each(piece).await?;
        }
        Ok(true)
    }

    async fn put(
        &self,
        key: &str,
        size: u64,
        mut pieces: impl futures::Stream<Item = Result<Bytes>> + Unpin,
    ) -> Result<ObjectContent> {
        let (key, mut passing) = (parsed(key)?, Passing::default());
        if size <= WHOLE {
            let mut whole = Vec::new();
            while let Some(piece) = pieces.try_next().await? {
                passing.add(&piece);
                whole.push(piece);
            }
            self.0.objects.put(&key, whole.into_iter().collect::<PutPayload>()).await?;
            return Ok(passing.content());
        }
        let mut upload = WriteMultipart::new(self.0.objects.put_multipart(&key).await?);
        while let Some(piece) = pieces.try_next().await? {
            passing.add(&piece);
            upload.wait_for_capacity(4).await?;
            upload.put(piece);
        }
        upload.finish().await?;
        Ok(passing.content())
    }
}

fn parsed(key: &str) -> Result<Key> {
    Key::parse(key).map_err(|error| Error::Configuration(error.to_string()))
}
