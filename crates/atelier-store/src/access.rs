//! The right to act on a project, as a value.

use crate::{Result, rows::corrupt};
use atelier_core::{ProjectId, Tenant, UserId};
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
