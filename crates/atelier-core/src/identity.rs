//! Who is asking: tenants and roles.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a token's bearer may do. Ownership is checked beside it: a role alone opens no project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person: owns projects, decides approvals.
    User,
    /// A person who also looks after their tenant: may reset, reject and cancel there.
    Admin,
    /// `atelier connect` on somebody's machine: runs calls, decides nothing.
    Client,
    /// An agent's own token: asks for things, decides nothing.
    Agent,
}

impl Role {
    /// People may create, change, delete and decide; machines may not.
    pub fn is_person(self) -> bool {
        matches!(self, Role::User | Role::Admin)
    }

    /// May ask for tool calls: people, and agents for themselves.
    pub fn may_ask(self) -> bool {
        self != Role::Client
    }

    /// May run tool calls and say what came of them. Never an agent: it would vouch for itself.
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

/// The id of an organisation, as it stands in tokens and in `/api/tenants/{tenant}`.
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
