//! A workspace as a tree of files that is kept in sync with another place, such as an object store.
//!
//! It uses the same directory handle and refuses links like the rest of this crate. But
//! `.atelierignore` hides nothing here, because files that are not synced would be lost.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use atelier_core::path::WorkspacePath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath;
use crate::error::{Error, Result};
use crate::walk::{Kind, Names};
use crate::workspace::{Workspace, relative};

/// What the file system reports about a file without opening it. Equal stamps mean that the file is
/// unchanged, unless it changed in the same moment in which the stamp was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub size: u64,
    /// In nanoseconds. Programs can set this time.
    pub modified: i64,
    /// In nanoseconds. Programs cannot set this time.
    pub changed: i64,
    pub inode: u64,
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            size: stat.st_size as u64,
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
            inode: stat.st_ino,
        }
    }
}

/// Anything in the tree except directories. Directories exist only if they contain something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub path: PathBuf,
    pub kind: Kind,
    pub stamp: Stamp,
}

impl Workspace {
    /// Everything below the root that is not a directory, in no particular order. Links are listed,
    /// not followed.
    pub fn leaves(&self) -> Result<Vec<Leaf>> {
        let mut found = Vec::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            let shown = || dir.display().to_string();
            let mut names = match Names::open(self.handle(), &dir) {
                Ok(names) => names,
                // The directory was deleted or replaced by a link after its parent was read.
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => continue,
                Err(errno) => return Err(Error::from_os(errno, "list", &shown())),
            };
            let mut here = Vec::new();
            let read = names.each(|name, kind| {
                here.push((name.to_owned(), kind));
                Ok(())
            });
            match read {
                // The directory was deleted while it was open.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::from_os(errno, "list", &shown())),
            }
            for (name, kind) in here {
                let path = dir.join(&name);
                if kind == Kind::Directory {
                    todo.push(path);
                } else if let Some(stat) = stat(names.handle(), &name) {
                    found.push(Leaf { path, kind, stamp: Stamp::of(&stat) });
                }
            }
        }
        Ok(found)
    }

    /// Whether this is still the directory at the path. Somebody may have deleted or replaced it.
    pub fn is_at(&self, path: &Path) -> bool {
        let (Ok(here), Ok(there)) = (rustix::fs::fstat(self.handle()), rustix::fs::lstat(path))
        else {
            return false;
        };
        (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    }

    /// The regular file at exactly this path, with its stamp. No link is followed.
    pub fn open_leaf(&self, path: &WorkspacePath) -> Result<(File, Stamp)> {
        let fail = |errno| Error::from_os(errno, "open", path.as_str());
        let fd = beneath::open(self.handle(), relative(path), OFlags::RDONLY).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::NotAFile { path: path.as_str().to_owned() });
        }
        Ok((File::from(fd), Stamp::of(&stat)))
    }

    /// Moves a finished file from the same file system to `path` with one rename. A link or a file
    /// where one of its directories should be is replaced. A directory that is not empty is not
    /// replaced.
    pub fn place(&self, finished: &Path, path: &WorkspacePath) -> Result<Stamp> {
        let fail = |errno| Error::from_os(errno, "put a file at", path.as_str());
        let target = relative(path);
        let Some(name) = target.file_name() else {
            return Err(Error::NotAFile { path: path.as_str().to_owned() });
        };
        let parent = self.make_room(target.parent().unwrap_or(Path::new(""))).map_err(fail)?;
        let moved = rustix::fs::renameat(rustix::fs::CWD, finished, &parent, name);
        match moved {
            Err(Errno::ISDIR) => {
                rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(fail)?;
                rustix::fs::renameat(rustix::fs::CWD, finished, &parent, name).map_err(fail)?;
            }
            other => other.map_err(fail)?,
        }
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        Ok(Stamp::of(&stat))
    }

    /// Opens a directory and creates it and its parents if they are missing.
    fn make_room(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut here = beneath::open(self.handle(), Path::new("."), beneath::DIRECTORY)?;
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(Errno::XDEV) };
            here = match enter(here.as_fd(), name) {
                Ok(below) => below,
                Err(Errno::NOENT) => make(here.as_fd(), name)?,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    rustix::fs::unlinkat(&here, name, AtFlags::empty())?;
                    make(here.as_fd(), name)?
                }
                Err(errno) => return Err(errno),
            };
        }
        Ok(here)
    }

    /// Deletes the file or link at `path`, and directories that become empty. A missing file is not
    /// an error.
    pub fn take_away(&self, path: &WorkspacePath) -> Result<()> {
        let mut target = relative(path);
        let mut flags = AtFlags::empty();
        while let Some(name) = target.file_name() {
            let above = target.parent().unwrap_or(Path::new(""));
            let removed = beneath::open(self.handle(), above, beneath::DIRECTORY)
                .and_then(|parent| rustix::fs::unlinkat(&parent, name, flags));
            match removed {
                Ok(()) => {}
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) if flags.is_empty() => {}
                // A directory that is not empty ends the loop.
                Err(_) if !flags.is_empty() => return Ok(()),
                Err(errno) => return Err(Error::from_os(errno, "remove", path.as_str())),
            }
            (target, flags) = (above, AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

fn stat(dir: BorrowedFd<'_>, name: &OsStr) -> Option<Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()
}

fn enter(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    beneath::open(dir, Path::new(name), beneath::DIRECTORY)
}

fn make(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => enter(dir, name),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Options;
    use atelier_core::path::Roots;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, &Roots::relative_only()).unwrap()
    }

    #[test]
    fn links_in_the_way_make_room_and_lead_nowhere() {
        let base = tempfile::tempdir().unwrap();
        let (root, outside) = (base.path().join("ws"), base.path().join("outside"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("secret.txt"), "secret").unwrap();
        symlink(&outside, root.join("docs")).unwrap();
        symlink(outside.join("secret.txt"), root.join("plain.txt")).unwrap();
        let workspace = Workspace::open(&root, Options::default()).unwrap();

        let kinds: Vec<Kind> = workspace.leaves().unwrap().iter().map(|leaf| leaf.kind).collect();
        assert_eq!(kinds, [Kind::Symlink, Kind::Symlink]);
        assert!(workspace.open_leaf(&path("docs/secret.txt")).is_err());
        assert!(workspace.open_leaf(&path("plain.txt")).is_err());

        for name in ["docs/secret.txt", "plain.txt"] {
            let finished = base.path().join("finished");
            std::fs::write(&finished, "ours").unwrap();
            let stamp = workspace.place(&finished, &path(name)).unwrap();
            assert_eq!(workspace.open_leaf(&path(name)).unwrap().1, stamp);
            assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), "ours");
        }
        assert_eq!(std::fs::read_to_string(outside.join("secret.txt")).unwrap(), "secret");
    }

    #[test]
    fn what_is_taken_away_leaves_no_empty_directories() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        std::fs::write(root.path().join("a/b/c/f"), "").unwrap();
        std::fs::write(root.path().join("a/g"), "").unwrap();
        let workspace = Workspace::open(root.path(), Options::default()).unwrap();
        workspace.take_away(&path("a/b/c/f")).unwrap();
        workspace.take_away(&path("a/b/c/f")).unwrap();
        assert!(!root.path().join("a/b").exists() && root.path().join("a/g").exists());
    }
}
