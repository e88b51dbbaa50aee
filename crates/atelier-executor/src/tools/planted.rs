//! Repositories that a command has made or copied into the workspace. A person's own git reads
//! their configuration later, outside of any sandbox, so one that would run something does not
//! stay.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use atelier_core::policy::call;
use atelier_core::policy::git::NewRepository;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Tools;
use super::new_repositories::{Known, make_accessible};
use super::path_restrictions::FoundRepository;
use crate::cancel::Cancel;
use crate::process::Runner;
use crate::repositories::GIT_DIR;
use crate::walk::{Kind, Names};
use crate::workspace::to_workspace_path;
use crate::write::rename_if_absent;
use crate::{beneath, links};

/// The longest file that says where a repository is.
const LONGEST_POINTER: u64 = 8 << 10;

/// How many names are tried for a repository that is set aside.
const MAX_NAMES: usize = 100;

/// How many new repositories of one command are examined. Each costs a question to git. More are set
/// aside unexamined.
const MAX_EXAMINED: usize = 1000;

/// How many of them are described one by one.
const MAX_DESCRIBED: usize = 20;

const SET_ASIDE: &str = "set-aside";

impl Tools<'_> {
    /// Sets aside every repository that was not there before and could run something. Returns what
    /// to say about them.
    pub(super) fn set_planted_aside(
        &self,
        runner: &Runner,
        command: &call::Command,
        known: &Known,
    ) -> Vec<String> {
        let left = self.new_repositories(known);
        let is_made_by_git = command.command == "git";
        let mut descriptions = Vec::new();
        for (at, new) in left.repositories.iter().enumerate() {
            let fault = match at < MAX_EXAMINED {
                true => self.examine(runner, new, is_made_by_git, known).fault(),
                false => Some("there are too many to examine".to_owned()),
            };
            if let Some(fault) = fault {
                let path = shown(&new.path);
                let about = format!("{path} is a new repository, and {fault}.");
                descriptions.push(match self.set_aside(new) {
                    Ok(place) => {
                        let place = shown(&place);
                        format!("{about} It was set aside: look at {place} before you use it.")
                    }
                    Err(errno) => {
                        let what = "remove it before you use git there";
                        format!("{about} It could not be set aside ({errno}): {what}.")
                    }
                });
            }
        }
        self.close_again(&left);
        descriptions.extend(left.unread.iter().map(|path| {
            let path = shown(path);
            format!(
                "It could not be checked what the command left in {path}: remove it, or look for \
                 repositories there before you use git in it."
            )
        }));
        if descriptions.len() > MAX_DESCRIBED {
            let more = descriptions.len() - MAX_DESCRIBED;
            descriptions.truncate(MAX_DESCRIBED);
            descriptions.push(format!("The same holds for {more} more."));
        }
        descriptions
    }

    fn examine(
        &self,
        runner: &Runner,
        new: &FoundRepository,
        is_made_by_git: bool,
        known: &Known,
    ) -> NewRepository {
        let mut found = NewRepository { is_made_by_git, ..NewRepository::default() };
        if new.is_dir {
            self.examine_folder(runner, &new.path, known, &mut found);
            return found;
        }
        let is_part_of_known = |target: &Path| {
            let is_above = |known: &PathBuf| target.starts_with(known) && target != *known;
            // The workspace itself contains everything, so it does not count as the repository
            // around another one.
            known.repositories.iter().any(|known| !known.as_os_str().is_empty() && is_above(known))
        };
        match self.pointed_to(&new.path, "gitdir:") {
            // Git made it as a worktree or a submodule of a repository that commands cannot change.
            // Another program can point to any folder that somebody once put into one.
            Some(target) if is_made_by_git && is_part_of_known(&target) => {}
            Some(target) => self.examine_folder(runner, &target, known, &mut found),
            None => found.is_elsewhere = true,
        }
        found
    }

    /// The folder that a file of a repository points to, if that is in the workspace.
    fn pointed_to(&self, file: &Path, before: &str) -> Option<PathBuf> {
        let (handle, root) = (self.workspace.handle(), self.workspace.root());
        let fd = beneath::open(handle, file, OFlags::RDONLY).ok()?;
        let mut text = String::new();
        std::fs::File::from(fd).take(LONGEST_POINTER).read_to_string(&mut text).ok()?;
        let target = Path::new(text.strip_prefix(before)?.trim());
        let target = match target.is_absolute() {
            true => target.strip_prefix(root).ok()?.to_owned(),
            false => file.parent()?.join(target),
        };
        links::resolve(handle, root, &target).ok()
    }

    /// The repository whose worktree the folder belongs to, if its `commondir` says the same as the
    /// place in which it lies.
    fn common_folder(&self, dir: &Path) -> Option<PathBuf> {
        let worktrees = dir.parent().filter(|above| above.ends_with("worktrees"))?;
        let common = self.pointed_to(&dir.join("commondir"), "")?;
        (Some(common.as_path()) == worktrees.parent()).then_some(common)
    }

    /// Looks at a repository's folder, and at those of its submodules and worktrees. Other
    /// repositories inside of it are found for themselves.
    fn examine_folder(
        &self,
        runner: &Runner,
        folder: &Path,
        known: &Known,
        found: &mut NewRepository,
    ) {
        let handle = self.workspace.handle();
        let mut todo = vec![folder.to_owned()];
        while let Some(dir) = todo.pop() {
            let Ok(mut names) = Names::open(handle, &dir) else {
                found.is_unread = true;
                return;
            };
            let listed = names.each(|name, kind| {
                let path = dir.join(name);
                match (name.to_str(), kind) {
                    (Some("commondir"), _) => match self.common_folder(&dir) {
                        // Its configuration is the one of the repository.
                        Some(common) if known.repositories.contains(&common) => {}
                        Some(common) if dir == folder => {
                            self.examine_folder(runner, &common, known, found);
                        }
                        Some(common) if common.starts_with(folder) => {}
                        _ => found.is_elsewhere = true,
                    },
                    (Some("config" | "config.worktree"), _) => match self.settings(runner, &path) {
                        Some(settings) => {
                            found.works_outside |= self.works_outside(&dir, &settings);
                            found.settings.extend(settings);
                        }
                        None => found.is_unread = true,
                    },
                    (Some("hooks"), Kind::Directory) => match self.names_in(&path) {
                        Some(hooks) => found.hooks.extend(hooks),
                        None => found.is_unread = true,
                    },
                    // A link leads to configuration that can change without notice.
                    (Some("hooks" | "info" | "modules" | "worktrees"), Kind::Symlink) => {
                        found.is_elsewhere = true;
                    }
                    (Some("rebase-apply" | "rebase-merge" | "sequencer"), _) => {
                        found.is_under_way = true;
                    }
                    (Some("info"), Kind::Directory) => {
                        found.has_attributes |= self.has_attributes(&path);
                    }
                    (Some("modules" | "worktrees"), Kind::Directory) => todo.push(path),
                    // Folders below `modules` and `worktrees` may have any name.
                    (_, Kind::Directory) if dir != folder && !is_part_of_repository(&path) => {
                        todo.push(path);
                    }
                    _ => {}
                }
                Ok(())
            });
            found.is_unread |= listed.is_err();
        }
    }

    /// Whether the settings of the repository in `dir` put its working tree outside the workspace.
    fn works_outside(&self, dir: &Path, settings: &[(String, String)]) -> bool {
        let (handle, root) = (self.workspace.handle(), self.workspace.root());
        let mut trees = settings.iter().filter(|(name, _)| name == "core.worktree");
        trees.any(|(_, tree)| {
            let tree = Path::new(tree);
            let inside = match tree.is_absolute() {
                true => tree.strip_prefix(root).ok().map(Path::to_owned),
                false => Some(dir.join(tree)),
            };
            inside.is_none_or(|tree| links::resolve(handle, root, &tree) == Err(Errno::XDEV))
        })
    }

    fn names_in(&self, dir: &Path) -> Option<Vec<String>> {
        let mut found = Vec::new();
        let mut names = Names::open(self.workspace.handle(), dir).ok()?;
        let listed = names.each(|name, _| {
            found.push(name.to_string_lossy().into_owned());
            Ok(())
        });
        listed.ok().map(|()| found)
    }

    fn has_attributes(&self, info: &Path) -> bool {
        let file = beneath::open(self.workspace.handle(), &info.join("attributes"), OFlags::PATH);
        match file {
            Ok(file) => rustix::fs::fstat(&file).map_or(true, |stat| stat.st_size > 0),
            Err(errno) => errno != Errno::NOENT,
        }
    }

    /// The settings in a file of configuration, as git reads it. `None` if it cannot be read.
    fn settings(&self, runner: &Runner, file: &Path) -> Option<Vec<(String, String)>> {
        // Git would follow a link to a file that is not looked at.
        beneath::open(self.workspace.handle(), file, OFlags::RDONLY).ok()?;
        let file = to_workspace_path(file, "").ok()?;
        let here = call::Command {
            command: "git".to_owned(),
            args: Vec::new(),
            timeout: None,
            cwd: atelier_core::path::WorkspacePath::root(),
        };
        let args = ["config", "--file", file.as_str(), "--no-includes", "--list", "-z"];
        let answer = runner.ask_git(self.workspace, &here, &args, &Cancel::new().ok()?).ok()?;
        let setting = |entry: &str| {
            let (name, value) = entry.split_once('\n').unwrap_or((entry, "true"));
            (name.to_owned(), value.to_owned())
        };
        answer.success.then(|| {
            answer.stdout.split('\0').filter(|entry| !entry.is_empty()).map(setting).collect()
        })
    }

    /// Gives a repository a name by which git does not take it for one.
    fn set_aside(&self, new: &FoundRepository) -> Result<PathBuf, Errno> {
        let name = new.path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| name.eq_ignore_ascii_case(GIT_DIR)) else {
            return self.rename_aside(&new.path, "HEAD");
        };
        let parent = new.path.parent().unwrap_or(Path::new(""));
        let place = self.rename_aside(parent, name)?;
        // Somebody may enter the folder, and git would take it for a repository without a working
        // tree.
        if new.is_dir && self.workspace.is_repository(&place) {
            self.rename_aside(&place, "HEAD")?;
        }
        Ok(place)
    }

    fn rename_aside(&self, dir: &Path, name: &str) -> Result<PathBuf, Errno> {
        let folder = beneath::open(self.workspace.handle(), dir, beneath::DIRECTORY)?;
        make_accessible(&folder, Mode::RWXU)?;
        for number in 1..=MAX_NAMES {
            let aside = match number {
                1 => format!("{name}.{SET_ASIDE}"),
                number => format!("{name}.{SET_ASIDE}-{number}"),
            };
            match rename_if_absent(folder.as_fd(), name.as_ref(), folder.as_fd(), aside.as_ref()) {
                Ok(()) => return Ok(dir.join(aside)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }
}

/// The path in words.
fn shown(path: &Path) -> std::path::Display<'_> {
    if path.as_os_str().is_empty() { Path::new(".").display() } else { path.display() }
}

/// Whether a folder below `modules` is a part of a submodule's repository that holds no
/// configuration.
fn is_part_of_repository(path: &Path) -> bool {
    const PARTS: [&str; 4] = ["objects", "refs", "logs", "lfs"];
    path.file_name().is_some_and(|name| PARTS.iter().any(|part| name == *part))
}
