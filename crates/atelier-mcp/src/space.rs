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
    /// The rules that hold here; the built-in ones, unless given.
    pub policy: Option<Box<Policy>>,
    /// Whether a person is asked before calls come here, as hosts ask about the tools of a program they started.
    /// Where nobody is, what the rules would ask about is refused.
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

    /// Why the rules refuse this to the tool, if they do.
    pub(crate) fn refused(&self, tool: &str, path: &WorkspacePath, access: Access) -> Option<String> {
        // Not made before they are needed: a server that idles is to be small.
        let policy = match &self.0.settings.policy {
            Some(own) => own.as_ref(),
            None => Policy::builtin(),
        };
        let judgement = policy.judge_path(tool, path, access);
        match judgement.verdict {
            Verdict::Deny => Some(judgement.reason),
            verdict if verdict > Verdict::Low && !self.0.settings.asked => {
                Some(format!("{} Nobody can be asked about it here.", judgement.reason))
            }
            _ => None,
        }
    }

    /// The checked form of a path that a tool is to look at, as written and behind its links.
    pub(crate) fn seen(&self, tool: &str, raw: &str) -> Result<WorkspacePath, Failure> {
        let path = self.path(raw)?;
        // No rule keeps a person from looking.
        if self.0.settings.asked {
            return Ok(path);
        }
        let denied = |why| Failure::new(format!("Access denied - {why}"));
        self.refused(tool, &path, Access::Read).map_or(Ok(()), |why| Err(denied(why)))?;
        // What is not there, or leads outside, is the tool's to tell.
        if let Ok(real) = self.behind_links(&path) {
            self.refused(tool, &real, Access::Read).map_or(Ok(()), |why| Err(denied(why)))?;
        }
        Ok(path)
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
