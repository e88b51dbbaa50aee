//! Signing in, and the life of tokens.

use super::DONE;
use crate::{
    App,
    auth::{AuthError, Caller, Return, sign_in_hash},
    body::Json,
    error::{Error, Result},
};
use atelier_core::{Role, UserId};
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignInRequest {
    /// From the one-time link that the first start prints.
    #[schema(min_length = 1, max_length = 100)]
    code: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Token {
    token: String,
    expires_at: DateTime<Utc>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Revocation {
    /// The token to revoke: one of your own.
    #[schema(pattern = r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$")]
    token: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Me {
    #[schema(value_type = uuid::Uuid)]
    user_id: UserId,
    tenant: String,
    role: Role,
    expires_at: DateTime<Utc>,
}

/// Sign in with a one-time code
#[utoipa::path(post, path = "/auth/sign-in", tag = "account", request_body = SignInRequest, security(()), responses(
    (status = 200, body = Token),
    (status = 401, description = "The code is unknown, used or too old"),
))]
pub(super) async fn sign_in(
    State(app): State<App>,
    Json(request): Json<SignInRequest>,
) -> Result<Reply<Token>> {
    if !app.auth.is_local() {
        return Err(Error::Forbidden("sign in with your identity provider"));
    }
    let taken = app.store.redeem_sign_in_code(sign_in_hash(&request.code)).await;
    let who = taken.map_err(|error| match error {
        atelier_store::Error::NotFound => Error::Unauthorized("the code is unknown, used or too old".into()),
        other => other.into(),
    })?;
    reply(app.auth.issue(who.user, who.tenant, who.role))
}

/// How people sign in here.
#[derive(Serialize, ToSchema)]
pub(super) struct Ways {
    /// With one-time links and with tokens that `atelier token` makes.
    local: bool,
    /// At an identity provider.
    provider: Option<Provider>,
}

#[derive(Serialize, ToSchema)]
struct Provider {
    authorization_endpoint: String,
    client_id: String,
    scope: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderReturn {
    /// What the provider sent the browser back with.
    #[schema(min_length = 1, max_length = 4096)]
    code: String,
    /// What the `code_challenge` was made of (RFC 7636).
    #[schema(min_length = 43, max_length = 128)]
    verifier: String,
    /// Where the provider sent the browser back to.
    #[schema(min_length = 1, max_length = 2048)]
    redirect_uri: String,
}

/// How people sign in here
#[utoipa::path(get, path = "/auth/sign-in", tag = "account", security(()), responses((status = 200, body = Ways)))]
pub(super) async fn ways(State(app): State<App>) -> Reply<Ways> {
    let provider = app.auth.provider().cloned().map(|provider| Provider {
        authorization_endpoint: provider.authorization_endpoint,
        client_id: provider.client_id,
        scope: provider.scope,
    });
    Reply(Ways { local: app.auth.is_local(), provider })
}

/// Sign in with what the identity provider sent the browser back with
#[utoipa::path(post, path = "/auth/provider", tag = "account", request_body = ProviderReturn, security(()), responses(
    (status = 200, body = Token),
    (status = 401, description = "The provider did not confirm the sign-in"),
    (status = 404, description = "People do not sign in at a provider here"),
))]
pub(super) async fn provider_sign_in(
    State(app): State<App>,
    Json(came): Json<ProviderReturn>,
) -> Result<Reply<Token>> {
    if app.auth.provider().is_none() {
        return Err(Error::NotFound);
    }
    let ProviderReturn { code, verifier, redirect_uri } = &came;
    if !(43..=128).contains(&verifier.len())
        || code.is_empty()
        || code.len() > 4096
        || redirect_uri.len() > 2048
    {
        return Err(Error::Invalid("verifier: must have 43 to 128 characters; code: 1 to 4096".into()));
    }
    reply(app.auth.sign_in(Return { code, verifier, redirect_uri }).await)
}

/// Get a new token before the present one expires
#[utoipa::path(post, path = "/auth/refresh", tag = "account", responses(
    (status = 200, body = Token),
))]
pub(super) async fn refresh(State(app): State<App>, caller: Caller) -> Result<Reply<Token>> {
    if !caller.local {
        return Err(Error::Forbidden("this token is your identity provider's to renew"));
    }
    reply(app.auth.renew(&caller))
}

fn reply(issued: Result<(String, DateTime<Utc>), AuthError>) -> Result<Reply<Token>> {
    let (token, expires_at) = issued.map_err(|error| Error::Unauthorized(error.to_string().into()))?;
    Ok(Reply(Token { token, expires_at }))
}

/// Revoke one of your tokens, on every node and for open streams too
///
/// A token that was not renewed from another takes with it all that were renewed from it.
#[utoipa::path(post, path = "/auth/revoke", tag = "account", request_body = Revocation, responses(
    (status = 204, description = "Revoked"),
    (status = 404, description = "Not a token of yours"),
))]
pub(super) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Json(revocation): Json<Revocation>,
) -> Result<StatusCode> {
    let target = app.auth.verify(&revocation.token).await.map_err(|_| Error::NotFound)?;
    if target.user != caller.user {
        return Err(Error::NotFound);
    }
    app.auth.revoke(&target).await?;
    Ok(DONE)
}

/// Who you are, as your token says
#[utoipa::path(get, path = "/auth/me", tag = "account", responses((status = 200, body = Me)))]
pub(super) async fn me(caller: Caller) -> Reply<Me> {
    Reply(Me {
        user_id: caller.user,
        tenant: caller.tenant.into(),
        role: caller.role,
        expires_at: caller.expires_at,
    })
}
