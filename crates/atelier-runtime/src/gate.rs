//! The gate: validate, rate, ask, signal, take the result.
//!
//! What a call may do is decided here and nowhere else; the steps are pure (`atelier_core::gate`), and the
//! store takes each in one transaction with its events.

mod decide;
mod waiting;

use crate::{Error, Result};
use atelier_core::{
    AgentId, ApprovalId, CallId, ClientId, Event, GrantId, Invalid, SessionId, TaskId, UserId,
    gate::{CallFailure, CallPreview, CallRating, CallStatus, GatedCall, Grant, GrantScope, Refusal, Waits},
    policy::{Extension, Narrowing, Policy, RuleError, Wisher},
    time_delta,
};
use atelier_store::{
    Audit, Client, Cursor, Decided, Error as StoreError, NewCall, Owned, Scope, Situation, Store,
};
use chrono::{DateTime, TimeDelta, Utc};
use decide::Rules;
use futures::{StreamExt, stream};
use metrics::counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};
use uuid::Uuid;
use waiting::{Waiting, Woken};

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
    /// Commands are refused on machines that cannot hold them in.
    pub demand_isolation: bool,
    /// How long calls are kept.
    pub keep_days: u32,
    /// How long it is kept who decided what.
    pub keep_audit_days: u32,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            approval_medium: Duration::from_secs(300),
            approval_high: Duration::from_secs(600),
            dispatch: Duration::from_secs(120),
            result: Duration::from_secs(60),
            demand_isolation: false,
            keep_days: 90,
            keep_audit_days: 365,
        }
    }
}

impl GateSettings {
    fn waits(&self) -> Waits {
        Waits {
            medium: time_delta(self.approval_medium),
            high: time_delta(self.approval_high),
            dispatch: time_delta(self.dispatch),
            result: time_delta(self.result),
        }
    }
}

#[derive(Clone)]
pub struct Gate {
    store: Store,
    policy: Arc<Policy>,
    extension: Arc<Extension>,
    waits: Waits,
    demand_isolation: bool,
    keep_days: u32,
    keep_audit_days: u32,
    waiting: Waiting,
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

/// Who says which agent asks. What is permitted to an agent is not permitted to whoever gives its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// The project's owner, or the server itself.
    ByOwner,
    /// A program that asks for itself.
    ByItself,
}

/// How many decisions of one request are under way together.
const AT_ONCE: usize = 32;

/// What a person says about a call.
#[derive(Debug, Clone)]
pub struct Decision {
    pub id: ApprovalId,
    /// How far an approval goes; none rejects.
    pub scope: Option<GrantScope>,
    pub reason: Option<String>,
}

/// Somebody who decides, and the program they do it with.
#[derive(Debug, Clone)]
pub struct Decider {
    pub user: UserId,
    pub via: Option<String>,
}

impl Gate {
    pub fn new(store: Store, settings: &GateSettings) -> Self {
        Self {
            store,
            policy: Arc::new(Policy::builtin().clone()),
            extension: Arc::default(),
            waits: settings.waits(),
            demand_isolation: settings.demand_isolation,
            keep_days: settings.keep_days,
            keep_audit_days: settings.keep_audit_days,
            waiting: Waiting::new(),
        }
    }

    /// The same with the server's own rules beside the built-in ones, if their examples are as they say.
    pub fn with_rules(mut self, extension: Extension) -> Result<Self, RuleError> {
        self.policy = Arc::new(Policy::builtin().extended(&extension)?);
        self.extension = Arc::new(extension);
        Ok(self)
    }

    /// The server's own rules, for machines that judge by them as far as their owners accept them.
    pub fn extension(&self) -> &Extension {
        &self.extension
    }

    pub fn demands_isolation(&self) -> bool {
        self.demand_isolation
    }

    /// Validates and rates a call, then refuses it, asks about it or sends it off.
    pub async fn execute(&self, owned: &Owned, ask: Ask, named: Named) -> Result<GatedCall> {
        self.begin(owned, CallId(Uuid::now_v7()), ask, named).await
    }

    /// The same, answered when the call is settled or, as it is then, after `time`.
    pub async fn execute_and_wait(
        &self,
        owned: &Owned,
        ask: Ask,
        named: Named,
        time: Duration,
    ) -> Result<GatedCall> {
        let id = CallId(Uuid::now_v7());
        let woken = self.waiting.on(owned.project, id);
        let call = self.begin(owned, id, ask, named).await?;
        if call.status.is_settled() {
            return Ok(call);
        }
        self.settled(owned, id, woken, time).await
    }

    async fn begin(&self, owned: &Owned, id: CallId, ask: Ask, named: Named) -> Result<GatedCall> {
        let (gate, project) = (self.clone(), owned.project);
        let begun = self.store.add_call(owned, move |situation| {
            let policy = gate.policy_of(situation.settings.get("policy"))?;
            Ok(decide::begin(&gate.rules(&policy), project, id, (ask, named), situation))
        });
        let call = begun.await?.map_err(|invalid: Invalid| invalid)?;
        counter!("atelier_tool_calls_total", "risk" => call.risk_level.as_str()).increment(1);
        Ok(call)
    }

    /// Calls of a task, to be judged and decided about where they are kept.
    pub fn of_task(&self, owned: &Owned, asks: Vec<Ask>) -> Vec<NewCall> {
        let new = |ask: Ask| {
            let (gate, project, id) = (self.clone(), owned.project, CallId(Uuid::now_v7()));
            let begin = move |situation: &Situation| {
                let policy = gate.policy_of(situation.settings.get("policy"))?;
                let (call, decided) =
                    decide::begin(&gate.rules(&policy), project, id, (ask, Named::ByOwner), situation);
                counter!("atelier_tool_calls_total", "risk" => call.risk_level.as_str()).increment(1);
                Ok((call, decided))
            };
            NewCall { id, begin: Box::new(begin) }
        };
        asks.into_iter().map(new).collect()
    }

    /// The server's rules, and where the project has its own, narrowed by those.
    pub fn policy_of(&self, wishes: Option<&Value>) -> Result<Cow<'_, Policy>, Invalid> {
        match wishes {
            None => Ok(Cow::Borrowed(&*self.policy)),
            Some(wishes) => {
                let narrowing = Narrowing::deserialize(wishes)
                    .map_err(|error| Invalid::new("settings.policy", error.to_string()))?;
                Ok(Cow::Owned(self.policy.narrowed(Wisher::Project, narrowing)))
            }
        }
    }

    /// Whether a project's own rules can be read, and concern something.
    pub fn check_wishes(&self, wishes: Option<&Value>) -> Result<(), Invalid> {
        let Some(wishes) = wishes else { return Ok(()) };
        let invalid = |error: String| Invalid::new("settings.policy", error);
        let narrowing = Narrowing::deserialize(wishes).map_err(|error| invalid(error.to_string()))?;
        self.policy.check_wishes(&narrowing).map_err(|error| invalid(error.to_string()))
    }

    /// Hands out a waiting call, by the rules that hold now.
    fn assign(&self, call: &mut GatedCall, situation: &Situation) -> Vec<Event> {
        match self.policy_of(situation.settings.get("policy")) {
            Ok(policy) => self.rules(&policy).assign(call, situation),
            // Nobody can tell whether it may run.
            Err(invalid) => {
                tracing::warn!(%invalid, call = %call.tool_id, "a call waits for rules that can be read");
                Vec::new()
            }
        }
    }

    fn rules<'p>(&self, policy: &'p Policy) -> Rules<'p> {
        Rules { policy, waits: self.waits, demand_isolation: self.demand_isolation }
    }

    /// The call when it is settled, or as it is after `time`.
    pub async fn wait(&self, owned: &Owned, id: CallId, time: Duration) -> Result<GatedCall> {
        let woken = self.waiting.on(owned.project, id);
        let call = self.store.call(owned.project, id).await?;
        if call.status.is_settled() {
            return Ok(call);
        }
        self.settled(owned, id, woken, time).await
    }

    async fn settled(
        &self,
        owned: &Owned,
        id: CallId,
        mut woken: Woken,
        time: Duration,
    ) -> Result<GatedCall> {
        let settled = async {
            loop {
                woken.wait().await;
                // Before the look: what happens after it wakes us again.
                woken = self.waiting.on(owned.project, id);
                let call = self.store.call(owned.project, id).await?;
                if call.status.is_settled() {
                    return Ok::<_, Error>(call);
                }
            }
        };
        match tokio::time::timeout(time, settled).await {
            Ok(call) => call,
            Err(_) => Ok(self.store.call(owned.project, id).await?),
        }
    }

    /// The call when its status is another than `known`, or as it is after `time`. For the few who tell somebody
    /// of every step; whoever only needs the end waits for less.
    pub async fn changed(
        &self,
        owned: &Owned,
        id: CallId,
        known: CallStatus,
        time: Duration,
    ) -> Result<GatedCall> {
        let changed = async {
            let (mut events, _) = self.store.subscribe(Scope::Project(owned.project), Cursor::Now).await?;
            loop {
                let call = self.store.call(owned.project, id).await?;
                if call.status != known {
                    return Ok::<_, Error>(call);
                }
                events.next().await?;
            }
        };
        match tokio::time::timeout(time, changed).await {
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

    async fn step_alone<F>(&self, owned: &Owned, id: CallId, step: F) -> Result<GatedCall>
    where
        F: FnOnce(&mut GatedCall, DateTime<Utc>) -> Result<Decided, Refusal> + Send + 'static,
    {
        self.store.step_alone(owned, id, step).await?.map_err(Error::Refused)
    }

    pub async fn approve(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        scope: GrantScope,
        include_high: bool,
    ) -> Result<GatedCall> {
        let (approved, grant) = self.approve_one(owned, by, id, scope, include_high).await?;
        self.cover_waiting(owned, grant.as_slice()).await;
        Ok(approved)
    }

    /// Many at once. What is rejected is rejected first: a permission that one of the others leaves must not reach it.
    pub async fn decide_many(
        &self,
        owned: &Owned,
        by: &Decider,
        decisions: Vec<Decision>,
    ) -> Vec<Result<GatedCall>> {
        // Several under way share their commits.
        let (approved, rejected): (Vec<_>, Vec<_>) =
            decisions.into_iter().enumerate().partition(|(_, decision)| decision.scope.is_some());
        let reject = |(at, decision): (usize, Decision)| async move {
            (at, self.reject(owned, by.clone(), decision.id, decision.reason).await)
        };
        let mut outcomes: Vec<(usize, Result<GatedCall>)> =
            stream::iter(rejected).map(reject).buffered(AT_ONCE).collect().await;
        let approve = |(at, decision): (usize, Decision)| async move {
            let scope = decision.scope.unwrap_or_default();
            (at, self.approve_one(owned, by.clone(), decision.id, scope, false).await)
        };
        let mut grants = Vec::new();
        let mut approvals = stream::iter(approved).map(approve).buffered(AT_ONCE);
        while let Some((at, outcome)) = approvals.next().await {
            outcomes.push((
                at,
                outcome.map(|(call, grant)| {
                    grants.extend(grant);
                    call
                }),
            ));
        }
        drop(approvals);
        self.cover_waiting(owned, &grants).await;
        outcomes.sort_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// The call, and the permission that the approval has left.
    async fn approve_one(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        scope: GrantScope,
        include_high: bool,
    ) -> Result<(GatedCall, Option<Grant>)> {
        let call = self.store.call_of_approval(owned.project, id).await?;
        let (gate, made) = (self.clone(), Arc::new(OnceLock::new()));
        let keep = made.clone();
        let approved = self.step(owned, call, move |call, situation| {
            let now = situation.now;
            let mut events = call.approve(by.user, scope, gate.waits, now)?;
            let policy = match gate.policy_of(situation.settings.get("policy")) {
                Ok(policy) => policy,
                Err(invalid) => {
                    let audit = decide::audit(call, "approved", Some(&by), None, now);
                    events.extend(call.deny(CallFailure::new("invalid_settings", invalid.to_string()), now));
                    return Ok(Decided { events, grant: None, audit: Some(audit) });
                }
            };
            let rules = gate.rules(&policy);
            // The rules may be stricter by now than when the person was asked.
            if let Some(otherwise) = rules.reconsidered(call, situation) {
                let audit = decide::audit(call, "approved", Some(&by), None, now);
                events.extend(otherwise);
                return Ok(Decided { events, grant: None, audit: Some(audit) });
            }
            let grant = decide::grant(call, situation, &by, scope, include_high);
            match (&grant, &mut call.approval) {
                (Some(grant), _) => drop(keep.set(grant.clone())),
                // There is no session, or no agent, that it could hold for.
                (None, Some(approval)) => approval.scope = Some(GrantScope::Once),
                (None, None) => {}
            }
            let audit = decide::audit(call, "approved", Some(&by), grant.as_ref().map(|grant| grant.id), now);
            events.extend(rules.send(call, situation));
            Ok(Decided { events, grant, audit: Some(audit) })
        });
        Ok((approved.await?, made.get().cloned()))
    }

    /// What waits for a decision and is covered by a new permission need not wait any longer.
    async fn cover_waiting(&self, owned: &Owned, grants: &[Grant]) {
        if grants.is_empty() {
            return;
        }
        if let Err(error) = self.try_cover_waiting(owned, grants).await {
            // They wait for a decision, as before.
            tracing::warn!(%error, "a permission does not reach what waits already");
        }
    }

    async fn try_cover_waiting(&self, owned: &Owned, grants: &[Grant]) -> Result<()> {
        let alike = |call: &GatedCall| {
            grants.iter().any(|grant| match grant.scope {
                GrantScope::Agent => grant.agent_id == call.agent_id,
                _ => grant.rule.as_ref() == Some(&call.rule),
            })
        };
        let waiting = self.store.pending_calls(owned.owner, Some(owned.project)).await?;
        for call in waiting.into_iter().filter(alike) {
            let gate = self.clone();
            let covered = self.step(owned, call.tool_id, move |call, situation| {
                let Some(grant) = decide::permitted(call, decide::named(call), situation) else {
                    return Err(Refusal::Already(call.status));
                };
                let mut events = call.granted(grant, gate.waits, situation.now)?;
                let audit = decide::audit(call, "granted", None, Some(grant), situation.now);
                events.extend(gate.assign(call, situation));
                Ok(Decided { events, audit: Some(audit), grant: None })
            });
            match covered.await {
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub async fn reject(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        reason: Option<String>,
    ) -> Result<GatedCall> {
        let call = self.store.call_of_approval(owned.project, id).await?;
        self.step_alone(owned, call, move |call, now| {
            let events = call.reject(by.user, reason, now)?;
            let audit = decide::audit(call, "rejected", Some(&by), None, now);
            Ok(Decided { events, audit: Some(audit), grant: None })
        })
        .await
    }

    pub async fn cancel(&self, owned: &Owned, by: Decider, id: CallId) -> Result<GatedCall> {
        self.step_alone(owned, id, move |call, now| {
            let events = call.cancel(now)?;
            let audit = decide::audit(call, "cancelled", Some(&by), None, now);
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
        rating: Option<CallRating>,
    ) -> Result<GatedCall> {
        let (waits, approval) = (self.waits, ApprovalId(Uuid::now_v7()));
        self.step_alone(owned, id, move |call, now| {
            Ok(call.previewed(client, preview, rating, approval, waits, now)?.into())
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
        self.step_alone(owned, id, move |call, now| Ok(call.preview_failed(client, failure, now)?.into()))
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
        self.step_alone(owned, id, move |call, now| Ok(call.claim(client, attempt, waits, now)?.into())).await
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
        if result["code"] == "approval_required" && decide::rating(&result).is_some() {
            return self.finish_riskier(owned, id, client, attempt, result).await;
        }
        let waits = self.waits;
        self.step_alone(owned, id, move |call, now| {
            Ok(match result["code"] == "stale" {
                true => call.stale(client, attempt, waits, now)?,
                false => call.finish(client, attempt, result, now)?,
            }
            .into())
        })
        .await
    }

    /// The client finds the call to be more than was approved: what a permission covers, it covers all the same.
    async fn finish_riskier(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        attempt: u32,
        result: Value,
    ) -> Result<GatedCall> {
        let (gate, approval) = (self.clone(), ApprovalId(Uuid::now_v7()));
        self.step(owned, id, move |call, situation| {
            let (waits, now) = (gate.waits, situation.now);
            let permitted = |call: &GatedCall| decide::permitted(call, decide::named(call), situation);
            let events = match (call.status, decide::rating(&result)) {
                (CallStatus::Dispatched, Some(rating)) => {
                    call.reconsider((client, attempt), rating, permitted, approval, waits, now)?
                }
                _ => None,
            };
            let Some(mut events) = events else {
                return Ok(call.finish(client, attempt, result, now)?.into());
            };
            let audit = call.grant_id.map(|grant| decide::audit(call, "granted", None, Some(grant), now));
            if call.status == CallStatus::Approved {
                events.extend(gate.assign(call, situation));
            }
            Ok(Decided { events, audit, grant: None })
        })
        .await
    }

    /// `resumed` where the same process comes back: what was permitted for its connection goes on.
    pub async fn connect(&self, owned: &Owned, client: Client, resumed: bool) -> Result<Client> {
        let gate = self.clone();
        Ok(self
            .store
            .keep_client(owned, client, resumed, move |call, situation| gate.assign(call, situation))
            .await?)
    }

    pub async fn renew(&self, owned: &Owned, client: ClientId) -> Result<DateTime<Utc>> {
        let gate = self.clone();
        Ok(self
            .store
            .renew_client(owned, client, move |call, situation| gate.assign(call, situation))
            .await?)
    }

    pub async fn disconnect(&self, owned: &Owned, client: ClientId) -> Result<()> {
        let gate = self.clone();
        Ok(self
            .store
            .remove_client(owned, client, move |call, situation| gate.assign(call, situation))
            .await?)
    }

    pub async fn withdraw(&self, owned: &Owned, by: Decider, id: GrantId) -> Result<Grant> {
        let audit = Audit {
            tool_id: None,
            approval_id: None,
            decision: "withdrawn".to_owned(),
            by: Some(by.user),
            via: by.via,
            digest: None,
            grant_id: Some(id),
            at: Utc::now(),
        };
        Ok(self.store.withdraw_grant(owned, id, audit).await?)
    }

    /// Removes what was kept long enough; says how many calls.
    pub async fn sweep(&self, now: DateTime<Utc>) -> Result<u64> {
        // Longer than there is time means for ever.
        let ago = |days: u32| {
            let days = TimeDelta::try_days(days.into());
            days.and_then(|days| now.checked_sub_signed(days)).unwrap_or(DateTime::UNIX_EPOCH)
        };
        Ok(self.store.sweep_calls(ago(self.keep_days), ago(self.keep_audit_days)).await?)
    }

    /// Lets time decide what nobody else did, and wakes those who wait for calls. Runs until dropped.
    pub async fn tend(&self) {
        tokio::join!(self.rounds(), self.waiting.serve(&self.store));
    }

    async fn rounds(&self) {
        let mut rounds = tokio::time::interval(Duration::from_millis(500));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let (due, silent) = tokio::join!(self.round(), self.give_up_silent());
            if let Err(error) = due {
                tracing::warn!(%error, "cannot look for calls whose time is up");
            }
            if let Err(error) = silent {
                tracing::warn!(%error, "cannot look for machines that have gone silent");
            }
        }
    }

    async fn give_up_silent(&self) -> Result<()> {
        for (owned, client) in self.store.silent_clients().await? {
            let gate = self.clone();
            let assign = move |call: &mut GatedCall, situation: &Situation| gate.assign(call, situation);
            match self.store.give_up_client(&owned, client, assign).await {
                Ok(()) => tracing::info!(project = %owned.project, %client, "a machine has gone silent"),
                // It came back, or left by itself.
                Err(StoreError::NotFound) => {}
                // No reason to leave out the others.
                Err(error) => tracing::warn!(%error, %client, "cannot give up a machine that is silent"),
            }
        }
        Ok(())
    }

    async fn round(&self) -> Result<()> {
        // All at once, so that they share commits: however many there are, none waits for the others.
        let due = self.store.due_calls(256).await?;
        let late = due
            .into_iter()
            .map(|(owned, id)| async move { (self.let_time_pass(&owned, id).await, owned, id) });
        for (late, owned, id) in futures::future::join_all(late).await {
            // Of a project that was deleted meanwhile.
            match late {
                Err(Error::Store(StoreError::NotFound)) => {}
                late => {
                    let status = late?.status;
                    if matches!(status, CallStatus::Expired | CallStatus::Unknown) {
                        tracing::info!(project = %owned.project, call = %id, status = status.as_str(), "time is up");
                    }
                }
            }
        }
        Ok(())
    }

    async fn let_time_pass(&self, owned: &Owned, id: CallId) -> Result<GatedCall> {
        self.step_alone(owned, id, |call, now| {
            let events = call.time_passes(now);
            let decided = call.status == CallStatus::Expired && !events.is_empty();
            let audit = decided.then(|| decide::audit(call, "expired", None, None, now));
            Ok(Decided { events, audit, grant: None })
        })
        .await
    }
}
