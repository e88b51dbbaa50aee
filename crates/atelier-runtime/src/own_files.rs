//! Calls on the files of conversations. Agents, MCP hosts and the gate use the same functions, so
//! the same rules hold for all of them.

mod gated_calls;

use crate::Gate;
use atelier_core::{
    Conversation, ConversationId, FailureCode, FilePath, Project,
    gate::ToolOutcome,
    path::Roots,
    policy::{Policy, own_files::explain_refusal},
    tools::{ToolDef, ToolTable},
};
use atelier_executor::{Approval, Cancel, Functions, Options, Origin, Tools, Workspace};
use atelier_files::{ConversationWorkspace, Error, Files, Run};
use atelier_store::{Error as StoreError, Owned, OwnedConversation};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// How long a call waits for a run in the same conversation.
const WAIT: Duration = Duration::from_secs(30);

/// The files of conversations, with the rules that hold for them.
#[derive(Clone)]
pub struct OwnFiles {
    pub files: Files,
    /// Knows the rules of the server and of its projects.
    pub gate: Gate,
}

/// A conversation, with what is needed to act on its files.
pub struct FoundConversation {
    pub project: Project,
    pub owned: OwnedConversation,
    pub conversation: Conversation,
}

/// A run on the files of one conversation. Other runs wait until it has ended.
pub struct OwnFilesRun {
    run: Run,
    policy: Arc<Policy>,
}

/// Where calls act.
pub struct OwnFolder {
    pub folder: PathBuf,
    pub policy: Arc<Policy>,
    pub cancel: Cancel,
}

/// The file that a call names, if it names one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Touched {
    path: Option<String>,
}

/// The parameters of `present_files`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Present {
    paths: Vec<String>,
    description: Option<String>,
}

impl OwnFiles {
    /// The conversation as it is now.
    pub async fn find(
        &self,
        owned: &Owned,
        conversation: ConversationId,
    ) -> Result<FoundConversation, StoreError> {
        let store = self.gate.store();
        let project = store.project(owned).await?;
        let (owned, conversation) = store.conversation(owned, conversation).await?;
        Ok(FoundConversation { project, owned, conversation })
    }

    /// Brings the newest versions of the files into a local folder, and keeps other runs out of it.
    pub async fn begin(
        &self,
        project: &Project,
        owned: &OwnedConversation,
        conversation: &Conversation,
        cancelled: &CancellationToken,
    ) -> Result<OwnFilesRun, ToolOutcome> {
        let (workspace, policy) = self.open(project, owned, conversation)?;
        let run = unless_cancelled(cancelled, workspace.sync_to_local(WAIT)).await?;
        match run {
            Ok(run) => Ok(OwnFilesRun { run, policy }),
            Err(error) => Err(cannot_begin(&error, conversation)),
        }
    }

    /// Looks at the files without a run: readers do not wait for each other. `params` are those of
    /// the call, which may name the file that it reads.
    pub async fn read<T: Send + 'static>(
        &self,
        project: &Project,
        owned: &OwnedConversation,
        conversation: &Conversation,
        params: &Map<String, Value>,
        cancelled: &CancellationToken,
        look: impl FnOnce(&OwnFolder) -> T + Send + 'static,
    ) -> Result<T, ToolOutcome> {
        let (workspace, policy) = self.open(project, owned, conversation)?;
        let Touched { path } = Touched::deserialize(params).unwrap_or_default();
        let touched = path.as_deref().and_then(file_path);
        let folder =
            unless_cancelled(cancelled, workspace.current_folder(touched.as_ref(), WAIT)).await?;
        let folder = folder.map_err(|error| cannot_begin(&error, conversation))?;
        act_in(folder, policy, cancelled, look).await
    }

    fn open(
        &self,
        project: &Project,
        owned: &OwnedConversation,
        conversation: &Conversation,
    ) -> Result<(ConversationWorkspace, Arc<Policy>), ToolOutcome> {
        if !conversation.workspace_enabled {
            return Err(failed(&Error::Disabled));
        }
        let policy = self.gate.own_files_policy(project).map_err(|invalid| {
            ToolOutcome::failed(FailureCode::InvalidSettings, invalid.to_string())
        })?;
        Ok((self.files.workspace(owned), policy))
    }
}

/// Whether a tool changes nothing, so that its calls need no run.
pub fn only_reads(tool: &str) -> bool {
    ToolTable::builtin().get(tool).is_some_and(ToolDef::only_reads)
}

/// The file that a call names, if it names it by a relative path or below `/workspace`.
fn file_path(raw: &str) -> Option<FilePath> {
    FilePath::parse(raw.strip_prefix("/workspace/").unwrap_or(raw)).ok()
}

async fn unless_cancelled<T>(
    cancelled: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, ToolOutcome> {
    tokio::select! {
        done = work => Ok(done),
        () = cancelled.cancelled() => {
            Err(ToolOutcome::failed(FailureCode::Cancelled, "the call was cancelled"))
        }
    }
}

fn cannot_begin(error: &Error, conversation: &Conversation) -> ToolOutcome {
    tracing::warn!(%error, conversation = %conversation.id, "a call on a conversation's files did \
        not begin");
    failed(error)
}

/// Acts in a folder. Nobody is at work there when this returns, even if it was cancelled.
async fn act_in<T: Send + 'static>(
    folder: PathBuf,
    policy: Arc<Policy>,
    cancelled: &CancellationToken,
    act: impl FnOnce(&OwnFolder) -> T + Send + 'static,
) -> Result<T, ToolOutcome> {
    let cancel = Cancel::new()
        .map_err(|error| ToolOutcome::failed(FailureCode::IoError, error.to_string()))?;
    let folder = OwnFolder { folder, policy, cancel: cancel.clone() };
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

impl OwnFilesRun {
    /// Acts in the folder of the run.
    pub async fn act<T: Send + 'static>(
        &self,
        cancelled: &CancellationToken,
        act: impl FnOnce(&OwnFolder) -> T + Send + 'static,
    ) -> Result<T, ToolOutcome> {
        act_in(self.run.folder().to_owned(), self.policy.clone(), cancelled, act).await
    }

    /// Presents files to the user, as `present_files` asks for.
    pub async fn present(&self, params: Map<String, Value>) -> Result<ToolOutcome, ToolOutcome> {
        fn invalid(error: impl std::fmt::Display) -> ToolOutcome {
            ToolOutcome::failed(FailureCode::InvalidParams, format!("Invalid parameters: {error}"))
        }
        let wanted: Present = serde_json::from_value(Value::Object(params)).map_err(invalid)?;
        let paths: Result<Vec<FilePath>, _> =
            wanted.paths.iter().map(|path| FilePath::parse(path)).collect();
        let files = self.run.present_files(&paths.map_err(invalid)?, wanted.description).await;
        let files = files.map_err(|error| failed(&error))?;
        let shown = files.iter().map(|file| file.file_path.to_string()).collect();
        Ok(ToolOutcome::succeeded(Map::from_iter([("presented".to_owned(), shown)])))
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

impl OwnFolder {
    /// Runs one call by the rules for this folder.
    pub(crate) fn execute(
        &self,
        name: &str,
        params: Map<String, Value>,
        approval: &Approval,
    ) -> ToolOutcome {
        let outcome = self.with_tools(|tools| {
            let (call, judgement) =
                self.policy.judge_request(name, Value::Object(params), tools.roots);
            match call {
                Ok(call) => tools.execute(&call, approval, &self.cancel),
                Err(_) => ToolOutcome::refused(&judgement),
            }
        });
        let mut outcome = outcome.unwrap_or_else(|error| ToolOutcome::from(&error));
        explain_refusal(&mut outcome);
        outcome
    }

    /// Uses the tools in this folder.
    pub(crate) fn with_tools<T>(
        &self,
        act: impl FnOnce(&Tools<'_>) -> T,
    ) -> Result<T, atelier_executor::Error> {
        let workspace = Workspace::open(&self.folder, Options::default())?;
        let roots = roots(&self.folder);
        Ok(act(&Tools {
            workspace: &workspace,
            runner: None,
            policy: &self.policy,
            roots: &roots,
            functions: Functions::builtin(),
            layers: None,
            origin: Origin::local(),
        }))
    }
}

/// The absolute names under which agents may address a folder.
pub(crate) fn roots(folder: &Path) -> Roots {
    Roots::announced(folder.to_string_lossy().into_owned()).also("/workspace")
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
        | Error::Expired { .. }
        | Error::Locked
        | Error::Lost { .. }
        | Error::NoSuchFile(_)
        | Error::NoSuchRun
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
