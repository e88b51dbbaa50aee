//! The rules for a conversation's own files, which agents and MCP hosts use on the server.

use super::{
    Access, Policy,
    verdict::{Judgement, Verdict},
};
use crate::{gate::ToolOutcome, path::WorkspacePath};

const NOBODY_TO_ASK: &str = "Nobody can be asked about it here; the user can do it themselves.";

impl Policy {
    /// The policy for a workspace that holds a conversation's own files. Writing, editing, moving
    /// and creating directories get `change_verdict`, unless the class of the file is stricter. It
    /// can be Low, because every version is kept and nothing is lost. Deleting and commands are
    /// rated as before.
    pub fn for_own_files(&self, change_verdict: Verdict) -> Policy {
        Policy { change_verdict, ..self.clone() }
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
