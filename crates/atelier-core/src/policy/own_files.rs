//! The rules for a conversation's own files, which agents and MCP hosts use on the server.

use super::{
    Access, Policy,
    verdict::{Judgement, Verdict},
};
use crate::{
    failure::FailureCode,
    gate::ToolOutcome,
    path::{Roots, WorkspacePath},
};

const NOBODY_TO_ASK: &str = "Nobody can be asked about it here; the user can do it themselves.";

impl Policy {
    /// The policy for a workspace that holds a conversation's own files.
    ///
    /// The files are versions in a store: nothing runs them, and whatever is overwritten or deleted
    /// can be restored. So everything that changes a file gets `change_verdict`, which is Low
    /// unless a server's owner wants a question, and files of every kind can be read. What is
    /// denied elsewhere is denied here: leaving the workspace, executables, device names, the
    /// inside of `.git`, and `.atelierignore`. The kinds of files that a server's owner has added,
    /// and all restrictions, hold here as well.
    pub fn for_own_files(&self, change_verdict: Verdict) -> Policy {
        Policy {
            change_verdict,
            own_files: true,
            files: self.files.for_own_files(),
            ..self.clone()
        }
    }

    /// Whether these are the rules for a conversation's own files.
    pub fn is_for_own_files(&self) -> bool {
        self.own_files
    }

    /// Why a program may not work in the folder by itself; `None` if it may. The changes of a run
    /// are seen only afterwards. So if the rules ask about any change or refuse it, runs are
    /// refused.
    pub fn refuses_runs(&self) -> Option<String> {
        let file = WorkspacePath::parse("file", &Roots::relative_only()).ok()?;
        let changes = [
            ("write_file", Access::Write),
            ("edit_file", Access::Write),
            ("move_file", Access::Remove),
            ("delete_file", Access::Remove),
        ];
        let refused = |(tool, access)| {
            let judgement = self.judge_path(tool, &file, access);
            (judgement.verdict > Verdict::Low).then_some(judgement.reason)
        };
        let why = changes.into_iter().find_map(refused)?;
        Some(format!("{why} So programs change these files through tools, where people are asked."))
    }

    /// Why the rules refuse the path to a tool where nobody can be asked; `None` if they allow it.
    pub fn refuses_unasked(
        &self,
        tool: &str,
        path: &WorkspacePath,
        access: Access,
    ) -> Option<String> {
        refusal(&self.judge_path(tool, path, access))
    }
}

/// The judgement of a command, which nothing runs in the workspace of a conversation.
pub(super) fn no_commands() -> Judgement {
    Judgement::denied(
        FailureCode::CommandNotAllowed,
        "own_files",
        "Command not allowed: no commands run in the workspace of a conversation.",
    )
}

/// Why a call with this rating is refused where nobody is asked; `None` if it may run.
fn refusal(judgement: &Judgement) -> Option<String> {
    match judgement.verdict {
        Verdict::Low => None,
        Verdict::Deny => Some(judgement.reason.clone()),
        Verdict::Medium | Verdict::High => Some(format!("{} {NOBODY_TO_ASK}", judgement.reason)),
    }
}

/// Adds to the outcome of a call that needs an approval that nobody can give it.
pub fn explain_refusal(outcome: &mut ToolOutcome) {
    if let Some(failure) = &mut outcome.failure
        && failure.refusal.as_ref().is_some_and(|refusal| refusal.verdict.needs_approval())
    {
        failure.detail = format!("{} {NOBODY_TO_ASK}", failure.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_an_approval_is_refused_and_explained() {
        for (verdict, expected) in [
            (Verdict::Low, None),
            (Verdict::Medium, Some(format!("Why. {NOBODY_TO_ASK}"))),
            (Verdict::High, Some(format!("Why. {NOBODY_TO_ASK}"))),
            (Verdict::Deny, Some("Why.".to_owned())),
        ] {
            let judgement = Judgement::new(verdict, "rule", "Why.");
            assert_eq!(refusal(&judgement), expected, "{verdict}");
            if verdict > Verdict::Low {
                let mut outcome = ToolOutcome::refused(&judgement);
                explain_refusal(&mut outcome);
                assert_eq!(outcome.failure.map(|failure| failure.detail), expected, "{verdict}");
            }
        }
    }
}
