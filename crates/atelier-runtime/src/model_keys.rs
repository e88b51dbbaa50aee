//! What people have entered about model providers: keys, addresses, prices and default models.

use crate::{Result, key_cipher::KeyCipher};
use atelier_core::{Tenant, UserId};
use atelier_model::{
    KeyOwner, ModelAccess, ModelInfo, Models, ProviderKind, StoredKey, StoredProvider,
};
use atelier_store::{ModelProvider, ModelScope, Store};
use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};
use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

/// A cheap handle on what is stored.
#[derive(Clone)]
pub struct ModelKeys {
    store: Store,
    models: Models,
    cipher: Arc<KeyCipher>,
    /// Cached with decrypted keys, because every step of every agent needs them.
    decrypted: Cache<(Tenant, Option<UserId>), Arc<ModelAccess>>,
}

/// How long decrypted keys are cached, and so how long a change on another node may go unnoticed.
const CACHE_TIME: Duration = Duration::from_secs(5);
/// For how many people decrypted keys are cached.
const CACHED_PEOPLE: u64 = 10_000;

/// Shorter keys are not shown at all, because their last four characters would reveal too much.
const MIN_LENGTH_FOR_HINT: usize = 12;

/// What an admin enters about one of the server's providers.
#[derive(Default)]
pub struct ProviderEdit {
    pub kind: Option<ProviderKind>,
    pub base_url: Option<String>,
    /// The new key. Without one, the stored key stays, unless the address changes.
    pub key: Option<SecretString>,
    /// Prices and windows of models. Without them, the stored ones stay.
    pub models: Option<BTreeMap<String, ModelInfo>>,
}

impl ModelKeys {
    /// Opens the stored keys. They are encrypted with a key from the data directory.
    pub fn open(store: Store, data: &Path, models: Models) -> io::Result<Self> {
        let decrypted =
            Cache::builder().time_to_live(CACHE_TIME).max_capacity(CACHED_PEOPLE).build();
        Ok(Self { store, models, cipher: Arc::new(KeyCipher::open(data)?), decrypted })
    }

    /// The configured models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Stores a tenant's or a person's key. `None` if there is no such provider.
    pub async fn put_key(
        &self,
        scope: ModelScope,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
        key: &SecretString,
    ) -> Result<Option<ModelProvider>> {
        let access = self.of(tenant, None).await?;
        let Some(settings) = self.models.settings(provider, &access) else { return Ok(None) };
        let row = ModelProvider {
            provider: provider.to_owned(),
            kind: None,
            base_url: None,
            models: "{}".to_owned(),
            sealed: Some(self.cipher.encrypt(&scope, provider, key)),
            last_four: last_four(key).to_owned(),
            key_address: Some(settings.base_url.clone()),
            updated_at: chrono::DateTime::UNIX_EPOCH,
            scope,
        };
        self.put(by, row).await.map(Some)
    }

    /// Stores what an admin has entered about one of the server's providers.
    pub async fn put_provider(
        &self,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
        edit: ProviderEdit,
    ) -> Result<ModelProvider> {
        let rows = self.store.model_providers(tenant, None).await?;
        let is_this =
            |row: &ModelProvider| row.scope == ModelScope::Server && row.provider == provider;
        let mut row = rows.into_iter().find(is_this).unwrap_or_else(|| ModelProvider {
            scope: ModelScope::Server,
            provider: provider.to_owned(),
            kind: None,
            base_url: None,
            models: "{}".to_owned(),
            sealed: None,
            last_four: String::new(),
            key_address: None,
            updated_at: chrono::DateTime::UNIX_EPOCH,
        });
        if let Some(kind) = edit.kind {
            row.kind = Some(kind.as_str().to_owned());
        }
        if let Some(base_url) = edit.base_url {
            let access = self.of(tenant, None).await?;
            let known = self.models.settings(provider, &access);
            if known.is_none_or(|known| known.base_url != base_url) {
                // A key is sent to no other address than the one it was entered for.
                (row.sealed, row.last_four) = (None, String::new());
            }
            row.base_url = Some(base_url);
        }
        if let Some(key) = &edit.key {
            row.sealed = Some(self.cipher.encrypt(&ModelScope::Server, provider, key));
            row.last_four = last_four(key).to_owned();
        }
        if let Some(models) = &edit.models {
            row.models = serde_json::to_string(models)
                .unwrap_or_else(|error| unreachable!("models are valid JSON: {error}"));
        }
        self.put(by, row).await
    }

    async fn put(&self, by: UserId, row: ModelProvider) -> Result<ModelProvider> {
        let kept = self.store.put_model_provider(by, row).await?;
        self.forget();
        let (scope, provider) = (kept.scope.as_text(), kept.provider.as_str());
        tracing::info!(scope, %by, provider, "stored a key or an address of a model provider");
        Ok(kept)
    }

    /// What is stored for the server, a tenant and a person, as people may see it.
    pub async fn list(&self, tenant: &Tenant, user: Option<UserId>) -> Result<Vec<ModelProvider>> {
        Ok(self.store.model_providers(tenant, user).await?)
    }

    pub async fn remove(&self, scope: &ModelScope, by: UserId, provider: &str) -> Result<()> {
        self.store.delete_model_provider(scope, by, provider).await?;
        self.forget();
        let scope = scope.as_text();
        tracing::info!(scope, %by, provider, "removed a key or an address of a model provider");
        Ok(())
    }

    pub async fn set_default(
        &self,
        scope: &ModelScope,
        by: UserId,
        model: Option<String>,
    ) -> Result<()> {
        let scope_name = scope.as_text();
        tracing::info!(scope = scope_name, %by, model, "set the default model");
        self.store.set_default_model(scope, by, model).await?;
        self.forget();
        Ok(())
    }

    /// The default models that somebody has chosen, the one that counts first.
    pub async fn chosen_defaults(
        &self,
        tenant: &Tenant,
        user: Option<UserId>,
    ) -> Result<Vec<(ModelScope, String)>> {
        let mut chosen = self.store.default_models(tenant, user).await?;
        chosen.sort_by_key(|(scope, _)| match scope {
            ModelScope::User(_) => 0,
            ModelScope::Tenant(_) => 1,
            ModelScope::Server => 2,
        });
        Ok(chosen)
    }

    /// Forgets what is cached on this node.
    fn forget(&self) {
        self.decrypted.invalidate_all();
    }

    /// What the agents of a person may use, for requests to models.
    pub async fn of(&self, tenant: &Tenant, user: Option<UserId>) -> Result<Arc<ModelAccess>> {
        let who = (tenant.clone(), user);
        if let Some(access) = self.decrypted.get(&who).await {
            return Ok(access);
        }
        let mut access = ModelAccess::default();
        for row in self.store.model_providers(tenant, user).await? {
            let key = row.sealed.as_ref().map(|sealed| {
                // An unreadable key is reported only when its provider is used.
                self.cipher.decrypt(&row.scope, &row.provider, sealed).ok()
            });
            let owner = match row.scope {
                ModelScope::Server => {
                    self.models.add_stored(&mut access, &row.provider, stored(&row, key));
                    continue;
                }
                ModelScope::Tenant(_) => KeyOwner::Tenant,
                ModelScope::User(_) => KeyOwner::Person,
            };
            access.insert_key(row.provider, owner, key.flatten(), row.key_address);
        }
        let chosen = self.chosen_defaults(tenant, user).await?;
        access.default_model = chosen.into_iter().next().map(|(_, model)| model);
        let access = Arc::new(access);
        self.decrypted.insert(who, access.clone()).await;
        Ok(access)
    }
}

/// One of the server's providers, from its row.
fn stored(row: &ModelProvider, key: Option<Option<SecretString>>) -> StoredProvider {
    let kind = row.kind.as_deref();
    StoredProvider {
        kind: ProviderKind::ALL.into_iter().find(|known| Some(known.as_str()) == kind),
        base_url: row.base_url.clone(),
        key: match key {
            None => StoredKey::None,
            Some(None) => StoredKey::Unreadable,
            Some(Some(key)) => StoredKey::Known(key),
        },
        models: serde_json::from_str(&row.models).unwrap_or_else(|error| {
            tracing::warn!(%error, provider = row.provider, "cannot read the prices of models");
            BTreeMap::new()
        }),
    }
}

fn last_four(key: &SecretString) -> &str {
    let text = key.expose_secret();
    let end = text.char_indices().nth_back(3).filter(|_| text.len() >= MIN_LENGTH_FOR_HINT);
    end.map_or("", |(at, _)| &text[at..])
}
