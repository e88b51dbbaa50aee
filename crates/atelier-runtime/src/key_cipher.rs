//! Encryption of provider keys in the database: XChaCha20-Poly1305 with a key from a file in the
//! data directory.

use crate::secret::open_secret;
use atelier_store::ModelScope;
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
/// How many bytes of a hash identify the server's key.
const KEY_ID: usize = 8;

/// Encrypts and decrypts. A ciphertext is bound to the server's key, the provider, and
/// whom the key is for.
pub(crate) struct KeyCipher {
    cipher: XChaCha20Poly1305,
    key_id: [u8; KEY_ID],
}

/// The ciphertext is damaged, or belongs to another key, scope or provider.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DecryptError;

impl KeyCipher {
    /// Opens the key of a data directory, and creates it if there is none.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let secret =
            open_secret(data, FILE, "all keys of model providers have to be entered again")?;
        Ok(Self::new(&secret))
    }

    fn new(secret: &[u8]) -> Self {
        // Hashed, so that the file may be longer than the key of the cipher.
        let key: [u8; 32] =
            Sha256::new_with_prefix("atelier vault key").chain_update(secret).finalize().into();
        let id = Sha256::new_with_prefix("atelier vault id").chain_update(secret).finalize();
        let mut key_id = [0; KEY_ID];
        key_id.copy_from_slice(&id[..KEY_ID]);
        Self { cipher: XChaCha20Poly1305::new(&Key::from(key)), key_id }
    }

    /// Returns the version, the id of the key, the nonce and the ciphertext.
    pub(crate) fn encrypt(
        &self,
        scope: &ModelScope,
        provider: &str,
        text: &SecretString,
    ) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        rand::rng().fill_bytes(&mut nonce);
        let aad = self.associated_data(scope, provider);
        let payload = Payload { msg: text.expose_secret().as_bytes(), aad: &aad };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed =
            sealed.unwrap_or_else(|_| unreachable!("a provider key is shorter than 256 GB"));
        [&[VERSION][..], &self.key_id, &nonce, &sealed].concat()
    }

    pub(crate) fn decrypt(
        &self,
        scope: &ModelScope,
        provider: &str,
        sealed: &[u8],
    ) -> Result<SecretString, DecryptError> {
        let rest = sealed.strip_prefix(&[VERSION]).and_then(|rest| rest.strip_prefix(&self.key_id));
        let (nonce, sealed) =
            rest.and_then(|rest| rest.split_first_chunk::<NONCE>()).ok_or(DecryptError)?;
        let aad = self.associated_data(scope, provider);
        let payload = Payload { msg: sealed, aad: &aad };
        let text = self.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| DecryptError)?;
        Ok(SecretString::from(String::from_utf8(text).map_err(|_| DecryptError)?))
    }

    /// Data that the ciphertext is bound to, so that a row that was moved to another scope or
    /// provider cannot be decrypted there.
    fn associated_data(&self, scope: &ModelScope, provider: &str) -> Vec<u8> {
        // Neither name contains a NUL, so no two pairs give the same bytes.
        let scope = scope.as_text();
        [&self.key_id[..], scope.as_bytes(), b"\0", provider.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_decrypts_only_for_its_scope_provider_and_server() {
        let tenant = |name: &str| ModelScope::Tenant(name.parse().expect("a tenant"));
        let (cipher, other) = (KeyCipher::new(&[1; 32]), KeyCipher::new(&[2; 32]));
        let sealed = cipher.encrypt(&tenant("acme"), "openai", &SecretString::from("sk-1"));
        let open = |cipher: &KeyCipher, name: &str, provider: &str, sealed: &[u8]| {
            cipher
                .decrypt(&tenant(name), provider, sealed)
                .map(|key| key.expose_secret().to_owned())
        };
        assert_eq!(open(&cipher, "acme", "openai", &sealed), Ok("sk-1".to_owned()));
        assert_eq!(open(&other, "acme", "openai", &sealed), Err(DecryptError));
        assert_eq!(open(&cipher, "evil", "openai", &sealed), Err(DecryptError));
        assert_eq!(open(&cipher, "acme", "anthropic", &sealed), Err(DecryptError));
        assert!(cipher.decrypt(&ModelScope::Server, "openai", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&cipher, "acme", "openai", &changed), Err(DecryptError), "byte {at}");
            assert_eq!(
                open(&cipher, "acme", "openai", &sealed[..at]),
                Err(DecryptError),
                "{at} bytes"
            );
        }
        assert_ne!(cipher.encrypt(&tenant("acme"), "openai", &SecretString::from("sk-1")), sealed);
    }
}
