//! The gate: validate, rate, ask, signal, take the result.
//!
//! What a call may do is decided here and nowhere else; the steps are pure (`atelier_core::gate`), and the
//! store takes each in one transaction with its events.

mod decide;
mod machines;
mod people;
mod upkeep;
mod waiting;

pub use people::{Decider, Decision};

use crate::{Error, Result};
use atelier_core::{
    AgentId, CallId, ConversationId, Event, Invalid, TaskId,
    gate::{CallStatus, GatedCall, Refusal, Waits},
    policy::{Extension, Narrowing, Policy, RuleError, Wisher},
    time_delta,
};
use atelier_store::{Cursor, Decided, NewCall, Owned, Scope, Situation, Store};
use chrono::{DateTime, Utc};
use decide::Rules;
use metrics::counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::Duration};
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
    pub session_id: Option<ConversationId>,
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
        Ok(self.store.add_call(owned, self.new_call(owned, id, ask, named).begin).await??)
    }

    /// Calls of a task, to be judged and decided about where they are kept.
    pub fn of_task(&self, owned: &Owned, asks: Vec<Ask>) -> Vec<NewCall> {
        let new = |ask| self.new_call(owned, CallId(Uuid::now_v7()), ask, Named::ByOwner);
        asks.into_iter().map(new).collect()
    }

    fn new_call(&self, owned: &Owned, id: CallId, ask: Ask, named: Named) -> NewCall {
        let (gate, project) = (self.clone(), owned.project);
        let begin = move |situation: &Situation| {
            let policy = gate.policy_of(situation.settings.get("policy"))?;
            let begun = decide::begin(&gate.rules(&policy), project, id, (ask, named), situation);
            counter!("atelier_tool_calls_total", "risk" => begun.0.risk_level.as_str()).increment(1);
            Ok(begun)
        };
        NewCall { id, begin: Box::new(begin) }
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
        let call = self.store.call(owned, id).await?;
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
                let call = self.store.call(owned, id).await?;
                if call.status.is_settled() {
                    return Ok::<_, Error>(call);
                }
            }
        };
        match tokio::time::timeout(time, settled).await {
            Ok(call) => call,
            Err(_) => Ok(self.store.call(owned, id).await?),
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
                let call = self.store.call(owned, id).await?;
                if call.status != known {
                    return Ok::<_, Error>(call);
                }
                events.next().await?;
            }
        };
        match tokio::time::timeout(time, changed).await {
            Ok(call) => call,
            Err(_) => Ok(self.store.call(owned, id).await?),
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
}
