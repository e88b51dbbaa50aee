//! The machines that run a project's tool calls.

use crate::{ClientId, ConversationId, ProjectId, isolation::ReportedIsolation};
use chrono::{DateTime, Utc};
use serde::Serialize;

/// A machine of the user that is connected to a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Client {
    pub id: ClientId,
    pub project_id: ProjectId,
    /// Path of the workspace root on that machine. Tool calls may use absolute paths beneath it.
    pub root: String,
    pub os: String,
    pub isolation: ReportedIsolation,
    pub connected_at: DateTime<Utc>,
    /// The machine counts as connected until then.
    pub lease_until: DateTime<Utc>,
}

impl Client {
    /// The server itself, which runs calls on the own files of a conversation and then takes the
    /// place of a machine. It uses the conversation's id, so no machine can register with the same
    /// one.
    pub fn for_own_files(
        project: ProjectId,
        conversation: ConversationId,
        now: DateTime<Utc>,
    ) -> Self {
        Self {
            id: ClientId(conversation.0),
            project_id: project,
            root: "/workspace".to_owned(),
            os: "server".to_owned(),
            isolation: ReportedIsolation::default(),
            connected_at: now,
            lease_until: now,
        }
    }
}
