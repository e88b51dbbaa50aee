//! Runs of programs outside the server in a conversation's folder.

use crate::{
    access::WritableFiles,
    body::OptionalJson,
    error::{Error, Result},
    path::{ConversationInPath, RunInPath, TenantInPath},
};
use atelier_api::files::{RunLease, RunRequest};
use atelier_files::{OutsideRun, SyncReport};
use axum::{Json as Reply, http::StatusCode};
use std::time::Duration;

/// The most seconds that a run waits for another one.
const MAX_WAIT: u8 = 30;
/// The most seconds of a lease.
const MAX_LEASE: u32 = 24 * 3600;

fn lease(seconds: u32) -> Result<Duration> {
    if seconds == 0 || seconds > MAX_LEASE {
        let problem = format!("lease_seconds: must be between 1 and {MAX_LEASE}");
        return Err(Error::Invalid(problem));
    }
    Ok(Duration::from_secs(seconds.into()))
}

/// Begin a run: sync the conversation's folder on the server, to work in it
///
/// The program works in `workspace_path`, on the server's machine, and ends the run. Other runs
/// wait. A run that is neither renewed nor ended in time is ended by the server.
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/runs", tag = "files",
    params(TenantInPath, ConversationInPath), request_body = Option<RunRequest>, responses(
    (status = 201, description = "The run", body = OutsideRun),
    (status = 403, description = "The workspace is switched off"),
    (status = 409, description = "conversation_locked: another run is working in the folder"),
))]
pub(super) async fn begin(
    WritableFiles(own): WritableFiles,
    OptionalJson(request): OptionalJson<RunRequest>,
) -> Result<(StatusCode, Reply<OutsideRun>)> {
    if request.wait_seconds > MAX_WAIT {
        return Err(Error::Invalid(format!("wait_seconds: must be at most {MAX_WAIT}")));
    }
    let wait = Duration::from_secs(request.wait_seconds.into());
    let run = own.workspace.begin_outside_run(wait, lease(request.lease_seconds)?).await?;
    Ok((StatusCode::CREATED, Reply(run)))
}

/// Give a run more time
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/runs/{run}/renew",
    tag = "files",
    params(TenantInPath, ConversationInPath, RunInPath), request_body = Option<RunLease>,
    responses((status = 204, description = "The run lasts longer")))]
pub(super) async fn renew(
    WritableFiles(own): WritableFiles,
    RunInPath(run): RunInPath,
    OptionalJson(request): OptionalJson<RunLease>,
) -> Result<StatusCode> {
    own.workspace.renew_outside_run(run, lease(request.lease_seconds)?)?;
    Ok(super::DONE)
}

/// End a run: what changed in the folder becomes versions of the agent
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/runs/{run}/end",
    tag = "files",
    params(TenantInPath, ConversationInPath, RunInPath),
    responses((status = 200, description = "What the run changed", body = SyncReport)))]
pub(super) async fn end(
    WritableFiles(own): WritableFiles,
    RunInPath(run): RunInPath,
) -> Result<Reply<SyncReport>> {
    Ok(Reply(own.workspace.end_outside_run(run).await?))
}
