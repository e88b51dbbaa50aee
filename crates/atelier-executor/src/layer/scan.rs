//! Finds out what a layer has changed, from the layer's upper folder.
//!
//! The kernel marks a deleted entry by a character device with the number 0, and a folder that
//! replaces another by an extended attribute. Scripts can make neither: they may not create
//! devices, and they may not set extended attributes.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atelier_core::policy::layered::ChangeKind;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::{Layer, LayerLock};
use crate::beneath;
use crate::door::{Entry, STAGING, io_error, is_in_git, mode_of, stat_at};
use crate::error::{Error, Result};
use crate::walk::Names;
use crate::workspace::Workspace;

/// Files of rules longer than this are not read.
const LONGEST_RULES: u64 = 1 << 20;
/// Renames are looked for among so many added files.
const MOST_RENAMES: usize = 2000;

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
        if is_new || mounted {
            self.write_bases(&bases)?;
        }
        find_renames(&mut scan, upper.as_fd(), workspace.handle())
            .map_err(io_error("look at", &self.folder))?;
        Ok(scan)
    }
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
            let top = rustix::fs::open(self.folder.join(part), flags, rustix::fs::Mode::empty())?;
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

/// The rules of one folder about what git ignores.
struct Rules {
    dir: PathBuf,
    rules: Gitignore,
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

    fn visit(&mut self, dir: &Path, name: &OsStr, depth: usize) -> std::io::Result<()> {
        let path = dir.join(name);
        let Some(upper) = stat_at(self.upper, &path)? else { return Ok(()) };
        self.count(&upper)?;
        if is_in_git(&path) {
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
            if self.is_ignored(&path, true) {
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
                None => Ok(()),
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
        if is_in_git(&path) {
            self.scan.git = true;
            return Ok(());
        }
        let dir = [&upper, &lower].into_iter().flatten().all(is_dir);
        // WS-11.4: folders directly beneath the root are emptied, but not removed.
        if dir && kind == ChangeKind::Deleted && path.components().count() == 1 {
            return Ok(());
        }
        if self.is_ignored(&path, dir) {
            self.scan.ignored += u64::from(!dir);
            return Ok(());
        }
        let change = Change { path, kind, from: None, upper, lower, conflict: false };
        self.scan.changes.push(change);
        Ok(())
    }

    /// A whole folder of the workspace that the layer has deleted.
    fn deleted_tree(&mut self, path: PathBuf, lower: Stat) -> std::io::Result<()> {
        let mut todo = vec![(path, lower)];
        while let Some((path, stat)) = todo.pop() {
            self.look()?;
            let dir = is_dir(&stat);
            if dir && (is_in_git(&path) || self.is_ignored(&path, true)) {
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

    fn is_ignored(&self, path: &Path, is_dir: bool) -> bool {
        for rules in self.rules.iter().rev() {
            let Ok(below) = path.strip_prefix(&rules.dir) else { continue };
            let found = rules.rules.matched_path_or_any_parents(below, is_dir);
            if !found.is_none() {
                return found.is_ignore();
            }
        }
        false
    }

    /// Reads the rules of a folder, as the layer has them.
    fn add_rules(&mut self, dir: &Path, depth: usize) -> std::io::Result<()> {
        let mut texts = Vec::new();
        if depth == 0 {
            texts.extend(self.read(Path::new(".git/info/exclude"))?);
        }
        texts.extend(self.read(&dir.join(".gitignore"))?);
        if texts.is_empty() {
            return Ok(());
        }
        let mut builder = GitignoreBuilder::new("");
        for line in texts.iter().flat_map(|text| text.lines()) {
            // A line that git does not understand ignores nothing.
            builder.add_line(None, line).ok();
        }
        if let Ok(rules) = builder.build() {
            self.rules.push(Rules { dir: dir.to_owned(), rules });
        }
        Ok(())
    }

    /// A text file as the layer shows it.
    fn read(&self, path: &Path) -> std::io::Result<Option<String>> {
        let side = match stat_at(self.upper, path)? {
            Some(stat) if is_whiteout(&stat) => return Ok(None),
            Some(_) => self.upper,
            None => self.lower,
        };
        let Ok(fd) = beneath::open(side, path, OFlags::RDONLY | OFlags::NOFOLLOW) else {
            return Ok(None);
        };
        if !rustix::fs::fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
        {
            return Ok(None);
        }
        let mut text = Vec::new();
        std::fs::File::from(fd).take(LONGEST_RULES).read_to_end(&mut text)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Takes a file that is added for a deleted one of the same content under another name.
fn find_renames(
    scan: &mut Scan,
    upper: BorrowedFd<'_>,
    lower: BorrowedFd<'_>,
) -> std::io::Result<()> {
    let is_file = |stat: &Option<Stat>| {
        stat.as_ref()
            .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size > 0)
    };
    let of_kind = |wanted: ChangeKind| {
        let changes = scan.changes.iter().enumerate();
        changes.filter(move |(_, change)| change.kind == wanted).map(|(at, _)| at)
    };
    let added: Vec<usize> =
        of_kind(ChangeKind::Added).filter(|at| is_file(&scan.changes[*at].upper)).collect();
    let deleted: Vec<usize> =
        of_kind(ChangeKind::Deleted).filter(|at| is_file(&scan.changes[*at].lower)).collect();
    if added.len() > MOST_RENAMES || deleted.len() > MOST_RENAMES {
        return Ok(());
    }
    let mut old: Vec<Option<(usize, Entry)>> = Vec::new();
    for at in deleted {
        let size = scan.changes[at].lower.map(|stat| stat.st_size);
        let fits = |new: &usize| scan.changes[*new].upper.map(|stat| stat.st_size) == size;
        if added.iter().any(fits) {
            old.push(Some((at, Entry::at(lower, &scan.changes[at].path)?)));
        }
    }
    let mut gone = Vec::new();
    for at in added {
        if old.iter().all(Option::is_none) {
            break;
        }
        let new = Entry::at(upper, &scan.changes[at].path)?;
        let same = |old: &Option<(usize, Entry)>| {
            old.as_ref().is_some_and(|(_, old)| {
                old.checksum().is_some() && old.checksum() == new.checksum()
            })
        };
        let Some((from, _)) = old.iter_mut().find(|old| same(old)).and_then(Option::take) else {
            continue;
        };
        let from_change = scan.changes[from].clone();
        let change = &mut scan.changes[at];
        change.kind = ChangeKind::Renamed;
        change.from = Some(from_change.path);
        change.conflict |= from_change.conflict;
        gone.push(from);
    }
    gone.sort_unstable();
    for at in gone.into_iter().rev() {
        scan.changes.remove(at);
    }
    Ok(())
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
