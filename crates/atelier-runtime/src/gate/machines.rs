//! Inputs from machines: connections, previews, claims and outcomes.

use super::{Gate, limits::size};
use crate::Result;
use atelier_core::{
    CallId, Client, ClientId,
    gate::{CallFailure, CallPreview, CallRating, GateInput, GatedCall, ToolOutcome},
};
use atelier_store::{Disconnect, Owned};
use chrono::{DateTime, Utc};

impl Gate {
    pub async fn previewed(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        preview: CallPreview,
        rating: Option<CallRating>,
    ) -> Result<GatedCall> {
        let input = GateInput::Preview { client, preview, rating };
        Ok(self.decide(owned, id, input).await?.call)
    }

    /// The machine says that the call cannot be done, before a person was asked.
    pub async fn preview_failed(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        failure: CallFailure,
    ) -> Result<GatedCall> {
        let input = GateInput::PreviewFailed { client, failure };
        Ok(self.decide(owned, id, input).await?.call)
    }

    pub async fn claim(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        attempt: u32,
    ) -> Result<GatedCall> {
        let input = GateInput::Claim { client, attempt };
        Ok(self.decide(owned, id, input).await?.call)
    }

    /// Takes the outcome of a call from the machine that it was sent to.
    pub async fn finish(
        &self,
        owned: &Owned,
        id: CallId,
        client: ClientId,
        attempt: u32,
        outcome: ToolOutcome,
    ) -> Result<GatedCall> {
        let input = GateInput::Outcome { client, attempt, outcome };
        let call = self.decide(owned, id, input).await?.call;
        if let Some(result) = &call.result {
            self.limits.stored(owned.owner, size(result)).await;
        }
        Ok(call)
    }

    /// Connects a machine. With `resumed` the same process comes back, so the permissions of its
    /// connection continue.
    pub async fn connect(&self, owned: &Owned, client: Client, resumed: bool) -> Result<Client> {
        Ok(self.store.connect_client(owned, client, resumed, self.rules()).await?)
    }

    pub async fn renew(&self, owned: &Owned, client: ClientId) -> Result<DateTime<Utc>> {
        Ok(self.store.renew_client(owned, client, self.rules()).await?)
    }

    pub async fn disconnect(&self, owned: &Owned, client: ClientId) -> Result<()> {
        self.client_left(owned, client, Disconnect::Requested).await
    }

    pub(super) async fn client_left(
        &self,
        owned: &Owned,
        client: ClientId,
        how: Disconnect,
    ) -> Result<()> {
        Ok(self.store.remove_client(owned, client, how, self.rules()).await?)
    }
}
