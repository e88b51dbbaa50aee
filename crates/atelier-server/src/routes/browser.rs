//! The sign-in of a browser: a session whose token is in a cookie.

use super::{DONE, codes::redeem};
use crate::{
    App,
    auth::{
        AuthError, BrowserToken, Person, ProviderCode, SESSION_KEY, check_same_origin,
        reached_by_tls,
    },
    body::Json,
    error::{Error, Result},
};
use atelier_api::account::BrowserSession;
use atelier_core::TokenId;
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::SET_COOKIE, request::Parts},
};
use serde::Deserialize;
use utoipa::ToSchema;

/// What proves who signs in: one of these.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BrowserSignIn {
    /// The code in a sign-in link.
    Code(String),
    /// A person's token. The session belongs to the token's session, and ends with it.
    Token(String),
    /// What the browser came back with from the identity provider.
    Provider(ProviderCallback),
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderCallback {
    /// The code that the provider sent.
    #[schema(min_length = 1, max_length = 4096)]
    code: String,
    /// The verifier that belongs to the `code_challenge` (RFC 7636).
    #[schema(min_length = 43, max_length = 128)]
    verifier: String,
    /// The address that the provider sent the browser back to.
    #[schema(min_length = 1, max_length = 2048)]
    redirect_uri: String,
}

type CookieReply = ([(HeaderName, HeaderValue); 1], Reply<BrowserSession>);

/// Sign this browser in
///
/// The answer sets the cookie of the session and has the key that belongs to it. Only pages of this
/// server may ask for it. A session that the browser had before ends.
#[utoipa::path(post, path = "/auth/session", tag = "account", operation_id = "sign_browser_in",
    request_body = BrowserSignIn, security(()), responses(
    (status = 200, description = "The browser is signed in", body = BrowserSession),
    (status = 401, description = "The code or token is not accepted, or the provider did not confirm \
                                  the sign-in"),
    (status = 403, description = "A page of another origin has asked for it"),
    (status = 404, description = "This server has no identity provider"),
))]
pub(super) async fn sign_in(
    State(app): State<App>,
    parts: Parts,
    Json(request): Json<BrowserSignIn>,
) -> Result<CookieReply> {
    check_same_origin(&parts.headers, &parts.uri, &app.settings)?;
    let proven = match request {
        BrowserSignIn::Code(code) => {
            let code = redeem(&app, &parts.extensions, &code).await?;
            let session = app.auth.browser_session(code);
            end_earlier(&app, &parts, None).await?;
            return reply(&app, &parts.headers, session);
        }
        BrowserSignIn::Token(token) => app.auth.verify(token.trim()).await,
        BrowserSignIn::Provider(callback) => app.auth.sign_in(callback.checked(&app)?).await,
    };
    let caller = proven?;
    if !caller.role.is_person() {
        return Err(Error::Forbidden("a browser signs in with a person's token"));
    }
    let session = app.auth.browser_session_of(&caller);
    end_earlier(&app, &parts, Some(caller.family)).await?;
    reply(&app, &parts.headers, session)
}

impl ProviderCallback {
    fn checked(&self, app: &App) -> Result<ProviderCode<'_>> {
        if app.auth.provider().is_none() {
            return Err(Error::NotFound);
        }
        let Self { code, verifier, redirect_uri } = self;
        if !(43..=128).contains(&verifier.len())
            || !(1..=4096).contains(&code.len())
            || redirect_uri.len() > 2048
        {
            return Err(Error::Invalid(
                "verifier: must have 43 to 128 characters; code: 1 to 4096".into(),
            ));
        }
        Ok(ProviderCode { code, verifier, redirect_uri })
    }
}

/// Ends the session that this browser had before, unless it is the one that goes on.
async fn end_earlier(app: &App, parts: &Parts, goes_on: Option<TokenId>) -> Result<()> {
    let Ok(earlier) = app.auth.verify_browser(parts, &app.settings) else {
        return Ok(());
    };
    if Some(earlier.family) != goes_on {
        app.auth.end_session(earlier.user, earlier.family, earlier.expires_at).await?;
    }
    Ok(())
}

/// Keep this browser signed in
///
/// Sets the cookie again, with a later end if the session may have one: up to 30 days after the
/// sign-in. A session of somebody who signed in at the identity provider keeps its end.
#[utoipa::path(put, path = "/auth/session", tag = "account", operation_id = "renew_browser",
    responses((status = 200, description = "The session", body = BrowserSession)))]
pub(super) async fn renew(
    State(app): State<App>,
    Person(caller): Person,
    headers: HeaderMap,
) -> Result<CookieReply> {
    let key = headers.get(SESSION_KEY).and_then(|key| key.to_str().ok());
    let (Some(claims), Some(key)) = (&caller.browser, key) else {
        return Err(Error::Forbidden(NO_BROWSER));
    };
    reply(&app, &headers, app.auth.renew_browser(&caller, claims, key))
}

/// Sign this browser out
///
/// Ends the session on every node, with its event streams, and takes the cookie away.
#[utoipa::path(delete, path = "/auth/session", tag = "account", operation_id = "sign_browser_out",
    responses((status = 204, description = "The browser is signed out")))]
pub(super) async fn sign_out(
    State(app): State<App>,
    Person(caller): Person,
    headers: HeaderMap,
) -> Result<(StatusCode, [(HeaderName, HeaderValue); 1])> {
    if caller.browser.is_none() {
        return Err(Error::Forbidden(NO_BROWSER));
    }
    app.auth.end_session(caller.user, caller.family, caller.expires_at).await?;
    let tls = reached_by_tls(&headers, &app.settings);
    Ok((DONE, [(SET_COOKIE, app.auth.set_cookie(None, tls))]))
}

const NO_BROWSER: &str = "this is for browsers; a token is renewed with POST /auth/refresh and \
                          ended with POST /auth/revoke";

fn reply(
    app: &App,
    headers: &HeaderMap,
    session: Result<BrowserToken, AuthError>,
) -> Result<CookieReply> {
    let session = session?;
    let cookie = app.auth.set_cookie(Some(&session), reached_by_tls(headers, &app.settings));
    let BrowserToken { key, expires_at, .. } = session;
    Ok(([(SET_COOKIE, cookie)], Reply(BrowserSession { key, expires_at })))
}
