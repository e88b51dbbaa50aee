//! The object store, and the keys under which content is kept.

use crate::{Error, Result, Settings};
use atelier_core::{ConversationId, FilePath};
use futures::StreamExt;
use object_store::{
    Attribute, Attributes, BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    path::Path as Key,
    signer::Signer,
};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use url::Url;
use uuid::Uuid;

pub(crate) struct ContentStore {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// `None` if the store cannot make links to its objects.
    pub(crate) signer: Option<Arc<dyn Signer>>,
    /// The folder, if the store is a local disk.
    pub(crate) disk: Option<PathBuf>,
    prefix: String,
    shown: String,
    timeout: Duration,
}

impl fmt::Display for ContentStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl ContentStore {
    pub(crate) fn open(url: Option<&str>, data: &Path, settings: &Settings) -> Result<Self> {
        let invalid = |error: &dyn fmt::Display| Error::Configuration(error.to_string());
        check_prefix(&settings.prefix)?;
        let url = match url {
            Some(url) => Url::parse(url).map_err(|error| invalid(&error))?,
            None => Url::from_directory_path(std::path::absolute(data.join("objects"))?)
                .map_err(|()| invalid(&"the data folder has no absolute path"))?,
        };
        // Credentials come from the environment, under the names that each cloud defines. The query
        // of the URL can override them (`s3://bucket?endpoint=http://…&region=…`).
        let mut bare = url.clone();
        bare.set_query(None);
        let store = |objects: Arc<dyn ObjectStore>, signer, disk| Self {
            objects,
            signer,
            disk,
            prefix: settings.prefix.clone(),
            shown: atelier_store::masked(url.as_str()),
            timeout: settings.store_timeout,
        };
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..Default::default() },
            max_retries: 5,
            retry_timeout: settings.store_timeout,
        };
        let options = ClientOptions::new()
            .with_connect_timeout(Duration::from_secs(5).min(settings.store_timeout))
            .with_timeout(settings.store_timeout)
            .with_pool_max_idle_per_host(64);
        match url.scheme() {
            "file" => {
                let folder =
                    url.to_file_path().map_err(|()| invalid(&"file:// needs an absolute path"))?;
                std::fs::create_dir_all(&folder)?;
                let disk = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(true);
                Ok(store(Arc::new(disk), None, Some(folder.canonicalize()?)))
            }
            "s3" | "s3a" => {
                let mut bucket = AmazonS3Builder::from_env().with_url(bare.as_str());
                for (key, value) in url.query_pairs() {
                    bucket = bucket.with_config(key.parse()?, value);
                }
                let endpoint = bucket.get_config_value(&AmazonS3ConfigKey::Endpoint);
                // An operator who configures an http:// endpoint wants plain HTTP.
                let plain = endpoint.is_some_and(|it| it.starts_with("http://"));
                let options = options.with_allow_http(plain);
                let bucket =
                    Arc::new(bucket.with_retry(retry).with_client_options(options).build()?);
                Ok(store(bucket.clone(), Some(bucket), None))
            }
            "gs" => {
                let mut bucket = GoogleCloudStorageBuilder::from_env().with_url(bare.as_str());
                for (key, value) in url.query_pairs() {
                    bucket = bucket.with_config(key.parse()?, value);
                }
                let bucket =
                    Arc::new(bucket.with_retry(retry).with_client_options(options).build()?);
                Ok(store(bucket.clone(), Some(bucket), None))
            }
            "az" | "azure" | "abfs" | "abfss" => {
                let mut bucket = MicrosoftAzureBuilder::from_env().with_url(bare.as_str());
                for (key, value) in url.query_pairs() {
                    bucket = bucket.with_config(key.parse()?, value);
                }
                let bucket =
                    Arc::new(bucket.with_retry(retry).with_client_options(options).build()?);
                Ok(store(bucket.clone(), Some(bucket), None))
            }
            other => {
                Err(invalid(&format_args!("{other}:// is not supported; use file, s3, gs or az")))
            }
        }
    }

    /// The prefix of a conversation's readable copies: `{prefix}{conversation_id}/`.
    pub(crate) fn workspace(&self, conversation: ConversationId) -> String {
        format!("{}{conversation}/", self.prefix)
    }

    /// The prefix of a conversation's contents. It is beside the prefix of the readable copies, so
    /// that no file path can name a content.
    pub(crate) fn contents(&self, conversation: ConversationId) -> Key {
        Key::from(format!("{}{conversation}.blobs", self.prefix))
    }

    /// A key that was never used before. It ends with a UUID that contains the time.
    pub(crate) fn new_content(&self, conversation: ConversationId, checksum: Option<&str>) -> Key {
        let unique = Uuid::now_v7().simple();
        let name =
            checksum.map_or_else(|| unique.to_string(), |checksum| format!("{checksum}.{unique}"));
        self.contents(conversation).join(name.as_str())
    }

    /// The key of a file's readable copy.
    pub(crate) fn copy(&self, conversation: ConversationId, path: &FilePath) -> String {
        format!("{}{path}", self.workspace(conversation))
    }

    /// How long a file path of this conversation may be, so that the key of its readable copy is
    /// not too long.
    pub(crate) fn longest_path(&self, conversation: ConversationId) -> usize {
        let (most, above) = match &self.disk {
            Some(disk) => (4095, disk.as_os_str().len() + 1),
            None => (1024, 0),
        };
        most - (above + self.workspace(conversation).len() + MARKS).min(most)
    }

    /// The prefix of the contents of an archived conversation.
    pub(crate) fn archived_contents(&self, conversation: ConversationId) -> Key {
        Key::from(format!("{}{ARCHIVED}{conversation}.blobs", self.prefix))
    }

    /// Whether a content belonged to an archived conversation when it was last moved.
    pub(crate) fn is_archived(&self, key: &str) -> bool {
        key.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with(ARCHIVED))
    }

    /// A new key for content of a conversation that is archived, or that no longer is.
    pub(crate) fn new_place(
        &self,
        conversation: ConversationId,
        checksum: &str,
        archived: bool,
    ) -> Key {
        let key = self.new_content(conversation, Some(checksum));
        match key.filename().filter(|_| archived) {
            Some(name) => self.archived_contents(conversation).join(name),
            None => key,
        }
    }

    /// The conversation of a key such as `{prefix}{conversation}.blobs/…`,
    /// `{prefix}archived/{conversation}.blobs/…` or `{prefix}{conversation}/…`.
    pub(crate) fn conversation_of(&self, key: &Key) -> Option<ConversationId> {
        let rest = key.as_ref().strip_prefix(&self.prefix)?;
        let rest = rest.strip_prefix(ARCHIVED).unwrap_or(rest);
        let (folder, _) = rest.split_once('/')?;
        folder.strip_suffix(".blobs").unwrap_or(folder).parse().ok()
    }

    /// The error for a missing object: its content is lost, or a lifecycle rule has deleted it. The
    /// object store itself works.
    pub(crate) fn lost(&self, error: Error, key: &Key) -> Error {
        match error {
            Error::Objects(object_store::Error::NotFound { .. }) => {
                let path = key.to_string();
                match self.is_archived(key.as_ref()) {
                    true => Error::Expired { path },
                    false => Error::Lost { path },
                }
            }
            other => other,
        }
    }

    /// Moves content to another key, as if it had just been stored.
    pub(crate) async fn move_content(&self, from: &Key, to: &Key) -> Result<()> {
        self.touch(from).await?;
        self.within(self.objects.rename(from, to)).await
    }

    /// Makes a file on a disk as young as a new one. Objects in a cloud get the time of their copy.
    pub(crate) async fn touch(&self, key: &Key) -> Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let path = disk.join(key.as_ref());
        let touch = move || std::fs::File::open(path)?.set_modified(SystemTime::now());
        match tokio::task::spawn_blocking(touch).await? {
            // The next operation reports a missing file.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Headers of an object that browsers can download from the store itself: they must not render
    /// it.
    pub(crate) fn attributes(&self) -> Attributes {
        match self.disk {
            Some(_) => Attributes::new(),
            None => Attributes::from_iter([
                (Attribute::ContentType, "application/octet-stream"),
                (Attribute::ContentDisposition, "attachment"),
            ]),
        }
    }

    /// The folder that all keys are in.
    pub(crate) fn top(&self) -> Option<Key> {
        let (folder, _) = self.prefix.rsplit_once('/')?;
        Some(Key::from(folder))
    }

    /// Waits for the store, at most as long as the configured timeout.
    pub(crate) async fn within<T, E: Into<Error>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let answer = match tokio::time::timeout(self.timeout, request).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Error::ObjectsTimeout),
        };
        if answer.as_ref().is_err_and(Error::is_store_failure) {
            metrics::counter!("atelier_object_store_errors_total").increment(1);
        }
        answer
    }

    pub(crate) async fn ping(&self) -> Result<()> {
        let mut some = self.objects.list(self.top().as_ref());
        self.within(async { some.next().await.transpose() }).await?;
        Ok(())
    }
}

/// The folder for the contents of archived conversations.
const ARCHIVED: &str = "archived/";

/// Space in a key for the mark of an agent's copy beside a file.
const MARKS: usize = 16;

/// Refuses a prefix that the store would encode differently, or that a disk would read as another
/// folder: the prefix is part of every key.
fn check_prefix(prefix: &str) -> Result<()> {
    let plain = prefix.strip_suffix('/').unwrap_or(prefix);
    if Key::from(plain).as_ref() == plain {
        return Ok(());
    }
    Err(Error::Configuration(format!(
        "files.prefix {prefix:?} is not valid: use plain folder names, each followed by one \
         slash, such as team/files/"
    )))
}

/// How long ago the key was made. The key contains the time.
pub(crate) fn age(key: &Key) -> Option<Duration> {
    let unique = key.as_ref().rsplit(['/', '.']).next()?;
    let (seconds, nanos) = Uuid::try_parse(unique).ok()?.get_timestamp()?.to_unix();
    SystemTime::now().duration_since(UNIX_EPOCH + Duration::new(seconds, nanos)).ok()
}
