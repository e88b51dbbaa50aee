//! Keys of providers. A `SecretString` has no way into a log: its `Debug` shows nothing.

use crate::{ModelError, ProviderConfig};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// The keys a tenant brought along; they come before the server's own.
#[derive(Debug, Clone, Default)]
pub struct TenantKeys(BTreeMap<String, TenantKey>);

#[derive(Debug, Clone)]
pub(crate) enum TenantKey {
    Known(SecretString),
    /// There is one, and it cannot be read.
    Unreadable,
}

impl TenantKeys {
    pub fn insert(&mut self, provider: impl Into<String>, key: SecretString) {
        self.0.insert(provider.into(), TenantKey::Known(key));
    }

    /// A key that is there and cannot be read: whoever asks this provider is told so, rather than asking at
    /// somebody else's cost.
    pub fn insert_unreadable(&mut self, provider: impl Into<String>) {
        self.0.insert(provider.into(), TenantKey::Unreadable);
    }

    pub(crate) fn get(&self, provider: &str) -> Option<&TenantKey> {
        self.0.get(provider)
    }
}

/// What the server itself has for a provider.
#[derive(Debug, Clone)]
pub(crate) enum ServerKey {
    /// The provider wants none.
    NotNeeded,
    Known(SecretString),
    /// It wants one; this is what a person can do about it.
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
            Err(std::env::VarError::NotPresent) => Ok(Self::Missing { remedy: format!("set {variable}") }),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ModelError::Config(format!("{variable} is not text")))
            }
        }
    }

    /// Nothing but white space is no key: that is how an environment file leaves one out.
    fn of(text: String, remedy: impl Fn() -> String) -> Self {
        let text = SecretString::from(text);
        match text.expose_secret().trim() {
            "" => Self::Missing { remedy: remedy() },
            key => Self::Known(key.into()),
        }
    }
}
