//! Machines that are connected to a project.

use atelier_core::{ClientId, isolation::ReportedIsolation};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A machine that connects to a project.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewClient {
    /// The machine's own id for this folder, so that it is the same client when it comes back.
    pub client_id: ClientId,
    /// What the user calls the folder. Tool calls may use absolute paths beneath it.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 4096, pattern = r"^[^\x00]+$")
    )]
    pub root: String,
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 100, pattern = r"^[^\x00]+$")
    )]
    pub os: String,
    /// Which limits the machine can enforce on commands.
    pub isolation: ReportedIsolation,
    /// Whether the same process comes back after its connection was lost. If not, the permissions
    /// that were given for the connection end.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(default = false))]
    pub resumed: bool,
}

/// A connected machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
// Generated clients have a class `Client` of their own.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ConnectedClient))]
pub struct Client {
    pub client_id: ClientId,
    /// What the user calls the folder on the machine.
    pub root: String,
    pub os: String,
    /// Which limits the machine can enforce on commands.
    pub isolation: ReportedIsolation,
    pub connected_at: DateTime<Utc>,
    /// Until when the machine counts as connected without another sign of life.
    pub lease_until: DateTime<Utc>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClientList {
    /// The first one runs the project's calls; the others stand by.
    pub clients: Vec<Client>,
    pub total: usize,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// Until when the machine counts as connected without another sign of life.
    pub lease_until: DateTime<Utc>,
}
