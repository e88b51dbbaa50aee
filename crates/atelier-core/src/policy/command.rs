//! Judges a command line: finds the rule that it falls under, and rates each argument.

mod awk;
mod copies;
mod kind;
mod parse;
mod remote;
mod sed;
pub(crate) mod table;
mod unlisted;
mod value;

use super::{
    call::Command,
    class::{CONFIGURED, CallClass},
    files::{Access, FileRules},
    verdict::{Judgement, Verdict},
};
use crate::{
    failure::FailureCode,
    path::{PathError, Roots, WorkspacePath, normalise},
};
use std::{borrow::Cow, collections::BTreeSet};
use table::Rule;
pub(super) use value::HARMLESS_KEYS;

/// A path that a call uses, for the executor to resolve and judge again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse {
    /// The path as the program will pass it to the kernel, which follows links.
    pub raw: String,
    /// The path inside the workspace, if there are no links.
    pub path: WorkspacePath,
    pub access: Access,
}

/// Judges one command line, and holds what is known about it so far.
pub(super) struct Judge<'p, 'c> {
    files: &'p FileRules,
    roots: &'c Roots,
    cwd: &'c WorkspacePath,
    /// The strictest finding so far.
    worst: Option<Finding<'p>>,
    /// Other findings with the same verdict as the strictest one.
    others: Vec<Cow<'p, str>>,
    /// Addresses and names of remotes.
    destinations: BTreeSet<String>,
    /// Whether there is an option that no rule lists. Then any argument may be its value.
    unlisted: bool,
    /// The directories that options tell the program to change to first (`git -C dir -C below`).
    entered: Vec<&'c str>,
    /// The destination of `cp` and `mv`, once it is known.
    dest: Option<&'c str>,
    /// The suffix that the program adds to the names of files to make backups or products.
    suffix: Option<&'c str>,
    /// The paths of the command line; `None` if the caller does not want them.
    pub(super) paths: Option<Vec<PathUse>>,
}

/// One finding: the result of one rule for one part of a command line.
struct Finding<'p> {
    verdict: Verdict,
    /// The part of the command line, such as `--force`.
    about: Cow<'p, str>,
    reason: Cow<'p, str>,
    code: FailureCode,
}

const NOT_ALLOWED: FailureCode = FailureCode::CommandNotAllowed;

impl<'p, 'c> Judge<'p, 'c> {
    pub(super) fn new(files: &'p FileRules, roots: &'c Roots, cwd: &'c WorkspacePath) -> Self {
        Self {
            files,
            roots,
            cwd,
            worst: None,
            others: Vec::new(),
            destinations: BTreeSet::new(),
            unlisted: false,
            entered: Vec::new(),
            dest: None,
            suffix: None,
            paths: None,
        }
    }

    /// Judges the arguments of a command. Returns the judgement and the rule that the command line
    /// falls under: the rule of the command, or of a subcommand.
    pub(super) fn judge(&mut self, rule: &'p Rule, call: &'c Command) -> (Judgement, &'p Rule) {
        let leaf = self.walk(rule, &call.args);
        if self.unlisted {
            self.rate_all_as_paths(&call.args);
        }
        self.deny_parent_paths_after_entering(&call.args);
        let network = leaf.network;
        let verdict =
            self.worst.as_ref().map_or(leaf.verdict, |worst| worst.verdict.max(leaf.verdict));
        let class =
            if verdict.needs_approval() { self.class(leaf, verdict) } else { CallClass::default() };
        let judgement = match self.worst.take() {
            Some(worst) if worst.verdict > leaf.verdict => {
                let rule = named(leaf, &worst.about);
                let is_command_refused = worst.code == NOT_ALLOWED;
                let code = (worst.verdict == Verdict::Deny).then_some(worst.code);
                let reason = match worst.verdict {
                    // Every refusal of a command begins with the same words, which models
                    // recognise.
                    Verdict::Deny if is_command_refused => {
                        format!("Command not allowed: {}", worst.reason)
                    }
                    _ => worst.reason.into_owned(),
                };
                Judgement { verdict, rule, reason, code, class, network, timeout: None }
            }
            _ => {
                let code = (leaf.verdict == Verdict::Deny).then_some(NOT_ALLOWED);
                let reason = match leaf.verdict {
                    Verdict::Deny => format!("Command not allowed: {}", leaf.says),
                    _ => leaf.says.to_string(),
                };
                let rule = leaf.id.to_string();
                Judgement { verdict, rule, reason, code, class, network, timeout: None }
            }
        };
        (judgement, leaf)
    }

    /// Everything that was found at the verdict, and where the command connects.
    fn class(&mut self, leaf: &Rule, verdict: Verdict) -> CallClass {
        let mut findings = BTreeSet::new();
        if leaf.verdict == verdict {
            findings.insert(leaf.id.to_string());
        }
        if let Some(worst) = self.worst.as_ref().filter(|worst| worst.verdict == verdict) {
            findings.insert(named(leaf, &worst.about));
            findings.extend(self.others.drain(..).map(|about| named(leaf, &about)));
        }
        let mut destinations = std::mem::take(&mut self.destinations);
        if leaf.network && destinations.is_empty() {
            destinations.insert(CONFIGURED.to_owned());
        }
        let local_git = leaf.local && verdict == Verdict::Medium && destinations.is_empty();
        CallClass { findings, destinations, local_git }
    }

    /// Notes where the command connects. A permission for one place covers no other.
    fn connects_to(&mut self, place: &str) {
        if !self.destinations.contains(place) {
            self.destinations.insert(place.to_owned());
        }
    }

    /// Notes a finding unless a stricter one is known. Its words are only built if it is noted.
    fn raise<F>(&mut self, verdict: Verdict, words: F)
    where
        F: FnOnce() -> (Cow<'p, str>, Cow<'p, str>),
    {
        self.raise_coded(verdict, NOT_ALLOWED, words);
    }

    /// Notes a finding like `raise`, with the code for a denial.
    fn raise_coded<F>(&mut self, verdict: Verdict, code: FailureCode, words: F)
    where
        F: FnOnce() -> (Cow<'p, str>, Cow<'p, str>),
    {
        match &self.worst {
            Some(worst) if verdict < worst.verdict => {}
            Some(worst) if verdict == worst.verdict => {
                // Only what a person is asked about has a class.
                if verdict.needs_approval() {
                    self.others.push(words().0);
                }
            }
            _ => {
                let (about, reason) = words();
                self.others.clear();
                self.worst = Some(Finding { verdict, about, reason, code });
            }
        }
    }

    /// Denies a path that leads out of the workspace or is not a valid path.
    fn outside(&mut self, error: &PathError) {
        self.raise_coded(Verdict::Deny, error.code(), || ("path".into(), error.to_string().into()));
    }

    /// Rates a path argument: it must be inside the workspace, and the class of the file may make
    /// the command more dangerous.
    fn path(&mut self, raw: &str, access: Access) {
        // `-` is standard input or output, and `/dev/null` contains nothing.
        if raw == "-" || raw == "/dev/null" {
            return;
        }
        let normal = match normalise(raw, self.cwd.relative(), self.roots) {
            Ok(normal) => normal,
            Err(error) => return self.outside(&error),
        };
        if access == Access::Remove {
            self.protect_top_level(&normal.relative, normal.directory);
        }
        if matches!(access, Access::Write | Access::Output) {
            self.raise(Verdict::Medium, || {
                ("write".into(), "It writes a file of the project.".into())
            });
        }
        if let Some(class) = self.files.class(&normal.relative, access) {
            self.raise_coded(class.verdict, class.code(), || {
                (format!("file.{}", class.id).into(), format!("{raw}: {}", class.reason).into())
            });
        }
        self.note(raw, normal.into_path(), access);
    }

    /// Keeps a path for the executor: relative to the working directory and, if the program changes
    /// to other directories first, also relative to those. Most programs go from one to the next,
    /// and some take only the last.
    fn note(&mut self, raw: &str, path: WorkspacePath, access: Access) {
        let Some(paths) = &mut self.paths else { return };
        if !raw.starts_with('/') {
            let way = self.entered.join("/");
            let last = self.entered.last().copied().filter(|last| *last != way);
            for entered in [last.unwrap_or_default(), &way] {
                if entered.is_empty() || entered == raw {
                    continue;
                }
                let raw = format!("{entered}/{raw}");
                let path = normalise(&raw, self.cwd.relative(), self.roots);
                if let Ok(path) = path.map(|path| path.into_path()) {
                    paths.push(PathUse { raw, path, access });
                }
            }
        }
        paths.push(PathUse { raw: raw.to_owned(), path, access });
    }

    /// Denies moving or deleting the root of the workspace and the directories directly beneath it.
    fn protect_top_level(&mut self, relative: &str, directory: bool) {
        let top = !relative.contains('/');
        if relative.is_empty() || (top && directory) {
            self.raise_coded(Verdict::Deny, FailureCode::WriteNotAllowed, || {
                ("top-level".into(), TOP_LEVEL.into())
            });
        } else if top && !relative.contains('.') {
            // Only the file system shows whether this is a directory. The executor checks that.
            let why =
                "It may move or delete a whole directory directly beneath the workspace's root.";
            self.raise(Verdict::High, || ("top-level".into(), why.into()));
        }
    }

    /// Rates every argument as a possible path, because an option that no rule lists may read or
    /// write it.
    fn rate_all_as_paths(&mut self, args: &[String]) {
        for arg in args {
            self.argument(arg);
        }
    }
}

/// The name of a finding: the command, and the part of its arguments that the finding is about.
fn named(leaf: &Rule, about: &str) -> String {
    if about.is_empty() { leaf.id.to_string() } else { format!("{} {about}", leaf.id) }
}

pub(super) const TOP_LEVEL: &str =
    "The workspace's root and the directories directly beneath it are not moved or deleted.";
