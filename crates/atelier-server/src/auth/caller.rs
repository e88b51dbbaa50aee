//! The caller of a request, and what each kind of caller may do.

use super::browser::{BrowserClaims, SESSION_KEY};
use crate::{App, error::Error};
use atelier_core::{
    ClientId, ConversationId, ProjectId, Role, Tenant, TokenId, TokenPlace, UserId,
};
use atelier_runtime::Machine;
use atelier_store::CodeOrigin;
use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap,
        header::{AUTHORIZATION, USER_AGENT},
        request::Parts,
    },
};
use chrono::{DateTime, Utc};
use std::{sync::Arc, time::Duration};

/// The user who sent a request, proven by their token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) user: UserId,
    pub(crate) tenant: Tenant,
    pub(crate) role: Role,
    /// What a role token is for; `None` for people, who reach everything of theirs.
    pub(crate) place: Option<TokenPlace>,
    pub(crate) token: TokenId,
    pub(crate) expires_at: DateTime<Utc>,
    /// The first token of a chain of renewals: this token itself if it was not renewed from
    /// another.
    pub(crate) family: TokenId,
    /// When the first token of the chain was made.
    pub(crate) since: DateTime<Utc>,
    pub(crate) lifetime: Duration,
    /// Whether this server made the token, so that it can renew it.
    pub(crate) local: bool,
    /// What binds the token to one browser; `None` if a program sent it.
    pub(crate) browser: Option<BrowserClaims>,
}

impl Caller {
    /// Refuses what the token is not for, in the same words as what does not exist.
    pub(crate) fn check_place(
        &self,
        project: ProjectId,
        conversation: Option<ConversationId>,
    ) -> Result<(), Error> {
        match self.place.is_none_or(|place| place.contains(project, conversation)) {
            true => Ok(()),
            false => Err(Error::NotFound),
        }
    }

    /// The session of the caller, as the origin of a one-time code.
    pub(crate) fn origin(&self) -> CodeOrigin {
        let is_providers = self.browser.as_ref().map_or(!self.local, BrowserClaims::is_providers);
        CodeOrigin {
            session: self.family,
            began_at: self.since,
            ends_at: is_providers.then_some(self.expires_at),
        }
    }

    /// The session of the caller, if it is a program with an `agent` token.
    pub(crate) fn program(&self) -> Option<TokenId> {
        (self.role == Role::Agent).then_some(self.family)
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        // Another extractor of this request has already checked the token.
        if let Some(caller) = parts.extensions.get::<Arc<Caller>>() {
            return Ok(Caller::clone(caller));
        }
        let caller = match bearer(&parts.headers) {
            Some(token) => app.auth.verify(token).await?,
            None => app.auth.verify_browser(parts, &app.settings)?,
        };
        let user_agent = parts.headers.get(USER_AGENT).and_then(|value| value.to_str().ok());
        app.auth.record_use(&caller, user_agent).await?;
        parts.extensions.insert(Arc::new(caller.clone()));
        Ok(caller)
    }
}

/// The token that a program sends.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    // RFC 9110: the scheme is case-insensitive.
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a request says who sent it, in either way.
pub(crate) fn has_credentials(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || headers.contains_key(SESSION_KEY)
}

/// A caller who may create, change, delete and decide.
pub(crate) struct Person(pub(crate) Caller);

/// A caller who may request tool calls.
pub(crate) struct ToolRequester(pub(crate) Caller);

/// A caller who may run tool calls.
pub(crate) struct ToolRunner(pub(crate) Caller);

impl ToolRunner {
    /// The caller as the machine with this id. Renewed tokens stand for the same machine.
    pub(crate) fn as_machine(&self, client: ClientId) -> Machine {
        Machine { client, token: self.0.family }
    }
}

impl FromRequestParts<App> for Person {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        const NO: &str = "only a person's token may do this, not a client's or an agent's";
        caller_who(parts, app, Role::is_person, NO).await.map(Self)
    }
}

impl FromRequestParts<App> for ToolRequester {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        const NO: &str = "a client's token runs tool calls; it cannot request them";
        caller_who(parts, app, Role::may_ask, NO).await.map(Self)
    }
}

impl FromRequestParts<App> for ToolRunner {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        const NO: &str = "an agent's token requests tool calls; it cannot run them";
        caller_who(parts, app, Role::may_run, NO).await.map(Self)
    }
}

async fn caller_who(
    parts: &mut Parts,
    app: &App,
    may: fn(Role) -> bool,
    refusal: &'static str,
) -> Result<Caller, Error> {
    let caller = Caller::from_request_parts(parts, app).await?;
    if may(caller.role) { Ok(caller) } else { Err(Error::Forbidden(refusal)) }
}
