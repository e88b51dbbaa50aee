//! Creates, describes, moves and deletes directory entries.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use atelier_core::path::WorkspacePath;
use chrono::{DateTime, Utc};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath;
use crate::error::{Error, Result};
use crate::walk::{Kind, Names};
use crate::workspace::{Workspace, look, relative};
use crate::write::{rename_if_absent, sync_directory};

const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub kind: Kind,
    pub size: u64,
    /// The permission bits, such as `0o644`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The creation time, if the file system records it.
    pub created: Option<DateTime<Utc>>,
    pub modified: DateTime<Utc>,
    pub accessed: DateTime<Utc>,
    /// For directories: how many entries are visible to agents.
    pub entries: Option<u64>,
}

impl Workspace {
    /// Creates a directory like `mkdir -p`. Returns whether anything was created.
    pub fn create_directory(&self, path: &WorkspacePath) -> Result<bool> {
        let shown = path.as_str();
        if self.ignored()?.hides(relative(path), true) {
            return Err(Error::Permission { action: "write to", path: shown.to_owned() });
        }
        let mut here = beneath::open(self.handle(), Path::new(""), beneath::DIRECTORY)
            .map_err(|errno| Error::from_os(errno, "open", shown))?;
        let mut made = false;
        for name in path.components() {
            let fail = |errno| Error::from_os(errno, "create directory", shown);
            let created = match rustix::fs::mkdirat(here.as_fd(), name, DIRECTORY_MODE) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(fail(errno)),
            };
            let next = beneath::open(here.as_fd(), Path::new(name), beneath::LISTING).map_err(
                |errno| match errno {
                    Errno::LOOP => Error::Link { path: shown.to_owned() },
                    Errno::NOTDIR => Error::NotADirectory { path: shown.to_owned() },
                    other => fail(other),
                },
            )?;
            if created {
                // The umask may have removed permission bits.
                rustix::fs::fchmod(&next, DIRECTORY_MODE).map_err(fail)?;
                if self.options().durable {
                    sync_directory(here.as_fd()).map_err(fail)?;
                }
            }
            made |= created;
            here = next;
        }
        Ok(made)
    }

    pub fn info(&self, path: &WorkspacePath) -> Result<Info> {
        let shown = path.as_str();
        let (real, fd, stat) = self.open_for_reading(path, PROBE)?;
        let kind = Kind::from(FileType::from_raw_mode(stat.st_mode));
        if path.demands_directory() && kind != Kind::Directory {
            return Err(Error::NotADirectory { path: shown.to_owned() });
        }
        let entries = match kind {
            Kind::Directory => Some(self.count_entries(&real, shown)?),
            _ => None,
        };
        Ok(Info {
            kind,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: mode(&stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
            created: birth_time(&fd),
            modified: modified(&stat),
            accessed: accessed(&stat),
            entries,
        })
    }

    fn count_entries(&self, real: &Path, shown: &str) -> Result<u64> {
        let ignored = self.ignored()?;
        let mut names = Names::open(self.handle(), real)
            .map_err(|errno| Error::from_os(errno, "list", shown))?;
        let mut count = 0;
        names
            .each(|name, kind| {
                count += u64::from(!ignored.hides_entry(&real.join(name), kind == Kind::Directory));
                Ok(())
            })
            .map_err(|errno| Error::from_os(errno, "list", shown))?;
        Ok(count)
    }

    /// Moves a file or directory. An existing target is replaced only if `overwrite` is set.
    pub fn move_entry(
        &self,
        from: &WorkspacePath,
        to: &WorkspacePath,
        overwrite: bool,
    ) -> Result<()> {
        let (old_dir, old_name) = self.parent_for_writing(from, false)?;
        let stat = look(old_dir.as_fd(), &old_name, from.as_str())?
            .ok_or_else(|| Error::NotFound { path: from.as_str().to_owned() })?;
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        self.may_remove(from, is_dir)?;
        if is_dir {
            self.refuse_hidden_content(from)?;
        } else if from.demands_directory() || to.demands_directory() {
            return Err(Error::NotADirectory { path: to.as_str().to_owned() });
        }
        let (new_dir, new_name) = self.parent_for_writing(to, is_dir)?;
        if let Some(there) = look(new_dir.as_fd(), &new_name, to.as_str())? {
            let same_kind = FileType::from_raw_mode(there.st_mode).is_file() && !is_dir;
            if !overwrite || !same_kind {
                return Err(Error::Exists { path: to.as_str().to_owned() });
            }
        }
        let moved = if overwrite {
            rustix::fs::renameat(&old_dir, &old_name, &new_dir, &new_name)
        } else {
            rename_if_absent(old_dir.as_fd(), &old_name, new_dir.as_fd(), &new_name)
        };
        moved.map_err(|errno| Error::from_os(errno, "move", to.as_str()))?;
        if self.options().durable {
            for dir in [&old_dir, &new_dir] {
                sync_directory(dir.as_fd())
                    .map_err(|errno| Error::from_os(errno, "sync", to.as_str()))?;
            }
        }
        Ok(())
    }

    /// Deletes a file, a link (not its target) or an empty directory, or a whole tree if
    /// `recursive` is set. Returns how many entries were deleted.
    pub fn delete(&self, path: &WorkspacePath, recursive: bool) -> Result<u64> {
        let shown = path.as_str();
        let (dir, name) = self.parent_for_writing(path, false)?;
        let stat = look(dir.as_fd(), &name, shown)?
            .ok_or_else(|| Error::NotFound { path: shown.to_owned() })?;
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        let fail = |errno| Error::from_os(errno, "delete", shown);
        self.may_remove(path, is_dir)?;
        if !is_dir {
            if path.demands_directory() {
                return Err(Error::NotADirectory { path: shown.to_owned() });
            }
            rustix::fs::unlinkat(&dir, &name, AtFlags::empty()).map_err(fail)?;
            return Ok(1);
        }
        if !recursive {
            rustix::fs::unlinkat(&dir, &name, AtFlags::REMOVEDIR).map_err(fail)?;
            return Ok(1);
        }
        self.refuse_hidden_content(path)?;
        self.delete_tree(relative(path)).map_err(fail)
    }

    /// WS-11.4: the root and the directories directly beneath it cannot be moved or deleted.
    fn may_remove(&self, path: &WorkspacePath, is_dir: bool) -> Result<()> {
        if self.ignored()?.hides(relative(path), is_dir) {
            return Err(Error::NotFound { path: path.as_str().to_owned() });
        }
        if path.depth() <= usize::from(is_dir) {
            let why = "directories directly beneath the root cannot be moved or deleted";
            return Err(Error::Protected { path: path.as_str().to_owned(), why });
        }
        Ok(())
    }

    /// Entries that agents cannot see or change must not be moved or deleted with their directory.
    fn refuse_hidden_content(&self, path: &WorkspacePath) -> Result<()> {
        let ignored = self.ignored()?;
        let kept =
            |path: &Path, is_dir| path.ends_with(".git") || ignored.hides_entry(path, is_dir);
        let found = self.any_below(relative(path), kept);
        match found.map_err(|errno| Error::from_os(errno, "list", path.as_str()))? {
            true => {
                let why = "it contains a repository or files that are hidden from agents";
                Err(Error::Protected { path: path.as_str().to_owned(), why })
            }
            false => Ok(()),
        }
    }

    /// Whether a directory contains entries that agents cannot see. If that cannot be determined,
    /// the answer is true.
    pub(crate) fn holds_hidden(&self, dir: &Path) -> bool {
        let Ok(ignored) = self.ignored() else { return true };
        !ignored.is_empty()
            && self.any_below(dir, |path, is_dir| ignored.hides_entry(path, is_dir)).unwrap_or(true)
    }

    fn any_below(&self, top: &Path, is_one: impl Fn(&Path, bool) -> bool) -> Result<bool, Errno> {
        let mut todo = vec![top.to_owned()];
        while let Some(dir) = todo.pop() {
            let mut found = false;
            Names::open(self.handle(), &dir)?.each(|name, kind| {
                let full = dir.join(name);
                let is_dir = kind == Kind::Directory;
                found |= is_one(&full, is_dir);
                if is_dir {
                    todo.push(full);
                }
                Ok(())
            })?;
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes a tree with one open directory at a time, however deep the tree is.
    fn delete_tree(&self, top: &Path) -> Result<u64, Errno> {
        let mut gone = 0;
        // Each directory is visited twice: first to delete its files, then, after its
        // subdirectories are gone, to remove it.
        let mut todo: Vec<(PathBuf, bool)> = vec![(top.to_owned(), false)];
        while let Some((dir, emptied)) = todo.pop() {
            if emptied {
                let parent = beneath::open(
                    self.handle(),
                    dir.parent().unwrap_or(Path::new("")),
                    beneath::DIRECTORY,
                )?;
                rustix::fs::unlinkat(
                    &parent,
                    dir.file_name().unwrap_or_default(),
                    AtFlags::REMOVEDIR,
                )?;
                gone += 1;
                continue;
            }
            todo.push((dir.clone(), true));
            let mut names = Names::open(self.handle(), &dir)?;
            let mut files = Vec::new();
            names.each(|name, kind| {
                match kind {
                    Kind::Directory => todo.push((dir.join(name), false)),
                    _ => files.push(name.to_owned()),
                }
                Ok(())
            })?;
            for name in files {
                rustix::fs::unlinkat(names.handle(), &name, AtFlags::empty())?;
                gone += 1;
            }
        }
        Ok(gone)
    }
}

/// A handle that only describes a file. A FIFO or a device is not really opened.
#[cfg(target_os = "linux")]
const PROBE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PROBE: OFlags = OFlags::RDONLY;

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub(crate) fn modified(stat: &Stat) -> DateTime<Utc> {
    time(stat.st_mtime as i64, stat.st_mtime_nsec as u64)
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
fn accessed(stat: &Stat) -> DateTime<Utc> {
    time(stat.st_atime as i64, stat.st_atime_nsec as u64)
}

#[allow(clippy::useless_conversion, reason = "the types differ between systems")]
fn mode(stat: &Stat) -> u32 {
    u32::from(stat.st_mode) & 0o7777
}

fn time(seconds: i64, nanoseconds: u64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, u32::try_from(nanoseconds).unwrap_or(0)).unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn birth_time(fd: &std::os::fd::OwnedFd) -> Option<DateTime<Utc>> {
    use rustix::fs::StatxFlags;
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    known.then(|| time(stat.stx_btime.tv_sec, u64::from(stat.stx_btime.tv_nsec)))
}

#[cfg(not(target_os = "linux"))]
fn birth_time(_: &std::os::fd::OwnedFd) -> Option<DateTime<Utc>> {
    None
}
