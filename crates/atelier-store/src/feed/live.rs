//! Events that are delivered to current readers and never stored.

use atelier_core::{ConversationId, ProjectId, TaskId};
use serde::{Deserialize, Serialize};

/// Every event that is only delivered. Nodes tell each other of no other events, so a message
/// between nodes cannot put anything else into a stream, whoever has sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum LiveEvent {
    /// A piece of a message that a model is still writing.
    MessageDelta {
        project_id: ProjectId,
        session_id: ConversationId,
        task_id: TaskId,
        text: String,
    },
}

impl LiveEvent {
    /// The name of the event on the wire.
    fn name(&self) -> &'static str {
        match self {
            Self::MessageDelta { .. } => "MESSAGE_DELTA",
        }
    }

    pub(super) fn project(&self) -> ProjectId {
        match self {
            Self::MessageDelta { project_id, .. } => *project_id,
        }
    }

    pub(super) fn session(&self) -> ConversationId {
        match self {
            Self::MessageDelta { session_id, .. } => *session_id,
        }
    }
}

/// An event that is only delivered, as readers get it.
#[derive(Debug)]
pub struct Delta {
    pub session: ConversationId,
    pub name: &'static str,
    /// JSON in one line.
    pub data: String,
}

impl From<&LiveEvent> for Delta {
    fn from(event: &LiveEvent) -> Self {
        // JSON escapes line breaks.
        let data = serde_json::to_string(event)
            .unwrap_or_else(|error| unreachable!("plain values are JSON: {error}"));
        Self { session: event.session(), name: event.name(), data }
    }
}
