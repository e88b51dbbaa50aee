//! A piece of work for one agent, from the queue to its end.

use crate::{
    AgentId, AgentName, CallId, ConversationId, Invalid, MessageId, PlanId, ProjectId, TaskId, json,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    pub id: TaskId,
    pub project_id: ProjectId,
    pub session_id: ConversationId,
    /// The message that asked for it.
    pub message_id: MessageId,
    pub plan_id: Option<PlanId>,
    pub kind: TaskKind,
    /// What its plan calls it.
    pub key: Option<String>,
    pub description: String,
    /// Nobody where the project itself works: planning, and the answer of a plan.
    pub agent_id: Option<AgentId>,
    pub agent_name: Option<AgentName>,
    pub depends_on: Vec<TaskId>,
    pub status: TaskStatus,
    /// Higher goes first.
    pub priority: i32,
    /// How many times the model was asked.
    pub steps: u32,
    pub usage: Usage,
    /// In US dollars, as far as prices are known.
    pub cost: f64,
    /// How long it has run, without the time it was parked.
    pub ran_ms: u64,
    pub result: Option<String>,
    pub error: Option<TaskFailure>,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// An agent works.
    Work,
    /// The planner turns a message into tasks.
    Plan,
    /// The results of a plan become one answer.
    Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// For tasks it depends on, or for the approval of its plan.
    Waiting,
    Queued,
    Running,
    /// Waits for tool calls: for a person or a machine. It holds no place in the queue meanwhile.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskFailure {
    /// Stable; for programs.
    pub code: String,
    pub detail: String,
}

impl TaskFailure {
    /// A person refused the plan that it belongs to.
    pub const PLAN_REJECTED: &str = "plan_rejected";

    pub fn new(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { code: code.into(), detail: detail.into() }
    }
}

/// One entry of a task's journal: what the model said, and what came of the calls it asked for.
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
    /// The model has neither said nor called anything.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.calls.is_empty()
    }
}

/// A tool call of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepCall {
    /// What the model calls it.
    pub id: String,
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
    /// The call at the gate, where it got so far.
    pub tool_id: Option<CallId>,
    /// What came of a call that did not go through the gate: the server's own tools, and nonsense.
    pub result: Option<StepResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepResult {
    pub content: String,
    pub is_error: bool,
    /// Of the whole file that the call has read or written, so that the next change of it is made against that.
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

/// Events stay small; who wants the whole asks for it by id.
pub(crate) fn told(text: &str) -> String {
    const MOST: usize = 48 * 1024;
    match text.len() <= MOST {
        true => text.to_owned(),
        false => format!("{}… (cut: {} bytes in all)", &text[..text.floor_char_boundary(MOST)], text.len()),
    }
}

impl Task {
    /// The task as events tell it.
    pub fn told(&self) -> Self {
        let mut task = self.clone();
        task.description = told(&task.description);
        task.result = task.result.as_deref().map(told);
        task
    }
}

/// What a model counted.
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

/// What a task may use up before it is stopped. Absent means: as the next wider setting says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How often the model may be asked.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_steps: Option<u32>,
    /// Input and output tokens of all steps.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000_000_i64))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_tokens: Option<u64>,
    /// US dollars, where prices are known.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub max_cost: Option<f64>,
    /// Seconds at work. Waiting for a person or a machine does not count.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub max_seconds: Option<u64>,
}

impl Limits {
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

    /// The stricter of the two, one by one.
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

    /// How long a task may still work.
    pub fn time_left(&self, task: &Task) -> Option<Duration> {
        let most = self.max_seconds?.saturating_mul(1000);
        Some(Duration::from_millis(most.saturating_sub(task.ran_ms)))
    }

    /// Which limit a task has reached, in words for whoever reads its answer.
    pub fn reached(&self, task: &Task) -> Option<TaskFailure> {
        let over = |what: String| Some(TaskFailure::new("limit_reached", what));
        if let Some(most) = self.max_steps.filter(|most| task.steps >= *most) {
            return over(format!("the limit of {most} steps is reached"));
        }
        if let Some(most) = self.max_tokens.filter(|most| task.usage.total() >= *most) {
            return over(format!("the limit of {most} tokens is reached ({} used)", task.usage.total()));
        }
        if let Some(most) = self.max_cost.filter(|most| task.cost > 0.0 && task.cost >= *most) {
            return over(format!("the limit of ${most} is reached (${:.4} spent)", task.cost));
        }
        if let Some(most) = self.max_seconds.filter(|most| task.ran_ms >= most.saturating_mul(1000)) {
            return over(format!("the limit of {most} seconds of work is reached"));
        }
        None
    }
}
