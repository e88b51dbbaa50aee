//! What the files of the workspace were like when a layer first touched them.
//!
//! The kernel does not say when it copied a file into the layer. So every look at a layer writes
//! down what the files below new changes are like, and from what moment on scripts could have
//! touched them. A file of the workspace that has changed since that moment counts as a conflict,
//! because nobody knows which version the script saw. The moment is taken from a file beside the
//! layer, because the times of files lag behind the clock. If the workspace is on another file
//! system, whose times may lag otherwise, a change within [`TICK`] before the moment counts too.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use atelier_core::TextEncoding;
use rustix::fs::{OFlags, Stat};
use serde::{Deserialize, Serialize};

use super::Layer;
use super::scan::Change;
use crate::beneath;
use crate::door::{Entry, Images, io_error, mode_of, replace_file};
use crate::error::Result;
use crate::workspace::Workspace;

/// How far the times of two file systems may differ, in nanoseconds.
const TICK: i64 = 12_000_000;
/// Larger files are recognised by their times alone.
const CHECKED_BYTES: i64 = 1 << 20;
/// So many files of one look get a checksum. Deleting a large tree must not read it all.
const CHECKED_FILES: usize = 2000;
/// So many bytes of one look are kept, to be shown if a file turns out to be a conflict.
const KEPT_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Bases {
    /// From when on scripts could have touched what is not listed.
    since: Moment,
    paths: BTreeMap<PathBuf, Base>,
}

/// A moment by the clock of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moment {
    nanoseconds: i64,
    device: u64,
}

impl Moment {
    /// Whether a file may have been changed at or after this moment.
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    pub(super) fn is_before(self, stat: &Stat) -> bool {
        let lag = if stat.st_dev as u64 == self.device { 0 } else { TICK };
        changed(stat) >= self.nanoseconds.saturating_sub(lag)
    }
}

/// A file of the workspace when the layer first touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "snake_case")]
enum Base {
    Absent,
    Present {
        stamp: Stamp,
        mode: u32,
        /// The content of a small file, or of one that was about to land, or the target of a
        /// link; `None` for anything larger.
        #[serde(skip_serializing_if = "Option::is_none")]
        entry: Option<Entry>,
    },
    /// It changed while scripts ran.
    Unknown,
}

/// Changes with every change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    inode: u64,
    size: i64,
    changed: i64,
}

impl Stamp {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    fn of(stat: &Stat) -> Self {
        Self { inode: stat.st_ino as u64, size: stat.st_size as i64, changed: changed(stat) }
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
fn changed(stat: &Stat) -> i64 {
    (stat.st_ctime as i64).saturating_mul(1_000_000_000).saturating_add(stat.st_ctime_nsec as i64)
}

impl Layer<'_> {
    fn bases_path(&self) -> PathBuf {
        self.folder.join("bases.json")
    }

    pub(super) fn bases(&self) -> Result<Bases> {
        let path = self.bases_path();
        match std::fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|error| io_error("read", &path)(error.into()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Bases::default()),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    pub(super) fn write_bases(&self, bases: &Bases) -> Result<()> {
        let path = self.bases_path();
        let text =
            serde_json::to_vec(bases).map_err(|error| io_error("write", &path)(error.into()))?;
        replace_file(&path, &text, false)
    }

    /// The contents of files before the layer touched them.
    fn base_images(&self) -> Result<Images> {
        Images::open(self.folder.join("bases"))
    }

    /// Keeps the contents of small files that the layer has newly touched, and forgets those that
    /// are no longer needed.
    pub(super) fn keep_bases(&self, workspace: &Workspace, bases: &Bases) -> Result<()> {
        let images = self.base_images()?;
        let (mut used, mut left) = (HashSet::new(), KEPT_BYTES);
        for (path, base) in &bases.paths {
            let Base::Present { entry: Some(Entry::File { checksum, size, .. }), .. } = base else {
                continue;
            };
            used.insert(checksum.clone());
            if images.has(checksum) || *size > left || *size > CHECKED_BYTES.unsigned_abs() {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
            // A file that is gone or has changed by now is shown without its base.
            if let Ok(fd) = beneath::open(workspace.handle(), path, flags) {
                images.put(checksum, &mut File::from(fd))?;
                left -= *size;
            }
        }
        images.retain(&used).map_err(io_error("clean", &self.folder))
    }

    /// What a file was like before the layer touched it: its text, or that there was none. `None`
    /// if nobody knows.
    pub(crate) fn base_text(&self, path: &Path) -> Result<Option<Option<String>>> {
        Ok(match self.bases()?.paths.get(path) {
            Some(Base::Absent) => Some(None),
            Some(Base::Present { entry: Some(Entry::File { checksum, .. }), .. }) => {
                let most = CHECKED_BYTES.unsigned_abs();
                let bytes = self.base_images()?.bytes(checksum, most).ok().flatten();
                bytes.and_then(TextEncoding::decode).map(|(text, _)| Some(text))
            }
            _ => None,
        })
    }

    pub(super) fn forget_bases(&self) -> Result<()> {
        self.write_bases(&Bases { since: self.moment()?, paths: BTreeMap::new() })
    }

    /// The present moment, by the clock of the file system that the layer is on.
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    pub(super) fn moment(&self) -> Result<Moment> {
        let path = self.folder.join("clock");
        let read = || -> std::io::Result<Moment> {
            std::fs::write(&path, b"now")?;
            let stat = rustix::fs::stat(&path)?;
            Ok(Moment { nanoseconds: changed(&stat), device: stat.st_dev as u64 })
        };
        read().map_err(io_error("write", &path))
    }
}

impl Bases {
    /// Writes down what lies below new changes, forgets what is no change any more, and marks
    /// conflicts. Returns whether anything is new.
    pub(super) fn update(
        &mut self,
        lower: BorrowedFd<'_>,
        changes: &mut [Change],
    ) -> std::io::Result<bool> {
        let (mut checked, mut is_new) = (0, false);
        let mut known = BTreeMap::new();
        for change in changes.iter_mut() {
            let base = match self.paths.remove(&change.path) {
                Some(base) => base,
                None => {
                    is_new = true;
                    self.observe(lower, change, &mut checked)?
                }
            };
            change.conflict = base.differs(lower, change)?;
            known.insert(change.path.clone(), base);
        }
        is_new |= !self.paths.is_empty();
        self.paths = known;
        Ok(is_new)
    }

    fn observe(
        &self,
        lower: BorrowedFd<'_>,
        change: &Change,
        checked: &mut usize,
    ) -> std::io::Result<Base> {
        let Some(stat) = &change.lower else { return Ok(Base::Absent) };
        if self.since.is_before(stat) && !change.is_folder() {
            return Ok(Base::Unknown);
        }
        let mut entry = None;
        #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
        let small = stat.st_size as i64 <= CHECKED_BYTES;
        if small && !change.is_folder() && *checked < CHECKED_FILES {
            *checked += 1;
            entry = Some(Entry::at(lower, &change.path)?);
        }
        Ok(Base::Present { stamp: Stamp::of(stat), mode: mode_of(stat), entry })
    }

    /// From this moment on scripts may touch further files. Everything before it is listed.
    pub(super) fn begin_at(&mut self, moment: Moment) {
        self.since = moment;
    }

    /// Adds the content of a file that is still the one that is listed here.
    pub(super) fn know(&mut self, path: &Path, stat: Option<&Stat>, content: &Entry) {
        if let Some(Base::Present { stamp, entry, .. }) = self.paths.get_mut(path)
            && entry.is_none()
            && stat.is_some_and(|stat| Stamp::of(stat) == *stamp)
        {
            *entry = Some(content.clone());
        }
    }

    /// A path that the folder and the layer agree on again.
    pub(super) fn forget(&mut self, path: &Path) {
        self.paths.remove(path);
    }
}

impl Base {
    /// Whether the file of the workspace has changed since.
    fn differs(&self, lower: BorrowedFd<'_>, change: &Change) -> std::io::Result<bool> {
        Ok(match (self, &change.lower) {
            (Self::Unknown, _) => true,
            (Self::Absent, None) => false,
            (Self::Absent, Some(_)) => !change.is_folder(),
            (Self::Present { .. }, None) => !change.is_folder(),
            (Self::Present { .. }, Some(_)) if change.is_folder() => false,
            (Self::Present { stamp, mode, entry }, Some(stat)) => {
                let same = *stamp == Stamp::of(stat) && *mode == mode_of(stat);
                match entry {
                    _ if same => false,
                    Some(entry) => Entry::at(lower, &change.path)? != *entry,
                    None => true,
                }
            }
        })
    }
}
