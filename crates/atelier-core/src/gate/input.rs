//! The values that decisions take and return: the state of the project, the calls that are asked
//! for, the inputs that change a call, and the effects of a decision.

use super::{
    ApprovalSettings, ApprovalWait, Audit, CallFailure, GatedCall, Grant, GrantScope, Previewed,
    ToolOutcome,
};
use crate::{
    AgentId, ApprovalId, CallId, ClientId, ConversationId, GrantId, Invalid, ProjectId, TaskId,
    TokenId, UserId, WorkspaceKind, client::Client, event::Event, policy::Restrictions,
};
use chrono::{DateTime, Utc};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The state of a project when a decision is made.
#[derive(Debug, Clone)]
pub struct DecisionContext {
    /// The database's time, so that all nodes agree.
    pub now: DateTime<Utc>,
    /// The connected machines, the earliest connection first. The first machine runs the calls; the
    /// others stand by.
    pub clients: Arc<[Client]>,
    /// The project's permissions that have not been withdrawn.
    pub grants: Arc<[Grant]>,
    /// The project's own restrictions. An error if its settings cannot be read: then no call may
    /// run.
    pub restrictions: Result<Option<Arc<Restrictions>>, Invalid>,
    /// How long the project's questions wait.
    pub approvals: ApprovalSettings,
    /// Whether the project has been deleted.
    pub deleted: bool,
}

impl DecisionContext {
    /// A context that has only the time. It is enough for every input that does not
    /// [need the project](GateInput::needs_project).
    pub fn time_only(now: DateTime<Utc>) -> Self {
        Self {
            now,
            clients: Arc::default(),
            grants: Arc::default(),
            restrictions: Ok(None),
            approvals: ApprovalSettings::default(),
            deleted: false,
        }
    }

    /// The context of a call on the own files of a conversation: the server runs such calls itself.
    fn for_own_files(&self, project: ProjectId, conversation: ConversationId) -> Self {
        let server = Client::for_own_files(project, conversation, self.now);
        Self { clients: Arc::new([server]), ..self.clone() }
    }

    /// The context of a call, depending on where the call acts.
    pub(super) fn for_workspace(
        &self,
        workspace: WorkspaceKind,
        project: ProjectId,
        session: Option<ConversationId>,
    ) -> Cow<'_, Self> {
        match (workspace, session) {
            (WorkspaceKind::Conversation, Some(conversation)) => {
                Cow::Owned(self.for_own_files(project, conversation))
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// The machine that runs the project's calls, if one is connected.
    pub fn machine(&self) -> Option<&Client> {
        self.clients.first()
    }
}

/// Who asks for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// The project's owner, or the server for an agent that it runs.
    Owner,
    /// A program with an agent token. It can claim to be any agent.
    Program,
}

impl AskedBy {
    /// Who asked for a stored call. The server makes the calls of tasks. For other calls this is
    /// not stored, so they count as calls of a program, which permissions cover least.
    pub(super) fn of_stored(call: &GatedCall) -> Self {
        if call.task_id.is_some() { Self::Owner } else { Self::Program }
    }
}

/// The person who decides, and the program that they use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    pub user: UserId,
    /// The program, for the audit.
    pub via: Option<String>,
}

/// A tool call that is asked for, before the gate has rated it.
#[derive(Debug, Clone)]
pub struct NewCall {
    pub id: CallId,
    pub tool_name: String,
    pub tool_params: Value,
    /// Where the call acts: on a machine, or on the own files of its conversation.
    pub workspace: WorkspaceKind,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<ConversationId>,
    /// The task that waits for the call.
    pub task_id: Option<TaskId>,
    pub asked_by: AskedBy,
    /// The session of the `agent` token that asks.
    pub requested_by: Option<TokenId>,
}

/// Something that happens to a call and that the gate decides about.
#[derive(Debug, Clone)]
pub enum GateInput {
    /// A person approves the call.
    Approve { approval: ApprovalId, by: Decider, scope: GrantScope, include_high: bool },
    /// A person rejects the call.
    Reject { approval: ApprovalId, by: Decider, reason: Option<String> },
    /// A person wants the question to wait longer.
    KeepWaiting { approval: ApprovalId, by: Decider, wait: ApprovalWait },
    /// A person or a program does not want the call any more.
    Cancel { by: Decider },
    /// A new permission may cover the call, which waits for a person.
    Cover,
    /// Machines have connected or left, so the call may be sent if it waits for one.
    Assign,
    /// A machine reports what the call would change.
    Preview { client: ClientId, shown: Previewed },
    /// A machine reports that the call cannot be done.
    PreviewFailed { client: ClientId, failure: CallFailure },
    /// A machine is about to run the call.
    Claim { client: ClientId, attempt: u32 },
    /// A machine reports the outcome of the call.
    Outcome { client: ClientId, attempt: u32, outcome: ToolOutcome },
    /// The deadline of the call may have passed.
    TimePassed,
}

impl GateInput {
    /// Whether the decision depends on the project's machines, permissions and restrictions. Most
    /// inputs do not, and for them the store does not read the project.
    pub fn needs_project(&self) -> bool {
        match self {
            Self::Approve { .. } | Self::Cover | Self::Assign | Self::Preview { .. } => true,
            Self::Outcome { outcome, .. } => outcome.higher_rating().is_some(),
            Self::Reject { .. }
            | Self::KeepWaiting { .. }
            | Self::Cancel { .. }
            | Self::PreviewFailed { .. }
            | Self::Claim { .. }
            | Self::TimePassed => false,
        }
    }
}

/// The effects of a decision, besides the changed call.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    pub events: Vec<Event>,
    pub audit: Option<Audit>,
    /// A permission that an approval makes.
    pub grant: Option<Grant>,
    /// Why the call has to wait although a machine is connected: the project's restrictions cannot
    /// be read.
    pub problem: Option<Invalid>,
}

impl From<Vec<Event>> for Effects {
    fn from(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }
}

/// What comes of a question that had run out and is asked again.
#[derive(Debug, PartialEq)]
pub struct AskedAgain {
    /// The call whose question had run out.
    pub expired: GatedCall,
    pub of_expired: Effects,
    /// The call that takes its place.
    pub call: GatedCall,
    pub effects: Effects,
}

/// Unused ids for the records that a decision may create. The caller makes them, because new ids
/// contain the time and this crate has no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewIds {
    pub approval: ApprovalId,
    pub grant: GrantId,
}
