//! The one door into the folder: changes that are made together, or not at all, and that can be
//! undone.
//!
//! A set of changes is made in these steps, and a crash between any two of them leaves the folder
//! as it was before, or as it is after:
//!
//! 1. The new files are written into a staging folder beneath the root, and the old ones are copied
//!    into the store of before-images.
//! 2. A journal in the state folder lists every step.
//! 3. Each new file is exchanged with the old one in a single step of the file system. The old file
//!    is then in the staging folder, where it is compared with what was expected: somebody may have
//!    changed it in the last moment, and then everything is put back.
//! 4. A record of the change is written. From then on it has happened.
//! 5. The journal and the staging folder are removed.
//!
//! If there is a journal without a record, the next use of the door puts everything back. With a
//! record, it finishes the removal.

mod apply;
mod entry;
mod images;
mod records;

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use chrono::{DateTime, Utc};
use rustix::fs::{FlockOperation, flock};

pub(crate) use apply::{ChangeSet, PathChange, STAGING, Source};
pub(crate) use entry::{Entry, hex, is_in_git, mode_of, modified, parent_of, stat_at, stat_of};
pub(crate) use images::Images;
pub(crate) use records::{Record, UndoOf};

use crate::error::{Error, Result};
use crate::workspace::Workspace;

/// Bounds of what is kept for undoing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    pub(crate) bytes: u64,
    pub(crate) days: u32,
}

/// The door into one workspace. Several processes may use it; they take turns.
#[derive(Debug)]
pub(crate) struct Door {
    folder: PathBuf,
    images: Images,
    keeping: Keeping,
    /// How often this process has changed the folder.
    changes: AtomicU32,
}

/// Holds the door, so that nobody else changes the folder through it.
pub(crate) struct Held<'a> {
    door: &'a Door,
    workspace: &'a Workspace,
    _lock: File,
}

impl Door {
    pub(crate) fn open(folder: PathBuf, keeping: Keeping) -> Result<Self> {
        private_folder(&folder.join("records"))?;
        let images = Images::open(folder.join("images"))?;
        Ok(Self { folder, images, keeping, changes: AtomicU32::new(0) })
    }

    /// Waits for its turn, and finishes what a killed process has begun.
    pub(crate) fn hold<'a>(&'a self, workspace: &'a Workspace) -> Result<Held<'a>> {
        let held = Held { door: self, workspace, _lock: lock_folder(&self.folder)? };
        held.recover()?;
        Ok(held)
    }

    /// Finishes what a killed process has begun, if there is anything.
    pub(crate) fn recover(&self, workspace: &Workspace) -> Result<()> {
        match self.journal().exists() {
            true => self.hold(workspace).map(drop),
            false => Ok(()),
        }
    }

    fn journal(&self) -> PathBuf {
        self.folder.join("journal.json")
    }
}

/// The time that records are given.
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Creates a folder for this user only.
pub(crate) fn private_folder(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io_error("make", path))
}

/// Replaces a file of the state folder in one step, and waits until it is on disk.
pub(crate) fn replace_file(path: &Path, bytes: &[u8], durable: bool) -> Result<()> {
    use std::io::Write;
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        if durable {
            file.sync_all()?;
        }
        std::fs::rename(&beside, path)?;
        match path.parent().filter(|_| durable) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(io_error("write", path))
}

/// Waits for the lock of a folder, which other processes may hold. Dropping the file releases it.
pub(crate) fn lock_folder(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io_error("open", &path))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|errno| io_error("lock", &path)(errno.into()))?;
    Ok(file)
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::Io { action, path, source }
}
