//! Writes to a temporary file beside the target and renames it. Readers see either the old bytes or
//! the new ones. A hard link is replaced, a symbolic link is refused, and neither is written
//! through.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use atelier_core::TextEncoding;
use atelier_core::path::WorkspacePath;
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::read::{Part, checksum};
use crate::text::TextFile;
use crate::workspace::{Workspace, look};

const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// The state in which the caller expects the file to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Expect {
    #[default]
    Anything,
    /// The file does not exist yet.
    Absent,
    /// The file still has this checksum. Otherwise the error is [`Error::Stale`].
    Checksum(String),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissingParents {
    /// A missing parent directory is an error.
    #[default]
    Refuse,
    Create,
}

/// The state of the file after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub size: u64,
    pub checksum: String,
    /// Checksum of the previous content, if it was read.
    pub replaced: Option<String>,
    pub created: bool,
}

impl Workspace {
    /// Replaces the whole file, or creates it.
    pub fn write(
        &self,
        path: &WorkspacePath,
        bytes: &[u8],
        expect: &Expect,
        parents: MissingParents,
    ) -> Result<Written> {
        self.check_size(path, bytes.len() as u64)?;
        self.make_parents(path, parents)?;
        let turn = if *expect == Expect::Anything { None } else { Some(self.turn(path)?) };
        self.put(path, bytes, expect, turn)
    }

    /// Writes with the turn of a caller that has already read the file, or takes a turn itself.
    fn put(
        &self,
        path: &WorkspacePath,
        bytes: &[u8],
        expect: &Expect,
        turn: Option<Turn>,
    ) -> Result<Written> {
        self.check_size(path, bytes.len() as u64)?;
        let target = self.target(path)?;
        let replaced = self.check(path, &target, expect)?;
        self.replace(path, &target, bytes, expect, turn)?;
        Ok(Written {
            size: bytes.len() as u64,
            checksum: checksum(bytes),
            replaced,
            created: target.old.is_none(),
        })
    }

    /// Appends by writing a new file and renaming it, so that other hard links keep their content.
    pub fn append(
        &self,
        path: &WorkspacePath,
        bytes: &[u8],
        expect: &Expect,
        parents: MissingParents,
    ) -> Result<Written> {
        self.make_parents(path, parents)?;
        let turn = self.turn(path)?;
        let old = match self.read(path, Part::Whole) {
            Ok(content) => content,
            Err(Error::NotFound { .. }) => return self.put(path, bytes, expect, Some(turn)),
            Err(error) => return Err(error),
        };
        if let Expect::Checksum(expected) = expect
            && *expected != old.checksum
        {
            return Err(stale(path, expected, &old.checksum));
        }
        let mut whole = old.bytes;
        whole.extend_from_slice(bytes);
        // The content that was read must still be there when it is replaced. Otherwise one of two
        // appends would be lost.
        let expect =
            if *expect == Expect::Absent { Expect::Absent } else { Expect::Checksum(old.checksum) };
        self.put(path, &whole, &expect, Some(turn))
    }

    /// Makes all replacements in a text file, or changes nothing. The file keeps its encoding.
    pub fn edit(
        &self,
        path: &WorkspacePath,
        edits: &[Edit],
        expect: &Expect,
    ) -> Result<(Written, TextEncoding)> {
        let turn = self.turn(path)?;
        let content = self.read(path, Part::Whole)?;
        if let Expect::Checksum(expected) = expect
            && *expected != content.checksum
        {
            return Err(stale(path, expected, &content.checksum));
        }
        let file = TextFile::parse(path, content.bytes)?;
        let (_, bytes) = file.edited(path, edits)?;
        let expect = Expect::Checksum(content.checksum);
        Ok((self.put(path, &bytes, &expect, Some(turn))?, file.encoding))
    }

    fn make_parents(&self, path: &WorkspacePath, parents: MissingParents) -> Result<()> {
        match path.parent() {
            Some(parent) if parents == MissingParents::Create => {
                self.create_directory(&parent).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Takes a turn among all writers in this directory. A caller that replaces what it has read
    /// holds its turn from the read to the rename, so that no other change is lost. Other programs
    /// do not take turns.
    fn turn(&self, path: &WorkspacePath) -> Result<Turn> {
        let (dir, _) = self.parent_for_writing(path, false)?;
        Turn::take(dir.as_fd()).map_err(|errno| Error::from_os(errno, "lock", path.as_str()))
    }

    fn check_size(&self, path: &WorkspacePath, size: u64) -> Result<()> {
        let limit = self.options().max_write;
        if size > limit {
            Err(Error::TooLarge { path: path.as_str().to_owned(), size, limit })
        } else {
            Ok(())
        }
    }

    fn target(&self, path: &WorkspacePath) -> Result<Target> {
        let shown = path.as_str();
        let (dir, name) = self.parent_for_writing(path, false)?;
        let old = look(dir.as_fd(), &name, shown)?;
        match old.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(FileType::Symlink) => Err(Error::Link { path: shown.to_owned() }),
            Some(kind) if kind != FileType::RegularFile => {
                Err(Error::NotAFile { path: shown.to_owned() })
            }
            _ if path.demands_directory() => Err(Error::NotAFile { path: shown.to_owned() }),
            _ => Ok(Target { dir, name, old }),
        }
    }

    fn check(
        &self,
        path: &WorkspacePath,
        target: &Target,
        expect: &Expect,
    ) -> Result<Option<String>> {
        match (expect, &target.old) {
            (Expect::Anything, _) | (Expect::Absent, None) => Ok(None),
            (Expect::Absent, Some(_)) => Err(stale(path, "no file", "a file")),
            (Expect::Checksum(expected), None) => Err(stale(path, expected, "no file")),
            (Expect::Checksum(expected), Some(_)) => {
                let found = self.read(path, Part::Whole)?.checksum;
                if found == *expected {
                    Ok(Some(found))
                } else {
                    Err(stale(path, expected, &found))
                }
            }
        }
    }

    fn replace(
        &self,
        path: &WorkspacePath,
        target: &Target,
        bytes: &[u8],
        expect: &Expect,
        turn: Option<Turn>,
    ) -> Result<()> {
        let shown = path.as_str();
        let dir = target.dir.as_fd();
        let fail = |errno| Error::from_os(errno, "write", shown);
        // Created with its final mode, because every later change of an inode is extra work for the
        // file system. Set-user-ID and similar bits are removed, because new content must not
        // inherit them.
        let mode = target.old.map_or(FILE_MODE, |old| Mode::from_raw_mode(old.st_mode & 0o777));
        let (temporary, fd) = Temporary::create(dir, mode).map_err(fail)?;
        let mut file = File::from(fd);
        file.write_all(bytes).map_err(|source| Error::Io {
            action: "write",
            path: shown.to_owned(),
            source,
        })?;
        keep_owner_and_mode(&file, target.old.as_ref(), mode).map_err(fail)?;
        if self.options().durable {
            rustix::fs::fsync(&file).map_err(fail)?;
        }
        // A caller that has not read the file waits for its turn only now, when everything is
        // prepared.
        let _turn = match turn {
            Some(turn) => turn,
            None => Turn::take(dir).map_err(fail)?,
        };
        if matches!(expect, Expect::Checksum(_)) {
            // Another writer may have changed the file since the check, so it is checked again
            // before the rename.
            let now = look(dir, &target.name, shown)?;
            if now.as_ref().map(identity) != target.old.as_ref().map(identity) {
                return Err(stale(path, "the file that was checked", "a newer version"));
            }
        }
        temporary.publish(&target.name, *expect == Expect::Absent).map_err(
            |errno| match errno {
                Errno::EXIST => stale(path, "no file", "a file"),
                other => fail(other),
            },
        )?;
        if self.options().durable {
            sync_directory(dir).map_err(fail)?;
        }
        Ok(())
    }
}

/// One replacement of exact text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub old: String,
    pub new: String,
    /// How often `old` must occur; all occurrences are replaced. `None` means at least once.
    pub count: Option<usize>,
}

/// The text after all edits, in order. If one edit does not match, all fail.
pub(crate) fn apply(path: &WorkspacePath, mut text: String, edits: &[Edit]) -> Result<String> {
    for edit in edits {
        if edit.old.is_empty() || edit.old == edit.new {
            return Err(Error::EditEmpty);
        }
        let found = text.matches(&edit.old).count();
        let fits = edit.count.map_or(found > 0, |count| found == count);
        if !fits {
            let expected = edit.count.unwrap_or(1);
            return Err(Error::EditMismatch { path: path.as_str().to_owned(), found, expected });
        }
        text = text.replace(&edit.old, &edit.new);
    }
    Ok(text)
}

/// The right to replace files of a directory, until it is dropped.
struct Turn(#[expect(dead_code, reason = "closing it ends the turn")] Option<OwnedFd>);

/// A turn takes as long as one write. If it takes longer, some process does not release it.
const PATIENCE: Duration = Duration::from_secs(10);

impl Turn {
    fn take(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A directory that cannot be opened cannot be locked, and some file systems do not support
        // locks.
        let Ok(own) = rustix::fs::openat(dir, ".", flags, Mode::empty()) else {
            return Ok(Self(None));
        };
        let end = Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(Some(own))),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < end => {
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "nothing tells when another process lets go"
                    )]
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => return Err(Errno::BUSY),
                Err(_) => return Ok(Self(None)),
            }
        }
    }
}

struct Target {
    dir: OwnedFd,
    name: std::ffi::OsString,
    old: Option<Stat>,
}

fn stale(path: &WorkspacePath, expected: &str, found: &str) -> Error {
    Error::Stale {
        path: path.as_str().to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

fn identity(stat: &Stat) -> (u64, u64, i64, i64) {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    (stat.st_dev as u64, stat.st_ino as u64, stat.st_mtime as i64, stat.st_mtime_nsec as i64)
}

fn keep_owner_and_mode(file: &File, old: Option<&Stat>, mode: Mode) -> Result<(), Errno> {
    let made = rustix::fs::fstat(file)?;
    // Only root may change the owner. For other users the file was theirs, or becomes theirs.
    if let Some(old) = old
        && (old.st_uid, old.st_gid) != (made.st_uid, made.st_gid)
        && rustix::process::geteuid().is_root()
    {
        rustix::fs::fchown(file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))?;
    }
    // The umask may have removed permission bits.
    if made.st_mode & 0o7777 == mode.as_raw_mode() {
        Ok(())
    } else {
        rustix::fs::fchmod(file, mode)
    }
}

pub(crate) fn sync_directory(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let listing = rustix::fs::openat(
        dir,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::fs::fsync(&listing)
}

/// A file with a random name that is deleted unless it is published.
struct Temporary<'dir> {
    dir: BorrowedFd<'dir>,
    name: String,
    published: bool,
}

impl<'dir> Temporary<'dir> {
    fn create(dir: BorrowedFd<'dir>, mode: Mode) -> Result<(Self, OwnedFd), Errno> {
        loop {
            let name = format!(".atelier-{:016x}.tmp", rand::random::<u64>());
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(dir, &name, flags, mode) {
                Ok(fd) => return Ok((Self { dir, name, published: false }, fd)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn publish(mut self, name: &OsStr, only_if_absent: bool) -> Result<(), Errno> {
        if only_if_absent {
            rename_if_absent(self.dir, OsStr::new(&self.name), self.dir, name)?;
        } else {
            rustix::fs::renameat(self.dir, &self.name, self.dir, name)?;
        }
        self.published = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty())
        {
            tracing::warn!(%error, "cannot remove a temporary file");
        }
    }
}

/// Renames without replacing an existing file, in one step if the system supports it.
pub(crate) fn rename_if_absent(
    from: BorrowedFd<'_>,
    old: &OsStr,
    to: BorrowedFd<'_>,
    new: &OsStr,
) -> Result<(), Errno> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    match rustix::fs::renameat_with(from, old, to, new, rustix::fs::RenameFlags::NOREPLACE) {
        // Some file systems (NFS, FUSE) do not support flags.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        other => return other,
    }
    match rustix::fs::statat(to, new, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::renameat(from, old, to, new),
        Ok(_) => Err(Errno::EXIST),
        Err(errno) => Err(errno),
    }
}
