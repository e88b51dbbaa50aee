//! What a command must not see or change: what `.atelierignore` names, that list itself, the inside of repositories and,
//! when nobody was asked, files of secrets.

use std::path::{Path, PathBuf};

use atelier_core::policy::call;
use atelier_core::policy::git::compares_files;

use super::Tools;
use crate::error::{Error, Result};
use crate::ignored::IGNORE_FILE;
use crate::process::configures;
use crate::walk::{Kind, Names};

/// Each is a mount of its own; a workspace with more secrets or repositories than this is not what it seems.
const MAX_VEILED: usize = 4096;

/// Paths below the root, each as high in the tree as it can be.
#[derive(Debug, Default)]
pub(super) struct Veil {
    pub(super) hidden: Vec<PathBuf>,
    /// Of repositories, from git: some of its commands run them before they have read that they are not to.
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
    /// git needs what is in repositories, whatever it is called there.
    into_repositories: bool,
}

impl Tools<'_> {
    /// What a command gets to see and to change of the workspace. `looks` where nobody was asked about it.
    ///
    /// What is in `.git` starts programs, of the person's own git as well: only git itself changes it, and of git only
    /// what is meant to changes configuration.
    pub(super) fn veil(&self, command: &call::Command, looks: bool) -> Result<Veil> {
        let git = command.command == "git" && !compares_files(&command.args);
        let wanted = Wanted { secrets: looks, repositories: !looks || git, into_repositories: !git };
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
            // Of a worktree or a submodule it is a file that says where the repository is.
            if is_dir {
                hooks.extend(self.hooks_in(&path)?);
                if !looks && !configures(&command.args) {
                    read_only.push(path.join("config"));
                }
            }
        }
        Ok(Veil { hidden, hooks, read_only })
    }

    /// The folders of hooks of a repository and of the submodules that it keeps, whatever those are called.
    fn hooks_in(&self, repository: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut todo = vec![repository.to_owned()];
        while let Some(dir) = todo.pop() {
            // Gone or closed to us: then it is closed to git, too.
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
            if listed.is_err() || found.len() + todo.len() > MAX_VEILED {
                return Err(too_much());
            }
        }
        Ok(found)
    }

    /// Files of the working tree that nobody may see unasked.
    pub(super) fn veiled(&self) -> Result<Vec<PathBuf>> {
        let wanted = Wanted { secrets: true, repositories: false, into_repositories: false };
        Ok(self.find(wanted)?.0)
    }

    /// What to hide, and where repositories are.
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
            // Gone or closed to us: then it is closed to the command, too.
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
                // Other people's packages and git's own objects hold no secrets of this project by name.
                let passed_by = (repository
                    && !(wanted.into_repositories && (wanted.secrets || !ignored.is_empty())))
                    || (in_repository && name == "objects")
                    || (ignored.is_empty() && name == "node_modules");
                if is_dir && !passed_by {
                    todo.push(path);
                }
                Ok(())
            });
            if read.is_err() || hidden.len() + repositories.len() > MAX_VEILED {
                return Err(too_much());
            }
        }
        Ok((hidden, repositories))
    }
}

fn too_much() -> Error {
    let source = std::io::Error::other("more files to look at or to hide than this can be done for");
    Error::Sandbox { stage: "hide files", source }
}
