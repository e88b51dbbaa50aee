//! Tenants and roles.

use crate::{ConversationId, Invalid, ProjectId};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A role says what the bearer of a token may do. A role alone gives access to no project:
/// ownership is checked too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person, who owns projects and decides about calls.
    User,
    /// A person who may also reset, reject and cancel in the projects of their tenant.
    Admin,
    /// `atelier connect` on a machine. It runs calls and decides nothing.
    Client,
    /// A program that acts as an agent. It asks for calls and decides nothing.
    Agent,
}

impl Role {
    /// Whether the role is for people, who may create, change, delete and decide.
    pub fn is_person(self) -> bool {
        matches!(self, Role::User | Role::Admin)
    }

    /// Whether the role may ask for tool calls.
    pub fn may_ask(self) -> bool {
        self != Role::Client
    }

    /// Whether the role may run tool calls and report their outcomes. An agent may not, because it
    /// would report about itself.
    pub fn may_run(self) -> bool {
        self != Role::Agent
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Admin => "admin",
            Role::Client => "client",
            Role::Agent => "agent",
        }
    }
}

impl FromStr for Role {
    type Err = Invalid;
    fn from_str(s: &str) -> Result<Self, Invalid> {
        [Role::User, Role::Admin, Role::Client, Role::Agent]
            .into_iter()
            .find(|role| role.as_str() == s)
            .ok_or_else(|| Invalid::new("role", "must be user, admin, client or agent"))
    }
}

/// The project or conversation of a role token (`client`, `agent`). The token reaches nothing else
/// of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPlace {
    pub project: ProjectId,
    /// Only this conversation of the project.
    pub conversation: Option<ConversationId>,
}

impl TokenPlace {
    /// Whether the token reaches the project as a whole, or this conversation of it.
    pub fn contains(&self, project: ProjectId, conversation: Option<ConversationId>) -> bool {
        self.project == project
            && (self.conversation.is_none() || self.conversation == conversation)
    }
}

/// The id of an organisation, as tokens and `/api/tenants/{tenant}` have it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Tenant {
    type Error = Invalid;
    fn try_from(tenant: String) -> Result<Self, Invalid> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if tenant.is_empty() || tenant.len() > 64 || !tenant.bytes().all(plain) {
            return Err(Invalid::new(
                "tenant",
                "must be 1 to 64 letters, digits, dashes, dots or underscores",
            ));
        }
        Ok(Self(tenant))
    }
}

impl FromStr for Tenant {
    type Err = Invalid;
    fn from_str(s: &str) -> Result<Self, Invalid> {
        s.to_owned().try_into()
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> String {
        tenant.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
