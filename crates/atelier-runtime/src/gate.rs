//! The gate: validate, rate, ask, signal, take the result.
//!
//! What a call may do is decided here and nowhere else; the steps are pure (`atelier_core::gate`), and the
//! store takes each in one transaction with its events.

use crate::{Error, Result};
use atelier_core::{
    AgentId, ApprovalId, CallId, ClientId, Event, GrantId, SessionId, TaskId, UserId,
    digest::CallDigest,
    gate::{CallFailure, CallPreview, CallStatus, GatedCall, Grant, GrantScope, Refusal, Waits},
    path::Roots,
    policy::{
        Narrowing, Policy,
        call::ToolCall,
        verdict::{Judgement, Verdict},
    },
};
use atelier_store::{Audit, Client, Cursor, Decided, NewCall, Owned, Scope, Situation, Store};
use chrono::{DateTime, TimeDelta, Utc};
use metrics::counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, time::Duration};
use uuid::Uuid;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateSettings {
    /// How long a person has to decide about a call rated Medium.
    #[serde(with = "humantime_serde")]
    pub approval_medium: Duration,
    /// The same for High.
    #[serde(with = "humantime_serde")]
    pub approval_high: Duration,
    /// How long a call waits for a client.
    #[serde(with = "humantime_serde")]
    pub dispatch: Duration,
    /// How long a result may take beyond the call's own timeout before it counts as unknown.
    #[serde(with = "humantime_serde")]
    pub result: Duration,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            approval_medium: Duration::from_secs(300),
            approval_high: Duration::from_secs(600),
            dispatch: Duration::from_secs(120),
            result: Duration::from_secs(60),
        }
    }
}

impl GateSettings {
    fn waits(&self) -> Waits {
        let delta = |time: Duration| TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
        Waits {
            medium: delta(self.approval_medium),
            high: delta(self.approval_high),
            dispatch: delta(self.dispatch),
            result: delta(self.result),
        }
    }
}

#[derive(Clone)]
pub struct Gate {
    store: Store,
    policy: &'static Policy,
    waits: Waits,
}

/// A tool call as it is asked for.
#[derive(Debug)]
pub struct Ask {
    pub tool_name: String,
    pub tool_params: Value,
    pub agent_id: Option<AgentId>,
    pub session_id: Option<SessionId>,
    /// The task that waits for it.
    pub task_id: Option<TaskId>,
}

/// Somebody who decides, and the program they do it with.
#[derive(Debug, Clone)]
pub struct Decider {
    pub user: UserId,
    pub via: Option<String>,
}

impl Gate {
    pub fn new(store: Store, settings: &GateSettings) -> Self {
        Self { store, policy: Policy::builtin(), waits: settings.waits() }
    }

    /// Validates and rates a call, then refuses it, asks about it or sends it off.
    pub async fn execute(&self, owned: &Owned, ask: Ask) -> Result<GatedCall> {
        let call = self.prepare(owned, vec![ask]).await?.pop();
        Ok(self.store.add_call(owned, call.unwrap_or_else(|| unreachable!("one asks, one gets"))).await?)
    }

    /// Validates and rates calls. What then happens to each is decided where they are kept.
    pub async fn prepare(&self, owned: &Owned, asks: Vec<Ask>) -> Result<Vec<NewCall>> {
        let project = self.store.project(owned).await?;
        let policy = match project.settings.get("policy") {
            None => Cow::Borrowed(self.policy),
            Some(wishes) => {
                let narrowing = Narrowing::deserialize(wishes)
                    .map_err(|error| atelier_core::Invalid::new("settings.policy", error.to_string()))?;
                Cow::Owned(self.policy.narrowed(narrowing))
            }
        };
        let clients = self.store.clients(owned.project).await?;
        let roots =
            clients.first().map_or_else(Roots::relative_only, |client| Roots::announced(&*client.root));
        Ok(asks.into_iter().map(|ask| self.prepare_one(owned, ask, &policy, &clients, &roots)).collect())
    }

    fn prepare_one(
        &self,
        owned: &Owned,
        ask: Ask,
        policy: &Policy,
        clients: &[Client],
        roots: &Roots,
    ) -> NewCall {
        let (parsed, mut judgement) = policy.judge_request(&ask.tool_name, ask.tool_params.clone(), roots);
        if let (Ok(ToolCall::ExecuteCommand(_)), Some(client)) = (&parsed, clients.first()) {
            judgement = judgement.stricter(on_machine(client));
        }
        let call = new_call(owned, ask, parsed.as_ref().ok(), &judgement);
        let previewed = matches!(parsed, Ok(ToolCall::WriteFile { .. } | ToolCall::EditFile { .. }));
        counter!("atelier_tool_calls_total", "risk" => judgement.verdict.as_str()).increment(1);
        let waits = self.waits;
        let begin = move |call: &mut GatedCall, situation: &Situation| {
            begin(call, situation, &judgement, previewed, waits)
        };
        NewCall { call, begin: Box::new(begin) }
    }

    /// The call when it is settled, or as it is after `time`.
    pub async fn wait(&self, owned: &Owned, id: CallId, time: Duration) -> Result<GatedCall> {
        let scope = Scope::Project(owned.project);
        let settled = async {
            let (mut events, _) = self.store.subscribe(scope, Cursor::Now).await?;
            loop {
                let call = self.store.call(owned.project, id).await?;
                if call.status.is_settled() {
                    return Ok::<_, Error>(call);
                }
                events.next().await?;
            }
        };
        match tokio::time::timeout(time, settled).await {
            Ok(call) => call,
            Err(_) => Ok(self.store.call(owned.project, id).await?),
        }
    }

    async fn step<F>(&self, owned: &Owned, id: CallId, step: F) -> Result<GatedCall>
    where
        F: FnOnce(&mut GatedCall, &Situation) -> Result<Decided, Refusal> + Send + 'static,
    {
        self.store.step(owned, id, step).await?.map_err(Error::Refused)
    }

    pub async fn approve(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        scope: GrantScope,
        include_high: bool,
    ) -> Result<GatedCall> {
        let call = self.store.call_of_approval(owned.project, id).await?;
        let waits = self.waits;
        self.step(owned, call, move |call, situation| {
            let now = situation.now;
            let mut events = call.approve(by.user, scope, waits, now)?;
            let grant = grant(call, situation, &by, scope, include_high);
            let audit = audit(call, "approved", Some(&by), grant.as_ref().map(|grant| grant.id), now);
            events.extend(send(call, situation, waits));
            Ok(Decided { events, grant, audit: Some(audit) })
        })
        .await
    }

    pub async fn reject(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        reason: Option<String>,
    ) -> Result<GatedCall> {
        let call = self.store.call_of_approval(owned.project, id).await?;
        self.step(owned, call, move |call, situation| {
            let events = call.reject(by.user, reason, situation.now)?;
            let audit = audit(call, "rejected", Some(&by), None, situation.now);
            Ok(Decided { events, audit: Some(audit), grant: None })
        })
        .await
    }

    pub async fn cancel(&self, owned: &Owned, by: Decider, id: CallId) -> Result<GatedCall> {
        self.step(owned, id, move |call, situation| {
            let events = call.cancel(situation.now)?;
            let audit = audit(call, "cancelled", Some(&by), None, situation.now);
            Ok(Decided { events, audit: Some(audit), grant: None })
        })
        .await
    }

    pub async fn previewed(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        preview: CallPreview,
    ) -> Result<GatedCall> {
        let (waits, approval) = (self.waits, ApprovalId(Uuid::now_v7()));
        self.step(owned, id, move |call, situation| {
            Ok(call.previewed(client, preview, approval, waits, situation.now)?.into())
        })
        .await
    }

    /// The client says that the call cannot be done, before anybody was asked.
    pub async fn preview_failed(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        failure: CallFailure,
    ) -> Result<GatedCall> {
        self.step(owned, id, move |call, situation| {
            Ok(call.preview_failed(client, failure, situation.now)?.into())
        })
        .await
    }

    pub async fn claim(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        attempt: u32,
    ) -> Result<GatedCall> {
        let waits = self.waits;
        self.step(owned, id, move |call, situation| {
            Ok(call.claim(client, attempt, waits, situation.now)?.into())
        })
        .await
    }

    /// Takes what came of a call from the client it was sent to.
    pub async fn finish(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        attempt: u32,
        result: Value,
    ) -> Result<GatedCall> {
        let waits = self.waits;
        self.step(owned, id, move |call, situation| {
            let events = match result["code"] == "stale" {
                true => call.stale(client, attempt, waits, situation.now)?,
                false => call.finish(client, attempt, result, situation.now)?,
            };
            Ok(events.into())
        })
        .await
    }

    pub async fn connect(&self, owned: &Owned, client: Client) -> Result<Client> {
        let waits = self.waits;
        Ok(self
            .store
            .keep_client(owned, client, move |call, situation| assign(call, situation, waits))
            .await?)
    }

    pub async fn renew(&self, owned: &Owned, client: ClientId) -> Result<DateTime<Utc>> {
        let waits = self.waits;
        Ok(self
            .store
            .renew_client(owned, client, move |call, situation| assign(call, situation, waits))
            .await?)
    }

    pub async fn disconnect(&self, owned: &Owned, client: ClientId) -> Result<()> {
        let waits = self.waits;
        Ok(self
            .store
            .remove_client(owned, client, move |call, situation| assign(call, situation, waits))
            .await?)
    }

    pub async fn withdraw(&self, owned: &Owned, id: GrantId) -> Result<Grant> {
        Ok(self.store.withdraw_grant(owned, id).await?)
    }

    /// Lets time decide what nobody else did. Runs until dropped.
    pub async fn tend(&self) {
        let mut rounds = tokio::time::interval(Duration::from_millis(500));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "cannot look for calls whose time is up");
            }
        }
    }

    async fn round(&self) -> Result<()> {
        for (owned, id) in self.store.due_calls(256).await? {
            let late = self.step(&owned, id, |call, situation| {
                let events = call.time_passes(situation.now);
                let decided = call.status == CallStatus::Expired && !events.is_empty();
                let audit = decided.then(|| audit(call, "expired", None, None, situation.now));
                Ok(Decided { events, audit, grant: None })
            });
            let call = late.await?;
            if call.status.is_settled() {
                tracing::info!(project = %owned.project, call = %id, status = call.status.as_str(), "time is up");
            }
        }
        Ok(())
    }
}

/// A machine that cannot keep a command from writing or from the network runs none unasked.
fn on_machine(client: &Client) -> Judgement {
    match client.isolation["enforces_read_only"] == true {
        true => Judgement::new(Verdict::Low, "isolation", "The machine holds commands in."),
        false => Judgement::new(
            Verdict::Medium,
            "isolation",
            "The machine cannot hold commands in, so every command is asked about.",
        ),
    }
}

fn new_call(owned: &Owned, ask: Ask, parsed: Option<&ToolCall>, judgement: &Judgement) -> GatedCall {
    let name = parsed.map_or(ask.tool_name, |call| call.name().to_owned());
    let id = CallId(Uuid::now_v7());
    GatedCall {
        digest: parsed.map(CallDigest::of),
        agent_id: ask.agent_id,
        session_id: ask.session_id,
        task_id: ask.task_id,
        ..GatedCall::new(id, owned.project, name, ask.tool_params, judgement, Utc::now())
    }
}

/// What happens to a call first.
fn begin(
    call: &mut GatedCall,
    situation: &Situation,
    judgement: &Judgement,
    previewed: bool,
    waits: Waits,
) -> Decided {
    let now = situation.now;
    if judgement.verdict == Verdict::Deny {
        let code = judgement.code.unwrap_or("denied");
        return call.deny(CallFailure::new(code, &*judgement.reason), now).into();
    }
    if !call.requires_approval {
        let mut events = call.allow(waits, now);
        events.extend(send(call, situation, waits));
        return events.into();
    }
    let session = session(call, situation);
    if let Some(grant) = situation.grants.iter().find(|grant| grant.covers(call, session)) {
        call.grant_id = Some(grant.id);
        let audit = audit(call, "granted", None, Some(grant.id), now);
        let mut events = call.allow(waits, now);
        events.extend(send(call, situation, waits));
        return Decided { events, audit: Some(audit), grant: None };
    }
    match previewed {
        true => call.begin_preview(situation.holder().map(|client| client.id), waits, now).into(),
        false => call.ask(ApprovalId(Uuid::now_v7()), waits, now).into(),
    }
}

/// "This session": the conversation or, for calls without one, the client's connection.
fn session(call: &GatedCall, situation: &Situation) -> Option<Uuid> {
    call.session_id.map(|session| session.0).or_else(|| situation.holder().map(|client| client.id.0))
}

fn send(call: &mut GatedCall, situation: &Situation, waits: Waits) -> Vec<Event> {
    let Some(client) = situation.holder() else { return Vec::new() };
    call.dispatch(client.id, waits, situation.now).unwrap_or_default()
}

/// Hands a waiting call to the client that holds the workspace now.
fn assign(call: &mut GatedCall, situation: &Situation, waits: Waits) -> Vec<Event> {
    let Some(holder) = situation.holder() else { return Vec::new() };
    let reached = situation.clients.iter().any(|client| Some(client.id) == call.client_id);
    match call.status {
        CallStatus::Approved => send(call, situation, waits),
        CallStatus::Previewing if !reached => call.begin_preview(Some(holder.id), waits, situation.now),
        // It never began there, so it may begin here.
        CallStatus::Dispatched if !reached && !call.claimed => {
            call.status = CallStatus::Approved;
            send(call, situation, waits)
        }
        _ => Vec::new(),
    }
}

fn grant(
    call: &GatedCall,
    situation: &Situation,
    by: &Decider,
    scope: GrantScope,
    include_high: bool,
) -> Option<Grant> {
    let session = session(call, situation)?;
    let (rule, agent_id, words) = match scope {
        GrantScope::Once => return None,
        GrantScope::Class => {
            (Some(call.rule.clone()), None, format!("every call of the rule “{}” in this session", call.rule))
        }
        GrantScope::Agent => {
            let reach = if include_high { "HIGH" } else { "MEDIUM" };
            (
                None,
                Some(call.agent_id?),
                format!("everything this agent asks for in this session, up to {reach}"),
            )
        }
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

fn audit(
    call: &GatedCall,
    decision: &str,
    by: Option<&Decider>,
    grant_id: Option<GrantId>,
    at: DateTime<Utc>,
) -> Audit {
    Audit {
        tool_id: call.tool_id,
        approval_id: call.approval_id,
        decision: decision.to_owned(),
        by: by.map(|by| by.user),
        via: by.and_then(|by| by.via.clone()),
        digest: call.digest.map(|digest| digest.to_string()),
        grant_id,
        at,
    }
}
