//! Conversations and messages.

use atelier_core::{Message, MessageId, PlanId, TaskId};
use serde::{Deserialize, Serialize};

/// A conversation to start in a project.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    #[cfg_attr(feature = "openapi", schema(max_length = 200, pattern = r"^[^\x00]*$"))]
    pub title: Option<String>,
    /// Whether the conversation has files of its own. The default is `true`.
    pub workspace_enabled: Option<bool>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 65_536, pattern = r"^[^\x00]*$")
    )]
    pub content: String,
    /// The agent to talk to, by id or name. Without one, the project plans which agents do what.
    pub target_agent: Option<String>,
    /// Paths or file ids that the message is about.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(schema_with = atelier_core::chat::attachments_schema))]
    pub attachments: Vec<String>,
    /// Tasks with a higher priority run first among those that wait for the same agent. The default
    /// is 0.
    #[serde(default, deserialize_with = "atelier_core::json::whole")]
    #[cfg_attr(feature = "openapi", schema(minimum = -100, maximum = 100))]
    pub priority: i32,
}

/// The work that a message started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Accepted {
    pub message_id: MessageId,
    /// The agent's task or, for a plan, the task that makes the plan.
    pub task_id: TaskId,
    pub plan_id: Option<PlanId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageList {
    pub messages: Vec<Message>,
    /// How many messages the conversation has in total.
    pub total: i64,
}
