//! What people say: about calls that wait for them, and about what they have permitted.

use super::{Gate, decide};
use crate::{Error, Result};
use atelier_core::{
    ApprovalId, CallId, GrantId, UserId,
    gate::{CallFailure, GatedCall, Grant, GrantScope, Refusal},
};
use atelier_store::{Audit, Decided, Owned};
use chrono::Utc;
use futures::{StreamExt, stream};
use std::sync::{Arc, OnceLock};

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
        let call = self.store.call_of_approval(owned, id).await?;
        let (gate, made) = (self.clone(), Arc::new(OnceLock::new()));
        let keep = made.clone();
        let approved = self.step(owned, call, move |call, situation| {
            let now = situation.now;
            let mut events = call.approve(id, by.user, scope, gate.waits, now)?;
            // Before anything else may be asked.
            let mut audit = decide::audit(call, "approved", Some(&by), None, now);
            if let Some(approval) = &mut call.approval {
                approval.client_id = approval.client_id.or(situation.holder().map(|client| client.id));
            }
            let policy = match gate.policy_of(situation.settings.get("policy")) {
                Ok(policy) => policy,
                Err(invalid) => {
                    events.extend(call.deny(CallFailure::new("invalid_settings", invalid.to_string()), now));
                    return Ok(Decided { events, grant: None, audit: Some(audit) });
                }
            };
            let rules = gate.rules(&policy);
            // The rules may be stricter by now than when the person was asked.
            if let Some(otherwise) = rules.reconsidered(call, situation) {
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
            audit.grant_id = grant.as_ref().map(|grant| grant.id);
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
        let call = self.store.call_of_approval(owned, id).await?;
        self.step_alone(owned, call, move |call, now| {
            let events = call.reject(id, by.user, reason, now)?;
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
}
