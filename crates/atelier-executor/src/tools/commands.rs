//! `execute_command`: which restrictions a command gets, whether it runs in a layer of its own, and
//! what its answer says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use atelier_core::FailureCode;
use atelier_core::gate::ToolOutcome;
use atelier_core::isolation::ProcessIsolation;
use atelier_core::policy::call;
use atelier_core::policy::verdict::Verdict;
use serde_json::{Value, json};

use super::Tools;
use super::answer::{fields, fields_and_failure};
use super::functions::ReadyCall;
use super::judge::Judged;
use super::new_repositories::Known;
use super::path_restrictions::{PathRestrictions, packs_folders};
use crate::cancel::Cancel;
use crate::door::{Entry, Record};
use crate::error::{Error, Result};
use crate::layer::{Landed, Layers};
use crate::process::{Access, CommandSpec, Ending, Outcome, Runner, detect_isolation};

/// So many paths that did not land are named.
const MOST_NAMED: usize = 10;

/// Added to the output of git and of archivers, so that the reader does not take it for everything.
const LEFT_OUT: &str = "Secret files and files that .atelierignore names are left out.";

/// Said with what an approved command prints, which may have wanted to call git.
const SEALED: &str = "Repositories were closed to this command, because their history holds files \
    that usually hold secrets or that .atelierignore names. A git that the command calls finds \
    nothing.";

/// Added where a person might believe that the project's own checks ran.
const NO_HOOKS: &str = "The project's git hooks did not run: Atelier never runs git hooks.";

pub(super) fn execute_command(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let Some(command) = ready.call.command() else {
        return Ok(ToolOutcome::failed(FailureCode::InvalidParams, "The call has no command"));
    };
    let tools = ready.tools;
    let Some(runner) = tools.runner else {
        let words = "Command not allowed: this workspace cannot run commands";
        return Ok(ToolOutcome::failed(FailureCode::CommandNotAllowed, words));
    };
    let Judged { judgement, git } = &ready.judged;
    let limits = tools.policy.limits();
    let low = judgement.verdict == Verdict::Low;
    let timeout = judgement.timeout.unwrap_or(limits.timeout_default).min(limits.timeout_max);
    // Secret files are packed only if the command names one, so that a person was asked about it.
    let mut findings = judgement.class.findings.iter();
    let names_secret = findings.any(|found| tools.policy.is_about_secrets(found));
    let packs = packs_folders(command) && !names_secret;
    let restrictions = tools.path_restrictions(command, low, low || packs, git.outside)?;
    let PathRestrictions { hidden, hooks, read_only, in_place, sealed, repositories } =
        restrictions;
    let known = Known { repositories, hidden: hidden.iter().cloned().collect() };
    let mut notes: Vec<String> = Vec::new();
    notes.extend((git.leaves_out || packs).then(|| LEFT_OUT.to_owned()));
    notes.extend((sealed && !low).then(|| SEALED.to_owned()));
    notes.extend(tools.passes_hooks_by(command).then(|| NO_HOOKS.to_owned()));
    let spec = CommandSpec {
        program: command.command.clone(),
        args: git.args.clone().unwrap_or_else(|| command.args.clone()),
        cwd: command.cwd.clone(),
        timeout: Duration::from_secs(u64::from(timeout)),
        access: if low { Access::ReadOnly } else { Access::Workspace },
        network: judgement.network && !low,
        output_limit: usize::try_from(limits.output_bytes).unwrap_or(usize::MAX),
        hidden,
        hooks,
        read_only,
        in_place,
    };
    if low {
        let outcome = runner.run(tools.workspace, &spec, ready.cancel)?;
        return Ok(ran(&outcome, timeout, &notes, None));
    }
    let finished = tools.run_and_land(runner, command, &spec, ready.cancel);
    notes.extend(tools.set_planted_aside(runner, command, &known));
    let (outcome, landed) = finished?;
    Ok(ran(&outcome, timeout, &notes, landed.as_ref()))
}

impl Tools<'_> {
    /// Runs a command that may change the workspace: in a layer of its own that lands whole when
    /// the command has ended, or in the workspace itself where it must. Returns what landed, if
    /// there was a layer.
    fn run_and_land(
        &self,
        runner: &Runner,
        command: &call::Command,
        spec: &CommandSpec,
        cancel: &Cancel,
    ) -> Result<(Outcome, Option<Result<Landed>>)> {
        let Some(layers) = self.layers else {
            return Ok((runner.run(self.workspace, spec, cancel)?, None));
        };
        if self.lands(command) {
            let fresh = layers.fresh()?;
            match runner.run_in(self.workspace, spec, Some(&fresh.places()), cancel) {
                // The program was not started. This machine, or the disk of the state folder, has
                // no layers.
                Err(Error::Sandbox { stage: "layer", .. }) => {}
                ran => {
                    let outcome = ran?;
                    let landed = layers.door.hold(self.workspace).and_then(|held| {
                        let record = Record::new("execute_command", self.origin, Vec::new());
                        fresh.land(self.workspace, &held, &record)
                    });
                    return Ok((outcome, Some(landed)));
                }
            }
        }
        self.note_direct(layers, command)?;
        Ok((runner.run(self.workspace, spec, cancel)?, None))
    }

    /// Whether the command can run in a layer. git changes repositories, which do not land. A layer
    /// does not show what is mounted below the workspace, and a process that outlives its command
    /// could change what lands.
    fn lands(&self, command: &call::Command) -> bool {
        let isolation = detect_isolation();
        command.command != "git"
            && isolation.mounts
            && isolation.processes == ProcessIsolation::PidNamespace
            && !self.workspace.is_repository(Path::new(""))
            && !has_mounts(self.workspace.root())
    }

    fn note_direct(&self, layers: &Layers, command: &call::Command) -> Result<()> {
        let words = [&command.command].into_iter().chain(&command.args);
        let mut line = words.map(String::as_str).collect::<Vec<_>>().join(" ");
        line.retain(|c| !c.is_control());
        if let Some((end, _)) = line.char_indices().nth(200) {
            line.truncate(end);
            line.push('…');
        }
        layers.door.hold(self.workspace)?.note_command("execute_command", self.origin, line)
    }
}

/// Whether something is mounted below a folder. If that cannot be found out, something may be.
fn has_mounts(root: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return true };
    table.lines().filter_map(|line| line.split(' ').nth(4)).any(|place| {
        let place = PathBuf::from(unescaped(place));
        place != root && place.starts_with(root)
    })
}

/// A path as the kernel lists it, where some characters are written as octal numbers.
fn unescaped(text: &str) -> String {
    let replace = |text: String, (code, c): (&str, &str)| text.replace(code, c);
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), replace)
}

fn ran(
    outcome: &Outcome,
    timeout: u32,
    notes: &[String],
    landed: Option<&Result<Landed>>,
) -> ToolOutcome {
    let exit_code = match outcome.ending {
        Ending::Exited(code) => Some(code),
        Ending::Killed(signal) => Some(128 + signal),
        Ending::TimedOut | Ending::Cancelled => None,
    };
    let mut body = json!({
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "exit_code": exit_code,
        "execution_time": outcome.elapsed.as_secs_f64(),
        "truncated": outcome.truncated,
        "stdout_bytes": outcome.stdout_bytes,
        "stderr_bytes": outcome.stderr_bytes,
        "access": outcome.access,
        "network": outcome.network,
        "isolation": outcome.isolation,
    });
    let mut notes = notes.to_vec();
    if let Some(Ok(landed)) = landed {
        body["changes"] = counts(landed);
        if let Some(record) = &landed.record {
            body["tool_id"] = json!(record.tool_id);
        }
        notes.extend(what_was_left(landed));
    }
    if !notes.is_empty() {
        body["note"] = json!(notes.join(" "));
    }
    if let Some(Err(error)) = landed {
        let failure = ToolOutcome::from(error);
        let (code, detail) = failure
            .failure
            .map_or((FailureCode::IoError, error.to_string()), |it| (it.code, it.detail));
        let words = format!("The command ended, but the folder stays as it was: {detail}");
        return fields_and_failure(body, code, words);
    }
    let failure = match outcome.ending {
        Ending::Exited(0) => return fields(body),
        Ending::Exited(code) => {
            (FailureCode::CommandFailed, format!("Command exited with status {code}"))
        }
        Ending::Killed(signal) => {
            (FailureCode::CommandFailed, format!("Command was ended by signal {signal}"))
        }
        Ending::TimedOut => {
            (FailureCode::CommandTimeout, format!("Command timed out after {timeout} s"))
        }
        Ending::Cancelled => (FailureCode::Cancelled, "Cancelled".to_owned()),
    };
    fields_and_failure(body, failure.0, failure.1)
}

/// How many files were added, changed and deleted, and how many of them git ignores.
fn counts(landed: &Landed) -> Value {
    let (mut added, mut changed, mut deleted, mut ignored) = (0, 0, 0, 0);
    for step in landed.record.iter().flat_map(|record| &record.steps) {
        let is_none = |entry: &Entry| matches!(entry, Entry::Absent | Entry::Folder);
        match (is_none(&step.before), is_none(&step.after)) {
            (true, true) => {}
            _ if step.is_ignored => ignored += 1,
            (true, false) => added += 1,
            (false, true) => deleted += 1,
            (false, false) => changed += 1,
        }
    }
    json!({ "added": added, "changed": changed, "deleted": deleted, "ignored": ignored })
}

fn what_was_left(landed: &Landed) -> Option<String> {
    let named: Vec<String> = landed
        .left
        .iter()
        .take(MOST_NAMED)
        .map(|(path, why)| format!("{} ({why})", path.display()))
        .collect();
    let more = landed.left.len().saturating_sub(MOST_NAMED);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty())
        .then(|| format!("Left as they were in the folder: {}{and}.", named.join(", ")))
}
