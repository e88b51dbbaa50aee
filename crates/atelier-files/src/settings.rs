//! Configuration of conversation workspaces.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The beginning of every key in the object store (`S3_WORKSPACE_PREFIX`).
    pub prefix: String,
    /// The place of the local folders of conversations (`WORKSPACE_TEMP_DIR`). The default is the
    /// data folder.
    pub cache: Option<PathBuf>,
    /// How many bytes the cache may hold. The least recently used conversations are removed first.
    pub cache_bytes: u64,
    /// The size of the largest allowed file, in bytes (`MAX_UPLOAD_FILE_SIZE`).
    pub max_upload: u64,
    /// Keep a copy of every file's newest version under its path in the object store.
    pub copies: bool,
    /// How old an object without a database row must be before it is removed.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// How often to look for objects without a row and for missing copies.
    #[serde(with = "humantime_serde")]
    pub sweep: Duration,
    /// How many days the files of an archived conversation are kept. They are kept forever unless
    /// this is set.
    pub keep_archived_days: Option<u32>,
    /// How long one request to the object store may take, including retries.
    #[serde(with = "humantime_serde")]
    pub store_timeout: Duration,
    /// How long a lease on a conversation's folder is valid without being renewed.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How long an upload in parts may stay unfinished.
    #[serde(with = "humantime_serde")]
    pub upload_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "workspaces/".into(),
            cache: None,
            cache_bytes: 10 << 30,
            max_upload: 104_857_600,
            copies: true,
            grace: Duration::from_secs(24 * 3600),
            sweep: Duration::from_secs(3600),
            keep_archived_days: None,
            store_timeout: Duration::from_secs(20),
            lease: Duration::from_secs(30),
            upload_ttl: Duration::from_secs(7 * 24 * 3600),
        }
    }
}
