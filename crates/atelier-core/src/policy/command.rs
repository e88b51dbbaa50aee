//! Judging a command line: which rule it falls under, and what each argument makes of it.

mod awk;
mod kind;
mod parse;
mod remote;
mod sed;
pub(crate) mod table;
mod value;

use super::{
    call::Command,
    files::{Access, FileRules},
    verdict::{Judgement, Verdict},
};
use crate::{
    failure::FailureCode,
    path::{PathError, Roots, WorkspacePath, normalise},
};
use std::borrow::Cow;
use table::Rule;

/// A path that a command was told about, for the executor to resolve and judge again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathUse {
    /// As the program will see it: the kernel walks this text, links and all.
    pub raw: String,
    /// Where it lies if there are no links.
    pub path: WorkspacePath,
    pub access: Access,
}

/// What is known so far about one command line.
pub(super) struct Judge<'p, 'c> {
    files: &'p FileRules,
    roots: &'c Roots,
    cwd: &'c WorkspacePath,
    worst: Option<Finding<'p>>,
    /// An option that no rule lists was seen: then any argument may be its value.
    unlisted: bool,
    /// Where the program goes before it starts.
    entered: Option<&'c str>,
    /// Where `cp` and `mv` put things, once known.
    dest: Option<&'c str>,
    /// What is put behind the names of files to make backups or products.
    suffix: Option<&'c str>,
    pub(super) paths: Option<Vec<PathUse>>,
}

struct Finding<'p> {
    verdict: Verdict,
    /// What in the command line it was, e.g. `--force`.
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
            unlisted: false,
            entered: None,
            dest: None,
            suffix: None,
            paths: None,
        }
    }

    /// Judges the arguments under the rule of their command.
    pub(super) fn judge(&mut self, rule: &'p Rule, call: &'c Command) -> (Judgement, &'p Rule) {
        let leaf = self.walk(rule, &call.args);
        if self.unlisted {
            self.distrust(&call.args);
        }
        self.climbs_elsewhere(&call.args);
        let network = leaf.network;
        let judgement = match self.worst.take() {
            Some(worst) if worst.verdict > leaf.verdict => {
                let rule = if worst.about.is_empty() {
                    leaf.id.to_string()
                } else {
                    format!("{} {}", leaf.id, worst.about)
                };
                let is_command_refused = worst.code == NOT_ALLOWED;
                let code = (worst.verdict == Verdict::Deny).then_some(worst.code);
                let reason = match worst.verdict {
                    // The seed's words first, for the models that know them.
                    Verdict::Deny if is_command_refused => {
                        format!("Command not allowed: {}", worst.reason)
                    }
                    _ => worst.reason.into_owned(),
                };
                Judgement { code, network, ..Judgement::new(worst.verdict, rule, reason) }
            }
            _ => {
                let code = (leaf.verdict == Verdict::Deny).then_some(NOT_ALLOWED);
                let reason = match leaf.verdict {
                    Verdict::Deny => format!("Command not allowed: {}", leaf.says),
                    _ => leaf.says.to_string(),
                };
                Judgement { code, network, ..Judgement::new(leaf.verdict, &*leaf.id, reason) }
            }
        };
        (judgement, leaf)
    }

    /// Notes a finding if it is the strictest so far; the words are only made when it is.
    fn raise<F>(&mut self, verdict: Verdict, words: F)
    where
        F: FnOnce() -> (Cow<'p, str>, Cow<'p, str>),
    {
        self.raise_coded(verdict, NOT_ALLOWED, words);
    }

    fn raise_coded<F>(&mut self, verdict: Verdict, code: FailureCode, words: F)
    where
        F: FnOnce() -> (Cow<'p, str>, Cow<'p, str>),
    {
        if self.worst.as_ref().is_none_or(|worst| verdict > worst.verdict) {
            let (about, reason) = words();
            self.worst = Some(Finding { verdict, about, reason, code });
        }
    }

    fn outside(&mut self, error: &PathError) {
        self.raise_coded(Verdict::Deny, error.code(), || ("path".into(), error.to_string().into()));
    }

    /// A path argument: inside, and what its name says.
    fn path(&mut self, raw: &str, access: Access) {
        // Standard input, and the one device that holds nothing and keeps nothing.
        if raw == "-" || raw == "/dev/null" {
            return;
        }
        let normal = match normalise(raw, self.cwd.relative(), self.roots) {
            Ok(normal) => normal,
            Err(error) => return self.outside(&error),
        };
        if access == Access::Remove {
            self.removal(&normal.relative, normal.directory);
        }
        if matches!(access, Access::Write | Access::Output) {
            self.raise(Verdict::Medium, || ("write".into(), "It writes a file of the project.".into()));
        }
        if let Some(class) = self.files.class(&normal.relative, access) {
            self.raise_coded(class.verdict, class.code(), || {
                (format!("file.{}", class.id).into(), format!("{raw}: {}", class.reason).into())
            });
        }
        self.note(raw, normal.into_path(), access);
    }

    /// Keeps a path for the executor, as it is and as it is from where the program goes first.
    fn note(&mut self, raw: &str, path: WorkspacePath, access: Access) {
        let Some(paths) = &mut self.paths else { return };
        if let Some(entered) = self.entered.filter(|entered| *entered != raw && !raw.starts_with('/')) {
            let raw = format!("{entered}/{raw}");
            let path = normalise(&raw, self.cwd.relative(), self.roots).map(|normal| normal.into_path());
            if let Ok(path) = path {
                paths.push(PathUse { raw, path, access });
            }
        }
        paths.push(PathUse { raw: raw.to_owned(), path, access });
    }

    /// The root and the directories directly beneath it stay where they are.
    fn removal(&mut self, relative: &str, directory: bool) {
        let top = !relative.contains('/');
        if relative.is_empty() || (top && directory) {
            self.raise_coded(Verdict::Deny, FailureCode::WriteNotAllowed, || {
                ("top-level".into(), TOP_LEVEL.into())
            });
        } else if top && !relative.contains('.') {
            // Only the file system knows whether this is a directory; the executor looks.
            let why = "It may move or delete a whole directory directly beneath the workspace's root.";
            self.raise(Verdict::High, || ("top-level".into(), why.into()));
        }
    }

    /// After an option that no rule lists, any word may be a path that it reads or writes.
    fn distrust(&mut self, args: &[String]) {
        for arg in args {
            self.argument(arg);
        }
    }
}

pub(super) const TOP_LEVEL: &str =
    "The workspace's root and the directories directly beneath it are not moved or deleted.";
