//! Inputs from people: decisions about calls, and the withdrawal of permissions.

use super::{Gate, count_call};
use crate::{Error, Result};
use atelier_core::{
    ApprovalId, CallId, GrantId,
    gate::{ApprovalWait, Audit, Decider, GateInput, GatedCall, Grant, GrantScope},
};
use atelier_store::{Decided, Owned};
use chrono::Utc;
use futures::{StreamExt, stream};
use uuid::Uuid;

/// How many decisions of one request are made concurrently, so that they share commits.
const AT_ONCE: usize = 32;

/// A person's decision about a call.
#[derive(Debug, Clone)]
pub struct Decision {
    pub id: ApprovalId,
    /// How far an approval reaches; `None` rejects the call.
    pub scope: Option<GrantScope>,
    pub reason: Option<String>,
}

impl Gate {
    pub async fn approve(
        &self,
        owned: &Owned,
        by: Decider,
        id: ApprovalId,
        scope: GrantScope,
        include_high: bool,
    ) -> Result<GatedCall> {
        let Decided { call, grant } = self.approve_one(owned, by, id, scope, include_high).await?;
        self.cover_waiting(owned, grant.as_slice()).await;
        Ok(call)
    }

    /// Makes many decisions. Rejections come first, so that a permission that one of the approvals
    /// makes cannot let a rejected call run.
    pub async fn decide_many(
        &self,
        owned: &Owned,
        by: &Decider,
        decisions: Vec<Decision>,
    ) -> Vec<Result<GatedCall>> {
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
                outcome.map(|Decided { call, grant }| {
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

    async fn approve_one(
        &self,
        owned: &Owned,
        by: Decider,
        approval: ApprovalId,
        scope: GrantScope,
        include_high: bool,
    ) -> Result<Decided> {
        let call = self.store.call_of_approval(owned, approval).await?;
        let input = GateInput::Approve { approval, by, scope, include_high };
        self.decide(owned, call, input).await
    }

    /// Lets the calls run that wait for a person and that a new permission covers.
    async fn cover_waiting(&self, owned: &Owned, grants: &[Grant]) {
        if grants.is_empty() {
            return;
        }
        if let Err(error) = self.try_cover_waiting(owned, grants).await {
            // The calls still wait for a person, as before.
            tracing::warn!(%error, "a new permission was not applied to calls that wait already");
        }
    }

    async fn try_cover_waiting(&self, owned: &Owned, grants: &[Grant]) -> Result<()> {
        let waiting = self.store.pending_calls(owned.owner, Some(owned.project)).await?;
        let concerned = |call: &GatedCall| grants.iter().any(|grant| grant.concerns(call));
        for call in waiting.into_iter().filter(concerned) {
            match self.decide(owned, call.tool_id, GateInput::Cover).await {
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
        approval: ApprovalId,
        reason: Option<String>,
    ) -> Result<GatedCall> {
        let call = self.store.call_of_approval(owned, approval).await?;
        let input = GateInput::Reject { approval, by, reason };
        Ok(self.decide(owned, call, input).await?.call)
    }

    /// Lets the question about a call wait longer.
    pub async fn keep_waiting(
        &self,
        owned: &Owned,
        by: Decider,
        approval: ApprovalId,
        wait: ApprovalWait,
    ) -> Result<GatedCall> {
        let call = self.store.call_of_approval(owned, approval).await?;
        let input = GateInput::KeepWaiting { approval, by, wait };
        Ok(self.decide(owned, call, input).await?.call)
    }

    /// Asks again about a call whose question has run out. Returns the new call; the task of the
    /// call goes on with it.
    pub async fn ask_again(
        &self,
        owned: &Owned,
        by: Decider,
        approval: ApprovalId,
    ) -> Result<GatedCall> {
        let expired = self.store.call_of_approval(owned, approval).await?;
        let known = self.store.call(owned, expired).await?;
        self.limits.admit(&self.store, owned.owner, None, &known.tool_params).await?;
        let new = CallId(Uuid::now_v7());
        let asked = self.store.ask_again(owned, expired, new, self.rules(), by).await?;
        let Decided { call, .. } = asked.map_err(Error::Refused)??;
        count_call(call.risk_level);
        self.wake_for_own_files(&call);
        Ok(call)
    }

    pub async fn cancel(&self, owned: &Owned, by: Decider, id: CallId) -> Result<GatedCall> {
        Ok(self.decide(owned, id, GateInput::Cancel { by }).await?.call)
    }

    pub async fn withdraw(&self, owned: &Owned, by: Decider, id: GrantId) -> Result<Grant> {
        let audit = Audit::withdrawn(id, by, Utc::now());
        Ok(self.store.withdraw_grant(owned, id, audit).await?)
    }
}
