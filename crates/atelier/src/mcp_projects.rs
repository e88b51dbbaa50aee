//! `/mcp/projects/{project}` of `atelier serve`: a project's tools for any MCP host, through the
//! gate.
//!
//! The host makes calls; the user decides in the console or at `atelier connect`. MCP hosts cannot
//! approve anything.

use crate::mcp_mounts::{Mounts, PROGRESS, handler};
use atelier_core::{
    CallId, TokenId, WorkspaceKind,
    gate::{AskedBy, CallStatus, Decider, GatedCall, NewCall, ToolOutcome},
};
use atelier_mcp::{Call, Mount, MountInfo, Outcome, Progress, RunTool};
use atelier_runtime::{CallOutputs, Error, Gate};
use atelier_server::{McpHandler, ProjectHost};
use atelier_store::Owned;
use serde_json::Value;
use std::{pin::pin, sync::Arc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const INSTRUCTIONS: &str = "Files and commands on the user's machine, through Atelier. Paths are \
    relative to the \
     workspace. Calls that change something wait until the user approves them, which can take \
     minutes.";

/// What the mounts of all projects share.
pub(crate) struct Projects {
    pub(crate) gate: Gate,
    pub(crate) mounts: Mounts,
}

impl Projects {
    /// Each agent token has a mount of its own, so its MCP sessions are unknown to other tokens.
    pub(crate) fn handler(self) -> McpHandler<ProjectHost> {
        let projects = Arc::new(self);
        handler(
            |host: &ProjectHost| (host.owned.project, host.program),
            move |host| projects.mount(host),
        )
    }

    fn mount(self: &Arc<Self>, ProjectHost { owned, program }: ProjectHost) -> Mount {
        let projects = self.clone();
        let run: RunTool = Arc::new(move |call| {
            let (projects, owned) = (projects.clone(), owned.clone());
            Box::pin(async move {
                projects.run(&owned, program, call).await.unwrap_or_else(|error| {
                    if let Error::TooManyOpenCalls { .. } | Error::CallStorageFull { .. } = error {
                        return Outcome::error(&error.to_string());
                    }
                    tracing::warn!(%error, project = %owned.project, "a call of an MCP host \
                        failed");
                    Outcome::error("the call failed on the server; the server's log says why")
                })
            })
        });
        self.mounts.mount(MountInfo::gated(self.gate.policy(), INSTRUCTIONS), run)
    }

    async fn run(
        &self,
        owned: &Owned,
        program: Option<TokenId>,
        asked: Call,
    ) -> atelier_runtime::Result<Outcome> {
        let new = NewCall {
            id: CallId(Uuid::now_v7()),
            tool_name: asked.tool.clone(),
            tool_params: Value::Object(asked.arguments),
            workspace: WorkspaceKind::Client,
            agent_id: None,
            session_id: None,
            task_id: None,
            asked_by: AskedBy::Program,
            requested_by: program,
        };
        ask_gate(&self.gate, &self.mounts, owned, new, &asked.progress, &asked.given_up).await
    }
}

/// Makes a call at the gate, and keeps the host informed until it is settled.
pub(crate) async fn ask_gate(
    gate: &Gate,
    mounts: &Mounts,
    owned: &Owned,
    new: NewCall,
    progress: &Progress,
    given_up: &CancellationToken,
) -> atelier_runtime::Result<Outcome> {
    let mut outputs = match progress.is_wanted() {
        true => Some(gate.follow_output(owned).await?),
        false => None,
    };
    let mut call = gate.execute(owned, new).await?;
    while !call.status.is_settled() {
        progress.report(progress_text(&mounts.url, owned, &call)).await;
        let (id, status) = (call.tool_id, call.status);
        let mut changed = pin!(gate.changed(owned, id, status, PROGRESS));
        call = loop {
            tokio::select! {
                call = &mut changed => break call?,
                Some(text) = next_output(&mut outputs, id) => {
                    progress.report(text.trim_end().to_owned()).await;
                }
                // Nobody would see the result, so nobody should be asked about the call any more.
                () = given_up.cancelled() => {
                    let by = Decider { user: owned.owner, via: Some("an MCP host".to_owned()) };
                    break gate.cancel(owned, by, id).await?;
                }
            }
        };
    }
    Ok(outcome(&call))
}

/// What the call prints next; `None` if nobody asked for it.
async fn next_output(outputs: &mut Option<CallOutputs>, call: CallId) -> Option<String> {
    Some(outputs.as_mut()?.next_of(call).await)
}

/// The state of an open call, for the user of the host.
fn progress_text(url: &str, owned: &Owned, call: &GatedCall) -> String {
    let (tool, risk) = (&call.tool_name, call.risk_level.as_str());
    match (call.status, call.workspace) {
        (CallStatus::PendingApproval, _) => {
            format!("Waiting for approval of {tool} ({risk}): {url}/#/projects/{}", owned.project)
        }
        (_, WorkspaceKind::Conversation) => format!("Running {tool} on the conversation's files"),
        (CallStatus::Dispatched, _) => format!("Running {tool} on the user's machine"),
        _ => format!("Waiting for the user's machine to run {tool}: is `atelier connect` running?"),
    }
}

fn outcome(call: &GatedCall) -> Outcome {
    match (call.status, &call.result) {
        (CallStatus::Completed, Some(result)) => {
            Outcome { encoding: result.text_encoding(), ..Outcome::success(text(result)) }
        }
        (CallStatus::Failed, Some(result)) if result.has_command_output() => {
            Outcome::failure(result.to_json())
        }
        (status, _) => match &call.error {
            Some(error) => Outcome::error(&error.detail),
            None => Outcome::error(&format!("the call is {}", status.as_str())),
        },
    }
}

/// The content of a text file unchanged; everything else as the tool's JSON.
fn text(result: &ToolOutcome) -> String {
    result.text().map_or_else(|| result.to_json(), str::to_owned)
}
