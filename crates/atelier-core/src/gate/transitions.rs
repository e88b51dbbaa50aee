//! The transitions of a call. Each method changes the state of the call and returns the events to
//! publish.

use super::{
    ApprovalStatus, CallApproval, CallFailure, CallPreview, CallRating, CallStatus, GateTimeouts,
    GatedCall, GrantScope, Previewed, Refusal, SHORTENED, ToolOutcome,
    approval_time::first_look,
    brief::{KEPT_BYTES, MAX_IN_EVENT},
};
use crate::{
    ApprovalId, CallId, ClientId, GrantId, UserId,
    digest::PreviewDigest,
    event::Event,
    failure::FailureCode,
    policy::{class::CallClass, verdict::Verdict},
    tools::ToolDef,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Map;

type Transition = Result<Vec<Event>, Refusal>;

const NO_CLIENT: &str = "No machine is connected, so the call waits. Run `atelier connect FOLDER \
    --project NAME` on your machine.";

impl GatedCall {
    pub(super) fn settle(
        &mut self,
        status: CallStatus,
        failure: Option<CallFailure>,
        now: DateTime<Utc>,
    ) -> Event {
        use CallStatus::{Cancelled, Denied, Expired, Failed, Rejected};
        let ended_early = matches!(status, Denied | Rejected | Expired | Cancelled);
        self.status = status;
        self.error = failure;
        if !self.claimed && (ended_early || (status == Failed && self.attempt == 0)) {
            // The call did not run and never will, so only a part is kept by which people can
            // recognise it. A call whose question ran out may be asked again, so it stays whole
            // unless it is large.
            let longest = if self.has_run_out() { MAX_IN_EVENT } else { KEPT_BYTES };
            self.shorten_params(longest);
            self.shorten_preview();
        }
        self.completed_at = Some(now);
        self.deadline = None;
        self.note = None;
        self.updated_with(self.error.clone())
    }

    fn updated(&self) -> Event {
        self.updated_with(None)
    }

    fn updated_with(&self, error: Option<CallFailure>) -> Event {
        let (tool_id, session_id) = (self.tool_id, self.session_id);
        Event::ToolCallUpdated { tool_id, session_id, status: self.status, error }
    }

    /// Ends a call that the policy denies. Nobody is asked and nothing is sent.
    pub(super) fn deny(&mut self, failure: CallFailure, now: DateTime<Utc>) -> Vec<Event> {
        vec![self.settle(CallStatus::Denied, Some(failure), now)]
    }

    /// Ends a call that was allowed, but that the connected machine must not run.
    pub(super) fn refuse(&mut self, failure: CallFailure, now: DateTime<Utc>) -> Vec<Event> {
        vec![self.settle(CallStatus::Failed, Some(failure), now)]
    }

    /// Asks the machine what the call would change, before a person is asked.
    pub(super) fn begin_preview(
        &mut self,
        client: Option<ClientId>,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Vec<Event> {
        self.status = CallStatus::Previewing;
        self.deadline = Some(now + timeouts.dispatch);
        self.client_id = client;
        match client {
            None => self.note_no_machine(),
            Some(_) => self.note = self.note.take().filter(|note| note != NO_CLIENT),
        }
        let mut events = vec![self.updated()];
        events.extend(client.map(|client_id| Event::ToolPreviewRequest {
            tool_id: self.tool_id,
            client_id,
            tool_name: self.tool_name.clone(),
            tool_params: self.brief_params(),
            session_id: self.session_id,
            task_id: self.task_id,
            requested_by: self.requested_by,
        }));
        events
    }

    /// The machine shows what the call would change, so a person can be asked now. If it would
    /// change nothing, the call is done.
    pub(super) fn previewed(
        &mut self,
        from: ClientId,
        shown: Previewed,
        id: ApprovalId,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_preview_from(from)?;
        let Previewed { preview, rating, unchanged } = shown;
        if let Some(rating) = rating {
            self.rate(rating);
        }
        let done = unchanged.then(|| self.unchanged(&preview)).flatten();
        self.preview = Some(preview);
        if let Some(outcome) = done {
            self.result = Some(outcome);
            return Ok(vec![self.settle(CallStatus::Completed, None, now)]);
        }
        Ok(self.ask(id, timeouts, now))
    }

    /// The outcome of a write that leaves its file as it is; `None` if a person is asked anyway.
    /// A person is always asked about HIGH writes. Otherwise an agent could find out the content of
    /// a secret file by writing its guesses.
    fn unchanged(&self, preview: &CallPreview) -> Option<ToolOutcome> {
        let writes = |tool: &ToolDef| tool.opens_files() && !tool.removes_files();
        let checksum = preview.base_checksum.as_deref()?;
        if !self.tool().is_some_and(writes) || self.risk_level > Verdict::Medium {
            return None;
        }
        let mut fields = Map::new();
        fields.insert("unchanged".into(), true.into());
        fields.insert("path".into(), self.tool_params.get("path")?.clone());
        fields.insert("checksum".into(), checksum.into());
        Some(ToolOutcome::succeeded(fields))
    }

    /// The machine says that the call cannot be done, so nobody is asked.
    pub(super) fn preview_failed(
        &mut self,
        from: ClientId,
        failure: CallFailure,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_preview_from(from)?;
        Ok(vec![self.settle(CallStatus::Failed, Some(failure), now)])
    }

    /// Asks a person about the call. How long they have to decide depends on the risk.
    pub(super) fn ask(
        &mut self,
        id: ApprovalId,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Vec<Event> {
        let time = timeouts.approval(self.risk_level);
        let expires_at = time.map(|time| now + time);
        self.note = self.note.take().filter(|note| note != NO_CLIENT);
        self.status = CallStatus::PendingApproval;
        self.approval_id = Some(id);
        self.deadline = Some(first_look(expires_at, now));
        self.approval = Some(CallApproval {
            id,
            status: ApprovalStatus::Pending,
            requested_at: now,
            expires_at,
            warned: false,
            decided_at: None,
            decided_by: None,
            client_id: self.client_id,
            preview_digest: self
                .digest
                .zip(self.preview.as_ref())
                .map(|(call, preview)| PreviewDigest::of(call, preview)),
            scope: None,
            reason: None,
        });
        let request = Event::ToolApprovalRequest {
            approval_id: id,
            tool_id: self.tool_id,
            tool_name: self.tool_name.clone(),
            tool_params: self.brief_params(),
            risk_level: self.risk_level,
            rule: self.rule.clone(),
            reason: self.reason.clone(),
            class: self.class.clone(),
            network: self.network,
            preview: self.brief_preview(),
            digest: self.digest,
            agent_id: self.agent_id,
            session_id: self.session_id,
            task_id: self.task_id,
            timeout_seconds: time.map(|time| u32::try_from(time.num_seconds()).unwrap_or(u32::MAX)),
            expires_at,
        };
        vec![self.updated(), request]
    }

    /// Says in the `note` of the call that no machine is connected.
    pub(super) fn note_no_machine(&mut self) {
        self.note = Some(NO_CLIENT.to_owned());
    }

    fn expect(&self, status: CallStatus) -> Result<(), Refusal> {
        if self.status == status { Ok(()) } else { Err(Refusal::Already(self.status)) }
    }

    /// Refuses a decision that comes too late. An approval expires at `expires_at`, even if the
    /// expiry has not been stored yet.
    fn expect_pending(&self, now: DateTime<Utc>) -> Result<(), Refusal> {
        self.expect(CallStatus::PendingApproval)?;
        let expires_at = self.approval.as_ref().and_then(|approval| approval.expires_at);
        match expires_at.is_some_and(|expires_at| now >= expires_at) {
            true => Err(Refusal::Already(CallStatus::Expired)),
            false => Ok(()),
        }
    }

    /// Refuses a decision that comes too late, or that is about an approval which a newer one has
    /// replaced.
    fn expect_asked(&self, id: ApprovalId, now: DateTime<Utc>) -> Result<(), Refusal> {
        self.expect_pending(now)?;
        if self.approval_id == Some(id) { Ok(()) } else { Err(Refusal::AskedAnew) }
    }

    /// Refuses a preview that comes too late, or from another machine than the one that was asked.
    fn expect_preview_from(&self, client: ClientId) -> Result<(), Refusal> {
        self.expect(CallStatus::Previewing)?;
        if self.client_id == Some(client) { Ok(()) } else { Err(Refusal::NotYours) }
    }

    /// Refuses a report that is not about the machine and the attempt that the call was last sent
    /// to.
    fn expect_attempt(&self, client: ClientId, attempt: u32) -> Result<(), Refusal> {
        let is_it = self.client_id == Some(client) && self.attempt == attempt;
        if is_it { Ok(()) } else { Err(Refusal::NotYours) }
    }

    /// Records the decision about the call's approval, or its end.
    pub(super) fn decide(
        &mut self,
        status: ApprovalStatus,
        by: Option<UserId>,
        now: DateTime<Utc>,
    ) -> Option<&mut CallApproval> {
        let approval = self.approval.as_mut()?;
        approval.status = status;
        approval.decided_at = Some(now);
        approval.decided_by = by;
        Some(approval)
    }

    pub(super) fn approve(
        &mut self,
        id: ApprovalId,
        by: UserId,
        scope: GrantScope,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_asked(id, now)?;
        if let Some(approval) = self.decide(ApprovalStatus::Approved, Some(by), now) {
            approval.scope = Some(scope);
        }
        Ok(self.allow(timeouts, now))
    }

    /// Lets the question wait longer: for this time from now on, or without an end. A question never
    /// gets less time than it has.
    pub(super) fn keep_waiting(
        &mut self,
        id: ApprovalId,
        time: Option<TimeDelta>,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_asked(id, now)?;
        let Some(approval) = &mut self.approval else { return Ok(Vec::new()) };
        let known = approval.expires_at;
        approval.expires_at = known.zip(time).map(|(known, time)| known.max(now + time));
        approval.warned = false;
        let expires_at = approval.expires_at;
        self.deadline = Some(first_look(expires_at, now));
        let (approval_id, tool_id, session_id) = (id, self.tool_id, self.session_id);
        Ok(vec![Event::ToolApprovalExtended { approval_id, tool_id, session_id, expires_at }])
    }

    /// Notes the call that was made of this one, whose question had run out. It is asked again once.
    pub(super) fn note_asked_again(&mut self, new: CallId) -> Transition {
        let is_whole = self.tool_params.get(SHORTENED).is_none();
        match (self.has_run_out() && is_whole, self.asked_again) {
            (true, None) => {
                self.asked_again = Some(new);
                Ok(vec![self.updated_with(self.error.clone())])
            }
            (_, Some(_)) => Err(Refusal::AskedAnew),
            (false, None) => Err(Refusal::Already(self.status)),
        }
    }

    /// Lets the call run as soon as a machine is connected.
    pub(super) fn allow(&mut self, timeouts: GateTimeouts, now: DateTime<Utc>) -> Vec<Event> {
        self.status = CallStatus::Approved;
        self.deadline = Some(now + timeouts.dispatch);
        vec![self.updated()]
    }

    pub(super) fn reject(
        &mut self,
        id: ApprovalId,
        by: UserId,
        reason: Option<String>,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_asked(id, now)?;
        let detail = match &reason {
            Some(reason) => format!("Rejected by the user: {reason}"),
            None => "Rejected by the user".to_owned(),
        };
        if let Some(approval) = self.decide(ApprovalStatus::Rejected, Some(by), now) {
            approval.reason = reason;
        }
        let failure = CallFailure::new(FailureCode::ApprovalRejected, detail);
        Ok(vec![self.settle(CallStatus::Rejected, Some(failure), now)])
    }

    /// Sends the call to a machine. The signal carries the digest of what was approved and, if it
    /// was previewed, the digest of what was shown and the checksum of what the preview was made
    /// from.
    pub(super) fn dispatch(
        &mut self,
        client_id: ClientId,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect(CallStatus::Approved)?;
        self.status = CallStatus::Dispatched;
        self.client_id = Some(client_id);
        self.attempt += 1;
        self.claimed = false;
        self.deadline = Some(now + timeouts.dispatch);
        self.note = None;
        Ok(vec![
            self.updated(),
            Event::ToolExecutionSignal {
                tool_id: self.tool_id,
                client_id,
                attempt: self.attempt,
                tool_name: self.tool_name.clone(),
                tool_params: self.brief_params(),
                session_id: self.session_id,
                task_id: self.task_id,
                requested_by: self.requested_by,
                digest: self.digest,
                risk_level: self.risk_level,
                class: self.class.clone(),
                base_checksum: self.preview.as_ref().map(|preview| preview.base_checksum.clone()),
                preview_digest: self.shown(),
                network: self.network,
                timeout: self.timeout,
            },
        ])
    }

    /// Records that the machine is about to run the call. Each attempt can be claimed once, so a
    /// call runs at most once.
    pub(super) fn claim(
        &mut self,
        client: ClientId,
        attempt: u32,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect(CallStatus::Dispatched)?;
        self.expect_attempt(client, attempt)?;
        if self.claimed {
            return Err(Refusal::NotYours);
        }
        self.claimed = true;
        let own_time = TimeDelta::seconds(self.timeout.unwrap_or(0).into());
        self.deadline = Some(now + timeouts.result + own_time);
        Ok(Vec::new())
    }

    /// Takes the outcome of the call. The same outcome again changes nothing; a different one is
    /// refused.
    pub(super) fn finish(
        &mut self,
        client: ClientId,
        attempt: u32,
        outcome: ToolOutcome,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_attempt(client, attempt)?;
        let failure = outcome.failure.as_ref();
        let failure =
            failure.map(|failure| CallFailure::new(failure.code.clone(), &*failure.detail));
        match self.status {
            CallStatus::Dispatched => {}
            CallStatus::Completed
            | CallStatus::Failed
            | CallStatus::Unknown
            | CallStatus::Cancelled
                if self.result.as_ref() == Some(&outcome) =>
            {
                return Ok(Vec::new());
            }
            // The gate gave up on the machine too early, and a late outcome is better than none.
            CallStatus::Unknown if self.result.is_none() => {}
            CallStatus::Completed | CallStatus::Failed | CallStatus::Unknown => {
                return Err(Refusal::OtherResult);
            }
            other => return Err(Refusal::Already(other)),
        }
        let status = match failure.as_ref().map(|failure| &failure.code) {
            None => CallStatus::Completed,
            // The machine was restarted while the call ran, and does not know whether the call had
            // an effect.
            Some(FailureCode::Unknown) => CallStatus::Unknown,
            Some(FailureCode::Cancelled) => CallStatus::Cancelled,
            Some(_) => CallStatus::Failed,
        };
        self.result = Some(outcome);
        let settled = self.settle(status, failure, now);
        Ok(vec![settled, Event::ToolResultAck { tool_id: self.tool_id, attempt, status }])
    }

    /// Asks again about a write whose file has changed since the preview was made. What was
    /// approved cannot run any more: the machine is asked for a new preview, and then the person is
    /// asked again.
    pub(super) fn stale(
        &mut self,
        client: ClientId,
        attempt: u32,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect(CallStatus::Dispatched)?;
        self.expect_attempt(client, attempt)?;
        self.preview = None;
        self.grant_id = None;
        self.claimed = false;
        let (tool_id, status) = (self.tool_id, self.status);
        let mut events = vec![Event::ToolResultAck { tool_id, attempt, status }];
        events.extend(self.begin_preview(Some(client), timeouts, now));
        let note = "The file has changed since it was shown, so this call needs approval again.";
        self.note = Some(note.to_owned());
        Ok(events)
    }

    /// Lets a call run that waits for a person, because a new permission covers it.
    pub(super) fn granted(
        &mut self,
        grant: GrantId,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Transition {
        self.expect_pending(now)?;
        self.decide(ApprovalStatus::Approved, None, now);
        self.grant_id = Some(grant);
        Ok(self.allow(timeouts, now))
    }

    /// Takes over a rating if it is stricter than the current one, and adds its findings to those
    /// of the current one. A rating is never relaxed: a machine can make the gate stricter, not
    /// looser. Returns whether anything changed.
    pub(super) fn rate(&mut self, rating: CallRating) -> bool {
        let riskier = rating.verdict > self.risk_level && rating.verdict != Verdict::Deny;
        let network = rating.network && !self.network;
        let mut class = self.class().into_owned();
        let found = match rating.class.findings.is_empty() {
            true => CallClass {
                destinations: rating.class.destinations,
                ..CallClass::of(&*rating.rule)
            },
            false => rating.class,
        };
        let more = self.requires_approval
            && !riskier
            && rating.verdict.needs_approval()
            && !class.covers(&found);
        if riskier {
            // A call that was not asked about so far has only destinations.
            if !self.requires_approval {
                class = CallClass { destinations: class.destinations, ..CallClass::default() };
            }
            (self.risk_level, self.rule, self.reason) =
                (rating.verdict, rating.rule, rating.reason);
            self.requires_approval = true;
            self.class = found;
            self.class.add(class);
        } else if more {
            if rating.verdict == self.risk_level {
                self.reason = rating.reason;
            }
            class.add(found);
            self.class = class;
        }
        self.network |= network;
        riskier || network || more
    }

    /// Takes over the rating of a machine that has not run the call because it rates it higher than
    /// what was approved. Unless a permission covers the higher rating, the person is asked again.
    /// Returns `None` if the machine's rating is not higher; then its refusal is the outcome of the
    /// call.
    pub(super) fn rerate(
        &mut self,
        (client, attempt): (ClientId, u32),
        rating: CallRating,
        permitted: impl FnOnce(&Self) -> Option<GrantId>,
        id: ApprovalId,
        timeouts: GateTimeouts,
        now: DateTime<Utc>,
    ) -> Result<Option<Vec<Event>>, Refusal> {
        self.expect(CallStatus::Dispatched)?;
        self.expect_attempt(client, attempt)?;
        let network = rating.network && !self.network;
        if !self.rate(rating) {
            return Ok(None);
        }
        // The person who gave a permission did not know that the call would use the network.
        self.grant_id = if network { None } else { permitted(self) };
        self.claimed = false;
        let (tool_id, status) = (self.tool_id, self.status);
        let mut events = vec![Event::ToolResultAck { tool_id, attempt, status }];
        if self.grant_id.is_some() {
            events.extend(self.allow(timeouts, now));
            return Ok(Some(events));
        }
        // A write that a permission covered without a preview has to be shown first.
        events.extend(match self.has_preview() && self.preview.is_none() {
            true => self.begin_preview(Some(client), timeouts, now),
            false => self.ask(id, timeouts, now),
        });
        Ok(Some(events))
    }

    /// Cancels a call that is not settled. A call that was claimed may have had an effect, so it
    /// becomes `Unknown`.
    pub(super) fn cancel(&mut self, now: DateTime<Utc>) -> Transition {
        if self.status.is_settled() {
            return Err(Refusal::Already(self.status));
        }
        if self.status == CallStatus::PendingApproval {
            self.expect_pending(now)?;
            self.decide(ApprovalStatus::Cancelled, None, now);
        }
        let (status, detail) = match self.claimed && self.status == CallStatus::Dispatched {
            true => (CallStatus::Unknown, "cancelled while it ran: it may have had an effect"),
            false => (CallStatus::Cancelled, "cancelled before it ran"),
        };
        let failure = CallFailure::new(FailureCode::Cancelled, detail);
        Ok(vec![self.settle(status, Some(failure), now)])
    }
}
