//! Keys of an identity provider, from a JWKS file or address.

use super::{exchange::ProviderSignIn, verify::AuthError};
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthSettings {
    /// The `iss` that tokens must have.
    pub issuer: String,
    /// The `aud` that tokens must have.
    pub audience: String,
    /// A file or an https address with the identity provider's keys (EdDSA, RS256, ES256).
    pub jwks: Option<String>,
    /// The `iss` that the identity provider's tokens must have, if it differs from `issuer`.
    pub jwks_issuer: Option<String>,
    /// How people sign in at the identity provider from the console.
    pub sign_in: Option<ProviderSignIn>,
    /// Whether tokens made by `atelier token` are accepted.
    pub local: bool,
    /// The lifetime of tokens from sign-in and refresh. People who signed in at the identity
    /// provider sign in there again after this time.
    #[serde(with = "humantime_serde")]
    pub token_ttl: Duration,
    /// How long a browser stays signed in after its last use, up to 30 days after the sign-in. A
    /// browser that was signed in with a token stays signed in as long as the token lives.
    #[serde(with = "humantime_serde")]
    pub browser_ttl: Duration,
}

impl Default for AuthSettings {
    fn default() -> Self {
        Self {
            issuer: "atelier".into(),
            audience: "atelier".into(),
            jwks: None,
            jwks_issuer: None,
            sign_in: None,
            local: true,
            token_ttl: Duration::from_secs(12 * 60 * 60),
            browser_ttl: Duration::from_secs(14 * 24 * 60 * 60),
        }
    }
}

/// A key and the one algorithm that it is for. The token has no choice.
pub(super) struct PinnedKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

type KeySet = HashMap<String, Arc<PinnedKey>>;

/// The provider's keys by `kid`. They are fetched again when a token names an unknown one.
pub(super) struct ProviderKeys {
    source: String,
    keys: RwLock<KeySet>,
    /// When the keys were last fetched again. The lock is held while fetching, so that many
    /// requests with an unknown key cause one fetch.
    fetched: Mutex<Option<Instant>>,
}

/// Tokens with made-up key ids must not cause a request to the provider each.
const FETCH_AT_MOST_EVERY: Duration = Duration::from_secs(30);
/// A key that the provider has withdrawn is accepted no longer than this.
const FETCH_AT_LEAST_EVERY: Duration = Duration::from_secs(15 * 60);

impl ProviderKeys {
    pub(super) async fn load(source: &str) -> Result<Self, AuthError> {
        let keys = fetch(source).await?;
        Ok(Self { source: source.to_owned(), keys: RwLock::new(keys), fetched: Mutex::default() })
    }

    pub(super) async fn find(&self, kid: &str) -> Option<Arc<PinnedKey>> {
        match self.known(kid) {
            Some(key) => Some(key),
            None => {
                self.refresh(FETCH_AT_MOST_EVERY).await;
                self.known(kid)
            }
        }
    }

    fn known(&self, kid: &str) -> Option<Arc<PinnedKey>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(kid).cloned()
    }

    /// Fetches the keys again, unless they are younger than `age`. If it fails, the old keys stay.
    async fn refresh(&self, age: Duration) {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|last| last.elapsed() < age) {
            return;
        }
        *fetched = Some(Instant::now());
        match fetch(&self.source).await {
            Ok(keys) => *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys,
            Err(error) => {
                tracing::warn!(%error, source = self.source, "cannot refresh the provider's keys");
            }
        }
    }

    pub(super) async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(FETCH_AT_LEAST_EVERY).await;
            self.refresh(FETCH_AT_MOST_EVERY).await;
        }
    }
}

/// How many usable keys the configured provider has; for `doctor`.
pub async fn check_keys(settings: &AuthSettings) -> Result<usize, AuthError> {
    match &settings.jwks {
        Some(source) => Ok(fetch(source).await?.len()),
        None => Ok(0),
    }
}

async fn fetch(source: &str) -> Result<KeySet, AuthError> {
    let problem = |why: String| AuthError::Keys { source_name: source.to_owned(), why };
    let text = if source.starts_with("http://") || source.starts_with("https://") {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build();
        let response = client.map_err(|e| problem(e.to_string()))?.get(source).send().await;
        let response = response.and_then(reqwest::Response::error_for_status);
        let response = response.map_err(|e| problem(e.to_string()))?;
        response.text().await.map_err(|e| problem(e.to_string()))?
    } else {
        tokio::fs::read_to_string(source).await.map_err(|e| problem(e.to_string()))?
    };
    let set: JwkSet = serde_json::from_str(&text).map_err(|e| problem(e.to_string()))?;
    let keys: KeySet = set.keys.iter().filter_map(pin).collect();
    if keys.is_empty() {
        return Err(problem("it holds no EdDSA, RS256 or ES256 key with a kid".into()));
    }
    Ok(keys)
}

/// Ignores symmetric keys, keys without an id, and keys of other kinds or for other uses.
fn pin(jwk: &Jwk) -> Option<(String, Arc<PinnedKey>)> {
    let (algorithm, name) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(okp) if okp.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    let common = &jwk.common;
    if common.key_algorithm.is_some_and(|stated| stated != name)
        || !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature))
    {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some((common.key_id.clone()?, Arc::new(PinnedKey { algorithm, key })))
}
