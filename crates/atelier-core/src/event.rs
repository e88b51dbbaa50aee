//! Events: what happens in a project.

use crate::{
    Agent, AgentId, AgentName, ApprovalId, CallId, ClientId, Conversation, ConversationFile,
    ConversationId, FileChange, GrantId, InteractionId, Message, Plan, PlanId, Project, Task,
    TaskId, TokenId, Usage,
    budget::{BudgetPeriod, BudgetScope, BudgetUnit},
    digest::{CallDigest, PreviewDigest},
    gate::{CallFailure, CallPreview, CallStatus, Grant},
    policy::{class::CallClass, verdict::Verdict},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod call_content;

/// One entry of a project's log. The variant's name in upper case is the event's name on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Event {
    /// A project was created.
    ProjectCreated { project: Project },
    /// A project's name, workspace or settings changed.
    ProjectUpdated { project: Project },
    /// The project was deleted. This is its last event.
    ProjectDeleted {},
    /// An agent was added to the project.
    AgentCreated { agent: Agent },
    /// An agent's name or configuration changed.
    AgentUpdated { agent: Agent },
    /// An agent was deleted.
    AgentDeleted { agent_id: AgentId, name: AgentName },
    /// A conversation was created.
    ConversationCreated { conversation: Conversation },
    /// A conversation's title, status or workspace changed.
    ConversationUpdated { conversation: Conversation },
    /// A conversation was deleted with its messages and files.
    ConversationDeleted { session_id: ConversationId },
    /// A user or an agent wrote a message.
    MessageCreated { message: Message },
    /// A task entered its agent's queue.
    TaskQueued { task: Task },
    /// A node began or continued to work on a task.
    TaskStarted {
        task_id: TaskId,
        session_id: ConversationId,
        plan_id: Option<PlanId>,
        agent_id: Option<AgentId>,
        agent_name: Option<AgentName>,
    },
    /// The model answered a step of a task with tool calls, which are being handled.
    TaskProgress {
        task_id: TaskId,
        session_id: ConversationId,
        step: u32,
        text: String,
        calls: Vec<TaskCall>,
    },
    /// A task was completed.
    TaskCompleted { task: Task },
    /// A task failed; the task says why.
    TaskFailed { task: Task },
    /// A task was cancelled.
    TaskCancelled { task: Task },
    /// The planner made a plan.
    PlanCreated { plan: Plan, tasks: Vec<Task> },
    /// A plan waits for its owner's approval.
    PlanApprovalRequest { plan: Plan, tasks: Vec<Task> },
    /// A plan's status changed.
    PlanUpdated { plan: Plan },
    /// What one step of a task used: tokens and, where prices are known, US dollars.
    Usage {
        task_id: TaskId,
        session_id: ConversationId,
        agent_id: Option<AgentId>,
        model: String,
        usage: Usage,
        cost: Option<f64>,
    },
    /// A budget that holds for the project is nearly or wholly used up. Sent once for each number
    /// of a budget, to the project that noticed it first. The numbers are null for the budgets of
    /// a tenant and of the server, because they would tell about others.
    BudgetWarning {
        scope: BudgetScope,
        period: BudgetPeriod,
        unit: BudgetUnit,
        limit: Option<f64>,
        used: Option<f64>,
    },
    /// The server created the project's worker space.
    WorkerSpaceReady { user_prefix: String },
    /// The server released the project's worker space. The user's files are untouched.
    WorkerSpaceClosed { reason: CloseReason },
    /// The worker space has a problem that an operator should know about.
    WorkerSpaceAlert { alert: Alert, detail: String },
    /// A machine connected and can run tool calls.
    ClientConnected { client_id: ClientId, root: String },
    /// A machine left, or has been silent for too long.
    ClientDisconnected { client_id: ClientId },
    /// Asks one machine what a call would change.
    ToolPreviewRequest {
        tool_id: CallId,
        client_id: ClientId,
        tool_name: String,
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        tool_params: Value,
        /// The conversation of the call, whose layer the machine uses.
        #[serde(default)]
        session_id: Option<ConversationId>,
        #[serde(default)]
        task_id: Option<TaskId>,
        /// The program that asked for the call, which has a layer of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_by: Option<TokenId>,
    },
    /// A tool call waits for its owner's approval.
    ToolApprovalRequest {
        approval_id: ApprovalId,
        tool_id: CallId,
        tool_name: String,
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        tool_params: Value,
        risk_level: Verdict,
        rule: String,
        reason: String,
        #[serde(default)]
        class: CallClass,
        network: bool,
        preview: Option<CallPreview>,
        digest: Option<CallDigest>,
        agent_id: Option<AgentId>,
        session_id: Option<ConversationId>,
        task_id: Option<TaskId>,
        /// How long the question waits; null if it waits until it is answered.
        timeout_seconds: Option<u32>,
        expires_at: Option<DateTime<Utc>>,
    },
    /// The time to decide about a tool call is about to run out.
    ToolApprovalWarning {
        approval_id: ApprovalId,
        tool_id: CallId,
        #[serde(default)]
        session_id: Option<ConversationId>,
        expires_at: DateTime<Utc>,
    },
    /// A person let the question about a tool call wait longer.
    ToolApprovalExtended {
        approval_id: ApprovalId,
        tool_id: CallId,
        #[serde(default)]
        session_id: Option<ConversationId>,
        /// When the question runs out now; null if it waits until it is answered.
        expires_at: Option<DateTime<Utc>>,
    },
    /// Tells one machine to run a call. Sent only after approval, if the call needs one.
    ToolExecutionSignal {
        tool_id: CallId,
        client_id: ClientId,
        attempt: u32,
        tool_name: String,
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        tool_params: Value,
        /// The conversation of the call, whose layer the machine uses.
        #[serde(default)]
        session_id: Option<ConversationId>,
        #[serde(default)]
        task_id: Option<TaskId>,
        /// The program that asked for the call, which has a layer of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_by: Option<TokenId>,
        digest: Option<CallDigest>,
        /// The risk that was approved. The client runs nothing that it rates higher.
        risk_level: Verdict,
        /// What was approved: the client runs nothing that it finds more about.
        #[serde(default)]
        class: CallClass,
        /// For a call with a preview: the checksum of what was shown, or null if there was no file.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::json::given"
        )]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        base_checksum: Option<Option<String>>,
        /// Digest of the preview that was approved: the client runs the call only if its own
        /// preview has the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preview_digest: Option<PreviewDigest>,
        network: bool,
        timeout: Option<u32>,
    },
    /// The machine's result of a call was saved.
    ToolResultAck { tool_id: CallId, attempt: u32, status: CallStatus },
    /// The status of a tool call changed.
    ToolCallUpdated {
        tool_id: CallId,
        /// The conversation of the call, if it has one. Streams of one conversation select events
        /// by it.
        session_id: Option<ConversationId>,
        status: CallStatus,
        error: Option<CallFailure>,
    },
    /// A person gave a permission.
    GrantMade { grant: Grant },
    /// A permission was withdrawn.
    GrantWithdrawn { grant_id: GrantId },
    /// An agent searched its memory.
    ContextRetrieved {
        agent_id: AgentId,
        /// The task that the memories were retrieved for.
        task_id: Option<TaskId>,
        /// The query, shortened.
        query: String,
        interactions: Vec<InteractionId>,
        /// Whether the index did not answer, so that the full-text search of the store was used.
        degraded: bool,
    },
    /// An agent's memory is nearly full. Sent once, and again only after the memory had more room.
    ContextLimitWarning { agent_id: AgentId, total_vectors: u64, max_vectors: u64 },
    /// Interactions of an agent were deleted.
    ContextPruned { agent_id: AgentId, removed: u64, reason: PruneReason },
    /// Files of a conversation were created, changed, renamed or deleted, by its owner or an agent.
    FilesChanged { conversation_id: ConversationId, changes: Vec<FileChange> },
    /// An agent presents files to the user.
    FilesPresented {
        conversation_id: ConversationId,
        files: Vec<ConversationFile>,
        description: Option<String>,
    },
}

/// A tool call in the event that reports the progress of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskCall {
    pub name: String,
    pub tool_id: Option<CallId>,
}

/// Why a worker space was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// Nobody used the space for the configured time.
    Inactive,
    /// The owner of the project ended the session.
    SessionEnded,
    /// The owner of the project or an admin reset the space.
    Reset,
}

/// A problem of a worker space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// The project uses more agents than its cache holds.
    CacheOverflow,
    /// A request or a task has been running for longer than the configured time.
    HungTask,
}

/// Why interactions were deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PruneReason {
    /// A user pruned the memory.
    Requested,
    /// A user cleared the memory.
    Cleared,
    /// The memory was full, so the oldest interactions were deleted.
    Limit,
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Event::ProjectCreated { .. } => "PROJECT_CREATED",
            Event::ProjectUpdated { .. } => "PROJECT_UPDATED",
            Event::ProjectDeleted {} => "PROJECT_DELETED",
            Event::AgentCreated { .. } => "AGENT_CREATED",
            Event::AgentUpdated { .. } => "AGENT_UPDATED",
            Event::AgentDeleted { .. } => "AGENT_DELETED",
            Event::ConversationCreated { .. } => "CONVERSATION_CREATED",
            Event::ConversationUpdated { .. } => "CONVERSATION_UPDATED",
            Event::ConversationDeleted { .. } => "CONVERSATION_DELETED",
            Event::MessageCreated { .. } => "MESSAGE_CREATED",
            Event::TaskQueued { .. } => "TASK_QUEUED",
            Event::TaskStarted { .. } => "TASK_STARTED",
            Event::TaskProgress { .. } => "TASK_PROGRESS",
            Event::TaskCompleted { .. } => "TASK_COMPLETED",
            Event::TaskFailed { .. } => "TASK_FAILED",
            Event::TaskCancelled { .. } => "TASK_CANCELLED",
            Event::PlanCreated { .. } => "PLAN_CREATED",
            Event::PlanApprovalRequest { .. } => "PLAN_APPROVAL_REQUEST",
            Event::PlanUpdated { .. } => "PLAN_UPDATED",
            Event::Usage { .. } => "USAGE",
            Event::BudgetWarning { .. } => "BUDGET_WARNING",
            Event::WorkerSpaceReady { .. } => "WORKER_SPACE_READY",
            Event::WorkerSpaceClosed { .. } => "WORKER_SPACE_CLOSED",
            Event::WorkerSpaceAlert { .. } => "WORKER_SPACE_ALERT",
            Event::ClientConnected { .. } => "CLIENT_CONNECTED",
            Event::ClientDisconnected { .. } => "CLIENT_DISCONNECTED",
            Event::ToolPreviewRequest { .. } => "TOOL_PREVIEW_REQUEST",
            Event::ToolApprovalRequest { .. } => "TOOL_APPROVAL_REQUEST",
            Event::ToolApprovalWarning { .. } => "TOOL_APPROVAL_WARNING",
            Event::ToolApprovalExtended { .. } => "TOOL_APPROVAL_EXTENDED",
            Event::ToolExecutionSignal { .. } => "TOOL_EXECUTION_SIGNAL",
            Event::ToolResultAck { .. } => "TOOL_RESULT_ACK",
            Event::ToolCallUpdated { .. } => "TOOL_CALL_UPDATED",
            Event::GrantMade { .. } => "GRANT_MADE",
            Event::GrantWithdrawn { .. } => "GRANT_WITHDRAWN",
            Event::ContextRetrieved { .. } => "CONTEXT_RETRIEVED",
            Event::ContextLimitWarning { .. } => "CONTEXT_LIMIT_WARNING",
            Event::ContextPruned { .. } => "CONTEXT_PRUNED",
            Event::FilesChanged { .. } => "FILES_CHANGED",
            Event::FilesPresented { .. } => "FILES_PRESENTED",
        }
    }
}
