//! Messages of conversations.

use crate::{
    AgentId, AgentName, ConversationId, Invalid, MessageId, PlanId, ProjectId, TaskId, Usage,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A message that a user or an agent writes in a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: MessageId,
    pub project_id: ProjectId,
    pub session_id: ConversationId,
    pub role: MessageRole,
    pub content: String,
    /// Paths or file ids that the message is about.
    pub attachments: Vec<String>,
    /// The agent that wrote the message, or that the message is for.
    pub agent_id: Option<AgentId>,
    pub agent_name: Option<AgentName>,
    /// The model that wrote the message, as the provider calls it.
    pub model: Option<String>,
    pub usage: Option<Usage>,
    /// The cost in US dollars, if the prices are known.
    pub cost: Option<f64>,
    pub task_id: Option<TaskId>,
    pub plan_id: Option<PlanId>,
    pub created_at: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    User,
    Assistant,
}

impl Message {
    /// The message as events carry it, with a long text shortened.
    pub fn for_event(&self) -> Self {
        Self { content: crate::task::shortened_for_event(&self.content), ..self.clone() }
    }
}

/// The longest message, in characters.
const MAX_CONTENT: usize = 65_536;
/// The most attachments of a message.
const MAX_ATTACHMENTS: usize = 32;
/// The longest name of an attachment, in bytes.
const MAX_ATTACHMENT: usize = 1024;

#[cfg(feature = "openapi")]
pub fn attachments_schema() -> utoipa::openapi::schema::Array {
    use utoipa::openapi::{ArrayBuilder, ObjectBuilder, schema::Type};
    let path = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(MAX_ATTACHMENT))
        .pattern(Some(r"^[^\x00]*$"));
    ArrayBuilder::new().items(path).max_items(Some(MAX_ATTACHMENTS)).build()
}

/// Checks the text and the attachments of a new message.
pub fn check_message(content: &str, attachments: &[String]) -> Result<(), Invalid> {
    if content.trim().is_empty() || content.chars().count() > MAX_CONTENT || content.contains('\0')
    {
        return Err(Invalid::new(
            "content",
            "must have 1 to 65536 characters, not only spaces, and no NUL",
        ));
    }
    let short = |path: &String| {
        (1..=MAX_ATTACHMENT).contains(&path.chars().count()) && !path.contains('\0')
    };
    if attachments.len() > MAX_ATTACHMENTS || !attachments.iter().all(short) {
        return Err(Invalid::new(
            "attachments",
            "must be at most 32 paths or file ids of 1 to 1024 characters",
        ));
    }
    Ok(())
}
