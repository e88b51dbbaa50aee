//! Tokens by server, as `atelier login` stores them and the other commands read them.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    servers: BTreeMap<String, String>,
}

/// Checks a server address and removes the slash at its end.
pub fn server_address(given: &str) -> Result<&str> {
    let address = given.trim_end_matches('/');
    match address.starts_with("http://") || address.starts_with("https://") {
        true => Ok(address),
        false => Err(Error::InvalidAddress(address.to_owned())),
    }
}

impl Credentials {
    fn file() -> Result<PathBuf> {
        Ok(dirs::config_dir().ok_or(Error::NoHome)?.join("atelier/credentials.json"))
    }

    pub fn load() -> Result<Self> {
        let path = Self::file()?;
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Damaged { path: path.clone(), why: error.to_string() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    pub fn token(&self, server: &str) -> Option<&str> {
        self.servers.get(server).map(String::as_str)
    }

    /// Stores a token for a server and returns the path of the file.
    pub fn store(server: &str, token: &str) -> Result<PathBuf> {
        let mut credentials = Self::load()?;
        credentials.servers.insert(server.to_owned(), token.to_owned());
        credentials.write()
    }

    /// Removes the token of a server, if there is one.
    pub fn remove(server: &str) -> Result<()> {
        let mut credentials = Self::load()?;
        match credentials.servers.remove(server) {
            Some(_) => credentials.write().map(drop),
            None => Ok(()),
        }
    }

    fn write(&self) -> Result<PathBuf> {
        let path = Self::file()?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Damaged { path: path.clone(), why: error.to_string() })?;
        replace_private(&path, &text).map_err(Error::io("write", &path))?;
        Ok(path)
    }
}

/// Replaces a file as a whole or not at all. Only this user can ever read it.
pub(crate) fn replace_private(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}
