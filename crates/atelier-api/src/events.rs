//! Event streams (server-sent events).

use atelier_core::{
    Agent, CallId, ConversationId, Event, Project, ProjectId, TaskId, gate::GatedCall,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
mod schema;

/// The JSON in the `data` line of an event: the event, and where and when it happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventEnvelope {
    pub project_id: ProjectId,
    pub created_at: DateTime<Utc>,
    #[serde(flatten)]
    pub event: Event,
}

/// A piece of a message while the model is still writing it. Deltas are not stored and cannot be
/// replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename = "MESSAGE_DELTA")]
pub struct MessageDelta {
    pub project_id: ProjectId,
    pub session_id: ConversationId,
    pub task_id: TaskId,
    pub text: String,
}

impl MessageDelta {
    /// The name of the event on the wire.
    pub const NAME: &str = "MESSAGE_DELTA";
}

/// What a running command has printed, as it comes. It is not stored and cannot be replayed; the
/// result of the call has the whole output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename = "TOOL_OUTPUT")]
pub struct ToolOutput {
    pub project_id: ProjectId,
    pub session_id: Option<ConversationId>,
    pub task_id: Option<TaskId>,
    pub tool_id: CallId,
    pub text: String,
}

impl ToolOutput {
    /// The name of the event on the wire.
    pub const NAME: &str = "TOOL_OUTPUT";
}

/// The first event of a stream whose cursor is unknown or too old: the current state, to start
/// again from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename = "STREAM_RESET")]
pub struct StreamReset {
    pub reason: String,
    /// The cursor to resume from.
    pub last_event_id: String,
    pub snapshot: Snapshot,
}

impl StreamReset {
    /// The name of the event on the wire.
    pub const NAME: &str = "STREAM_RESET";
}

/// What an event stream sends.
#[derive(Debug, Clone)]
pub enum StreamMessage {
    Event(Box<Event>),
    Delta(MessageDelta),
    Output(ToolOutput),
    /// The cursor was unknown or too old, so events may have been missed.
    Reset,
}

impl StreamMessage {
    /// Reads a server-sent event. A newer server may send events that this version does not know.
    pub fn parse(name: &str, data: &str) -> serde_json::Result<Self> {
        match name {
            StreamReset::NAME => Ok(Self::Reset),
            MessageDelta::NAME => serde_json::from_str(data).map(Self::Delta),
            ToolOutput::NAME => serde_json::from_str(data).map(Self::Output),
            _ => serde_json::from_str(data).map(Self::Event),
        }
    }
}

/// The current state of what a stream is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Snapshot {
    Project(ProjectSnapshot),
    User(UserSnapshot),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectSnapshot {
    pub project: Project,
    pub agents: Vec<Agent>,
    /// Calls that wait for a decision.
    pub pending: Vec<GatedCall>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserSnapshot {
    pub projects: Vec<Project>,
    /// Calls that wait for a decision, in all projects.
    pub pending: Vec<GatedCall>,
}
