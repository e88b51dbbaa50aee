//! The record of every decision.

use super::{Decider, GatedCall};
use crate::{ApprovalId, CallId, GrantId, UserId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// What was decided about a call or about a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditDecision {
    Approved,
    Rejected,
    /// Nobody decided in time.
    Expired,
    Cancelled,
    /// A standing permission let the call run without a question.
    Granted,
    /// A standing permission was withdrawn.
    Withdrawn,
}

/// One decision: who decided what, when and through which program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Audit {
    /// `None` if a permission was withdrawn.
    pub tool_id: Option<CallId>,
    pub approval_id: Option<ApprovalId>,
    pub decision: AuditDecision,
    /// `None` if the time ran out or a permission decided.
    pub by: Option<UserId>,
    /// The program that the person used.
    pub via: Option<String>,
    /// Digest of the call that was decided about.
    pub digest: Option<String>,
    pub grant_id: Option<GrantId>,
    pub at: DateTime<Utc>,
}

impl Audit {
    /// A decision about a call, by a person or by nobody in particular.
    pub fn of_call(
        call: &GatedCall,
        decision: AuditDecision,
        by: Option<Decider>,
        at: DateTime<Utc>,
    ) -> Self {
        let (by, via) = by.map_or((None, None), |by| (Some(by.user), by.via));
        Self {
            tool_id: Some(call.tool_id),
            approval_id: call.approval_id,
            decision,
            by,
            via,
            digest: call.digest.map(|digest| digest.to_string()),
            grant_id: None,
            at,
        }
    }

    /// A permission lets a call run.
    pub fn granted(call: &GatedCall, grant: GrantId, at: DateTime<Utc>) -> Self {
        let audit = Self::of_call(call, AuditDecision::Granted, None, at);
        Self { grant_id: Some(grant), ..audit }
    }

    /// A person withdraws a permission.
    pub fn withdrawn(grant: GrantId, by: Decider, at: DateTime<Utc>) -> Self {
        Self {
            tool_id: None,
            approval_id: None,
            decision: AuditDecision::Withdrawn,
            by: Some(by.user),
            via: by.via,
            digest: None,
            grant_id: Some(grant),
            at,
        }
    }
}
