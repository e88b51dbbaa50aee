//! Keys of providers. They are `SecretString`s, whose `Debug` shows nothing, so they cannot be
//! logged.

use crate::{ModelError, ProviderConfig};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// A tenant's own keys, which take precedence over the server's.
#[derive(Debug, Clone, Default)]
pub struct TenantKeys(BTreeMap<String, TenantKey>);

#[derive(Debug, Clone)]
pub(crate) enum TenantKey {
    Known(SecretString),
    /// The tenant has a key that cannot be decrypted.
    Unreadable,
}

impl TenantKeys {
    pub fn insert(&mut self, provider: impl Into<String>, key: SecretString) {
        self.0.insert(provider.into(), TenantKey::Known(key));
    }

    /// Records a key that cannot be decrypted. Requests to this provider then fail, rather than use
    /// the server's key at somebody else's cost.
    pub fn insert_unreadable(&mut self, provider: impl Into<String>) {
        self.0.insert(provider.into(), TenantKey::Unreadable);
    }

    pub(crate) fn get(&self, provider: &str) -> Option<&TenantKey> {
        self.0.get(provider)
    }
}

/// The server's own key for a provider.
#[derive(Debug, Clone)]
pub(crate) enum ServerKey {
    /// The provider requires no key.
    NotNeeded,
    Known(SecretString),
    /// The provider requires a key and there is none; `remedy` says how to add one.
    Missing {
        remedy: String,
    },
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
            key => Self::Known(key.into()),
        }
    }
}
