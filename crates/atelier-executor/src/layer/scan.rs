//! Finds out what a layer has changed, from the layer's upper folder.
//!
//! The kernel marks a deleted entry by a character device with the number 0, and a folder that
//! replaces another by an extended attribute. Scripts can make neither: they may not create
//! devices, and they may not set extended attributes.

mod rules;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atelier_core::policy::layered::ChangeKind;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use self::rules::Rules;
use super::renames::find_renames;
use super::{Layer, LayerLock};
use crate::beneath;
use crate::door::{Entry, STAGING, io_error, is_in_git, mode_of, parent_of, stat_at};
use crate::error::{Error, Result};
use crate::walk::Names;
use crate::workspace::Workspace;

/// One path at which the layer differs from the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(crate) kind: ChangeKind,
    /// Where a renamed file was.
    pub(crate) from: Option<PathBuf>,
    /// The file in the layer; `None` if the layer deletes it.
    pub(crate) upper: Option<Stat>,
    /// The file in the workspace; `None` if it does not exist there.
    pub(crate) lower: Option<Stat>,
    /// Whether the workspace has changed there, too.
    pub(crate) conflict: bool,
    /// Whether git ignores the file. Only a look at everything lists such files.
    pub(crate) is_ignored: bool,
}

impl Change {
    /// Whether a folder was made or removed, without regard to what is in it.
    pub(crate) fn is_folder(&self) -> bool {
        [&self.upper, &self.lower].into_iter().flatten().all(is_dir)
    }
}

/// All differences between a layer and the workspace.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) changes: Vec<Change>,
    /// How many files differ that git ignores.
    pub(crate) ignored: u64,
    /// Whether a repository was changed: there are commits, or the index differs.
    pub(crate) git: bool,
    /// How many bytes the layer holds.
    pub(crate) bytes: u64,
}

impl Layer<'_> {
    /// Lists all changes, and keeps what the files below them were like.
    pub(crate) fn scan(&self, workspace: &Workspace, _lock: &LayerLock) -> Result<Scan> {
        let began = self.moment()?;
        let upper = self.upper()?;
        let mut walk = Walk {
            upper: upper.as_fd(),
            lower: workspace.handle(),
            rules: Vec::new(),
            scan: Scan::default(),
            todo: vec![(PathBuf::new(), true, 0)],
            left: self.layers.options.max_files,
            whole: None,
        };
        walk.run().map_err(io_error("look at", &self.folder))?;
        let Walk { mut scan, .. } = walk;
        scan.changes.sort_by(|a, b| a.path.cmp(&b.path));
        let mut bases = self.bases()?;
        let is_new = bases
            .update(workspace.handle(), &mut scan.changes)
            .map_err(io_error("look at", &self.folder))?;
        let mounted = self.is_mounted();
        if mounted {
            bases.begin_at(began);
        }
        if is_new {
            self.keep_bases(workspace, &bases)?;
        }
        if is_new || mounted {
            self.write_bases(&bases)?;
        }
        find_renames(&mut scan, upper.as_fd(), workspace.handle())
            .map_err(io_error("look at", &self.folder))?;
        Ok(scan)
    }
}

/// What a look at everything finds beside changes.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Folders of the layer with their permissions, where the workspace has no folder or one with
    /// other permissions.
    pub(super) modes: Vec<(PathBuf, u32)>,
    /// Files that only have another time.
    pub(super) touched: Vec<(PathBuf, Stat)>,
}

/// Lists all changes between the workspace and the upper folder of a layer in which nothing runs,
/// including what git ignores and repositories that are new.
pub(super) fn scan_everything(
    workspace: &Workspace,
    upper: BorrowedFd<'_>,
    most: u64,
) -> std::io::Result<(Vec<Change>, Rest)> {
    let mut walk = Walk {
        upper,
        lower: workspace.handle(),
        rules: Vec::new(),
        scan: Scan::default(),
        todo: vec![(PathBuf::new(), true, 0)],
        left: most,
        whole: Some(Rest::default()),
    };
    walk.run()?;
    let Walk { mut scan, whole, .. } = walk;
    scan.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((scan.changes, whole.unwrap_or_default()))
}

impl Layer<'_> {
    /// How many bytes the disk has left.
    pub(super) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.folder)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// How many bytes the layer and its `/tmp` hold. Scripts may be changing it.
    pub(super) fn used_bytes(&self) -> std::io::Result<u64> {
        let mut used = 0;
        for part in ["upper", "tmp"] {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = rustix::fs::open(self.folder.join(part), flags, Mode::empty())?;
            let mut todo = vec![PathBuf::new()];
            while let Some(dir) = todo.pop() {
                let Ok(mut names) = Names::open(top.as_fd(), &dir) else { continue };
                let mut found = Vec::new();
                names.each(|name, _| {
                    found.push(dir.join(name));
                    Ok(())
                })?;
                for path in found {
                    let Some(stat) = stat_at(top.as_fd(), &path)? else { continue };
                    used += bytes_of(&stat);
                    if is_dir(&stat) {
                        todo.push(path);
                    }
                }
            }
        }
        Ok(used)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
fn bytes_of(stat: &Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(512)
}

struct Walk<'a> {
    upper: BorrowedFd<'a>,
    lower: BorrowedFd<'a>,
    /// The rules that apply in the folder that is being walked, from the outside in.
    rules: Vec<Rules>,
    scan: Scan,
    /// Folders of the layer, whether the workspace shows through them, and how deep they are.
    todo: Vec<(PathBuf, bool, usize)>,
    /// How many more files are looked at.
    left: u64,
    /// Whether everything is listed, and what is found beside changes.
    whole: Option<Rest>,
}

impl Walk<'_> {
    fn run(&mut self) -> std::io::Result<()> {
        while let Some((dir, merged, depth)) = self.todo.pop() {
            self.rules.retain(|rules| dir.starts_with(&rules.dir));
            self.add_rules(&dir, depth)?;
            let mut names: Vec<OsString> = Vec::new();
            let listed = match Names::open(self.upper, &dir) {
                Ok(mut listing) => listing.each(|name, _| {
                    names.push(name.to_owned());
                    Ok(())
                }),
                // A job has removed it in the meantime.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
                Err(errno) => Err(errno),
            };
            listed?;
            names.sort();
            for name in &names {
                self.visit(&dir, name, depth)?;
            }
            if !merged {
                self.deleted_below(&dir, &names)?;
            }
        }
        Ok(())
    }

    /// If everything is listed, notes the permissions of a folder that differ, and opens the folder
    /// so that it can be listed: nothing runs in the layer any more.
    fn note_mode(
        &mut self,
        path: &Path,
        upper: &Stat,
        lower: Option<&Stat>,
    ) -> std::io::Result<()> {
        let Some(rest) = &mut self.whole else { return Ok(()) };
        let mode = mode_of(upper);
        if !lower.is_some_and(|there| is_dir(there) && mode_of(there) == mode) {
            rest.modes.push((path.to_owned(), mode));
        }
        if mode & 0o700 != 0o700
            && let Some((parent, name)) = parent_of(self.upper, path)?
        {
            let flags = AtFlags::empty();
            rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(mode | 0o700), flags)?;
        }
        Ok(())
    }

    /// Whether the path is in a repository, and stays in the layer therefore. A command could
    /// change no repository of the workspace, so if everything is listed, new ones are listed as well.
    fn is_kept_back(&self, path: &Path) -> std::io::Result<bool> {
        if !is_in_git(path) {
            return Ok(false);
        }
        let repository = path.ancestors().filter(|above| is_in_git(above)).last();
        match (&self.whole, repository) {
            (Some(_), Some(repository)) => Ok(stat_at(self.lower, repository)?.is_some()),
            _ => Ok(true),
        }
    }

    fn visit(&mut self, dir: &Path, name: &OsStr, depth: usize) -> std::io::Result<()> {
        let path = dir.join(name);
        let Some(upper) = stat_at(self.upper, &path)? else { return Ok(()) };
        self.count(&upper)?;
        if self.is_kept_back(&path)? {
            self.scan.git |= !is_dir(&upper);
            if is_dir(&upper) {
                self.todo.push((path, true, depth + 1));
            }
            return Ok(());
        }
        if depth == 0 && name.as_bytes().starts_with(STAGING.as_bytes()) {
            return Ok(());
        }
        let lower = stat_at(self.lower, &path)?;
        if is_whiteout(&upper) {
            return match lower {
                Some(lower) if is_dir(&lower) => self.deleted_tree(path, lower),
                Some(lower) => self.found(path, ChangeKind::Deleted, None, Some(lower)),
                None => Ok(()),
            };
        }
        let kind = FileType::from_raw_mode(upper.st_mode);
        if kind.is_dir() {
            self.note_mode(&path, &upper, lower.as_ref())?;
            if self.whole.is_none() && self.is_ignored(&path, true) {
                return self.count_ignored(&path);
            }
            let shows_through = match &lower {
                Some(lower) if is_dir(lower) => !is_opaque(self.upper, &path)?,
                Some(lower) => {
                    self.found(path.clone(), ChangeKind::Changed, Some(upper), Some(*lower))?;
                    false
                }
                None => {
                    // A folder with files in it comes with them.
                    if is_empty(self.upper, &path)? {
                        self.found(path.clone(), ChangeKind::Added, Some(upper), None)?;
                    }
                    false
                }
            };
            self.todo.push((path, shows_through, depth + 1));
            return Ok(());
        }
        match lower {
            None => self.found(path, ChangeKind::Added, Some(upper), None),
            Some(lower) if is_dir(&lower) => {
                self.deleted_tree(path.clone(), lower)?;
                // The folder itself is replaced.
                let at = self.scan.changes.iter_mut().find(|change| change.path == path);
                if let Some(change) = at {
                    change.kind = ChangeKind::Changed;
                    change.upper = Some(upper);
                }
                Ok(())
            }
            Some(lower) => match self.compare(&path, &upper, &lower)? {
                Some(kind) => self.found(path, kind, Some(upper), Some(lower)),
                None => {
                    let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
                    let is_touched = time(&upper) != time(&lower);
                    if let Some(rest) = self.whole.as_mut().filter(|_| is_touched) {
                        rest.touched.push((path, upper));
                    }
                    Ok(())
                }
            },
        }
    }

    /// How a file differs on the two sides; `None` if it does not.
    fn compare(
        &self,
        path: &Path,
        upper: &Stat,
        lower: &Stat,
    ) -> std::io::Result<Option<ChangeKind>> {
        let kinds = [upper, lower].map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kinds[0] != kinds[1] || upper.st_size != lower.st_size {
            return Ok(Some(ChangeKind::Changed));
        }
        let same_mode = mode_of(upper) == mode_of(lower);
        let same_content = match (Entry::at(self.upper, path)?, Entry::at(self.lower, path)?) {
            (Entry::File { checksum: a, .. }, Entry::File { checksum: b, .. }) => a == b,
            (Entry::Link { target: a }, Entry::Link { target: b }) => {
                return Ok((a != b).then_some(ChangeKind::Changed));
            }
            _ => false,
        };
        Ok(match (same_content, same_mode) {
            (true, true) => None,
            (true, false) => Some(ChangeKind::Mode),
            (false, _) => Some(ChangeKind::Changed),
        })
    }

    fn found(
        &mut self,
        path: PathBuf,
        kind: ChangeKind,
        upper: Option<Stat>,
        lower: Option<Stat>,
    ) -> std::io::Result<()> {
        if self.is_kept_back(&path)? {
            self.scan.git = true;
            return Ok(());
        }
        let dir = [&upper, &lower].into_iter().flatten().all(is_dir);
        // WS-11.4: folders directly beneath the root are emptied, but not removed.
        let at_top = path.components().count() == 1;
        if dir && kind == ChangeKind::Deleted && at_top && self.whole.is_none() {
            return Ok(());
        }
        let is_ignored = self.is_ignored(&path, dir);
        if is_ignored && self.whole.is_none() {
            self.scan.ignored += u64::from(!dir);
            return Ok(());
        }
        let change = Change { path, kind, from: None, upper, lower, conflict: false, is_ignored };
        self.scan.changes.push(change);
        Ok(())
    }

    /// A whole folder of the workspace that the layer has deleted.
    fn deleted_tree(&mut self, path: PathBuf, lower: Stat) -> std::io::Result<()> {
        let mut todo = vec![(path, lower)];
        while let Some((path, stat)) = todo.pop() {
            self.look()?;
            let dir = is_dir(&stat);
            let passed_by = self.whole.is_none() && self.is_ignored(&path, true);
            if dir && (is_in_git(&path) || passed_by) {
                self.scan.git |= is_in_git(&path);
                self.scan.ignored += 1;
                continue;
            }
            self.found(path.clone(), ChangeKind::Deleted, None, Some(stat))?;
            if dir {
                let mut names = Vec::new();
                Names::open(self.lower, &path)?.each(|name, _| {
                    names.push(path.join(name));
                    Ok(())
                })?;
                for path in names {
                    if let Some(stat) = stat_at(self.lower, &path)? {
                        todo.push((path, stat));
                    }
                }
            }
        }
        Ok(())
    }

    /// What a folder of the workspace has that the layer's folder in its place has not.
    fn deleted_below(&mut self, dir: &Path, kept: &[OsString]) -> std::io::Result<()> {
        let mut gone = Vec::new();
        match Names::open(self.lower, dir) {
            Ok(mut listing) => listing.each(|name, _| {
                if kept.binary_search_by(|kept| kept.as_os_str().cmp(name)).is_err() {
                    gone.push(dir.join(name));
                }
                Ok(())
            })?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
        for path in gone {
            if let Some(stat) = stat_at(self.lower, &path)? {
                self.deleted_tree(path, stat)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, stat: &Stat) -> std::io::Result<()> {
        self.scan.bytes += bytes_of(stat);
        self.look()
    }

    fn look(&mut self) -> std::io::Result<()> {
        let too_many = || std::io::Error::other("the layer changes too many files; discard some");
        self.left = self.left.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }

    /// Counts the files of an ignored folder.
    fn count_ignored(&mut self, top: &Path) -> std::io::Result<()> {
        let mut todo = vec![top.to_owned()];
        while let Some(dir) = todo.pop() {
            let mut names = Vec::new();
            match Names::open(self.upper, &dir) {
                Ok(mut listing) => listing.each(|name, _| {
                    names.push(dir.join(name));
                    Ok(())
                })?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
            for path in names {
                let Some(stat) = stat_at(self.upper, &path)? else { continue };
                self.count(&stat)?;
                match is_dir(&stat) {
                    true => todo.push(path),
                    false => self.scan.ignored += 1,
                }
            }
        }
        Ok(())
    }
}

pub(super) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
}

pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(super) fn is_empty(upper: BorrowedFd<'_>, path: &Path) -> std::io::Result<bool> {
    let mut empty = true;
    Names::open(upper, path)?.each(|_, _| {
        empty = false;
        Ok(())
    })?;
    Ok(empty)
}

/// Whether a folder of the layer replaces that of the workspace.
pub(super) fn is_opaque(upper: BorrowedFd<'_>, path: &Path) -> std::io::Result<bool> {
    let folder = beneath::open(upper, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut value = [0u8; 8];
    match rustix::fs::fgetxattr(&folder, "user.overlay.opaque", &mut value[..]) {
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The error for a layer that has grown too large.
pub(super) fn too_large(scan: &Scan, most: u64) -> Option<Error> {
    (scan.bytes > most).then(|| Error::TooLarge {
        path: "the layer".to_owned(),
        size: scan.bytes,
        limit: most,
    })
}
