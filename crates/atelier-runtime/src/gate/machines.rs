//! Inputs from machines: connections, previews, claims and outcomes.

use super::{Gate, limits::size};
use crate::Result;
use atelier_core::{
    CallId, Client, ClientId, TokenId,
    gate::{CallFailure, GateInput, GatedCall, Previewed, ToolOutcome},
};
use atelier_store::{Disconnect, Owned};
use chrono::{DateTime, Utc};

/// A machine that speaks for itself: its id, and the first of the tokens that it renewed. The id
/// alone proves nothing, because every token of the user can list it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub client: ClientId,
    pub token: TokenId,
}

impl Gate {
    /// The machine's id, if it was registered with the machine's token.
    async fn registered(&self, owned: &Owned, machine: Machine) -> Result<ClientId> {
        self.store.check_client(owned, machine.client, machine.token).await?;
        Ok(machine.client)
    }

    pub async fn previewed(
        &self,
        owned: &Owned,
        id: CallId,
        machine: Machine,
        shown: Previewed,
    ) -> Result<GatedCall> {
        let client = self.registered(owned, machine).await?;
        let input = GateInput::Preview { client, shown };
        Ok(self.decide(owned, id, input).await?.call)
    }

    /// The machine says that the call cannot be done, before a person was asked.
    pub async fn preview_failed(
        &self,
        owned: &Owned,
        id: CallId,
        machine: Machine,
        failure: CallFailure,
    ) -> Result<GatedCall> {
        let client = self.registered(owned, machine).await?;
        let input = GateInput::PreviewFailed { client, failure };
        Ok(self.decide(owned, id, input).await?.call)
    }

    pub async fn claim(
        &self,
        owned: &Owned,
        id: CallId,
        machine: Machine,
        attempt: u32,
    ) -> Result<GatedCall> {
        let client = self.registered(owned, machine).await?;
        let input = GateInput::Claim { client, attempt };
        Ok(self.decide(owned, id, input).await?.call)
    }

    /// Takes the outcome of a call from the machine that it was sent to.
    pub async fn finish(
        &self,
        owned: &Owned,
        id: CallId,
        machine: Machine,
        attempt: u32,
        outcome: ToolOutcome,
    ) -> Result<GatedCall> {
        let client = self.registered(owned, machine).await?;
        self.take_outcome(owned, id, (client, attempt), outcome).await
    }

    /// Takes the outcome of a call, from a machine or from the server itself.
    pub(crate) async fn take_outcome(
        &self,
        owned: &Owned,
        id: CallId,
        (client, attempt): (ClientId, u32),
        outcome: ToolOutcome,
    ) -> Result<GatedCall> {
        let input = GateInput::Outcome { client, attempt, outcome };
        let call = self.decide(owned, id, input).await?.call;
        if let Some(result) = &call.result {
            let bytes: i64 = result.fields.values().map(size).sum();
            self.limits.stored(owned.owner, bytes).await;
        }
        Ok(call)
    }

    /// Connects a machine with its token. With `resumed` the same process comes back, so the
    /// permissions of its connection continue.
    pub async fn connect(
        &self,
        owned: &Owned,
        client: Client,
        token: TokenId,
        resumed: bool,
    ) -> Result<Client> {
        Ok(self.store.connect_client(owned, client, token, resumed, self.rules()).await?)
    }

    pub async fn renew(&self, owned: &Owned, machine: Machine) -> Result<DateTime<Utc>> {
        let Machine { client, token } = machine;
        Ok(self.store.renew_client(owned, client, token, self.rules()).await?)
    }

    /// A machine disconnects itself.
    pub async fn leave(&self, owned: &Owned, machine: Machine) -> Result<()> {
        let client = self.registered(owned, machine).await?;
        self.disconnect(owned, client).await
    }

    /// A person disconnects a machine.
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
