//! What happens in a project, as its event stream tells it.

use crate::{Agent, AgentId, AgentName, Project};
use serde::{Deserialize, Serialize};

/// One entry of a project's log. The variant's name in upper case is the event's name on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Event {
    ProjectCreated {
        project: Project,
    },
    ProjectUpdated {
        project: Project,
    },
    /// The last event of a project.
    ProjectDeleted {},
    AgentCreated {
        agent: Agent,
    },
    AgentUpdated {
        agent: Agent,
    },
    AgentDeleted {
        #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
        agent_id: AgentId,
        name: AgentName,
    },
    /// The server set up the project's resources.
    WorkerSpaceReady {
        user_prefix: String,
    },
    /// The server released them; the user's files are untouched.
    WorkerSpaceClosed {
        reason: CloseReason,
    },
    WorkerSpaceAlert {
        alert: Alert,
        detail: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// Nobody used it for the configured time.
    Inactive,
    /// Its owner said they were done.
    SessionEnded,
    /// Its owner or an admin asked for a fresh one.
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// The project uses more agents than its cache holds.
    CacheOverflow,
    /// Something has been running for longer than the configured time.
    HungTask,
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
            Event::WorkerSpaceReady { .. } => "WORKER_SPACE_READY",
            Event::WorkerSpaceClosed { .. } => "WORKER_SPACE_CLOSED",
            Event::WorkerSpaceAlert { .. } => "WORKER_SPACE_ALERT",
        }
    }
}
