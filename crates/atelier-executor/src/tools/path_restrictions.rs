//! What a command must not see or change: files that `.atelierignore` names, `.atelierignore`
//! itself, the inside of repositories and, if nobody was asked, secret files.

use std::path::{Path, PathBuf};

use atelier_core::policy::call;
use atelier_core::policy::git::compares_files;

use super::Tools;
use crate::error::{Error, Result};
use crate::ignored::IGNORE_FILE;
use crate::process::configures;
use crate::walk::{Kind, Names};

/// Each path is a separate mount. A workspace with more secret files or repositories than this is
/// refused.
const MAX_RESTRICTED: usize = 4096;

/// Paths below the root. Each is as high in the tree as possible.
#[derive(Debug, Default)]
pub(super) struct PathRestrictions {
    pub(super) hidden: Vec<PathBuf>,
    /// Folders of hooks. They are hidden from git, because some of its commands run hooks before
    /// they have read the setting that disables them.
    pub(super) hooks: Vec<PathBuf>,
    pub(super) read_only: Vec<PathBuf>,
}

/// A `.git`: a folder, or a file that points to one.
struct Repository {
    path: PathBuf,
    is_dir: bool,
}

/// What to look for.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    secrets: bool,
    repositories: bool,
    /// git needs the files inside repositories, whatever their names are.
    into_repositories: bool,
}

impl Tools<'_> {
    /// What a command may see and change in the workspace. `looks` is set if nobody was asked about
    /// the command.
    ///
    /// Files in `.git` can start programs, also with the user's own git. So only git changes them,
    /// and git changes configuration only through commands meant for it.
    pub(super) fn path_restrictions(
        &self,
        command: &call::Command,
        looks: bool,
    ) -> Result<PathRestrictions> {
        let git = command.command == "git" && !compares_files(&command.args);
        let wanted =
            Wanted { secrets: looks, repositories: !looks || git, into_repositories: !git };
        let (hidden, repositories) = self.find(wanted)?;
        let (mut hooks, mut read_only) = (Vec::new(), Vec::new());
        if !looks {
            read_only.push(PathBuf::from(IGNORE_FILE));
        }
        for Repository { path, is_dir } in repositories {
            if !git {
                read_only.push(path);
                continue;
            }
            // In a worktree or a submodule, `.git` is a file that names the repository's folder.
            if is_dir {
                hooks.extend(self.hooks_in(&path)?);
                if !looks && !configures(&command.args) {
                    read_only.push(path.join("config"));
                }
            }
        }
        Ok(PathRestrictions { hidden, hooks, read_only })
    }

    /// The hooks folders of a repository and of its submodules, whatever the submodules are called.
    fn hooks_in(&self, repository: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut todo = vec![repository.to_owned()];
        while let Some(dir) = todo.pop() {
            // The folder is gone or not readable, so git cannot read it either.
            let Ok(mut names) = Names::open(self.workspace.handle(), &dir) else { continue };
            let (mut below, mut is_repository) = (Vec::new(), dir == repository);
            let listed = names.each(|name, kind| {
                is_repository |= name == "HEAD";
                if kind == Kind::Directory {
                    below.push(name.to_owned());
                }
                Ok(())
            });
            for name in below {
                match is_repository {
                    true if name == "hooks" => found.push(dir.join(name)),
                    true if name == "modules" => todo.push(dir.join(name)),
                    true => {}
                    false => todo.push(dir.join(name)),
                }
            }
            if listed.is_err() || found.len() + todo.len() > MAX_RESTRICTED {
                return Err(too_much());
            }
        }
        Ok(found)
    }

    /// Files of the working tree that must not be shown without approval.
    pub(super) fn hidden_files(&self) -> Result<Vec<PathBuf>> {
        let wanted = Wanted { secrets: true, repositories: false, into_repositories: false };
        Ok(self.find(wanted)?.0)
    }

    /// Finds the files to hide, and the repositories.
    fn find(&self, wanted: Wanted) -> Result<(Vec<PathBuf>, Vec<Repository>)> {
        let ws = self.workspace;
        let ignored = ws.ignored()?;
        let (mut hidden, mut repositories) = (Vec::new(), Vec::new());
        if ignored.is_empty() && !wanted.secrets && !wanted.repositories {
            return Ok((hidden, repositories));
        }
        let mut left = ws.options().max_entries;
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            // The folder is gone or not readable, so the command cannot read it either.
            let Ok(mut names) = Names::open(ws.handle(), &dir) else { continue };
            let in_repository = dir.components().any(|part| part.as_os_str() == ".git");
            let read = names.each(|name, kind| {
                left = left.checked_sub(1).ok_or(rustix::io::Errno::OVERFLOW)?;
                let path = dir.join(name);
                let is_dir = kind == Kind::Directory;
                let secret = wanted.secrets && kind != Kind::Symlink && self.is_secret(&path);
                if ignored.hides_entry(&path, is_dir) || secret {
                    hidden.push(path);
                    return Ok(());
                }
                let repository = name == ".git";
                if repository && wanted.repositories {
                    repositories.push(Repository { path: path.clone(), is_dir });
                }
                // Installed packages and git's own objects contain no secret files of this project.
                let passed_by = (repository
                    && !(wanted.into_repositories && (wanted.secrets || !ignored.is_empty())))
                    || (in_repository && name == "objects")
                    || (ignored.is_empty() && name == "node_modules");
                if is_dir && !passed_by {
                    todo.push(path);
                }
                Ok(())
            });
            if read.is_err() || hidden.len() + repositories.len() > MAX_RESTRICTED {
                return Err(too_much());
            }
        }
        Ok((hidden, repositories))
    }
}

fn too_much() -> Error {
    let source = std::io::Error::other("there are too many files to examine or to hide");
    Error::Sandbox { stage: "hide files", source }
}
