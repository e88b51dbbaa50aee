//! One-time codes: links that sign another browser in, and commands that connect a machine.

use super::account::token_reply;
use crate::{
    App,
    access::OwnProject,
    auth::{self, Caller, Person, new_sign_in_code, sign_in_hash},
    body::Json,
    error::{Error, Result},
    path::ProjectInPath,
};
use atelier_api::account::{LinkAddress, MachineCode, MachineToken, SignInLink, SignInRequest};
use atelier_core::{ProjectId, Role};
use atelier_store::{Error as StoreError, SignIn};
use axum::{
    Json as Reply,
    extract::State,
    http::{Extensions, HeaderMap},
};
use chrono::{DateTime, TimeDelta, Utc};
use qrcode::{Color, EcLevel, QrCode};

/// How long a code can be used.
const LIFETIME: TimeDelta = TimeDelta::minutes(10);

/// The person whose code it is. The code is used up.
pub(super) async fn redeem(app: &App, sender: &Extensions, code: &str) -> Result<SignIn> {
    let found = app.store.redeem_sign_in_code(sign_in_hash(code));
    let code = unless_guessed(app, sender, found).await?;
    // A code that was made with the sign-in at the provider is as good as that sign-in.
    let is_providers = code.made_in.is_some_and(|origin| origin.ends_at.is_some());
    if !app.auth.is_local() && !is_providers {
        return Err(Error::Forbidden("sign in with your identity provider"));
    }
    Ok(code)
}

async fn unless_guessed(
    app: &App,
    sender: &Extensions,
    redeemed: impl Future<Output = Result<SignIn, StoreError>>,
) -> Result<SignIn> {
    if !app.auth.guesses.may_try(sender) {
        return Err(Error::TooManyRequests("too many wrong codes; try again in a minute"));
    }
    redeemed.await.map_err(|error| match error {
        StoreError::NotFound => {
            app.auth.guesses.record(sender);
            Error::Unauthorized("the code is unknown, used or expired".into())
        }
        other => other.into(),
    })
}

async fn new_code(
    app: &App,
    caller: &Caller,
    role: Role,
    project: Option<ProjectId>,
) -> Result<(String, DateTime<Utc>)> {
    let (code, hash) = new_sign_in_code();
    let made_in = Some(caller.origin());
    let (user, tenant) = (caller.user, caller.tenant.clone());
    let expires_at = Utc::now() + LIFETIME;
    let who = SignIn { user, tenant, role, project, made_in };
    app.store.create_sign_in_code(hash, who, expires_at).await?;
    Ok((code, expires_at))
}

/// Make a link that signs another browser of yours in
///
/// It works once, within ten minutes, and ends with the session that made it. A new link replaces
/// the one before.
#[utoipa::path(post, path = "/auth/links", tag = "account", operation_id = "make_sign_in_link",
    responses((status = 200, description = "The link", body = SignInLink)))]
pub(super) async fn sign_in_link(
    State(app): State<App>,
    Person(caller): Person,
    headers: HeaderMap,
) -> Result<Reply<SignInLink>> {
    let (code, expires_at) = new_code(&app, &caller, caller.role, None).await?;
    // The address that this browser uses is one that works, but only here if it is this machine's.
    let origin = caller.browser.as_ref().and_then(|_| auth::origin(&headers));
    let origin = origin.filter(|url| !is_loopback(url.host_str().unwrap_or_default()));
    let mut addresses: Vec<String> =
        origin.map(|url| url.origin().ascii_serialization()).into_iter().collect();
    for address in &app.addresses {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    let links = addresses.into_iter().map(|address| link(format!("{address}/#sign-in={code}")));
    Ok(Reply(SignInLink { expires_at, links: links.collect::<Result<_>>()? }))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host == "[::1]" || host.starts_with("127.")
}

fn link(url: String) -> Result<LinkAddress> {
    let code = QrCode::with_error_correction_level(&url, EcLevel::M);
    let code = code.map_err(|_| Error::Invalid("server.public_url: is too long".into()))?;
    let row = |row: &[Color]| row.iter().map(|color| color.select('1', '0')).collect();
    let qr = code.to_colors().chunks(code.width()).map(row).collect();
    Ok(LinkAddress { url, qr })
}

/// Make a code that connects a machine to a project
///
/// `atelier connect --code CODE` exchanges it for a `client` token. It works once, within ten
/// minutes, and ends with the session that made it. A new code replaces the one before.
#[utoipa::path(post, path = "/my/projects/{project}/machine-codes", tag = "clients",
    operation_id = "make_machine_code", params(ProjectInPath),
    responses((status = 200, description = "The code", body = MachineCode)))]
pub(super) async fn machine_code(
    State(app): State<App>,
    Person(caller): Person,
    OwnProject(owned): OwnProject,
) -> Result<Reply<MachineCode>> {
    if !app.auth.is_local() {
        return Err(Error::Forbidden("this server has no tokens of its own (auth.local)"));
    }
    let (code, expires_at) = new_code(&app, &caller, Role::Client, Some(owned.project)).await?;
    Ok(Reply(MachineCode { code, expires_at }))
}

/// Exchange the code of a machine for its token
#[utoipa::path(post, path = "/auth/machine", tag = "account", operation_id = "connect_machine",
    request_body = SignInRequest, security(()), responses(
    (status = 200, description = "A `client` token for one project", body = MachineToken),
    (status = 401, description = "The code is unknown, used or expired"),
))]
pub(super) async fn connect_machine(
    State(app): State<App>,
    sender: Extensions,
    Json(request): Json<SignInRequest>,
) -> Result<Reply<MachineToken>> {
    if !app.auth.is_local() {
        return Err(Error::Forbidden("this server has no tokens of its own (auth.local)"));
    }
    let found = app.store.redeem_machine_code(sign_in_hash(&request.code));
    let code = unless_guessed(&app, &sender, found).await?;
    let project = code.project.ok_or(Error::NotFound)?;
    let project = app.store.project(&app.store.owned_by(code.user, project).await?).await?;
    let Reply(token) = token_reply(app.auth.issue(code))?;
    Ok(Reply(MachineToken { token, project_id: project.id, project_name: project.name }))
}
