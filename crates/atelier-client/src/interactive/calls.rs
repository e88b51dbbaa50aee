//! Calls that commands of a session make on the person's behalf.

use super::Session;
use crate::{
    cards::{CardEvent, OpenCards, TextTyped},
    error::{Error, Result},
};
use atelier_core::{
    failure::FailureCode,
    gate::{CallStatus, GatedCall},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct Tools {
    tools: Vec<ToolEntry>,
}

#[derive(Deserialize)]
struct ToolEntry {
    name: String,
}

/// The result of a command.
#[derive(Deserialize, Default)]
struct Printed {
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    stderr: String,
}

fn printed(call: &GatedCall) -> Printed {
    let result = call.result.as_ref().map(|result| json!(result)).unwrap_or_default();
    serde_json::from_value(result).unwrap_or_default()
}

fn git(args: &[&str]) -> Value {
    json!({"command": "git", "args": args})
}

/// The new files in the output of `git status --porcelain`.
fn new_files(status: &str) -> impl Iterator<Item = &str> {
    status.lines().filter_map(|line| line.strip_prefix("?? "))
}

impl Session {
    pub(super) async fn undo(&self) -> Result<()> {
        let tools: Tools = self.project.api.get(&self.project.path("tools/available")).await?;
        if !tools.tools.iter().any(|tool| tool.name == "undo") {
            self.say("This server cannot take changes back: use git in the folder.");
            return Ok(());
        }
        let Some(call) = self.call_tool("undo", json!({})).await? else { return Ok(()) };
        match (call.status, call.error) {
            (CallStatus::Completed, _) => self.say("The last change is taken back."),
            (CallStatus::Rejected, _) => self.say("Nothing was taken back."),
            (_, Some(error)) if error.code == FailureCode::NotFound => {
                self.say("There is no change to undo.");
            }
            (_, Some(error)) => self.say(&format!("Undo failed: {}", error.detail)),
            (status, None) => self.say(&format!("Undo failed: the call is {}.", status.as_str())),
        }
        Ok(())
    }

    /// Shows what has changed since the last commit, new files included.
    pub(super) async fn show_changes(&self) -> Result<()> {
        let status = ["status", "--porcelain", "--untracked-files=all"];
        let Some(status) = self.call_git(&status).await? else { return Ok(()) };
        if status.trim().is_empty() {
            self.say("Nothing has changed since the last commit.");
            return Ok(());
        }
        if status.lines().any(|line| !line.starts_with("??")) {
            let Some(diff) = self.call_git(&["diff", "HEAD"]).await? else { return Ok(()) };
            self.say(diff.trim_end());
        }
        let new: Vec<&str> = new_files(&status).collect();
        if !new.is_empty() {
            self.say(&format!("New files:\n  {}", new.join("\n  ")));
        }
        Ok(())
    }

    /// Runs git in the folder. Without an answer, it has said why.
    async fn call_git(&self, args: &[&str]) -> Result<Option<String>> {
        let Some(call) = self.call_tool("execute_command", git(args)).await? else {
            return Ok(None);
        };
        let printed = printed(&call);
        if call.status == CallStatus::Completed {
            return Ok(Some(printed.stdout));
        }
        match (call.status, call.error) {
            (CallStatus::Rejected, _) => self.say("Nothing was run."),
            _ if printed.stderr.contains("not a git repository") => {
                self.say("This folder is not in a git repository, so /diff cannot compare it.");
            }
            (_, Some(error)) => {
                self.say(&format!("git failed: {}\n{}", error.detail, printed.stderr.trim_end()));
            }
            (status, None) => self.say(&format!("git failed: the call is {}.", status.as_str())),
        }
        Ok(None)
    }

    /// Makes a call. If it needs an approval, its card is shown. Escape or Ctrl-C cancels it; then
    /// there is no result.
    async fn call_tool(&self, tool: &str, params: Value) -> Result<Option<GatedCall>> {
        let session = self.conversation.as_ref().map(|conversation| conversation.id);
        let body = json!({"tool_name": tool, "tool_params": params, "session_id": session});
        let mut call: GatedCall =
            self.project.api.post(&self.project.path("tools/execute"), &body).await?;
        let stop = CancellationToken::new();
        let mut interrupts = signal(SignalKind::interrupt())
            .map_err(Error::io("listen to", "the keyboard".as_ref()))?;
        let (project, screen) = (self.project.clone(), self.screen.clone());
        let cards = match self.me.role.is_person() {
            true => Some(OpenCards::open(project, screen, TextTyped::Kept, stop.clone())?),
            false => None,
        };
        let settled = tokio::select! {
            settled = self.until_settled(&mut call, cards.as_ref()) => Some(settled),
            () = stop.cancelled() => None,
            _ = interrupts.recv() => None,
        };
        if let Some(cards) = cards {
            cards.close().await;
        }
        match settled {
            Some(outcome) => outcome.map(|()| Some(call)),
            None => self.cancel(&call).await.map(|()| None),
        }
    }

    async fn until_settled(&self, call: &mut GatedCall, cards: Option<&OpenCards>) -> Result<()> {
        let mut has_said = false;
        while !call.status.is_settled() {
            let event = match call.status {
                CallStatus::PendingApproval => CardEvent::CallPending(call.tool_id),
                status => CardEvent::CallUpdated(call.tool_id, status),
            };
            if let Some(cards) = cards {
                cards.send(event);
            } else if !std::mem::replace(&mut has_said, true) {
                self.say("The call waits. Ctrl-C cancels it.");
            }
            tokio::time::sleep(LOOK_EVERY).await;
            *call = self.project.call(call.tool_id).await?;
        }
        Ok(())
    }

    async fn cancel(&self, call: &GatedCall) -> Result<()> {
        let path = self.project.path(&format!("tools/{}/cancel", call.tool_id));
        match self.project.api.post_only(&path, &json!({})).await {
            // The call ended by itself in the meantime.
            Err(error) if error.status() == Some(409) => {}
            other => other?,
        }
        self.say("Cancelled.");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_are_those_that_git_does_not_know() {
        let status = " M README.md\n?? notes.txt\n?? src/new.rs\n";
        assert_eq!(new_files(status).collect::<Vec<_>>(), ["notes.txt", "src/new.rs"]);
    }
}
