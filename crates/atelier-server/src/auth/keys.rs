//! Keys of a real identity provider, from a JWKS file or address.

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
    /// What `iss` has to say.
    pub issuer: String,
    /// What `aud` has to say.
    pub audience: String,
    /// A file or an https address with the identity provider's keys (EdDSA, RS256, ES256).
    pub jwks: Option<String>,
    /// What `iss` has to say in the identity provider's tokens, if not the same.
    pub jwks_issuer: Option<String>,
    /// Where people sign in at the identity provider, from the console.
    pub sign_in: Option<ProviderSignIn>,
    /// Whether tokens made by `atelier token` are taken.
    pub local: bool,
    /// How long the tokens last that sign-in and refresh give.
    #[serde(with = "humantime_serde")]
    pub token_ttl: Duration,
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
        }
    }
}

/// A key and the one algorithm it is for: the token does not get to choose.
pub(super) struct PinnedKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

type KeySet = HashMap<String, Arc<PinnedKey>>;

/// The provider's keys by `kid`, fetched again when an unknown one turns up.
pub(super) struct ProviderKeys {
    source: String,
    keys: RwLock<KeySet>,
    /// When they were last fetched again. Held while fetching, so that many requests with an unknown
    /// key make one fetch.
    fetched: Mutex<Option<Instant>>,
}

/// A stranger who makes up key ids must not make us hammer the provider.
const FETCH_AT_MOST_EVERY: Duration = Duration::from_secs(30);
/// A key that the provider has withdrawn is not used for longer than this.
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

    /// Fetches the keys again, unless that was done less than `age` ago. The old ones stay if it fails.
    async fn refresh(&self, age: Duration) {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|last| last.elapsed() < age) {
            return;
        }
        *fetched = Some(Instant::now());
        match fetch(&self.source).await {
            Ok(keys) => *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys,
            Err(error) => tracing::warn!(%error, source = self.source, "cannot refresh the provider's keys"),
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
        let answer = client.map_err(|e| problem(e.to_string()))?.get(source).send().await;
        let answer =
            answer.and_then(reqwest::Response::error_for_status).map_err(|e| problem(e.to_string()))?;
        answer.text().await.map_err(|e| problem(e.to_string()))?
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

/// Symmetric keys, keys without an id, keys of other kinds and keys for other things are passed over.
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
    let meant_for = &jwk.common;
    if meant_for.key_algorithm.is_some_and(|said| said != name)
        || !matches!(meant_for.public_key_use, None | Some(PublicKeyUse::Signature))
    {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some((jwk.common.key_id.clone()?, Arc::new(PinnedKey { algorithm, key })))
}
