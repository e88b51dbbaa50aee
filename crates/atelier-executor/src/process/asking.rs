//! Questions to git about a repository, asked in the walls of a command that only looks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atelier_core::policy::call::Command;

use super::surroundings::Runner;
use super::{CommandSpec, Ending, git};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::ignored::Ignored;
use crate::workspace::Workspace;

/// A repository about which this is not enough is too large to be looked through each time.
const LONGEST: Duration = Duration::from_secs(20);
const LARGEST: usize = 128 << 20;

/// How many repositories of a workspace are remembered.
const REMEMBERED: usize = 16;

/// What git says.
pub(crate) struct Answered {
    pub(crate) success: bool,
    pub(crate) stdout: String,
}

/// What is not to be shown, as paths from the repository's top.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guarded {
    pub(crate) secret: BTreeSet<String>,
    pub(crate) ignored: BTreeSet<String>,
}

/// A repository's history as it was looked through, and the rules by which.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) top: PathBuf,
    pub(crate) tips: String,
    pub(crate) ignored: Arc<Ignored>,
    pub(crate) secrets: Vec<String>,
}

impl Seen {
    fn same(&self, other: &Self) -> bool {
        let unruled = self.ignored.is_empty() && other.ignored.is_empty();
        self.top == other.top
            && self.tips == other.tips
            && self.secrets == other.secrets
            && (unruled || Arc::ptr_eq(&self.ignored, &other.ignored))
    }
}

impl Runner {
    /// Asks git where `command` will run. These questions run no filters and no helpers. Fails where the answer is not
    /// whole: half of one must not pass for all of it.
    pub(crate) fn ask_git(
        &self,
        workspace: &Workspace,
        command: &Command,
        args: &[&str],
        cancel: &Cancel,
    ) -> Result<Answered> {
        let args = git::place(&command.args).into_iter().chain(args.iter().map(|arg| (*arg).to_owned()));
        let spec = CommandSpec {
            cwd: command.cwd.clone(),
            timeout: LONGEST,
            output_limit: LARGEST,
            ..CommandSpec::new("git", args)
        };
        let outcome = self.start(workspace, &spec, self.git_environment(&spec, &[]), cancel)?;
        match outcome.ending {
            Ending::Exited(code) if !outcome.truncated => {
                Ok(Answered { success: code == 0, stdout: outcome.stdout })
            }
            _ => Err(Error::Sandbox { stage: "ask git", source: std::io::Error::other("no whole answer") }),
        }
    }

    /// What was found when a history was looked through that is still the same.
    pub(crate) fn recall(&self, seen: &Seen) -> Option<Guarded> {
        let histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        histories.iter().find(|(known, _)| known.same(seen)).map(|(_, guarded)| guarded.clone())
    }

    pub(crate) fn remember(&self, seen: Seen, guarded: Guarded) {
        let mut histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        histories.retain(|(known, _)| known.top != seen.top);
        if histories.len() >= REMEMBERED {
            histories.remove(0);
        }
        histories.push((seen, guarded));
    }
}
