//! An agent's calls on its conversation's own files: they run here, in the local copy of the object
//! store.

use super::{
    AgentServices,
    known_checksums::KnownChecksums,
    tools::{PRESENT, tool},
};
use crate::own_files::{OwnFolder, only_reads};
use atelier_core::{
    Conversation, Project, WorkspaceKind,
    gate::ToolOutcome,
    task::{Step, StepResult},
};
use atelier_executor::Approval;
use atelier_store::OwnedConversation;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

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
        if calls.iter().all(|(index, _)| only_reads(tool(&step.calls[*index].name))) {
            for (index, params) in calls {
                let name = tool(&step.calls[index].name).to_owned();
                let asked = params.clone();
                let read = self.own_files.read(
                    project,
                    owned,
                    conversation,
                    &asked,
                    &never,
                    move |own: &OwnFolder| own.execute(&name, params, &Approval::none()),
                );
                let outcome = read.await.unwrap_or_else(|failed| failed);
                step.calls[index].result = Some(step_result(&outcome));
            }
            return;
        }
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
                PRESENT => run.present(params).await,
                _ => {
                    let act = move |own: &OwnFolder| own.execute(&name, params, &Approval::none());
                    run.act(&never, act).await
                }
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

/// The outcome of a call as the model sees it.
fn step_result(result: &ToolOutcome) -> StepResult {
    let is_error = !result.success();
    let checksum = result.checksum().map(str::to_owned);
    StepResult { content: super::prompt::shortened(&result.to_json()), is_error, checksum }
}
