//! The user's machines that are connected to a project.

use super::DONE;
use crate::{
    App,
    auth::Runner,
    body::{ClientInPath, Json},
    error::{Error, Result},
    guard::Member,
};
use atelier_core::ClientId;
use atelier_store::Client;
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewClient {
    /// The machine's own id for this folder, so that it is the same client when it comes back.
    client_id: Uuid,
    /// What the user calls the folder; absolute paths beneath it are good in tool calls.
    #[schema(min_length = 1, max_length = 4096, pattern = r"^[^\x00]+$")]
    root: String,
    #[schema(min_length = 1, max_length = 100, pattern = r"^[^\x00]+$")]
    os: String,
    /// What holds commands in on that machine.
    #[schema(value_type = Object)]
    isolation: Map<String, Value>,
    /// The same process comes back after its connection was lost. What was permitted for the connection ends otherwise.
    #[serde(default)]
    #[schema(default = false)]
    resumed: bool,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ClientView {
    client_id: Uuid,
    root: String,
    os: String,
    #[schema(value_type = Object)]
    isolation: Value,
    connected_at: DateTime<Utc>,
    lease_until: DateTime<Utc>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ClientList {
    /// The first runs the calls; the others stand by.
    clients: Vec<ClientView>,
    total: usize,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Lease {
    lease_until: DateTime<Utc>,
}

impl From<Client> for ClientView {
    fn from(client: Client) -> Self {
        let Client { id, root, os, isolation, connected_at, lease_until, .. } = client;
        Self { client_id: id.0, root, os, isolation, connected_at, lease_until }
    }
}

/// Connect a machine
#[utoipa::path(post, path = "/my/projects/{project}/clients", tag = "clients", params(("project" = Uuid, Path)),
    request_body = NewClient, responses((status = 200, body = ClientView)))]
pub(super) async fn connect(
    State(app): State<App>,
    _: Runner,
    space: Member,
    Json(new): Json<NewClient>,
) -> Result<Reply<ClientView>> {
    let fits = |text: &str, max| (1..=max).contains(&text.chars().count()) && !text.contains('\0');
    if !fits(&new.root, 4096) || !fits(&new.os, 100) {
        return Err(Error::Invalid("root and os: must not be empty, over-long or hold NUL".into()));
    }
    let client = Client {
        id: ClientId(new.client_id),
        project_id: space.owned().project,
        root: new.root,
        os: new.os,
        isolation: new.isolation.into(),
        connected_at: Utc::now(),
        lease_until: Utc::now(),
    };
    Ok(Reply(app.gate.connect(space.owned(), client, new.resumed).await?.into()))
}

/// List the connected machines
#[utoipa::path(get, path = "/my/projects/{project}/clients", tag = "clients", params(("project" = Uuid, Path)),
    responses((status = 200, body = ClientList)))]
pub(super) async fn list(State(app): State<App>, space: Member) -> Result<Reply<ClientList>> {
    let clients: Vec<ClientView> =
        app.store.clients(space.owned()).await?.into_iter().map(ClientView::from).collect();
    Ok(Reply(ClientList { total: clients.len(), clients }))
}

/// From a machine: it is still there
#[utoipa::path(post, path = "/my/projects/{project}/clients/{client}/renew", tag = "clients",
    params(("project" = Uuid, Path), ("client" = Uuid, Path)), responses((status = 200, body = Lease)))]
pub(super) async fn renew(
    State(app): State<App>,
    _: Runner,
    space: Member,
    ClientInPath(client): ClientInPath,
) -> Result<Reply<Lease>> {
    Ok(Reply(Lease { lease_until: app.gate.renew(space.owned(), client).await? }))
}

/// Disconnect a machine; the next one takes over
#[utoipa::path(delete, path = "/my/projects/{project}/clients/{client}", tag = "clients",
    params(("project" = Uuid, Path), ("client" = Uuid, Path)), responses((status = 204, description = "Disconnected")))]
pub(super) async fn disconnect(
    State(app): State<App>,
    _: Runner,
    space: Member,
    ClientInPath(client): ClientInPath,
) -> Result<StatusCode> {
    app.gate.disconnect(space.owned(), client).await?;
    Ok(DONE)
}
