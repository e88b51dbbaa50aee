//! Sessions of browsers: a cookie, and a key that only pages of this server have.
//!
//! A cookie is the token of the session. Scripts cannot read it, but it says little by itself:
//! browsers send cookies to every port of a host, and other ports and sibling hosts can set them.
//! Therefore the token names the hash of a key. The console keeps the key in its origin's storage
//! and sends it in a header with every request. A page of another origin has no such key, so it can
//! neither use a cookie that it has seen nor make this browser use somebody else's session.

use super::{
    caller::Caller,
    local::{NewToken, random_text},
    verify::{Auth, AuthError, MAX_TOKEN, caller, decode, left_of_session, token_for_code},
};
use crate::{Settings, error::Error};
use atelier_store::SignIn;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{COOKIE, HOST, ORIGIN},
    request::Parts,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// The header with the key of a browser's session.
pub(crate) const SESSION_KEY: HeaderName = HeaderName::from_static("atelier-session");

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// More cookies of one name than this are not tried: a browser sends one, and another for each path
/// and host that somebody has set it for.
const MAX_COOKIES: usize = 8;
const FOREIGN: &str = "only a page of this server may use the sign-in of a browser";

/// What binds a token to one browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrowserClaims {
    /// The hash of the session's key.
    page: String,
    /// Whether the user signed in at the identity provider.
    provider: bool,
}

impl BrowserClaims {
    fn read(page: Option<Value>, provider: Option<Value>) -> Option<Self> {
        let (Some(Value::String(page)), Some(Value::Bool(provider))) = (page, provider) else {
            return None;
        };
        Some(Self { page, provider })
    }

    /// Whether the user signed in at the identity provider.
    pub(super) fn is_providers(&self) -> bool {
        self.provider
    }
}

/// A new or renewed session of a browser.
pub(crate) struct BrowserToken {
    token: String,
    pub(crate) key: String,
    pub(crate) expires_at: DateTime<Utc>,
}

fn hash(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(key.as_bytes()))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

impl Auth {
    /// The tokens of browsers are for another audience, so that nobody can use one as the token of
    /// a program, or the other way round.
    fn browser_audience(&self) -> String {
        format!("{}/browser", self.settings.audience)
    }

    /// The names of the cookie with and without TLS. With the prefix `__Host-`, browsers accept it
    /// over TLS only, and for this host only.
    fn cookie_names(&self) -> [String; 2] {
        let id = &self.local.cookie_id;
        [format!("__Host-atelier-{id}"), format!("atelier-{id}")]
    }

    /// Checks the cookie and the key of a request, and that a page of this server sent it.
    pub(crate) fn verify_browser(
        &self,
        parts: &Parts,
        settings: &Settings,
    ) -> Result<Caller, Error> {
        let Some(key) = text(&parts.headers, SESSION_KEY) else {
            return Err(Error::Unauthorized("send a token: Authorization: Bearer …".into()));
        };
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        // Browsers send no origin with what a page reads from its own server.
        if !is_read || parts.headers.contains_key(FETCH_SITE) || parts.headers.contains_key(ORIGIN)
        {
            check_same_origin(&parts.headers, &parts.uri, settings)?;
        }
        let page = hash(key);
        let mut refused = AuthError::Refused("the browser did not send the cookie of its sign-in");
        // Another cookie of this name, which somebody else has set, does not hide the right one.
        for token in self.cookies(&parts.headers).take(MAX_COOKIES) {
            match self.read_browser(token, &page) {
                Ok(caller) => return Ok(self.check_not_revoked(caller)?),
                Err(error) => refused = error,
            }
        }
        Err(refused.into())
    }

    fn cookies<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = &'h str> {
        let names = self.cookie_names();
        let lines = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
        pairs
            .filter(move |(name, _)| names.iter().any(|ours| ours == name.trim()))
            .map(|(_, value)| value.trim())
    }

    fn read_browser(&self, token: &str, page: &str) -> Result<Caller, AuthError> {
        let header = jsonwebtoken::decode_header(token)?;
        if token.len() > MAX_TOKEN || header.crit.is_some() || header.kid.is_some() {
            return Err(AuthError::Refused("it is not one of a browser"));
        }
        let audience = self.browser_audience();
        let expected = [self.settings.issuer.as_str(), audience.as_str()];
        let mut claims = decode(token, &self.local.decoding, Algorithm::HS256, expected, true)?;
        let browser = BrowserClaims::read(claims.page.take(), claims.provider.take());
        let browser = browser.ok_or(AuthError::Refused("it is not one of a browser"))?;
        if browser.page != page {
            return Err(AuthError::Refused("its key is not the one of this page"));
        }
        let is_possible = match browser.provider {
            true => self.provider.is_some(),
            false => self.settings.local,
        };
        match is_possible {
            true => Ok(Caller { browser: Some(browser), ..caller(claims, true, token)? }),
            false => Err(AuthError::Refused("this server does not accept that way to sign in")),
        }
    }

    /// A session for a browser whose user had a one-time code.
    pub(crate) fn browser_session(&self, code: SignIn) -> Result<BrowserToken, AuthError> {
        let provider = code.made_in.is_some_and(|origin| origin.ends_at.is_some());
        let new = token_for_code(code, self.settings.browser_ttl)?;
        self.issue_to_browser(new, random_text(), provider)
    }

    /// A session for a browser whose user has proven who they are by a token: it belongs to the
    /// session of that token, so that it ends with it.
    pub(crate) fn browser_session_of(&self, caller: &Caller) -> Result<BrowserToken, AuthError> {
        let lifetime = match caller.local {
            true => caller.lifetime.min(left_of_session(caller)?),
            false => self.settings.token_ttl,
        };
        self.issue_to_browser(renewed(caller, lifetime), random_text(), !caller.local)
    }

    /// The session of a browser with a later end, for the same key. Who signed in at the identity
    /// provider signs in there again at the end of the session, so that it has the last word.
    pub(crate) fn renew_browser(
        &self,
        caller: &Caller,
        claims: &BrowserClaims,
        key: &str,
    ) -> Result<BrowserToken, AuthError> {
        let lifetime = match claims.provider {
            true => (caller.expires_at - Utc::now()).to_std().unwrap_or_default(),
            false => caller.lifetime.min(left_of_session(caller)?),
        };
        self.issue_to_browser(renewed(caller, lifetime), key.to_owned(), claims.provider)
    }

    fn issue_to_browser(
        &self,
        new: NewToken,
        key: String,
        provider: bool,
    ) -> Result<BrowserToken, AuthError> {
        let new = NewToken { browser: Some(BrowserClaims { page: hash(&key), provider }), ..new };
        let (issuer, audience) = (&self.settings.issuer, self.browser_audience());
        let (token, expires_at) = self.local.issue(&new, issuer, &audience)?;
        Ok(BrowserToken { token, key, expires_at })
    }

    /// The header that gives a browser its session, or takes it away.
    pub(crate) fn set_cookie(&self, session: Option<&BrowserToken>, tls: bool) -> HeaderValue {
        let [over_tls, plain] = self.cookie_names();
        let (name, secure) = if tls { (over_tls, "; Secure") } else { (plain, "") };
        let (token, seconds) = session.map_or(("", 0), |session| {
            (session.token.as_str(), (session.expires_at - Utc::now()).num_seconds())
        });
        let cookie =
            format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
        HeaderValue::from_str(&cookie)
            .unwrap_or_else(|error| unreachable!("a token is visible ASCII: {error}"))
    }
}

fn renewed(caller: &Caller, lifetime: Duration) -> NewToken {
    NewToken {
        user: caller.user,
        tenant: caller.tenant.clone(),
        role: caller.role,
        place: None,
        lifetime,
        renews: Some((caller.family, caller.since)),
        browser: None,
    }
}

/// Refuses a request that a page of another origin has caused.
pub(crate) fn check_same_origin(
    headers: &HeaderMap,
    uri: &Uri,
    settings: &Settings,
) -> Result<(), Error> {
    let is_ours = match text(headers, FETCH_SITE) {
        Some(site) => site == "same-origin",
        // Browsers send that header only over TLS and to their own machine.
        None => origin(headers).is_some_and(|origin| {
            let public = settings.public_url.as_deref().and_then(|url| Url::parse(url).ok());
            let host = text(headers, HOST).or(uri.authority().map(|authority| authority.as_str()));
            let scheme = origin.scheme();
            let reached = host.and_then(|host| Url::parse(&format!("{scheme}://{host}")).ok());
            public.into_iter().chain(reached).any(|ours| ours.origin() == origin.origin())
        }),
    };
    if is_ours { Ok(()) } else { Err(Error::Forbidden(FOREIGN)) }
}

/// Whether the browser that sent a request speaks TLS, maybe with a proxy.
pub(crate) fn reached_by_tls(headers: &HeaderMap, settings: &Settings) -> bool {
    settings.tls_cert.is_some() || origin(headers).is_some_and(|origin| origin.scheme() == "https")
}

/// The origin of the page that sent a request.
pub(crate) fn origin(headers: &HeaderMap) -> Option<Url> {
    Url::parse(text(headers, ORIGIN)?).ok()
}
