//! A workspace is an open directory handle. Code that has the value can act beneath that directory
//! and nowhere else, because nothing in this crate takes an absolute path.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atelier_core::path::{Roots, WorkspacePath};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::ignored::{Cache, Ignored};
use crate::{beneath, links};

/// Settings of a workspace.
#[derive(Debug, Clone)]
pub struct Options {
    /// The largest file that is read whole, in bytes.
    pub max_read: u64,
    /// The largest file that is written, in bytes.
    pub max_write: u64,
    /// Sync every write to disk before answering.
    pub durable: bool,
    /// Whether `.atelierignore` in the root applies.
    pub obey_ignore: bool,
    /// How many directory entries one listing or search examines before it is cut short.
    pub max_entries: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_read: 100 << 20,
            max_write: 100 << 20,
            durable: true,
            obey_ignore: true,
            max_entries: 5_000_000,
        }
    }
}

#[derive(Debug)]
pub struct Workspace {
    handle: OwnedFd,
    real: PathBuf,
    options: Options,
    ignored: Cache,
}

impl Workspace {
    /// Opens the root. The given path may contain links; after that, no link is followed.
    pub fn open(root: impl AsRef<Path>, options: Options) -> Result<Self> {
        let shown = root.as_ref().display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(root.as_ref(), flags, Mode::empty())
            .map_err(|errno| Error::from_os(errno, "open", &shown))?;
        let real = root.as_ref().canonicalize().map_err(|source| Error::Io {
            action: "resolve",
            path: shown,
            source,
        })?;
        Ok(Self { handle, real, options, ignored: Cache::default() })
    }

    /// The path of the root on this machine, without links. It is for the user of this machine, not
    /// for agents.
    pub fn root(&self) -> &Path {
        &self.real
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub(crate) fn ignored(&self) -> Result<Arc<Ignored>> {
        if self.options.obey_ignore {
            self.ignored.current(self.handle(), &self.real)
        } else {
            Ok(Arc::default())
        }
    }

    /// The path without links that `path` stands for when it is read. It is inside the root and
    /// visible to agents. The policy judges this path too, so that a harmless name cannot stand for
    /// another file.
    pub fn resolve(&self, path: &WorkspacePath) -> Result<WorkspacePath> {
        let real = links::resolve(self.handle(), &self.real, relative(path))
            .map_err(|errno| Error::from_os(errno, "resolve", path.as_str()))?;
        to_workspace_path(&real, path.as_str())
    }
    /// Opens a file for reading. `.0` is the path without links.
    pub(crate) fn open_for_reading(
        &self,
        path: &WorkspacePath,
        flags: OFlags,
    ) -> Result<(PathBuf, OwnedFd, Stat)> {
        let shown = path.as_str();
        let ignored = self.ignored()?;
        let asked = relative(path);
        if ignored.hides(asked, false) {
            return Err(Error::NotFound { path: shown.to_owned() });
        }
        let fail = |errno| Error::from_os(errno, "open", shown);
        let (real, fd) = match beneath::open(self.handle(), asked, flags) {
            Ok(fd) => (asked.to_owned(), fd),
            Err(Errno::LOOP) => {
                let real = links::resolve(self.handle(), &self.real, asked).map_err(fail)?;
                let fd =
                    beneath::open(self.handle(), &real, flags).map_err(|errno| match errno {
                        // A link that did not exist a moment ago. Somebody is swapping directories.
                        Errno::LOOP => Error::Outside { path: shown.to_owned() },
                        other => fail(other),
                    })?;
                (real, fd)
            }
            Err(errno) => return Err(fail(errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if self.is_sealed(&real) {
            let why = "only git commands read what git keeps inside a repository";
            return Err(Error::Protected { path: shown.to_owned(), why });
        }
        if ignored.hides(&real, FileType::from_raw_mode(stat.st_mode).is_dir()) {
            return Err(Error::NotFound { path: shown.to_owned() });
        }
        Ok((real, fd, stat))
    }

    /// The directory that contains `path`, opened without following links, and the last name of the
    /// path.
    pub(crate) fn parent_for_writing(
        &self,
        path: &WorkspacePath,
        is_dir: bool,
    ) -> Result<(OwnedFd, OsString)> {
        let shown = path.as_str();
        let asked = relative(path);
        let Some(name) = asked.file_name() else {
            return Err(Error::Protected { path: ".".to_owned(), why: "the workspace itself" });
        };
        if self.ignored()?.hides(asked, is_dir) {
            return Err(Error::Permission { action: "write to", path: shown.to_owned() });
        }
        let parent = asked.parent().unwrap_or(Path::new(""));
        let fd =
            beneath::open(self.handle(), parent, beneath::DIRECTORY).map_err(
                |errno| match errno {
                    Errno::LOOP => Error::Link { path: shown.to_owned() },
                    other => Error::from_os(other, "open the directory of", shown),
                },
            )?;
        Ok((fd, name.to_owned()))
    }
}

/// The path below the root's handle. It is empty for the root itself.
pub(crate) fn relative(path: &WorkspacePath) -> &Path {
    match path.as_str() {
        "." => Path::new(""),
        text => Path::new(text),
    }
}

/// Describes the entry `name` in `dir`, or the link itself if it is one; `None` if it does not
/// exist.
pub(crate) fn look(dir: BorrowedFd<'_>, name: &OsStr, shown: &str) -> Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::from_os(errno, "look at", shown)),
    }
}

/// Parses a path that came from the file system and not from a caller.
pub(crate) fn to_workspace_path(real: &Path, shown: &str) -> Result<WorkspacePath> {
    let text = real.to_str().ok_or_else(|| Error::NotFound { path: shown.to_owned() })?;
    let text = if text.is_empty() { "." } else { text };
    WorkspacePath::parse(text, &Roots::relative_only())
        .map_err(|_| Error::Outside { path: shown.to_owned() })
}
