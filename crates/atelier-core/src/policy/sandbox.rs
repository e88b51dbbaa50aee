//! How commands are rated on machines that cannot sandbox them. The server rates by what a machine
//! reported when it connected; the machine rates again by what it finds.
//!
//! The rule of these judgements names the command, so a permission for the class covers only this
//! command.

use super::verdict::{Judgement, Verdict};

/// The judgement of a command on a machine that cannot keep commands from writing and from the
/// network. Every command is asked about there.
pub fn unsandboxed(judged: &Judgement) -> Judgement {
    let reason = "The machine cannot sandbox commands, so every command needs approval.";
    Judgement::new(Verdict::Medium, format!("{} isolation", judged.subject()), reason)
}

/// The judgement of a command in a workspace with protected files, on a machine that cannot hide
/// files from commands.
pub fn unprotected_files(judged: &Judgement) -> Judgement {
    let reason = "This workspace has protected files, and the machine cannot keep commands from \
                  them.";
    Judgement::new(Verdict::High, format!("{} isolation.files", judged.subject()), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judgements_name_the_command() {
        let judged = Judgement::new(Verdict::Low, "git.push --force", "It reads.");
        let rated = |judgement: Judgement| (judgement.verdict, judgement.rule);
        assert_eq!(rated(unsandboxed(&judged)), (Verdict::Medium, "git.push isolation".into()));
        let files = rated(unprotected_files(&judged));
        assert_eq!(files, (Verdict::High, "git.push isolation.files".into()));
    }
}
