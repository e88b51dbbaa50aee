//! The state of a conversation's folder at the last sync. Changes are found by comparing the folder
//! with it. The manifest is outside the folder, so that agents cannot reach it.

use crate::Result;
use atelier_core::{FileId, FilePath};
use atelier_executor::Stamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// A run has begun and not ended: differences in the folder are its work, not damage.
    pub(crate) open: bool,
    /// When the stamps were taken, in nanoseconds since 1970.
    pub(crate) taken: i64,
    pub(crate) files: HashMap<FilePath, Entry>,
    /// Versions that could not be read from the object store. They are missing from the folder, but
    /// nobody deleted them.
    #[serde(default)]
    pub(crate) damaged: HashMap<FilePath, i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) file_id: FileId,
    pub(crate) version: i64,
    pub(crate) checksum: String,
    pub(crate) stamp: Stamp,
}

const CLOSED: &[u8] = br#"{"open":false,"#;

/// File systems store times with limited precision: a change this soon after the stamp may have the
/// same time.
const TICK: i64 = 20_000_000;

impl Manifest {
    pub(crate) fn load(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        // A damaged manifest may be ignored: without one, the next sync checks every file.
        Ok(serde_json::from_slice(&text).ok())
    }

    /// Whether the folder may hold changes that are not stored. Every upload asks this, so it reads
    /// only the first bytes: `open` is written first.
    pub(crate) fn is_open(path: &Path) -> Result<bool> {
        let mut start = Vec::new();
        match fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?.take(CLOSED.len() as u64).read_to_end(&mut start)?,
        };
        if start == CLOSED {
            return Ok(false);
        }
        Ok(Self::load(path)?.is_some_and(|manifest| manifest.open))
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let beside = path.with_extension("new");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, path)?)
    }

    /// Whether the stamp alone proves that the file is unchanged.
    pub(crate) fn is_unchanged(&self, entry: &Entry, now: Stamp) -> bool {
        entry.stamp == now && now.changed < self.taken - TICK
    }
}

pub(crate) fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
