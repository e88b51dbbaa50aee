//! Finds the repositories in a workspace, and the files in them that only git reads.
//!
//! A repository is recognised by its entries, as git does: a folder with `HEAD`, `objects` and
//! `refs`, or with `HEAD` and `commondir`, whatever its name is. Git follows links there, so a link
//! counts like an entry. In such a folder, and in everything below a `.git`, only git reads the
//! files that the policy seals: objects hold the contents of files that were deleted long ago.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use atelier_core::policy::Policy;
use rustix::fs::{AtFlags, OFlags};

use crate::beneath;
use crate::process::FolderStamp;
use crate::walk::{Kind, Names};
use crate::workspace::Workspace;

pub(crate) const GIT_DIR: &str = ".git";

/// More references than this are listed anew each time.
const MAX_FINGERPRINTED: usize = 50_000;

impl Workspace {
    /// Whether the folder has the entries of a repository.
    pub(crate) fn is_repository(&self, dir: &Path) -> bool {
        self.is_repository_with(dir, None)
    }

    /// Whether the folder is a repository, or is one as soon as it has an entry of this name.
    fn is_repository_with(&self, dir: &Path, new: Option<&OsStr>) -> bool {
        let Ok(folder) = beneath::open(self.handle(), dir, beneath::DIRECTORY) else {
            return false;
        };
        makes_repository(|name| new.is_some_and(|new| new == name) || is_there(&folder, name))
    }

    /// Whether a write to the path changes a repository, or makes a folder into one.
    pub(crate) fn writes_repository(&self, path: &Path) -> bool {
        path.ancestors().skip(1).any(|dir| {
            let first = path.strip_prefix(dir).ok().and_then(|below| below.iter().next());
            self.is_repository_with(dir, first)
        })
    }

    /// The folder that contains one of these entries and that is a repository, or becomes one when
    /// all these entries exist. Entries that are removed are named as well: they existed before.
    pub(crate) fn repository_written<'p>(
        &self,
        entries: impl Iterator<Item = &'p Path>,
    ) -> Option<PathBuf> {
        let mut named: BTreeMap<&Path, BTreeSet<&OsStr>> = BTreeMap::new();
        for path in entries {
            for (below, dir) in path.ancestors().zip(path.ancestors().skip(1)) {
                named.entry(dir).or_default().extend(below.file_name());
            }
        }
        let is_repository = |dir: &Path, names: &BTreeSet<&OsStr>| {
            let folder = beneath::open(self.handle(), dir, beneath::DIRECTORY).ok();
            makes_repository(|name| {
                names.contains(OsStr::new(name))
                    || folder.as_ref().is_some_and(|folder| is_there(folder, name))
            })
        };
        let found = named.iter().find(|(dir, names)| is_repository(dir, names));
        found.map(|(dir, _)| dir.to_path_buf())
    }

    /// If the path is in a repository or is one, returns the rest of the path, from the folder of
    /// that repository.
    pub(crate) fn inside_repository(&self, path: &Path) -> Option<PathBuf> {
        let is_git =
            |dir: &Path| dir.file_name().is_some_and(|name| name.eq_ignore_ascii_case(GIT_DIR));
        let above: Vec<&Path> = path.ancestors().collect();
        let top = above.iter().rev().find(|dir| is_git(dir) || self.is_repository(dir))?;
        path.strip_prefix(top).ok().map(Path::to_owned)
    }

    /// Whether only git reads the file at this path, which has no links.
    pub(crate) fn is_sealed(&self, path: &Path) -> bool {
        self.inside_repository(path).is_some_and(|inside| seals(&inside))
    }

    /// The `.git` folder that git will find from `place`, if that is a plain one.
    pub(crate) fn discover(&self, place: &Path) -> Option<PathBuf> {
        let exists = |path: &Path| beneath::open(self.handle(), path, OFlags::PATH).is_ok();
        beneath::open(self.handle(), place, beneath::DIRECTORY).ok()?;
        let found = place.ancestors().map(|dir| dir.join(GIT_DIR)).find(|path| exists(path))?;
        let is_dir =
            |name| beneath::open(self.handle(), &found.join(name), beneath::DIRECTORY).is_ok();
        // With other entries, git would read another folder, or look further up.
        let plain = is_dir("objects")
            && is_dir("refs")
            && !exists(&found.join("commondir"))
            && self.has_head(&found);
        plain.then_some(found)
    }

    fn has_head(&self, git_dir: &Path) -> bool {
        let Ok(fd) = beneath::open(self.handle(), &git_dir.join("HEAD"), OFlags::RDONLY) else {
            return false;
        };
        let mut text = String::new();
        let read = std::fs::File::from(fd).take(256).read_to_string(&mut text);
        let is_id = || {
            text.trim_end().len() >= 40 && text.trim_end().bytes().all(|b| b.is_ascii_hexdigit())
        };
        read.is_ok() && (text.starts_with("ref: refs/") || is_id())
    }

    /// The stamps of the folders that a repository keeps objects in: a new object changes one of
    /// them. `None` if the objects are elsewhere.
    pub(crate) fn store_stamps(&self, git_dir: &Path) -> Option<Vec<FolderStamp>> {
        let objects = git_dir.join("objects");
        let mut names = Names::open(self.handle(), &objects).ok()?;
        let mut folders = Vec::new();
        let listed = names.each(|name, kind| {
            folders.extend((kind == Kind::Directory).then(|| objects.join(name)));
            Ok(())
        });
        listed.ok()?;
        folders.sort_unstable();
        folders.push(objects);
        let stamp = |path: &PathBuf| {
            let fd = beneath::open(self.handle(), path, beneath::DIRECTORY).ok()?;
            Some(FolderStamp::of(&rustix::fs::fstat(&fd).ok()?))
        };
        folders.iter().map(stamp).collect()
    }

    /// A number that changes when one of these entries changes, or anything below those that are
    /// folders.
    pub(crate) fn fingerprint(&self, dir: &Path, names: &[&str]) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let mut left = MAX_FINGERPRINTED;
        let mut todo: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
        while let Some(path) = todo.pop() {
            left = left.checked_sub(1)?;
            let Ok(fd) = beneath::open(self.handle(), &path, OFlags::PATH) else { continue };
            let stat = rustix::fs::fstat(&fd).ok()?;
            path.hash(&mut hasher);
            (stat.st_ino, stat.st_size, stat.st_mode).hash(&mut hasher);
            (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
                .hash(&mut hasher);
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                let mut names = Names::open(self.handle(), &path).ok()?;
                let from = todo.len();
                names
                    .each(|name, _| {
                        todo.push(path.join(name));
                        Ok(())
                    })
                    .ok()?;
                todo[from..].sort_unstable();
            }
        }
        Some(hasher.finish())
    }
}

/// Whether only git reads this entry of a repository's folder.
pub(crate) fn seals(inside: &Path) -> bool {
    // A name that is not text cannot be one of the names that the policy leaves open.
    !inside.as_os_str().is_empty()
        && inside.to_str().is_none_or(|path| Policy::builtin().seals(path))
}

/// If the listed folder `dir` is in a repository or is one, returns the rest of the path, from the
/// folder of that repository. Folders that the policy leaves open contain nothing sealed, so their
/// answer does not matter.
pub(crate) fn repository_listed(dir: &Path, names: &Names) -> Option<PathBuf> {
    let mut parts = dir.components();
    if parts.any(|part| part.as_os_str().eq_ignore_ascii_case(GIT_DIR)) {
        return Some(parts.as_path().to_owned());
    }
    is_listed_repository(names).then(PathBuf::new)
}

/// Whether a folder that is being listed is a repository. The handle of the folder is open already,
/// so this costs little.
pub(crate) fn is_listed_repository(names: &Names) -> bool {
    makes_repository(|name| is_there(names.handle(), name))
}

/// Whether a folder with these entries can be a repository.
fn makes_repository(has: impl Fn(&str) -> bool) -> bool {
    has("HEAD") && (has("commondir") || (has("objects") && has("refs")))
}

/// Whether the folder has an entry of this name. A link counts, wherever it leads.
fn is_there(folder: impl AsFd, name: &str) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
