//! Asks git what a repository contains, so that `atelier_core::policy::git` can decide what a
//! command may show.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atelier_core::policy::call;
use atelier_core::policy::git::{
    GitDecision, GitFacts, ObjectKind, ProtectedPaths, Scope, Shown, is_object_id,
    overwritten_path, path_in,
};
use atelier_core::policy::verdict::{Judgement, Verdict};

use super::Tools;
use super::judge::Judged;
use crate::beneath;
use crate::cancel::Cancel;
use crate::ignored::Ignored;
use crate::process::{GitAnswer, Runner, ScannedHistory, at_hooks};
use crate::walk::{Kind, Names};
use crate::workspace::relative;

/// A repository, as git finds it from the folder in which the command runs.
struct Repository<'a> {
    tools: &'a Tools<'a>,
    runner: &'a Runner,
    command: &'a call::Command,
    /// Its top folder, relative to the workspace root.
    top: PathBuf,
    ignored: Arc<Ignored>,
}

impl Tools<'_> {
    /// The judgement of a git command after the repository was examined, and its arguments if some
    /// were added.
    pub(super) fn judge_git(&self, command: &call::Command, judgement: Judgement) -> Judged {
        let runner = self.runner.filter(|_| command.command == "git");
        let Some(runner) = runner.filter(|_| judgement.verdict < Verdict::High) else {
            return Judged { judgement, without_guarded: None };
        };
        let words = command.args.iter().map(String::as_str);
        let words = words.filter(|word| !word.starts_with('-'));
        let existing: BTreeSet<&str> = words.filter(|word| self.exists(command, word)).collect();
        let high = |judgement: Judgement, about: &str, why: String| {
            let rule = format!("{} {about}", judgement.rule);
            let judgement = judgement.stricter(Judgement::new(Verdict::High, rule, why));
            Judged { judgement, without_guarded: None }
        };
        if let Some(path) = overwritten_path(&command.args, &existing) {
            let why =
                format!("{path} is a file or folder here. Uncommitted changes in it are lost.");
            return high(judgement, "discard", why);
        }
        match self.decide_git(runner, command, &existing) {
            GitDecision::AsItIs => Judged { judgement, without_guarded: None },
            GitDecision::Excluding(args) => Judged { judgement, without_guarded: Some(args) },
            GitDecision::Ask(why) => high(judgement, "history", why),
        }
    }

    fn decide_git(
        &self,
        runner: &Runner,
        command: &call::Command,
        existing: &BTreeSet<&str>,
    ) -> GitDecision {
        let shown = Shown::by(&command.args, existing);
        if shown == Shown::Nothing {
            return GitDecision::AsItIs;
        }
        let Ok(ignored) = self.workspace.ignored() else {
            return GitDecision::unclear(".atelierignore cannot be read");
        };
        let top = match self.top(runner, command) {
            Ok(Some(top)) => top,
            // The command runs in the same place, so it will not find a repository either.
            Ok(None) => return GitDecision::AsItIs,
            Err(why) => return GitDecision::unclear(why),
        };
        let repository = Repository { tools: self, runner, command, top, ignored };
        match repository.facts(&shown) {
            Ok(facts) => GitDecision::about(&command.args, existing, &shown, facts),
            Err(why) => GitDecision::unclear(why),
        }
    }

    /// Whether the command would make git run hooks, and the repository has some.
    pub(super) fn passes_hooks_by(&self, command: &call::Command) -> bool {
        if command.command != "git" || !at_hooks(&command.args) {
            return false;
        }
        let root = self.workspace.handle();
        place(command).ancestors().any(|dir| {
            let hooks = dir.join(".git/hooks");
            let mut some = beneath::open(root, &dir.join(".husky"), beneath::DIRECTORY).is_ok();
            if let Ok(mut names) = Names::open(root, &hooks) {
                let listed = names.each(|name, kind| {
                    let sample =
                        Path::new(name).extension().is_some_and(|extension| extension == "sample");
                    some |= kind == Kind::File && !sample && self.is_executable(&hooks.join(name));
                    Ok(())
                });
                some &= listed.is_ok();
            }
            some
        })
    }

    fn is_executable(&self, path: &Path) -> bool {
        let file = beneath::open(self.workspace.handle(), path, rustix::fs::OFlags::PATH);
        file.is_ok_and(|file| rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_mode & 0o111 != 0))
    }

    /// Whether the word names a file or folder where the command runs.
    fn exists(&self, command: &call::Command, name: &str) -> bool {
        let name = Path::new(name);
        let here = || place(command).join(name);
        let path = name.strip_prefix(self.workspace.root()).map_or_else(|_| here(), Path::to_owned);
        beneath::open(self.workspace.handle(), &path, rustix::fs::OFlags::PATH).is_ok()
    }

    /// The repository's top beneath the workspace root; `None` if there is no repository.
    fn top(
        &self,
        runner: &Runner,
        command: &call::Command,
    ) -> Result<Option<PathBuf>, &'static str> {
        const OUTSIDE: &str = "it is unknown where its files are";
        let answer =
            self.ask(runner, command, &["rev-parse", "--absolute-git-dir", "--show-toplevel"])?;
        let mut lines = answer.stdout.lines();
        match (lines.next(), lines.next()) {
            (None, _) if !answer.success => Ok(None),
            (Some(_), Some(top)) if answer.success => {
                let root = self.workspace.root();
                Path::new(top)
                    .strip_prefix(root)
                    .map(|top| Some(top.to_owned()))
                    .map_err(|_| OUTSIDE)
            }
            _ => Err(OUTSIDE),
        }
    }

    fn ask(
        &self,
        runner: &Runner,
        command: &call::Command,
        args: &[&str],
    ) -> Result<GitAnswer, &'static str> {
        let cancel = Cancel::new().map_err(|_| "git cannot be asked")?;
        runner.ask_git(self.workspace, command, args, &cancel).map_err(|_| "git cannot be asked")
    }
}

/// The folder in which git runs, after its `-C` options.
fn place(command: &call::Command) -> PathBuf {
    let mut place = relative(&command.cwd).to_owned();
    let mut args = command.args.iter();
    while let Some(arg) = args.next().filter(|arg| arg.starts_with('-')) {
        if arg == "-C" {
            place.extend(args.next());
        }
    }
    place
}

impl Repository<'_> {
    /// The facts that are needed to decide about a command that shows this.
    fn facts(&self, shown: &Shown<'_>) -> Result<GitFacts, &'static str> {
        let mut facts = GitFacts::default();
        match shown {
            Shown::Nothing => {}
            Shown::Named(named) => {
                for word in named {
                    self.classify(path_in(word).unwrap_or(word), &mut facts.protected);
                    // A tree shows all files in it. git itself refuses a word that is not an
                    // object.
                    if self.kind(word)?.is_some_and(|kind| kind != ObjectKind::Blob) {
                        let everything = Scope { history: true, revisions: Vec::new() };
                        facts.protected.extend(self.protected(&everything)?);
                    }
                }
            }
            Shown::Filterable(scope) | Shown::Anything(scope) => {
                facts.protected = self.protected(scope)?;
                for revision in &scope.revisions {
                    facts.revisions.extend(self.kind(&format!("{revision}^{{}}"))?);
                }
                if matches!(shown, Shown::Filterable(_)) && !scope.history {
                    facts.untracked = self.untracked()?;
                }
            }
        }
        Ok(facts)
    }

    /// Protected files in the working tree. If they were covered by a mount, git would report a
    /// change, so git has to leave them out.
    fn untracked(&self) -> Result<BTreeSet<String>, &'static str> {
        let paths = self.tools.hidden_files().map_err(|_| "there are too many files to hide")?;
        let here = paths.iter().filter_map(|path| path.strip_prefix(&self.top).ok());
        let here = here.filter_map(Path::to_str).filter(|path| !path.is_empty());
        Ok(here.map(str::to_owned).collect())
    }

    fn ask(&self, args: &[&str]) -> Result<GitAnswer, &'static str> {
        self.tools.ask(self.runner, self.command, args)
    }

    /// The kind of an object; `None` if there is no such object.
    fn kind(&self, object: &str) -> Result<Option<ObjectKind>, &'static str> {
        let answer = self.ask(&["cat-file", "-t", object])?;
        Ok(answer.success.then(|| ObjectKind::parse(&answer.stdout)))
    }

    /// Protected files in git's index and, if the scope reaches there, in its history.
    fn protected(&self, scope: &Scope<'_>) -> Result<ProtectedPaths, &'static str> {
        const TOO_LARGE: &str = "the repository is too large to look through";
        let mut protected = ProtectedPaths::default();
        let index = self.ask(&["ls-files", "-z", "--full-name", ":/"])?;
        if !index.success {
            return Err(TOO_LARGE);
        }
        index.stdout.split('\0').for_each(|path| self.classify(path, &mut protected));
        if !scope.history {
            return Ok(protected);
        }
        // An id may name a commit that is on no branch any more.
        let ids = scope.revisions.iter().copied().filter(|revision| is_object_id(revision));
        let ids: Vec<&str> = ids.collect();
        let from = [STARTS, ids.as_slice(), &["--"][..]].concat();
        let tips = self.ask(&[&["rev-list", "--no-walk=unsorted"][..], &from].concat())?;
        if !tips.success {
            return Err(TOO_LARGE);
        }
        let scan = ScannedHistory {
            top: self.top.clone(),
            tips: tips.stdout,
            ignored: self.ignored.clone(),
            secrets: self.tools.policy.guarded_globs(),
        };
        let history = match self.runner.recall_scan(&scan) {
            Some(history) => history,
            None => {
                let paths = self.ask(&[ADDED, &from].concat())?;
                if !paths.success {
                    return Err(TOO_LARGE);
                }
                let mut history = ProtectedPaths::default();
                paths.stdout.split('\0').for_each(|path| self.classify(path, &mut history));
                self.runner.remember_scan(scan, history.clone());
                history
            }
        };
        protected.extend(history);
        Ok(protected)
    }

    fn classify(&self, path: &str, protected: &mut ProtectedPaths) {
        if path.is_empty() {
            return;
        }
        // Checked with both names: the path in the workspace, and the path inside the repository.
        let here = self.top.join(path);
        if self.ignored.hides(&here, false) || self.ignored.hides(Path::new(path), false) {
            protected.hidden.insert(path.to_owned());
        } else if self.tools.is_secret(&here) {
            protected.secret.insert(path.to_owned());
        }
    }
}

/// Lists every path that ever existed, by the commit that added it. A list of objects would not do:
/// content that moves keeps its object, and only one of its paths would be listed. No log setting
/// of the repository affects this command.
const ADDED: &[&str] = &[
    "log",
    "--root",
    "-m",
    "--diff-filter=A",
    "--no-renames",
    "--no-relative",
    "--name-only",
    "-z",
    "--format=",
];

/// Every reference that a revision can be reached from.
const STARTS: &[&str] = &[
    "--ignore-missing",
    "--all",
    "--reflog",
    "FETCH_HEAD",
    "ORIG_HEAD",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
];
