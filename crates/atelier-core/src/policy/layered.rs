//! Rates calls that work in a layer: scripts by their destinations and by the machine's isolation,
//! landings by the files that they change.

use super::{
    Policy, ShellMode,
    call::ToolCall,
    class::CallClass,
    files::Access,
    hosts::is_local_host,
    verdict::{Judgement, Verdict},
};
use crate::{
    failure::FailureCode,
    isolation::{Isolation, NetworkIsolation, ProcessIsolation},
    path::WorkspacePath,
    tools::layered::SHELL,
};
use std::collections::BTreeSet;

/// One difference between a layer and its workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    pub path: WorkspacePath,
    pub change: ChangeKind,
    /// The path of a renamed file before.
    pub from: Option<WorkspacePath>,
    /// Whether the change is about a whole directory. A directory that is deleted or renamed is one
    /// change.
    pub is_directory: bool,
    /// Whether the file can be started as a program afterwards, and could not before.
    pub becomes_executable: bool,
}

/// The change of a file when a layer is landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Changed,
    Deleted,
    Renamed,
    /// Only the permissions of the file change.
    Mode,
}

impl ChangeKind {
    /// The kind as results name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed | Self::Mode => "changed",
            Self::Deleted => "deleted",
            Self::Renamed => "renamed",
        }
    }
}

impl FileChange {
    pub fn new(path: WorkspacePath, change: ChangeKind) -> Self {
        Self { path, change, from: None, is_directory: false, becomes_executable: false }
    }
}

impl ShellMode {
    /// The mode that a machine with this isolation allows: `Free` if all limits hold, `Off` if
    /// there are none.
    pub fn of(isolation: &Isolation) -> Self {
        let Isolation { landlock, mounts, network, processes, .. } = isolation;
        let all = *landlock > 0
            && *mounts
            && *network == NetworkIsolation::NamespaceAndSeccomp
            && *processes == ProcessIsolation::PidNamespace;
        let none = *landlock == 0
            && !*mounts
            && *network == NetworkIsolation::None
            && *processes != ProcessIsolation::PidNamespace;
        match (all, none) {
            (true, _) => Self::Free,
            (_, true) => Self::Off,
            _ => Self::Ask,
        }
    }

    /// The judgement of a script by this mode; `None` if the script may run. `who` is who has set
    /// the mode.
    pub(super) fn judgement(self, who: &str) -> Option<Judgement> {
        match self {
            Self::Free => None,
            Self::Ask => {
                let reason = format!("On {who}, every script needs approval.");
                Some(Judgement::new(Verdict::Medium, "shell ask", reason))
            }
            Self::Off => {
                let reason = format!("Command not allowed: the shell is off on {who}.");
                Some(Judgement::denied(FailureCode::CommandNotAllowed, "shell off", reason))
            }
        }
    }
}

/// The judgement of a script by the isolation of its machine. A machine that has not reported its
/// isolation (`None`) counts as a machine that has some of the limits.
pub fn judge_shell_isolation(isolation: Option<&Isolation>) -> Option<Judgement> {
    match isolation.map_or(ShellMode::Ask, ShellMode::of) {
        ShellMode::Free => None,
        ShellMode::Ask => {
            let reason = "The machine lacks a part of the sandbox, so every script needs approval. \
                          `atelier doctor` says what is missing.";
            Some(Judgement::new(Verdict::Medium, "shell isolation", reason))
        }
        ShellMode::Off => {
            let reason = "Command not allowed: the machine has no sandbox, so no script runs \
                          there. `atelier doctor` says what is missing.";
            Some(Judgement::denied(FailureCode::IsolationRequired, "shell isolation", reason))
        }
    }
}

impl Policy {
    /// Judges a script by its destinations. Its effects stay inside the layer, so they do not
    /// matter.
    pub(super) fn judge_shell(&self, call: &ToolCall) -> Judgement {
        let low = Judgement::new(Verdict::Low, SHELL.name, SHELL.reason);
        let judgement = call
            .words("network")
            .iter()
            .fold(low, |judgement, host| judgement.stricter(way_out(host)));
        let asked = call.number("timeout").and_then(|seconds| u32::try_from(seconds).ok());
        let timeout = Some(asked.unwrap_or(self.limits.shell_timeout_default));
        self.restrict(Judgement { timeout, ..judgement }, &[SHELL.name])
    }

    /// Whether somebody has switched the shell off. Then no message should suggest to use it.
    pub(super) fn shell_is_off(&self) -> bool {
        self.restrictions.iter().any(|(_, restrictions)| {
            restrictions.shell == Some(ShellMode::Off)
                || restrictions.deny.iter().any(|key| key == SHELL.name)
        })
    }

    /// Judges the changes that landing or undoing would make: by the strictest of its files, each
    /// by the rules of the tool that could make the same change. A permission covers landings in
    /// the folders that it was given for.
    pub fn judge_changes(&self, tool: &str, changes: &[FileChange]) -> Judgement {
        let none = Judgement::new(Verdict::Medium, tool, "It changes files of the project.");
        let judged =
            changes.iter().fold(none, |judged, change| judged.stricter(self.judge_change(change)));
        // A file's own rule does not say which tool it is about.
        let class = CallClass {
            findings: judged.class.findings.iter().map(|found| named(tool, found)).collect(),
            ..judged.class
        };
        self.restrict(Judgement { rule: named(tool, &judged.rule), class, ..judged }, &[tool])
    }

    fn judge_change(&self, change: &FileChange) -> Judgement {
        let folder = |path: &WorkspacePath| {
            let reason = format!("{path} is changed.");
            Judgement::new(Verdict::Medium, top_folder(path), reason)
        };
        let write = |path: &WorkspacePath| {
            folder(path).stricter(self.judge_resolved(path, Access::Write, change.is_directory))
        };
        let remove = |path: &WorkspacePath| {
            folder(path).stricter(self.judge_resolved(path, Access::Remove, change.is_directory))
        };
        let judged = match change.change {
            ChangeKind::Added | ChangeKind::Changed | ChangeKind::Mode => write(&change.path),
            ChangeKind::Deleted => {
                let reason = format!("{} is deleted.", change.path);
                remove(&change.path).stricter(Judgement::new(Verdict::High, "deletes", reason))
            }
            ChangeKind::Renamed => {
                let source = change.from.as_ref().map(remove);
                let destination = write(&change.path);
                source.map_or(destination.clone(), |source| source.stricter(destination))
            }
        };
        if !change.becomes_executable {
            return judged;
        }
        let reason = format!("{} becomes a program that can be started.", change.path);
        judged.stricter(Judgement::new(Verdict::High, "executable", reason))
    }
}

fn named(tool: &str, found: &str) -> String {
    match found == tool || found.starts_with(&format!("{tool} ")) {
        true => found.to_owned(),
        false => format!("{tool} {found}"),
    }
}

/// The folder directly beneath the root that a file is in, as a pattern: `src/**`, or `*` for a
/// file in the root itself.
fn top_folder(path: &WorkspacePath) -> String {
    match path.components().next().filter(|_| path.depth() > 1) {
        Some(folder) => format!("{folder}/**"),
        None => "*".to_owned(),
    }
}

/// The judgement of a script that may connect to a host.
fn way_out(host: &str) -> Judgement {
    let judged = match is_local_host(host) {
        true => {
            let reason = format!(
                "It may connect to {host}, which belongs to this machine or its own network."
            );
            Judgement::new(Verdict::High, "shell network.local", reason)
        }
        false => {
            let reason = format!("It may connect to {host}.");
            Judgement::new(Verdict::Medium, "shell network", reason)
        }
    };
    let destinations = BTreeSet::from([host.to_owned()]);
    Judgement { network: true, class: CallClass { destinations, ..judged.class }, ..judged }
}

#[cfg(test)]
mod tests;
