//! Tokens that this server makes itself: HS256 with a secret from its data directory.

use super::{
    browser::BrowserClaims,
    verify::{AuthError, latest},
};
use atelier_core::{ConversationId, ProjectId, Role, Tenant, TokenId, TokenPlace, UserId};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, TimeDelta, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use rand::RngCore;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{io, path::Path, time::Duration};
use uuid::Uuid;

const FILE: &str = "secret.key";

/// The secret that signs and checks this server's own tokens.
#[derive(Clone)]
pub struct LocalKey {
    pub(super) encoding: EncodingKey,
    pub(super) decoding: DecodingKey,
    /// Tells the cookies of servers with different secrets on one host apart. It does not reveal
    /// the secret.
    pub(super) cookie_id: String,
}

/// What a new token says about its bearer.
#[derive(Debug, Clone)]
pub struct NewToken {
    pub user: UserId,
    pub tenant: Tenant,
    pub role: Role,
    /// What a role token is for; `None` for people.
    pub place: Option<TokenPlace>,
    pub lifetime: Duration,
    /// The family and the time of its first token, if this token renews another one.
    pub renews: Option<(TokenId, DateTime<Utc>)>,
    /// What binds the token to one browser; `None` for programs.
    pub browser: Option<BrowserClaims>,
}

#[derive(Serialize)]
struct Claims<'c> {
    sub: UserId,
    tenant: &'c Tenant,
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<ProjectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationId>,
    iss: &'c str,
    aud: &'c str,
    iat: i64,
    exp: i64,
    jti: TokenId,
    family: TokenId,
    /// With fractions of a second, so that a session that begins right after its user signed out
    /// everywhere is told from those before.
    auth_time: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    browser: Option<&'c BrowserClaims>,
}

impl LocalKey {
    /// Reads the secret of a data directory, or creates it. Processes that start together agree on
    /// one secret.
    pub fn open(data: &Path) -> io::Result<Self> {
        let secret = atelier_runtime::open_secret(data, FILE, "all tokens end")?;
        let digest = Sha256::new_with_prefix(b"the name of the cookie").chain_update(&secret);
        Ok(Self {
            encoding: EncodingKey::from_secret(&secret),
            decoding: DecodingKey::from_secret(&secret),
            cookie_id: URL_SAFE_NO_PAD.encode(&digest.finalize()[..6]),
        })
    }

    /// Whether a data directory has a secret already.
    pub fn exists(data: &Path) -> bool {
        data.join(FILE).exists()
    }

    /// Makes a token. Also returns when the token expires.
    pub fn issue(
        &self,
        new: &NewToken,
        issuer: &str,
        audience: &str,
    ) -> Result<(String, DateTime<Utc>), AuthError> {
        let now = Utc::now();
        let lifetime = TimeDelta::from_std(new.lifetime).unwrap_or(TimeDelta::MAX);
        let expires_at = now.checked_add_signed(lifetime).unwrap_or_else(latest).min(latest());
        let jti = TokenId(Uuid::now_v7());
        let (family, since) = new.renews.unwrap_or((jti, now));
        let claims = Claims {
            sub: new.user,
            tenant: &new.tenant,
            role: new.role,
            project: new.place.map(|place| place.project),
            conversation: new.place.and_then(|place| place.conversation),
            iss: issuer,
            aud: audience,
            iat: now.timestamp(),
            exp: expires_at.timestamp(),
            jti,
            family,
            auth_time: since.timestamp_micros() as f64 / 1e6,
            browser: new.browser.as_ref(),
        };
        let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.encoding)?;
        Ok((token, expires_at))
    }
}

/// The id of a user by name: the same name in the same tenant is always the same person.
pub fn user_id(tenant: &Tenant, name: &str) -> UserId {
    const NAMESPACE: Uuid = Uuid::from_u128(0x8f4b_2a60_3c1d_4e5f_9a70_6b1c_2d3e_4f50);
    // A tenant name has no slash, so no two pairs give the same text.
    UserId(Uuid::new_v5(&NAMESPACE, format!("{tenant}/{name}").as_bytes()))
}

/// A code for one sign-in, and its hash, which is what the store keeps.
pub(crate) fn new_sign_in_code() -> (String, Vec<u8>) {
    let code = random_text();
    let hash = sign_in_hash(&code);
    (code, hash)
}

/// 128 random bits, which nobody guesses.
pub(super) fn random_text() -> String {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn sign_in_hash(code: &str) -> Vec<u8> {
    Sha256::digest(code.as_bytes()).to_vec()
}
