//! What a git command would show of files that nobody may see unasked: git itself is asked what it keeps.
//!
//! Hiding files from a command does not hide them from git, which has them in its index and its history. Nothing of
//! the kind there: the command runs as it is. Something: it runs with that left out if its shape is known to honour
//! that, and otherwise a person decides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atelier_core::policy::call;
use atelier_core::policy::verdict::{Judgement, Verdict};

use super::Tools;
use super::judge::Judged;
use crate::beneath;
use crate::cancel::Cancel;
use crate::ignored::Ignored;
use crate::process::{
    Answered, Guarded, Runner, Seen, Shows, Sight, at_hooks, is_number, leaving_out, path_in, shows,
};
use crate::walk::{Kind, Names};
use crate::workspace::relative;

/// More pathspecs than this make git slow, and its command line too long.
const MAX_LEFT_OUT: usize = 1000;

/// How a git command runs.
pub(super) enum Look {
    AsItIs,
    /// With what is guarded left out.
    Without(Vec<String>),
    /// Only when somebody says so.
    Asked(String),
}

/// Why a person is asked.
fn asked(guarded: &Guarded) -> Look {
    Look::Asked(match guarded.secret.first() {
        Some(path) => format!("It may show {path}, which git keeps here and which usually holds secrets."),
        // By no name: what is ignored does not exist for agents, and they read this.
        None => "It may show files that .atelierignore names, which git keeps here.".to_owned(),
    })
}

/// One repository, as git itself finds it from where the command runs.
struct Repository<'a> {
    tools: &'a Tools<'a>,
    runner: &'a Runner,
    command: &'a call::Command,
    /// Its top in the workspace.
    top: PathBuf,
    ignored: Arc<Ignored>,
}

impl Tools<'_> {
    /// The judgement of a git command with a look into the repository, and its arguments where some are added.
    pub(super) fn judge_git(&self, command: &call::Command, judgement: Judgement) -> Judged {
        let Some(runner) =
            self.runner.filter(|_| command.command == "git" && judgement.verdict < Verdict::High)
        else {
            return Judged { judgement, without_guarded: None };
        };
        if let Some(path) = self.discards(command) {
            let rule = format!("{} discard", judgement.rule);
            let why = format!("{path} is a file or a folder here: uncommitted work in it is thrown away.");
            let judgement = judgement.stricter(Judgement::new(Verdict::High, rule, why));
            return Judged { judgement, without_guarded: None };
        }
        match self.look(runner, command) {
            Look::AsItIs => Judged { judgement, without_guarded: None },
            Look::Without(args) => Judged { judgement, without_guarded: Some(args) },
            Look::Asked(why) => {
                let rule = format!("{} history", judgement.rule);
                let judgement = judgement.stricter(Judgement::new(Verdict::High, rule, why));
                Judged { judgement, without_guarded: None }
            }
        }
    }

    /// What `git checkout` takes from the index or a commit, over what lies there. By its text alone it may be a branch.
    fn discards<'c>(&self, command: &'c call::Command) -> Option<&'c str> {
        const BRANCHING: [&str; 6] = ["-b", "-B", "--orphan", "-d", "--detach", "-t"];
        let at = command.args.iter().position(|arg| arg == "checkout")?;
        let args = &command.args[at + 1..];
        if args.iter().any(|arg| BRANCHING.contains(&arg.as_str()) || arg.starts_with("--track")) {
            return None;
        }
        let words = args.iter().take_while(|arg| *arg != "--").map(String::as_str);
        words.filter(|word| !word.starts_with('-')).find(|word| self.lies_there(command, word))
    }

    fn look(&self, runner: &Runner, command: &call::Command) -> Look {
        let is_file = |name: &str| self.lies_there(command, name);
        let shown = shows(&command.args, is_file);
        if shown == Shows::Nothing {
            return Look::AsItIs;
        }
        let unclear =
            |why: &str| Look::Asked(format!("It may show any file that git keeps here, and {why}."));
        let Ok(ignored) = self.workspace.ignored() else { return unclear(".atelierignore cannot be read") };
        let top = match self.top(runner, command) {
            Ok(Some(top)) => top,
            // The same git, asked in the same place: the command will find none either.
            Ok(None) => return Look::AsItIs,
            Err(why) => return unclear(why),
        };
        let repository = Repository { tools: self, runner, command, top, ignored };
        repository.look(shown, is_file).unwrap_or_else(unclear)
    }

    /// Whether the command is one at which git would run hooks of the repository, which has some.
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
                    let sample = Path::new(name).extension().is_some_and(|extension| extension == "sample");
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

    /// Whether the word names something where the command runs.
    fn lies_there(&self, command: &call::Command, name: &str) -> bool {
        let name = Path::new(name);
        let here = || place(command).join(name);
        let path = name.strip_prefix(self.workspace.root()).map_or_else(|_| here(), Path::to_owned);
        beneath::open(self.workspace.handle(), &path, rustix::fs::OFlags::PATH).is_ok()
    }

    /// The repository's top below the workspace's root; none where there is no repository.
    fn top(&self, runner: &Runner, command: &call::Command) -> Result<Option<PathBuf>, &'static str> {
        const OUTSIDE: &str = "where its files lie is not known";
        let answer = self.ask(runner, command, &["rev-parse", "--absolute-git-dir", "--show-toplevel"])?;
        let mut lines = answer.stdout.lines();
        match (lines.next(), lines.next()) {
            (None, _) if !answer.success => Ok(None),
            (Some(_), Some(top)) if answer.success => {
                let root = self.workspace.root();
                Path::new(top).strip_prefix(root).map(|top| Some(top.to_owned())).map_err(|_| OUTSIDE)
            }
            _ => Err(OUTSIDE),
        }
    }

    fn ask(&self, runner: &Runner, command: &call::Command, args: &[&str]) -> Result<Answered, &'static str> {
        let cancel = Cancel::new().map_err(|_| "git cannot be asked")?;
        runner.ask_git(self.workspace, command, args, &cancel).map_err(|_| "git cannot be asked")
    }
}

/// Where git goes before it begins.
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
    fn look(&self, shown: Shows<'_>, is_file: impl Fn(&str) -> bool) -> Result<Look, &'static str> {
        match shown {
            Shows::Nothing => Ok(Look::AsItIs),
            Shows::Named(named) => {
                let mut guarded = Guarded::default();
                for word in named {
                    let path = path_in(word).unwrap_or(word);
                    self.sort(path, &mut guarded);
                    // A folder's tree would bring along what is in it; what is no object at all, git refuses.
                    if self.kind(word)?.is_some_and(|kind| kind != "blob") {
                        guarded = self.guarded(&Sight { history: true, revisions: Vec::new() })?;
                    }
                }
                Ok(if guarded == Guarded::default() { Look::AsItIs } else { asked(&guarded) })
            }
            Shows::Anything(sight) => {
                let guarded = self.guarded(&sight)?;
                match self.unnamed(&sight)? {
                    Some(asked) => Ok(asked),
                    None if guarded == Guarded::default() => Ok(Look::AsItIs),
                    None => Ok(asked(&guarded)),
                }
            }
            Shows::Paths(sight) => {
                let guarded = self.guarded(&sight)?;
                if let Some(asked) = self.unnamed(&sight)? {
                    return Ok(asked);
                }
                let mut paths: BTreeSet<String> = guarded.secret.union(&guarded.ignored).cloned().collect();
                if !sight.history {
                    // Not tracked, but there: covered, it would look like something else than it is.
                    let veiled = self.tools.veiled().map_err(|_| "there is too much to hide")?;
                    let here = veiled.iter().filter_map(|path| path.strip_prefix(&self.top).ok());
                    paths.extend(
                        here.filter_map(Path::to_str).filter(|path| !path.is_empty()).map(str::to_owned),
                    );
                }
                if paths.is_empty() {
                    return Ok(Look::AsItIs);
                }
                if paths.len() > MAX_LEFT_OUT {
                    return Ok(asked(&guarded));
                }
                let excluded: Vec<String> = paths.into_iter().collect();
                Ok(Look::Without(leaving_out(&self.command.args, &excluded, is_file)))
            }
        }
    }

    /// A file by its object's number has no name that could be judged, and a tree need not be one of the commits that
    /// were looked through.
    fn unnamed(&self, sight: &Sight<'_>) -> Result<Option<Look>, &'static str> {
        for revision in &sight.revisions {
            match self.kind(&format!("{revision}^{{}}"))?.as_deref() {
                None | Some("commit") => {}
                Some(_) => {
                    let why = "It shows an object by its number, and nobody can tell which file that was.";
                    return Ok(Some(Look::Asked(why.to_owned())));
                }
            }
        }
        Ok(None)
    }

    fn ask(&self, args: &[&str]) -> Result<Answered, &'static str> {
        self.tools.ask(self.runner, self.command, args)
    }

    /// What an object is; none where there is no such.
    fn kind(&self, object: &str) -> Result<Option<String>, &'static str> {
        let answer = self.ask(&["cat-file", "-t", object])?;
        Ok(answer.success.then(|| answer.stdout.trim().to_owned()))
    }

    /// What git keeps that is not to be shown.
    fn guarded(&self, sight: &Sight<'_>) -> Result<Guarded, &'static str> {
        const TOO_LARGE: &str = "there is too much of it to look through";
        let mut guarded = Guarded::default();
        let index = self.ask(&["ls-files", "-z", "--full-name", ":/"])?;
        if !index.success {
            return Err(TOO_LARGE);
        }
        index.stdout.split('\0').for_each(|path| self.sort(path, &mut guarded));
        if !sight.history {
            return Ok(guarded);
        }
        // Numbers may name commits that no branch holds any more.
        let own: Vec<&str> = sight.revisions.iter().copied().filter(|revision| is_number(revision)).collect();
        let from = [STARTS, own.as_slice(), &["--"][..]].concat();
        let tips = self.ask(&[&["rev-list", "--no-walk=unsorted"][..], &from].concat())?;
        if !tips.success {
            return Err(TOO_LARGE);
        }
        let seen = Seen {
            top: self.top.clone(),
            tips: tips.stdout,
            ignored: self.ignored.clone(),
            secrets: self.tools.policy.guarded_globs(),
        };
        let history = match self.runner.recall(&seen) {
            Some(history) => history,
            None => {
                let paths = self.ask(&[ADDED, &from].concat())?;
                if !paths.success {
                    return Err(TOO_LARGE);
                }
                let mut history = Guarded::default();
                paths.stdout.split('\0').for_each(|path| self.sort(path, &mut history));
                self.runner.remember(seen, history.clone());
                history
            }
        };
        guarded.secret.extend(history.secret);
        guarded.ignored.extend(history.ignored);
        Ok(guarded)
    }

    fn sort(&self, path: &str, guarded: &mut Guarded) {
        if path.is_empty() {
            return;
        }
        // As it lies in the workspace, and as it would in a copy of the repository.
        let here = self.top.join(path);
        if self.ignored.hides(&here, false) || self.ignored.hides(Path::new(path), false) {
            guarded.ignored.insert(path.to_owned());
        } else if self.tools.is_secret(&here) {
            guarded.secret.insert(path.to_owned());
        }
    }
}

/// Every path that there ever was, by the commit that brought it: content keeps its number when it moves, so a list of
/// objects would tell of one path and not of the others. Nothing that a configuration may say about logs is left to it.
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

/// Everything that a revision can be reached from.
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
