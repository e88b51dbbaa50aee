//! What can happen to a call, a function each.

use super::{
    ApprovalStatus, CallApproval, CallFailure, CallPreview, CallRating, CallStatus, GatedCall, GrantScope,
    LINK, Refusal, Waits,
};
use crate::{ApprovalId, ClientId, GrantId, UserId, event::Event, policy::verdict::Verdict};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

type Step = Result<Vec<Event>, Refusal>;

/// Event bodies stay small; what is larger is looked up.
pub(super) const MAX_TOLD: usize = 64 * 1024;

const NO_CLIENT: &str =
    "No machine is connected: it waits for one. Run `atelier connect FOLDER --project NAME` on yours.";

/// A warning comes this long before an approval runs out, or at half its time if that is later.
const WARNING: TimeDelta = TimeDelta::seconds(60);

/// Texts of more bytes than this are cut where not all of them is needed.
const LONG: usize = 4096;

/// The same with long texts cut short.
fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) if text.len() > LONG => {
            let start: String = text.chars().take(200).collect();
            format!("{start}… ({} bytes)", text.len()).into()
        }
        Value::Array(items) => items.iter().map(shortened).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), shortened(value))).collect()
        }
        other => other.clone(),
    }
}

impl GatedCall {
    /// The parameters as events carry them: whole while they are small, otherwise cut short and with a link to the call.
    fn told_params(&self) -> Value {
        self.told(&self.tool_params)
    }

    fn told(&self, value: &Value) -> Value {
        let fits = |value: &Value| serde_json::to_string(value).is_ok_and(|json| json.len() <= MAX_TOLD);
        if fits(value) {
            return value.clone();
        }
        let mut told =
            Some(shortened(value)).filter(|told| told.is_object() && fits(told)).unwrap_or(json!({}));
        told[LINK] = format!("/my/projects/{}/tools/{}", self.project_id, self.tool_id).into();
        told
    }

    /// As it stands in a list, where many of them may be large.
    pub fn in_brief(mut self) -> Self {
        self.tool_params = self.told_params();
        self.preview = self.told_preview();
        self.result = self.result.as_ref().map(|result| self.told(result));
        self
    }

    fn told_preview(&self) -> Option<CallPreview> {
        let mut preview = self.preview.clone()?;
        if preview.diff.len() > MAX_TOLD {
            preview.diff = format!("({} bytes: see the tool call)", preview.diff.len());
        }
        Some(preview)
    }

    fn settle(&mut self, status: CallStatus, failure: Option<CallFailure>, now: DateTime<Utc>) -> Event {
        self.status = status;
        self.error = failure;
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

    /// The policy refuses: nobody is asked, nothing is sent.
    pub fn deny(&mut self, failure: CallFailure, now: DateTime<Utc>) -> Vec<Event> {
        // What nobody will ever run is kept to be recognised, not to fill the disk.
        self.tool_params = shortened(&self.tool_params);
        vec![self.settle(CallStatus::Denied, Some(failure), now)]
    }

    /// It may run, but not where it would have to.
    pub fn refuse(&mut self, failure: CallFailure, now: DateTime<Utc>) -> Vec<Event> {
        vec![self.settle(CallStatus::Failed, Some(failure), now)]
    }

    /// Asks the client what the call would change, before a person is asked.
    pub fn begin_preview(
        &mut self,
        client: Option<ClientId>,
        waits: Waits,
        now: DateTime<Utc>,
    ) -> Vec<Event> {
        self.status = CallStatus::Previewing;
        self.deadline = Some(now + waits.dispatch);
        self.client_id = client;
        match client {
            None => self.await_client(),
            Some(_) => self.note = self.note.take().filter(|note| note != NO_CLIENT),
        }
        let mut events = vec![self.updated()];
        events.extend(client.map(|client_id| Event::ToolPreviewRequest {
            tool_id: self.tool_id,
            client_id,
            tool_name: self.tool_name.clone(),
            tool_params: self.told_params(),
        }));
        events
    }

    /// The client says what the call would change: now a person can decide about it.
    pub fn previewed(
        &mut self,
        from: ClientId,
        preview: CallPreview,
        rating: Option<CallRating>,
        id: ApprovalId,
        waits: Waits,
        now: DateTime<Utc>,
    ) -> Step {
        self.expect(CallStatus::Previewing)?;
        if self.client_id != Some(from) {
            return Err(Refusal::NotYours);
        }
        if let Some(rating) = rating {
            self.rate(rating);
        }
        self.preview = Some(preview);
        Ok(self.ask(id, waits, now))
    }

    /// The client cannot say what the call would change, because it cannot be done: nobody is asked.
    pub fn preview_failed(&mut self, from: ClientId, failure: CallFailure, now: DateTime<Utc>) -> Step {
        self.expect(CallStatus::Previewing)?;
        if self.client_id != Some(from) {
            return Err(Refusal::NotYours);
        }
        Ok(vec![self.settle(CallStatus::Failed, Some(failure), now)])
    }

    /// Asks a person, for as long as the risk allows.
    pub fn ask(&mut self, id: ApprovalId, waits: Waits, now: DateTime<Utc>) -> Vec<Event> {
        let time = waits.approval(self.risk_level);
        let expires_at = now + time;
        self.note = self.note.take().filter(|note| note != NO_CLIENT);
        self.status = CallStatus::PendingApproval;
        self.approval_id = Some(id);
        self.deadline = Some(expires_at - WARNING.min(time / 2));
        self.approval = Some(CallApproval {
            id,
            status: ApprovalStatus::Pending,
            requested_at: now,
            expires_at,
            warned: false,
            decided_at: None,
            decided_by: None,
            client_id: self.client_id,
            scope: None,
            reason: None,
        });
        let request = Event::ToolApprovalRequest {
            approval_id: id,
            tool_id: self.tool_id,
            tool_name: self.tool_name.clone(),
            tool_params: self.told_params(),
            risk_level: self.risk_level,
            rule: self.rule.clone(),
            reason: self.reason.clone(),
            network: self.network,
            preview: self.told_preview(),
            digest: self.digest,
            agent_id: self.agent_id,
            session_id: self.session_id,
            task_id: self.task_id,
            timeout_seconds: u32::try_from(time.num_seconds()).unwrap_or(u32::MAX),
            expires_at,
        };
        vec![self.updated(), request]
    }

    /// Nobody is there to do it.
    pub fn await_client(&mut self) {
        self.note = Some(NO_CLIENT.to_owned());
    }

    fn expect(&self, status: CallStatus) -> Result<(), Refusal> {
        if self.status == status { Ok(()) } else { Err(Refusal::Already(self.status)) }
    }

    /// Whether a person's word still counts. Time decides at its own moment, not when somebody gets around to
    /// writing it down.
    fn expect_pending(&self, now: DateTime<Utc>) -> Result<(), Refusal> {
        self.expect(CallStatus::PendingApproval)?;
        match self.approval.as_ref().is_some_and(|approval| now >= approval.expires_at) {
            true => Err(Refusal::Already(CallStatus::Expired)),
            false => Ok(()),
        }
    }

    /// The same for a word about one question: a call may have been asked about anew since, about something else.
    fn expect_asked(&self, id: ApprovalId, now: DateTime<Utc>) -> Result<(), Refusal> {
        self.expect_pending(now)?;
        if self.approval_id == Some(id) { Ok(()) } else { Err(Refusal::AskedAnew) }
    }

    fn decide(
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

    pub fn approve(
        &mut self,
        id: ApprovalId,
        by: UserId,
        scope: GrantScope,
        waits: Waits,
        now: DateTime<Utc>,
    ) -> Step {
        self.expect_asked(id, now)?;
        if let Some(approval) = self.decide(ApprovalStatus::Approved, Some(by), now) {
            approval.scope = Some(scope);
        }
        Ok(self.allow(waits, now))
    }

    /// It may run: as soon as there is a client.
    pub fn allow(&mut self, waits: Waits, now: DateTime<Utc>) -> Vec<Event> {
        self.status = CallStatus::Approved;
        self.deadline = Some(now + waits.dispatch);
        vec![self.updated()]
    }

    pub fn reject(&mut self, id: ApprovalId, by: UserId, reason: Option<String>, now: DateTime<Utc>) -> Step {
        self.expect_asked(id, now)?;
        let detail = match &reason {
            Some(reason) => format!("Rejected by the user: {reason}"),
            None => "Rejected by the user".to_owned(),
        };
        if let Some(approval) = self.decide(ApprovalStatus::Rejected, Some(by), now) {
            approval.reason = reason;
        }
        Ok(vec![self.settle(CallStatus::Rejected, Some(CallFailure::new("approval_rejected", detail)), now)])
    }

    /// Sends it to a client. The signal carries the digest of what was approved and, for a write, the
    /// checksum of the file it was shown against.
    pub fn dispatch(&mut self, client_id: ClientId, waits: Waits, now: DateTime<Utc>) -> Step {
        self.expect(CallStatus::Approved)?;
        self.status = CallStatus::Dispatched;
        self.client_id = Some(client_id);
        self.attempt += 1;
        self.claimed = false;
        self.deadline = Some(now + waits.dispatch);
        self.note = None;
        Ok(vec![
            self.updated(),
            Event::ToolExecutionSignal {
                tool_id: self.tool_id,
                client_id,
                attempt: self.attempt,
                tool_name: self.tool_name.clone(),
                tool_params: self.told_params(),
                digest: self.digest,
                risk_level: self.risk_level,
                base_checksum: self.preview.as_ref().map(|preview| preview.base_checksum.clone()),
                network: self.network,
                timeout: self.timeout,
            },
        ])
    }

    /// The client begins. Granted once for each attempt, so that a call runs at most once.
    pub fn claim(&mut self, client: ClientId, attempt: u32, waits: Waits, now: DateTime<Utc>) -> Step {
        self.expect(CallStatus::Dispatched)?;
        if self.client_id != Some(client) || self.attempt != attempt || self.claimed {
            return Err(Refusal::NotYours);
        }
        self.claimed = true;
        self.deadline = Some(now + waits.result + TimeDelta::seconds(self.timeout.unwrap_or(0).into()));
        Ok(Vec::new())
    }

    /// Takes the result, once. The same again is fine, another is not.
    pub fn finish(&mut self, client: ClientId, attempt: u32, result: Value, now: DateTime<Utc>) -> Step {
        if self.client_id != Some(client) || self.attempt != attempt {
            return Err(Refusal::NotYours);
        }
        match self.status {
            CallStatus::Dispatched => {}
            CallStatus::Completed | CallStatus::Failed | CallStatus::Unknown | CallStatus::Cancelled
                if self.result.as_ref() == Some(&result) =>
            {
                return Ok(Vec::new());
            }
            // Late, but true: better than not knowing.
            CallStatus::Unknown if self.result.is_none() => {}
            CallStatus::Completed | CallStatus::Failed | CallStatus::Unknown => {
                return Err(Refusal::OtherResult);
            }
            other => return Err(Refusal::Already(other)),
        }
        let success = result["success"] == true;
        let failure = (!success).then(|| {
            let text = |key: &str, otherwise: &str| result[key].as_str().unwrap_or(otherwise).to_owned();
            CallFailure { code: text("code", "failed"), detail: text("error", "the tool failed") }
        });
        let status = match &failure {
            None => CallStatus::Completed,
            // A client that was lost while it ran cannot say more than that.
            Some(failure) if failure.code == "unknown" => CallStatus::Unknown,
            Some(failure) if failure.code == "cancelled" => CallStatus::Cancelled,
            Some(_) => CallStatus::Failed,
        };
        self.result = Some(result);
        let settled = self.settle(status, failure, now);
        Ok(vec![settled, Event::ToolResultAck { tool_id: self.tool_id, attempt, status }])
    }

    /// The file has changed since the diff was made: what was approved cannot run any more, so a new
    /// preview is asked for, and then the person again.
    pub fn stale(&mut self, client: ClientId, attempt: u32, waits: Waits, now: DateTime<Utc>) -> Step {
        self.expect(CallStatus::Dispatched)?;
        if self.client_id != Some(client) || self.attempt != attempt {
            return Err(Refusal::NotYours);
        }
        self.preview = None;
        self.grant_id = None;
        self.claimed = false;
        let mut events = vec![Event::ToolResultAck { tool_id: self.tool_id, attempt, status: self.status }];
        events.extend(self.begin_preview(Some(client), waits, now));
        self.note = Some("The file has changed since it was shown, so it is asked about again.".to_owned());
        Ok(events)
    }

    /// A permission that was made while it waited covers it.
    pub fn granted(&mut self, grant: GrantId, waits: Waits, now: DateTime<Utc>) -> Step {
        self.expect_pending(now)?;
        self.decide(ApprovalStatus::Approved, None, now);
        self.grant_id = Some(grant);
        Ok(self.allow(waits, now))
    }

    /// Takes over what the client finds the call to be, if that is more than was known. Never less: a client can make
    /// the gate stricter, not looser.
    pub fn rate(&mut self, rating: CallRating) -> bool {
        let riskier = rating.verdict > self.risk_level && rating.verdict != Verdict::Deny;
        let network = rating.network && !self.network;
        if riskier {
            (self.risk_level, self.rule, self.reason) = (rating.verdict, rating.rule, rating.reason);
            self.requires_approval = true;
        }
        self.network |= network;
        riskier || network
    }

    /// The client will not run it on the approval it has, because it is more than what was approved: the person
    /// is asked about what it really is. Anything else that a client refuses stands.
    pub fn reconsider(
        &mut self,
        (client, attempt): (ClientId, u32),
        rating: CallRating,
        permitted: impl FnOnce(&Self) -> Option<GrantId>,
        id: ApprovalId,
        waits: Waits,
        now: DateTime<Utc>,
    ) -> Result<Option<Vec<Event>>, Refusal> {
        self.expect(CallStatus::Dispatched)?;
        if self.client_id != Some(client) || self.attempt != attempt {
            return Err(Refusal::NotYours);
        }
        let network = rating.network && !self.network;
        if !self.rate(rating) {
            return Ok(None);
        }
        // No permission was given with the network in sight.
        self.grant_id = if network { None } else { permitted(self) };
        self.claimed = false;
        let mut events = vec![Event::ToolResultAck { tool_id: self.tool_id, attempt, status: self.status }];
        if self.grant_id.is_some() {
            events.extend(self.allow(waits, now));
            return Ok(Some(events));
        }
        // A permission that covered it unseen covers it no more: it has to be seen first.
        events.extend(match self.changes_a_file() && self.preview.is_none() {
            true => self.begin_preview(Some(client), waits, now),
            false => self.ask(id, waits, now),
        });
        Ok(Some(events))
    }

    /// Whoever may, whenever it is not settled. A claimed call may still have its effect.
    pub fn cancel(&mut self, now: DateTime<Utc>) -> Step {
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
        Ok(vec![self.settle(status, Some(CallFailure::new("cancelled", detail)), now)])
    }

    /// What time decides. Nothing before the deadline.
    pub fn time_passes(&mut self, now: DateTime<Utc>) -> Vec<Event> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.status {
            CallStatus::PendingApproval => self.approval_time(now),
            CallStatus::Dispatched if self.claimed => {
                let failure = CallFailure::new("client_lost", "the client did not say what came of it");
                vec![self.settle(CallStatus::Unknown, Some(failure), now)]
            }
            CallStatus::Dispatched => {
                let detail =
                    "the machine did not begin in time: it is busy with other commands, or out of reach";
                vec![self.settle(CallStatus::Expired, Some(CallFailure::new("not_begun", detail)), now)]
            }
            CallStatus::Previewing | CallStatus::Approved => {
                let detail =
                    "no machine was connected in time: run `atelier connect FOLDER --project NAME` on yours";
                let failure = CallFailure::new("no_client", detail);
                vec![self.settle(CallStatus::Expired, Some(failure), now)]
            }
            _ => Vec::new(),
        }
    }

    fn approval_time(&mut self, now: DateTime<Utc>) -> Vec<Event> {
        let Some(approval) = &mut self.approval else { return Vec::new() };
        if now < approval.expires_at {
            approval.warned = true;
            self.deadline = Some(approval.expires_at);
            let (approval_id, expires_at) = (approval.id, approval.expires_at);
            let (tool_id, session_id) = (self.tool_id, self.session_id);
            return vec![Event::ToolApprovalWarning { approval_id, tool_id, session_id, expires_at }];
        }
        self.decide(ApprovalStatus::Expired, None, now);
        vec![self.settle(
            CallStatus::Expired,
            Some(CallFailure::new("approval_timeout", "Approval timeout")),
            now,
        )]
    }
}
