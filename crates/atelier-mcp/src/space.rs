//! The directory that is served, with the settings of its owner.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use atelier_core::path::{Roots, WorkspacePath};
use atelier_core::policy::verdict::Verdict;
use atelier_core::policy::{Access, Policy};
use atelier_executor::{Cancel, Error, Options, Workspace};

use crate::reply::Failure;
use crate::watch::Watch;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the root in messages and in absolute paths.
    pub root_name: String,
    pub extra_tools: bool,
    pub read_only: bool,
    /// The largest file that is read or written, in bytes.
    pub max_file_size: u64,
    /// Sync every write to disk before answering.
    pub durable: bool,
    /// The rules that apply here. `None` means the built-in rules.
    pub policy: Option<Box<Policy>>,
    /// Whether a person is asked before calls arrive here, as hosts do for the tools of a program
    /// that they started. Otherwise calls that need approval are refused.
    pub asked: bool,
}

/// Clones are handles to the same workspace.
#[derive(Debug, Clone)]
pub struct Space(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    workspace: Workspace,
    roots: Roots,
    settings: Settings,
    watch: Watch,
    never: Cancel,
}

impl Space {
    pub fn open(directory: &Path, mut settings: Settings) -> Result<Self, Error> {
        while settings.root_name.len() > 1 && settings.root_name.ends_with('/') {
            settings.root_name.pop();
        }
        let options = Options {
            max_read: settings.max_file_size,
            max_write: settings.max_file_size,
            durable: settings.durable,
            ..Options::default()
        };
        let workspace = Workspace::open(directory, options)?;
        // The host may know the directory by the name that it was started with, by its real path,
        // or by `root_name`.
        let mut roots = Roots::announced(settings.root_name.clone());
        for known in [Some(workspace.root()), std::path::absolute(directory).ok().as_deref()] {
            if let Some(name) = known.and_then(|path| path.to_str()) {
                roots = roots.also(name);
            }
        }
        let never = Cancel::new().map_err(|source| Error::Io {
            action: "prepare",
            path: settings.root_name.clone(),
            source,
        })?;
        let watch = Watch::new(workspace.root().to_owned());
        Ok(Self(Arc::new(Inner { workspace, roots, settings, watch, never })))
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.0.workspace
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// The signal for calls that cannot be stopped. It is never cancelled.
    pub(crate) fn never(&self) -> &Cancel {
        &self.0.never
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// Parses a path that a caller wrote.
    pub(crate) fn path(&self, raw: &str) -> Result<WorkspacePath, Failure> {
        WorkspacePath::parse(raw, &self.0.roots).map_err(|error| Failure::new(error.to_string()))
    }

    pub(crate) fn access_denied(&self) -> Failure {
        Failure::new(format!("Access denied. Path must be within {}", self.0.settings.root_name))
    }

    /// Why the rules refuse the path to the tool, if they do.
    pub(crate) fn refused(
        &self,
        tool: &str,
        path: &WorkspacePath,
        access: Access,
    ) -> Option<String> {
        // The rules are built on first use, because an idle server should use little memory.
        let policy = match &self.0.settings.policy {
            Some(own) => own.as_ref(),
            None => Policy::builtin(),
        };
        if !self.0.settings.asked {
            return policy.refuses_unasked(tool, path, access);
        }
        let judgement = policy.judge_path(tool, path, access);
        (judgement.verdict == Verdict::Deny).then_some(judgement.reason)
    }

    /// Parses a path that a tool reads, and checks it both as written and with its links resolved.
    pub(crate) fn seen(&self, tool: &str, raw: &str) -> Result<WorkspacePath, Failure> {
        let path = self.path(raw)?;
        // If a person is asked before calls arrive here, no rule restricts reading.
        if self.0.settings.asked {
            return Ok(path);
        }
        let denied = |why| Failure::new(format!("Access denied - {why}"));
        self.refused(tool, &path, Access::Read).map_or(Ok(()), |why| Err(denied(why)))?;
        // The tool itself reports a path that does not exist or leads outside.
        if let Ok(real) = self.behind_links(&path) {
            self.refused(tool, &real, Access::Read).map_or(Ok(()), |why| Err(denied(why)))?;
        }
        Ok(path)
    }

    /// The path to write to. Writing follows no links, so a link that stays inside is resolved
    /// first.
    pub(crate) fn behind_links(&self, path: &WorkspacePath) -> Result<WorkspacePath, Error> {
        self.0.workspace.resolve(path)
    }
}

/// A name that can be shown on one line. A line break in a name must not look like another entry.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_control) {
        let escape =
            |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        Cow::Owned(name.chars().map(escape).collect())
    } else {
        Cow::Borrowed(name)
    }
}
