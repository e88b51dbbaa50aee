//! `/mcp/conversations/{conversation}` of `atelier serve`: a conversation's own files for any MCP
//! host.
//!
//! Each call is its own run in the conversation's folder. It waits for other runs in the same
//! folder, works on the newest versions, and stores its changes before it answers the host.

use crate::mcp_mounts::{Mounts, PROGRESS, door};
use atelier_core::{FailureCode, gate::ToolOutcome, policy::Policy};
use atelier_mcp::{Call, Mount, MountInfo, Outcome, RunTool, Settings, run_single_call};
use atelier_runtime::OwnFiles;
use atelier_server::McpHandler;
use atelier_store::{OwnedConversation, Store};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const INSTRUCTIONS: &str = "The files of one conversation in Atelier, below /workspace. Paths are \
    relative to it. \
     Every version of a file is kept; empty directories are not.";

/// What the mounts of all conversations share.
pub(crate) struct Conversations {
    pub(crate) store: Store,
    pub(crate) own_files: OwnFiles,
    /// Calls may outlive their hosts' connections, but not the server.
    pub(crate) tasks: TaskTracker,
    pub(crate) mounts: Mounts,
}

impl Conversations {
    pub(crate) fn door(self) -> McpHandler<OwnedConversation> {
        let conversations = Arc::new(self);
        door(OwnedConversation::id, move |owned| conversations.mount(owned))
    }

    fn mount(self: &Arc<Self>, owned: OwnedConversation) -> Mount {
        let info = MountInfo::workspace(&self.settings(None), INSTRUCTIONS);
        let (conversations, owned) = (self.clone(), Arc::new(owned));
        let run: RunTool =
            Arc::new(move |call| Box::pin(conversations.clone().run(owned.clone(), call)));
        self.mounts.mount(info, run)
    }

    fn settings(&self, policy: Option<Box<Policy>>) -> Settings {
        Settings {
            root_name: "/workspace".to_owned(),
            extra_tools: false,
            // Nobody can be asked here, so tools that would need an approval are not offered.
            read_only: self.own_files.gate.own_files_are_read_only(),
            max_file_size: self.own_files.files.settings().max_upload,
            durable: false,
            policy,
            functions: None,
            host_asks: false,
        }
    }

    /// Runs a call and sends progress notifications until it is done.
    async fn run(self: Arc<Self>, owned: Arc<OwnedConversation>, call: Call) -> Outcome {
        let Call { tool, arguments, progress, given_up } = call;
        let (conversations, id) = (self.clone(), owned.id());
        let mut work = self.tasks.spawn(async move {
            let outcome = conversations.call(&owned, tool, arguments, &given_up).await;
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

    /// Runs one call as a run of its own.
    async fn call(
        &self,
        owned: &OwnedConversation,
        tool: String,
        arguments: Map<String, Value>,
        given_up: &CancellationToken,
    ) -> Result<Outcome, ToolOutcome> {
        let failed = |error: atelier_store::Error| {
            tracing::warn!(%error, conversation = %owned.id(), "an MCP host's call failed");
            ToolOutcome::failed(
                FailureCode::Internal,
                "the call failed on the server; the server's log says why",
            )
        };
        let project = self.store.project(owned.owned()).await.map_err(failed)?;
        // The conversation may have changed since its mount was made.
        let conversation = self.store.conversation(owned.owned(), owned.id()).await;
        let (owned, conversation) = conversation.map_err(failed)?;
        let run = tokio::select! {
            run = self.own_files.begin(&project, &owned, &conversation, given_up) => run?,
            () = self.mounts.stop.cancelled() => {
                return Err(ToolOutcome::failed(FailureCode::Cancelled, "the server is stopping"));
            }
        };
        let settings = self.settings(None);
        let outcome = run.act(given_up, move |own| {
            let settings =
                Settings { policy: Some(Box::new(Policy::clone(&own.policy))), ..settings };
            run_single_call(&own.folder, settings, &tool, arguments, &own.cancel)
        });
        let outcome = outcome.await;
        let remarks = run.end().await?;
        let remark = (!remarks.is_empty()).then(|| remarks.trim_start().to_owned());
        Ok(Outcome { remark, ..outcome? })
    }
}
