//! The second judgement: the same policy, now that it is known where paths lead and what lies there.

use std::path::{Path, PathBuf};

use atelier_core::FailureCode;
use atelier_core::isolation::Isolation;
use atelier_core::path::WorkspacePath;
use atelier_core::policy::call::{self, ToolCall, WriteMode};
use atelier_core::policy::verdict::{Judgement, Verdict};
use atelier_core::policy::{Access, PathUse};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::veil::Veil;
use super::{Tools, exact};
use crate::error::{Error, Result};
use crate::process::detect_isolation;
use crate::read::Part;
use crate::workspace::{relative, to_workspace_path};
use crate::write::apply;
use crate::{beneath, links};

/// What a write would change, for the person who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Checksum of the file as it is; none when there is none yet.
    pub base_checksum: Option<String>,
    /// Its text; none when there is no file or it is not text.
    pub before: Option<String>,
    pub after: String,
}

/// A call as it stands when it is about to run.
pub(super) struct Judged {
    pub(super) judgement: Judgement,
    /// A git command's arguments, where what is guarded is left out of what it shows.
    pub(super) without_guarded: Option<Vec<String>>,
}

impl Tools<'_> {
    /// The text's verdict and those of everything it names, resolved; the strictest stands.
    pub fn judge(&self, call: &ToolCall) -> Judgement {
        self.judge_whole(call).judgement
    }

    pub(super) fn judge_whole(&self, call: &ToolCall) -> Judged {
        let mut judgement = self.policy.judge(call, self.roots);
        if judgement.verdict == Verdict::Deny {
            return Judged { judgement, without_guarded: None };
        }
        // A class of calls is named by its rule, so a rule of files says which tool it is about.
        let about = judgement.rule.split(' ').next().unwrap_or_default().to_owned();
        for used in self.policy.paths(call, self.roots) {
            let mut found = self.judge_path(call, &used);
            if found.rule.starts_with("file.") {
                found.rule = format!("{about} {}", found.rule);
            }
            judgement = judgement.stricter(found);
        }
        let ToolCall::ExecuteCommand(command) = call else {
            return Judged { judgement, without_guarded: None };
        };
        let judgement = self.judge_patches(command, judgement);
        let Judged { judgement, without_guarded } = self.judge_git(command, judgement);
        let judgement = self.judge_isolation(&detect_isolation(), command, judgement);
        Judged { judgement, without_guarded }
    }

    /// What a call that writes a file would make of it. Changes nothing.
    pub fn preview(&self, call: &ToolCall) -> Result<Option<Preview>> {
        let (path, after): (_, &dyn Fn(Vec<u8>) -> Result<String>) = match call {
            ToolCall::WriteFile { path, content, mode: WriteMode::Write, .. } => {
                (path, &|_| Ok(content.clone()))
            }
            ToolCall::WriteFile { path, content, mode: WriteMode::Append, .. } => {
                (path, &|old| Ok(String::from_utf8_lossy(&old).into_owned() + content))
            }
            ToolCall::EditFile { path, edits, .. } => (path, &|old| apply(path, old, &exact(edits))),
            _ => return Ok(None),
        };
        let old = match self.workspace.read(path, Part::Whole) {
            Ok(content) => Some(content),
            Err(Error::NotFound { .. }) if !matches!(call, ToolCall::EditFile { .. }) => None,
            Err(error) => return Err(error),
        };
        if let ToolCall::WriteFile { if_checksum: Some(read), .. }
        | ToolCall::EditFile { if_checksum: Some(read), .. } = call
            && old.as_ref().map(|old| &old.checksum) != Some(read)
        {
            return Err(Error::Conflict { path: path.as_str().to_owned() });
        }
        if let ToolCall::WriteFile { create_dirs: false, .. } = call
            && old.is_none()
            && path
                .parent()
                .is_some_and(|folder| matches!(self.workspace.info(&folder), Err(Error::NotFound { .. })))
        {
            return Err(Error::NoFolder { path: path.as_str().to_owned() });
        }
        let bytes = old.as_ref().map(|old| old.bytes.clone()).unwrap_or_default();
        Ok(Some(Preview {
            after: after(bytes)?,
            base_checksum: old.as_ref().map(|old| old.checksum.clone()),
            before: old.and_then(|old| String::from_utf8(old.bytes).ok()),
        }))
    }

    fn judge_path(&self, call: &ToolCall, used: &PathUse) -> Judgement {
        let shown = match call {
            ToolCall::ExecuteCommand(_) => used.raw.as_str(),
            _ => used.path.as_str(),
        };
        let ws = self.workspace;
        // By its name alone as well: git may still have what is not there any more.
        if ws.ignored().is_ok_and(|ignored| ignored.hides(relative(&used.path), false)) {
            return Judgement::denied(FailureCode::NotFound, "path.ignored", format!("Not found: {shown}"));
        }
        let walked = self.as_the_kernel_walks(call, used);
        let real = match self.resolve(&walked, used.access) {
            Ok(real) => real,
            Err(Errno::XDEV) => {
                let reason = format!("Access denied. {shown} leads outside the workspace.");
                return Judgement::denied(FailureCode::PathOutsideWorkspace, "path.link", reason);
            }
            Err(Errno::LOOP) => {
                return Judgement::denied(
                    FailureCode::TooManyLinks,
                    "path.link",
                    format!("{shown} goes through too many links."),
                );
            }
            // What is not there cannot lead anywhere; the tool or the program will say so.
            Err(_) => return Judgement::new(Verdict::Low, "path", "Nothing is there."),
        };
        let kind = beneath::open(ws.handle(), &real, OFlags::PATH)
            .ok()
            .and_then(|fd| rustix::fs::fstat(&fd).ok())
            .map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_dir = kind == Some(FileType::Directory);
        if ws.ignored().is_ok_and(|ignored| ignored.hides(&real, is_dir)) {
            return Judgement::denied(FailureCode::NotFound, "path.ignored", format!("Not found: {shown}"));
        }
        let is_command = matches!(call, ToolCall::ExecuteCommand(_));
        let opens = matches!(
            call,
            ToolCall::ReadFile { .. } | ToolCall::WriteFile { .. } | ToolCall::EditFile { .. }
        );
        // A pipe or a device would hang or flood whoever reads it.
        if (is_command || opens)
            && !matches!(kind, None | Some(FileType::Directory | FileType::RegularFile | FileType::Symlink))
        {
            return Judgement::denied(
                FailureCode::NotAFile,
                "path.special",
                format!("{shown} is neither a file nor a directory."),
            );
        }
        if !is_command && used.access != Access::Read && real != relative(&used.path) {
            return Judgement::denied(
                FailureCode::LinkRefused,
                "path.link",
                format!("Refusing to write through a link: {shown}"),
            );
        }
        // Under another name it would be hidden no more.
        if is_command && used.access == Access::Remove && is_dir && ws.holds_hidden(&real) {
            let reason = format!("{shown} holds files that are kept from agents, so it stays where it is.");
            return Judgement::denied(FailureCode::PathProtected, "path.ignored", reason);
        }
        match to_workspace_path(&real, shown) {
            Ok(resolved) => self.policy.judge_resolved(&resolved, used.access, is_dir),
            Err(error) => {
                Judgement::denied(FailureCode::PathOutsideWorkspace, "path.link", error.to_string())
            }
        }
    }

    /// What is taken away is the name itself, so a link at its end is not followed.
    fn resolve(&self, walked: &Path, access: Access) -> Result<PathBuf, Errno> {
        let (handle, root) = (self.workspace.handle(), self.workspace.root());
        match (access, walked.file_name()) {
            (Access::Remove, Some(name)) => {
                Ok(links::resolve(handle, root, walked.parent().unwrap_or(Path::new("")))?.join(name))
            }
            _ => links::resolve(handle, root, walked),
        }
    }

    /// `lnk/../x` is `x` as text and something else on disk, so a command's own words are walked.
    fn as_the_kernel_walks(&self, call: &ToolCall, used: &PathUse) -> PathBuf {
        let ToolCall::ExecuteCommand(command) = call else { return relative(&used.path).to_owned() };
        let raw = Path::new(&used.raw);
        if raw.is_absolute() {
            return raw
                .strip_prefix(self.workspace.root())
                .map_or_else(|_| relative(&used.path).to_owned(), Path::to_owned);
        }
        relative(&command.cwd).join(raw)
    }

    /// Where "no write, no network" is only hoped for, a person decides; where files cannot be hidden, as well.
    ///
    /// Whoever allows all calls like one allows that command for that reason: both are in the rule's name.
    fn judge_isolation(
        &self,
        isolation: &Isolation,
        command: &call::Command,
        judgement: Judgement,
    ) -> Judgement {
        let about = judgement.rule.split(' ').next().unwrap_or_default().to_owned();
        let mut judgement = judgement;
        if !isolation.enforces_read_only() {
            let reason = "This machine cannot keep commands from writing or from the network.";
            let rule = format!("{about} isolation");
            judgement = judgement.stricter(Judgement::new(Verdict::Medium, rule, reason));
        }
        let low = judgement.verdict == Verdict::Low;
        let bare = |veil: &Veil| !veil.hidden.is_empty() || !veil.read_only.is_empty();
        if !isolation.mounts && self.veil(command, low).as_ref().is_ok_and(bare) {
            let reason =
                "This machine cannot keep commands from files, and there are some to keep them from.";
            let rule = format!("{about} isolation.files");
            judgement = judgement.stricter(Judgement::new(Verdict::High, rule, reason));
        }
        judgement
    }

    pub(super) fn is_secret(&self, path: &Path) -> bool {
        let judged = to_workspace_path(path, "").or_else(|_| {
            // No tool takes such a name, but commands meet it: what follows a control character counts as a name, and
            // below a folder nothing means something else at its start.
            let text = format!("x/{}", path.to_string_lossy().replace(char::is_control, "/"));
            to_workspace_path(Path::new(&text), "")
        });
        judged.map_or(true, |path| self.reads_as_secret(&path))
    }

    pub(super) fn reads_as_secret(&self, path: &WorkspacePath) -> bool {
        self.policy.judge_resolved(path, Access::Read, false).verdict > Verdict::Low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Options, Workspace};
    use atelier_core::path::Roots;
    use atelier_core::policy::Policy;
    use serde_json::json;

    /// A person's "all like it" compares rules: it must not reach from one command or reason to another.
    #[test]
    fn without_walls_each_command_and_each_reason_is_a_class_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), Options::default()).unwrap();
        let roots = Roots::relative_only();
        let tools = Tools { workspace: &workspace, runner: None, policy: Policy::builtin(), roots: &roots };
        let judged = |isolation: &Isolation, words: &[&str]| {
            let params = json!({ "command": words[0], "args": words[1..] });
            let (call, judgement) = Policy::builtin().judge_request("execute_command", params, &roots);
            let Ok(ToolCall::ExecuteCommand(command)) = call else { panic!("{judgement:?}") };
            let judged = tools.judge_isolation(isolation, &command, judgement);
            (judged.verdict, judged.rule)
        };
        let (some, none) = (Isolation { mounts: true, ..Isolation::none() }, Isolation::none());
        assert_eq!(judged(&some, &["ls"]), (Verdict::Medium, "ls isolation".to_owned()));
        assert_eq!(judged(&some, &["wc", "x"]), (Verdict::Medium, "wc isolation".to_owned()));
        assert_eq!(judged(&none, &["ls"]), (Verdict::High, "ls isolation.files".to_owned()));
        assert_eq!(judged(&none, &["mkdir", "x"]), (Verdict::High, "mkdir isolation.files".to_owned()));
    }
}
