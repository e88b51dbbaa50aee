//! Tokens by server, as `atelier login` stores them and the other commands read them.

use crate::error::{Error, Result};
use atelier_core::ProjectId;
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
    /// Tokens of this machine, by server and by the id of the project.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    machines: BTreeMap<String, BTreeMap<ProjectId, MachineEntry>>,
    /// The server of the last login, which commands use unless they are told another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
}

/// What `atelier connect --code` has stored for a project.
#[derive(Debug, Serialize, Deserialize)]
struct MachineEntry {
    /// The project's name at that time, so that people can name it.
    project: String,
    token: String,
}

/// The address of a server on this machine.
const USUAL_SERVER: &str = "http://127.0.0.1:7420";

/// Checks a server address and removes the slash at its end. Without a scheme, an address of this
/// machine is one of HTTP; for another one, a token could go over the network unprotected.
pub fn server_address(given: &str) -> Result<String> {
    let address = given.trim_end_matches('/');
    if address.starts_with("http://") || address.starts_with("https://") {
        return Ok(address.to_owned());
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match host {
        "localhost" | "127.0.0.1" | "[::1]" => Ok(format!("http://{address}")),
        _ => Err(Error::InvalidAddress(address.to_owned())),
    }
}

/// The given address, or that of the last `atelier login`, or that of a server on this machine.
pub fn server_or_usual(given: Option<&str>) -> Result<String> {
    match given {
        Some(given) => server_address(given),
        None => Ok(Credentials::load()?.last.unwrap_or_else(|| USUAL_SERVER.to_owned())),
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

    /// The token of this machine for a project, given by id or name.
    pub(crate) fn machine_token(&self, server: &str, project: &str) -> Option<(ProjectId, &str)> {
        let mut machines = self.machines.get(server)?.iter();
        let found =
            machines.find(|(id, entry)| entry.project == project || id.to_string() == project);
        found.map(|(id, entry)| (*id, entry.token.as_str()))
    }

    /// Stores the token of this machine for a project.
    pub(crate) fn store_machine(
        server: &str,
        project: ProjectId,
        name: Option<&str>,
        token: &str,
    ) -> Result<()> {
        let mut credentials = Self::load()?;
        let machines = credentials.machines.entry(server.to_owned()).or_default();
        let known = machines.remove(&project).map(|entry| entry.project);
        let name = name.map(str::to_owned).or(known).unwrap_or_default();
        machines.insert(project, MachineEntry { project: name, token: token.to_owned() });
        credentials.write().map(drop)
    }

    /// Uses this server from now on, unless a command is told another.
    pub fn remember(server: &str) -> Result<()> {
        let mut credentials = Self::load()?;
        credentials.last = Some(server.to_owned());
        credentials.write().map(drop)
    }

    /// Removes the token of a server, if there is one.
    pub fn remove(server: &str) -> Result<()> {
        let mut credentials = Self::load()?;
        credentials.last.take_if(|last| last == server);
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
