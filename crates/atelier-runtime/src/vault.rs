//! Sealing what the database must not tell: XChaCha20-Poly1305 with a key from a file beside it.

use crate::secret::open_secret;
use atelier_core::Tenant;
use chacha20poly1305::{
    Key, KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use rand::RngCore;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::{io, path::Path};

const FILE: &str = "models.key";
const VERSION: u8 = 1;
const NONCE: usize = 24;
/// How many bytes of its hash tell one server key from another.
const KEY_ID: usize = 8;

/// Seals and opens. Everything sealed names the key it was sealed with and the place it is meant for.
pub(crate) struct Vault {
    cipher: XChaCha20Poly1305,
    key_id: [u8; KEY_ID],
}

/// It was sealed with another key, for another place, or is not whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CannotOpen;

impl Vault {
    /// With the key of a data directory, made if there is none.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let secret = open_secret(data, FILE, "all keys of model providers have to be put in again")?;
        Ok(Self::new(&secret))
    }

    fn new(secret: &[u8]) -> Self {
        // Hashed, so that a longer file is as good as one of the cipher's own length.
        let key: [u8; 32] =
            Sha256::new_with_prefix("atelier vault key").chain_update(secret).finalize().into();
        let id = Sha256::new_with_prefix("atelier vault id").chain_update(secret).finalize();
        let mut key_id = [0; KEY_ID];
        key_id.copy_from_slice(&id[..KEY_ID]);
        Self { cipher: XChaCha20Poly1305::new(&Key::from(key)), key_id }
    }

    /// Version, id of the key, nonce, ciphertext.
    pub(crate) fn seal(&self, tenant: &Tenant, provider: &str, text: &SecretString) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        rand::rng().fill_bytes(&mut nonce);
        let aad = self.place(tenant, provider);
        let payload = Payload { msg: text.expose_secret().as_bytes(), aad: &aad };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.unwrap_or_else(|_| unreachable!("a key is no 256 GB long"));
        [&[VERSION][..], &self.key_id, &nonce, &sealed].concat()
    }

    pub(crate) fn unseal(
        &self,
        tenant: &Tenant,
        provider: &str,
        sealed: &[u8],
    ) -> Result<SecretString, CannotOpen> {
        let rest = sealed.strip_prefix(&[VERSION]).and_then(|rest| rest.strip_prefix(&self.key_id));
        let (nonce, sealed) = rest.and_then(|rest| rest.split_first_chunk::<NONCE>()).ok_or(CannotOpen)?;
        let aad = self.place(tenant, provider);
        let payload = Payload { msg: sealed, aad: &aad };
        let text = self.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| CannotOpen)?;
        Ok(SecretString::from(String::from_utf8(text).map_err(|_| CannotOpen)?))
    }

    /// Bound to what is sealed, so that a row moved to another tenant or provider does not open there.
    fn place(&self, tenant: &Tenant, provider: &str) -> Vec<u8> {
        // Neither has a NUL, so no two places give the same bytes.
        [&self.key_id[..], tenant.as_str().as_bytes(), b"\0", provider.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_in_its_place_with_its_key_only() {
        let tenant = |name: &str| name.parse::<Tenant>().expect("a tenant");
        let (vault, other) = (Vault::new(&[1; 32]), Vault::new(&[2; 32]));
        let sealed = vault.seal(&tenant("acme"), "openai", &SecretString::from("sk-1"));
        let open = |vault: &Vault, name: &str, provider: &str, sealed: &[u8]| {
            vault.unseal(&tenant(name), provider, sealed).map(|key| key.expose_secret().to_owned())
        };
        assert_eq!(open(&vault, "acme", "openai", &sealed), Ok("sk-1".to_owned()));
        assert_eq!(open(&other, "acme", "openai", &sealed), Err(CannotOpen));
        assert_eq!(open(&vault, "evil", "openai", &sealed), Err(CannotOpen));
        assert_eq!(open(&vault, "acme", "anthropic", &sealed), Err(CannotOpen));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&vault, "acme", "openai", &changed), Err(CannotOpen), "byte {at}");
            assert_eq!(open(&vault, "acme", "openai", &sealed[..at]), Err(CannotOpen), "{at} bytes");
        }
        assert_ne!(vault.seal(&tenant("acme"), "openai", &SecretString::from("sk-1")), sealed);
    }
}
