//! Makes a set of changes, all or none.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::records::{Record, RecordedChange};
use super::{
    Entry, Held, io_error, is_in_git, modified, parent_of, replace_file, stat_at, stat_of,
};
use crate::beneath;
use crate::error::{Error, Result};
use crate::walk::{Kind, Names};
use crate::write::rename_if_absent;
#[cfg(not(target_os = "linux"))]
use crate::write::sync_directory;

/// Begins the name of every staging folder. Nothing of that name is listed as a change.
pub(crate) const STAGING: &str = ".atelier-landing-";

const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// Changes that are made together.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeSet {
    pub(crate) steps: Vec<PathChange>,
    /// What a command has made that ran in a layer: it lands as if the command had run in the
    /// folder. New files keep the times that the command gave them, and repositories that it made
    /// land, too.
    pub(crate) is_of_command: bool,
}

/// One path: what must be there, and what will be there.
#[derive(Debug, Clone)]
pub(crate) struct PathChange {
    pub(crate) path: PathBuf,
    pub(crate) before: Entry,
    pub(crate) after: Entry,
    pub(crate) source: Source,
    /// Whether git ignores the file. Such files are counted, not shown.
    pub(crate) is_ignored: bool,
    /// Whether its old content is kept.
    pub(crate) is_kept: bool,
}

impl PathChange {
    pub(crate) fn new(path: PathBuf, before: Entry, after: Entry, source: Source) -> Self {
        Self { path, before, after, source, is_ignored: false, is_kept: true }
    }

    /// Whether a folder is made or removed, without regard to what is in it.
    pub(crate) fn is_folder(&self) -> bool {
        [&self.before, &self.after].iter().all(|it| matches!(it, Entry::Folder | Entry::Absent))
    }
}

/// Where the new content of a file comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The store of before-images.
    Image,
    /// A folder outside the workspace that has the content under the path of the change.
    Folder(Arc<OwnedFd>),
}

/// The smallest changes, in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Op {
    Delete { path: PathBuf, name: String, before: Entry },
    RemoveFolder { path: PathBuf },
    MakeFolder { path: PathBuf },
    Put { path: PathBuf, name: String, before: Entry, after: Entry, inode: u64 },
}

/// What a process that was killed has left to put right.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    record: String,
    staging: String,
    /// Empty while files are still being staged.
    ops: Vec<Op>,
}

impl Held<'_> {
    /// Makes all changes, or none of them. Returns the record by which they can be undone.
    pub(crate) fn apply(&self, set: &ChangeSet, record: Record) -> Result<Record> {
        let steps = self.with_parents(set)?;
        for step in &steps {
            self.check(step, set.is_of_command)?;
        }
        let mut journal = Journal {
            record: record.id.clone(),
            staging: format!("{STAGING}{}", record.id),
            ops: Vec::new(),
        };
        self.write_journal(&journal)?;
        let made = self.stage(&steps, &journal.staging, set.is_of_command).and_then(|ops| {
            journal.ops = ops;
            self.sync()?;
            self.write_journal(&journal)?;
            let staging = self.folder(Path::new(&journal.staging))?;
            for op in &journal.ops {
                self.make(op, staging.as_fd())?;
            }
            self.sync()
        });
        let recorded = made.and_then(|()| {
            let steps = steps
                .iter()
                .map(|PathChange { path, before, after, is_ignored, .. }| RecordedChange {
                    path: path.clone(),
                    before: before.clone(),
                    after: after.clone(),
                    is_ignored: *is_ignored,
                })
                .collect();
            let record = Record { steps, ..record };
            self.door.write_record(&record, self.workspace.options().durable)?;
            Ok(record)
        });
        if recorded.is_err() {
            self.put_back(&journal)?;
        }
        self.finish_journal(&journal)?;
        let record = recorded?;
        self.tidy();
        Ok(record)
    }

    /// Finishes, or puts back, what a killed process has begun.
    pub(super) fn recover(&self) -> Result<()> {
        let path = self.door.journal();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let journal: Journal =
            serde_json::from_slice(&text).map_err(|error| io_error("read", &path)(error.into()))?;
        if !self.door.record_path(&journal.record).exists() {
            tracing::warn!("a change of the folder was interrupted; it is put back");
            self.put_back(&journal)?;
        }
        self.finish_journal(&journal)
    }

    /// The steps, and one for each folder above them that does not exist.
    fn with_parents(&self, set: &ChangeSet) -> Result<Vec<PathChange>> {
        let mut steps: BTreeMap<PathBuf, PathChange> =
            set.steps.iter().map(|step| (step.path.clone(), step.clone())).collect();
        let above: BTreeSet<PathBuf> = set
            .steps
            .iter()
            .filter(|step| step.after != Entry::Absent)
            .flat_map(|step| step.path.ancestors().skip(1))
            .filter(|dir| !dir.as_os_str().is_empty())
            .map(Path::to_owned)
            .collect();
        for dir in above {
            if steps.contains_key(&dir) {
                continue;
            }
            let there = stat_at(self.workspace.handle(), &dir).map_err(io_error("read", &dir))?;
            if there.is_none() {
                let (before, after) = (Entry::Absent, Entry::Folder);
                steps.insert(dir.clone(), PathChange::new(dir, before, after, Source::Image));
            }
        }
        Ok(steps.into_values().collect())
    }

    /// Checks that a step may be made, and that the path is as expected.
    fn check(&self, step: &PathChange, is_of_command: bool) -> Result<()> {
        let shown = || step.path.display().to_string();
        // A command could change no repository that was there, so what it has made is new.
        let is_new = is_of_command && step.before == Entry::Absent;
        if is_in_git(&step.path) && !is_new {
            let why = "only git itself changes what is inside a repository";
            return Err(Error::Protected { path: shown(), why });
        }
        if step.after == Entry::Special || step.before == Entry::Special {
            let why = "devices, sockets and FIFOs stay where they are";
            return Err(Error::Protected { path: shown(), why });
        }
        let there =
            Entry::at(self.workspace.handle(), &step.path).map_err(io_error("read", &step.path))?;
        match there == step.before {
            true => Ok(()),
            false => Err(Error::Conflict { path: shown() }),
        }
    }

    /// Keeps a copy of what is at a path now.
    pub(super) fn keep(&self, path: &Path) -> Result<Entry> {
        let entry = Entry::at(self.workspace.handle(), path).map_err(io_error("read", path))?;
        self.keep_entry(path, &entry)?;
        Ok(entry)
    }

    fn keep_entry(&self, path: &Path, entry: &Entry) -> Result<()> {
        let Entry::File { checksum, .. } = entry else { return Ok(()) };
        if self.door.images.has(checksum) {
            return Ok(());
        }
        let changed = || Error::Conflict { path: path.display().to_string() };
        let fd = beneath::open(self.workspace.handle(), path, OFlags::RDONLY | OFlags::NOFOLLOW)
            .map_err(|_| changed())?;
        match self.door.images.put(checksum, &mut File::from(fd))? {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Writes the new files into the staging folder, keeps the old ones, and lists what to do.
    fn stage(&self, steps: &[PathChange], staging: &str, keeps_times: bool) -> Result<Vec<Op>> {
        let fail = |errno: Errno| io_error("make", Path::new(staging))(errno.into());
        rustix::fs::mkdirat(self.workspace.handle(), staging, Mode::RWXU).map_err(fail)?;
        let folder = self.folder(Path::new(staging))?;
        let (mut deletes, mut removes, mut makes, mut puts) = (vec![], vec![], vec![], vec![]);
        for (number, step) in steps.iter().enumerate() {
            if step.is_kept {
                self.keep_entry(&step.path, &step.before)?;
            }
            let (path, name) = (step.path.clone(), number.to_string());
            let is_leaf = |entry: &Entry| matches!(entry, Entry::File { .. } | Entry::Link { .. });
            let mut before = step.before.clone();
            if step.before == Entry::Folder && step.after != Entry::Folder {
                removes.push(Op::RemoveFolder { path: path.clone() });
                before = Entry::Absent;
            }
            if is_leaf(&step.before) && !is_leaf(&step.after) {
                let name = format!("{name}.old");
                deletes.push(Op::Delete { path: path.clone(), name, before: before.clone() });
            }
            if step.after == Entry::Folder && step.before != Entry::Folder {
                makes.push(Op::MakeFolder { path });
            } else if is_leaf(&step.after) && step.before != step.after {
                let inode = self.stage_file(step, folder.as_fd(), &name, keeps_times)?;
                puts.push(Op::Put { path, name, before, after: step.after.clone(), inode });
            }
        }
        // Inner folders are removed first and made last.
        removes.reverse();
        Ok([deletes, removes, makes, puts].concat())
    }

    /// Writes one new file. Returns its inode, by which it is recognised after a crash.
    fn stage_file(
        &self,
        step: &PathChange,
        staging: BorrowedFd<'_>,
        name: &str,
        keeps_times: bool,
    ) -> Result<u64> {
        let fail = |errno: Errno| io_error("write", &step.path)(errno.into());
        match &step.after {
            Entry::Link { target } => {
                rustix::fs::symlinkat(target.as_str(), staging, name).map_err(fail)?;
            }
            Entry::File { checksum, mode, .. } => {
                let mode = Mode::from_raw_mode(mode & 0o777);
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(staging, name, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(fail)?;
                let mut to = File::from(fd);
                let mut from = match &step.source {
                    Source::Image => self.door.images.read(checksum),
                    Source::Folder(folder) => {
                        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
                        let opened = beneath::open(folder.as_fd(), &step.path, flags);
                        opened.map(File::from).map_err(Into::into)
                    }
                }
                .map_err(io_error("read", &step.path))?;
                io::copy(&mut from, &mut to).map_err(io_error("write", &step.path))?;
                // What was copied must be what was shown and approved.
                let copied = Entry::of(staging, OsStr::new(name));
                let copied = copied.map_err(io_error("read", &step.path))?;
                if copied.checksum() != Some(checksum) {
                    return Err(Error::Conflict { path: step.path.display().to_string() });
                }
                self.keep_owner(step, &to).map_err(fail)?;
                rustix::fs::fchmod(&to, mode).map_err(fail)?;
                if keeps_times {
                    let stat = rustix::fs::fstat(&from).map_err(fail)?;
                    rustix::fs::futimens(&to, &modified(&stat)).map_err(fail)?;
                }
            }
            _ => {}
        }
        let made = stat_of(staging, OsStr::new(name)).map_err(fail)?;
        Ok(made.map_or(0, |stat| stat.st_ino))
    }

    /// Root gives a file back to whom it belonged.
    fn keep_owner(&self, step: &PathChange, file: &File) -> Result<(), Errno> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let Ok(Some(old)) = stat_at(self.workspace.handle(), &step.path) else { return Ok(()) };
        rustix::fs::fchown(file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))
    }

    /// Makes one change. Fails if the path is not as expected.
    fn make(&self, op: &Op, staging: BorrowedFd<'_>) -> Result<()> {
        let (Op::Delete { path, .. }
        | Op::RemoveFolder { path }
        | Op::MakeFolder { path }
        | Op::Put { path, .. }) = op;
        let changed = || Error::Conflict { path: path.display().to_string() };
        let fail = |errno: Errno| io_error("change", path)(errno.into());
        let parent = parent_of(self.workspace.handle(), path).map_err(io_error("open", path))?;
        let (dir, name) = parent.ok_or_else(changed)?;
        match op {
            Op::RemoveFolder { .. } => match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                // Somebody has put something into it, so it stays.
                Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
                Err(errno) => Err(fail(errno)),
            },
            Op::MakeFolder { .. } => match rustix::fs::mkdirat(&dir, name, FOLDER_MODE) {
                Ok(()) => Ok(()),
                Err(Errno::EXIST) => Err(changed()),
                Err(errno) => Err(fail(errno)),
            },
            Op::Delete { name: staged, before, .. } => {
                rename_if_absent(dir.as_fd(), name, staging, OsStr::new(staged)).map_err(
                    |errno| match errno {
                        Errno::NOENT => changed(),
                        other => fail(other),
                    },
                )?;
                expect(staging, staged, before, path)
            }
            Op::Put { name: staged, before: Entry::Absent, .. } => {
                rename_if_absent(staging, OsStr::new(staged), dir.as_fd(), name).map_err(|errno| {
                    match errno {
                        Errno::EXIST => changed(),
                        other => fail(other),
                    }
                })
            }
            Op::Put { name: staged, before, .. } => {
                match renameat_with(staging, staged, &dir, name, RenameFlags::EXCHANGE) {
                    Ok(()) => expect(staging, staged, before, path),
                    Err(Errno::NOENT) => Err(changed()),
                    // Some file systems cannot exchange. Then the path is empty for a moment.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                        let old = format!("{staged}.old");
                        let (old_name, staged) = (OsStr::new(&old), OsStr::new(staged));
                        rename_if_absent(dir.as_fd(), name, staging, old_name).map_err(fail)?;
                        expect(staging, &old, before, path)?;
                        rename_if_absent(staging, staged, dir.as_fd(), name).map_err(|_| changed())
                    }
                    Err(errno) => Err(fail(errno)),
                }
            }
        }
    }

    /// Puts everything back as it was. What somebody has changed in the meantime stays.
    fn put_back(&self, journal: &Journal) -> Result<()> {
        let Ok(staging) = self.folder(Path::new(&journal.staging)) else { return Ok(()) };
        for op in journal.ops.iter().rev() {
            if let Err(error) = self.put_back_one(op, staging.as_fd()) {
                tracing::warn!(%error, "a change cannot be put back; its old content is kept");
            }
        }
        self.sync()
    }

    fn put_back_one(&self, op: &Op, staging: BorrowedFd<'_>) -> io::Result<()> {
        let (Op::Delete { path, .. }
        | Op::RemoveFolder { path }
        | Op::MakeFolder { path }
        | Op::Put { path, .. }) = op;
        let Some((dir, name)) = parent_of(self.workspace.handle(), path)? else { return Ok(()) };
        match op {
            // Only an empty folder goes. If it was there before, it was not made here.
            Op::MakeFolder { .. } => {
                rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR).ok();
            }
            Op::RemoveFolder { .. } => match rustix::fs::mkdirat(&dir, name, FOLDER_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            },
            Op::Delete { name: staged, .. } => bring(staging, staged, dir.as_fd(), name)?,
            Op::Put { name: staged, before, after, inode, .. } => {
                let there = stat_of(dir.as_fd(), name)?.map(|stat| stat.st_ino);
                // Somebody may have written into the new file. That stays.
                let ours = there == Some(*inode) && Entry::of(dir.as_fd(), name)? == *after;
                let staged_name = OsStr::new(staged);
                let waiting = stat_of(staging, staged_name)?.map(|stat| stat.st_ino);
                match (before, waiting) {
                    (Entry::Absent, None) if ours => {
                        rename_if_absent(dir.as_fd(), name, staging, staged_name)?;
                    }
                    (Entry::Absent, _) => {}
                    (_, Some(waiting)) if waiting != *inode && ours => {
                        renameat_with(staging, staged, &dir, name, RenameFlags::EXCHANGE)?;
                    }
                    (_, None) if ours => {
                        rename_if_absent(dir.as_fd(), name, staging, staged_name)?;
                        bring(staging, &format!("{staged}.old"), dir.as_fd(), name)?;
                    }
                    _ => bring(staging, &format!("{staged}.old"), dir.as_fd(), name)?,
                }
            }
        }
        Ok(())
    }

    fn folder(&self, path: &Path) -> Result<OwnedFd> {
        beneath::open(self.workspace.handle(), path, beneath::DIRECTORY)
            .map_err(|errno| io_error("open", path)(errno.into()))
    }

    fn write_journal(&self, journal: &Journal) -> Result<()> {
        let path = self.door.journal();
        let text =
            serde_json::to_vec(journal).map_err(|error| io_error("write", &path)(error.into()))?;
        replace_file(&path, &text, self.workspace.options().durable)
    }

    /// Removes the staging folder and the journal.
    fn finish_journal(&self, journal: &Journal) -> Result<()> {
        let staging = Path::new(&journal.staging);
        if let Ok(mut names) = Names::open(self.workspace.handle(), staging) {
            let mut found = Vec::new();
            let listed = names.each(|name, kind| {
                found.push((name.to_owned(), kind == Kind::Directory));
                Ok(())
            });
            listed.map_err(|errno| io_error("list", staging)(errno.into()))?;
            for (name, is_dir) in found {
                let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(names.handle(), &name, flags)
                    .map_err(|errno| io_error("remove", staging)(errno.into()))?;
            }
            rustix::fs::unlinkat(self.workspace.handle(), staging, AtFlags::REMOVEDIR)
                .map_err(|errno| io_error("remove", staging)(errno.into()))?;
        }
        let path = self.door.journal();
        std::fs::remove_file(&path).map_err(io_error("remove", &path))
    }

    /// Waits until the file system has everything on disk.
    fn sync(&self) -> Result<()> {
        if !self.workspace.options().durable {
            return Ok(());
        }
        let fail = |errno: Errno| io_error("sync", self.workspace.root())(errno.into());
        #[cfg(target_os = "linux")]
        {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let root =
                beneath::open(self.workspace.handle(), Path::new(""), flags).map_err(fail)?;
            rustix::fs::syncfs(&root).map_err(fail)
        }
        #[cfg(not(target_os = "linux"))]
        sync_directory(self.workspace.handle()).map_err(fail)
    }
}

/// Fails if the staged entry is not what was expected at the path.
fn expect(staging: BorrowedFd<'_>, staged: &str, before: &Entry, path: &Path) -> Result<()> {
    let there = Entry::of(staging, OsStr::new(staged)).map_err(io_error("read", path))?;
    match there == *before {
        true => Ok(()),
        false => Err(Error::Conflict { path: path.display().to_string() }),
    }
}

/// Moves a staged entry back, unless there is none or something else lies at its place.
fn bring(
    staging: BorrowedFd<'_>,
    staged: &str,
    dir: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<(), Errno> {
    match rename_if_absent(staging, OsStr::new(staged), dir, name) {
        Ok(()) | Err(Errno::NOENT | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}
