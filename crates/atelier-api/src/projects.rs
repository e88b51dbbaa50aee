//! Projects.

use atelier_core::Project;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectList {
    pub projects: Vec<Project>,
    /// How many projects there are in total.
    pub total: i64,
}
