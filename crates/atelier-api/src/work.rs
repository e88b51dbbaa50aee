//! Plans and their tasks.

use atelier_core::{Plan, Task, plan::ProposedTask};
use serde::{Deserialize, Serialize};

/// A plan with its graph: each task names the tasks that it depends on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanDetails {
    #[serde(flatten)]
    pub plan: Plan,
    pub tasks: Vec<Task>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PlanApproval {
    /// Tasks to run instead of the proposed ones.
    pub tasks: Option<Vec<ProposedTask>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PlanRejection {
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
}
