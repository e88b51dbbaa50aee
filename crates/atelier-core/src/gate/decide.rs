//! Decides whether a tool call runs, is asked about or is refused.
//!
//! Decisions are pure. A decision takes the call, what happened to it ([`GateInput`]) and the state
//! of its project ([`DecisionContext`]). It returns the changed call and the [`Effects`] to store.
//! The store makes each decision in the transaction that stores it, so two decisions about one call
//! never overlap.

use super::{
    AskedAgain, AskedBy, Audit, AuditDecision, CallFailure, CallStatus, Decider, DecisionContext,
    Effects, GateInput, GateTimeouts, GatedCall, Grant, GrantScope, NewCall, NewIds, Refusal,
    ToolOutcome, covering_grant,
};
use crate::{
    ApprovalId, CallId, ClientId, Invalid, ProjectId, WorkspaceKind,
    client::Client,
    digest::CallDigest,
    event::Event,
    failure::FailureCode,
    path::Roots,
    policy::{
        Policy, RestrictionSource, Restrictions,
        call::ToolCall,
        layered::judge_shell_isolation,
        sandbox::unsandboxed,
        verdict::{Judgement, Verdict},
    },
    tools::{Rating, ToolDef},
};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The settings that decisions depend on, the same for all projects of a server.
#[derive(Debug, Clone)]
pub struct GateRules {
    pub policy: Arc<Policy>,
    /// The policy for the own files of conversations.
    pub own_files: Arc<Policy>,
    pub timeouts: GateTimeouts,
    /// Whether commands are refused on machines that cannot sandbox them.
    pub demand_isolation: bool,
}

/// The stage of a call at which it is decided whether the call runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The call was just asked for.
    New(AskedBy),
    /// The call may run because it was approved, is covered by a permission, or is LOW. It is about
    /// to be sent.
    Allowed,
}

impl GateRules {
    /// The server's policy for a workspace, with the project's restrictions on top.
    pub fn policy_with(
        &self,
        workspace: WorkspaceKind,
        restrictions: Option<&Restrictions>,
    ) -> Cow<'_, Policy> {
        let policy = match workspace {
            WorkspaceKind::Client => &self.policy,
            WorkspaceKind::Conversation => &self.own_files,
        };
        match restrictions {
            None => Cow::Borrowed(&**policy),
            Some(restrictions) => {
                let (source, restrictions) = (RestrictionSource::Project, restrictions.clone());
                Cow::Owned(policy.restricted(source, restrictions))
            }
        }
    }

    fn policy(
        &self,
        workspace: WorkspaceKind,
        context: &DecisionContext,
    ) -> Result<Cow<'_, Policy>, Invalid> {
        Ok(self.policy_with(workspace, context.restrictions.clone()?.as_deref()))
    }

    /// Rates a new call and decides whether it runs, is asked about or is denied.
    pub fn begin(
        &self,
        project: ProjectId,
        new: NewCall,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<(GatedCall, Effects), Invalid> {
        let context = &*context.for_workspace(new.workspace, project, new.session_id);
        let policy = self.policy(new.workspace, context)?;
        let (parsed, judgement) = rate(&policy, &new.tool_name, &new.tool_params, context);
        let digest = parsed.as_ref().map(|call| CallDigest::asked_by(call, new.requested_by));
        // From here on everybody sees the call as it was understood. What was not understood never
        // runs.
        let (name, params) = match parsed {
            Some(parsed) => (parsed.name().to_owned(), parsed.into_params()),
            None => (new.tool_name, new.tool_params),
        };
        let mut call = GatedCall {
            digest,
            workspace: new.workspace,
            agent_id: new.agent_id,
            session_id: new.session_id,
            task_id: new.task_id,
            requested_by: new.requested_by,
            ..GatedCall::new(new.id, project, name, params, &judgement, context.now)
        };
        let stage = Stage::New(new.asked_by);
        let effects = self.run_ask_or_refuse(&mut call, stage, judgement, context, ids);
        Ok((call, effects))
    }

    /// Decides what an input does to a call. An input that comes too late, or from the wrong
    /// machine, is refused and changes nothing.
    pub fn decide(
        &self,
        mut call: GatedCall,
        input: GateInput,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<(GatedCall, Effects), Refusal> {
        let context = &*context.for_workspace(call.workspace, call.project_id, call.session_id);
        let (timeouts, now) = (self.timeouts(context), context.now);
        let effects = match input {
            GateInput::Approve { approval, by, scope, include_high } => {
                self.approve(&mut call, (approval, scope, include_high), by, context, ids)?
            }
            GateInput::Reject { approval, by, reason } => {
                let events = call.reject(approval, by.user, reason, now)?;
                let audit = Audit::of_call(&call, AuditDecision::Rejected, Some(by), now);
                Effects { events, audit: Some(audit), ..Effects::default() }
            }
            GateInput::KeepWaiting { approval, by, wait } => {
                let events = call.keep_waiting(approval, wait.time(), now)?;
                let audit = Audit::of_call(&call, AuditDecision::Extended, Some(by), now);
                Effects { events, audit: Some(audit), ..Effects::default() }
            }
            GateInput::Cancel { by } => {
                let events = call.cancel(now)?;
                let audit = Audit::of_call(&call, AuditDecision::Cancelled, Some(by), now);
                Effects { events, audit: Some(audit), ..Effects::default() }
            }
            GateInput::Cover => self.cover(&mut call, context, ids)?,
            GateInput::Assign => self.assign(&mut call, context, ids),
            GateInput::Preview { client, shown } => {
                call.previewed(client, shown, ids.approval, timeouts, now)?.into()
            }
            GateInput::PreviewFailed { client, failure } => {
                call.preview_failed(client, failure, now)?.into()
            }
            GateInput::Claim { client, attempt } => {
                call.claim(client, attempt, timeouts, now)?.into()
            }
            GateInput::Outcome { client, attempt, outcome } => {
                self.outcome(&mut call, (client, attempt), outcome, context, ids)?
            }
            GateInput::TimePassed => {
                let events = call.time_passed(now);
                let expired = call.status == CallStatus::Expired && !events.is_empty();
                let audit =
                    expired.then(|| Audit::of_call(&call, AuditDecision::Expired, None, now));
                Effects { events, audit, ..Effects::default() }
            }
        };
        Ok((call, effects))
    }

    /// Asks again about a call whose question has run out: a new call with the same parameters takes
    /// its place, and is decided about as any other. So it may also be denied, or covered by a
    /// permission.
    pub fn ask_again(
        &self,
        mut expired: GatedCall,
        new: CallId,
        by: Decider,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<Result<AskedAgain, Invalid>, Refusal> {
        let events = expired.note_asked_again(new)?;
        let audit = Audit::of_call(&expired, AuditDecision::AskedAgain, Some(by), context.now);
        let of_expired = Effects { events, audit: Some(audit), ..Effects::default() };
        let request = NewCall {
            id: new,
            tool_name: expired.tool_name.clone(),
            tool_params: expired.tool_params.clone(),
            workspace: expired.workspace,
            agent_id: expired.agent_id,
            session_id: expired.session_id,
            task_id: expired.task_id,
            asked_by: AskedBy::of_stored(&expired),
            requested_by: expired.requested_by,
        };
        let begun = self.begin(expired.project_id, request, context, ids);
        Ok(begun.map(|(call, effects)| AskedAgain { expired, of_expired, call, effects }))
    }

    /// How long calls of a project wait.
    fn timeouts(&self, context: &DecisionContext) -> GateTimeouts {
        self.timeouts.with(context.approvals)
    }

    /// The one place that decides whether a call runs, is asked about or is refused. It decides
    /// about new calls, and once more about calls that were allowed earlier and are about to be
    /// sent, because rules, permissions and machines may have changed since.
    fn run_ask_or_refuse(
        &self,
        call: &mut GatedCall,
        stage: Stage,
        judgement: Judgement,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Effects {
        let now = context.now;
        if judgement.verdict == Verdict::Deny {
            let code = judgement.code.unwrap_or(FailureCode::Denied);
            return call.deny(CallFailure::new(code, judgement.reason), now).into();
        }
        // This is checked before a person is asked, so that nobody is asked about a call that
        // cannot run in the end.
        if let Some(failure) = self.lacks_isolation(call, context) {
            return match stage {
                Stage::New(_) => call.deny(failure, now),
                Stage::Allowed => call.refuse(failure, now),
            }
            .into();
        }
        let mut audit = None;
        let ask = match stage {
            Stage::New(_) if !call.requires_approval => false,
            Stage::New(asked_by) => {
                call.grant_id = covering_grant(call, asked_by, context);
                audit = call.grant_id.map(|grant| Audit::granted(call, grant, now));
                call.grant_id.is_none()
            }
            Stage::Allowed => must_ask_again(call, judgement, context),
        };
        let mut events = Vec::new();
        if ask {
            events = self.ask(call, context, ids);
        } else {
            if stage != Stage::Allowed {
                events = call.allow(self.timeouts(context), now);
            }
            events.extend(self.send(call, context));
        }
        Effects { events, audit, ..Effects::default() }
    }

    /// Asks a person about the call. If the call writes a file, the machine is asked for a preview
    /// first.
    fn ask(&self, call: &mut GatedCall, context: &DecisionContext, ids: NewIds) -> Vec<Event> {
        call.client_id = context.machine().map(|client| client.id);
        match call.has_preview() && call.preview.is_none() {
            true => call.begin_preview(call.client_id, self.timeouts(context), context.now),
            false => call.ask(ids.approval, self.timeouts(context), context.now),
        }
    }

    /// Sends a call that may run to the machine that runs calls, if one is connected.
    fn send(&self, call: &mut GatedCall, context: &DecisionContext) -> Vec<Event> {
        match context.machine() {
            Some(client) => {
                call.dispatch(client.id, self.timeouts(context), context.now).unwrap_or_default()
            }
            None => {
                call.note_no_machine();
                Vec::new()
            }
        }
    }

    /// The failure of a command that must not run on the connected machine, because the server
    /// demands a sandbox and the machine has none. `None` if the call may run there.
    fn lacks_isolation(&self, call: &GatedCall, context: &DecisionContext) -> Option<CallFailure> {
        let unsandboxed = context.machine().is_some_and(|client| !is_sandboxed(client));
        let runs_commands = call.tool().is_some_and(ToolDef::runs_commands);
        let refused = self.demand_isolation && runs_commands && unsandboxed;
        refused.then(|| CallFailure::new(FailureCode::IsolationRequired, NEEDS_SANDBOX))
    }

    fn approve(
        &self,
        call: &mut GatedCall,
        (approval, scope, include_high): (ApprovalId, GrantScope, bool),
        by: Decider,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<Effects, Refusal> {
        let (now, user) = (context.now, by.user);
        let mut events = call.approve(approval, user, scope, self.timeouts(context), now)?;
        // The audit record is made here, before a new approval can replace the one that was
        // answered.
        let mut audit = Audit::of_call(call, AuditDecision::Approved, Some(by), now);
        if let Some(approval) = &mut call.approval {
            let machine = context.machine().map(|client| client.id);
            approval.client_id = approval.client_id.or(machine);
        }
        let policy = match self.policy(call.workspace, context) {
            Ok(policy) => policy,
            Err(invalid) => {
                let failure = CallFailure::new(FailureCode::InvalidSettings, invalid.to_string());
                events.extend(call.deny(failure, now));
                return Ok(Effects { events, audit: Some(audit), ..Effects::default() });
            }
        };
        let (_, judgement) = rate(&policy, &call.tool_name, &call.tool_params, context);
        let next = self.run_ask_or_refuse(call, Stage::Allowed, judgement, context, ids);
        events.extend(next.events);
        // A permission is made only if the approval really let the call run.
        let mut grant = None;
        if matches!(call.status, CallStatus::Approved | CallStatus::Dispatched) {
            grant = Grant::from_approval(ids.grant, call, scope, include_high, user, context);
            if let (None, Some(approval)) = (&grant, &mut call.approval) {
                approval.scope = Some(GrantScope::Once);
            }
            audit.grant_id = grant.as_ref().map(|grant| grant.id);
        }
        Ok(Effects { events, grant, audit: Some(audit), problem: None })
    }

    /// Lets a call that waits for a person run, if a permission covers it now.
    fn cover(
        &self,
        call: &mut GatedCall,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<Effects, Refusal> {
        let grant = covering_grant(call, AskedBy::of_stored(call), context)
            .ok_or(Refusal::Already(call.status))?;
        let mut events = call.granted(grant, self.timeouts(context), context.now)?;
        let audit = Audit::granted(call, grant, context.now);
        let next = self.assign(call, context, ids);
        events.extend(next.events);
        Ok(Effects { events, audit: Some(audit), ..next })
    }

    /// Sends a call that waits for a machine to the machine that runs calls now. Nothing happens to
    /// a call that waits for something else, or that was sent to a machine that is still connected.
    fn assign(&self, call: &mut GatedCall, context: &DecisionContext, ids: NewIds) -> Effects {
        let policy = match self.policy(call.workspace, context) {
            Ok(policy) => policy,
            Err(invalid) => return Effects { problem: Some(invalid), ..Effects::default() },
        };
        let Some(machine) = context.machine() else {
            if call.status == CallStatus::Approved {
                call.note_no_machine();
            }
            return Effects::default();
        };
        let connected = context.clients.iter().any(|client| Some(client.id) == call.client_id);
        match call.status {
            CallStatus::Approved => {}
            // The call never began on the machine that has left, so another machine may run it.
            CallStatus::Dispatched if !connected && !call.claimed => {
                call.status = CallStatus::Approved;
            }
            CallStatus::Previewing if !connected => {
                return call
                    .begin_preview(Some(machine.id), self.timeouts(context), context.now)
                    .into();
            }
            _ => return Effects::default(),
        }
        let (_, judgement) = rate(&policy, &call.tool_name, &call.tool_params, context);
        self.run_ask_or_refuse(call, Stage::Allowed, judgement, context, ids)
    }

    fn outcome(
        &self,
        call: &mut GatedCall,
        (client, attempt): (ClientId, u32),
        outcome: ToolOutcome,
        context: &DecisionContext,
        ids: NewIds,
    ) -> Result<Effects, Refusal> {
        let (timeouts, now) = (self.timeouts(context), context.now);
        if outcome.is_stale() {
            return Ok(call.stale(client, attempt, timeouts, now)?.into());
        }
        if let (CallStatus::Dispatched, Some(rating)) = (call.status, outcome.higher_rating()) {
            let permitted =
                |call: &GatedCall| covering_grant(call, AskedBy::of_stored(call), context);
            let rerated =
                call.rerate((client, attempt), rating, permitted, ids.approval, timeouts, now)?;
            if let Some(mut events) = rerated {
                let audit = call.grant_id.map(|grant| Audit::granted(call, grant, now));
                let next = match call.status {
                    CallStatus::Approved => self.assign(call, context, ids),
                    _ => Effects::default(),
                };
                events.extend(next.events);
                return Ok(Effects { events, audit, ..next });
            }
        }
        Ok(call.finish(client, attempt, outcome, now)?.into())
    }
}

const NEEDS_SANDBOX: &str = "This server runs commands only on machines that can sandbox them, \
    and the connected machine cannot. \
     It needs Linux with Landlock and seccomp or namespaces; `atelier connect` shows at its start \
     what is missing.";

/// The prefix of findings about calls on a conversation's own files.
const OWN_FILES: &str = "conversation";

/// Parses a call and rates it for the machine that would run it.
fn rate(
    policy: &Policy,
    tool: &str,
    params: &Value,
    context: &DecisionContext,
) -> (Option<ToolCall>, Judgement) {
    let machine = context.machine();
    let roots = machine.map_or_else(Roots::relative_only, |client| Roots::announced(&*client.root));
    let (parsed, mut judgement) = policy.judge_request(tool, params.clone(), &roots);
    if policy.is_for_own_files() {
        // A permission for a conversation's own files does not cover files on a machine.
        let named = |finding: &String| format!("{OWN_FILES}.{finding}");
        judgement.class.findings = judgement.class.findings.iter().map(named).collect();
    }
    let parsed = parsed.ok();
    let is_command = parsed.as_ref().is_some_and(|call| call.command().is_some());
    if let (Some(call), Some(machine)) = (&parsed, machine)
        && call.tool.rating == Rating::Shell
        && let Some(limited) = judge_shell_isolation(machine.isolation.mechanisms.as_ref())
    {
        judgement = judgement.stricter(limited);
    }
    if is_command && machine.is_some_and(|client| !is_sandboxed(client)) {
        let unsandboxed = unsandboxed(&judgement);
        judgement = judgement.stricter(unsandboxed);
    }
    (parsed, judgement)
}

/// Whether the machine can keep a command from writing and from the network.
fn is_sandboxed(client: &Client) -> bool {
    client.isolation.enforces_read_only
}

/// Whether a call that was allowed earlier has to be asked about again. If so, the call takes over
/// the stricter rating, and its `note` says why.
fn must_ask_again(call: &mut GatedCall, judgement: Judgement, context: &DecisionContext) -> bool {
    let riskier = call.rate(judgement.into());
    let note = if permission_ended(call, context) {
        Some("The permission that covered this call has ended, so it needs approval.")
    } else if approved_for_another_machine(call, context) {
        Some("This call was approved for another machine, so it needs approval again.")
    } else {
        None
    };
    if !riskier && note.is_none() {
        return false;
    }
    call.grant_id = None;
    call.note = note.map(str::to_owned).or(call.note.take());
    true
}

/// Whether the permission that let a call run was withdrawn or has ended with its session.
fn permission_ended(call: &GatedCall, context: &DecisionContext) -> bool {
    call.grant_id.is_some_and(|had| context.grants.iter().all(|grant| grant.id != had))
}

/// Whether a call would run on another machine than the one that it was approved for, and so in
/// another folder and with another sandbox. A write with a preview is not asked about again,
/// because the machine checks that the file is still the one that was shown.
fn approved_for_another_machine(call: &GatedCall, context: &DecisionContext) -> bool {
    let by_person = call.grant_id.is_none() && call.preview.is_none();
    let approval = call.approval.as_ref().filter(|_| by_person);
    let approved_for = approval.and_then(|approval| approval.client_id);
    let machine = context.machine().map(|client| client.id);
    approved_for.is_some() && machine.is_some() && approved_for != machine
}

#[cfg(test)]
mod tests;
