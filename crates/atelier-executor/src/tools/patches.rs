//! What a patch would write. Its command names only the patch, so the names in it are judged as well, as if each of
//! those files were written by its own call.

use atelier_core::path::WorkspacePath;
use atelier_core::policy::Access;
use atelier_core::policy::call::{self, ToolCall};
use atelier_core::policy::verdict::{Judgement, Verdict};

use super::Tools;
use crate::error::Error;
use crate::read::Part;

impl Tools<'_> {
    pub(super) fn judge_patches(&self, command: &call::Command, judgement: Judgement) -> Judgement {
        if !applies_patches(command) {
            return judgement;
        }
        let call = ToolCall::ExecuteCommand(command.clone());
        let files = self.policy.paths(&call, self.roots);
        let files = files.into_iter().filter(|used| used.access == Access::Read);
        files.fold(judgement, |judgement, used| {
            let found = match self.workspace.read(&used.path, Part::Whole) {
                Ok(patch) => self.judge_patch(&String::from_utf8_lossy(&patch.bytes)),
                // The directory it works in, or nothing: no patch.
                Err(Error::NotFound { .. } | Error::NotAFile { .. }) => return judgement,
                Err(error) => {
                    let reason = format!("What the patch would write cannot be told: {error}.");
                    Judgement::new(Verdict::High, "unread", reason)
                }
            };
            let about = judgement.rule.split(' ').next().unwrap_or_default();
            let rule = format!("{about} {}", found.rule);
            judgement.stricter(Judgement { rule, ..found })
        })
    }

    fn judge_patch(&self, patch: &str) -> Judgement {
        let mut worst = Judgement::new(Verdict::Low, "patch", "It changes files of the project.");
        for line in patch.lines() {
            if let Some(mode) = line.strip_prefix("new file mode ").or(line.strip_prefix("new mode "))
                && mode.trim() != "100644"
            {
                let reason = "The patch makes a link, or a file that can be run.";
                worst = worst.stricter(Judgement::new(Verdict::High, "mode", reason));
            }
            for name in names(line) {
                // However many folders the command strips, one of these is the file.
                for at in name.match_indices('/').map(|(slash, _)| slash + 1).chain([0]) {
                    let Ok(path) = WorkspacePath::parse(&name[at..], self.roots) else { continue };
                    worst = worst.stricter(self.policy.judge_resolved(&path, Access::Write, false));
                }
            }
        }
        worst
    }
}

/// Wherever the word stands: a patch too many is looked at rather than one too few.
fn applies_patches(command: &call::Command) -> bool {
    let sub = || command.args.iter().any(|arg| arg == "apply" || arg == "am");
    command.command == "patch" || (command.command == "git" && sub())
}

/// The files that a line of a patch names, in any of its formats.
fn names(line: &str) -> Vec<String> {
    const BEFORE: [&str; 7] = ["+++ ", "--- ", "*** ", "rename to ", "copy to ", "Index: ", "diff --git "];
    let Some(rest) = BEFORE.iter().find_map(|before| line.strip_prefix(before)) else { return Vec::new() };
    // Behind a tab comes the time.
    let rest = rest.split('\t').next().unwrap_or(rest).trim_end();
    let mut names = vec![unquoted(rest)];
    if line.starts_with("diff --git ") {
        names.extend(rest.match_indices(' ').map(|(at, _)| unquoted(&rest[at + 1..])));
    }
    names
}

/// git writes names in quotes that hold more than plain characters.
fn unquoted(name: &str) -> String {
    name.trim_matches('"').replace("\\\"", "\"").replace("\\\\", "\\")
}
