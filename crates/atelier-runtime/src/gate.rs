//! The gate: validates and rates tool calls, asks people, sends calls to machines and takes
//! outcomes.
//!
//! What happens to a call is decided in `atelier_core::gate`, and stored with its events in one
//! transaction. This module brings the inputs: from people, from machines and from the clock.

mod limits;
mod machines;
mod people;
mod upkeep;
mod waiting;

pub use limits::CallUsage;
pub use machines::Machine;
pub use people::Decision;

use crate::{Error, Result};
use atelier_core::{
    CallId, Invalid, Project, UserId, WorkspaceKind,
    gate::{CallStatus, GateInput, GateRules, GateTimeouts, GatedCall, NewCall},
    policy::{Extension, Policy, Restrictions, RuleError, verdict::Verdict},
    time_delta,
};
use atelier_store::{Cursor, Decided, Owned, RequestKey, Scope, Store};
use limits::CallLimits;
use metrics::counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::Duration};
use tokio::sync::Notify;
use waiting::{CallWaiter, CallWaiters};

/// The settings `gate.*`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateSettings {
    /// How long a person has to decide about a MEDIUM call.
    #[serde(with = "humantime_serde")]
    pub approval_medium: Duration,
    /// How long a person has to decide about a HIGH call.
    #[serde(with = "humantime_serde")]
    pub approval_high: Duration,
    /// How long a call waits for a machine.
    #[serde(with = "humantime_serde")]
    pub dispatch: Duration,
    /// How long an outcome may take beyond the call's own timeout before the call counts as
    /// unknown.
    #[serde(with = "humantime_serde")]
    pub result: Duration,
    /// Refuse commands on machines that cannot sandbox them.
    pub demand_isolation: bool,
    /// How many days calls are kept.
    pub keep_days: u32,
    /// How many days the audit is kept.
    pub keep_audit_days: u32,
    /// How many calls of a user may be open: waiting for a person or a machine, or running. Calls
    /// of the server's own agents count, but are not refused.
    pub max_open_calls: u32,
    /// How many calls may be open that one `agent` token asked for.
    pub max_open_calls_of_token: u32,
    /// How many bytes of a user's calls are stored, with their results.
    pub max_stored_bytes: u64,
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
            max_open_calls: 1000,
            max_open_calls_of_token: 200,
            max_stored_bytes: 10 * 1024 * 1024 * 1024,
        }
    }
}

impl GateSettings {
    fn timeouts(&self) -> GateTimeouts {
        GateTimeouts {
            medium: Some(time_delta(self.approval_medium)),
            high: Some(time_delta(self.approval_high)),
            dispatch: time_delta(self.dispatch),
            result: time_delta(self.result),
        }
    }
}

/// The gate of a server, for the calls of all projects. It is cheap to clone.
#[derive(Clone)]
pub struct Gate {
    store: Store,
    rules: Arc<GateRules>,
    extension: Arc<Extension>,
    /// How changes of a conversation's own files are rated.
    own_files: Verdict,
    /// Wakes who runs calls on conversations' own files.
    own_calls: Arc<Notify>,
    keep_days: u32,
    keep_audit_days: u32,
    limits: CallLimits,
    waiters: CallWaiters,
}

impl Gate {
    pub fn new(store: Store, settings: &GateSettings) -> Self {
        let rules = GateRules {
            policy: Arc::new(Policy::builtin().clone()),
            own_files: Arc::new(Policy::builtin().for_own_files(Verdict::Low)),
            timeouts: settings.timeouts(),
            demand_isolation: settings.demand_isolation,
        };
        Self {
            store,
            rules: Arc::new(rules),
            extension: Arc::default(),
            own_files: Verdict::Low,
            own_calls: Arc::default(),
            keep_days: settings.keep_days,
            keep_audit_days: settings.keep_audit_days,
            limits: CallLimits::new(settings),
            waiters: CallWaiters::new(),
        }
    }

    /// Adds the server's own rules to the built-in ones. Fails if one of their examples does not
    /// hold.
    pub fn with_rules(mut self, extension: Extension) -> Result<Self, RuleError> {
        let policy = Arc::new(Policy::builtin().extended(&extension)?);
        self.rules = Arc::new(GateRules { policy, ..(*self.rules).clone() });
        self.extension = Arc::new(extension);
        let changes = self.own_files;
        Ok(self.with_own_files(changes))
    }

    /// Rates changes of a conversation's own files like this.
    pub fn with_own_files(self, changes: Verdict) -> Self {
        let own_files = Arc::new(self.rules.policy.for_own_files(changes));
        let rules = Arc::new(GateRules { own_files, ..(*self.rules).clone() });
        Self { own_files: changes, rules, ..self }
    }

    /// The server's own rules. Machines apply them too, as far as their owners accept them.
    pub fn extension(&self) -> &Extension {
        &self.extension
    }

    /// The server's policy: the built-in rules and the server's own, without those of a project.
    pub fn policy(&self) -> &Policy {
        &self.rules.policy
    }

    /// What decisions about calls are made by.
    pub fn rules(&self) -> Arc<GateRules> {
        self.rules.clone()
    }

    pub fn demands_isolation(&self) -> bool {
        self.rules.demand_isolation
    }

    /// Validates and rates a call, then refuses it, asks about it or sends it.
    pub async fn execute(&self, owned: &Owned, new: NewCall) -> Result<GatedCall> {
        self.execute_once(owned, new, None).await
    }

    /// Does what `execute` does, once for each key. Later requests with the same key get the call of
    /// the first one, as it is by then.
    pub async fn execute_once(
        &self,
        owned: &Owned,
        new: NewCall,
        key: Option<RequestKey>,
    ) -> Result<GatedCall> {
        // A request that is sent again adds no call, so no limit holds for it.
        if let Some(key) = &key
            && let Some(earlier) = self.store.earlier_answer(owned.project, key).await?
        {
            return Ok(self.store.call(owned, earlier).await?);
        }
        self.limits.admit(&self.store, owned.owner, new.requested_by, &new.tool_params).await?;
        match self.store.add_call(owned, self.rules(), new, key).await?? {
            Ok(call) => {
                count_call(call.risk_level);
                self.wake_for_own_files(&call);
                Ok(call)
            }
            Err(earlier) => Ok(self.store.call(owned, earlier).await?),
        }
    }

    /// What a user's calls take, and what they may take.
    pub async fn usage(&self, user: UserId) -> Result<CallUsage> {
        self.limits.usage(&self.store, user).await
    }

    /// Does what `execute_once` does, and waits until the call is settled, at most for `time`.
    pub async fn execute_and_wait(
        &self,
        owned: &Owned,
        new: NewCall,
        key: Option<RequestKey>,
        time: Duration,
    ) -> Result<GatedCall> {
        let id = new.id;
        let waiter = self.waiters.subscribe(owned.project, id);
        let call = self.execute_once(owned, new, key).await?;
        if call.status.is_settled() {
            return Ok(call);
        }
        if call.tool_id != id {
            return self.wait(owned, call.tool_id, time).await;
        }
        self.wait_until_settled(owned, id, waiter, time).await
    }

    /// The server's policy, restricted by a project's own `policy` setting.
    pub fn policy_of(&self, setting: Option<&Value>) -> Result<Cow<'_, Policy>, Invalid> {
        let restrictions = Restrictions::from_setting(setting)?;
        Ok(self.rules.policy_with(WorkspaceKind::Client, restrictions.as_ref()))
    }

    /// The rules for the own files of a project's conversations. Every way to these files uses
    /// them: agents, MCP hosts, and programs with a role token.
    pub fn own_files_policy(&self, project: &Project) -> Result<Arc<Policy>, Invalid> {
        let restrictions = Restrictions::from_setting(project.settings.get("policy"))?;
        match self.rules.policy_with(WorkspaceKind::Conversation, restrictions.as_ref()) {
            // Most projects have no restrictions, and copying the rules takes time.
            Cow::Borrowed(_) => Ok(self.rules.own_files.clone()),
            Cow::Owned(policy) => Ok(Arc::new(policy)),
        }
    }

    /// Checks that a project's `policy` setting can be read, and names tools and commands that
    /// exist.
    pub fn check_restrictions(&self, setting: Option<&Value>) -> Result<(), Invalid> {
        let Some(restrictions) = Restrictions::from_setting(setting)? else { return Ok(()) };
        let checked = self.rules.policy.check_restrictions(&restrictions);
        checked.map_err(|error| Invalid::new("settings.policy", error.to_string()))
    }

    /// Waits until the call is settled, at most for `time`, and returns the call.
    pub async fn wait(&self, owned: &Owned, id: CallId, time: Duration) -> Result<GatedCall> {
        let waiter = self.waiters.subscribe(owned.project, id);
        let call = self.store.call(owned, id).await?;
        if call.status.is_settled() {
            return Ok(call);
        }
        self.wait_until_settled(owned, id, waiter, time).await
    }

    /// Waits until the call is settled, at most for `time`.
    async fn wait_until_settled(
        &self,
        owned: &Owned,
        id: CallId,
        mut waiter: CallWaiter,
        time: Duration,
    ) -> Result<GatedCall> {
        let settled = async {
            loop {
                waiter.wait().await;
                // Subscribe before the call is read, so that a later change wakes us again.
                waiter = self.waiters.subscribe(owned.project, id);
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

    /// Waits until the status of the call differs from `known`, at most for `time`, and returns the
    /// call. It reads the call at every event of the project, so it is only for callers that report
    /// progress.
    pub async fn changed(
        &self,
        owned: &Owned,
        id: CallId,
        known: CallStatus,
        time: Duration,
    ) -> Result<GatedCall> {
        let changed = async {
            let (mut events, _) =
                self.store.subscribe(Scope::Project(owned.project), Cursor::Now).await?;
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

    pub(crate) async fn decide(
        &self,
        owned: &Owned,
        id: CallId,
        input: GateInput,
    ) -> Result<Decided> {
        let decided = self.store.decide(owned, id, self.rules(), input).await?;
        let decided = decided.map_err(Error::Refused)?;
        self.wake_for_own_files(&decided.call);
        Ok(decided)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until there may be something to do for calls on conversations' own files.
    pub(crate) async fn own_call_may_be_due(&self) {
        self.own_calls.notified().await;
    }

    /// Wakes who runs calls on conversations' own files: a step has handed in calls.
    pub(crate) fn own_calls_handed_in(&self) {
        self.own_calls.notify_one();
    }

    /// Wakes who runs calls on conversations' own files, if there is something to do for the call.
    fn wake_for_own_files(&self, call: &GatedCall) {
        if call.workspace == WorkspaceKind::Conversation && !call.status.is_settled() {
            self.own_calls.notify_one();
        }
    }
}

/// Counts a new call by its rating.
pub(crate) fn count_call(verdict: Verdict) {
    counter!("atelier_tool_calls_total", "risk" => verdict.as_str()).increment(1);
}
