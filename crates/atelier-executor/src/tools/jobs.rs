//! Calls that list, read and end scripts in the background.

use atelier_core::gate::ToolOutcome;
use serde_json::{Value, json};

use super::answer::fields;
use super::functions::ReadyCall;
use super::layered::exit_code;
use crate::error::Result;
use crate::layer::JobState;
use crate::process::ScriptEnding;

/// So much of a job's output is returned unless the caller wants less.
const JOB_OUTPUT: u64 = 20_000;
const MOST_JOB_OUTPUT: u64 = 1 << 20;
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
