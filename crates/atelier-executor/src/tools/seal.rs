//! Decides which objects of repositories must be hidden from scripts and approved commands.
//!
//! Git is asked about each folder of a repository: bare ones, those of submodules, and those of
//! other working trees, which have an index of their own. Every object must be accounted for. An
//! object counts as seen if references, reflogs or unreachable commits name it, and none of its
//! paths is protected. An object that is left over, such as a file that was staged once, has no
//! name. If it lies in a file of its own, that file is hidden. Otherwise all objects are hidden.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use atelier_core::policy::call;
use rustix::fs::OFlags;

use super::Tools;
use super::path_restrictions::FoundRepository;
use super::repository::{ADDED, BORDERS, REFERENCES, STARTS};
use crate::beneath;
use crate::cancel::Cancel;
use crate::ignored::Ignored;
use crate::process::{FolderStamp, GitAnswer, KnownStore, Runner, SETTINGS, Seal, SecretRules};
use crate::repositories::{GIT_DIR, is_listed_repository};
use crate::walk::{Kind, Names};
use crate::workspace::to_workspace_path;

/// If there are more repositories than this, everything in all of them is hidden.
const MAX_ASKED: usize = 64;

/// If a repository contains more folders than this, everything in all repositories is hidden.
const MAX_FOLDERS: usize = 20_000;

/// More commits than this are not named one by one.
const MAX_NAMED: usize = 2000;

/// More objects than this are not hidden one by one.
const MAX_HIDDEN: usize = 1000;

/// The objects of one repository, as git lists them. Tags hold nothing of a file.
#[derive(Default)]
struct Listed {
    commits: Vec<String>,
    trees: HashSet<u128>,
    /// The contents of files, with their ids in full.
    files: HashMap<u128, String>,
}

impl Tools<'_> {
    /// The objects of these repositories that must be hidden.
    pub(super) fn seal(&self, repositories: &[FoundRepository]) -> Seal {
        // The file `.git` of a worktree or a submodule holds no objects. The folder that it names
        // is found by itself.
        let folders = repositories.iter().filter(|repository| repository.is_dir);
        let (mut todo, mut known) = (Vec::new(), BTreeSet::new());
        for repository in folders {
            let Some(inside) = self.folders_of(&repository.path) else { return Seal::Everything };
            todo.extend(inside.into_iter().filter(|folder| known.insert(folder.clone())));
            if todo.len() > MAX_ASKED {
                return Seal::Everything;
            }
        }
        let mut files = Vec::new();
        for folder in todo {
            match self.seal_one(&folder) {
                Some(Seal::Files(found)) => files.extend(found),
                _ => return Seal::Everything,
            }
        }
        match files.len() > MAX_HIDDEN {
            true => Seal::Everything,
            false => Seal::Files(files),
        }
    }

    /// The paths that must be hidden if all objects of these repositories are hidden.
    pub(super) fn sealed_everywhere(
        &self,
        repositories: &[FoundRepository],
    ) -> crate::error::Result<Vec<PathBuf>> {
        let mut hidden: Vec<PathBuf> = Vec::new();
        for repository in repositories.iter().filter(|repository| repository.is_dir) {
            let inside = self.folders_of(&repository.path);
            for folder in inside.unwrap_or_else(|| vec![repository.path.clone()]) {
                if !hidden.iter().any(|above| folder.starts_with(above)) {
                    hidden.extend(self.sealed_in(&folder)?);
                }
            }
        }
        Ok(hidden)
    }

    /// The folder of a repository, and all folders in it that are repositories as well: those of
    /// submodules and of other working trees. The outer ones come first.
    fn folders_of(&self, repository: &Path) -> Option<Vec<PathBuf>> {
        let (mut found, mut todo) = (vec![repository.to_owned()], vec![repository.to_owned()]);
        let mut left = MAX_FOLDERS;
        while let Some(dir) = todo.pop() {
            left = left.checked_sub(1)?;
            // If the folder is gone or closed to us, it is closed to the command, too.
            let Ok(mut names) = Names::open(self.workspace.handle(), &dir) else { continue };
            let is_repository = is_listed_repository(&names);
            if is_repository && dir != repository {
                found.push(dir.clone());
            }
            let listed = names.each(|name, kind| {
                let plain = name == "objects" || name == "refs" || name == "logs";
                if kind == Kind::Directory && !(plain && (is_repository || dir == repository)) {
                    todo.push(dir.join(name));
                }
                Ok(())
            });
            listed.ok()?;
        }
        Some(found)
    }

    /// The objects in one folder of a repository that must be hidden; `None` if git cannot tell.
    fn seal_one(&self, git_dir: &Path) -> Option<Seal> {
        let runner = self.runner?;
        let ignored = self.workspace.ignored().ok()?;
        let rules = SecretRules { ignored, secrets: self.policy.guarded_globs() };
        // The state of the repository is noted before git is asked, so that later changes are
        // noticed and asked about.
        let borders = self.workspace.fingerprint(git_dir, &BORDERS);
        let names = [&REFERENCES[..], &BORDERS, &SETTINGS, &["index"]].concat();
        let stamps = self.workspace.store_stamps(git_dir);
        let state = self.workspace.fingerprint(git_dir, &names).zip(stamps);
        let known = runner.known_store(git_dir, &rules);
        if let Some(known) = &known
            && known.state.is_some()
            && known.state == state
        {
            return Some(known.seal.clone());
        }
        let settled = |stamps: &[FolderStamp]| stamps.iter().all(|stamp| stamp.is_settled());
        let again = known.filter(|known| known.borders == borders && borders.is_some());
        let asked = Asked::new(self, runner, git_dir, &rules.ignored)?;
        let look = match asked.shows_protected()? {
            true => Look::everything(),
            false => asked.look_through(again.as_deref())?,
        };
        let Look { seal, seen, tips } = look;
        let state = state.filter(|(_, stamps)| settled(stamps));
        let git_dir = git_dir.to_owned();
        let store = KnownStore { git_dir, rules, state, borders, tips, seen, seal: seal.clone() };
        runner.remember_store(Arc::new(store));
        Some(seal)
    }
}

/// The result of examining a repository.
struct Look {
    seal: Seal,
    /// The objects that have a name which is not protected.
    seen: HashSet<u128>,
    /// The commits that references lead to.
    tips: Vec<String>,
}

impl Look {
    fn everything() -> Self {
        Self { seal: Seal::Everything, seen: HashSet::new(), tips: Vec::new() }
    }
}

/// Questions to git about one folder of a repository.
struct Asked<'a> {
    tools: &'a Tools<'a>,
    runner: &'a Runner,
    git_dir: &'a Path,
    about: call::Command,
    ignored: &'a Ignored,
    /// The places of its files in the workspace, or in a copy of the repository.
    tops: BTreeSet<PathBuf>,
}

impl<'a> Asked<'a> {
    fn new(
        tools: &'a Tools<'a>,
        runner: &'a Runner,
        git_dir: &'a Path,
        ignored: &'a Ignored,
    ) -> Option<Self> {
        let about = call::Command {
            command: "git".to_owned(),
            args: Vec::new(),
            timeout: None,
            cwd: to_workspace_path(git_dir, "").ok()?,
        };
        let mut tops = BTreeSet::from([PathBuf::new()]);
        if git_dir.ends_with(GIT_DIR) {
            tops.extend(git_dir.parent().map(Path::to_owned));
        }
        let mut asked = Self { tools, runner, git_dir, about, ignored, tops };
        let set = asked.ask(&["config", "--get", "core.worktree"])?;
        if set.success {
            let root = tools.workspace.root();
            asked.tops.extend(joined(root, git_dir, Path::new(set.stdout.trim_end())));
        }
        Some(asked)
    }

    fn ask(&self, args: &[&str]) -> Option<GitAnswer> {
        let args = [&["--git-dir=.", "--work-tree=."], args].concat();
        let cancel = Cancel::new().ok()?;
        self.runner.ask_git(self.tools.workspace, &self.about, &args, &cancel).ok()
    }

    fn succeed(&self, args: &[&str]) -> Option<String> {
        self.ask(args).filter(|answer| answer.success).map(|answer| answer.stdout)
    }

    /// Whether one of the paths is protected. Most paths come often, so the answers are remembered.
    fn any_protected<'p>(&self, paths: impl Iterator<Item = &'p str>) -> bool {
        let paths: HashSet<&str> = paths.filter(|path| !path.is_empty()).collect();
        paths.into_iter().any(|path| {
            self.tops.iter().any(|top| {
                let here = top.join(path);
                self.ignored.hides(&here, false) || self.tools.is_secret(&here)
            })
        })
    }

    /// Whether the index lists a protected file.
    fn shows_protected(&self) -> Option<bool> {
        let index = self.succeed(&["ls-files", "-z", "--full-name"])?;
        Some(self.any_protected(index.split('\0')))
    }

    /// Looks at the names of all objects, or of those that are new.
    fn look_through(&self, known: Option<&KnownStore>) -> Option<Look> {
        let is_there = |name: &str| {
            beneath::open(self.tools.workspace.handle(), &self.git_dir.join(name), OFlags::PATH)
                .is_ok()
        };
        // The folder of another working tree has an index and no objects.
        if is_there("commondir") {
            let (seen, tips) = (HashSet::new(), Vec::new());
            return Some(Look { seal: Seal::Files(Vec::new()), seen, tips });
        }
        let listed = self.list()?;
        let list = ["rev-list", "--no-walk=unsorted", "--ignore-missing"];
        let tips = self.succeed(&[&list, STARTS, &["--"]].concat())?;
        let tips: Vec<String> = tips.lines().map(str::to_owned).collect();
        let commits: HashSet<&str> = listed.commits.iter().map(String::as_str).collect();
        let known = known.filter(|known| {
            known.tips.len() <= MAX_NAMED
                && known.tips.iter().all(|tip| commits.contains(tip.as_str()))
        });
        let mut seen = known.map(|known| known.seen.clone()).unwrap_or_default();
        if listed.lacks(&seen) {
            let old = known.map(|known| known.tips.as_slice()).unwrap_or_default();
            if self.see(&[STARTS, &["--indexed-objects"]].concat(), old, &listed, &mut seen)? {
                return Some(Look::everything());
            }
        }
        // Unreachable commits tell the names of the files that they added. If their parents are
        // missing, they tell nothing.
        let is_lost = |id: &&str| short(id).is_some_and(|id| !seen.contains(&id));
        let lost: Vec<&str> = commits.iter().copied().filter(is_lost).collect();
        let tells = !lost.is_empty() && lost.len() <= MAX_NAMED;
        if tells && self.see(&lost, &[], &listed, &mut seen) == Some(true) {
            return Some(Look::everything());
        }
        let left: HashSet<&str> = listed.left(&seen);
        let seal = match left.is_empty() {
            true => Seal::Files(Vec::new()),
            false if is_there("objects/info/alternates") => Seal::Everything,
            false => self.hide(&left)?,
        };
        Some(Look { seal, seen, tips })
    }

    /// All objects of the repository, and those that it borrows.
    fn list(&self) -> Option<Listed> {
        let check = "--batch-check=%(objectname) %(objecttype)";
        let all = ["cat-file", "--batch-all-objects", check, "--unordered", "--buffer"];
        let mut listed = Listed::default();
        for line in self.succeed(&all)?.lines() {
            match line.split_once(' ')? {
                (id, "commit") => listed.commits.push(id.to_owned()),
                (id, "tree") => drop(listed.trees.insert(short(id)?)),
                (_, "tag") => {}
                (id, _) => drop(listed.files.insert(short(id)?, id.to_owned())),
            }
        }
        Some(listed)
    }

    /// Adds the objects that these revisions lead to, and the old tips do not. Returns whether one
    /// of their paths is protected.
    fn see(
        &self,
        revisions: &[&str],
        old: &[String],
        listed: &Listed,
        seen: &mut HashSet<u128>,
    ) -> Option<bool> {
        let not = old.first().map(|_| "--not");
        let not: Vec<&str> = not.into_iter().chain(old.iter().map(String::as_str)).collect();
        let named: Vec<&str> =
            revisions.iter().copied().filter(|name| *name != "--indexed-objects").collect();
        let added = self.succeed(&[ADDED, &named, &not, &["--"]].concat())?;
        if self.any_protected(added.split('\0')) {
            return Some(true);
        }
        let list = ["rev-list", "--objects", "--ignore-missing", "--missing=allow-any"];
        let objects = self.succeed(&[&list, revisions, &not, &["--"]].concat())?;
        let objects = objects.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
        if self.any_protected(objects.clone().map(|(_, path)| path)) {
            return Some(true);
        }
        // A tag may name the content of a file without a path.
        let tells = |(id, path): &(u128, &str)| !path.is_empty() || !listed.files.contains_key(id);
        let objects = objects.filter_map(|(id, path)| Some((short(id)?, path))).filter(tells);
        seen.extend(objects.map(|(id, _)| id));
        Some(false)
    }

    /// Hides objects that lie in files of their own, and nowhere else.
    fn hide(&self, left: &HashSet<&str>) -> Option<Seal> {
        let folder = |id: &str| Some(Path::new("objects").join(id.get(..2)?).join(id.get(2..)?));
        let packed = self.succeed(&["prune-packed", "--dry-run"])?;
        let is_packed = |line: &str| {
            let mut parts = line.rsplit('/');
            let (rest, start) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            left.contains(format!("{start}{rest}").as_str())
        };
        if left.len() > MAX_HIDDEN || packed.lines().any(is_packed) {
            return Some(Seal::Everything);
        }
        let mut files = Vec::new();
        for id in left {
            let path = self.git_dir.join(folder(id)?);
            if beneath::open(self.tools.workspace.handle(), &path, OFlags::PATH).is_err() {
                return Some(Seal::Everything);
            }
            files.push(path);
        }
        files.sort_unstable();
        Some(Seal::Files(files))
    }
}

impl Listed {
    /// Whether there are objects that were not seen.
    fn lacks(&self, seen: &HashSet<u128>) -> bool {
        let commits = || self.commits.iter().filter_map(|id| short(id));
        let mut all = self.files.keys().chain(&self.trees).copied().chain(commits());
        all.any(|id| !seen.contains(&id))
    }

    /// The contents of files that were not seen.
    fn left(&self, seen: &HashSet<u128>) -> HashSet<&str> {
        let left = self.files.iter().filter(|(id, _)| !seen.contains(id));
        left.map(|(_, id)| id.as_str()).collect()
    }
}

/// The first half of an id. Nobody finds two objects that share it.
fn short(id: &str) -> Option<u128> {
    u128::from_str_radix(id.get(..32)?, 16).ok()
}

/// The path below the root that a path in a folder means, if it is below the root.
fn joined(root: &Path, folder: &Path, path: &Path) -> Option<PathBuf> {
    if path.is_absolute() {
        return path.strip_prefix(root).ok().map(Path::to_owned);
    }
    let mut joined = folder.to_owned();
    for part in path.components() {
        match part {
            Component::Normal(name) => joined.push(name),
            Component::ParentDir => joined = joined.parent()?.to_owned(),
            _ => {}
        }
    }
    Some(joined)
}
