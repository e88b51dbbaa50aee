//! Questions to git about a repository. They run in the sandbox of a read-only command.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use atelier_core::policy::call::Command;

use super::runner::Runner;
use super::{Access, CommandSpec, Ending, Outcome, git};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::{Workspace, relative};

/// A repository that needs longer is too large to be scanned before each command.
const LONGEST: Duration = Duration::from_secs(20);
const LARGEST: usize = 128 << 20;

/// How many repositories of a workspace are remembered.
pub(super) const REMEMBERED: usize = 64;

/// The files in a repository's folder that decide where git finds it and how it is configured.
pub(crate) const SETTINGS: [&str; 3] = ["HEAD", "config", "config.worktree"];

/// Git's answer to a question.
pub(crate) struct GitAnswer {
    pub(crate) success: bool,
    pub(crate) stdout: String,
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

    /// The settings that make git run a program in the place where `spec` will run it. If git
    /// cannot answer, the command fails there as well.
    pub(super) fn helpers(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        cancel: &Cancel,
    ) -> Result<Vec<String>> {
        let place = git::folder(relative(&spec.cwd), &spec.args);
        let key = workspace.discover(&place).and_then(|git_dir| {
            let fingerprint = workspace.fingerprint(&git_dir, &SETTINGS)?;
            Some((git_dir, fingerprint))
        });
        if let Some((git_dir, fingerprint)) = &key
            && let Some((known, helpers)) = self.settings().get(git_dir)
            && known == fingerprint
        {
            return Ok(helpers.clone());
        }
        let names =
            self.ask(workspace, spec, &["config", "--list", "--name-only", "-z"], cancel)?.stdout;
        let helpers = git::helpers(&names);
        // An included file can change without notice, so the answer is not remembered.
        let includes = |name: &str| name.to_ascii_lowercase().starts_with("include");
        match key {
            Some((git_dir, fingerprint)) if !names.split('\0').any(includes) => {
                let mut settings = self.settings();
                if settings.len() >= REMEMBERED {
                    settings.clear();
                }
                settings.insert(git_dir, (fingerprint, helpers.clone()));
            }
            _ => {}
        }
        Ok(helpers)
    }

    fn settings(&self) -> MutexGuard<'_, HashMap<PathBuf, (u64, Vec<String>)>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(
        &self,
        workspace: &Workspace,
        about: &CommandSpec,
        args: &[&str],
        cancel: &Cancel,
    ) -> Result<GitAnswer> {
        let spec = question(about, args);
        let environment = self.git_environment(&spec, &[]);
        whole(self.start(workspace, &spec, None, environment, cancel)?)
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
