//! Access to a project and to what belongs to it, as values.

use crate::{Result, rows::corrupt};
use atelier_core::{AgentId, ConversationId, ProjectId, Tenant, UserId};
use std::ops::Deref;
use uuid::Uuid;

/// The right to act on a project. The store alone makes one: for a user that it has found to own
/// the project, for an administrator of the owner's tenant, or for its own work on rows that it has
/// read. The fields can be read but not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned(ProjectOwner);

/// Which project an [`Owned`] is for, and who owns the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectOwner {
    pub project: ProjectId,
    pub owner: UserId,
    pub tenant: Tenant,
}

impl Deref for Owned {
    type Target = ProjectOwner;
    fn deref(&self) -> &ProjectOwner {
        &self.0
    }
}

impl Owned {
    /// From `projects.id, user_id, tenant_id`.
    pub(crate) fn from_row((project, owner, tenant): (Uuid, Uuid, String)) -> Result<Self> {
        let tenant = corrupt(Tenant::try_from(tenant))?;
        Ok(Self(ProjectOwner { project: ProjectId(project), owner: UserId(owner), tenant }))
    }
}

/// The right to act on one conversation. The store alone makes one: for a conversation that it has
/// found in a project that somebody may act on, or for its own work on rows that it has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedConversation {
    owned: Owned,
    id: ConversationId,
}

impl OwnedConversation {
    pub(crate) fn new(owned: Owned, id: ConversationId) -> Self {
        Self { owned, id }
    }

    pub fn id(&self) -> ConversationId {
        self.id
    }

    /// The right to act on the project of the conversation.
    pub fn owned(&self) -> &Owned {
        &self.owned
    }
}

/// The right to act on what one agent remembers. The store alone makes one: for an agent that it
/// has found in a project that somebody may act on, or for its own work on a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedAgent {
    id: AgentId,
    owner: UserId,
}

impl OwnedAgent {
    pub(crate) fn new(id: AgentId, owner: UserId) -> Self {
        Self { id, owner }
    }

    pub fn id(self) -> AgentId {
        self.id
    }

    pub(crate) fn owner(self) -> UserId {
        self.owner
    }
}
