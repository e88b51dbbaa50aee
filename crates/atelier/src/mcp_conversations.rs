//! `/mcp/conversations/{conversation}` of `atelier serve`: a conversation's own files for any MCP
//! host.
//!
//! Each call is its own run in the conversation's folder. It waits for other runs in the same
//! folder, works on the newest versions, and stores its changes before it answers the host.

use crate::mcp_mounts::{Mounts, PROGRESS, door};
use atelier_core::policy::{Policy, verdict::Verdict};
use atelier_files::{Error, Files};
use atelier_mcp::{Call, Mount, Offer, Outcome, Run, Settings, visit};
use atelier_runtime::Gate;
use atelier_server::{McpHandler, OwnedConversation};
use atelier_store::Store;
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a call waits for another run in the same conversation.
const WAIT: Duration = Duration::from_secs(30);

const INSTRUCTIONS: &str = "The files of one conversation in Atelier, below /workspace. Paths are \
    relative to it. \
     Every version of a file is kept; empty directories are not.";

/// What the mounts of all conversations share.
pub(crate) struct Conversations {
    pub(crate) store: Store,
    pub(crate) files: Files,
    /// Knows the rules of the server and of its projects.
    pub(crate) gate: Gate,
    /// The verdict for changes of a conversation's own files.
    pub(crate) changes: Verdict,
    /// Calls may outlive their hosts' connections, but not the server.
    pub(crate) tasks: TaskTracker,
    pub(crate) mounts: Mounts,
}

impl Conversations {
    pub(crate) fn door(self) -> McpHandler<OwnedConversation> {
        let conversations = Arc::new(self);
        door(
            |place: &OwnedConversation| place.conversation,
            move |place| conversations.mount(place),
        )
    }

    fn mount(self: &Arc<Self>, place: OwnedConversation) -> Mount {
        let offer = Offer::workspace(&self.settings(None), INSTRUCTIONS);
        let (conversations, place) = (self.clone(), Arc::new(place));
        let run: Run =
            Arc::new(move |call| Box::pin(conversations.clone().run(place.clone(), call)));
        self.mounts.mount(offer, run)
    }

    fn settings(&self, policy: Option<Box<Policy>>) -> Settings {
        Settings {
            root_name: "/workspace".to_owned(),
            extra_tools: false,
            // Nobody can be asked here, so tools that would need an approval are not offered.
            read_only: self.changes > Verdict::Low,
            max_file_size: self.files.settings().max_upload,
            durable: false,
            policy,
            asked: false,
        }
    }

    /// Runs a call and sends progress notifications until it is done.
    async fn run(self: Arc<Self>, place: Arc<OwnedConversation>, call: Call) -> Outcome {
        let Call { tool, arguments, progress, given_up } = call;
        let (conversations, id) = (self.clone(), place.conversation);
        let mut work = self
            .tasks
            .spawn(async move { conversations.act(&place, tool, arguments, &given_up).await });
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS, PROGRESS);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = ticks.tick() => progress.tell("Working on the conversation's \
                    files".to_owned()).await,
            }
        };
        match done {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error @ (Error::Disabled | Error::Locked | Error::Stopping))) => {
                Outcome::error(&error.to_string())
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, conversation = %id, "an MCP host's call failed");
                Outcome::error("the call failed on the server; the server's log says why")
            }
            Err(error) => {
                tracing::error!(%error, conversation = %id, "an MCP host's call ended \
                    unexpectedly");
                Outcome::error("the call was interrupted; the server's log says why")
            }
        }
    }

    /// Runs the tool in the conversation's folder and stores what it changed.
    async fn act(
        &self,
        place: &OwnedConversation,
        tool: String,
        arguments: Map<String, Value>,
        given_up: &CancellationToken,
    ) -> Result<Outcome, Error> {
        let OwnedConversation { owned, conversation: id } = place;
        let conversation = self.store.conversation(owned, *id).await?;
        if !conversation.workspace_enabled {
            return Err(Error::Disabled);
        }
        // The same rules apply as for an agent in this conversation.
        let project = self.store.project(owned).await?;
        let policy = match self.gate.own_files_policy(&project) {
            Ok(policy) => policy,
            Err(invalid) => return Ok(Outcome::error(&invalid.to_string())),
        };
        let settings = self.settings(Some(Box::new(policy)));
        let workspace = self.files.workspace(owned, &conversation);
        let run = tokio::select! {
            run = workspace.sync_to_local(WAIT) => run?,
            () = given_up.cancelled() => return Ok(Outcome::error("the host cancelled the call")),
            () = self.mounts.stop.cancelled() => return Err(Error::Stopping),
        };
        let mut outcome = visit(run.folder().to_owned(), settings, tool, arguments, given_up).await;
        match run.end().await {
            Ok(report) => {
                let remarks = report.remarks();
                outcome.remark = (!remarks.is_empty()).then(|| remarks.trim_start().to_owned());
            }
            Err(error) => {
                tracing::warn!(%error, conversation = %id, "cannot store the changes of an MCP \
                    host yet");
                outcome = Outcome::error(
                    "the changes could not be stored yet; the server's log says why",
                );
            }
        }
        Ok(outcome)
    }
}
