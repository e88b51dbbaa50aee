//! Conversations. A conversation is a chat in a project; the API also calls it a session.

use crate::{ConversationId, Invalid, ProjectId, UserId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A chat between a user and the agents of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Conversation {
    pub id: ConversationId,
    pub project_id: ProjectId,
    pub user_id: UserId,
    pub title: Option<String>,
    pub status: ConversationStatus,
    /// Whether the conversation has files of its own, and its agents have the tools for them.
    pub workspace_enabled: bool,
    /// The prefix of the files in the object store; `None` until the first file operation.
    pub workspace_path: Option<String>,
    pub workspace_created_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ConversationStatus {
    Active,
    /// The conversation accepts no more messages, but keeps its content.
    Archived,
}

impl ConversationStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            ConversationStatus::Active => "active",
            ConversationStatus::Archived => "archived",
        }
    }
}

/// The longest title of a conversation, in characters.
const MAX_TITLE: usize = 200;

/// Checks the title of a conversation.
pub fn check_title(title: &str) -> Result<(), Invalid> {
    match title.chars().count() <= MAX_TITLE && !title.contains('\0') {
        true => Ok(()),
        false => Err(Invalid::new("title", "must have at most 200 characters and no NUL")),
    }
}
