//! `/mcp/projects/{project}` of `atelier serve`: a project's tools for any MCP host, through the gate.
//!
//! The host asks; a person decides in the console or at `atelier connect`. Nothing here can approve.

use atelier_core::{
    ProjectId,
    gate::{CallStatus, GatedCall},
    policy::catalog::catalog,
};
use atelier_mcp::{Call, Mount, Outcome, Run, http::Settings};
use atelier_runtime::{Ask, Decider, Gate};
use atelier_server::McpDoor;
use atelier_store::Owned;
use moka::future::Cache;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How often a host that waits hears of it.
const PROGRESS: Duration = Duration::from_secs(5);
/// The sessions of a project nobody asked anything for so long are forgotten; hosts begin new ones.
const IDLE: Duration = Duration::from_secs(60 * 60);
const PROJECTS: u64 = 10_000;

const INSTRUCTIONS: &str = "Files and commands on the user's own machine, through Atelier. Paths are relative to \
     the workspace. Calls that change something wait until the user approves them, which can take minutes.";

/// What the mounts of all projects share.
pub(crate) struct Projects {
    pub(crate) gate: Gate,
    /// How people reach this server.
    pub(crate) url: String,
    pub(crate) max_body: usize,
    pub(crate) stop: CancellationToken,
}

/// One mount a project, so that a session of one is unknown to all others.
pub(crate) fn door(projects: Projects) -> McpDoor {
    let projects = Arc::new(projects);
    let mounts: Cache<ProjectId, Arc<Mount>> =
        Cache::builder().time_to_idle(IDLE).max_capacity(PROJECTS).build();
    Arc::new(move |owned: Owned, request| {
        let (projects, mounts) = (projects.clone(), mounts.clone());
        Box::pin(async move {
            let mount = mounts.get_with(owned.project, async { Arc::new(projects.mount(owned)) }).await;
            mount.handle(request).await
        })
    })
}

impl Projects {
    fn mount(self: &Arc<Self>, owned: Owned) -> Mount {
        let settings = Settings {
            // A page that was led here by a false name has no token.
            allowed_hosts: vec!["*".to_owned()],
            allowed_origins: vec![self.url.clone()],
            token: None,
            max_body: self.max_body,
            session_idle: IDLE,
        };
        let projects = self.clone();
        let run: Run = Arc::new(move |call| {
            let (projects, owned) = (projects.clone(), owned.clone());
            Box::pin(async move {
                projects.run(&owned, call).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, project = %owned.project, "an MCP host's call failed");
                    failed("the call could not be made; the server's log says why")
                })
            })
        });
        Mount::new(&catalog(), INSTRUCTIONS, run, settings, &self.stop)
    }

    async fn run(&self, owned: &Owned, asked: Call) -> atelier_runtime::Result<Outcome> {
        let ask = Ask {
            tool_name: asked.tool.clone(),
            tool_params: Value::Object(asked.arguments),
            agent_id: None,
            session_id: None,
            task_id: None,
        };
        let mut call = self.gate.execute(owned, ask).await?;
        while !call.status.is_settled() {
            asked.progress.tell(self.standing(owned, &call)).await;
            call = tokio::select! {
                call = self.gate.changed(owned, call.tool_id, call.status, PROGRESS) => call?,
                // Nobody would hear of the result, so nobody is to be asked for it any more.
                () = asked.given_up.cancelled() => {
                    let by = Decider { user: owned.owner, via: Some("an MCP host".to_owned()) };
                    self.gate.cancel(owned, by, call.tool_id).await?
                }
            };
        }
        Ok(outcome(&call))
    }

    /// How an open call stands, for the person in front of the host.
    fn standing(&self, owned: &Owned, call: &GatedCall) -> String {
        let (tool, risk) = (&call.tool_name, call.risk_level.as_str());
        match call.status {
            CallStatus::PendingApproval => {
                format!("Waiting for approval of {tool} ({risk}): {}/#/projects/{}", self.url, owned.project)
            }
            CallStatus::Dispatched => format!("Running {tool} on the user's machine"),
            _ => format!("Waiting for the user's machine to take {tool}: is `atelier connect` running?"),
        }
    }
}

fn failed(why: &str) -> Outcome {
    Outcome { text: format!("Error: {why}"), failed: true }
}

fn outcome(call: &GatedCall) -> Outcome {
    match (call.status, &call.result) {
        (CallStatus::Completed, Some(result)) => Outcome { text: text(call, result), failed: false },
        // What a command printed before it failed is as good to know as that it did.
        (CallStatus::Failed, Some(result)) if result.get("stdout").is_some() => {
            Outcome { text: result.to_string(), failed: true }
        }
        (CallStatus::Failed, Some(result)) => failed(result["error"].as_str().unwrap_or("the tool failed")),
        (status, _) => match &call.error {
            Some(error) => failed(&error.detail),
            None => failed(&format!("the call is {}", status.as_str())),
        },
    }
}

/// A text file as it is; everything else as the tool tells it.
fn text(call: &GatedCall, result: &Value) -> String {
    let is_text = call.tool_name == "read_file" && result["encoding"] != "base64";
    match result["content"].as_str().filter(|_| is_text) {
        Some(content) => content.to_owned(),
        None => result.to_string(),
    }
}
