//! The second judgement, with the same policy, after paths were resolved and files were examined.

use std::path::{Path, PathBuf};

use atelier_core::isolation::Isolation;
use atelier_core::path::WorkspacePath;
use atelier_core::policy::call::{self, ToolCall};
use atelier_core::policy::sandbox::{unprotected_files, unsandboxed};
use atelier_core::policy::verdict::{Judgement, Verdict};
use atelier_core::policy::{Access, PathUse, Policy};
use atelier_core::tools::Rating;
use atelier_core::{FailureCode, TextEncoding};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::history::GitRun;
use super::path_restrictions::PathRestrictions;
use super::{Tools, exact};
use crate::described::Described;
use crate::error::{Error, Result};
use crate::process::detect_isolation;
use crate::read::Part;
use crate::text::{TextFile, encoded};
use crate::walk::Kind;
use crate::workspace::{relative, to_workspace_path};
use crate::{beneath, links};

/// The change that a call would make, for the person who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// A file is written.
    Write {
        /// Checksum of the current file; `None` if it does not exist.
        base_checksum: Option<String>,
        /// The text of the current file; `None` if it does not exist or is not text.
        before: Option<String>,
        after: String,
        /// Whether the file would be the same afterwards, byte for byte.
        unchanged: bool,
    },
    /// Something is deleted, or moved to a place that is free. Or an edit of a secret file does not
    /// fit its content.
    Entry(Described),
    /// A layer is landed, or changes are undone.
    Landing {
        /// Changes with each side of each file: what is there now, and what would be there.
        digest: String,
        /// All files, as a unified diff.
        diff: String,
    },
}

impl Preview {
    /// Checksum of what the preview was made from.
    pub fn base_checksum(&self) -> Option<&str> {
        match self {
            Self::Write { base_checksum, .. } => base_checksum.as_deref(),
            Self::Entry(described) => Some(&described.checksum),
            Self::Landing { digest, .. } => Some(digest),
        }
    }

    /// Whether the call would leave everything as it is.
    pub fn is_unchanged(&self) -> bool {
        matches!(self, Self::Write { unchanged: true, .. })
    }
}

/// A call that is about to run, with its judgement.
pub(super) struct Judged {
    pub(super) judgement: Judgement,
    /// How it runs, if it is a git command.
    pub(super) git: GitRun,
}

impl Tools<'_> {
    /// The strictest verdict on the call's text and on everything that it names, with links
    /// resolved.
    pub fn judge(&self, call: &ToolCall) -> Judgement {
        self.judge_whole(call).judgement
    }

    pub(super) fn judge_whole(&self, call: &ToolCall) -> Judged {
        let mut judgement = self.policy.judge(call, self.roots);
        if judgement.verdict == Verdict::Deny {
            return Judged { judgement, git: GitRun::default() };
        }
        // A class of calls is named by its rule, so a rule of files says which tool it is about.
        let about = judgement.subject().to_owned();
        for used in self.policy.paths(call, self.roots) {
            let found = self.judge_path(call, &used);
            let found = if found.rule.starts_with("file.") { found.about(&about) } else { found };
            judgement = judgement.stricter(found);
        }
        let Some(command) = call.command() else {
            let judgement = self.judge_layered(call, judgement);
            return Judged { judgement, git: GitRun::default() };
        };
        let judgement = self.judge_patches(command, judgement);
        let Judged { judgement, git } = self.judge_git(command, judgement);
        let judgement = self.judge_isolation(&detect_isolation(), command, judgement);
        Judged { judgement, git }
    }

    /// The change that a call would make, without making it. Fails if the call cannot be done.
    pub fn preview(&self, call: &ToolCall) -> Result<Option<Preview>> {
        if !call.tool.has_preview {
            return Ok(None);
        }
        if call.tool.rating == Rating::Landing {
            return self.preview_landing(call).map(Some);
        }
        match (call.path_used_to(Access::Remove), call.path_used_to(Access::Write)) {
            (Some(path), None) => {
                let there = self.describe(path)?;
                if there.kind == Kind::Directory && there.size > 0 {
                    return Err(Error::NotEmpty { path: path.as_str().to_owned() });
                }
                Ok(Some(Preview::Entry(there)))
            }
            (Some(source), Some(destination)) => {
                let there = self.describe(source)?;
                match self.workspace.describe_entry(destination) {
                    Err(Error::NotFound { .. }) => {
                        destination
                            .parent()
                            .map(|folder| self.workspace.info(&folder))
                            .transpose()?;
                        Ok(Some(Preview::Entry(there)))
                    }
                    Ok(_) => Err(Error::Exists { path: destination.as_str().to_owned() }),
                    Err(error) => Err(error),
                }
            }
            (None, _) => {
                let error = match self.preview_write(call) {
                    Err(error) => error,
                    shown => return shown,
                };
                // The error about an edit that does not fit would reveal something about the file.
                // Nobody has been asked about a secret file yet, so the person is asked, and learns
                // that the edit fails.
                let path = call.path("path")?;
                match self.describe(path).ok().filter(|_| self.reads_as_secret(path)) {
                    Some(there) => Ok(Some(Preview::Entry(there))),
                    None => Err(error),
                }
            }
        }
    }

    /// Describes the entry at a path, without the content of a file that needs approval to be read:
    /// the preview is stored with the call, and whoever asked for the call can see it.
    pub(super) fn describe(&self, path: &WorkspacePath) -> Result<Described> {
        let mut there = self.workspace.describe_entry(path)?;
        there.text = there.text.filter(|_| !self.reads_as_secret(path));
        Ok(there)
    }

    fn preview_write(&self, call: &ToolCall) -> Result<Option<Preview>> {
        let path = call.path("path")?;
        let edits = call.tool.param("edits").map(|_| exact(call.edits("edits")));
        let old = match self.workspace.read(path, Part::Whole) {
            Ok(content) => Some(content),
            Err(Error::NotFound { .. }) if edits.is_none() => None,
            Err(error) => return Err(error),
        };
        if let Some(read) = call.optional_text("if_checksum")
            && old.as_ref().map(|old| old.checksum.as_str()) != Some(read)
        {
            return Err(Error::Conflict { path: path.as_str().to_owned() });
        }
        let needs_folder = edits.is_none() && !call.flag("create_dirs") && old.is_none();
        let lacks = |folder: WorkspacePath| {
            matches!(self.workspace.info(&folder), Err(Error::NotFound { .. }))
        };
        if needs_folder && path.parent().is_some_and(lacks) {
            return Err(Error::NoFolder { path: path.as_str().to_owned() });
        }
        let base_checksum = old.as_ref().map(|old| old.checksum.clone());
        let bytes = old.map(|old| old.bytes).unwrap_or_default();
        if let Some(edits) = edits {
            let file = TextFile::parse(path, bytes.clone())?;
            let (after, new) = file.edited(path, &edits)?;
            let (before, unchanged) = (Some(file.text), new == bytes);
            return Ok(Some(Preview::Write { base_checksum, before, after, unchanged }));
        }
        let content = call.text("content")?;
        let found = TextEncoding::decode(bytes.clone());
        let encoding = found.as_ref().map_or(TextEncoding::UTF_8, |(_, encoding)| *encoding);
        // Nobody is asked about a text that the file cannot hold.
        encoded(path, encoding.encode(content))?;
        let appends = call.chose("mode", "append");
        let is_same = match appends {
            true => content.is_empty(),
            false => encoding.encode_file(content).is_ok_and(|new| new == bytes),
        };
        let unchanged = is_same && base_checksum.is_some();
        let before = found.map(|(text, _)| text);
        let after = match appends {
            true => {
                let before = before.clone();
                before.unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned()) + content
            }
            false => content.to_owned(),
        };
        // An empty file is text, and so is a file that does not exist yet.
        let before = before.filter(|_| base_checksum.is_some());
        Ok(Some(Preview::Write { base_checksum, before, after, unchanged }))
    }

    fn judge_path(&self, call: &ToolCall, used: &PathUse) -> Judgement {
        let judgement = self.judge_place(call, used);
        // Repositories are read-only for commands. In a conversation's own files, nobody uses git.
        let writes = call.command().is_none()
            && used.access != Access::Read
            && !self.policy.is_for_own_files();
        if !writes || !self.workspace.writes_repository(relative(&used.path)) {
            return judgement;
        }
        let reason = format!(
            "{} belongs to a git repository, or makes its folder into one. The settings of a \
             repository can start programs when somebody uses git there.",
            used.path.as_str()
        );
        judgement.stricter(Judgement::new(Verdict::High, "file.repository", reason))
    }

    fn judge_place(&self, call: &ToolCall, used: &PathUse) -> Judgement {
        let is_command = call.command().is_some();
        let shown = if is_command { used.raw.as_str() } else { used.path.as_str() };
        let ws = self.workspace;
        // The name is checked as well, because git may still have a file that no longer exists
        // here.
        if ws.ignored().is_ok_and(|ignored| ignored.hides(relative(&used.path), false)) {
            return Judgement::denied(
                FailureCode::NotFound,
                "path.ignored",
                format!("Path {shown} does not exist"),
            );
        }
        let walked = self.as_the_kernel_walks(call, used);
        let real = match self.resolve(&walked, used.access) {
            Ok(real) => real,
            Err(Errno::XDEV) => {
                let reason = format!("Path {shown} is outside workspace bounds");
                return Judgement::denied(FailureCode::PathOutsideWorkspace, "path.link", reason);
            }
            Err(Errno::LOOP) => {
                return Judgement::denied(
                    FailureCode::TooManyLinks,
                    "path.link",
                    format!("{shown} goes through too many links."),
                );
            }
            // A path that does not exist leads nowhere. The tool or the program will report it.
            Err(_) => return Judgement::new(Verdict::Low, "path", "The path does not exist."),
        };
        let kind = beneath::open(ws.handle(), &real, OFlags::PATH)
            .ok()
            .and_then(|fd| rustix::fs::fstat(&fd).ok())
            .map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_dir = kind == Some(FileType::Directory);
        if ws.ignored().is_ok_and(|ignored| ignored.hides(&real, is_dir)) {
            return Judgement::denied(
                FailureCode::NotFound,
                "path.ignored",
                format!("Path {shown} does not exist"),
            );
        }
        // A pipe or a device would hang or flood whoever reads it.
        if (is_command || call.tool.opens_files())
            && !matches!(
                kind,
                None | Some(FileType::Directory | FileType::RegularFile | FileType::Symlink)
            )
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
        // Under another name, the hidden content of the folder would become visible.
        if is_command && used.access == Access::Remove && is_dir && ws.holds_hidden(&real) {
            let reason = format!(
                "{shown} contains files that are hidden from agents, so it cannot be moved or \
                 deleted."
            );
            return Judgement::denied(FailureCode::PathProtected, "path.ignored", reason);
        }
        if used.access == Access::Read && ws.is_sealed(&real) {
            let reason =
                format!("{shown}: Only git commands read what git keeps inside a repository.");
            return Judgement::denied(FailureCode::PathNotAllowed, "file.repository", reason);
        }
        match to_workspace_path(&real, shown) {
            Ok(resolved) => {
                let judgement = self.policy.judge_resolved(&resolved, used.access, is_dir);
                match call.command() {
                    Some(command) if is_dir && command.command == "cp" => {
                        judgement.stricter(self.policy.judge_copied(&resolved))
                    }
                    _ => judgement,
                }
            }
            Err(error) => {
                Judgement::denied(FailureCode::PathOutsideWorkspace, "path.link", error.to_string())
            }
        }
    }

    /// Resolves a path. A removal affects the name itself, so a link at the end is not followed.
    pub(super) fn resolve(&self, walked: &Path, access: Access) -> Result<PathBuf, Errno> {
        let (handle, root) = (self.workspace.handle(), self.workspace.root());
        match (access, walked.file_name()) {
            (Access::Remove, Some(name)) => {
                Ok(links::resolve(handle, root, walked.parent().unwrap_or(Path::new("")))?
                    .join(name))
            }
            _ => links::resolve(handle, root, walked),
        }
    }

    /// As text, `lnk/../x` is `x`, but on disk it can be another file. So the words of a command
    /// are resolved as the kernel does it.
    fn as_the_kernel_walks(&self, call: &ToolCall, used: &PathUse) -> PathBuf {
        let Some(command) = call.command() else { return relative(&used.path).to_owned() };
        let raw = Path::new(&used.raw);
        if raw.is_absolute() {
            return raw
                .strip_prefix(self.workspace.root())
                .map_or_else(|_| relative(&used.path).to_owned(), Path::to_owned);
        }
        relative(&command.cwd).join(raw)
    }

    /// Makes a command MEDIUM if the machine cannot keep it from writing and from the network, and
    /// HIGH if there are files to protect and the machine cannot protect them.
    ///
    /// A permission for a class of calls covers only this command for this reason, because both are
    /// part of the rule's name.
    fn judge_isolation(
        &self,
        isolation: &Isolation,
        command: &call::Command,
        judgement: Judgement,
    ) -> Judgement {
        let (unsandboxed, unprotected) = (unsandboxed(&judgement), unprotected_files(&judgement));
        let mut judgement = judgement;
        if !isolation.enforces_read_only() {
            judgement = judgement.stricter(unsandboxed);
        }
        let low = judgement.verdict == Verdict::Low;
        let bare =
            |found: &PathRestrictions| !found.hidden.is_empty() || !found.read_only.is_empty();
        if !isolation.mounts
            && self.path_restrictions(command, low, low, false).as_ref().is_ok_and(bare)
        {
            judgement = judgement.stricter(unprotected);
        }
        judgement
    }

    pub(super) fn is_secret(&self, path: &Path) -> bool {
        is_secret(self.policy, path)
    }

    pub(super) fn reads_as_secret(&self, path: &WorkspacePath) -> bool {
        reads_as_secret(self.policy, path)
    }
}

/// Whether people are asked before they read the file at the path.
pub(super) fn is_secret(policy: &Policy, path: &Path) -> bool {
    let judged = to_workspace_path(path, "").or_else(|_| {
        // No tool accepts such a name, but commands can meet it. The part after a control
        // character counts as a name, and inside a folder no special meaning applies to the
        // beginning of a path.
        let text = format!("x/{}", path.to_string_lossy().replace(char::is_control, "/"));
        to_workspace_path(Path::new(&text), "")
    });
    judged.map_or(true, |path| reads_as_secret(policy, &path))
}

fn reads_as_secret(policy: &Policy, path: &WorkspacePath) -> bool {
    policy.judge_resolved(path, Access::Read, false).verdict > Verdict::Low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{Functions, Origin};
    use crate::workspace::{Options, Workspace};
    use atelier_core::path::Roots;
    use serde_json::json;

    /// A permission for a class compares rules, so it must not cover another command or another
    /// reason.
    #[test]
    fn unsandboxed_each_command_and_each_reason_is_its_own_class() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), Options::default()).unwrap();
        let roots = Roots::relative_only();
        let tools = Tools {
            workspace: &workspace,
            runner: None,
            policy: Policy::builtin(),
            roots: &roots,
            functions: Functions::builtin(),
            layers: None,
            origin: Origin::local(),
        };
        let judged = |isolation: &Isolation, words: &[&str]| {
            let params = json!({ "command": words[0], "args": words[1..] });
            let (call, judgement) =
                Policy::builtin().judge_request("execute_command", params, &roots);
            let call = call.unwrap_or_else(|error| panic!("{error}: {judgement:?}"));
            let judged = tools.judge_isolation(isolation, call.command().unwrap(), judgement);
            (judged.verdict, judged.rule)
        };
        let (some, none) = (Isolation { mounts: true, ..Isolation::none() }, Isolation::none());
        assert_eq!(judged(&some, &["ls"]), (Verdict::Medium, "ls isolation".to_owned()));
        assert_eq!(judged(&some, &["wc", "x"]), (Verdict::Medium, "wc isolation".to_owned()));
        assert_eq!(judged(&none, &["ls"]), (Verdict::High, "ls isolation.files".to_owned()));
        assert_eq!(
            judged(&none, &["mkdir", "x"]),
            (Verdict::High, "mkdir isolation.files".to_owned())
        );
    }
}
