//! Walks a tree with a loop: it reads directory entries and their types, and opens only
//! directories, one at a time. A deep tree costs memory for names, but no handles and no stack.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atelier_core::path::WorkspacePath;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::glob::{Glob, States};
use crate::repositories::{repository_listed, seals};
use crate::workspace::Workspace;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// A FIFO, a socket or a device.
    Other,
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// The names in one directory, without `.` and `..`, in no particular order.
pub(crate) struct Names {
    fd: OwnedFd,
}

impl Names {
    pub(crate) fn open(root: BorrowedFd<'_>, path: &Path) -> Result<Self, Errno> {
        Ok(Self { fd: beneath::open(root, path, beneath::LISTING)? })
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn each(
        &mut self,
        mut seen: impl FnMut(&OsStr, Kind) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut entries = rustix::fs::RawDir::new(self.fd.as_fd(), buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = known_kind(self.fd.as_fd(), OsStr::from_bytes(name), entry.file_type());
                seen(OsStr::from_bytes(name), kind)?;
            }
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn each(
        &mut self,
        mut seen: impl FnMut(&OsStr, Kind) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = known_kind(self.fd.as_fd(), OsStr::from_bytes(name), entry.file_type());
                seen(OsStr::from_bytes(name), kind)?;
            }
        }
        Ok(())
    }
}

/// The type of an entry. Some file systems do not report it with the entry.
fn known_kind(dir: BorrowedFd<'_>, name: &OsStr, kind: FileType) -> Kind {
    if kind != FileType::Unknown {
        return kind.into();
    }
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(Kind::Other, |stat| FileType::from_raw_mode(stat.st_mode).into())
}

/// An entry that the pattern matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Relative to the workspace root.
    pub path: PathBuf,
    pub kind: Kind,
}

/// A walk that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walked {
    pub(crate) ended: Ended,
    /// Directories that could not be read, relative to the workspace root. Only the first ones.
    pub(crate) unreadable: Vec<PathBuf>,
}

/// How many unreadable directories a walk names.
const MAX_UNREADABLE: usize = 100;

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Whole,
    /// The walk was stopped by the caller, by the limit of entries, or by a path that is too long
    /// to open.
    Cut,
}

/// The order in which a walk reports entries.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// In the order of the directory. Nothing is remembered.
    AsFound,
    /// By name. At most the first `keep` matches of each directory are remembered.
    ByName { keep: usize },
}

/// The next action of a walk.
enum Visit {
    Report(Hit),
    Descend(PathBuf, States),
}

impl Workspace {
    /// Reports everything below `start` that matches, until the caller stops the walk.
    pub(crate) fn walk(
        &self,
        start: &WorkspacePath,
        glob: &Glob,
        order: Order,
        cancel: &Cancel,
        report: impl FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<Ended> {
        Ok(self.walk_all(start, glob, order, cancel, report)?.ended)
    }

    /// Walks like `walk`, and also reports the directories that could not be read.
    pub(crate) fn walk_all(
        &self,
        start: &WorkspacePath,
        glob: &Glob,
        order: Order,
        cancel: &Cancel,
        mut report: impl FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<Walked> {
        let mut unreadable = Vec::new();
        let (real, fd) = self.open_directory(start)?;
        let ignored = self.ignored()?;
        let mut left = self.options().max_entries;
        let mut ended = Ended::Whole;
        let mut todo = vec![Visit::Descend(real, glob.start())];
        let mut first = Some(fd);
        while let Some(step) = todo.pop() {
            let (dir, states) = match step {
                Visit::Report(hit) => {
                    if report(hit).is_break() {
                        return Ok(Walked { ended: Ended::Cut, unreadable });
                    }
                    continue;
                }
                Visit::Descend(dir, states) => (dir, states),
            };
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let opened = match first.take() {
                Some(fd) => Ok(Names::from_fd(fd)),
                None => Names::open(self.handle(), &dir),
            };
            let mut names = match opened {
                Ok(names) => names,
                Err(Errno::ACCESS) => {
                    if unreadable.len() < MAX_UNREADABLE {
                        unreadable.push(dir);
                    }
                    continue;
                }
                // The directory was deleted, or was replaced by a link after its parent was read.
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => continue,
                Err(Errno::NAMETOOLONG) => {
                    ended = Ended::Cut;
                    continue;
                }
                Err(errno) => return Err(Error::from_os(errno, "list", start.as_str())),
            };
            let from = todo.len();
            let before = left;
            let repository = repository_listed(&dir, &names);
            let mut hits = 0;
            let read = names.each(|name, kind| {
                left = left.checked_sub(1).ok_or(Errno::OVERFLOW)?;
                let (matched, next) = glob.step(&states, name.as_bytes());
                let below = kind == Kind::Directory && glob.goes_on(&next);
                if !matched && !below {
                    return Ok(());
                }
                let path = dir.join(name);
                let sealed = repository.as_ref().is_some_and(|inside| seals(&inside.join(name)));
                if sealed || ignored.hides_entry(&path, kind == Kind::Directory) {
                    return Ok(());
                }
                if below {
                    todo.push(Visit::Descend(path.clone(), next));
                }
                if !matched {
                    return Ok(());
                }
                match order {
                    Order::AsFound => match report(Hit { path, kind }) {
                        ControlFlow::Continue(()) => {}
                        ControlFlow::Break(()) => return Err(Errno::CANCELED),
                    },
                    Order::ByName { keep } => {
                        hits += 1;
                        todo.push(Visit::Report(Hit { path, kind }));
                        if hits > keep.saturating_mul(2) {
                            forget_last(&mut todo, from, keep);
                            hits = keep;
                        }
                    }
                }
                Ok(())
            });
            cancel.saw(before - left);
            match read {
                Ok(()) => {}
                Err(Errno::OVERFLOW) => ended = Ended::Cut,
                Err(Errno::CANCELED) => return Ok(Walked { ended: Ended::Cut, unreadable }),
                Err(errno) => return Err(Error::from_os(errno, "list", start.as_str())),
            }
            todo[from..].sort_unstable_by(|a, b| by_path(b, a));
        }
        Ok(Walked { ended, unreadable })
    }

    pub(crate) fn open_directory(&self, path: &WorkspacePath) -> Result<(PathBuf, OwnedFd)> {
        let (real, fd, _) = self.open_for_reading(path, beneath::LISTING)?;
        Ok((real, fd))
    }
}

/// Keeps the first `keep` matches of a huge directory. One more than the caller's limit is enough
/// to know that there are more.
fn forget_last(todo: &mut Vec<Visit>, from: usize, keep: usize) {
    let mut reports: Vec<Visit> = Vec::new();
    let mut at = from;
    while at < todo.len() {
        if matches!(todo[at], Visit::Report(_)) {
            reports.push(todo.swap_remove(at));
        } else {
            at += 1;
        }
    }
    reports.sort_unstable_by(by_path);
    reports.truncate(keep);
    todo.append(&mut reports);
}

/// Orders by path. A directory that matches comes before its content.
fn by_path(a: &Visit, b: &Visit) -> Ordering {
    let (a_path, a_rank) = borrow(a);
    let (b_path, b_rank) = borrow(b);
    a_path.as_bytes().cmp(b_path.as_bytes()).then(a_rank.cmp(&b_rank))
}

fn borrow(visit: &Visit) -> (&OsStr, u8) {
    match visit {
        Visit::Report(hit) => (hit.path.as_os_str(), 0),
        Visit::Descend(path, _) => (path.as_os_str(), 1),
    }
}
