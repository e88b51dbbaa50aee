//! Tenants' own keys for model providers.

use crate::{Result, key_cipher::KeyCipher};
use atelier_core::{Tenant, UserId};
use atelier_model::TenantKeys;
use atelier_store::{ProviderKey, Store};
use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};
use std::{io, path::Path, sync::Arc, time::Duration};

/// A cheap handle on the stored keys.
#[derive(Clone)]
pub struct ModelKeys {
    store: Store,
    cipher: Arc<KeyCipher>,
    /// Decrypted keys, cached because every step of every agent needs them.
    decrypted: Cache<Tenant, TenantKeys>,
}

/// How long decrypted keys are cached, and so how long a change on another node may go unnoticed.
const CACHE_TIME: Duration = Duration::from_secs(5);
/// For how many tenants decrypted keys are cached.
const CACHED_TENANTS: u64 = 1000;

/// Of a shorter key, the last four characters would reveal too much.
const MIN_LENGTH_FOR_HINT: usize = 12;

impl ModelKeys {
    /// Opens the stored keys. They are encrypted with a key from the data directory.
    pub fn open(store: Store, data: &Path) -> io::Result<Self> {
        let decrypted =
            Cache::builder().time_to_live(CACHE_TIME).max_capacity(CACHED_TENANTS).build();
        Ok(Self { store, cipher: Arc::new(KeyCipher::open(data)?), decrypted })
    }

    pub async fn put(
        &self,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
        key: &SecretString,
    ) -> Result<ProviderKey> {
        let text = key.expose_secret();
        let end = text.char_indices().nth_back(3).filter(|_| text.len() >= MIN_LENGTH_FOR_HINT);
        let last_four = end.map_or("", |(at, _)| &text[at..]);
        let sealed = self.cipher.encrypt(tenant, provider, key);
        let kept = self.store.put_provider_key(tenant, by, provider, sealed, last_four).await?;
        self.decrypted.invalidate(tenant).await;
        tracing::info!(%tenant, %by, provider, "stored a tenant's key for a model provider");
        Ok(kept)
    }

    /// The stored keys, as people may see them.
    pub async fn list(&self, tenant: &Tenant) -> Result<Vec<ProviderKey>> {
        Ok(self.store.provider_keys(tenant).await?)
    }

    pub async fn remove(&self, tenant: &Tenant, by: UserId, provider: &str) -> Result<()> {
        self.store.delete_provider_key(tenant, by, provider).await?;
        self.decrypted.invalidate(tenant).await;
        tracing::info!(%tenant, %by, provider, "removed a tenant's key for a model provider");
        Ok(())
    }

    /// The decrypted keys of a tenant, for requests to models.
    pub async fn of(&self, tenant: &Tenant) -> Result<TenantKeys> {
        if let Some(keys) = self.decrypted.get(tenant).await {
            return Ok(keys);
        }
        let mut keys = TenantKeys::default();
        for kept in self.store.provider_keys(tenant).await? {
            match self.cipher.decrypt(tenant, &kept.provider, &kept.sealed) {
                Ok(key) => keys.insert(kept.provider, key),
                // The error is reported only when this provider is used.
                Err(_) => keys.insert_unreadable(kept.provider),
            }
        }
        self.decrypted.insert(tenant.clone(), keys.clone()).await;
        Ok(keys)
    }
}
