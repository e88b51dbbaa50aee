//! Questions to git about a repository. They run in the sandbox of a read-only command.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atelier_core::policy::call::Command;
use atelier_core::policy::git::ProtectedPaths;

use super::runner::Runner;
use super::{Access, CommandSpec, Ending, Outcome, git};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::ignored::Ignored;
use crate::workspace::Workspace;

/// A repository that needs longer is too large to be scanned before each command.
const LONGEST: Duration = Duration::from_secs(20);
const LARGEST: usize = 128 << 20;

/// How many scanned repositories of a workspace are remembered.
const REMEMBERED: usize = 16;

/// Git's answer to a question.
pub(crate) struct GitAnswer {
    pub(crate) success: bool,
    pub(crate) stdout: String,
}

/// Identifies a history that was scanned for protected files, and the rules of the scan.
#[derive(Debug)]
pub(crate) struct ScannedHistory {
    pub(crate) top: PathBuf,
    pub(crate) tips: String,
    pub(crate) ignored: Arc<Ignored>,
    pub(crate) secrets: Vec<String>,
}

impl ScannedHistory {
    fn same(&self, other: &Self) -> bool {
        let unruled = self.ignored.is_empty() && other.ignored.is_empty();
        self.top == other.top
            && self.tips == other.tips
            && self.secrets == other.secrets
            && (unruled || Arc::ptr_eq(&self.ignored, &other.ignored))
    }
}

impl Runner {
    /// Asks git in the folder in which `command` will run. These questions run no filters and no
    /// helpers. A truncated answer is an error, because it must not pass for the whole answer.
    pub(crate) fn ask_git(
        &self,
        workspace: &Workspace,
        command: &Command,
        args: &[&str],
        cancel: &Cancel,
    ) -> Result<GitAnswer> {
        let spec = CommandSpec {
            cwd: command.cwd.clone(),
            ..CommandSpec::new("git", command.args.iter().cloned())
        };
        self.ask(workspace, &spec, args, cancel)
    }

    /// The names of all git settings in the place where `spec` will run. If git fails here, it will
    /// fail for the command as well.
    pub(super) fn configured(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        cancel: &Cancel,
    ) -> Result<String> {
        let names = ["config", "--list", "--name-only", "-z"];
        self.ask(workspace, spec, &names, cancel).map(|answer| answer.stdout)
    }

    fn ask(
        &self,
        workspace: &Workspace,
        about: &CommandSpec,
        args: &[&str],
        cancel: &Cancel,
    ) -> Result<GitAnswer> {
        let spec = question(about, args);
        whole(self.start(workspace, &spec, self.git_environment(&spec, &[]), cancel)?)
    }

    /// The result of an earlier scan of the same history, if there was one.
    pub(crate) fn recall_scan(&self, scan: &ScannedHistory) -> Option<ProtectedPaths> {
        let histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        let known = histories.iter().find(|(known, _)| known.same(scan));
        known.map(|(_, protected)| protected.clone())
    }

    pub(crate) fn remember_scan(&self, scan: ScannedHistory, protected: ProtectedPaths) {
        let mut histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        histories.retain(|(known, _)| known.top != scan.top);
        if histories.len() >= REMEMBERED {
            histories.remove(0);
        }
        histories.push((scan, protected));
    }
}

/// The command that asks a question. It has its own limits: an agent chooses the limits of its
/// command and could use them to cut the answer short.
fn question(about: &CommandSpec, args: &[&str]) -> CommandSpec {
    let args = git::place(&about.args).into_iter().chain(args.iter().map(|arg| (*arg).to_owned()));
    CommandSpec {
        args: args.collect(),
        timeout: LONGEST,
        access: Access::ReadOnly,
        network: false,
        output_limit: LARGEST,
        ..about.clone()
    }
}

fn whole(outcome: Outcome) -> Result<GitAnswer> {
    match outcome.ending {
        Ending::Exited(code) if !outcome.truncated => {
            Ok(GitAnswer { success: code == 0, stdout: outcome.stdout })
        }
        Ending::Cancelled => Err(Error::Cancelled),
        _ => {
            let source = std::io::Error::other("cut short");
            Err(Error::Sandbox { stage: "git's answer about the repository is incomplete", source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Isolation;

    #[test]
    fn half_an_answer_is_none() {
        let told = |ending, truncated| {
            let outcome = Outcome {
                ending,
                stdout: "core.bare\0".to_owned(),
                stderr: String::new(),
                truncated,
                stdout_bytes: 10,
                stderr_bytes: 0,
                elapsed: Duration::ZERO,
                isolation: Isolation::none(),
                access: Access::ReadOnly,
                network: false,
            };
            whole(outcome)
                .map(|answer| (answer.success, answer.stdout))
                .map_err(|error| error.code().known().unwrap())
        };
        assert_eq!(told(Ending::Exited(0), false), Ok((true, "core.bare\0".to_owned())));
        assert_eq!(told(Ending::Exited(128), false), Ok((false, "core.bare\0".to_owned())));
        assert_eq!(told(Ending::Exited(0), true), Err("sandbox_failed"));
        assert_eq!(told(Ending::TimedOut, false), Err("sandbox_failed"));
        assert_eq!(told(Ending::Killed(9), false), Err("sandbox_failed"));
        assert_eq!(told(Ending::Cancelled, false), Err("cancelled"));
    }

    #[test]
    fn a_question_has_its_own_limits() {
        let about = CommandSpec {
            timeout: Duration::from_millis(1),
            output_limit: 1,
            access: Access::Workspace,
            network: true,
            ..CommandSpec::new("git", ["-C", "src", "add", "."])
        };
        let asked = question(&about, &["config"]);
        assert_eq!(asked.args, ["-C", "src", "config"]);
        assert_eq!((asked.timeout, asked.output_limit), (LONGEST, LARGEST));
        assert_eq!((asked.access, asked.network), (Access::ReadOnly, false));
    }
}
