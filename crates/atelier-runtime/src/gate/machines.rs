//! What machines say: that they are there, what a call would change, what came of it.

use super::{Gate, decide};
use crate::Result;
use atelier_core::{
    ApprovalId, CallId, ClientId,
    gate::{CallFailure, CallPreview, CallRating, CallStatus, GatedCall},
};
use atelier_store::{Client, Decided, Disconnect, Owned};
use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

impl Gate {
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
            .connect_client(owned, client, resumed, move |call, situation| gate.assign(call, situation))
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
        self.client_left(owned, client, Disconnect::Requested).await
    }

    pub(super) async fn client_left(&self, owned: &Owned, client: ClientId, how: Disconnect) -> Result<()> {
        let gate = self.clone();
        Ok(self
            .store
            .remove_client(owned, client, how, move |call, situation| gate.assign(call, situation))
            .await?)
    }
}
