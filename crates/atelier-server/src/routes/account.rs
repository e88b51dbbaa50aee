//! Signing in, and the life of tokens.

use super::{DONE, codes::redeem};
use crate::{
    App,
    auth::{AuthError, Caller},
    body::Json,
    error::{Error, Result},
};
use atelier_api::account::{Limit, Me, SignInRequest, Token, UserLimits};
use axum::{
    Json as Reply,
    extract::State,
    http::{Extensions, StatusCode},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sign in with a one-time code
#[utoipa::path(post, path = "/auth/sign-in",
    tag = "account", request_body = SignInRequest, security(()),
    responses(
    (status = 200, description = "A token", body = Token),
    (status = 401, description = "The code is unknown, used or expired"),
))]
pub(super) async fn sign_in(
    State(app): State<App>,
    extensions: Extensions,
    Json(request): Json<SignInRequest>,
) -> Result<Reply<Token>> {
    let code = redeem(&app, &extensions, &request.code).await?;
    if code.made_in.is_some_and(|origin| origin.ends_at.is_some()) {
        return Err(Error::Forbidden("sign in with your identity provider"));
    }
    token_reply(app.auth.issue(code))
}

/// The ways to sign in to this server.
#[derive(Serialize, ToSchema)]
pub(super) struct SignInOptions {
    /// One-time links, and tokens that `atelier token` makes.
    local: bool,
    /// The identity provider where people sign in; null if there is none.
    provider: Option<IdentityProvider>,
}

#[derive(Serialize, ToSchema)]
struct IdentityProvider {
    authorization_endpoint: String,
    client_id: String,
    scope: String,
}

/// Show how to sign in to this server
#[utoipa::path(get, path = "/auth/sign-in",
    tag = "account", operation_id = "sign_in_options", security(()),
    responses((status = 200, description = "The ways to sign in", body = SignInOptions)))]
pub(super) async fn sign_in_options(State(app): State<App>) -> Reply<SignInOptions> {
    let provider = app.auth.provider().cloned().map(|provider| IdentityProvider {
        authorization_endpoint: provider.authorization_endpoint,
        client_id: provider.client_id,
        scope: provider.scope,
    });
    Reply(SignInOptions { local: app.auth.is_local(), provider })
}

/// Get a new token before the current one expires
#[utoipa::path(post, path = "/auth/refresh", tag = "account", responses(
    (status = 200, description = "A new token", body = Token),
))]
pub(super) async fn refresh(State(app): State<App>, caller: Caller) -> Result<Reply<Token>> {
    if !caller.local {
        return Err(Error::Forbidden("only your identity provider can renew this token"));
    }
    // A script in the page must not get a token that it could send elsewhere.
    if caller.browser.is_some() {
        return Err(Error::Forbidden("a browser renews its session with PUT /auth/session"));
    }
    token_reply(app.auth.renew(&caller))
}

pub(super) fn token_reply(
    issued: Result<(String, DateTime<Utc>), AuthError>,
) -> Result<Reply<Token>> {
    let (token, expires_at) = issued?;
    Ok(Reply(Token { token, expires_at }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokeRequest {
    /// The token to revoke. It must be your own.
    #[schema(pattern = r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$")]
    token: String,
}

/// End the session of one of your tokens
///
/// The token, the one that it was renewed from and all others of the same sign-in stop working on
/// every node, and their open event streams end. The token may have expired already.
#[utoipa::path(post, path = "/auth/revoke",
    tag = "account", request_body = RevokeRequest, responses(
    (status = 204, description = "Revoked"),
    (status = 404, description = "It is not one of your tokens"),
))]
pub(super) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<RevokeRequest>,
) -> Result<StatusCode> {
    let target = app.auth.identify(&request.token).await.map_err(|_| Error::NotFound)?;
    if target.user != caller.user {
        return Err(Error::NotFound);
    }
    app.auth.end_session(target.user, target.family, target.expires_at).await?;
    Ok(DONE)
}

/// Show who your token speaks for
#[utoipa::path(get, path = "/auth/me", tag = "account",
    responses((status = 200, description = "The user, tenant and role of your token", body = Me)))]
pub(super) async fn me(caller: Caller) -> Reply<Me> {
    Reply(Me {
        user_id: caller.user,
        tenant: caller.tenant.into(),
        role: caller.role,
        project_id: caller.place.map(|place| place.project),
        conversation_id: caller.place.and_then(|place| place.conversation),
        expires_at: caller.expires_at,
    })
}

/// Show your limits, and how much of them you use
///
/// The limits of requests and streams hold for each node.
#[utoipa::path(get, path = "/auth/limits", tag = "account",
    responses((status = 200, description = "Your limits", body = UserLimits)))]
pub(super) async fn limits(State(app): State<App>, caller: Caller) -> Result<Reply<UserLimits>> {
    let calls = app.gate.usage(caller.user).await?;
    let (requests, streams) = app.loads.of(caller.user);
    let limit = |used: usize, limit: usize| Limit { limit: limit as u64, used: used as u64 };
    let stored = |used: i64, limit: u64| Limit { limit, used: used.try_into().unwrap_or(0) };
    Ok(Reply(UserLimits {
        requests_per_second: app.settings.user_requests_per_second,
        requests: limit(requests, app.settings.user_requests),
        streams: limit(streams, app.loads.max_streams()),
        open_calls: stored(calls.open_calls, calls.max_open_calls.into()),
        open_calls_of_agent_token: calls.max_open_calls_of_token,
        stored_call_bytes: stored(calls.stored_bytes, calls.max_stored_bytes),
    }))
}
