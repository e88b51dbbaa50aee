//! What every other crate agrees on: ids, domain values and the policy.
//!
//! Pure by rule: no async, no I/O, no clock. CI proves it with `cargo tree`.

pub mod agent;
pub mod chat;
pub mod client;
pub mod conversation;
pub mod digest;
pub mod event;
pub mod failure;
pub mod file;
pub mod gate;
pub mod identity;
pub mod ids;
pub mod isolation;
pub mod json;
pub mod memory;
pub mod name;
pub mod path;
pub mod plan;
pub mod policy;
pub mod project;
pub mod task;
pub mod terms;

pub use agent::{Agent, AgentConfig, AgentStatus};
pub use chat::{Message, MessageRole};
pub use client::Client;
pub use conversation::{Conversation, ConversationStatus};
pub use event::Event;
pub use failure::FailureCode;
pub use file::{ConversationFile, FileChange, FilePath, FileSource, FileVersion};
pub use identity::{Role, Tenant};
pub use ids::{
    AgentId, ApprovalId, CallId, ClientId, ConversationId, FileId, GrantId, InteractionId, MessageId, NodeId,
    PlanId, ProjectId, TaskId, TokenId, UploadId, UserId,
};
pub use memory::{Filter, Interaction, InteractionType, NewInteraction, ScoreParts, SearchMode};
pub use name::{AgentName, ProjectName};
pub use plan::{Plan, PlanStatus};
pub use project::{Project, WorkspaceKind};
pub use task::{Task, TaskFailure, TaskKind, TaskStatus, Usage};

/// A time from a configuration, fit for reckoning with dates: a century is as good as for ever, and overflows nothing.
pub fn time_delta(time: std::time::Duration) -> chrono::TimeDelta {
    const CENTURY: chrono::TimeDelta = chrono::TimeDelta::days(36_500);
    chrono::TimeDelta::from_std(time).map_or(CENTURY, |delta| delta.min(CENTURY))
}

/// A value that was refused, with the field it was meant for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    pub field: &'static str,
    pub problem: String,
}

impl Invalid {
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}
