//! Keeps links that lead out of the workspace from landing.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::door::{ChangeSet, Entry, is_in_git};
use crate::links;
use crate::workspace::Workspace;

impl ChangeSet {
    /// A link among these changes that leads out of the workspace, or into a `.git`, when all of
    /// them are made.
    pub(super) fn link_that_leaves(&self, workspace: &Workspace) -> Option<&Path> {
        let after: BTreeMap<&Path, &Entry> =
            self.steps.iter().map(|step| (step.path.as_path(), &step.after)).collect();
        let leaves = |path: &Path, entry: &Entry| match entry {
            Entry::Link { target } => {
                leaves_by_name(path, Path::new(target)) || leads_out(workspace, &after, path)
            }
            _ => false,
        };
        let found = self.steps.iter().find(|step| leaves(&step.path, &step.after));
        found.map(|step| step.path.as_path())
    }
}

/// Whether a link at `path` could lead out of the workspace, whatever other links there are, now or
/// later. `..` after a name could, because the name can be a link. An absolute link does, because on
/// another machine it means something else.
fn leaves_by_name(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    let mut named = false;
    for part in target.components() {
        match part {
            Component::Normal(name) if is_in_git(Path::new(name)) => return true,
            Component::Normal(_) => named = true,
            Component::CurDir => {}
            Component::ParentDir if !named && depth > 0 => depth -= 1,
            _ => return true,
        }
    }
    false
}

/// Whether what the link at `path` leads to is outside of the workspace, in the tree as it will be:
/// a link that a person has made can lead there.
fn leads_out(workspace: &Workspace, after: &BTreeMap<&Path, &Entry>, path: &Path) -> bool {
    let read_link = |parent: &Path, name: &std::ffi::OsStr| match after.get(&*parent.join(name)) {
        Some(Entry::Link { target }) => Ok(Some(PathBuf::from(target))),
        Some(_) => Ok(None),
        None => match links::read_link(workspace.handle(), parent, name) {
            // The folder is new, or takes the place of a file or a link.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            read => read,
        },
    };
    match links::resolve_with(workspace.root(), path, read_link) {
        Ok(real) => is_in_git(&real),
        // Links in a circle lead nowhere.
        Err(errno) => errno != Errno::LOOP,
    }
}
