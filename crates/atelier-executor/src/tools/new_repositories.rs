//! Finds the repositories that a command has left in the workspace, wherever they are and whatever
//! permissions their folders have.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Tools;
use super::path_restrictions::FoundRepository;
use crate::beneath;
use crate::repositories::{GIT_DIR, is_listed_repository};
use crate::walk::{Kind, Names};

/// The repositories and hidden paths before a command ran.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) repositories: BTreeSet<PathBuf>,
    /// Paths that the command could not change.
    pub(super) hidden: BTreeSet<PathBuf>,
}

/// The repositories that a command left behind.
#[derive(Default)]
pub(super) struct Left {
    /// Inner folders come first, because setting an outer one aside changes the paths below it.
    pub(super) repositories: Vec<FoundRepository>,
    /// Folders that cannot be looked through although the command may have put something there.
    pub(super) unread: Vec<PathBuf>,
    /// Folders that were closed to everybody, with their permissions.
    opened: Vec<(PathBuf, Mode)>,
}

impl Tools<'_> {
    /// Examines the whole workspace. There is no limit: a command cannot make more than this finds
    /// in less time, and a limit would be a way past the check.
    pub(super) fn new_repositories(&self, known: &Known) -> Left {
        let mut left = Left::default();
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            let Some(mut names) = self.list_anyway(&dir, &mut left) else { continue };
            let is_named = dir.file_name().is_some_and(is_git);
            if !is_named && !known.repositories.contains(&dir) && is_listed_repository(&names) {
                left.repositories.push(FoundRepository { path: dir.clone(), is_dir: true });
            }
            let listed = names.each(|name, kind| {
                let path = dir.join(name);
                if known.hidden.contains(&path) || known.repositories.contains(&path) {
                    return Ok(());
                }
                let is_dir = kind == Kind::Directory;
                if is_git(name) {
                    left.repositories.push(FoundRepository { path: path.clone(), is_dir });
                }
                if is_dir {
                    todo.push(path);
                }
                Ok(())
            });
            if listed.is_err() {
                left.unread.push(dir);
            }
        }
        left.repositories.sort_by_key(|found| std::cmp::Reverse(found.path.components().count()));
        left
    }

    /// Gives the folders that were opened their own permissions again.
    pub(super) fn close_again(&self, left: &Left) {
        for (path, mode) in left.opened.iter().rev() {
            // A folder that was set aside meanwhile is at another path, and keeps its new
            // permissions.
            if let Ok(folder) = beneath::open(self.workspace.handle(), path, beneath::DIRECTORY) {
                let _stays_open = beneath::change_mode(&folder, *mode);
            }
        }
    }

    /// Opens a folder to list it. A folder that its owner cannot list, but can enter, holds a
    /// repository as well as any other, so it is made readable for as long as the check takes.
    fn list_anyway(&self, dir: &Path, left: &mut Left) -> Option<Names> {
        let folder = match beneath::open(self.workspace.handle(), dir, beneath::DIRECTORY) {
            Ok(folder) => folder,
            // It was removed or replaced meanwhile, by somebody else.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return None,
            // Git does not work in it until somebody moves the folder or changes its permissions.
            Err(_) => {
                left.unread.push(dir.to_owned());
                return None;
            }
        };
        if let Ok(Some(mode)) = make_accessible(&folder, Mode::RUSR | Mode::XUSR) {
            left.opened.push((dir.to_owned(), mode));
        }
        match rustix::fs::openat(&folder, ".", beneath::LISTING | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Some(Names::from_fd(fd)),
            // A command has the same rights as this process, so it cannot have changed a folder
            // that this process cannot change.
            Err(_) if !can_change(folder.as_fd()) => None,
            Err(_) => {
                left.unread.push(dir.to_owned());
                None
            }
        }
    }
}

fn is_git(name: &std::ffi::OsStr) -> bool {
    name.eq_ignore_ascii_case(GIT_DIR)
}

fn can_change(folder: BorrowedFd<'_>) -> bool {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(folder, ".", wanted, AtFlags::empty()).is_ok()
}

/// Gives the owner of a folder these permissions, if we are the owner. Returns the permissions that
/// it had, if they changed.
pub(super) fn make_accessible(folder: &OwnedFd, wanted: Mode) -> Result<Option<Mode>, Errno> {
    let stat = rustix::fs::fstat(folder)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.contains(wanted) || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    beneath::change_mode(folder, mode | Mode::RWXU)?;
    Ok(Some(mode))
}
