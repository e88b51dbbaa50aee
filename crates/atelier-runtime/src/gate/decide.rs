//! What the gate decides, from the rules and how things stand; the store takes each decision in one transaction.

use super::{Ask, Decider, Named};
use atelier_core::{
    ApprovalId, CallId, Event, GrantId, ProjectId,
    digest::CallDigest,
    gate::{CallFailure, CallRating, CallStatus, GatedCall, Grant, GrantScope, Waits},
    path::Roots,
    policy::{
        Policy,
        call::ToolCall,
        verdict::{Judgement, Verdict},
    },
};
use atelier_store::{Audit, Client, Decided, Situation};
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

/// What holds for every call of a project.
pub(super) struct Rules<'p> {
    pub(super) policy: &'p Policy,
    pub(super) waits: Waits,
    pub(super) demand_isolation: bool,
}

/// A new call, judged, and what happens to it first.
pub(super) fn begin(
    rules: &Rules<'_>,
    project: ProjectId,
    id: CallId,
    (ask, named): (Ask, Named),
    situation: &Situation,
) -> (GatedCall, Decided) {
    let (parsed, judgement) = rules.judge(&ask.tool_name, &ask.tool_params, situation);
    let name = parsed.as_ref().map_or(ask.tool_name, |call| call.name().to_owned());
    let mut call = GatedCall {
        digest: parsed.as_ref().map(CallDigest::of),
        agent_id: ask.agent_id,
        session_id: ask.session_id,
        task_id: ask.task_id,
        ..GatedCall::new(id, project, name, ask.tool_params, &judgement, situation.now)
    };
    let decided = rules.first(&mut call, named, situation, &judgement);
    (call, decided)
}

impl Rules<'_> {
    fn judge(&self, tool: &str, params: &Value, situation: &Situation) -> (Option<ToolCall>, Judgement) {
        let holder = situation.holder();
        let roots = holder.map_or_else(Roots::relative_only, |client| Roots::announced(&*client.root));
        let (parsed, mut judgement) = self.policy.judge_request(tool, params.clone(), &roots);
        let parsed = parsed.ok();
        if let Some(ToolCall::ExecuteCommand(_)) = parsed
            && holder.is_some_and(|client| !holds_commands_in(client))
        {
            let without_walls = without_walls(&judgement.rule);
            judgement = judgement.stricter(without_walls);
        }
        (parsed, judgement)
    }

    /// What happens instead to a call that may run, where the rules are stricter by now than when that was said.
    pub(super) fn reconsidered(&self, call: &mut GatedCall, situation: &Situation) -> Option<Vec<Event>> {
        let (_, judgement) = self.judge(&call.tool_name, &call.tool_params, situation);
        if judgement.verdict == Verdict::Deny {
            let code = judgement.code.unwrap_or("denied");
            return Some(call.deny(CallFailure::new(code, judgement.reason), situation.now));
        }
        // Before a person is asked about what will not run in the end.
        if let Some(failure) = situation.holder().and_then(|client| self.unfit(call, client)) {
            return Some(call.refuse(failure, situation.now));
        }
        let Judgement { verdict, rule, reason, network, .. } = judgement;
        let riskier = call.rate(CallRating { verdict, rule, reason, network });
        let why = if ended(call, situation) {
            Some("The permission that it had has ended, so it is asked about.")
        } else if elsewhere(call, situation) {
            Some("It was approved for another machine, so it is asked about again.")
        } else {
            None
        };
        if !riskier && why.is_none() {
            return None;
        }
        call.grant_id = None;
        call.note = why.map(str::to_owned).or(call.note.take());
        Some(self.ask(call, situation))
    }

    /// Asks a person or, where it can be shown what would change, the machine before.
    fn ask(&self, call: &mut GatedCall, situation: &Situation) -> Vec<Event> {
        call.client_id = situation.holder().map(|client| client.id);
        match call.changes_a_file() && call.preview.is_none() {
            true => call.begin_preview(call.client_id, self.waits, situation.now),
            false => call.ask(ApprovalId(Uuid::now_v7()), self.waits, situation.now),
        }
    }

    fn first(
        &self,
        call: &mut GatedCall,
        named: Named,
        situation: &Situation,
        judgement: &Judgement,
    ) -> Decided {
        let (now, waits) = (situation.now, self.waits);
        if judgement.verdict == Verdict::Deny {
            let code = judgement.code.unwrap_or("denied");
            return call.deny(CallFailure::new(code, &*judgement.reason), now).into();
        }
        // Before a person is asked about what will not run in the end.
        if let Some(failure) = situation.holder().and_then(|client| self.unfit(call, client)) {
            return call.deny(failure, now).into();
        }
        if !call.requires_approval {
            let mut events = call.allow(waits, now);
            events.extend(self.send(call, situation));
            return events.into();
        }
        if let Some(grant) = permitted(call, named, situation) {
            call.grant_id = Some(grant);
            let audit = audit(call, "granted", None, Some(grant), now);
            let mut events = call.allow(waits, now);
            events.extend(self.send(call, situation));
            return Decided { events, audit: Some(audit), grant: None };
        }
        self.ask(call, situation).into()
    }

    /// Why a call must not run on this machine, if so.
    fn unfit(&self, call: &GatedCall, client: &Client) -> Option<CallFailure> {
        let refused =
            self.demand_isolation && call.tool_name == "execute_command" && !holds_commands_in(client);
        refused.then(|| {
            CallFailure::new(
                "isolation_required",
                "This server runs commands only on machines that can hold them in, and the connected one cannot: \
                 it needs Linux with Landlock and seccomp or namespaces (see what `atelier connect` says at its start).",
            )
        })
    }

    /// Hands a call that may run to the client that holds the workspace, if one does.
    pub(super) fn send(&self, call: &mut GatedCall, situation: &Situation) -> Vec<Event> {
        let Some(client) = situation.holder() else {
            call.await_client();
            return Vec::new();
        };
        match self.unfit(call, client) {
            Some(failure) => call.refuse(failure, situation.now),
            None => call.dispatch(client.id, self.waits, situation.now).unwrap_or_default(),
        }
    }

    /// Hands a waiting call to the client that holds the workspace now.
    pub(super) fn assign(&self, call: &mut GatedCall, situation: &Situation) -> Vec<Event> {
        let Some(holder) = situation.holder() else {
            return if call.status == CallStatus::Approved { self.send(call, situation) } else { Vec::new() };
        };
        let reached = situation.clients.iter().any(|client| Some(client.id) == call.client_id);
        match call.status {
            CallStatus::Approved => {
                self.reconsidered(call, situation).unwrap_or_else(|| self.send(call, situation))
            }
            CallStatus::Previewing if !reached => {
                call.begin_preview(Some(holder.id), self.waits, situation.now)
            }
            // It never began there, so it may begin here.
            CallStatus::Dispatched if !reached && !call.claimed => {
                call.status = CallStatus::Approved;
                self.reconsidered(call, situation).unwrap_or_else(|| self.send(call, situation))
            }
            _ => Vec::new(),
        }
    }
}

/// Whether the permission that a call waits with was withdrawn, or ended with its session.
fn ended(call: &GatedCall, situation: &Situation) -> bool {
    call.grant_id.is_some_and(|had| situation.grants.iter().all(|grant| grant.id != had))
}

/// Whether a call would run on another machine than the one it was approved for: in another folder, and held in by other
/// means. A write that was shown is checked against the file that is there.
fn elsewhere(call: &GatedCall, situation: &Situation) -> bool {
    let approved = call.approval.as_ref().filter(|_| call.grant_id.is_none() && call.preview.is_none());
    let machine = approved.and_then(|approval| approval.client_id);
    machine.is_some_and(|machine| situation.holder().is_some_and(|holder| holder.id != machine))
}

fn holds_commands_in(client: &Client) -> bool {
    client.isolation["enforces_read_only"] == true
}

/// A machine that cannot keep a command from writing or from the network runs none unasked. Whoever allows all like it
/// allows that command.
fn without_walls(rule: &str) -> Judgement {
    let rule = format!("{} isolation", rule.split(' ').next().unwrap_or_default());
    let reason = "The machine cannot hold commands in, so every command is asked about.";
    Judgement::new(Verdict::Medium, rule, reason)
}

/// "This session": the conversation or, for calls without one, the client's connection.
fn session(call: &GatedCall, situation: &Situation) -> Option<Uuid> {
    call.session_id.map(|session| session.0).or_else(|| situation.holder().map(|client| client.id.0))
}

/// The standing permission that covers the call, if one does. What an agent says that it is called gives it nothing.
pub(super) fn permitted(call: &GatedCall, named: Named, situation: &Situation) -> Option<GrantId> {
    let session = session(call, situation);
    let covers = |grant: &&Grant| {
        grant.covers(call, session) && (named == Named::ByOwner || grant.scope != GrantScope::Agent)
    };
    situation.grants.iter().find(covers).map(|grant| grant.id)
}

/// How a call that was kept was named: a task's agent is named by the server, of others nothing is known.
pub(super) fn named(call: &GatedCall) -> Named {
    if call.task_id.is_some() { Named::ByOwner } else { Named::ByItself }
}

/// What a client that refused a call finds it to be.
pub(super) fn rating(result: &Value) -> Option<CallRating> {
    Some(CallRating {
        verdict: Verdict::deserialize(&result["verdict"]).ok()?,
        rule: result["rule"].as_str()?.to_owned(),
        reason: result["error"].as_str()?.to_owned(),
        network: result["network"] == true,
    })
}

/// The permission that an approval leaves behind, if it is to.
pub(super) fn grant(
    call: &GatedCall,
    situation: &Situation,
    by: &Decider,
    scope: GrantScope,
    include_high: bool,
) -> Option<Grant> {
    let session = session(call, situation)?;
    let (rule, agent_id, words) = match scope {
        GrantScope::Once => return None,
        GrantScope::Class => (Some(call.rule.clone()), None, call.class_in_words()),
        GrantScope::Agent => {
            let reach = if include_high { "HIGH" } else { "MEDIUM" };
            (
                None,
                Some(call.agent_id?),
                format!("everything this agent asks for in this session, up to {reach}"),
            )
        }
    };
    let include_high = match scope {
        GrantScope::Class => call.risk_level == Verdict::High,
        _ => include_high,
    };
    Some(Grant {
        id: GrantId(Uuid::now_v7()),
        project_id: call.project_id,
        scope,
        session,
        rule,
        agent_id,
        include_high,
        words,
        created_by: by.user,
        created_at: situation.now,
        withdrawn_at: None,
    })
}

pub(super) fn audit(
    call: &GatedCall,
    decision: &str,
    by: Option<&Decider>,
    grant_id: Option<GrantId>,
    at: DateTime<Utc>,
) -> Audit {
    Audit {
        tool_id: Some(call.tool_id),
        approval_id: call.approval_id,
        decision: decision.to_owned(),
        by: by.map(|by| by.user),
        via: by.and_then(|by| by.via.clone()),
        digest: call.digest.map(|digest| digest.to_string()),
        grant_id,
        at,
    }
}
