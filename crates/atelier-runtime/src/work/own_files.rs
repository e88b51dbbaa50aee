//! An agent's calls on its conversation's own files: they run here, in the local copy of the object
//! store.

use super::{
    AgentServices,
    known_checksums::KnownChecksums,
    tools::{PRESENT, tool},
};
use crate::own_files::{OwnFilesRun, OwnFolder, failed};
use atelier_core::{
    Conversation, FailureCode, FilePath, Project, WorkspaceKind,
    gate::ToolOutcome,
    path::Roots,
    policy::own_files::explain_refusal,
    task::{Step, StepResult},
};
use atelier_executor::{Approval, Functions, Options, Tools, Workspace};
use atelier_store::OwnedConversation;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Present {
    paths: Vec<String>,
    description: Option<String>,
}

impl AgentServices {
    /// What an agent is told of the conversation's files.
    pub(super) async fn files_context(
        &self,
        project: &Project,
        conversation: &OwnedConversation,
    ) -> String {
        let context = self.own_files.files.workspace(conversation).context().await;
        match context {
            Ok(context) => match project.workspace {
                WorkspaceKind::Client => context.beside_a_machine().to_string(),
                WorkspaceKind::Conversation => context.to_string(),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot list a conversation's files for its agent");
                "<workspace>\nThe files of this conversation cannot be listed at the moment.\n\
                 </workspace>"
                    .into()
            }
        }
    }

    /// Runs calls of a step, one after the other, and records what they changed. Each call is given
    /// by its index in the step and its parameters.
    pub(super) async fn run_on_own_files(
        &self,
        project: &Project,
        (owned, conversation): &(OwnedConversation, Conversation),
        step: &mut Step,
        calls: Vec<(usize, Map<String, Value>)>,
        mut known: KnownChecksums,
    ) {
        // A call that has begun is not interrupted with its task: it ends soon, and its result
        // counts.
        let never = CancellationToken::new();
        let run = match self.own_files.begin(project, owned, conversation, &never).await {
            Ok(run) => run,
            Err(why) => {
                for (index, _) in calls {
                    step.calls[index].result = Some(step_result(&why));
                }
                return;
            }
        };
        let mut last = None;
        for (index, mut params) in calls {
            let name = tool(&step.calls[index].name).to_owned();
            known.add_expected_checksum(&name, &mut params);
            let outcome = match name.as_str() {
                PRESENT => present(&run, params).await,
                _ => run.act(&never, move |own| execute(own, &name, params)).await,
            };
            let outcome = outcome.unwrap_or_else(|failed| failed);
            step.calls[index].result = Some(step_result(&outcome));
            known.record_file_call(&step.calls[index]);
            last = Some(index);
        }
        let ended = run.end().await;
        if let Some(result) = last.and_then(|index| step.calls[index].result.as_mut()) {
            match ended {
                Ok(remarks) => result.content.push_str(&remarks),
                Err(failed) => {
                    let why = failed.failure.map(|failure| failure.detail).unwrap_or_default();
                    result.content.push_str(&format!("\n{why}"));
                    result.is_error = true;
                }
            }
        }
    }
}

/// Runs one call in the folder of a conversation.
fn execute(own: &OwnFolder, name: &str, params: Map<String, Value>) -> ToolOutcome {
    let workspace = match Workspace::open(&own.folder, Options::default()) {
        Ok(workspace) => workspace,
        Err(error) => return ToolOutcome::from(&error),
    };
    let roots = Roots::announced(own.folder.to_string_lossy().into_owned());
    let (call, judgement) = own.policy.judge_request(name, Value::Object(params), &roots);
    let Ok(call) = call else { return ToolOutcome::refused(&judgement) };
    let functions = Functions::builtin();
    let tools = Tools {
        workspace: &workspace,
        runner: None,
        policy: &own.policy,
        roots: &roots,
        functions,
    };
    let mut outcome = tools.execute(&call, &Approval::none(), &own.cancel);
    explain_refusal(&mut outcome);
    outcome
}

async fn present(
    run: &OwnFilesRun,
    params: Map<String, Value>,
) -> Result<ToolOutcome, ToolOutcome> {
    fn invalid(error: impl std::fmt::Display) -> ToolOutcome {
        ToolOutcome::failed(FailureCode::InvalidParams, format!("Invalid parameters: {error}"))
    }
    let wanted: Present = serde_json::from_value(Value::Object(params)).map_err(invalid)?;
    let paths: Result<Vec<FilePath>, _> =
        wanted.paths.iter().map(|path| FilePath::parse(path)).collect();
    let files = run.files().present_files(&paths.map_err(invalid)?, wanted.description).await;
    let files = files.map_err(|error| failed(&error))?;
    let shown = files.iter().map(|file| file.file_path.to_string()).collect();
    Ok(ToolOutcome::succeeded(Map::from_iter([("presented".to_owned(), shown)])))
}

/// The outcome of a call as the model sees it.
fn step_result(result: &ToolOutcome) -> StepResult {
    let is_error = !result.success();
    let checksum = result.checksum().map(str::to_owned);
    StepResult { content: super::prompt::shortened(&result.to_json()), is_error, checksum }
}
