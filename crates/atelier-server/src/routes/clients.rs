//! The machines that are connected to a project.

use super::DONE;
use crate::{
    App,
    access::OwnSpace,
    auth::ToolRunner,
    body::Json,
    error::{Error, Result},
    path::{ClientInPath, ProjectInPath},
};
use atelier_api::clients::{Client, ClientList, Lease, NewClient};
use atelier_core::Client as StoredClient;
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::Utc;

fn view(client: StoredClient) -> Client {
    let StoredClient { id, root, os, isolation, connected_at, lease_until, .. } = client;
    Client { client_id: id, root, os, isolation, connected_at, lease_until }
}

/// Connect a machine
///
/// The registration belongs to the token, and to the tokens renewed from it. To other tokens of the
/// same user, reports of this machine are those of an unknown one.
#[utoipa::path(post, path = "/my/projects/{project}/clients",
    tag = "clients", params(ProjectInPath),
    request_body = NewClient, responses(
        (status = 200, description = "The connected machine", body = Client),
        (status = 409, description = "A machine with this id is connected with another token"),
    ))]
pub(super) async fn connect(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    Json(new): Json<NewClient>,
) -> Result<Reply<Client>> {
    let fits = |text: &str, max| (1..=max).contains(&text.chars().count()) && !text.contains('\0');
    if !fits(&new.root, 4096) || !fits(&new.os, 100) {
        let problem = "root: must have 1 to 4096 characters, os: 1 to 100, both without NUL";
        return Err(Error::Invalid(problem.into()));
    }
    let client = StoredClient {
        id: new.client_id,
        project_id: space.owned().project,
        root: new.root,
        os: new.os,
        isolation: new.isolation,
        connected_at: Utc::now(),
        lease_until: Utc::now(),
    };
    let token = runner.0.family;
    Ok(Reply(view(app.gate.connect(space.owned(), client, token, new.resumed).await?)))
}

/// List the connected machines
#[utoipa::path(get, path = "/my/projects/{project}/clients", tag = "clients", params(ProjectInPath),
    responses((status = 200, description = "The connected machines", body = ClientList)))]
pub(super) async fn list(State(app): State<App>, space: OwnSpace) -> Result<Reply<ClientList>> {
    let clients = app.store.clients(space.owned()).await?;
    let clients: Vec<Client> = clients.into_iter().map(view).collect();
    Ok(Reply(ClientList { total: clients.len(), clients }))
}

/// From a machine: renew its lease
#[utoipa::path(post, path = "/my/projects/{project}/clients/{client}/renew", tag = "clients",
    params(ProjectInPath, ClientInPath),
    responses((status = 200, description = "The renewed lease", body = Lease)))]
pub(super) async fn renew(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    ClientInPath(client): ClientInPath,
) -> Result<Reply<Lease>> {
    Ok(Reply(Lease {
        lease_until: app.gate.renew(space.owned(), runner.as_machine(client)).await?,
    }))
}

/// Disconnect a machine
///
/// If another machine is connected, it runs the project's calls from now on. A client's token can
/// only disconnect its own machine.
#[utoipa::path(delete, path = "/my/projects/{project}/clients/{client}", tag = "clients",
    params(ProjectInPath, ClientInPath), responses((status = 204, description = "Disconnected")))]
pub(super) async fn disconnect(
    State(app): State<App>,
    runner: ToolRunner,
    space: OwnSpace,
    ClientInPath(client): ClientInPath,
) -> Result<StatusCode> {
    match runner.0.role.is_person() {
        true => app.gate.disconnect(space.owned(), client).await?,
        false => app.gate.leave(space.owned(), runner.as_machine(client)).await?,
    }
    Ok(DONE)
}
