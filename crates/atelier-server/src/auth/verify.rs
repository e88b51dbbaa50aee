//! Checking a token, and the caller that it stands for.

use super::{
    caller::Caller,
    exchange::{ProviderCode, ProviderSignIn},
    guesses::Guesses,
    keys::{AuthSettings, ProviderKeys},
    local::{LocalKey, NewToken},
    recent::RecentSessions,
};
use atelier_core::{ConversationId, ProjectId, Role, Tenant, TokenId, TokenPlace, UserId};
use atelier_store::{Revocations, Session, SignIn, Store, Wakeup};
use chrono::{DateTime, TimeDelta, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::HashSet,
    str::FromStr,
    sync::{Mutex, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::{Mutex as AsyncMutex, watch};
use uuid::Uuid;

/// The longest token that is parsed, in bytes. Real tokens have a few hundred.
pub(super) const MAX_TOKEN: usize = 8 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("cannot use the keys at {source_name}: {why}")]
    Keys { source_name: String, why: String },
    #[error("cannot read the revoked tokens: {0}")]
    Store(#[from] atelier_store::Error),
    #[error("the token is not valid: {}", in_words(.0))]
    Token(#[from] jsonwebtoken::errors::Error),
    #[error("the token is not valid: {0}")]
    Refused(&'static str),
}

/// What is wrong with a token, and what to do about it.
fn in_words(error: &jsonwebtoken::errors::Error) -> String {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::ExpiredSignature => "it has expired; sign in again".to_owned(),
        ErrorKind::InvalidSignature => "it was made with another secret, such as one for another \
             data folder; make it with the `--data` that this server printed at its start"
            .to_owned(),
        ErrorKind::ImmatureSignature => "its time has not begun; check the clocks".to_owned(),
        _ => error.to_string(),
    }
}

/// Checks tokens and makes new ones.
pub struct Auth {
    pub(super) settings: AuthSettings,
    pub(super) local: LocalKey,
    pub(super) provider: Option<ProviderKeys>,
    store: Store,
    revoked: RwLock<Revocations>,
    /// Held while `revoked` is read from the database and replaced, so that an older list never
    /// overwrites a newer revocation.
    revoking: AsyncMutex<()>,
    /// Signals that `revoked` has changed, so that open streams check their token.
    revocations: watch::Sender<()>,
    /// Users that are known to be in the database.
    registered: Mutex<HashSet<(UserId, Tenant)>>,
    recent: RecentSessions,
    pub(crate) guesses: Guesses,
}

#[derive(Deserialize)]
pub(super) struct Claims {
    sub: UserId,
    /// A number, because RFC 7519 allows fractions of a second.
    exp: f64,
    iat: Option<f64>,
    tenant: Option<Tenant>,
    role: Option<Role>,
    /// Text, because an identity provider may mean something else by it in people's tokens.
    project: Option<Value>,
    conversation: Option<Value>,
    /// A string, because RFC 7519 allows any text.
    jti: Option<String>,
    family: Option<Value>,
    auth_time: Option<f64>,
    /// What binds the token of a browser. An identity provider may mean something else by it.
    pub(super) page: Option<Value>,
    pub(super) provider: Option<Value>,
}

impl Auth {
    pub async fn open(
        settings: AuthSettings,
        local: LocalKey,
        store: Store,
    ) -> Result<Self, AuthError> {
        let provider = match &settings.jwks {
            Some(source) => Some(ProviderKeys::load(source).await?),
            None => None,
        };
        // Read before the first request, so that a revoked token does not work for a moment after a
        // restart.
        let revoked = store.revocations().await?;
        Ok(Self {
            settings,
            local,
            provider,
            store,
            revoked: RwLock::new(revoked),
            revoking: AsyncMutex::default(),
            revocations: watch::Sender::new(()),
            registered: Mutex::default(),
            recent: RecentSessions::default(),
            guesses: Guesses::default(),
        })
    }

    /// The identity provider where people sign in, if one is configured.
    pub(crate) fn provider(&self) -> Option<&ProviderSignIn> {
        self.settings.sign_in.as_ref()
    }

    /// The user who has just signed in at the provider.
    pub(crate) async fn sign_in(&self, code: ProviderCode<'_>) -> Result<Caller, AuthError> {
        let provider =
            self.provider().ok_or(AuthError::Refused("there is no identity provider"))?;
        self.verify(&provider.exchange(code).await?).await
    }

    /// Checks everything about a token except whether its user may do what they ask for.
    pub(crate) async fn verify(&self, token: &str) -> Result<Caller, AuthError> {
        self.check_not_revoked(self.read(token, true).await?)
    }

    pub(super) fn check_not_revoked(&self, caller: Caller) -> Result<Caller, AuthError> {
        match self.is_revoked(&caller) {
            true => Err(AuthError::Refused("it was revoked")),
            false => Ok(caller),
        }
    }

    /// Whose token it is, even if the token has expired or was revoked: enough to end its session.
    pub(crate) async fn identify(&self, token: &str) -> Result<Caller, AuthError> {
        self.read(token, false).await
    }

    async fn read(&self, token: &str, must_be_current: bool) -> Result<Caller, AuthError> {
        if token.len() > MAX_TOKEN {
            return Err(AuthError::Refused("it is too long"));
        }
        let header = jsonwebtoken::decode_header(token)?;
        if header.crit.is_some() {
            return Err(AuthError::Refused("it has critical extensions"));
        }
        // The key decides the algorithm. A token with a key id is the provider's, one without is
        // ours.
        let (claims, local) = match (header.kid, &self.provider) {
            (None, _) if self.settings.local => {
                let issuer = &self.settings.issuer;
                let (key, algorithm) = (&self.local.decoding, Algorithm::HS256);
                let ours = [issuer.as_str(), self.settings.audience.as_str()];
                (decode(token, key, algorithm, ours, must_be_current)?, true)
            }
            (Some(kid), Some(provider)) => {
                let pinned =
                    provider.find(&kid).await.ok_or(AuthError::Refused("its key is unknown"))?;
                let issuer = self.settings.jwks_issuer.as_ref().unwrap_or(&self.settings.issuer);
                let theirs = [issuer.as_str(), self.settings.audience.as_str()];
                (decode(token, &pinned.key, pinned.algorithm, theirs, must_be_current)?, false)
            }
            _ => return Err(AuthError::Refused("its key is unknown")),
        };
        caller(claims, local, token)
    }

    pub(crate) fn is_revoked(&self, caller: &Caller) -> bool {
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
        revoked.tokens.contains(&caller.token)
            || revoked.tokens.contains(&caller.family)
            || revoked.signed_out.get(&caller.user).is_some_and(|time| caller.since <= *time)
    }

    /// Whether this server accepts its own tokens.
    pub fn is_local(&self) -> bool {
        self.settings.local
    }

    /// Changes whenever a token is revoked.
    pub(crate) fn revocations(&self) -> watch::Receiver<()> {
        self.revocations.subscribe()
    }

    /// Ends a session: the token that it began with, and every token that was renewed from it.
    pub(crate) async fn end_session(
        &self,
        user: UserId,
        session: TokenId,
        expires_at: DateTime<Utc>,
    ) -> atelier_store::Result<()> {
        let _revoking = self.revoking.lock().await;
        // For as long as any of its tokens could live.
        let until = expires_at.max(Utc::now() + MAX_SESSION).min(latest());
        self.store.end_session(user, session, until).await?;
        self.revoked.write().unwrap_or_else(PoisonError::into_inner).tokens.insert(session);
        self.revocations.send_replace(());
        Ok(())
    }

    /// Ends all sessions of a user, on every node.
    pub(crate) async fn sign_out_everywhere(&self, user: UserId) -> atelier_store::Result<()> {
        let _revoking = self.revoking.lock().await;
        let time = Utc::now();
        self.store.sign_out_everywhere(user, time).await?;
        // Read again, because the sessions that are known were also ended one by one.
        let fresh = self.store.revocations().await?;
        *self.revoked.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.revocations.send_replace(());
        Ok(())
    }

    /// A new token of this server, for a one-time code.
    pub(crate) fn issue(&self, code: SignIn) -> Result<(String, DateTime<Utc>), AuthError> {
        let new = token_for_code(code, self.settings.token_ttl)?;
        self.local.issue(&new, &self.settings.issuer, &self.settings.audience)
    }

    /// Another token like the caller's, with at most the same lifetime. A chain of renewals has an
    /// end.
    pub(crate) fn renew(&self, caller: &Caller) -> Result<(String, DateTime<Utc>), AuthError> {
        let left = left_of_session(caller)?;
        let new = NewToken {
            user: caller.user,
            tenant: caller.tenant.clone(),
            role: caller.role,
            place: caller.place,
            lifetime: caller.lifetime.min(left),
            renews: Some((caller.family, caller.since)),
            browser: None,
        };
        self.local.issue(&new, &self.settings.issuer, &self.settings.audience)
    }

    /// Adds the user to the database with their first request, and stores now and then that the
    /// session was used.
    pub(super) async fn record_use(
        &self,
        caller: &Caller,
        user_agent: Option<&str>,
    ) -> atelier_store::Result<()> {
        if self.recent.is_recorded(caller) {
            return Ok(());
        }
        let who = (caller.user, caller.tenant.clone());
        if !self.registered.lock().unwrap_or_else(PoisonError::into_inner).contains(&who) {
            self.store.ensure_user(caller.user, &caller.tenant).await?;
            self.registered.lock().unwrap_or_else(PoisonError::into_inner).insert(who);
        }
        let session = Session {
            id: caller.family,
            role: caller.role,
            place: caller.place,
            user_agent: user_agent.map(|agent| agent.chars().take(200).collect()),
            created_at: caller.since,
            last_used_at: Utc::now(),
            expires_at: caller.expires_at,
        };
        // Recorded first, so that only one request waits for it. A database that cannot write can
        // still answer requests that read.
        self.recent.record(caller);
        if let Err(error) = self.store.touch_session(caller.user, session).await {
            tracing::warn!(%error, "cannot store that a session was used");
        }
        Ok(())
    }

    /// Keeps the list of revoked tokens and the provider's keys up to date.
    pub async fn run_background(&self) {
        let keys = async {
            match &self.provider {
                Some(provider) => provider.keep_fresh().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = keys => {}
            () = self.follow_revocations() => {}
        }
    }

    async fn refresh_revocations(&self) -> atelier_store::Result<()> {
        let _revoking = self.revoking.lock().await;
        let fresh = self.store.revocations().await?;
        let mut known = self.revoked.write().unwrap_or_else(PoisonError::into_inner);
        if *known != fresh {
            *known = fresh;
            drop(known);
            self.revocations.send_replace(());
        }
        Ok(())
    }

    async fn follow_revocations(&self) {
        let mut wakeups = self.store.wakeups().subscribe();
        loop {
            if let Err(error) = self.refresh_revocations().await {
                tracing::warn!(%error, "cannot read the revoked tokens");
            }
            // A wakeup makes it fast. Looking again every few seconds makes it right without one.
            let woken = async {
                loop {
                    match wakeups.next().await {
                        Some(Wakeup::Tokens | Wakeup::Everything) => return true,
                        Some(_) => {}
                        None => return false,
                    }
                }
            };
            if let Ok(false) = tokio::time::timeout(Duration::from_secs(5), woken).await {
                return;
            }
        }
    }
}

/// How long after the first token it can be renewed.
const MAX_SESSION: TimeDelta = TimeDelta::days(30);

/// How long a session can still be renewed.
pub(super) fn left_of_session(caller: &Caller) -> Result<Duration, AuthError> {
    let left = (caller.since + MAX_SESSION - Utc::now()).to_std();
    left.map_err(|_| AuthError::Refused("it was renewed for 30 days; sign in again"))
}

/// The first token of the session that a one-time code begins. The session of a person can be
/// renewed no longer than the session that made the code, so that no chain of codes lasts for ever.
pub(super) fn token_for_code(code: SignIn, lifetime: Duration) -> Result<NewToken, AuthError> {
    let origin = code.made_in.filter(|_| code.project.is_none());
    let left = origin.map(|origin| {
        let end = origin.ends_at.unwrap_or(origin.began_at + MAX_SESSION);
        (end - Utc::now()).to_std()
    });
    let left = left.transpose();
    let left = left.map_err(|_| AuthError::Refused("the session that made the code has ended"))?;
    Ok(NewToken {
        user: code.user,
        tenant: code.tenant,
        role: code.role,
        place: code.project.map(|project| TokenPlace { project, conversation: None }),
        lifetime: left.map_or(lifetime, |left| left.min(lifetime)),
        renews: origin.map(|origin| (TokenId(Uuid::now_v7()), origin.began_at)),
        browser: None,
    })
}

/// Checks the signature, issuer, audience and times of a token.
pub(super) fn decode(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
    [issuer, audience]: [&str; 2],
    must_be_current: bool,
) -> Result<Claims, AuthError> {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = must_be_current;
    validation.leeway = 0;
    // RFC 7519: a token is not accepted in the second of `exp` either.
    validation.reject_tokens_expiring_in_less_than = 1;
    validation.validate_nbf = true;
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[audience]);
    Ok(jsonwebtoken::decode(token, key, &validation)?.claims)
}

/// The latest time that every database compares correctly.
pub(super) fn latest() -> DateTime<Utc> {
    DateTime::from_timestamp(253_402_300_799, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn time(seconds: f64) -> DateTime<Utc> {
    // Times that the calendar cannot hold become its end.
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64)
        .unwrap_or_else(latest)
        .min(latest())
}

pub(super) fn caller(claims: Claims, local: bool, token: &str) -> Result<Caller, AuthError> {
    // Our own tokens have every claim. Providers may leave claims out; then we assume the least.
    let missing = AuthError::Refused("it lacks tenant, role or jti");
    if local && (claims.tenant.is_none() || claims.role.is_none() || claims.jti.is_none()) {
        return Err(missing);
    }
    let name = claims.jti.as_deref().unwrap_or(token);
    let jti = Uuid::parse_str(name)
        .unwrap_or_else(|_| Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()));
    let (expires_at, issued_at) = (time(claims.exp), claims.iat.map_or_else(Utc::now, time));
    let role = claims.role.unwrap_or(Role::User);
    // Only this server renews its tokens. A provider may mean something else by `family`.
    let family = claims.family.filter(|_| local);
    let family = family.and_then(|family| family.as_str().and_then(|family| family.parse().ok()));
    Ok(Caller {
        user: claims.sub,
        tenant: claims.tenant.map_or_else(|| "default".parse(), Ok).map_err(|_| missing)?,
        role,
        place: if role.is_person() {
            None
        } else {
            Some(place(claims.project, claims.conversation)?)
        },
        token: TokenId(jti),
        family: family.unwrap_or(TokenId(jti)),
        // A provider's `auth_time` is when the person signed in there, maybe long before they came
        // here.
        since: claims.auth_time.filter(|_| local).map_or(issued_at, time),
        lifetime: (expires_at - issued_at).to_std().unwrap_or_default(),
        expires_at,
        local,
        browser: None,
    })
}

/// What a role token is for. A role token without a project would reach everything of its user.
fn place(project: Option<Value>, conversation: Option<Value>) -> Result<TokenPlace, AuthError> {
    fn id<T: FromStr>(claim: Option<Value>) -> Result<Option<T>, AuthError> {
        let invalid = || AuthError::Refused("its project or conversation is not an id");
        let text =
            claim.map(|claim| claim.as_str().map(str::to_owned).ok_or_else(invalid)).transpose()?;
        text.map(|text| text.parse().map_err(|_| invalid())).transpose()
    }
    let project: Option<ProjectId> = id(project)?;
    let project = project.ok_or(AuthError::Refused(
        "an agent or client token must name its project: make one with \
         `atelier token --user NAME --role ROLE --project PROJECT`",
    ))?;
    Ok(TokenPlace { project, conversation: id::<ConversationId>(conversation)? })
}
