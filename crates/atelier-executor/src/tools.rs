//! The tools of agents: a judged and approved call goes in, and JSON in the specified form comes
//! out.
//!
//! The server judged the text of the call. Here it is judged again with links resolved, and the
//! stricter verdict counts. A call that needs more than what was approved does not run.

mod answer;
mod history;
mod judge;
mod kind;
mod patches;
mod path_restrictions;
mod planted;
mod repository;

use std::time::Duration;

use atelier_core::FailureCode;
use atelier_core::gate::ToolOutcome;
use atelier_core::path::{Roots, WorkspacePath};
use atelier_core::policy::Policy;
use atelier_core::policy::call::{self, ToolCall, WriteMode};
use atelier_core::policy::class::CallClass;
use atelier_core::policy::verdict::{Judgement, Verdict};
use serde_json::json;

pub use judge::Preview;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::glob::Glob;
use crate::grep::GrepSpec;
use crate::process::{Access, CommandSpec, Ending, Outcome, Runner};
use crate::read::{Content, Part};
use crate::search::Listing;
use crate::workspace::Workspace;
use crate::write::{Edit, Expect, Mending, Written};
use answer::{Answer, fields};
use judge::Judged;
use path_restrictions::PathRestrictions;

/// Everything that is needed to run a call.
#[derive(Debug, Clone, Copy)]
pub struct Tools<'a> {
    pub workspace: &'a Workspace,
    /// Runs commands. Without it, no command runs.
    pub runner: Option<&'a Runner>,
    pub policy: &'a Policy,
    /// The absolute names under which callers may address the workspace.
    pub roots: &'a Roots,
}

/// What was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The strictest verdict that may run. LOW if nobody was asked.
    pub up_to: Verdict,
    /// Everything that was known about the call then. Empty if only the verdict counts.
    pub class: CallClass,
    /// For a write: the file it was shown against.
    pub expect: Expect,
}

impl Approval {
    /// The approval of a call about which nobody was asked.
    pub fn none() -> Self {
        Self { up_to: Verdict::Low, class: CallClass::default(), expect: Expect::Anything }
    }

    /// The approval of a call that a person makes directly.
    pub fn full() -> Self {
        Self { up_to: Verdict::High, class: CallClass::default(), expect: Expect::Anything }
    }

    /// Whether a call that is judged like this is within what was allowed: it is no more dangerous,
    /// and nothing more was found about it.
    pub fn allows(&self, judgement: &Judgement) -> bool {
        let known = self.class.findings.is_empty() || self.class.covers(&judgement.class);
        judgement.verdict != Verdict::Deny
            && judgement.verdict <= self.up_to
            && (judgement.verdict < self.up_to || known)
    }
}

impl Tools<'_> {
    /// Judges the call again and runs it if the approval allows it. It never panics or hangs, so
    /// every call gets an answer.
    pub fn execute(&self, call: &ToolCall, approval: &Approval, cancel: &Cancel) -> ToolOutcome {
        let judged = self.judge_whole(call);
        let judgement = &judged.judgement;
        if !approval.allows(judgement) {
            return ToolOutcome::refused(judgement);
        }
        match self.run(call, judged, &approval.expect, cancel) {
            Ok(answer) => answer.into(),
            Err(error) => ToolOutcome::from(&error),
        }
    }

    fn run(
        &self,
        call: &ToolCall,
        judged: Judged,
        expect: &Expect,
        cancel: &Cancel,
    ) -> Result<Answer> {
        let ws = self.workspace;
        let limits = self.policy.limits();
        Ok(match call {
            ToolCall::ReadFile { path, head, tail } => {
                let part = match (head.filter(|n| *n > 0), tail.filter(|n| *n > 0)) {
                    (Some(_), Some(_)) => {
                        return Ok(Answer::Failed(
                            FailureCode::InvalidParams,
                            "Cannot specify both 'head' and 'tail' parameters".into(),
                        ));
                    }
                    (Some(lines), None) => Part::Head(lines),
                    (None, Some(lines)) => Part::Tail(lines),
                    (None, None) => Part::Whole,
                };
                let content = ws.read(path, part)?;
                read(path.as_str(), content)?
            }
            ToolCall::WriteFile { path, content, mode, create_dirs, if_checksum } => {
                let expect = &self.unchanged(path, if_checksum.as_deref(), expect)?;
                let parents = if *create_dirs { Mending::CreateParents } else { Mending::Never };
                let written = match mode {
                    WriteMode::Write => ws.write(path, content.as_bytes(), expect, parents),
                    WriteMode::Append => ws.append(path, content.as_bytes(), expect, parents),
                };
                let written = written.map_err(|error| match error {
                    Error::NotFound { path } if parents == Mending::Never => {
                        Error::NoFolder { path }
                    }
                    other => other,
                })?;
                wrote(path.as_str(), &written)
            }
            ToolCall::EditFile { path, edits, if_checksum } => {
                let expect = &self.unchanged(path, if_checksum.as_deref(), expect)?;
                wrote(path.as_str(), &ws.edit(path, &exact(edits), expect)?)
            }
            ToolCall::ListDirectory { path, recursive, pattern } => {
                let pattern = pattern.as_ref().map_or("*", |pattern| pattern.as_str());
                let glob = Glob::parse_for_names(pattern, *recursive)?;
                let listed =
                    ws.list(path, &Listing { glob, limit: limits.list_entries }, cancel)?;
                answer::listing(path.as_str(), &listed)
            }
            ToolCall::SearchFiles { path, pattern, max_results } => {
                let limit = max_results.unwrap_or(limits.search_results).min(limits.search_results);
                let found = ws.search(path, &Glob::parse(pattern.as_str())?, limit, cancel)?;
                answer::found(path.as_str(), &found)
            }
            ToolCall::Grep(grep) => self.grep(grep, cancel)?,
            ToolCall::CreateDirectory { path } => {
                let created = ws.create_directory(path)?;
                fields(json!({ "path": path.as_str(), "created": created }))
            }
            ToolCall::GetFileInfo { path } => answer::info(path.as_str(), &ws.info(path)?),
            ToolCall::MoveFile { source, destination } => {
                self.as_shown(source, expect)?;
                ws.move_entry(source, destination, false)?;
                fields(json!({ "source": source.as_str(), "destination": destination.as_str() }))
            }
            ToolCall::DeleteFile { path } => {
                self.as_shown(path, expect)?;
                let deleted = ws.delete(path, false)?;
                fields(json!({ "path": path.as_str(), "deleted": deleted }))
            }
            ToolCall::ExecuteCommand(command) => self.command(command, judged, cancel)?,
        })
    }

    /// Checks that what is moved or deleted is what was shown.
    fn as_shown(&self, path: &WorkspacePath, expect: &Expect) -> Result<()> {
        let expected = match expect {
            Expect::Anything => return Ok(()),
            Expect::Absent => "",
            Expect::Checksum(expected) => expected,
        };
        let found = self.describe(path)?.checksum;
        match found == expected {
            true => Ok(()),
            false => {
                let path = path.as_str().to_owned();
                Err(Error::Stale { path, expected: expected.to_owned(), found })
            }
        }
    }

    /// What to expect of a file that has to be as the caller has read it. That it is not is the
    /// caller's to know; that it changes between here and the write is found out there.
    fn unchanged(
        &self,
        path: &WorkspacePath,
        read: Option<&str>,
        expect: &Expect,
    ) -> Result<Expect> {
        let Some(read) = read else { return Ok(expect.clone()) };
        let found = match self.workspace.read(path, Part::Whole) {
            Ok(content) => Some(content.checksum),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if found.as_deref() != Some(read) {
            return Err(Error::Conflict { path: path.as_str().to_owned() });
        }
        Ok(match expect {
            Expect::Anything => Expect::Checksum(read.to_owned()),
            stricter => stricter.clone(),
        })
    }

    fn grep(&self, grep: &call::Grep, cancel: &Cancel) -> Result<Answer> {
        let limit = self.policy.limits().search_results;
        let spec = GrepSpec {
            pattern: grep.pattern.clone(),
            literal: grep.literal,
            ignore_case: grep.ignore_case,
            glob: grep
                .glob
                .as_ref()
                .map(|glob| Glob::parse_for_names(glob.as_str(), true))
                .transpose()?,
            context: grep.context,
            limit: grep.max_results.unwrap_or(limit).min(limit),
        };
        // A file that is named was judged and approved. Secret files that are found on the way are
        // skipped.
        let found = self.workspace.grep(&grep.path, &spec, |path| self.is_secret(path), cancel)?;
        Ok(answer::grepped(&found))
    }

    fn command(&self, command: &call::Command, judged: Judged, cancel: &Cancel) -> Result<Answer> {
        let Judged { judgement, git } = judged;
        let Some(runner) = self.runner else {
            let words = "Command not allowed: this workspace cannot run commands";
            return Ok(Answer::Failed(FailureCode::CommandNotAllowed, words.into()));
        };
        let limits = self.policy.limits();
        let low = judgement.verdict == Verdict::Low;
        let timeout = judgement.timeout.unwrap_or(limits.timeout_default).min(limits.timeout_max);
        let restrictions = self.path_restrictions(command, low, git.outside)?;
        let PathRestrictions { hidden, hooks, read_only, in_place, sealed, repositories } =
            restrictions;
        let mut notes: Vec<&str> = Vec::new();
        notes.extend(git.leaves_out.then_some(LEFT_OUT));
        notes.extend((sealed && !low).then_some(SEALED));
        notes.extend(self.passes_hooks_by(command).then_some(NO_HOOKS));
        let spec = CommandSpec {
            program: command.command.clone(),
            args: git.args.unwrap_or_else(|| command.args.clone()),
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
        let outcome = runner.run(self.workspace, &spec, cancel);
        let set_aside = match low {
            true => Vec::new(),
            false => self.set_planted_aside(runner, &repositories),
        };
        notes.extend(set_aside.iter().map(String::as_str));
        Ok(ran(&outcome?, timeout, &notes))
    }
}

/// Converts the edits of a call to those of the executor.
fn exact(edits: &[call::Edit]) -> Vec<Edit> {
    edits
        .iter()
        .map(|edit| Edit {
            old: edit.old_text.clone(),
            new: edit.new_text.clone(),
            count: (!edit.replace_all).then_some(1),
        })
        .collect()
}

fn read(path: &str, content: Content) -> Result<Answer> {
    let Content { bytes, checksum, size } = content;
    let (content, encoding) = kind::present(path, bytes)?;
    Ok(fields(json!({
        "path": path, "content": content, "encoding": encoding, "size": size, "checksum": checksum,
    })))
}

fn wrote(path: &str, written: &Written) -> Answer {
    fields(json!({
        "path": path,
        "size": written.size,
        "checksum": written.checksum,
        "created": written.created,
        "replaced_checksum": written.replaced,
    }))
}

/// Added to git's output without approval, so that the reader does not take it for everything.
const LEFT_OUT: &str = "Secret files and files that .atelierignore names are left out.";

/// Said with what an approved command prints, which may have wanted to call git.
const SEALED: &str = "Repositories were closed to this command, because their history holds files \
    that usually hold secrets or that .atelierignore names. A git that the command calls finds \
    nothing.";

/// Added where a person might believe that the project's own checks ran.
const NO_HOOKS: &str = "The project's git hooks did not run: Atelier never runs git hooks.";

fn ran(outcome: &Outcome, timeout: u32, notes: &[&str]) -> Answer {
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
    if !notes.is_empty() {
        body["note"] = json!(notes.join(" "));
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
    answer::fields_and_failure(body, failure.0, failure.1)
}
