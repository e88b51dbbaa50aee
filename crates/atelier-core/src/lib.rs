//! The definitions that all other crates share: ids, domain values, the policy, and the decisions
//! of the gate.
//!
//! This crate is pure: it has no async code, does no I/O and reads no clock.
//! `scripts/check-invariants` checks it.

pub mod agent;
pub mod budget;
pub mod chat;
pub mod client;
mod codes;
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
pub mod mask;
pub mod memory;
pub mod name;
pub mod nearest;
pub mod path;
pub mod plan;
pub mod policy;
pub mod project;
pub mod remembered;
pub mod task;
pub mod terms;
pub mod text_encoding;
pub mod tools;
pub mod visible;

pub use agent::{Agent, AgentConfig, AgentStatus, PartialAgentConfig};
pub use budget::{Budget, BudgetScope};
pub use chat::{Message, MessageRole};
pub use client::Client;
pub use conversation::{Conversation, ConversationStatus};
pub use event::Event;
pub use failure::FailureCode;
pub use file::{ConversationFile, FileChange, FilePath, FileSource, FileVersion};
pub use identity::{Role, Tenant, TokenPlace};
pub use ids::{
    AgentId, ApprovalId, CallId, ClientId, ConversationId, FileId, GrantId, InteractionId,
    MessageId, NodeId, PlanId, ProjectId, RunId, TaskId, TokenId, UploadId, UserId,
};
pub use memory::{Filter, Interaction, InteractionType, NewInteraction, ScoreParts, SearchMode};
pub use name::{AgentName, ProjectName};
pub use plan::{Plan, PlanStatus};
pub use project::{Project, WorkspaceKind};
pub use task::{Task, TaskFailure, TaskFailureCode, TaskKind, TaskStatus, Usage};
pub use text_encoding::{NotEncodable, TextEncoding};

/// A duration from a configuration as a `TimeDelta` of at most a century. A century is as good as
/// for ever, and adding it to a date does not overflow.
pub fn time_delta(time: std::time::Duration) -> chrono::TimeDelta {
    const CENTURY: chrono::TimeDelta = chrono::TimeDelta::days(36_500);
    chrono::TimeDelta::from_std(time).map_or(CENTURY, |delta| delta.min(CENTURY))
}

/// Why a value was refused, and the field that it was meant for.
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
