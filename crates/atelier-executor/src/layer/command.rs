//! Approved commands, each of which runs in a fresh layer that lands whole when the command ends.
//!
//! The person has approved the command, so everything that it did lands, what git ignores included,
//! as if it had run in the folder. The way through the door is what makes it all or nothing, and
//! what lets it be undone. A file that somebody else has changed while the command ran stays as it
//! is, unless git ignores it: then it is a product, such as a build, and the last one wins.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atelier_core::policy::layered::ChangeKind;
use rustix::fs::{AtFlags, Mode};

use super::bases::Moment;
use super::landing::check_after;
use super::scan::{Change, Rest, is_dir, scan_everything};
use super::{Layer, Layers};
use crate::beneath;
use crate::door::{
    ChangeSet, Entry, Held, PathChange, Record, Source, io_error, is_in_git, mode_of, modified,
    parent_of, private_folder, stat_at,
};
use crate::error::{Error, Result};
use crate::process::{CommandLayer, Temporary};
use crate::workspace::Workspace;

/// How often a landing is tried again when somebody changes a file in its last moment.
const TRIES: usize = 3;

/// The layer of one command. It is gone when this value is dropped.
pub(crate) struct FreshLayer<'a> {
    layers: &'a Layers,
    folder: Temporary,
    /// When the command began.
    since: Moment,
}

/// What becomes of one change.
enum Step {
    Lands(PathChange),
    /// The folder is like that already.
    Done,
    /// It does not land, and why.
    Stays(&'static str),
}

/// What came of a landing.
#[derive(Debug, Default)]
pub(crate) struct Landed {
    /// By what the changes can be undone; `None` if nothing has changed.
    pub(crate) record: Option<Record>,
    /// What did not land, and why.
    pub(crate) left: Vec<(PathBuf, &'static str)>,
}

impl Layers {
    /// Makes a layer for one command.
    pub(crate) fn fresh(&self) -> Result<FreshLayer<'_>> {
        let folder = Temporary::new(&self.commands)?;
        for part in ["upper", "work"] {
            private_folder(&folder.path().join(part))?;
        }
        let layer = Layer { layers: self, folder: folder.path().to_owned() };
        // What was written before, by whomever, must be older than the beginning, and the clock of
        // a file system stands still for some milliseconds.
        let before = layer.moment()?;
        let mut since = layer.moment()?;
        while since == before {
            since = layer.moment()?;
        }
        Ok(FreshLayer { layers: self, folder, since })
    }
}

impl FreshLayer<'_> {
    pub(crate) fn places(&self) -> CommandLayer {
        let at = |part: &str| self.folder.path().join(part);
        CommandLayer { upper: at("upper"), work: at("work") }
    }

    /// Puts everything that the command did into the folder, all or nothing. The command has ended.
    pub(crate) fn land(
        &self,
        workspace: &Workspace,
        held: &Held<'_>,
        record: &Record,
    ) -> Result<Landed> {
        let layer = Layer { layers: self.layers, folder: self.folder.path().to_owned() };
        let upper = Arc::new(layer.upper()?);
        let (mut tries, mut modes) = (0, None);
        loop {
            tries += 1;
            let looked = scan_everything(workspace, upper.as_fd(), self.layers.options.max_files);
            let (changes, mut rest) = looked.map_err(io_error("look at", self.folder.path()))?;
            // Looking has opened the closed folders of the layer.
            rest.modes = modes.get_or_insert(rest.modes).clone();
            let (set, left) = self.set(workspace, &changes, &upper)?;
            if set.steps.is_empty() {
                self.follow(workspace, &rest, &left);
                return Ok(Landed { record: None, left });
            }
            open_folders(workspace, &rest)?;
            match held.apply(&set, record.clone()) {
                Ok(record) => {
                    self.follow(workspace, &rest, &left);
                    return Ok(Landed { record: Some(record), left });
                }
                // Everything was put back. What has changed is left out the next time.
                Err(Error::Conflict { .. }) if tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn set(
        &self,
        workspace: &Workspace,
        changes: &[Change],
        upper: &Arc<OwnedFd>,
    ) -> Result<(ChangeSet, Vec<(PathBuf, &'static str)>)> {
        // Files that git ignores are often large and can be built again, so the before-images of
        // those files must not use up the room for all other before-images.
        let mut room = self.layers.options.undo_bytes / 8;
        let mut set = ChangeSet { is_of_command: true, ..ChangeSet::default() };
        let mut left: Vec<(PathBuf, &'static str)> = Vec::new();
        for change in changes {
            match self.step(workspace, change, upper)? {
                Step::Lands(mut step) => {
                    if let (true, Entry::File { size, .. }) = (step.is_ignored, &step.before) {
                        step.is_kept = *size <= room;
                        room = room.saturating_sub(*size);
                    }
                    set.steps.push(step);
                }
                Step::Done => {}
                Step::Stays(why) => left.push((change.path.clone(), why)),
            }
        }
        // Nothing can lie below what stays a file. What is left below a folder keeps the folder.
        let stays: BTreeSet<&Path> = left.iter().map(|(path, _)| path.as_path()).collect();
        let fits = |step: &PathChange| {
            let is_below = step.path.ancestors().skip(1).any(|above| stays.contains(above));
            let holds = step.after != Entry::Folder
                && step.before == Entry::Folder
                && step.after != Entry::Absent
                && stays.iter().any(|path| path.starts_with(&step.path));
            !is_below && !holds
        };
        let mut more: Vec<(PathBuf, &'static str)> = Vec::new();
        set.steps.retain(|step| {
            let fits = fits(step);
            if !fits {
                more.push((step.path.clone(), "it depends on what did not change"));
            }
            fits
        });
        left.extend(more);
        Ok((set, left))
    }

    /// What becomes of a change.
    fn step(&self, workspace: &Workspace, change: &Change, upper: &Arc<OwnedFd>) -> Result<Step> {
        let path = &change.path;
        let read = io_error("read", path);
        if path.to_str().is_none() {
            return Ok(Step::Stays("its name is not UTF-8"));
        }
        let after = match change.kind {
            ChangeKind::Deleted => Entry::Absent,
            _ => match Entry::at(upper.as_fd(), path) {
                Ok(after) => after,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Ok(Step::Stays("the command has made it unreadable"));
                }
                Err(error) => return Err(read(error)),
            },
        };
        if let Err(Error::Protected { why, .. }) = check_after(path, &after) {
            return Ok(Step::Stays(why));
        }
        let before = Entry::at(workspace.handle(), path).map_err(io_error("read", path))?;
        if before == after {
            return Ok(Step::Done);
        }
        // Looked at last: whatever changes from here on, the door notices.
        let is_product = change.is_ignored && after != Entry::Absent;
        if self.was_changed(workspace, path)? && !is_product {
            return Ok(Step::Stays("it was changed in the folder while the command ran"));
        }
        if before == Entry::Special {
            return Ok(Step::Stays("devices, sockets and FIFOs stay where they are"));
        }
        if is_in_git(path) && before != Entry::Absent {
            return Ok(Step::Stays("a repository was made there while the command ran"));
        }
        let source = Source::Folder(upper.clone());
        let step = PathChange::new(path.clone(), before, after, source);
        Ok(Step::Lands(PathChange { is_ignored: change.is_ignored, ..step }))
    }

    /// Whether somebody has changed the file since the command began.
    fn was_changed(&self, workspace: &Workspace, path: &Path) -> Result<bool> {
        let there = stat_at(workspace.handle(), path).map_err(io_error("read", path))?;
        Ok(there.is_some_and(|stat| !is_dir(&stat) && self.since.is_before(&stat)))
    }

    /// Gives folders the permissions and files the times that the command gave them. Everything has
    /// landed by then, so a failure is only written down.
    fn follow(&self, workspace: &Workspace, rest: &Rest, left: &[(PathBuf, &'static str)]) {
        if let Err(error) = self.try_to_follow(workspace, rest, left) {
            tracing::warn!(%error, "cannot give what a command has made its times and permissions");
        }
    }

    fn try_to_follow(
        &self,
        workspace: &Workspace,
        rest: &Rest,
        left: &[(PathBuf, &'static str)],
    ) -> Result<()> {
        for (path, stat) in &rest.touched {
            if self.was_changed(workspace, path)? {
                continue;
            }
            let parent = parent_of(workspace.handle(), path);
            let Ok(Some((parent, name))) = parent else { continue };
            let times = modified(stat);
            let done = rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW);
            done.map_err(|errno| io_error("touch", path)(errno.into()))?;
        }
        // Inner folders first, because an outer one may be closed.
        for (path, mode) in rest.modes.iter().rev() {
            let there = stat_at(workspace.handle(), path).map_err(io_error("read", path))?;
            let is_left = left.iter().any(|(left, _)| left == path);
            if let Some(there) = there.filter(is_dir).filter(|_| !is_left) {
                // The bits that belong to the folder's place stay.
                let wanted = (mode & 0o777) | (mode_of(&there) & 0o7000);
                if wanted != mode_of(&there) {
                    change_mode(workspace, path, wanted)?;
                }
            }
        }
        Ok(())
    }
}

/// Gives the owner those rights on folders of the workspace that the command has given.
fn open_folders(workspace: &Workspace, rest: &Rest) -> Result<()> {
    for (path, mode) in &rest.modes {
        let there = stat_at(workspace.handle(), path).map_err(io_error("read", path))?;
        if let Some(there) = there.filter(is_dir) {
            let wanted = mode_of(&there) | (mode & 0o700);
            if wanted != mode_of(&there) {
                change_mode(workspace, path, wanted)?;
            }
        }
    }
    Ok(())
}

fn change_mode(workspace: &Workspace, path: &Path, mode: u32) -> Result<()> {
    let fail = |errno: rustix::io::Errno| io_error("change", path)(errno.into());
    let folder = beneath::open(workspace.handle(), path, beneath::DIRECTORY).map_err(fail)?;
    beneath::change_mode(&folder, Mode::from_raw_mode(mode)).map_err(fail)
}
