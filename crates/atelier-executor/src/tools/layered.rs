//! Calls that work in a layer: which layer they use, how they are judged, and how they run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use atelier_core::FailureCode;
use atelier_core::gate::ToolOutcome;
use atelier_core::path::WorkspacePath;
use atelier_core::policy::Access;
use atelier_core::policy::call::ToolCall;
use atelier_core::policy::layered::{ChangeKind, FileChange, judge_shell_isolation};
use atelier_core::policy::verdict::{Judgement, Verdict};
use atelier_core::tools::Rating;
use atelier_core::{CallId, ConversationId, TaskId};
use serde_json::{Value, json};

use super::answer::{fields, fields_and_failure};
use super::functions::ReadyCall;
use super::{Preview, Tools};
use crate::door::{Entry, Held, PathChange, Record, UndoOf};
use crate::error::{Error, Result};
use crate::layer::{
    Change, JobState, Layer, LayerLock, Layers, Pending, Scan, Shell, ShellRun, difference,
};
use crate::process::{ScriptEnding, detect_isolation};
use crate::workspace::{relative, to_workspace_path};
use crate::write::Expect;

/// How much of a job's output is returned unless the caller wants less.
const JOB_OUTPUT: u64 = 20_000;
const MOST_JOB_OUTPUT: u64 = 1 << 20;
/// How many changes an answer lists.
const MOST_LISTED: usize = 5000;

/// Added to the answer of a script that may have wanted to call git.
const SEALED: &str = "Repositories are closed to scripts here, because their history holds files \
    that usually hold secrets or that .atelierignore names. A git that a script calls finds \
    nothing.";
const COMMITS_STAY: &str = "Commits and other changes of a repository stay in the layer. Land the \
    files, and commit them in the workspace.";

/// Where a call comes from: it decides which layer the call uses, and by which names its changes
/// can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The key of the layer: the conversation or, for a call outside a conversation, the connection
    /// of the machine.
    pub layer: String,
    pub tool_id: Option<CallId>,
    pub task_id: Option<TaskId>,
    pub session_id: Option<ConversationId>,
}

impl Origin {
    /// The origin of calls that a person makes on this machine.
    pub fn local() -> &'static Origin {
        static LOCAL: std::sync::LazyLock<Origin> = std::sync::LazyLock::new(|| Origin {
            layer: "local".to_owned(),
            tool_id: None,
            task_id: None,
            session_id: None,
        });
        &LOCAL
    }
}

impl<'t> Tools<'t> {
    /// Judges a call that works in a layer again, with the facts that only this machine knows.
    pub(super) fn judge_layered(&self, call: &ToolCall, judgement: Judgement) -> Judgement {
        match call.tool.rating {
            Rating::Shell => match judge_shell_isolation(Some(&detect_isolation())) {
                Some(limited) => judgement.stricter(limited),
                None => judgement,
            },
            Rating::Landing => match self.judge_pending_changes(call) {
                Ok(landing) => judgement.stricter(landing),
                // The call will fail with this error, and change nothing.
                Err(_) => judgement,
            },
            _ => judgement,
        }
    }

    /// The changes that landing or undoing would make, for the person who decides.
    pub(super) fn preview_landing(&self, call: &ToolCall) -> Result<Preview> {
        self.with_pending(call, |held, pending, _| {
            let is_secret = |path: &Path| self.is_secret(path);
            let shown = difference(self.workspace, held, &pending.set, is_secret, &[]);
            Ok(Preview::Landing { digest: pending.digest.clone(), diff: shown.text })
        })
    }

    /// Judges the changes that landing or undoing would make in the workspace.
    fn judge_pending_changes(&self, call: &ToolCall) -> Result<Judgement> {
        self.with_pending(call, |_, pending, _| Ok(self.judge_pending(call, pending)))
    }

    /// Judges changes by their paths and by the repositories that they belong to: the settings of a
    /// repository can start programs, whatever its folder is called.
    fn judge_pending(&self, call: &ToolCall, pending: &Pending) -> Judgement {
        let judgement = self.policy.judge_changes(call.name(), &pending.changes);
        let paths = pending.set.steps.iter().map(|step| step.path.as_path());
        let Some(folder) = self.workspace.repository_written(paths) else { return judgement };
        let folder = match folder.as_os_str().is_empty() {
            true => "The root".to_owned(),
            false => folder.display().to_string(),
        };
        let reason = format!(
            "{folder} is a git repository, or becomes one. The settings of a repository can start \
             programs when somebody uses git there."
        );
        let repository = Judgement::new(Verdict::High, "file.repository", reason);
        judgement.stricter(repository.about(call.name()))
    }

    /// Computes the changes that landing or undoing would make. Meanwhile no other call can change
    /// the layer or the workspace.
    fn with_pending<T>(
        &self,
        call: &ToolCall,
        work: impl FnOnce(&Held<'_>, &Pending, Planned<'_>) -> Result<T>,
    ) -> Result<T> {
        let layers = self.layers()?;
        if call.name() != "undo" {
            let layer = self.layer()?;
            let lock = layer.lock()?;
            let held = layers.door.hold(self.workspace)?;
            let pending = layer.pending(self.workspace, call.path_list("paths"), &lock)?;
            return work(&held, &pending, Planned::Landing { layer: &layer, lock: &lock });
        }
        let held = layers.door.hold(self.workspace)?;
        let undoing = held.plan_undo(&undo_of(call, &self.origin.layer))?;
        // A folder is only removed if the change that is undone has created it and it is empty
        // again.
        let is_file =
            |step: &&PathChange| step.before != Entry::Folder && step.after != Entry::Folder;
        let changes = undoing.set.steps.iter().filter(is_file).map(|step| {
            Ok(FileChange {
                path: to_workspace_path(&step.path, &step.path.to_string_lossy())?,
                change: kind_of(&step.before, &step.after),
                from: None,
                is_directory: false,
                becomes_executable: step.after.is_executable() && !step.before.is_executable(),
            })
        });
        let changes = changes.collect::<Result<_>>()?;
        let pending = Pending::new(changes, undoing.set)?;
        let planned = Planned::Undoing { records: undoing.records, refused: &undoing.refused };
        work(&held, &pending, planned)
    }

    fn layers(&self) -> Result<&'t Layers> {
        self.layers.ok_or(Error::NoLayers)
    }

    fn layer(&self) -> Result<Layer<'t>> {
        self.layers()?.layer(&self.origin.layer)
    }
}

/// The kind of call that a set of changes is made for.
enum Planned<'a> {
    Landing { layer: &'a Layer<'a>, lock: &'a LayerLock },
    Undoing { records: Vec<String>, refused: &'a [(PathBuf, String)] },
}

fn undo_of(call: &ToolCall, layer: &str) -> UndoOf {
    let id = |name| call.optional_text(name).map(str::to_owned);
    match (id("tool_id"), id("task_id"), id("session_id")) {
        (Some(id), ..) => UndoOf::Call(id),
        (_, Some(id), _) => UndoOf::Task(id),
        (.., Some(id)) => UndoOf::Conversation(id),
        _ => UndoOf::Latest { layer: layer.to_owned() },
    }
}

fn kind_of(before: &Entry, after: &Entry) -> ChangeKind {
    match (before, after) {
        (Entry::Absent, _) => ChangeKind::Added,
        (_, Entry::Absent) => ChangeKind::Deleted,
        _ if before.checksum().is_some() && before.checksum() == after.checksum() => {
            ChangeKind::Mode
        }
        _ => ChangeKind::Changed,
    }
}

pub(super) fn shell(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let tools = run.tools;
    let (Some(runner), Ok(layer)) = (tools.runner, tools.layer()) else {
        return Err(Error::NoLayers);
    };
    let hosts = run.call.words("network");
    let background = run.call.flag("background");
    if background && !hosts.is_empty() && layer.jobs_outlive_us() {
        let words = "A job that goes on after this command has no network, because its connections \
                     go through this process. Leave `background` or `network` out.";
        return Ok(ToolOutcome::failed(FailureCode::CommandNotAllowed, words.to_owned()));
    }
    let (protected, sealed) = tools.hidden_from_scripts()?;
    let asked = run.call.number("timeout");
    let limit = tools.policy.limits().shell_timeout_default;
    let seconds = asked.or((!background).then_some(u64::from(limit)));
    let time = seconds.map(Duration::from_secs);
    let script = run.call.text("script")?;
    let shell = Shell { script, time, background, protected, hosts };
    let ran = layer.shell(runner, tools.workspace, shell, run.cancel)?;
    let mut notes = Vec::new();
    notes.extend(sealed.then_some(SEALED));
    notes.extend((ran.scan.git && !sealed).then_some(COMMITS_STAY));
    notes.extend(
        ran.too_large
            .then_some("The layer is full. Land or discard changes before the next script."),
    );
    Ok(ran_in_shell(&ran, seconds.unwrap_or(0), &notes))
}

fn ran_in_shell(ran: &ShellRun, seconds: u64, notes: &[&str]) -> ToolOutcome {
    let mut body = json!({
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exit_code": ran.ending.and_then(exit_code),
        "execution_time": ran.elapsed.as_secs_f64(),
        "truncated": ran.truncated,
        "changes": counts(&ran.scan),
        "job_id": ran.job_id,
        "isolation": detect_isolation(),
    });
    if let Some(connections) = &ran.connections {
        body["connections"] = json!(connections);
    }
    if !notes.is_empty() {
        body["note"] = json!(notes.join(" "));
    }
    let failed = |code, words: String| fields_and_failure(body.clone(), code, words);
    match ran.ending {
        None | Some(ScriptEnding::Exited(0)) => fields(body),
        Some(ScriptEnding::Exited(code)) => {
            failed(FailureCode::CommandFailed, format!("The script exited with status {code}"))
        }
        Some(ScriptEnding::Killed(signal)) => {
            failed(FailureCode::CommandFailed, format!("The script was ended by signal {signal}"))
        }
        Some(ScriptEnding::TimedOut) => {
            let words = format!("The script timed out after {seconds} s");
            failed(FailureCode::CommandTimeout, words)
        }
        Some(ScriptEnding::Stopped) => failed(FailureCode::Cancelled, "Cancelled".to_owned()),
        Some(ScriptEnding::Exposed) => {
            let words = "The script was stopped, because a protected file appeared in the folder \
                         while it ran. Run it again: the file is hidden then";
            failed(FailureCode::CommandFailed, words.to_owned())
        }
        Some(ScriptEnding::Full) => {
            let words = "The script was ended because the layer holds more than it may. Discard \
                         what you do not need";
            failed(FailureCode::FileSizeExceeded, words.to_owned())
        }
    }
}

fn exit_code(ending: ScriptEnding) -> Option<i32> {
    match ending {
        ScriptEnding::Exited(code) => Some(code),
        ScriptEnding::Killed(signal) => Some(128 + signal),
        _ => None,
    }
}

fn counts(scan: &Scan) -> Value {
    let of = |kinds: &[ChangeKind]| {
        let listed = scan.changes.iter().filter(|change| !change.is_folder());
        listed.filter(|change| kinds.contains(&change.kind)).count()
    };
    json!({
        "added": of(&[ChangeKind::Added]),
        "changed": of(&[ChangeKind::Changed, ChangeKind::Mode]),
        "deleted": of(&[ChangeKind::Deleted]),
        "renamed": of(&[ChangeKind::Renamed]),
        "ignored": scan.ignored,
    })
}

pub(super) fn changes(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let layer = run.tools.layer()?;
    let lock = layer.lock()?;
    let scan = layer.scan(run.tools.workspace, &lock)?;
    // A deleted folder is shown by its files, or by itself if it was empty.
    let is_shown = |change: &&Change| {
        let removed = change.is_folder() && change.kind == ChangeKind::Deleted;
        let below =
            |other: &Change| other.path != change.path && other.path.starts_with(&change.path);
        !removed || !scan.changes.iter().any(below)
    };
    let shown: Vec<&Change> = scan.changes.iter().filter(is_shown).collect();
    let files: Vec<Value> = shown.iter().take(MOST_LISTED).map(|change| listed(change)).collect();
    let mut body = json!({
        "files": files,
        "ignored": scan.ignored,
        "limited": shown.len() > MOST_LISTED,
        "bytes": scan.bytes,
        "kept_until": layer.kept_until().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    });
    if scan.git {
        body["note"] = json!(COMMITS_STAY);
    }
    Ok(fields(body))
}

fn listed(change: &Change) -> Value {
    let about = change.upper.as_ref().or(change.lower.as_ref());
    let mut file = json!({
        "path": change.path.to_string_lossy(),
        "change": change.kind.as_str(),
        "size": about.map_or(0, |stat| stat.st_size),
        "mode": about.map(|stat| format!("{:o}", stat.st_mode & 0o7777)),
    });
    if let Some(from) = &change.from {
        file["from"] = json!(from.to_string_lossy());
    }
    if change.conflict {
        file["conflict"] = json!(true);
    }
    if change.is_folder() {
        file["type"] = json!("directory");
    }
    file
}

pub(super) fn diff(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let tools = run.tools;
    let layer = tools.layer()?;
    let lock = layer.lock()?;
    let held = tools.layers()?.door.hold(tools.workspace)?;
    let (set, conflicts) = layer.shown(tools.workspace, run.call.path_list("paths"), &lock)?;
    let is_secret = |path: &Path| tools.is_secret(path);
    let conflicts: Vec<&Path> = conflicts.iter().map(PathBuf::as_path).collect();
    let shown = difference(tools.workspace, &held, &set, is_secret, &conflicts);
    Ok(fields(json!({
        "diff": shown.text, "truncated": shown.truncated, "files": set.steps.len(),
    })))
}

/// Lands or undoes.
pub(super) fn land_or_undo(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let tools = run.tools;
    tools.with_pending(run.call, |held, pending, planned| {
        // Jobs may have changed the layer since it was judged, so the changes that land now are
        // judged again.
        let judgement = tools.judge_pending(run.call, pending);
        if !run.approval.allows(&judgement) {
            return Ok(ToolOutcome::refused(&judgement));
        }
        if let Expect::Checksum(expected) = run.expect
            && *expected != pending.digest
        {
            let path = "what would be changed".to_owned();
            let (expected, found) = (expected.clone(), pending.digest.clone());
            return Err(Error::Stale { path, expected, found });
        }
        let mut record = Record::new(run.call.name(), tools.origin, Vec::new());
        let done: Vec<Value> = pending.changes.iter().take(MOST_LISTED).map(changed).collect();
        let limited = pending.changes.len() > MOST_LISTED;
        match planned {
            Planned::Landing { layer, lock } => {
                layer.begin_landing(tools.workspace, &pending.set, lock)?;
                let record = held.apply(&pending.set, record)?;
                let landed = record.steps.iter().map(|step| step.path.clone());
                layer.landed(tools.workspace, landed, lock)?;
                Ok(fields(json!({ "landed": done, "tool_id": record.tool_id })))
            }
            Planned::Undoing { records, refused } => {
                let refused: Vec<Value> = refused
                    .iter()
                    .map(|(path, why)| json!({ "path": path.to_string_lossy(), "why": why }))
                    .collect();
                if pending.set.steps.is_empty() && !refused.is_empty() {
                    let words = "Nothing was undone. The answer says why for each path.";
                    let body = json!({ "undone": [], "refused": refused });
                    return Ok(fields_and_failure(body, FailureCode::Conflict, words.to_owned()));
                }
                record.undoes = records;
                let record = held.apply(&pending.set, record)?;
                let mut body =
                    json!({ "undone": done, "refused": refused, "tool_id": record.tool_id });
                if limited {
                    body["limited"] = json!(true);
                }
                Ok(fields(body))
            }
        }
    })
}

fn changed(change: &FileChange) -> Value {
    let mut file = json!({ "path": change.path.as_str(), "change": change.change.as_str() });
    if let Some(from) = &change.from {
        file["from"] = json!(from.as_str());
    }
    file
}

pub(super) fn discard(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let layer = run.tools.layer()?;
    let lock = layer.lock()?;
    let count = layer.discard(run.tools.workspace, run.call.path_list("paths"), &lock)?;
    Ok(fields(json!({ "discarded": count })))
}

pub(super) fn jobs(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let jobs: Vec<Value> = run.tools.layer()?.jobs()?.iter().map(job).collect();
    Ok(fields(json!({ "jobs": jobs })))
}

fn job(state: &JobState) -> Value {
    let JobState { job, running, ending, written, connections } = state;
    let mut about = json!({
        "job_id": job.job_id,
        "script": job.script,
        "started_at": job.started_at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        "running": running,
        "exit_code": ending.and_then(exit_code),
        "ended": ending.map(|ending| match ending {
            ScriptEnding::Exited(_) => "exited",
            ScriptEnding::Killed(_) => "killed",
            ScriptEnding::TimedOut => "timed_out",
            ScriptEnding::Stopped => "stopped",
            ScriptEnding::Full => "full",
            ScriptEnding::Exposed => "exposed",
        }),
        "stdout_bytes": written[0],
        "stderr_bytes": written[1],
    });
    if let Some(connections) = connections {
        about["connections"] = json!(connections);
    }
    about
}

pub(super) fn job_output(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let (offset, limit) = (run.call.number("offset"), run.call.number("limit"));
    let limit = limit.unwrap_or(JOB_OUTPUT).min(MOST_JOB_OUTPUT);
    let layer = run.tools.layer()?;
    let output = layer.job_output(run.call.text("job_id")?, offset.unwrap_or(0), limit)?;
    let mut body = job(&output.state);
    body["stdout"] = json!(output.stdout);
    body["stderr"] = json!(output.stderr);
    body["next_offset"] = json!(output.next);
    Ok(fields(body))
}

pub(super) fn job_stop(run: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let state = run.tools.layer()?.stop_job(run.call.text("job_id")?)?;
    Ok(fields(job(&state)))
}

impl Tools<'_> {
    /// Runs a call that changes files of the workspace by itself, and keeps their previous content,
    /// so that the call can be undone.
    pub(super) fn keeping(
        &self,
        call: &ToolCall,
        work: impl FnOnce() -> Result<ToolOutcome>,
    ) -> Result<ToolOutcome> {
        let used = [Access::Remove, Access::Write].map(|access| call.path_used_to(access));
        let used: Vec<&WorkspacePath> = used.into_iter().flatten().collect();
        let Some(layers) = self.layers.filter(|_| !used.is_empty()) else { return work() };
        let paths: Vec<PathBuf> = used.iter().map(|path| relative(path).to_owned()).collect();
        // Moving a whole folder keeps no before-images of its files, so it cannot be undone.
        let folder = paths.len() > 1
            && Entry::at(self.workspace.handle(), &paths[0]).is_ok_and(|it| it == Entry::Folder);
        if folder || paths.iter().any(|path| path.as_os_str().is_empty()) {
            return work();
        }
        let held = layers.door.hold(self.workspace)?;
        let record = held.begin(call.name(), self.origin, &paths)?;
        let done = work();
        held.finish(record)?;
        done
    }
}
