//! Finds entries by glob, and lists them with sizes and times.

use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atelier_core::path::WorkspacePath;
use chrono::{DateTime, Utc};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::beneath;
use crate::cancel::Cancel;
use crate::entries::modified;
use crate::error::{Error, Result};
use crate::glob::Glob;
use crate::repositories::{repository_listed, seals};
use crate::walk::{Ended, Hit, Kind, Names, Order};
use crate::workspace::Workspace;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The entries, ordered by path.
    pub hits: Vec<Hit>,
    /// Whether there are more entries than these.
    pub cut: bool,
}

/// Which entries to list.
#[derive(Debug, Clone)]
pub struct Listing {
    pub glob: Glob,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// Relative to the workspace root.
    pub path: String,
    pub kind: Kind,
    pub size: u64,
    pub modified: DateTime<Utc>,
    /// Whether the name is not valid UTF-8 and is shown with replacement characters.
    pub lossy: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub entries: Vec<Entry>,
    /// How many entries there are, listed or not.
    pub total: u64,
    /// Whether the walk was cut short, so that the total is only a lower bound.
    pub cut: bool,
    /// Directories that could not be read, so that what is in them is missing.
    pub unreadable: Vec<String>,
}

impl Workspace {
    /// The first `limit` entries below `start` that match, ordered by path.
    pub fn search(
        &self,
        start: &WorkspacePath,
        glob: &Glob,
        limit: usize,
        cancel: &Cancel,
    ) -> Result<Found> {
        let mut hits = Vec::new();
        // One entry more than the limit shows that there are more.
        let order = Order::ByName { keep: limit.saturating_add(1) };
        let ended = self.walk(start, glob, order, cancel, |hit| {
            if hits.len() == limit {
                return ControlFlow::Break(());
            }
            hits.push(hit);
            ControlFlow::Continue(())
        })?;
        Ok(Found { hits, cut: ended == Ended::Cut })
    }

    /// All entries of one directory by name, including hidden names. Nothing but the directory
    /// itself is opened.
    pub fn entries(&self, path: &WorkspacePath) -> Result<Vec<(OsString, Kind)>> {
        let (real, fd) = self.open_directory(path)?;
        let ignored = self.ignored()?;
        let mut entries = Vec::new();
        let mut left = self.options().max_entries;
        let mut names = Names::from_fd(fd);
        let repository = repository_listed(&real, &names);
        names
            .each(|name, kind| {
                left = left.checked_sub(1).ok_or(Errno::OVERFLOW)?;
                if repository.as_ref().is_some_and(|inside| seals(&inside.join(name))) {
                    return Ok(());
                }
                if ignored.is_empty()
                    || !ignored.hides_entry(&real.join(name), kind == Kind::Directory)
                {
                    entries.push((name.to_owned(), kind));
                }
                Ok(())
            })
            .map_err(|errno| Error::from_os(errno, "list", path.as_str()))?;
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(entries)
    }

    /// Counts everything that matches, and describes the first `limit` entries.
    pub fn list(
        &self,
        start: &WorkspacePath,
        listing: &Listing,
        cancel: &Cancel,
    ) -> Result<Listed> {
        let mut first: BinaryHeap<Ordered> = BinaryHeap::new();
        let mut total = 0;
        let walked = self.walk_all(start, &listing.glob, Order::AsFound, cancel, |hit| {
            total += 1;
            first.push(Ordered(hit));
            if first.len() > listing.limit {
                first.pop();
            }
            ControlFlow::Continue(())
        })?;
        let mut entries = Vec::with_capacity(first.len());
        let mut parent: Option<(PathBuf, OwnedFd)> = None;
        for Ordered(hit) in first.into_sorted_vec() {
            entries.extend(self.describe(&hit, &mut parent));
        }
        let unreadable = walked.unreadable.iter();
        let unreadable = unreadable.map(|path| path.to_string_lossy().into_owned()).collect();
        Ok(Listed { entries, total, cut: walked.ended == Ended::Cut, unreadable })
    }

    /// Describes an entry; `None` if it no longer exists.
    fn describe(&self, hit: &Hit, parent: &mut Option<(PathBuf, OwnedFd)>) -> Option<Entry> {
        let dir = hit.path.parent().unwrap_or(Path::new(""));
        let name = hit.path.file_name()?;
        if parent.as_ref().is_none_or(|(path, _)| path != dir) {
            *parent =
                Some((dir.to_owned(), beneath::open(self.handle(), dir, beneath::DIRECTORY).ok()?));
        }
        let (_, fd) = parent.as_ref()?;
        let stat = rustix::fs::statat(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Entry {
            name: name.to_string_lossy().into_owned(),
            path: hit.path.to_string_lossy().into_owned(),
            kind: hit.kind,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: modified(&stat),
            lossy: hit.path.to_str().is_none(),
        })
    }
}

/// Orders by path as bytes with `/` first, so that a directory's content follows the directory.
#[derive(PartialEq, Eq)]
struct Ordered(Hit);

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        slash_first(&self.0.path).cmp(slash_first(&other.0.path))
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn slash_first(path: &Path) -> impl Iterator<Item = u8> {
    path.as_os_str().as_bytes().iter().map(|byte| if *byte == b'/' { 0 } else { *byte })
}
