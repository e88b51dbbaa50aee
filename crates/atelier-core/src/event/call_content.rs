//! Removes the content of calls from events, for programs that may not see every call.

use super::Event;
use crate::{
    CallId, ProjectId,
    gate::{CallFailure, LINK},
    policy::verdict::Verdict,
    tools::ToolTable,
};
use serde_json::json;

const SEE_THE_CALL: &str = "See the call.";

impl Event {
    /// The event without parameters and results of calls, which a program can look up for its own
    /// calls. `None` if there is nothing to remove. Calls that need no approval stay as they are.
    ///
    /// The match names every event, and every field of events about calls, so that a new one does
    /// not compile until somebody has decided about it.
    pub fn without_call_content(self, project: ProjectId) -> Option<Self> {
        let link =
            |tool_id: CallId| json!({ LINK: format!("/my/projects/{project}/tools/{tool_id}") });
        Some(match self {
            Self::ToolPreviewRequest {
                tool_id,
                client_id,
                tool_name,
                tool_params: _,
                session_id,
                task_id,
                requested_by,
            } => Self::ToolPreviewRequest {
                tool_params: link(tool_id),
                tool_id,
                client_id,
                tool_name,
                session_id,
                task_id,
                requested_by,
            },
            Self::ToolApprovalRequest { risk_level: Verdict::Low, .. } => return None,
            // A layer belongs to the program or agent that works in it, so other programs do not
            // see such a call.
            Self::ToolExecutionSignal { risk_level: Verdict::Low, ref tool_name, .. }
                if !is_in_layer(tool_name) =>
            {
                return None;
            }
            Self::ToolApprovalRequest {
                approval_id,
                tool_id,
                tool_name,
                tool_params: _,
                risk_level,
                rule,
                reason: _,
                class,
                network,
                preview: _,
                digest: _,
                agent_id,
                session_id,
                task_id,
                timeout_seconds,
                expires_at,
            } => Self::ToolApprovalRequest {
                approval_id,
                tool_params: link(tool_id),
                tool_id,
                tool_name,
                risk_level,
                rule,
                reason: SEE_THE_CALL.to_owned(),
                class,
                network,
                preview: None,
                digest: None,
                agent_id,
                session_id,
                task_id,
                timeout_seconds,
                expires_at,
            },
            Self::ToolExecutionSignal {
                tool_id,
                client_id,
                attempt,
                tool_name,
                tool_params: _,
                digest: _,
                risk_level,
                class,
                base_checksum,
                preview_digest,
                network,
                timeout,
                session_id,
                task_id,
                requested_by,
            } => Self::ToolExecutionSignal {
                tool_params: link(tool_id),
                tool_id,
                client_id,
                attempt,
                tool_name,
                digest: None,
                risk_level,
                class,
                base_checksum,
                preview_digest,
                network,
                timeout,
                session_id,
                task_id,
                requested_by,
            },
            Self::ToolCallUpdated { tool_id, session_id, status, error: Some(error) } => {
                let CallFailure { code, detail: _ } = error;
                let error = Some(CallFailure::new(code, SEE_THE_CALL));
                Self::ToolCallUpdated { tool_id, session_id, status, error }
            }
            // These name calls, but not their content.
            Self::ToolCallUpdated { tool_id: _, session_id: _, status: _, error: None }
            | Self::ToolApprovalWarning {
                approval_id: _,
                tool_id: _,
                session_id: _,
                expires_at: _,
            }
            | Self::ToolApprovalExtended {
                approval_id: _,
                tool_id: _,
                session_id: _,
                expires_at: _,
            }
            | Self::ToolResultAck { tool_id: _, attempt: _, status: _ } => return None,
            // These are not about a single call. The secrets that a person's conversations may
            // contain are removed elsewhere.
            Self::ProjectCreated { .. }
            | Self::ProjectUpdated { .. }
            | Self::ProjectDeleted {}
            | Self::AgentCreated { .. }
            | Self::AgentUpdated { .. }
            | Self::AgentDeleted { .. }
            | Self::ConversationCreated { .. }
            | Self::ConversationUpdated { .. }
            | Self::ConversationDeleted { .. }
            | Self::MessageCreated { .. }
            | Self::TaskQueued { .. }
            | Self::TaskStarted { .. }
            | Self::TaskProgress { .. }
            | Self::TaskCompleted { .. }
            | Self::TaskFailed { .. }
            | Self::TaskCancelled { .. }
            | Self::PlanCreated { .. }
            | Self::PlanApprovalRequest { .. }
            | Self::PlanUpdated { .. }
            | Self::Usage { .. }
            | Self::BudgetWarning { .. }
            | Self::WorkerSpaceReady { .. }
            | Self::WorkerSpaceClosed { .. }
            | Self::WorkerSpaceAlert { .. }
            | Self::ClientConnected { .. }
            | Self::ClientDisconnected { .. }
            | Self::GrantMade { .. }
            | Self::GrantWithdrawn { .. }
            | Self::ContextRetrieved { .. }
            | Self::ContextLimitWarning { .. }
            | Self::ContextPruned { .. }
            | Self::FilesChanged { .. }
            | Self::FilesPresented { .. } => return None,
        })
    }
}

fn is_in_layer(tool: &str) -> bool {
    ToolTable::builtin().get(tool).is_some_and(|tool| tool.is_layered())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApprovalId, ClientId, failure::FailureCode, gate::CallStatus};
    use uuid::Uuid;

    fn shown(event: Event, project: ProjectId) -> Option<String> {
        event.without_call_content(project).map(|event| json!(event).to_string())
    }

    #[test]
    fn no_event_tells_what_a_call_is_about() {
        let (project, tool_id) = (ProjectId(Uuid::from_u128(1)), CallId(Uuid::from_u128(2)));
        let params = || json!({ "content": "CONTENT" });
        let approval = |risk_level| Event::ToolApprovalRequest {
            approval_id: ApprovalId(Uuid::nil()),
            tool_id,
            tool_name: "write_file".to_owned(),
            tool_params: params(),
            risk_level,
            rule: "write_file".to_owned(),
            reason: "CONTENT".to_owned(),
            class: Default::default(),
            network: false,
            preview: None,
            digest: None,
            agent_id: None,
            session_id: None,
            task_id: None,
            timeout_seconds: Some(1),
            expires_at: Some(chrono::DateTime::UNIX_EPOCH),
        };
        let signal = |risk_level| Event::ToolExecutionSignal {
            tool_id,
            client_id: ClientId(Uuid::nil()),
            attempt: 1,
            tool_name: "write_file".to_owned(),
            tool_params: params(),
            digest: None,
            risk_level,
            class: Default::default(),
            base_checksum: None,
            preview_digest: None,
            network: false,
            timeout: None,
            session_id: None,
            task_id: None,
            requested_by: None,
        };
        let updated = |error| Event::ToolCallUpdated {
            tool_id,
            session_id: None,
            status: CallStatus::Failed,
            error,
        };
        let preview = Event::ToolPreviewRequest {
            tool_id,
            client_id: ClientId(Uuid::nil()),
            tool_name: "write_file".to_owned(),
            tool_params: params(),
            session_id: None,
            task_id: None,
            requested_by: None,
        };
        let link = format!("/my/projects/{project}/tools/{tool_id}");
        for event in [approval(Verdict::High), signal(Verdict::Medium), preview] {
            let shown = shown(event, project).unwrap();
            assert!(!shown.contains("CONTENT") && shown.contains(&link), "{shown}");
        }
        let failed = updated(Some(CallFailure::new(FailureCode::CommandFailed, "CONTENT")));
        let failed = shown(failed, project).unwrap();
        assert!(!failed.contains("CONTENT") && failed.contains(SEE_THE_CALL), "{failed}");
        for event in [updated(None), signal(Verdict::Low), approval(Verdict::Low)] {
            assert_eq!(shown(event, project), None);
        }
    }
}
