//! Finds what a command must not see or change: files that `.atelierignore` names, `.atelierignore`
//! itself, the inside of repositories and, if nobody was asked, secret files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use atelier_core::policy::call;
use atelier_core::policy::git::compares_files;

use super::Tools;
use super::other_names::leads_to_secrets;
use crate::beneath;
use crate::error::{Error, Result};
use crate::ignored::{IGNORE_FILE, Ignored};
use crate::layer::Protected;
use crate::process::{FolderLook, FolderStamp, Runner, Seal, SecretRules, configures};
use crate::repositories::{GIT_DIR, repository_listed, seals};
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
    /// Paths whose parent folders must not be moved.
    pub(super) in_place: Vec<PathBuf>,
    /// Whether the hidden paths include objects and other data that only git reads.
    pub(super) sealed: bool,
    /// The repositories of the workspace, if they were looked for.
    pub(super) repositories: BTreeSet<PathBuf>,
}

/// A `.git`, or a folder that is a repository under another name.
pub(super) struct FoundRepository {
    pub(super) path: PathBuf,
    /// The `.git` of a worktree or a submodule is a file that says where the repository is.
    pub(super) is_dir: bool,
}

/// The paths to hide, the repositories, and the folders that were looked into.
type Found = (Vec<PathBuf>, Vec<FoundRepository>, Vec<PathBuf>);

/// What to search for.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    secrets: bool,
    repositories: bool,
    /// git needs the files inside repositories, whatever their names are.
    into_repositories: bool,
    /// Look into the folders of other people's packages.
    packages: bool,
}

impl Tools<'_> {
    /// The parts of the workspace that a command may see and change. `looks` means that nobody was
    /// asked about the command, `hides_secrets` that nobody was asked about secret files, `outside`
    /// that git works without a repository.
    ///
    /// Files in `.git` start programs, also of the person's own git. So only git changes them, and
    /// only git commands that are meant to change configuration change it.
    pub(super) fn path_restrictions(
        &self,
        command: &call::Command,
        looks: bool,
        hides_secrets: bool,
        outside: bool,
    ) -> Result<PathRestrictions> {
        let git = command.command == "git" && !outside && !compares_files(&command.args);
        let wanted = Wanted {
            secrets: hides_secrets,
            repositories: !looks || git,
            into_repositories: !git,
            packages: !looks || outside || reads_folders(command),
        };
        let (mut hidden, repositories, _) = self.find(wanted)?;
        let (mut hooks, mut read_only) = (Vec::new(), Vec::new());
        if !looks {
            read_only.push(PathBuf::from(IGNORE_FILE));
        }
        let mut sealed = !git && looks;
        if !git && !looks {
            sealed = self.hide_objects(&repositories, &mut hidden)?;
        }
        let (mut in_place, mut known) = (Vec::new(), BTreeSet::new());
        // The workspace itself is never covered by a mount, because commands work in it.
        if self.workspace.is_repository(Path::new("")) {
            known.insert(PathBuf::new());
        }
        for FoundRepository { path, is_dir } in repositories {
            known.insert(path.clone());
            if !git {
                // Copied back under the old name, the repository would have another configuration.
                in_place.push(path.clone());
                read_only.push(path);
                continue;
            }
            if is_dir {
                hooks.extend(self.hooks_in(&path)?);
                if !looks && !configures(&command.args) {
                    read_only.push(path.join("config"));
                }
            }
        }
        Ok(PathRestrictions { hidden, hooks, read_only, in_place, sealed, repositories: known })
    }

    /// The paths that scripts in a layer must not see, and whether they include the data of
    /// repositories: files that `.atelierignore` names, secret files and, if such files are in a
    /// history, the objects of the repositories.
    pub(super) fn hidden_from_scripts(&self) -> Result<(Protected, bool)> {
        let since = SystemTime::now();
        let wanted =
            Wanted { secrets: true, repositories: true, into_repositories: false, packages: true };
        let (mut hidden, repositories, folders) = match self.runner {
            None => self.find(wanted)?,
            Some(runner) => {
                let rules = SecretRules {
                    ignored: self.workspace.ignored()?,
                    secrets: self.policy.guarded_globs(),
                };
                runner.know_folders_by(rules);
                self.find_with(wanted, |dir, ignored| {
                    self.look_again(runner, dir, wanted, ignored)
                })?
            }
        };
        let sealed = self.hide_objects(&repositories, &mut hidden)?;
        let hides = self.hides_new()?;
        Ok((Protected { hidden, folders, since, hides }, sealed))
    }

    /// Adds the objects of repositories that must be hidden. Returns whether all their objects are
    /// hidden.
    fn hide_objects(
        &self,
        repositories: &[FoundRepository],
        hidden: &mut Vec<PathBuf>,
    ) -> Result<bool> {
        let seal = self.seal(repositories);
        let sealed = seal == Seal::Everything;
        let found = match seal {
            Seal::Files(files) => files,
            Seal::Everything => self.sealed_everywhere(repositories)?,
        };
        // Objects may lie elsewhere, behind a link.
        hidden.extend(self.link_targets(&found));
        hidden.extend(found);
        outermost(hidden);
        Ok(sealed)
    }

    /// The files in a repository that only git reads.
    pub(super) fn sealed_in(&self, repository: &Path) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        // If the folder is gone or closed to us, it is closed to the command, too.
        let Ok(mut names) = Names::open(self.workspace.handle(), repository) else {
            return Ok(found);
        };
        let listed = names.each(|name, _| {
            found.extend(seals(Path::new(name)).then(|| repository.join(name)));
            Ok(())
        });
        listed.map(|()| found).map_err(|_| too_much())
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

    /// Files of the working tree that need approval to be read.
    pub(super) fn hidden_files(&self) -> Result<Vec<PathBuf>> {
        let wanted = Wanted {
            secrets: true,
            repositories: false,
            into_repositories: false,
            packages: false,
        };
        Ok(self.find(wanted)?.0)
    }

    /// Finds the paths to hide, and the repositories.
    fn find(&self, wanted: Wanted) -> Result<Found> {
        self.find_with(wanted, |dir, ignored| self.look_into(dir, wanted, ignored))
    }

    fn find_with(
        &self,
        wanted: Wanted,
        mut look_into: impl FnMut(&Path, &Ignored) -> Result<Option<Arc<FolderLook>>>,
    ) -> Result<Found> {
        let ws = self.workspace;
        let ignored = ws.ignored()?;
        let (mut hidden, mut links, mut repositories) = (Vec::new(), Vec::new(), Vec::new());
        if ignored.is_empty() && !wanted.secrets && !wanted.repositories {
            return Ok((hidden, repositories, Vec::new()));
        }
        let mut left = ws.options().max_entries;
        let mut folders = Vec::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            // The folder is gone or not readable, so the command cannot read it either.
            let Some(look) = look_into(&dir, &ignored)? else { continue };
            left = left.checked_sub(look.entries).ok_or_else(too_much)?;
            if look.is_bare {
                repositories.push(FoundRepository { path: dir.clone(), is_dir: true });
            }
            hidden.extend(look.hidden.iter().map(|name| dir.join(name)));
            links.extend(look.links.iter().map(|name| dir.join(name)));
            repositories.extend(
                look.repositories.iter().map(|(name, is_dir)| FoundRepository {
                    path: dir.join(name),
                    is_dir: *is_dir,
                }),
            );
            todo.extend(look.below.iter().map(|name| dir.join(name)));
            folders.push(dir);
            if hidden.len() + links.len() + repositories.len() > MAX_RESTRICTED {
                return Err(too_much());
            }
        }
        hidden.extend(self.link_targets(&links));
        if wanted.secrets {
            hidden.extend(self.other_names(&hidden)?);
        }
        outermost(&mut hidden);
        Ok((hidden, repositories, folders))
    }

    /// Looks at the entries of one folder. `None` if it cannot be opened.
    fn look_into(
        &self,
        dir: &Path,
        wanted: Wanted,
        ignored: &Ignored,
    ) -> Result<Option<Arc<FolderLook>>> {
        let enters = wanted.into_repositories && (wanted.secrets || !ignored.is_empty());
        let Ok(mut names) = Names::open(self.workspace.handle(), dir) else { return Ok(None) };
        let repository = repository_listed(dir, &names);
        // A repository with another name than `.git` is recognised by its entries.
        let is_bare = repository.as_ref().is_some_and(|inside| inside.as_os_str().is_empty())
            && !dir.ends_with(GIT_DIR);
        let mut look = FolderLook {
            is_bare: is_bare && wanted.repositories && !dir.as_os_str().is_empty(),
            ..FolderLook::default()
        };
        let read = names.each(|name, kind| {
            look.entries += 1;
            let path = dir.join(name);
            let is_dir = kind == Kind::Directory;
            let sealed = repository.as_ref().is_some_and(|inside| seals(&inside.join(name)));
            if kind == Kind::Symlink {
                let secret = wanted.secrets
                    && (self.is_secret(&path) || leads_to_secrets(self.policy, &path));
                if secret || ignored.hides_entry(&path, true) {
                    look.links.push(name.to_owned());
                }
            }
            let secret = wanted.secrets
                && kind != Kind::Symlink
                && ((sealed && wanted.into_repositories) || self.is_secret(&path));
            if ignored.hides_entry(&path, is_dir) || secret {
                look.hidden.push(name.to_owned());
                return Ok(());
            }
            let is_git = name.eq_ignore_ascii_case(GIT_DIR);
            if is_git && wanted.repositories {
                look.repositories.push((name.to_owned(), is_dir));
            }
            // Git's own objects hold nothing by name, and other people's packages no secrets of
            // this project. However, a repository can be put among the objects of one that is not called `.git`.
            let passed_by = (sealed && !(is_bare && wanted.repositories))
                || (is_git && !enters)
                || (name == "node_modules" && !wanted.packages && ignored.is_empty());
            if is_dir && !passed_by {
                look.below.push(name.to_owned());
            }
            Ok(())
        });
        read.map_err(|_| too_much())?;
        Ok(Some(Arc::new(look)))
    }

    /// Looks into a folder before a script runs. Scripts run often, so a folder that has not changed
    /// since the last look by the same rules is not read again.
    fn look_again(
        &self,
        runner: &Runner,
        dir: &Path,
        wanted: Wanted,
        ignored: &Ignored,
    ) -> Result<Option<Arc<FolderLook>>> {
        let handle = beneath::open(self.workspace.handle(), dir, beneath::DIRECTORY);
        let Ok(stat) = handle.and_then(rustix::fs::fstat) else { return Ok(None) };
        let stamp = FolderStamp::of(&stat);
        if let Some(known) = runner.known_folder(dir, stamp) {
            return Ok(Some(known));
        }
        let look = self.look_into(dir, wanted, ignored)?;
        if let Some(look) = look.as_ref().filter(|_| stamp.is_settled()) {
            runner.remember_folder(dir, stamp, look.clone());
        }
        Ok(look)
    }
}

/// Removes paths that lie in a folder that is hidden as a whole.
pub(super) fn outermost(hidden: &mut Vec<PathBuf>) {
    let all: BTreeSet<PathBuf> = hidden.drain(..).collect();
    let is_below = |path: &Path| path.ancestors().skip(1).any(|above| all.contains(above));
    hidden.extend(all.iter().filter(|path| !is_below(path)).cloned());
}

/// Whether the program reads files in folders without naming each file.
fn reads_folders(command: &call::Command) -> bool {
    matches!(command.command.as_str(), "grep" | "egrep" | "fgrep" | "rg" | "diff")
        || (command.command == "git" && compares_files(&command.args))
}

/// Whether the program packs whole folders into one file. Inside that file, names protect nothing.
/// The rules deny every other program of this kind.
pub(super) fn packs_folders(command: &call::Command) -> bool {
    matches!(command.command.as_str(), "tar" | "zip")
}

pub(super) fn too_much() -> Error {
    let source = std::io::Error::other("there are too many files to examine or to hide");
    Error::Sandbox { stage: "hide files", source }
}
