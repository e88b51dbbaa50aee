//! The audit: a record of every decision about a call or a permission.

use super::{Decider, GatedCall};
use crate::{ApprovalId, CallId, GrantId, UserId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A decision about a call or a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditDecision {
    Approved,
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// A person let the question wait longer.
    Extended,
    /// A person had the question asked again that had run out.
    AskedAgain,
    Cancelled,
    /// A standing permission let the call run without a question.
    Granted,
    /// A standing permission was withdrawn.
    Withdrawn,
}

/// One record of the audit: who decided what, when and through which program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Audit {
    /// The call; `None` if the record is about the withdrawal of a permission.
    pub tool_id: Option<CallId>,
    pub approval_id: Option<ApprovalId>,
    pub decision: AuditDecision,
    /// The person who decided; `None` if the time ran out or a permission decided.
    pub by: Option<UserId>,
    /// The program that the person used.
    pub via: Option<String>,
    /// Digest of the call that was decided about.
    pub digest: Option<String>,
    pub grant_id: Option<GrantId>,
    pub at: DateTime<Utc>,
}

impl Audit {
    /// The record of a decision about a call. `by` is `None` if the time ran out.
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

    /// The record of a call that a permission lets run.
    pub fn granted(call: &GatedCall, grant: GrantId, at: DateTime<Utc>) -> Self {
        let audit = Self::of_call(call, AuditDecision::Granted, None, at);
        Self { grant_id: Some(grant), ..audit }
    }

    /// The record of a permission that a person withdraws.
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
