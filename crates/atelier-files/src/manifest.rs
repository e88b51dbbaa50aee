//! What a conversation's folder held when it was last in step with the database: the base that changes are told
//! from. It lies outside of the folder, where no agent gets at it.

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
    /// A run has begun and not ended: what differs in the folder is its work, not damage.
    pub(crate) open: bool,
    /// When the stamps were taken, in nanoseconds.
    pub(crate) taken: i64,
    pub(crate) files: HashMap<FilePath, Entry>,
    /// Versions that the object store could not give: they are not in the folder, and nobody deleted them there.
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

    /// Whether work may lie in the folder that is stored nowhere else. Asked with every upload, so a look at the
    /// beginning has to do: `open` is written first.
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

    /// Whether the stamp alone says that the file is as it was.
    pub(crate) fn is_unchanged(&self, entry: &Entry, now: Stamp) -> bool {
        entry.stamp == now && now.changed < self.taken - TICK
    }
}

pub(crate) fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
