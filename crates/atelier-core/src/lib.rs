//! What every other crate agrees on: ids, domain values and the policy.
//!
//! Pure by rule: no async, no I/O, no clock. CI proves it with `cargo tree`.

pub mod agent;
pub mod digest;
pub mod event;
pub mod gate;
pub mod identity;
pub mod ids;
pub mod memory;
pub mod name;
pub mod path;
pub mod policy;
pub mod project;
pub mod terms;

pub use agent::{Agent, AgentConfig, AgentStatus};
pub use event::Event;
pub use identity::{Role, Tenant};
pub use ids::{
    AgentId, ApprovalId, CallId, ClientId, GrantId, InteractionId, ProjectId, SessionId, TokenId, UserId,
};
pub use memory::{Filter, Interaction, InteractionType, Memo};
pub use name::{AgentName, ProjectName};
pub use project::{Project, WorkspaceKind};

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
