//! The machines that run a project's tool calls.

use crate::{ClientId, ProjectId, isolation::ReportedIsolation};
use chrono::{DateTime, Utc};
use serde::Serialize;

/// A machine of the user that is connected to a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Client {
    pub id: ClientId,
    pub project_id: ProjectId,
    /// Path of the workspace root on that machine. Tool calls may use absolute paths beneath it.
    pub root: String,
    pub os: String,
    pub isolation: ReportedIsolation,
    pub connected_at: DateTime<Utc>,
    /// The machine counts as connected until then.
    pub lease_until: DateTime<Utc>,
}
