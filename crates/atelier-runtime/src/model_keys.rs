//! Keys of model providers that tenants bring along.

use crate::{Result, key_cipher::KeyCipher};
use atelier_core::{Tenant, UserId};
use atelier_model::TenantKeys;
use atelier_store::{ProviderKey, Store};
use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};
use std::{io, path::Path, sync::Arc, time::Duration};

/// A cheap handle on them.
#[derive(Clone)]
pub struct ModelKeys {
    store: Store,
    cipher: Arc<KeyCipher>,
    /// Every step of every agent needs them.
    opened: Cache<Tenant, TenantKeys>,
}

/// How long another server's change may go unnoticed here.
const FRESH: Duration = Duration::from_secs(5);
const TENANTS: u64 = 1000;

/// A key shorter than this would be half told by its end.
const LONG_ENOUGH: usize = 12;

impl ModelKeys {
    /// Sealed with a key from the data directory.
    pub fn open(store: Store, data: &Path) -> io::Result<Self> {
        let opened = Cache::builder().time_to_live(FRESH).max_capacity(TENANTS).build();
        Ok(Self { store, cipher: Arc::new(KeyCipher::open(data)?), opened })
    }

    pub async fn put(
        &self,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
        key: &SecretString,
    ) -> Result<ProviderKey> {
        let text = key.expose_secret();
        let end = text.char_indices().nth_back(3).filter(|_| text.len() >= LONG_ENOUGH);
        let last_four = end.map_or("", |(at, _)| &text[at..]);
        let sealed = self.cipher.encrypt(tenant, provider, key);
        let kept = self.store.put_provider_key(tenant, by, provider, sealed, last_four).await?;
        self.opened.invalidate(tenant).await;
        tracing::info!(%tenant, %by, provider, "a tenant's key for a model provider was put in");
        Ok(kept)
    }

    /// What there is, as people may see it.
    pub async fn list(&self, tenant: &Tenant) -> Result<Vec<ProviderKey>> {
        Ok(self.store.provider_keys(tenant).await?)
    }

    pub async fn remove(&self, tenant: &Tenant, by: UserId, provider: &str) -> Result<()> {
        self.store.delete_provider_key(tenant, by, provider).await?;
        self.opened.invalidate(tenant).await;
        tracing::info!(%tenant, %by, provider, "a tenant's key for a model provider was removed");
        Ok(())
    }

    /// The keys themselves, for asking models.
    pub async fn of(&self, tenant: &Tenant) -> Result<TenantKeys> {
        if let Some(keys) = self.opened.get(tenant).await {
            return Ok(keys);
        }
        let mut keys = TenantKeys::default();
        for kept in self.store.provider_keys(tenant).await? {
            match self.cipher.decrypt(tenant, &kept.provider, &kept.sealed) {
                Ok(key) => keys.insert(kept.provider, key),
                // Only who asks this provider is to hear of it.
                Err(_) => keys.insert_unreadable(kept.provider),
            }
        }
        self.opened.insert(tenant.clone(), keys.clone()).await;
        Ok(keys)
    }
}
