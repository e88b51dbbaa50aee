//! The workspace that is served, and what its owner decided about it.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use atelier_core::path::{Roots, WorkspacePath};
use atelier_core::policy::call::{CallError, ToolCall};
use atelier_core::policy::limits::Limits;
use atelier_core::policy::verdict::Verdict;
use atelier_core::policy::{Access, Policy};
use atelier_core::tools::{Surface, ToolTable};
use atelier_executor::{Cancel, Error, Functions, Options, Origin, Tools, Workspace};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::handles::HandleShares;
use crate::reply::Failure;
use crate::watch::Watch;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the root in messages, and the absolute path under which it is addressed.
    pub root_name: String,
    pub extra_tools: bool,
    pub read_only: bool,
    /// Largest file that is read or written, in bytes.
    pub max_file_size: u64,
    /// Sync every write to disk before answering.
    pub durable: bool,
    /// The rules and tools of this workspace; the built-in ones if `None`.
    pub policy: Option<Arc<Policy>>,
    /// The functions that run tools which have no function of their own in this crate; the built-in
    /// ones if `None`.
    pub functions: Option<Functions>,
    /// Whether the host asks a person before calls arrive, as hosts do for a program that they
    /// started. Otherwise calls that the rules ask about are refused.
    pub host_asks: bool,
    /// Whether only UTF-8 is text, as the specification of the six file tools says. Otherwise texts
    /// are read and written in the encoding of their file.
    pub utf8_only: bool,
}

impl Settings {
    pub(crate) fn table(&self) -> &ToolTable {
        match &self.policy {
            Some(policy) => policy.tools(),
            None => ToolTable::builtin(),
        }
    }
}

/// A workspace that is served over MCP. Clones are handles to the same workspace.
#[derive(Debug, Clone)]
pub struct ServedWorkspace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    workspace: Workspace,
    roots: Roots,
    settings: Settings,
    watch: Watch,
    never_cancelled: Cancel,
    /// Free places for calls, so that calls at the same time do not use up the file handles.
    call_slots: Semaphore,
}

impl ServedWorkspace {
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
        // The host may know the directory by the name it was started with, by its real name, or by
        // ours.
        let mut roots = Roots::announced(settings.root_name.clone());
        for known in [Some(workspace.root()), std::path::absolute(directory).ok().as_deref()] {
            if let Some(name) = known.and_then(|path| path.to_str()) {
                roots = roots.also(name);
            }
        }
        let never_cancelled = Cancel::new().map_err(|source| Error::Io {
            action: "prepare",
            path: settings.root_name.clone(),
            source,
        })?;
        let watch = Watch::new(workspace.root().to_owned());
        let call_slots = Semaphore::new(HandleShares::of_process().calls);
        let inner = Inner { workspace, roots, settings, watch, never_cancelled, call_slots };
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn workspace(&self) -> &Workspace {
        &self.0.workspace
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// The tools of `atelier-executor`, for calls of tools that have no function of their own in
    /// this crate.
    pub(crate) fn tools(&self) -> Tools<'_> {
        Tools {
            workspace: &self.0.workspace,
            runner: None,
            policy: self.policy(),
            roots: &self.0.roots,
            functions: self.0.settings.functions.as_ref().unwrap_or_else(|| Functions::builtin()),
            layers: None,
            origin: Origin::local(),
        }
    }

    /// The cancel signal of calls that cannot be cancelled.
    pub(crate) fn never_cancelled(&self) -> &Cancel {
        &self.0.never_cancelled
    }

    /// Waits for a free place for a call. The call keeps it until it has ended.
    pub(crate) async fn call_slot(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed. If it were, calls would not be counted.
        self.0.call_slots.acquire().await.ok()
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// The built-in rules are only loaded when they are needed, so that an idle server stays small.
    fn policy(&self) -> &Policy {
        match &self.0.settings.policy {
            Some(policy) => policy,
            None => Policy::builtin(),
        }
    }

    /// Checks the arguments of a call. Limits are left to the workspace, whose errors say more.
    pub(crate) fn parse(&self, tool: &str, arguments: Value) -> Result<ToolCall, CallError> {
        let limits = Limits {
            write_bytes: u64::MAX,
            arguments: usize::MAX,
            argument_bytes: usize::MAX,
            arguments_bytes: usize::MAX,
            ..Limits::default()
        };
        let table = self.0.settings.table();
        ToolCall::parse_on(Surface::Mcp, table, tool, arguments, &self.0.roots, &limits)
    }

    /// The checked form of a path that a host wrote.
    pub(crate) fn path(&self, raw: &str) -> Result<WorkspacePath, Failure> {
        WorkspacePath::parse(raw, &self.0.roots).map_err(|error| Failure::new(error.to_string()))
    }

    pub(crate) fn access_denied(&self) -> Failure {
        Failure::new(format!("Access denied. Path must be within {}", self.0.settings.root_name))
    }

    /// Why the rules refuse to let the tool use the path, if they do.
    pub(crate) fn refused(
        &self,
        tool: &str,
        path: &WorkspacePath,
        access: Access,
    ) -> Option<String> {
        if !self.0.settings.host_asks {
            return self.policy().refuses_unasked(tool, path, access);
        }
        let judgement = self.policy().judge_path(tool, path, access);
        (judgement.verdict == Verdict::Deny).then_some(judgement.reason)
    }

    /// Refuses a path that the tool may not read, as written and with its links resolved.
    pub(crate) fn check_readable(&self, tool: &str, path: &WorkspacePath) -> Result<(), Failure> {
        // If a person decides about each call, no rule has to keep them from reading.
        if self.0.settings.host_asks {
            return Ok(());
        }
        let check = |path: &WorkspacePath| match self.refused(tool, path, Access::Read) {
            Some(why) => Err(Failure::new(format!("Access denied - {why}"))),
            None => Ok(()),
        };
        check(path)?;
        // If the path does not exist or leads outside, the tool reports it.
        self.resolve_links(path).map_or(Ok(()), |real| check(&real))
    }

    /// The path behind all links. Writes follow no link, so this is where a write through a link
    /// has to go.
    pub(crate) fn resolve_links(&self, path: &WorkspacePath) -> Result<WorkspacePath, Error> {
        self.0.workspace.resolve(path)
    }
}

/// A name as it can be shown on a line of its own: a newline in it must not pass for another entry.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_control) {
        let escape =
            |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        Cow::Owned(name.chars().map(escape).collect())
    } else {
        Cow::Borrowed(name)
    }
}
