//! An agent's calls on its conversation's own files: they run here, in the local copy of the object
//! store.

use super::{
    AgentServices,
    known_checksums::KnownChecksums,
    tools::{PRESENT, tool},
};
use atelier_core::{
    Conversation, FailureCode, FilePath, Project, WorkspaceKind,
    gate::ToolOutcome,
    path::Roots,
    policy::{Policy, call::ToolCall, verdict::Verdict},
    task::{Step, StepResult},
};
use atelier_executor::{Approval, Cancel, Options, Tools, Workspace};
use atelier_files::Run;
use atelier_store::TaskLease;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{fmt::Write, path::PathBuf, sync::Arc, time::Duration};

/// How long a call waits for another run in the same conversation.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Present {
    paths: Vec<String>,
    description: Option<String>,
}

impl AgentServices {
    /// The part of the prompt that lists the conversation's files.
    pub(super) async fn files_context(
        &self,
        lease: &TaskLease,
        project: &Project,
        conversation: &Conversation,
    ) -> String {
        let context = self.files.workspace(&lease.owned, conversation).context().await;
        match context {
            Ok(context) => match project.workspace {
                WorkspaceKind::Client => context.beside_a_machine().to_string(),
                WorkspaceKind::Conversation => context.to_string(),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot list a conversation's files for its agent");
                "<workspace>\nThe files of this conversation cannot be listed at the \
                 moment.\n</workspace>"
                    .into()
            }
        }
    }

    /// Runs calls of a step, one after the other, and records what they changed. Each call is given
    /// by its index in the step and its parameters.
    pub(super) async fn run_on_own_files(
        &self,
        lease: &TaskLease,
        project: &Project,
        conversation: &Conversation,
        step: &mut Step,
        calls: Vec<(usize, Map<String, Value>)>,
        mut known: KnownChecksums,
    ) {
        let (run, policy) = match self.begin_run(lease, project, conversation).await {
            Ok(begun) => begun,
            Err(why) => {
                for (index, _) in calls {
                    step.calls[index].result = Some(step_result(why.clone()));
                }
                return;
            }
        };
        let mut last = None;
        for (index, mut params) in calls {
            let name = tool(&step.calls[index].name).to_owned();
            known.add_expected_checksum(&name, &mut params);
            let result = match name.as_str() {
                PRESENT => present(&run, params).await,
                _ => run_tool(&run, policy.clone(), name, params).await,
            };
            step.calls[index].result = Some(step_result(result));
            known.record_file_call(&step.calls[index]);
            last = Some(index);
        }
        let report = run.end().await;
        if let Some(result) = last.and_then(|index| step.calls[index].result.as_mut()) {
            match report {
                Ok(report) => result.content.push_str(&report.remarks()),
                Err(error) => {
                    let _ =
                        write!(result.content, "\nThe changes could not be stored yet: {error}");
                    result.is_error = true;
                }
            }
        }
    }

    /// Prepares the conversation's folder, and the policy for calls in it: the rules of the server
    /// and the restrictions of the project.
    async fn begin_run(
        &self,
        lease: &TaskLease,
        project: &Project,
        conversation: &Conversation,
    ) -> Result<(Run, Arc<Policy>), ToolOutcome> {
        let policy = self.gate.own_files_policy(project);
        let policy = policy.map_err(|invalid| {
            ToolOutcome::failed(FailureCode::InvalidSettings, invalid.to_string())
        })?;
        let policy = Arc::new(policy);
        let run = self.files.workspace(&lease.owned, conversation).sync_to_local(WAIT).await;
        let run =
            run.map_err(|error| ToolOutcome::failed(error.code().into(), error.to_string()))?;
        Ok((run, policy))
    }
}

/// Runs a file tool in the folder of a run.
async fn run_tool(
    run: &Run,
    policy: Arc<Policy>,
    name: String,
    params: Map<String, Value>,
) -> ToolOutcome {
    let folder = run.folder().to_owned();
    let outcome = tokio::task::spawn_blocking(move || run_tool_in(folder, &policy, &name, params));
    outcome.await.unwrap_or_else(|_| {
        ToolOutcome::failed(FailureCode::Internal, "the tool stopped unexpectedly")
    })
}

fn run_tool_in(
    folder: PathBuf,
    policy: &Policy,
    name: &str,
    params: Map<String, Value>,
) -> ToolOutcome {
    let workspace = match Workspace::open(&folder, Options::default()) {
        Ok(workspace) => workspace,
        Err(error) => return ToolOutcome::from(&error),
    };
    let roots = Roots::announced(folder.to_string_lossy().into_owned());
    let (call, judgement) = policy.judge_request(name, Value::Object(params), &roots);
    let call: ToolCall = match call {
        Ok(call) => call,
        Err(_) => return ToolOutcome::refused(&judgement),
    };
    let tools = Tools { workspace: &workspace, runner: None, policy, roots: &roots };
    match Cancel::new() {
        Ok(cancel) => explain_refusal(tools.execute(&call, &Approval::none(), &cancel)),
        Err(error) => ToolOutcome::failed(FailureCode::IoError, error.to_string()),
    }
}

/// Adds to a refusal that the user can do it themselves. Nobody is asked about a conversation's own
/// files, so a call that would need approval is refused.
fn explain_refusal(mut result: ToolOutcome) -> ToolOutcome {
    if let Some(failure) = &mut result.failure
        && failure.refusal.as_ref().is_some_and(|refused| refused.verdict < Verdict::Deny)
    {
        failure.detail.push_str(
            " Nobody is asked about a conversation's own files: the person can do it themselves.",
        );
    }
    result
}

async fn present(run: &Run, params: Map<String, Value>) -> ToolOutcome {
    let wanted: Present = match serde_json::from_value(Value::Object(params)) {
        Ok(wanted) => wanted,
        Err(error) => {
            return ToolOutcome::failed(
                FailureCode::InvalidParams,
                format!("Invalid parameters: {error}"),
            );
        }
    };
    let paths: std::result::Result<Vec<FilePath>, _> =
        wanted.paths.iter().map(|path| FilePath::parse(path)).collect();
    let paths = match paths {
        Ok(paths) => paths,
        Err(error) => {
            return ToolOutcome::failed(
                FailureCode::InvalidParams,
                format!("Invalid parameters: {error}"),
            );
        }
    };
    match run.present_files(&paths, wanted.description).await {
        Ok(files) => {
            let shown: Vec<String> = files.iter().map(|file| file.file_path.to_string()).collect();
            let fields = json!({"presented": shown});
            ToolOutcome::succeeded(fields.as_object().cloned().unwrap_or_default())
        }
        Err(error) => ToolOutcome::failed(error.code().into(), error.to_string()),
    }
}

/// The outcome of a call as the model sees it.
fn step_result(result: ToolOutcome) -> StepResult {
    let is_error = !result.success();
    let checksum = result.fields.get("checksum").and_then(Value::as_str).map(str::to_owned);
    let content = serde_json::to_string(&result)
        .unwrap_or_else(|error| unreachable!("a result with string keys is JSON: {error}"));
    StepResult { content: super::prompt::shortened(&content), is_error, checksum }
}
