//! The models that somebody's agents may use: providers and keys from the configuration, and those
//! that people have entered since. Keys are `SecretString`s, whose `Debug` shows nothing, so they
//! cannot be logged.

use crate::{ModelError, ModelInfo, ProviderConfig, ProviderKind};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// The entries that people have added to the configuration: the server's providers, the keys of the
/// tenant and of the person, and the default model. Cloned once for each cache entry.
#[derive(Debug, Clone, Default)]
pub struct ModelAccess {
    pub(crate) providers: BTreeMap<String, (ProviderConfig, ServerKey)>,
    keys: BTreeMap<String, OwnKey>,
    /// The default model that somebody has chosen, as `provider/model` or `demo`.
    pub default_model: Option<String>,
}

/// The owner of a key. A person's key comes before the tenant's, and the tenant's before the
/// server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyOwner {
    Tenant,
    Person,
}

#[derive(Debug, Clone)]
pub(crate) struct OwnKey {
    pub(crate) owner: KeyOwner,
    /// `None` if the stored key cannot be decrypted.
    pub(crate) key: Option<SecretString>,
    /// The address that the key was entered for. It is sent to no other.
    pub(crate) address: Option<String>,
}

/// A provider that the server's admins have added, or their changes of a configured one.
#[derive(Debug, Clone, Default)]
pub struct StoredProvider {
    pub kind: Option<ProviderKind>,
    pub base_url: Option<String>,
    pub key: StoredKey,
    pub models: BTreeMap<String, ModelInfo>,
}

#[derive(Debug, Clone, Default)]
pub enum StoredKey {
    #[default]
    None,
    Known(SecretString),
    Unreadable,
}

impl ModelAccess {
    /// Adds a tenant's key.
    pub fn insert(&mut self, provider: impl Into<String>, key: SecretString) {
        self.insert_key(provider, KeyOwner::Tenant, Some(key), None);
    }

    /// Adds a key. A person's key replaces the tenant's. Without a readable `key`, requests to this
    /// provider fail, rather than use the next key at somebody else's cost.
    pub fn insert_key(
        &mut self,
        provider: impl Into<String>,
        owner: KeyOwner,
        key: Option<SecretString>,
        address: Option<String>,
    ) {
        let provider = provider.into();
        if self.keys.get(&provider).is_none_or(|known| known.owner <= owner) {
            self.keys.insert(provider, OwnKey { owner, key, address });
        }
    }

    /// The access without the keys of the tenant and the person.
    #[must_use]
    pub fn of_server(&self) -> Self {
        Self { keys: BTreeMap::new(), ..self.clone() }
    }

    pub(crate) fn key(&self, provider: &str) -> Option<&OwnKey> {
        self.keys.get(provider)
    }
}

/// The server's own key for a provider.
#[derive(Debug, Clone)]
pub(crate) enum ServerKey {
    /// The provider requires no key.
    NotNeeded,
    /// From the environment or a file.
    Configured(SecretString),
    /// An admin has entered it.
    Stored(SecretString),
    /// An admin has entered it, and it cannot be decrypted.
    Unreadable,
    /// The provider requires a key and there is none; `remedy` says how to add one.
    Missing { remedy: String },
}

impl ServerKey {
    pub(crate) fn read(name: &str, provider: &ProviderConfig) -> Result<Self, ModelError> {
        if let Some(file) = &provider.key_file {
            let text = std::fs::read_to_string(file).map_err(|error| {
                ModelError::Config(format!("providers.{name}.key_file {}: {error}", file.display()))
            })?;
            return Ok(Self::of(text, || format!("put one into {}", file.display())));
        }
        let Some(variable) = &provider.key_env else {
            return Ok(Self::NotNeeded);
        };
        match std::env::var(variable) {
            Ok(text) => Ok(Self::of(text, || format!("set {variable}"))),
            Err(std::env::VarError::NotPresent) => {
                Ok(Self::Missing { remedy: format!("set {variable}") })
            }
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ModelError::Config(format!("{variable} is not text")))
            }
        }
    }

    /// White space alone is no key, because environment files leave out a value that way.
    fn of(text: String, remedy: impl Fn() -> String) -> Self {
        let text = SecretString::from(text);
        match text.expose_secret().trim() {
            "" => Self::Missing { remedy: remedy() },
            key => Self::Configured(key.into()),
        }
    }
}

/// The configured provider with the changes of the server's admins.
pub(crate) fn merged(
    configured: Option<&(ProviderConfig, ServerKey)>,
    stored: StoredProvider,
) -> (ProviderConfig, ServerKey) {
    let StoredProvider { kind, base_url, key, models } = stored;
    let kind = kind.or(configured.map(|(provider, _)| provider.kind));
    let kind = kind.unwrap_or(ProviderKind::OpenAiCompatible);
    let mut provider = match configured {
        Some((provider, _)) => ProviderConfig { kind, ..provider.clone() },
        None => ProviderConfig::new(kind, String::new()),
    };
    let moved = base_url.as_ref().is_some_and(|address| *address != provider.base_url);
    provider.base_url = base_url.unwrap_or(provider.base_url);
    provider.models.extend(models);
    let key = match (key, configured) {
        (StoredKey::Known(key), _) => ServerKey::Stored(key),
        (StoredKey::Unreadable, _) => ServerKey::Unreadable,
        // The configured key is for the configured address.
        (StoredKey::None, Some((_, key))) if !moved => key.clone(),
        (StoredKey::None, _) if kind.needs_key() => {
            ServerKey::Missing { remedy: "enter one".to_owned() }
        }
        (StoredKey::None, _) => ServerKey::NotNeeded,
    };
    (provider, key)
}
