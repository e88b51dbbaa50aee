//! Decisions of a person about tool calls.

use crate::Problem;
use atelier_core::{
    ApprovalId,
    gate::{ApprovalWait, GatedCall, GrantScope},
};
use serde::{Deserialize, Serialize};

/// How far an approval reaches: one call, unless the body says otherwise.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ApproveRequest {
    pub scope: GrantScope,
    /// With `scope: agent`: the permission also covers HIGH calls, not only MEDIUM ones.
    pub include_high: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RejectRequest {
    /// The agent is told this reason.
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
}

/// How long the question waits from now on: until it is answered, unless the body says otherwise.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct KeepWaitingRequest {
    pub wait: ApprovalWait,
}

impl Default for KeepWaitingRequest {
    fn default() -> Self {
        Self { wait: ApprovalWait::UntilAnswered }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DecideRequest {
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 100))]
    pub decisions: Vec<Decision>,
}

/// What a person decides about one approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub approval_id: ApprovalId,
    /// `true` approves the call, `false` rejects it.
    pub approve: bool,
    /// How far an approval reaches.
    #[serde(default)]
    pub scope: GrantScope,
    /// Why the call is rejected. The agent is told this reason.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub reason: Option<String>,
}

/// The result of one decision: the call as it is now, or why the decision was refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum DecisionResult {
    Call(Box<GatedCall>),
    Problem(Problem),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DecisionResults {
    /// One result for each decision, in the order of the request.
    pub results: Vec<DecisionResult>,
}
