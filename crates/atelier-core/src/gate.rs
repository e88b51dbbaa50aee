//! The life of a tool call between the agent that asks for it and the machine that runs it.
//!
//! Pure: each step takes the call as it is and the time, and gives the call as it is then and what to tell.
//! A step that comes too late is refused with the state that won, so that of approve, reject, timeout and
//! cancel exactly one happens.

mod steps;

use crate::{
    AgentId, ApprovalId, CallId, ClientId, ConversationId, GrantId, ProjectId, TaskId, UserId,
    digest::CallDigest,
    policy::verdict::{Judgement, Verdict},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// The client is asked what the call would change.
    Previewing,
    /// A person is asked.
    PendingApproval,
    /// It may run, and waits for a client.
    Approved,
    /// A client was told to run it.
    Dispatched,
    Completed,
    Failed,
    /// The client was lost while it ran: it may have happened or not.
    Unknown,
    Denied,
    Rejected,
    /// Nobody decided in time, or no client came in time.
    Expired,
    Cancelled,
}

impl CallStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            CallStatus::Previewing => "previewing",
            CallStatus::PendingApproval => "pending_approval",
            CallStatus::Approved => "approved",
            CallStatus::Dispatched => "dispatched",
            CallStatus::Completed => "completed",
            CallStatus::Failed => "failed",
            CallStatus::Unknown => "unknown",
            CallStatus::Denied => "denied",
            CallStatus::Rejected => "rejected",
            CallStatus::Expired => "expired",
            CallStatus::Cancelled => "cancelled",
        }
    }

    /// Nothing will happen to it any more.
    pub fn is_settled(self) -> bool {
        !matches!(
            self,
            CallStatus::Previewing
                | CallStatus::PendingApproval
                | CallStatus::Approved
                | CallStatus::Dispatched
        )
    }
}

/// Why a call did not come to a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallFailure {
    pub code: String,
    pub detail: String,
}

impl CallFailure {
    pub fn new(code: &str, detail: impl Into<String>) -> Self {
        Self { code: code.to_owned(), detail: detail.into() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// This call only.
    #[default]
    Once,
    /// Calls of the same rule, in this session.
    Class,
    /// Everything this agent asks for in this session, up to Medium.
    Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    Pending,
    Approved,
    Rejected,
    Expired,
    Cancelled,
}

impl ApprovalStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            ApprovalStatus::Pending => "pending",
            ApprovalStatus::Approved => "approved",
            ApprovalStatus::Rejected => "rejected",
            ApprovalStatus::Expired => "expired",
            ApprovalStatus::Cancelled => "cancelled",
        }
    }
}

/// What the client found that a write would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CallPreview {
    /// Of the file that the diff was made from; none where there is no file yet.
    pub base_checksum: Option<String>,
    /// Unified, against the file on the user's machine.
    pub diff: String,
}

/// What the client finds a call to be, where that is more than the server could see: a link that leads to a secret,
/// a stricter rule of the machine's owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CallRating {
    pub verdict: Verdict,
    pub rule: String,
    pub reason: String,
    #[serde(default)]
    pub network: bool,
}

/// The question to a person, and their answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallApproval {
    pub id: ApprovalId,
    pub status: ApprovalStatus,
    pub requested_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    /// Whether the person was reminded that time is running out.
    pub warned: bool,
    pub decided_at: Option<DateTime<Utc>>,
    pub decided_by: Option<UserId>,
    /// The machine that was to run it when it was asked about or, where none was connected, when it was approved.
    pub client_id: Option<ClientId>,
    pub scope: Option<GrantScope>,
    /// Why it was rejected.
    pub reason: Option<String>,
}

/// One tool call, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ToolCall))]
pub struct GatedCall {
    pub tool_id: CallId,
    pub project_id: ProjectId,
    pub tool_name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub tool_params: Value,
    pub status: CallStatus,
    pub risk_level: Verdict,
    /// The rule that decided about the risk; a class of calls is named by it.
    pub rule: String,
    pub reason: String,
    pub network: bool,
    /// How long a command may run, in seconds.
    pub timeout: Option<u32>,
    pub requires_approval: bool,
    /// Of the call as it was judged. None where it was refused before it was a call.
    pub digest: Option<CallDigest>,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<ConversationId>,
    /// The task whose agent asks: it waits until the call is settled.
    #[serde(default)]
    pub task_id: Option<TaskId>,
    pub approval_id: Option<ApprovalId>,
    pub approval: Option<CallApproval>,
    /// By which standing permission it runs unasked.
    pub grant_id: Option<GrantId>,
    pub preview: Option<CallPreview>,
    pub client_id: Option<ClientId>,
    /// Counts the times it was sent to a client.
    pub attempt: u32,
    /// The client has said that it begins; from here on it is not sent again.
    pub claimed: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Value>,
    pub error: Option<CallFailure>,
    pub created_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
    /// When time has something to do with it next: to remind the person, to decide, to give up on a client.
    pub deadline: Option<DateTime<Utc>>,
    /// What it waits for beside a decision, or why it is asked about again, in a sentence.
    #[serde(default)]
    pub note: Option<String>,
}

/// A standing permission, for one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    pub id: GrantId,
    pub project_id: ProjectId,
    pub scope: GrantScope,
    /// The conversation it holds for or, for calls without one, the client's connection.
    pub session: uuid::Uuid,
    /// For a class: its rule, such as `git.commit`.
    pub rule: Option<String>,
    /// For everything of an agent.
    pub agent_id: Option<AgentId>,
    /// Whether it reaches to High: the person has said so, or was shown something High as an example of a class.
    pub include_high: bool,
    /// What it allows, for people.
    pub words: String,
    pub created_by: UserId,
    pub created_at: DateTime<Utc>,
    pub withdrawn_at: Option<DateTime<Utc>>,
}

impl Grant {
    /// Whether it allows the call. What it does not clearly cover, it does not cover.
    pub fn covers(&self, call: &GatedCall, session: Option<uuid::Uuid>) -> bool {
        let risk = match call.risk_level {
            Verdict::Low | Verdict::Deny => false,
            Verdict::Medium => true,
            Verdict::High => self.include_high,
        };
        let what = match self.scope {
            GrantScope::Once => false,
            // A class was shown with its own risk, so it covers just that.
            GrantScope::Class => self.rule.as_deref() == Some(&call.rule) && risk,
            GrantScope::Agent => self.agent_id.is_some() && self.agent_id == call.agent_id && risk,
        };
        what && self.withdrawn_at.is_none()
            && self.project_id == call.project_id
            && Some(self.session) == session
    }
}

/// How long things wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// For a person to decide about a call rated Medium.
    pub medium: TimeDelta,
    /// The same for High.
    pub high: TimeDelta,
    /// For a client to come.
    pub dispatch: TimeDelta,
    /// For a result, beyond the call's own timeout.
    pub result: TimeDelta,
}

impl Waits {
    fn approval(self, risk: Verdict) -> TimeDelta {
        if risk == Verdict::High { self.high } else { self.medium }
    }
}

/// A step that came too late, or does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else was first; this is how it stands.
    #[error("it is {} already", .0.as_str())]
    Already(CallStatus),
    #[error("the call was sent to another client, or for another attempt")]
    NotYours,
    #[error("a different result was taken already")]
    OtherResult,
    /// Of a word about an earlier question.
    #[error("it was asked about anew since: decide about what is asked now")]
    AskedAnew,
}

/// Stands in an event's `tool_params` for parameters that are too large to be told.
pub const LINK: &str = "$link";

impl GatedCall {
    /// A call as it was asked for and judged. Nothing has happened to it: what does first is a step.
    pub fn new(
        tool_id: CallId,
        project_id: ProjectId,
        tool_name: String,
        tool_params: Value,
        judgement: &Judgement,
        now: DateTime<Utc>,
    ) -> Self {
        Self {
            tool_id,
            project_id,
            tool_name,
            tool_params,
            status: CallStatus::Denied,
            risk_level: judgement.verdict,
            rule: judgement.rule.clone(),
            reason: judgement.reason.clone(),
            network: judgement.network,
            timeout: judgement.timeout,
            requires_approval: judgement.verdict.needs_approval(),
            digest: None,
            agent_id: None,
            session_id: None,
            task_id: None,
            approval_id: None,
            approval: None,
            grant_id: None,
            preview: None,
            client_id: None,
            attempt: 0,
            claimed: false,
            result: None,
            error: None,
            created_at: now,
            completed_at: None,
            deadline: None,
            note: None,
        }
    }

    /// The class of calls that it belongs to, for people.
    pub fn class_in_words(&self) -> String {
        let (what, about) = self.rule.split_once(' ').unwrap_or((&self.rule, ""));
        let what = what.replace('.', " ");
        let what = match about.split_once("file.") {
            _ if about.is_empty() => format!("every “{what}”"),
            Some(("", kind)) => format!("every “{what}” on files of the kind “{kind}”"),
            _ => format!("every “{what}” that is asked about because of “{about}”"),
        };
        format!("{what}, in this project and this session")
    }

    /// Whether the client can show what it would change.
    pub fn changes_a_file(&self) -> bool {
        matches!(self.tool_name.as_str(), "write_file" | "edit_file")
    }
}

#[cfg(test)]
mod tests;
