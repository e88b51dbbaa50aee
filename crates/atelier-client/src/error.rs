//! What can go wrong on the user's side.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the server's rules cannot be used here")]
    ServerRules(#[source] atelier_core::policy::RuleError),
    #[error("the rules in client.toml cannot be used")]
    OwnRules(#[source] atelier_core::policy::RuleError),
    #[error("{0:?} is no server's address: it begins with http:// or https://")]
    NoAddress(String),
    #[error("cannot reach {server}")]
    Unreachable { server: String, source: reqwest::Error },
    /// The server's own words.
    #[error("the server says: {detail}")]
    Refused { status: u16, code: String, detail: String },
    #[error("{0} is not an Atelier server")]
    NotAtelier(String),
    #[error("there is no token for {0}: run `atelier login --server {0}`, or set ATELIER_TOKEN")]
    NoToken(String),
    #[error(
        "the server does not take the token (any more): run `atelier login`, or look at ATELIER_TOKEN if it is set"
    )]
    TokenEnded,
    #[error("you have no project “{0}” on this server")]
    NoProject(String),
    #[error("an agent's token cannot connect a machine: use your own, or one made with --role client")]
    AgentToken,
    #[error("the project is gone")]
    ProjectGone,
    #[error("cannot use {path} as a workspace")]
    Workspace { path: PathBuf, source: atelier_executor::Error },
    #[error("another `atelier connect` serves this folder for the same project already")]
    Busy,
    #[error("{path} lies in the folder to connect, where agents could change it")]
    StateInside { path: PathBuf },
    #[error("there is no home folder to keep state in")]
    NoHome,
    #[error("{path} cannot be used: {why}")]
    Unusable { path: PathBuf, why: String },
    #[error("{path} is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("it broke off; the next start reports it as unknown")]
    BrokeOff,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// The whole story in one line, down to its cause.
    pub(crate) fn told(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |error| error.source());
        causes.fold(self.to_string(), |told, cause| format!("{told}: {cause}"))
    }

    /// Worth another try: a network or a server that may come back.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            // A worker space that was reset is there again for the next request.
            Self::Refused { status, code, .. } => {
                matches!(status, 408 | 429 | 500..) || code == "worker_space_closed"
            }
            // A proxy in front of a server that is starting answers in its own words.
            Self::NotAtelier(_) => true,
            _ => false,
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}
