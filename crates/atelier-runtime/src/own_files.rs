//! Runs on the files of conversations. Agents and MCP hosts use the same runner, so the same rules
//! hold for both.

use crate::Gate;
use atelier_core::{Conversation, FailureCode, Project, gate::ToolOutcome, policy::Policy};
use atelier_executor::Cancel;
use atelier_files::{Error, Files, Run};
use atelier_store::OwnedConversation;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How long a run waits for another run in the same conversation.
const WAIT: Duration = Duration::from_secs(30);

/// The files of conversations, with the rules that hold for them.
#[derive(Clone)]
pub struct OwnFiles {
    pub files: Files,
    /// Knows the rules of the server and of its projects.
    pub gate: Gate,
}

/// A run on the files of one conversation. Others wait until it has ended.
pub struct OwnFilesRun {
    run: Run,
    policy: Arc<Policy>,
}

/// Where the calls of a run act.
pub struct OwnFolder {
    pub folder: PathBuf,
    pub policy: Arc<Policy>,
    pub cancel: Cancel,
}

impl OwnFiles {
    /// Brings the newest versions of the files into a local folder, and keeps others out of it.
    pub async fn begin(
        &self,
        project: &Project,
        owned: &OwnedConversation,
        conversation: &Conversation,
        cancelled: &CancellationToken,
    ) -> Result<OwnFilesRun, ToolOutcome> {
        if !conversation.workspace_enabled {
            return Err(failed(&Error::Disabled));
        }
        let policy = self.gate.own_files_policy(project).map_err(|invalid| {
            ToolOutcome::failed(FailureCode::InvalidSettings, invalid.to_string())
        })?;
        let workspace = self.files.workspace(owned);
        let run = tokio::select! {
            run = workspace.sync_to_local(WAIT) => run,
            () = cancelled.cancelled() => {
                return Err(ToolOutcome::failed(FailureCode::Cancelled, "the call was cancelled"));
            }
        };
        match run {
            Ok(run) => Ok(OwnFilesRun { run, policy: Arc::new(policy) }),
            Err(error) => {
                tracing::warn!(%error, conversation = %conversation.id, "a run did not begin");
                Err(failed(&error))
            }
        }
    }
}

impl OwnFilesRun {
    /// Acts in the folder. Nobody is at work there when this returns, even if it was cancelled.
    pub async fn act<T: Send + 'static>(
        &self,
        cancelled: &CancellationToken,
        act: impl FnOnce(&OwnFolder) -> T + Send + 'static,
    ) -> Result<T, ToolOutcome> {
        let cancel = Cancel::new()
            .map_err(|error| ToolOutcome::failed(FailureCode::IoError, error.to_string()))?;
        let folder = OwnFolder {
            folder: self.run.folder().to_owned(),
            policy: self.policy.clone(),
            cancel: cancel.clone(),
        };
        let mut work = tokio::task::spawn_blocking(move || act(&folder));
        let done = tokio::select! {
            done = &mut work => done,
            () = cancelled.cancelled() => {
                cancel.cancel();
                work.await
            }
        };
        done.map_err(|error| {
            tracing::error!(%error, "a tool stopped unexpectedly");
            ToolOutcome::failed(FailureCode::Internal, "the tool stopped unexpectedly")
        })
    }

    pub(crate) fn files(&self) -> &Run {
        &self.run
    }

    /// Stores what has changed in the folder. Returns what the caller should know about that, each
    /// remark after a line break.
    pub async fn end(self) -> Result<String, ToolOutcome> {
        match self.run.end().await {
            Ok(report) => Ok(report.remarks()),
            Err(error) => {
                tracing::warn!(%error, "changes of a conversation's files are not stored yet");
                let detail = format!("the changes could not be stored yet: {}", explained(&error));
                Err(ToolOutcome::failed(error.code().into(), detail))
            }
        }
    }
}

/// An error of the files as the outcome of a call.
pub(crate) fn failed(error: &Error) -> ToolOutcome {
    ToolOutcome::failed(error.code().into(), explained(error))
}

/// The error for agents and hosts. What only an operator can mend is in the server's log.
fn explained(error: &Error) -> String {
    match error {
        Error::Store(atelier_store::Error::NotFound | atelier_store::Error::LeaseLost)
        | Error::Damaged { .. }
        | Error::Disabled
        | Error::Locked
        | Error::Lost { .. }
        | Error::NoSuchFile(_)
        | Error::Path(_)
        | Error::Refused(_)
        | Error::Stopping
        | Error::TooLarge { .. } => error.to_string(),
        _ => {
            "the files of this conversation cannot be used at the moment; the server's log says why"
                .to_owned()
        }
    }
}
