//! Asks git what a command means and what the repository holds, so that `atelier_core::policy::git`
//! can decide what the command may show.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use atelier_core::policy::call;
use atelier_core::policy::git::{
    GitDecision, GitFacts, Line, Meaning, Scope, Shown, names_no_commit, overwritten_path,
};
use atelier_core::policy::verdict::{Judgement, Verdict};

use super::Tools;
use super::judge::Judged;
use super::repository::{Asked, Repository};
use crate::beneath;
use crate::process::{Runner, at_hooks, folder};
use crate::walk::{Kind, Names};
use crate::workspace::relative;

/// How a git command runs, once the repository was examined.
#[derive(Debug, Default)]
pub(super) struct GitRun {
    /// The arguments of the command, if they differ from the given ones.
    pub(super) args: Option<Vec<String>>,
    /// Whether protected files are left out of the output.
    pub(super) leaves_out: bool,
    /// Git works without a repository here, so it reads files like any other command.
    pub(super) outside: bool,
}

impl Tools<'_> {
    /// The judgement of a git command once the repository was examined.
    pub(super) fn judge_git(&self, command: &call::Command, judgement: Judgement) -> Judged {
        let unchanged = |judgement| Judged { judgement, git: GitRun::default() };
        let runner = self.runner.filter(|_| command.command == "git");
        let Some(runner) = runner.filter(|_| judgement.verdict < Verdict::Deny) else {
            return unchanged(judgement);
        };
        let words = command.args.iter().map(String::as_str);
        let words = words.filter(|word| !word.starts_with('-'));
        let existing: BTreeSet<&str> = words.filter(|word| self.exists(command, word)).collect();
        let high = |judgement: Judgement, about: &str, why: String| {
            let rule = format!("{} {about}", judgement.rule.split(' ').next().unwrap_or_default());
            unchanged(judgement.stricter(Judgement::new(Verdict::High, rule, why)))
        };
        if let Some(path) = overwritten_path(&command.args, &existing) {
            let why =
                format!("{path} is a file or folder here. Uncommitted changes in it are lost.");
            return high(judgement, "discard", why);
        }
        // A person who is asked about a file by its name also says whether it is shown.
        let names_it = judgement.verdict == Verdict::High && judgement.rule.contains("file.");
        let (decision, outside) = self.decide_git(runner, command, &existing, names_it);
        match decision {
            GitDecision::Ask(why) => high(judgement, "history", why),
            GitDecision::Excluding(args) => {
                Judged { judgement, git: GitRun { args: Some(args), leaves_out: true, outside } }
            }
            GitDecision::Pinned(args) => {
                Judged { judgement, git: GitRun { args: Some(args), leaves_out: false, outside } }
            }
            GitDecision::AsItIs => {
                Judged { judgement, git: GitRun { outside, ..GitRun::default() } }
            }
        }
    }

    /// The decision, and whether git will run without a repository. With `names_it`, a person is
    /// asked about the files that the command names.
    fn decide_git(
        &self,
        runner: &Runner,
        command: &call::Command,
        existing: &BTreeSet<&str>,
        names_it: bool,
    ) -> (GitDecision, bool) {
        let Some(line) = Line::read(&command.args) else { return (GitDecision::AsItIs, false) };
        if matches!(line.shown(), Shown::Nothing | Shown::Unknown) {
            return (GitDecision::about(&line, existing, GitFacts::default()), false);
        }
        let opened = Repository::open(self, runner, command, Some(&line));
        let decided = opened.and_then(|opened| {
            // The command runs in the same place, so it will not find a repository either.
            let Some((mut repository, asked)) = opened else {
                return Ok((GitDecision::AsItIs, true));
            };
            let mut facts = self.facts(&mut repository, &line, existing, asked)?;
            if names_it {
                self.leave_out_named(&repository, &line, &mut facts);
            }
            repository.remember();
            Ok((GitDecision::about(&line, existing, facts), false))
        });
        decided.unwrap_or_else(|why| (GitDecision::unclear(why), false))
    }

    /// The facts that a decision about a command line needs.
    fn facts(
        &self,
        repository: &mut Repository<'_>,
        line: &Line<'_>,
        existing: &BTreeSet<&str>,
        asked: Vec<Asked<'_>>,
    ) -> Result<GitFacts, &'static str> {
        let mut facts =
            GitFacts { meanings: repository.meanings(line, asked)?, ..GitFacts::default() };
        if line.shown() == Shown::NothingOfCommits && !names_no_commit(&facts.meanings) {
            return Ok(facts);
        }
        for meaning in &facts.meanings {
            if let Meaning::File(path) = meaning {
                repository.classify(path, &mut facts.named);
            }
        }
        let scope = match line.stray(&facts.meanings, existing) {
            // The word may be a revision by the time the command runs.
            Some(_) => Scope::History,
            None => line.scope(&facts.meanings),
        };
        if scope != Scope::NamedFiles {
            facts.protected = repository.index()?;
        }
        if scope == Scope::History {
            facts.protected.extend(repository.history()?);
        }
        if scope == Scope::Index {
            facts.untracked = self.untracked(repository.top())?;
        }
        facts.leaves = line.is_diff()
            && line
                .paths(&facts.meanings)
                .any(|path| self.leads_out(repository.command(), repository.top(), path));
        Ok(facts)
    }

    /// Protected files of the working tree. A cover over them would look like a change to git, so
    /// git has to leave them out.
    fn untracked(&self, top: &Path) -> Result<BTreeSet<String>, &'static str> {
        let paths = self.hidden_files().map_err(|_| "there are too many files to hide")?;
        let here = paths.iter().filter_map(|path| path.strip_prefix(top).ok());
        let here = here.map(Path::to_string_lossy).filter(|path| !path.is_empty());
        Ok(here.map(Cow::into_owned).collect())
    }

    /// Takes the files that the command names as paths out of those that it must not show.
    fn leave_out_named(&self, repository: &Repository<'_>, line: &Line<'_>, facts: &mut GitFacts) {
        let paths: Vec<&str> = line.paths(&facts.meanings).collect();
        for path in paths {
            let place = self.place_of(repository.command(), path);
            let Ok(named) = place.strip_prefix(repository.top()) else { continue };
            let Some(named) = named.to_str() else { continue };
            facts.protected.secret.remove(named);
            facts.untracked.remove(named);
        }
    }

    /// Whether a path leads out of the repository.
    fn leads_out(&self, command: &call::Command, top: &Path, path: &str) -> bool {
        !path.starts_with(':') && !self.place_of(command, path).starts_with(top)
    }

    /// The place that a path of the command names, from the workspace root and without `..`.
    fn place_of(&self, command: &call::Command, path: &str) -> PathBuf {
        let mut place = PathBuf::new();
        for part in self.path_from_root(command, path).components() {
            match part {
                Component::Normal(name) => place.push(name),
                Component::ParentDir => drop(place.pop()),
                _ => {}
            }
        }
        place
    }

    /// Whether the command would usually run hooks, and the repository has some.
    pub(super) fn passes_hooks_by(&self, command: &call::Command) -> bool {
        if command.command != "git" || !at_hooks(&command.args) {
            return false;
        }
        let root = self.workspace.handle();
        folder(relative(&command.cwd), &command.args).ancestors().any(|dir| {
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
        let path = self.path_from_root(command, name);
        beneath::open(self.workspace.handle(), &path, rustix::fs::OFlags::PATH).is_ok()
    }

    /// The place that a word of the command names, from the workspace root.
    fn path_from_root(&self, command: &call::Command, name: &str) -> PathBuf {
        let name = Path::new(name);
        let here = || folder(relative(&command.cwd), &command.args).join(name);
        name.strip_prefix(self.workspace.root()).map_or_else(|_| here(), Path::to_owned)
    }
}
