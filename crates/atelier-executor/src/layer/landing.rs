//! Turns the changes of a layer into a set for the door, and takes them out of the layer when they
//! have landed or are discarded.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atelier_core::path::WorkspacePath;
use atelier_core::policy::layered::{ChangeKind, FileChange};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::difference::LONGEST;
use super::removal::remove_from;
use super::scan::{Change, is_dir, is_empty, is_opaque};
use super::size::apparent_bytes_of;
use super::{Layer, LayerLock, Scan};
use crate::door::{
    ChangeSet, Entry, PathChange, Source, hex, io_error, is_in_git, parent_of, replace_file,
    stat_at,
};
use crate::error::{Error, Result};
use crate::workspace::{Workspace, to_workspace_path};

/// Changes that wait for somebody's word.
pub(crate) struct Pending {
    pub(crate) changes: Vec<FileChange>,
    pub(crate) set: ChangeSet,
    /// What the workspace has changed as well, and loses.
    pub(crate) replaced: Vec<PathBuf>,
    /// Changes with both sides of each file.
    pub(crate) digest: String,
}

impl Pending {
    pub(crate) fn new(changes: Vec<FileChange>, mut set: ChangeSet) -> Result<Self> {
        set.steps.sort_by(|a, b| a.path.cmp(&b.path));
        let sides: Vec<_> =
            set.steps.iter().map(|step| (&step.path, &step.before, &step.after)).collect();
        let text = serde_json::to_vec(&sides)
            .map_err(|error| io_error("list", Path::new("the changes"))(error.into()))?;
        Ok(Self { changes, set, replaced: Vec::new(), digest: hex(&Sha256::digest(&text)) })
    }
}

/// `diff` reads so many bytes at most. Nobody is asked about it.
const MOST_READ: u64 = 256 << 20;

/// Changes to be shown, whether they land or not.
pub(crate) struct ShownChanges {
    pub(crate) set: ChangeSet,
    /// What the workspace has changed as well.
    pub(crate) conflicts: Vec<PathBuf>,
    /// What is not read, and why.
    pub(crate) unread: Vec<(PathBuf, &'static str)>,
}

/// Whether a path is one of those that are meant, or lies below one. None means all.
pub(crate) fn is_meant(paths: Option<&[WorkspacePath]>, path: &Path) -> bool {
    paths.is_none_or(|paths| {
        paths
            .iter()
            .any(|meant| meant.is_root() || path.starts_with(crate::workspace::relative(meant)))
    })
}

impl Layer<'_> {
    /// What landing these paths would change. Fails if one of them cannot land. With `replace`, files
    /// land that the workspace has changed as well, if paths are named.
    pub(crate) fn pending(
        &self,
        workspace: &Workspace,
        paths: Option<&[WorkspacePath]>,
        replace: bool,
        lock: &LayerLock,
    ) -> Result<Pending> {
        if let Some(path) =
            paths.into_iter().flatten().find(|path| is_in_git(Path::new(path.as_str())))
        {
            let why = "commits that were made in a layer do not land. Land the files, and commit \
                them in the workspace";
            return Err(Error::Protected { path: path.as_str().to_owned(), why });
        }
        let Scan { changes, unlisted, too_many, .. } = self.scan(workspace, lock)?;
        if too_many {
            return Err(Error::TooManyFiles);
        }
        if let Some((path, why)) = unlisted.iter().find(|(path, _)| is_meant(paths, path)) {
            return Err(unfit(path, why));
        }
        let meant: Vec<Change> = changes
            .into_iter()
            .filter(|change| {
                is_meant(paths, &change.path)
                    || change.from.as_ref().is_some_and(|from| is_meant(paths, from))
            })
            .collect();
        if meant.is_empty() {
            let what = match paths {
                None => "a change in the layer".to_owned(),
                Some(paths) => {
                    let names: Vec<&str> = paths.iter().map(WorkspacePath::as_str).collect();
                    format!("a change in the layer at {}", names.join(", "))
                }
            };
            return Err(Error::Unknown { what });
        }
        let both = meant.iter().filter(|change| change.conflict);
        let replaced: Vec<PathBuf> = both.map(|change| change.path.clone()).collect();
        if let Some(both) = replaced.first().filter(|_| !replace || paths.is_none()) {
            return Err(Error::ChangedInBoth { path: shown(both) });
        }
        let size = meant.iter().filter_map(|change| change.upper.as_ref()).map(apparent_bytes_of);
        let (size, limit) = (size.sum::<u64>(), self.layers.options.max_bytes);
        if size > limit {
            return Err(Error::TooLarge { path: "what would land".to_owned(), size, limit });
        }
        let upper = Arc::new(self.upper()?);
        let (mut list, mut set) = (Vec::new(), ChangeSet::default());
        for change in &meant {
            self.add(workspace, change, &upper, &mut list, &mut set)?;
        }
        if let Some(path) = set.link_that_leaves(workspace) {
            return Err(unfit(path, "it is a link that leads out of the workspace"));
        }
        Ok(Pending { replaced, ..Pending::new(list, set)? })
    }

    /// What landing these paths would change, if nothing spoke against it, and which paths the
    /// workspace has changed as well. Long files are not read.
    pub(crate) fn shown(
        &self,
        workspace: &Workspace,
        paths: Option<&[WorkspacePath]>,
        lock: &LayerLock,
    ) -> Result<ShownChanges> {
        let scan = self.scan(workspace, lock)?;
        let upper = Arc::new(self.upper()?);
        let (mut set, mut conflicts) = (ChangeSet::default(), Vec::new());
        let mut unread = scan.unlisted;
        unread.retain(|(path, _)| is_meant(paths, path));
        let mut left = MOST_READ;
        for change in scan.changes.iter().filter(|change| is_meant(paths, &change.path)) {
            self.go_on()?;
            conflicts.extend(change.conflict.then(|| change.path.clone()));
            let sizes =
                [&change.upper, &change.lower].map(|it| it.as_ref().map_or(0, apparent_bytes_of));
            let rest = left.checked_sub(sizes[0].saturating_add(sizes[1]));
            let Some(rest) = rest.filter(|_| sizes.iter().all(|size| *size <= LONGEST)) else {
                unread.push((change.path.clone(), "it is too long"));
                continue;
            };
            left = rest;
            match steps(workspace, change, &upper) {
                Ok(steps) => set.steps.extend(steps),
                Err(_) => unread.push((change.path.clone(), "it cannot be read")),
            }
        }
        set.steps.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(ShownChanges { set, conflicts, unread })
    }

    fn add(
        &self,
        workspace: &Workspace,
        change: &Change,
        upper: &Arc<OwnedFd>,
        list: &mut Vec<FileChange>,
        set: &mut ChangeSet,
    ) -> Result<()> {
        let steps = steps(workspace, change, upper)?;
        let Some(PathChange { before, after, .. }) = steps.last() else { return Ok(()) };
        check_after(&change.path, after)?;
        let path = to_workspace_path(&change.path, &shown(&change.path))
            .map_err(|_| unfit(&change.path, "its name cannot be used in a workspace"))?;
        let from = change.from.as_deref().map(|from| to_workspace_path(from, &shown(from)));
        if workspace.ignored()?.hides(&change.path, *after == Entry::Folder) {
            return Err(unfit(&change.path, "it is hidden from agents by .atelierignore"));
        }
        list.push(FileChange {
            path,
            change: change.kind,
            from: from.transpose()?,
            is_directory: change.is_folder(),
            becomes_executable: after.is_executable() && !before.is_executable(),
        });
        set.steps.extend(steps);
        Ok(())
    }

    /// Notes what is about to land. If this process is killed before [`Self::landed`], the next one
    /// takes what has landed out of the layer. What was put back instead is recognised by its
    /// content, however large it is.
    pub(crate) fn begin_landing(
        &self,
        workspace: &Workspace,
        set: &ChangeSet,
        _lock: &LayerLock,
    ) -> Result<()> {
        let mut bases = self.bases()?;
        for PathChange { path, before, .. } in &set.steps {
            let stat = stat_at(workspace.handle(), path).map_err(io_error("read", path))?;
            bases.know(path, stat.as_ref(), before);
        }
        self.write_bases(&bases)?;
        let mut paths = self.landed_paths()?;
        paths.extend(set.steps.iter().map(|step| step.path.clone()));
        self.write_landed(&paths)
    }

    /// Takes what has landed out of the layer, so that the workspace shows through again. While
    /// scripts run, the layer may not be changed from outside; then it is done later.
    pub(crate) fn landed(
        &self,
        workspace: &Workspace,
        landed: impl Iterator<Item = PathBuf>,
        lock: &LayerLock,
    ) -> Result<()> {
        let mut paths: Vec<PathBuf> = self.landed_paths()?;
        paths.extend(landed);
        self.write_landed(&paths)?;
        let mut bases = self.bases()?;
        for path in &paths {
            bases.forget(path);
        }
        self.write_bases(&bases)?;
        match self.is_mounted() {
            true => Ok(()),
            false => self.drop_landed(workspace, lock),
        }
    }

    fn landed_file(&self) -> PathBuf {
        self.folder.join("landed.json")
    }

    pub(super) fn landed_paths(&self) -> Result<Vec<PathBuf>> {
        let path = self.landed_file();
        match std::fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|error| io_error("read", &path)(error.into()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    fn write_landed(&self, paths: &[PathBuf]) -> Result<()> {
        let path = self.landed_file();
        let text =
            serde_json::to_vec(paths).map_err(|error| io_error("write", &path)(error.into()))?;
        replace_file(&path, &text, false)
    }

    /// Removes from the layer what has landed and is the same on both sides.
    pub(super) fn drop_landed(&self, workspace: &Workspace, _lock: &LayerLock) -> Result<()> {
        let mut paths = self.landed_paths()?;
        if paths.is_empty() {
            return Ok(());
        }
        let upper = self.upper()?;
        // Inner paths come first.
        paths.sort();
        paths.dedup();
        for path in paths.iter().rev() {
            let Some(stat) = stat_at(upper.as_fd(), path).map_err(io_error("read", path))? else {
                continue;
            };
            let there = stat_at(workspace.handle(), path).map_err(io_error("read", path))?;
            let same = match (super::scan::is_whiteout(&stat), &there) {
                (true, None) => true,
                // A folder directly beneath the root is emptied, but stays.
                (true, Some(there)) => {
                    is_dir(there) && is_empty(workspace.handle(), path).unwrap_or(false)
                }
                (false, None) => false,
                (false, Some(there)) if is_dir(&stat) => is_dir(there),
                (false, Some(_)) => {
                    let sides =
                        [upper.as_fd(), workspace.handle()].map(|side| Entry::at(side, path));
                    let [ours, theirs] = sides;
                    ours.map_err(io_error("read", path))?
                        == theirs.map_err(io_error("read", path))?
                }
            };
            // A folder that has more in it than what has landed stays.
            if same {
                remove(&upper, path)?;
            }
        }
        // Folders that the kernel has made for what was in them are not needed any more.
        let above: BTreeSet<&Path> =
            paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
        for dir in above.into_iter().rev().filter(|dir| !dir.as_os_str().is_empty()) {
            let stat = stat_at(upper.as_fd(), dir).map_err(io_error("read", dir))?;
            if stat.is_some_and(|stat| is_dir(&stat))
                && !is_opaque(upper.as_fd(), dir).map_err(io_error("read", dir))?
            {
                remove(&upper, dir)?;
            }
        }
        self.write_landed(&[])
    }

    /// Throws changes away. Returns how many.
    pub(crate) fn discard(
        &self,
        workspace: &Workspace,
        paths: Option<&[WorkspacePath]>,
        lock: &LayerLock,
    ) -> Result<u64> {
        if self.is_mounted() {
            return Err(Error::JobsRunning);
        }
        if paths.is_none() {
            // Whatever is in the layer, this is the way to get rid of it.
            let count = self.remove_all()?;
            self.write_landed(&[])?;
            return Ok(count);
        }
        let scan = self.scan(workspace, lock)?;
        let meant: Vec<&Change> =
            scan.changes.iter().filter(|change| is_meant(paths, &change.path)).collect();
        let count = meant.iter().filter(|change| !change.is_folder()).count() as u64;
        let upper = self.upper()?;
        for change in &meant {
            for dir in change.path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
                let stat = stat_at(upper.as_fd(), dir).map_err(io_error("read", dir))?;
                if stat.is_some_and(|stat| !is_dir(&stat)) && !is_meant(paths, dir) {
                    let why = "its folder was deleted or replaced in the layer. Discard the folder";
                    return Err(unfit(&change.path, why));
                }
            }
        }
        let mut bases = self.bases()?;
        let tops =
            paths.into_iter().flatten().map(|path| crate::workspace::relative(path).to_owned());
        let single = meant.iter().map(|change| change.path.clone());
        for path in single.chain(tops) {
            self.remove_all_at(&upper, &path)?;
            bases.forget(&path);
        }
        for change in &meant {
            if let Some(from) = &change.from {
                self.remove_all_at(&upper, from)?;
                bases.forget(from);
            }
        }
        self.write_bases(&bases)?;
        Ok(count)
    }

    /// Removes an entry of the layer with everything in it.
    fn remove_all_at(&self, upper: &OwnedFd, path: &Path) -> Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let parent = parent_of(upper.as_fd(), path).map_err(io_error("open", path))?;
        let Some((dir, name)) = parent else { return Ok(()) };
        remove_from(dir.as_fd(), name, &self.folder).map_err(io_error("remove", path)).map(drop)
    }
}

/// The steps of one change. The last one is for its own path.
pub(super) fn steps(
    workspace: &Workspace,
    change: &Change,
    upper: &Arc<OwnedFd>,
) -> Result<Vec<PathChange>> {
    let at = |path: &Path| Entry::at(workspace.handle(), path).map_err(io_error("read", path));
    let source = Source::Folder(upper.clone());
    let mut steps = Vec::new();
    if let Some(from) = &change.from {
        steps.push(PathChange::new(from.clone(), at(from)?, Entry::Absent, source.clone()));
    }
    let path = change.path.clone();
    let after = match change.kind {
        ChangeKind::Deleted => Entry::Absent,
        _ => Entry::at(upper.as_fd(), &path).map_err(io_error("read", &path))?,
    };
    steps.push(PathChange::new(path.clone(), at(&path)?, after, source));
    Ok(steps)
}

/// Refuses what must not land, whatever a person says.
pub(super) fn check_after(path: &Path, after: &Entry) -> Result<()> {
    match after {
        Entry::Special => Err(unfit(path, "devices, sockets and FIFOs do not land")),
        Entry::File { mode, .. } if mode & 0o7000 != 0 => {
            Err(unfit(path, "it has the set-user-ID, set-group-ID or sticky bit"))
        }
        _ => Ok(()),
    }
}

fn unfit(path: &Path, why: &'static str) -> Error {
    Error::Protected { path: shown(path), why }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Removes an entry of the layer, if it is no folder with something in it.
fn remove(upper: &OwnedFd, path: &Path) -> Result<()> {
    let fail = |errno: Errno| io_error("remove", path)(errno.into());
    let parent = parent_of(upper.as_fd(), path).map_err(io_error("open", path))?;
    let Some((dir, name)) = parent else { return Ok(()) };
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
                Err(errno) => Err(fail(errno)),
            }
        }
        Err(errno) => Err(fail(errno)),
    }
}
