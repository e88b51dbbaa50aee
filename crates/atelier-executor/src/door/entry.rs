//! What lies at a path: a file with its checksum, a link, a folder, or nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::beneath;

/// What lies at a path. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Entry {
    Absent,
    File {
        checksum: String,
        size: u64,
        /// The permission bits.
        mode: u32,
    },
    Link {
        target: String,
    },
    Folder,
    /// A device, a socket or a FIFO.
    Special,
}

impl Entry {
    /// Reads what lies at `path` beneath `root`.
    pub(crate) fn at(root: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        let Some((dir, name)) = parent_of(root, path)? else { return Ok(Self::Absent) };
        Self::of(dir.as_fd(), name)
    }

    /// Reads what lies under a name in a folder.
    pub(crate) fn of(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Self> {
        let Some(stat) = stat_of(dir, name)? else { return Ok(Self::Absent) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Folder,
            FileType::RegularFile => {
                let fd = beneath::open(dir, Path::new(name), OFlags::RDONLY | OFlags::NOFOLLOW)?;
                let stat = rustix::fs::fstat(&fd)?;
                let (checksum, size) = checksum_of(&mut File::from(fd))?;
                Self::File { checksum, size, mode: mode_of(&stat) }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                match target.into_string() {
                    Ok(target) => Self::Link { target },
                    Err(_) => Self::Special,
                }
            }
            _ => Self::Special,
        })
    }

    pub(crate) fn checksum(&self) -> Option<&str> {
        match self {
            Self::File { checksum, .. } => Some(checksum),
            _ => None,
        }
    }

    pub(crate) fn is_executable(&self) -> bool {
        matches!(self, Self::File { mode, .. } if mode & 0o111 != 0)
    }

    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::File { .. } => "a file",
            Self::Link { .. } => "a link",
            Self::Folder => "a folder",
            Self::Special => "a device, socket or FIFO",
        }
    }
}

/// The folder that `path` lies in, and its name there. `None` if there is no such folder.
pub(crate) fn parent_of<'p>(
    root: BorrowedFd<'_>,
    path: &'p Path,
) -> io::Result<Option<(OwnedFd, &'p OsStr)>> {
    let Some(name) = path.file_name() else { return Err(Errno::INVAL.into()) };
    let parent = path.parent().unwrap_or(Path::new(""));
    match beneath::open(root, parent, beneath::DIRECTORY) {
        Ok(dir) => Ok(Some((dir, name))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Describes the entry `name` of a folder, without following links; `None` if there is none.
pub(crate) fn stat_of(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Describes what lies at `path`; `None` if there is nothing.
pub(crate) fn stat_at(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Stat>> {
    match parent_of(root, path)? {
        Some((dir, name)) => Ok(stat_of(dir.as_fd(), name)?),
        None => Ok(None),
    }
}

#[allow(clippy::useless_conversion, reason = "the types differ between systems")]
pub(crate) fn mode_of(stat: &Stat) -> u32 {
    u32::from(stat.st_mode) & 0o7777
}

/// The time of the last change of a file, to be given to another.
#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub(crate) fn modified(stat: &Stat) -> Timestamps {
    let time = Timespec { tv_sec: stat.st_mtime as i64, tv_nsec: stat.st_mtime_nsec as _ };
    Timestamps { last_access: time, last_modification: time }
}

/// The checksum of the rest of a file, and its length.
pub(crate) fn checksum_of(file: &mut impl Read) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&chunk[..n]);
                size += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((hex(&hash.finalize()), size))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a path is in a repository's own folder, or is one.
pub(crate) fn is_in_git(path: &Path) -> bool {
    path.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(b".git"))
}
