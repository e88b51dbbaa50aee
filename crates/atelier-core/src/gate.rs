//! The life of a tool call between the agent that asks for it and the machine that runs it.
//!
//! Everything here is pure. `input.rs` has the inputs of decisions and their effects. `decide.rs`
//! decides whether a call runs, is asked about or is refused. `transitions.rs` and `deadline.rs`
//! change the call as decided, and return the events to publish. A transition that comes too late
//! is refused with the state that won, so that of approve, reject, timeout and cancel exactly one
//! happens.

mod approval_time;
mod audit;
mod brief;
mod deadline;
mod decide;
mod input;
mod outcome;
mod permission;
mod transitions;

pub use approval_time::{ApprovalSettings, ApprovalWait};
pub use audit::{Audit, AuditDecision};
pub use decide::GateRules;
pub use input::{
    AskedAgain, AskedBy, Decider, DecisionContext, Effects, GateInput, NewCall, NewIds,
};
pub use outcome::{BinaryEncoding, ContentEncoding, OutcomeFailure, PolicyRefusal, ToolOutcome};
pub use permission::{Grant, GrantScope, LOCAL_GIT, covering_grant};

use crate::{
    AgentId, ApprovalId, CallId, ClientId, ConversationId, GrantId, ProjectId, TaskId, TokenId,
    UserId, WorkspaceKind,
    digest::{CallDigest, PreviewDigest},
    failure::FailureCode,
    policy::{
        class::CallClass,
        verdict::{Judgement, Verdict},
    },
    tools::{ToolDef, ToolTable},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// The state of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// A machine is asked what the call would change.
    Previewing,
    /// A person is asked.
    PendingApproval,
    /// The call may run, and waits for a machine.
    Approved,
    /// The call was sent to a machine.
    Dispatched,
    Completed,
    Failed,
    /// The machine was lost, or the call was cancelled, while the call ran. The call may have had
    /// an effect.
    Unknown,
    /// The policy did not allow the call, so nobody was asked.
    Denied,
    /// A person said no.
    Rejected,
    /// Nobody decided in time, or no machine ran the call in time.
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

    /// Whether the call has ended. A settled call stays as it is, with one exception: an `Unknown`
    /// call takes the outcome that its machine reports late.
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

/// Why a call has no result, or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallFailure {
    pub code: FailureCode,
    pub detail: String,
}

impl CallFailure {
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// The state of the question to a person about a call.
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

/// The change that a call would make, as the machine found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CallPreview {
    /// Checksum of the file that the diff was made from; `None` if the file does not exist yet. For
    /// a folder or link that is deleted or moved, a digest of what it is.
    pub base_checksum: Option<String>,
    /// Unified diff against the file on the user's machine. What is deleted or moved is described
    /// first.
    pub diff: String,
}

/// What a machine reports about a call before a person is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previewed {
    pub preview: CallPreview,
    pub rating: Option<CallRating>,
    /// Whether the file would be the same afterwards, byte for byte.
    pub unchanged: bool,
}

/// How a machine rates a call. A machine can find more than the server: a link that leads to a
/// secret file, or a stricter rule of the machine's owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CallRating {
    pub verdict: Verdict,
    pub rule: String,
    pub reason: String,
    #[serde(default)]
    pub network: bool,
    /// Everything that the machine found. Older machines tell only the rule.
    #[serde(default)]
    pub class: CallClass,
}

impl From<Judgement> for CallRating {
    fn from(judgement: Judgement) -> Self {
        let Judgement { verdict, rule, reason, network, class, .. } = judgement;
        Self { verdict, rule, reason, network, class }
    }
}

/// The question to a person, and their answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallApproval {
    pub id: ApprovalId,
    pub status: ApprovalStatus,
    pub requested_at: DateTime<Utc>,
    /// When the question runs out; `None` if it waits until it is answered.
    pub expires_at: Option<DateTime<Utc>>,
    /// Whether the person was reminded that time is running out.
    pub warned: bool,
    pub decided_at: Option<DateTime<Utc>>,
    pub decided_by: Option<UserId>,
    /// The machine that would have run the call when the question was asked or, if none was
    /// connected then, when it was approved.
    pub client_id: Option<ClientId>,
    /// Digest of the preview that the person was shown.
    #[serde(default)]
    pub preview_digest: Option<PreviewDigest>,
    pub scope: Option<GrantScope>,
    /// Why the person rejected the call.
    pub reason: Option<String>,
}

/// One tool call with everything that happened to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ToolCall))]
pub struct GatedCall {
    pub tool_id: CallId,
    pub project_id: ProjectId,
    pub tool_name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub tool_params: Value,
    /// Where the call acts: on a machine, or on the own files of its conversation.
    #[serde(default)]
    pub workspace: WorkspaceKind,
    pub status: CallStatus,
    pub risk_level: Verdict,
    /// The rule that decided about the risk.
    pub rule: String,
    pub reason: String,
    /// The class of calls that a permission given with this call covers.
    #[serde(default)]
    pub class: CallClass,
    pub network: bool,
    /// How long a command may run, in seconds.
    pub timeout: Option<u32>,
    pub requires_approval: bool,
    /// Digest of the call as it was rated; `None` if it could not be parsed.
    pub digest: Option<CallDigest>,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<ConversationId>,
    /// The task whose agent asked for the call. The task is parked until the call is settled.
    #[serde(default)]
    pub task_id: Option<TaskId>,
    /// The session of the `agent` token that asked for the call. `None` for calls of people and of
    /// tasks.
    #[serde(default)]
    pub requested_by: Option<TokenId>,
    pub approval_id: Option<ApprovalId>,
    pub approval: Option<CallApproval>,
    /// The standing permission that let the call run without a question.
    pub grant_id: Option<GrantId>,
    pub preview: Option<CallPreview>,
    pub client_id: Option<ClientId>,
    /// How often the call was sent to a machine.
    pub attempt: u32,
    /// Whether the machine has said that it is about to run the call. A claimed call is never sent
    /// again.
    pub claimed: bool,
    pub result: Option<ToolOutcome>,
    pub error: Option<CallFailure>,
    pub created_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
    /// When the gate has to act on the call next: to remind the person, to let the call expire, or
    /// to give up on the machine. `None` once the call is settled.
    pub deadline: Option<DateTime<Utc>>,
    /// Why the call waits, or why it needs approval again, in one sentence.
    #[serde(default)]
    pub note: Option<String>,
    /// The call that was made of this one, because its question had run out and was asked again.
    #[serde(default)]
    pub asked_again: Option<CallId>,
}

/// How long a call waits for people and machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateTimeouts {
    /// How long a person has to decide about a MEDIUM call; `None` without an end.
    pub medium: Option<TimeDelta>,
    /// How long a person has to decide about a HIGH call; `None` without an end.
    pub high: Option<TimeDelta>,
    /// How long a call waits for a machine to take it.
    pub dispatch: TimeDelta,
    /// How long an outcome may take beyond the call's own timeout.
    pub result: TimeDelta,
}

/// Why an input changes nothing: it came too late, or from the wrong machine. (A policy *denies* a
/// call, a person *rejects* it; the gate *refuses* an input.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another input came first and brought the call into this state.
    #[error("the call is already {}", .0.as_str())]
    Already(CallStatus),
    /// The input is not from the machine and the attempt that the call was last sent to.
    #[error("the call was sent to another machine, or this is an outdated attempt")]
    NotYours,
    /// The machine has reported another outcome before.
    #[error("the call already has a different result")]
    OtherResult,
    /// The answer is to an earlier approval of the call, which a newer approval has replaced.
    #[error("a newer question has replaced this one: decide about the newer one")]
    AskedAnew,
}

/// Key in an event's `tool_params` that links to the call whose parameters are too large for an
/// event.
pub const LINK: &str = "$link";

/// Key in the stored `tool_params` of a call that did not run, if they were too large to be kept:
/// their size, their checksum and their beginning.
pub const SHORTENED: &str = "$shortened";

impl GatedCall {
    /// A call as it was asked for and rated. Its first transition sets the status; until then the
    /// status is `Denied`, so that a call without a decision never runs.
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
            workspace: WorkspaceKind::Client,
            status: CallStatus::Denied,
            risk_level: judgement.verdict,
            rule: judgement.rule.clone(),
            reason: judgement.reason.clone(),
            class: judgement.class.clone(),
            network: judgement.network,
            timeout: judgement.timeout,
            requires_approval: judgement.verdict.needs_approval(),
            digest: None,
            agent_id: None,
            session_id: None,
            task_id: None,
            requested_by: None,
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
            asked_again: None,
        }
    }

    /// The class that the call belongs to. Calls that older versions stored have only their rule.
    pub fn class(&self) -> Cow<'_, CallClass> {
        match self.class.findings.is_empty() {
            true => Cow::Owned(CallClass::of(&*self.rule)),
            false => Cow::Borrowed(&self.class),
        }
    }

    /// Whether an `agent` token with this session may read the call's parameters and results. It
    /// may read its own calls, and calls that it could have made itself without approval. It can
    /// make no calls in the layers of others.
    pub fn is_open_to_program(&self, session: TokenId) -> bool {
        self.requested_by == Some(session)
            || (self.risk_level == Verdict::Low
                && self.approval.is_none()
                && self.grant_id.is_none()
                && !self.tool().is_some_and(|tool| tool.is_layered()))
    }

    /// The call without its parameters, preview and result, for programs that may only know that it
    /// exists.
    pub fn without_content(mut self) -> Self {
        self.tool_params = Value::Object(serde_json::Map::new());
        (self.preview, self.result, self.digest, self.note) = (None, None, None, None);
        let details = self.error.as_mut().map(|failure| &mut failure.detail);
        // These texts can name files or quote a person.
        for text in [&mut self.reason].into_iter().chain(details) {
            *text = "This token cannot read the call.".into();
        }
        if let Some(approval) = &mut self.approval {
            approval.reason = None;
        }
        self
    }

    /// The class that the call belongs to, for people.
    pub fn class_in_words(&self) -> String {
        format!("{}, in this project and this session", self.class().in_words())
    }

    /// Whether a permission for all local git commands can be given with this call, and covers it.
    pub fn is_local_git(&self) -> bool {
        self.class.local_git && self.risk_level == Verdict::Medium && !self.network
    }

    /// Digest of the preview that the call was approved with. The machine that runs the call
    /// computes its own, and does not run it if they differ.
    pub fn shown(&self) -> Option<PreviewDigest> {
        self.preview.as_ref().and(self.approval.as_ref())?.preview_digest
    }

    /// Whether nobody decided about the call in time, so that its question can be asked again.
    pub fn has_run_out(&self) -> bool {
        let timeout = |failure: &CallFailure| failure.code == FailureCode::ApprovalTimeout;
        self.status == CallStatus::Expired && self.error.as_ref().is_some_and(timeout)
    }

    /// Whether the machine can show what the call would change.
    pub fn has_preview(&self) -> bool {
        self.tool().is_some_and(|tool| tool.has_preview)
    }

    /// The definition of the tool; `None` if there is no such tool.
    pub fn tool(&self) -> Option<&'static ToolDef> {
        ToolTable::builtin().get(&self.tool_name).filter(|tool| tool.is_gated())
    }
}

#[cfg(test)]
mod tests;
