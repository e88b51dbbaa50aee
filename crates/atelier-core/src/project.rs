//! Projects.

use crate::{ProjectId, ProjectName};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A user's project, with its agents, conversations and tool calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Project {
    pub id: ProjectId,
    pub name: ProjectName,
    pub workspace: WorkspaceKind,
    /// `policy`, `planner`, `limits`, `approvals`, and `metadata` for anything else.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// The place where the file tools of a project's agents act.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceKind {
    /// The user's own machine, through `atelier connect`.
    #[default]
    Client,
    /// The conversation's files in the object store.
    Conversation,
}

impl WorkspaceKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WorkspaceKind::Client => "client",
            WorkspaceKind::Conversation => "conversation",
        }
    }
}
