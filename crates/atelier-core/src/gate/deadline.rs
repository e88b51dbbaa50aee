//! The transitions that time brings about.

use super::{ApprovalStatus, CallFailure, CallStatus, GatedCall, approval_time::first_look};
use crate::{WorkspaceKind, event::Event, failure::FailureCode};
use chrono::{DateTime, Utc};

impl GatedCall {
    /// Does what is due if the deadline of the call has passed, and nothing otherwise.
    pub(super) fn time_passed(&mut self, now: DateTime<Utc>) -> Vec<Event> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.status {
            CallStatus::PendingApproval => self.approval_due(now),
            CallStatus::Dispatched if self.claimed => {
                let detail = "the machine did not report what came of the call";
                let failure = CallFailure::new(FailureCode::ClientLost, detail);
                vec![self.settle(CallStatus::Unknown, Some(failure), now)]
            }
            CallStatus::Dispatched => {
                let detail = "the machine did not begin in time: it is busy with other commands, \
                              or it cannot be reached";
                let failure = CallFailure::new(FailureCode::NotBegun, detail);
                vec![self.settle(CallStatus::Expired, Some(failure), now)]
            }
            CallStatus::Previewing | CallStatus::Approved
                if self.workspace == WorkspaceKind::Conversation =>
            {
                let detail = "the server could not use the conversation's files in time; its log \
                              says why";
                let failure = CallFailure::new(FailureCode::NotBegun, detail);
                vec![self.settle(CallStatus::Expired, Some(failure), now)]
            }
            CallStatus::Previewing | CallStatus::Approved => {
                let detail = "no machine was connected in time: run `atelier connect FOLDER \
                              --project NAME` on your machine";
                let failure = CallFailure::new(FailureCode::NoClient, detail);
                vec![self.settle(CallStatus::Expired, Some(failure), now)]
            }
            _ => Vec::new(),
        }
    }

    /// Reminds the person that the time is running out or, at the end of the time, lets the call
    /// expire.
    fn approval_due(&mut self, now: DateTime<Utc>) -> Vec<Event> {
        let Some(approval) = &mut self.approval else { return Vec::new() };
        let Some(expires_at) = approval.expires_at else {
            self.deadline = Some(first_look(None, now));
            return Vec::new();
        };
        if now < expires_at {
            approval.warned = true;
            self.deadline = Some(expires_at);
            let approval_id = approval.id;
            let (tool_id, session_id) = (self.tool_id, self.session_id);
            return vec![Event::ToolApprovalWarning {
                approval_id,
                tool_id,
                session_id,
                expires_at,
            }];
        }
        self.decide(ApprovalStatus::Expired, None, now);
        let failure = CallFailure::new(FailureCode::ApprovalTimeout, "Approval timeout");
        vec![self.settle(CallStatus::Expired, Some(failure), now)]
    }
}
