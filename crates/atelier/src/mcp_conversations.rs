//! `/mcp/conversations/{conversation}` of `atelier serve`: a conversation's own files for any MCP
//! host.
//!
//! Reads see the newest versions and run side by side. Each other call is its own run in the
//! conversation's folder: it waits for other runs there, works on the newest versions, and stores
//! its changes before it answers the host. Calls that a policy asks about go through the gate.

use crate::{
    mcp_mounts::{Mounts, PROGRESS, handler},
    mcp_projects::ask_gate,
};
use atelier_core::{
    CallId, FailureCode, RunId, WorkspaceKind,
    gate::{AskedBy, NewCall, ToolOutcome},
    path::Roots,
    policy::{Policy, call::ToolCall},
    tools::{Offered, Surface, ToolTable, ungated},
};
use atelier_mcp::{Call, Mount, MountInfo, Outcome, Progress, RunTool, Settings, run_single_call};
use atelier_runtime::{Error, FoundConversation, OwnFiles, OwnFolder, only_reads};
use atelier_server::{ConversationHost, McpHandler};
use atelier_store::OwnedConversation;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

const INSTRUCTIONS: &str = "The files of one conversation in Atelier, below /workspace. Paths are \
    relative to it. Every version of a file is kept, and deleted files can be restored; empty \
    directories are not kept. No commands run here. Call present_files with the files that the \
    user should get. Calls that the owner's rules ask about wait until the user approves them.";

/// What the mounts of all conversations share.
pub(crate) struct Conversations {
    pub(crate) own_files: OwnFiles,
    /// Calls may outlive their hosts' connections, but not the server.
    pub(crate) tasks: TaskTracker,
    pub(crate) mounts: Mounts,
}

impl Conversations {
    /// Each agent token has a mount of its own, so its MCP sessions are unknown to other tokens.
    pub(crate) fn handler(self) -> McpHandler<ConversationHost> {
        let conversations = Arc::new(self);
        handler(
            |host: &ConversationHost| (host.owned.id(), host.program),
            move |host| conversations.mount(host),
        )
    }

    fn mount(self: &Arc<Self>, host: ConversationHost) -> Mount {
        let table = ToolTable::builtin();
        let beside = [Offered::WithOwnFiles, Offered::ToHostsOfOwnFiles];
        let info = MountInfo::workspace(&self.settings(None), INSTRUCTIONS)
            .with_tools(beside.into_iter().flat_map(|offered| table.offered(offered)));
        let (conversations, host) = (self.clone(), Arc::new(host));
        let run: RunTool =
            Arc::new(move |call| Box::pin(conversations.clone().run(host.clone(), call)));
        self.mounts.mount(info, run)
    }

    fn settings(&self, policy: Option<Arc<Policy>>) -> Settings {
        Settings {
            root_name: "/workspace".to_owned(),
            extra_tools: true,
            read_only: false,
            max_file_size: self.own_files.files.settings().max_upload,
            durable: false,
            policy,
            functions: None,
            host_asks: false,
            utf8_only: false,
        }
    }

    /// Runs a call and sends progress notifications until it is done.
    async fn run(self: Arc<Self>, host: Arc<ConversationHost>, call: Call) -> Outcome {
        let Call { tool, arguments, progress, given_up } = call;
        let (conversations, id) = (self.clone(), host.owned.id());
        let progress = Arc::new(progress);
        let progress_reports = progress.clone();
        let mut work = self.tasks.spawn(async move {
            let outcome =
                conversations.call(&host, tool, arguments, &progress_reports, &given_up).await;
            outcome.unwrap_or_else(|failed| match failed.failure {
                Some(failure) => Outcome::error(&failure.detail),
                None => Outcome::error("the call failed"),
            })
        });
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS, PROGRESS);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = ticks.tick() => {
                    progress.report("Working on the conversation's files".to_owned()).await;
                }
            }
        };
        done.unwrap_or_else(|error| {
            tracing::error!(%error, conversation = %id, "an MCP host's call ended unexpectedly");
            Outcome::error("the call was interrupted; the server's log says why")
        })
    }

    async fn call(
        &self,
        host: &ConversationHost,
        tool: String,
        arguments: Map<String, Value>,
        progress: &Progress,
        given_up: &CancellationToken,
    ) -> Result<Outcome, ToolOutcome> {
        let found = self.find(&host.owned).await?;
        let policy = self.own_files.gate.own_files_policy(&found.project).map_err(|invalid| {
            ToolOutcome::failed(FailureCode::InvalidSettings, invalid.to_string())
        })?;
        if let Some(params) = asked_about(&policy, &tool, &arguments) {
            return self.ask(host, tool, params, progress, given_up).await;
        }
        match tool.as_str() {
            BEGIN_RUN => return self.begin_run(found, &policy, &arguments).await,
            END_RUN => return self.end_run(found, &arguments).await,
            _ => {}
        }
        match only_reads(&tool) {
            true => self.read(found, tool, arguments, given_up).await,
            false => self.change(found, tool, arguments, given_up).await,
        }
    }

    /// The conversation as it is now: it may have changed since its mount was made.
    async fn find(&self, owned: &OwnedConversation) -> Result<FoundConversation, ToolOutcome> {
        let found = self.own_files.find(owned.owned(), owned.id()).await;
        found.map_err(|error| server_failed(&error, owned))
    }

    async fn read(
        &self,
        FoundConversation { project, owned, conversation }: FoundConversation,
        tool: String,
        arguments: Map<String, Value>,
        given_up: &CancellationToken,
    ) -> Result<Outcome, ToolOutcome> {
        let (settings, params) = (self.settings(None), arguments.clone());
        let look = move |own: &OwnFolder| run_in(own, settings, &tool, arguments);
        self.own_files.read(&project, &owned, &conversation, &params, given_up, look).await
    }

    /// Makes one call as a run of its own.
    async fn change(
        &self,
        FoundConversation { project, owned, conversation }: FoundConversation,
        tool: String,
        arguments: Map<String, Value>,
        given_up: &CancellationToken,
    ) -> Result<Outcome, ToolOutcome> {
        let run = tokio::select! {
            run = self.own_files.begin(&project, &owned, &conversation, given_up) => run?,
            () = self.mounts.stop.cancelled() => {
                return Err(ToolOutcome::failed(FailureCode::Cancelled, "the server is stopping"));
            }
        };
        let outcome = if tool == PRESENT_FILES {
            run.present(arguments).await.map(|presented| Outcome::success(presented.to_json()))
        } else {
            let settings = self.settings(None);
            run.act(given_up, move |own| run_in(own, settings, &tool, arguments)).await
        };
        let remarks = run.end().await?;
        let remark = (!remarks.is_empty()).then(|| remarks.trim_start().to_owned());
        Ok(Outcome { remark, ..outcome? })
    }

    /// Begins a run of a host that works in the folder with tools of its own.
    async fn begin_run(
        &self,
        FoundConversation { owned, conversation, .. }: FoundConversation,
        policy: &Policy,
        arguments: &Map<String, Value>,
    ) -> Result<Outcome, ToolOutcome> {
        if !conversation.workspace_enabled {
            return Err(files_failed(&atelier_files::Error::Disabled));
        }
        if let Some(why) = policy.refuses_runs() {
            return Err(ToolOutcome::failed(FailureCode::Denied, why));
        }
        let BeginRun { lease_seconds } = BeginRun::deserialize(arguments).map_err(invalid)?;
        let lease = Duration::from_secs(lease_seconds.clamp(1, 24 * 3600));
        let workspace = self.own_files.files.workspace(&owned);
        let run = workspace.begin_outside_run(RUN_WAIT, lease).await;
        let run = run.map_err(|error| files_failed(&error))?;
        Ok(Outcome::success(json!(run).to_string()))
    }

    /// Ends a run. What it changed becomes versions.
    async fn end_run(
        &self,
        FoundConversation { owned, .. }: FoundConversation,
        arguments: &Map<String, Value>,
    ) -> Result<Outcome, ToolOutcome> {
        let EndRun { run_id } = EndRun::deserialize(arguments).map_err(invalid)?;
        let report = self.own_files.files.workspace(&owned).end_outside_run(run_id).await;
        let report = report.map_err(|error| files_failed(&error))?;
        Ok(Outcome::success(json!(report).to_string()))
    }

    /// Makes a call at the gate, where the person is asked.
    async fn ask(
        &self,
        host: &ConversationHost,
        tool: String,
        params: Value,
        progress: &Progress,
        given_up: &CancellationToken,
    ) -> Result<Outcome, ToolOutcome> {
        let new = NewCall {
            id: CallId(Uuid::now_v7()),
            tool_name: tool,
            tool_params: params,
            workspace: WorkspaceKind::Conversation,
            agent_id: None,
            session_id: Some(host.owned.id()),
            task_id: None,
            asked_by: AskedBy::Program,
            requested_by: host.program,
        };
        let (gate, owned) = (&self.own_files.gate, host.owned.owned());
        let asked = ask_gate(gate, &self.mounts, owned, new, progress, given_up).await;
        asked.map_err(|error| match error {
            Error::TooManyOpenCalls { .. } | Error::CallStorageFull { .. } => {
                ToolOutcome::failed(FailureCode::Denied, error.to_string())
            }
            error => server_failed(&error, &host.owned),
        })
    }
}

const PRESENT_FILES: &str = ungated::PRESENT_FILES.name;
const BEGIN_RUN: &str = ungated::BEGIN_RUN.name;
const END_RUN: &str = ungated::END_RUN.name;
/// How long a run waits for another one.
const RUN_WAIT: Duration = Duration::from_secs(30);

/// The parameters of `begin_run`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BeginRun {
    lease_seconds: u64,
}

impl Default for BeginRun {
    fn default() -> Self {
        Self { lease_seconds: 600 }
    }
}

/// The parameters of `end_run`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndRun {
    run_id: RunId,
}

fn invalid(error: serde_json::Error) -> ToolOutcome {
    ToolOutcome::failed(FailureCode::InvalidParams, format!("Invalid parameters: {error}"))
}

fn files_failed(error: &atelier_files::Error) -> ToolOutcome {
    ToolOutcome::failed(error.code().into(), error.to_string())
}

fn server_failed(error: &dyn std::error::Error, owned: &OwnedConversation) -> ToolOutcome {
    tracing::warn!(%error, conversation = %owned.id(), "an MCP host's call failed");
    ToolOutcome::failed(
        FailureCode::Internal,
        "the call failed on the server; the server's log says why",
    )
}

fn run_in(
    own: &OwnFolder,
    settings: Settings,
    tool: &str,
    arguments: Map<String, Value>,
) -> Outcome {
    let settings = Settings { policy: Some(own.policy.clone()), ..settings };
    run_single_call(&own.folder, settings, tool, arguments, &own.cancel)
}

/// The parameters of a call as the gate takes them, if a person has to be asked about it.
fn asked_about(policy: &Policy, tool: &str, arguments: &Map<String, Value>) -> Option<Value> {
    let gated = ToolTable::builtin().get(tool).filter(|tool| tool.is_gated())?;
    let roots = Roots::announced("/workspace");
    let (arguments, limits) = (Value::Object(arguments.clone()), policy.limits());
    let table = policy.tools();
    let call =
        ToolCall::parse_on(Surface::Mcp, table, gated.name, arguments.clone(), &roots, limits);
    let judgement = policy.judge(&call.ok()?, &roots);
    if !judgement.verdict.needs_approval() {
        return None;
    }
    let mut params = arguments;
    if gated.name == "write_file" {
        // A host expects that missing directories are made.
        params["create_dirs"] = json!(true);
    }
    Some(params)
}
