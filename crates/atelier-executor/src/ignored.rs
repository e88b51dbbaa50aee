//! `.atelierignore`: the files that it names do not exist for agents.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath;
use crate::error::{Error, Result};

pub const IGNORE_FILE: &str = ".atelierignore";

/// The largest `.atelierignore`, in bytes.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Ignored(Option<Gitignore>);

impl Ignored {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a path is hidden, itself or through one of its parents.
    pub(crate) fn hides(&self, path: &Path, is_dir: bool) -> bool {
        let Some(rules) = self.0.as_ref().filter(|_| !path.as_os_str().is_empty()) else {
            return false;
        };
        let hides = |path: &Path| rules.matched_path_or_any_parents(path, is_dir).is_ignore();
        hides(path) || of_conflict(path).is_some_and(|path| hides(&path))
    }

    /// Whether an entry of a visible directory is hidden.
    pub(crate) fn hides_entry(&self, path: &Path, is_dir: bool) -> bool {
        let Some(rules) = &self.0 else { return false };
        let hides = |path: &Path| rules.matched(path, is_dir).is_ignore();
        hides(path) || of_conflict(path).is_some_and(|path| hides(&path))
    }
}

/// When git meets a conflict, it writes one side to `name~branch`. Returns the path `name` of such
/// a file.
fn of_conflict(path: &Path) -> Option<PathBuf> {
    let (name, _) = path.file_name()?.to_str()?.split_once('~')?;
    (!name.is_empty()).then(|| path.with_file_name(name))
}

/// The rules of an `.atelierignore`, for files that are not in a folder.
pub struct IgnoreRules(Ignored);

impl IgnoreRules {
    /// The rules in the text of an `.atelierignore`. Fails if it is too large to be read.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let size = text.len() as u64;
        match size > MAX_BYTES {
            true => Err(Error::TooLarge { path: IGNORE_FILE.to_owned(), size, limit: MAX_BYTES }),
            false => Ok(Self(parse(Path::new(""), text))),
        }
    }

    /// Whether the file does not exist for agents.
    pub fn hides(&self, file: &str) -> bool {
        self.0.hides(Path::new(file), false)
    }
}

/// The rules of the current `.atelierignore`. The file is read again only after it changed.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<(Stamp, Arc<Ignored>)>>);

type Stamp = (u64, u64, i64, u64, u64);

fn stamp(stat: &Stat) -> Stamp {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    (
        stat.st_dev as u64,
        stat.st_ino as u64,
        stat.st_mtime as i64,
        stat.st_mtime_nsec as u64,
        stat.st_size as u64,
    )
}

impl Cache {
    pub(crate) fn current(&self, root: BorrowedFd<'_>, root_path: &Path) -> Result<Arc<Ignored>> {
        let fail = |errno| Error::from_os(errno, "read", IGNORE_FILE);
        let fd = match beneath::open(root, Path::new(IGNORE_FILE), OFlags::RDONLY) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Arc::default()),
            // An error, because rules that cannot be read must not count as no rules.
            Err(errno) => return Err(fail(errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(Error::NotAFile { path: IGNORE_FILE.to_owned() });
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        // Rules after the limit would not be applied.
        if size > MAX_BYTES {
            return Err(Error::TooLarge { path: IGNORE_FILE.to_owned(), size, limit: MAX_BYTES });
        }
        let stamp = stamp(&stat);
        if let Some((seen, rules)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && *seen == stamp
        {
            return Ok(rules.clone());
        }
        let mut text = Vec::new();
        std::fs::File::from(fd)
            .take(MAX_BYTES)
            .read_to_end(&mut text)
            .map_err(|source| Error::Io { action: "read", path: IGNORE_FILE.to_owned(), source })?;
        let rules = Arc::new(parse(root_path, &text));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((stamp, rules.clone()));
        Ok(rules)
    }
}

fn parse(root: &Path, text: &[u8]) -> Ignored {
    let mut builder = GitignoreBuilder::new(root);
    let text = String::from_utf8_lossy(text);
    for line in text.trim_start_matches('\u{feff}').lines() {
        if let Err(error) = builder.add_line(None, line) {
            tracing::warn!(%error, "cannot parse a line of {IGNORE_FILE}");
        }
    }
    match builder.build() {
        Ok(rules) if !rules.is_empty() => Ignored(Some(rules)),
        Ok(_) => Ignored(None),
        Err(error) => {
            tracing::warn!(%error, "{IGNORE_FILE} could not be compiled");
            Ignored(None)
        }
    }
}
