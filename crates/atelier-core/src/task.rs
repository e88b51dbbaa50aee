//! Tasks: the work of agents, step by step.

use crate::{
    AgentId, AgentName, CallId, ConversationId, Invalid, MessageId, PlanId, ProjectId, TaskId,
    codes::codes, json,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One piece of work for one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    pub id: TaskId,
    pub project_id: ProjectId,
    pub session_id: ConversationId,
    /// The message that started the task.
    pub message_id: MessageId,
    pub plan_id: Option<PlanId>,
    pub kind: TaskKind,
    /// The id of the task in the proposal of its plan.
    pub key: Option<String>,
    pub description: String,
    /// The agent; `None` if the project itself does the work, which is making a plan or writing its
    /// answer.
    pub agent_id: Option<AgentId>,
    pub agent_name: Option<AgentName>,
    pub depends_on: Vec<TaskId>,
    pub status: TaskStatus,
    /// Tasks with a higher priority run first.
    pub priority: i32,
    /// How many times the model was asked.
    pub steps: u32,
    pub usage: Usage,
    /// The cost in US dollars, as far as prices are known.
    pub cost: f64,
    /// How long the task has run, in milliseconds, without the time when it was parked.
    pub ran_ms: u64,
    pub result: Option<String>,
    pub error: Option<TaskFailure>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

/// The purpose of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// An agent works on a message, or on its part of a plan.
    Work,
    /// The planner turns a message into tasks.
    Plan,
    /// The results of a plan are summed up in one answer.
    Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// The task waits for tasks that it depends on, or for the approval of its plan.
    Waiting,
    Queued,
    Running,
    /// The task waits for its tool calls, which wait for a person or a machine. Meanwhile it does
    /// not count as running.
    Parked,
    Completed,
    Failed,
    Cancelled,
}

impl TaskStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            TaskStatus::Waiting => "waiting",
            TaskStatus::Queued => "queued",
            TaskStatus::Running => "running",
            TaskStatus::Parked => "parked",
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
            TaskStatus::Cancelled => "cancelled",
        }
    }

    pub fn is_settled(self) -> bool {
        matches!(self, TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Cancelled)
    }
}

/// Why a task or a plan failed or was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskFailure {
    pub code: TaskFailureCode,
    pub detail: String,
}

impl TaskFailure {
    pub fn new(code: TaskFailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

codes! {
/// The stable code of a task or plan that failed or was cancelled.
TaskFailureCode {
    // The task and its plan.
    AgentDeleted = "agent_deleted",
    /// A budget of the server, the tenant, the project or the person is used up.
    BudgetExceeded = "budget_exceeded",
    Cancelled = "cancelled",
    ConversationDeleted = "conversation_deleted",
    /// A task that it depends on did not succeed.
    DependencyFailed = "dependency_failed",
    /// The server stopped or failed while the task was at work.
    Interrupted = "interrupted",
    InvalidPlan = "invalid_plan",
    InvalidSettings = "invalid_settings",
    /// The task used up what it or its plan may use.
    LimitReached = "limit_reached",
    NoAgent = "no_agent",
    /// The project has no agents to plan for.
    NoAgents = "no_agents",
    NoPlan = "no_plan",
    /// The answer of a plan is made again, because a task of the plan was resumed.
    Outdated = "outdated",
    /// A person refused the plan that the task belongs to.
    PlanRejected = "plan_rejected",
    SessionEnded = "session_ended",
    StoreUnavailable = "store_unavailable",
    WorkerSpaceReset = "worker_space_reset",

    // The model.
    InvalidModelConfig = "invalid_model_config",
    ModelContextExceeded = "model_context_exceeded",
    ModelFiltered = "model_filtered",
    ModelKeyRefused = "model_key_refused",
    ModelKeyUnreadable = "model_key_unreadable",
    ModelKeysUnreadable = "model_keys_unreadable",
    ModelMalformedAnswer = "model_malformed_answer",
    ModelQuotaSpent = "model_quota_spent",
    ModelRateLimited = "model_rate_limited",
    ModelRefused = "model_refused",
    ModelSaidNothing = "model_said_nothing",
    ModelStreamCut = "model_stream_cut",
    ModelTimeout = "model_timeout",
    ModelUnavailable = "model_unavailable",
    ModelUnreachable = "model_unreachable",
    NoModelKey = "no_model_key",
    UnknownModelProvider = "unknown_model_provider",
}
}

/// One entry of a task's journal: what the model answered, and the results of the calls that it
/// asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Step {
    pub text: String,
    pub calls: Vec<StepCall>,
    pub model: String,
    pub usage: Usage,
    pub cost: Option<f64>,
}

impl Step {
    /// Whether the model returned neither text nor calls.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.calls.is_empty()
    }
}

/// A tool call of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepCall {
    /// The id that the model gave to the call.
    pub id: String,
    pub name: String,
    /// The arguments as JSON, as the model wrote them.
    pub arguments: String,
    /// The id of the call at the gate; `None` if the call did not go through the gate.
    pub tool_id: Option<CallId>,
    /// The result of a call that did not go through the gate: a call of one of the server's own
    /// tools, or an invalid call.
    pub result: Option<StepResult>,
}

/// The result of a call that did not go through the gate, as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepResult {
    pub content: String,
    pub is_error: bool,
    /// The checksum of the file that the call has read or written. The next change of the file is
    /// made only if the file still has this checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

impl StepResult {
    pub fn new(content: impl Into<String>) -> Self {
        Self { content: content.into(), is_error: false, checksum: None }
    }

    pub fn error(content: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::new(content) }
    }
}

/// The beginning of a long text, so that events stay small. The whole text can be read by the id of
/// the task or message.
pub(crate) fn shortened_for_event(text: &str) -> String {
    const MOST: usize = 48 * 1024;
    match text.len() <= MOST {
        true => text.to_owned(),
        false => format!(
            "{}… (cut: {} bytes in all)",
            &text[..text.floor_char_boundary(MOST)],
            text.len()
        ),
    }
}

impl Task {
    /// The task as events carry it, with long texts shortened.
    pub fn for_event(&self) -> Self {
        let mut task = self.clone();
        task.description = shortened_for_event(&task.description);
        task.result = task.result.as_deref().map(shortened_for_event);
        task
    }
}

/// How many tokens a model used, as its provider counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
    }
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// The limits of a task. If a limit is missing, the limit of the project or of the server applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TaskLimits {
    /// How many times the model may be asked.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_steps: Option<u32>,
    /// How many input and output tokens all steps together may use.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000_000_i64))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_tokens: Option<u64>,
    /// How many US dollars the task may cost. Only models with known prices count.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub max_cost: Option<f64>,
    /// How many seconds the task may run. The time when it waits for a person or a machine does not
    /// count.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_seconds: Option<u64>,
}

impl TaskLimits {
    pub fn validate(&self) -> Result<(), Invalid> {
        let good = self.max_steps.is_none_or(|steps| (1..=1000).contains(&steps))
            && self.max_tokens.is_none_or(|tokens| (1..=1_000_000_000_000).contains(&tokens))
            && self.max_cost.is_none_or(|cost| cost >= 0.0 && cost.is_finite())
            && self.max_seconds.is_none_or(|seconds| (1..=86_400).contains(&seconds));
        if good {
            Ok(())
        } else {
            Err(Invalid::new(
                "limits",
                "must be positive; at most 1000 steps, 10^12 tokens and 86400 seconds",
            ))
        }
    }

    /// The stricter of the two values for each limit.
    pub fn and(self, other: Self) -> Self {
        fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(if b < a { b } else { a }),
                (a, b) => a.or(b),
            }
        }
        Self {
            max_steps: least(self.max_steps, other.max_steps),
            max_tokens: least(self.max_tokens, other.max_tokens),
            max_cost: least(self.max_cost, other.max_cost),
            max_seconds: least(self.max_seconds, other.max_seconds),
        }
    }

    /// How long the task may still run; `None` if there is no limit.
    pub fn time_left(&self, task: &Task) -> Option<Duration> {
        let most = self.max_seconds?.saturating_mul(1000);
        Some(Duration::from_millis(most.saturating_sub(task.ran_ms)))
    }

    /// The limit that the task has reached, described for the person who reads its answer.
    pub fn reached(&self, task: &Task) -> Option<TaskFailure> {
        let over = |what: String| Some(TaskFailure::new(TaskFailureCode::LimitReached, what));
        if let Some(most) = self.max_steps.filter(|most| task.steps >= *most) {
            return over(format!("the limit of {most} steps is reached"));
        }
        if let Some(most) = self.max_tokens.filter(|most| task.usage.total() >= *most) {
            return over(format!(
                "the limit of {most} tokens is reached ({} used)",
                task.usage.total()
            ));
        }
        if let Some(most) = self.max_cost.filter(|most| task.cost > 0.0 && task.cost >= *most) {
            return over(format!("the limit of ${most} is reached (${:.4} spent)", task.cost));
        }
        if let Some(most) = self.max_seconds.filter(|most| task.ran_ms >= most.saturating_mul(1000))
        {
            return over(format!("the limit of {most} seconds of work is reached"));
        }
        None
    }
}
