//! What a conversation's folder held when it was last in step with the database: the base that changes are told
//! from. It lies outside of the folder, where no agent gets at it.

use crate::Result;
use atelier_core::{FileId, FilePath};
use atelier_executor::Stamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// A run has begun and not ended: what differs in the folder is its work, not damage.
    pub(crate) open: bool,
    /// When the stamps were taken, in nanoseconds.
    pub(crate) taken: i64,
    pub(crate) files: HashMap<FilePath, Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) file_id: FileId,
    pub(crate) version: i64,
    pub(crate) checksum: String,
    pub(crate) stamp: Stamp,
}

/// File systems keep time in ticks: a change this soon after the stamp may have the same one.
const TICK: i64 = 20_000_000;

impl Manifest {
    pub(crate) fn load(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // A manifest is as disposable as the rest of the cache: without one everything is looked at.
        Ok(serde_json::from_slice(&text).ok())
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let beside = path.with_extension("new");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, path)?)
    }

    /// Whether the stamp alone says that the file is as it was.
    pub(crate) fn is_unchanged(&self, entry: &Entry, now: Stamp) -> bool {
        entry.stamp == now && now.changed < self.taken - TICK
    }
}

pub(crate) fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
