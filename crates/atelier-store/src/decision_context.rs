//! Reads what decisions about tool calls depend on: connected machines, permissions and
//! restrictions.
//!
//! A context is read once for a group of writes. Two nodes never write for one owner at the same
//! time, so nothing else changes the owner's rows meanwhile. The writer drops the contexts when a
//! write of the group may change them.

use crate::{
    Error, Result,
    clients::clients,
    db::{Conn, on},
    rows::{from_json, read_record},
    writer::GroupReader,
};
use atelier_core::{
    ProjectId,
    gate::{ApprovalSettings, DecisionContext, Grant},
    policy::Restrictions,
};
use serde_json::Value;
use std::sync::Arc;

impl GroupReader {
    /// The state of a project, for decisions about its calls.
    pub(crate) async fn decision_context(&mut self, project: ProjectId) -> Result<DecisionContext> {
        let now = self.time().await?;
        if let Some(known) = self.cache.contexts.get(&project) {
            return Ok(DecisionContext { now, ..known.clone() });
        }
        let (settings, deleted) = settings(&mut self.conn, project).await?;
        let restrictions = Restrictions::from_setting(settings.get("policy"));
        // No call is decided about by settings that cannot be read.
        let approvals = ApprovalSettings::from_setting(settings.get("approvals"));
        let restrictions = restrictions.and_then(|own| approvals.clone().map(|_| own));
        let context = DecisionContext {
            now,
            clients: clients(&mut self.conn, project, now).await?.into(),
            grants: grants(&mut self.conn, project).await?.into(),
            restrictions: restrictions.map(|own| own.map(Arc::new)),
            approvals: approvals.unwrap_or_default(),
            deleted,
        };
        self.cache.contexts.insert(project, context.clone());
        Ok(context)
    }
}

/// The project's permissions that have not been withdrawn.
pub(crate) async fn grants(conn: &mut Conn, project: ProjectId) -> Result<Vec<Grant>> {
    let rows: Vec<(String,)> = on!(conn, |c| sqlx::query_as(
        "SELECT record FROM grants WHERE project_id = $1 AND withdrawn_at IS NULL ORDER BY id"
    )
    .bind(project.0)
    .fetch_all(c)
    .await)?;
    rows.into_iter().map(read_record).collect()
}

/// The settings of a project, and whether it was deleted.
async fn settings(conn: &mut Conn, project: ProjectId) -> Result<(Value, bool)> {
    let row: Option<(String, bool)> = on!(conn, |c| {
        sqlx::query_as("SELECT settings, deleted_at IS NOT NULL FROM projects WHERE id = $1")
            .bind(project.0)
            .fetch_optional(c)
            .await
    })?;
    let (settings, deleted) = row.ok_or(Error::NotFound)?;
    Ok((from_json(&settings)?, deleted))
}
