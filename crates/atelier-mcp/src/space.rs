//! The directory that is served, and what its owner decided about it.

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
    /// What the root is called in messages, and under which absolute name it is addressed.
    pub root_name: String,
    pub extra_tools: bool,
    pub read_only: bool,
    /// Largest file that is read or written, in bytes.
    pub max_file_size: u64,
    /// Sync every write to disk before answering.
    pub durable: bool,
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
        // The host may know the directory by the name it was started with, by its real name, or by ours.
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

    /// The signal of calls that nobody can stop.
    pub(crate) fn never(&self) -> &Cancel {
        &self.0.never
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// The checked form of a path that a caller wrote.
    pub(crate) fn path(&self, raw: &str) -> Result<WorkspacePath, Failure> {
        WorkspacePath::parse(raw, &self.0.roots).map_err(|error| Failure::new(error.to_string()))
    }

    pub(crate) fn access_denied(&self) -> Failure {
        Failure::new(format!("Access denied. Path must be within {}", self.0.settings.root_name))
    }

    /// What the policy refuses to everybody (executables, repositories) is refused here too. What it would
    /// ask a person about is left to the host, which asks for every call.
    pub(crate) fn refused(&self, path: &WorkspacePath, access: Access) -> Option<String> {
        let judgement = Policy::builtin().judge_resolved(path, access, false);
        (judgement.verdict == Verdict::Deny).then_some(judgement.reason)
    }

    /// The path to write to. Writing goes through no link, so a link that stays inside is followed by name first.
    pub(crate) fn behind_links(&self, path: &WorkspacePath) -> Result<WorkspacePath, Error> {
        self.0.workspace.resolve(path)
    }
}

/// A name as it can be shown on a line of its own: a newline in it must not pass for another entry.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_control) {
        let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        Cow::Owned(name.chars().map(escape).collect())
    } else {
        Cow::Borrowed(name)
    }
}
