//! Keys of model providers that tenants bring along.

use crate::{Result, vault::Vault};
use atelier_core::{Tenant, UserId};
use atelier_model::TenantKeys;
use atelier_store::{ProviderKey, Store};
use secrecy::{ExposeSecret, SecretString};
use std::{io, path::Path, sync::Arc};

/// A cheap handle on them.
#[derive(Clone)]
pub struct ModelKeys {
    store: Store,
    vault: Arc<Vault>,
}

/// A key shorter than this would be half told by its end.
const LONG_ENOUGH: usize = 12;

impl ModelKeys {
    /// Sealed with a key from the data directory.
    pub fn open(store: Store, data: &Path) -> io::Result<Self> {
        Ok(Self { store, vault: Arc::new(Vault::open(data)?) })
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
        let sealed = self.vault.seal(tenant, provider, key);
        let kept = self.store.put_provider_key(tenant, by, provider, sealed, last_four).await?;
        tracing::info!(%tenant, %by, provider, "a tenant's key for a model provider was put in");
        Ok(kept)
    }

    /// What there is, as people may see it.
    pub async fn list(&self, tenant: &Tenant) -> Result<Vec<ProviderKey>> {
        Ok(self.store.provider_keys(tenant).await?)
    }

    pub async fn remove(&self, tenant: &Tenant, by: UserId, provider: &str) -> Result<()> {
        self.store.delete_provider_key(tenant, by, provider).await?;
        tracing::info!(%tenant, %by, provider, "a tenant's key for a model provider was removed");
        Ok(())
    }

    /// The keys themselves, for asking models.
    pub async fn of(&self, tenant: &Tenant) -> Result<TenantKeys> {
        let mut keys = TenantKeys::default();
        for kept in self.store.provider_keys(tenant).await? {
            match self.vault.unseal(tenant, &kept.provider, &kept.sealed) {
                Ok(key) => keys.insert(kept.provider, key),
                // Only who asks this provider is to hear of it.
                Err(_) => keys.insert_unreadable(kept.provider),
            }
        }
        Ok(keys)
    }
}
