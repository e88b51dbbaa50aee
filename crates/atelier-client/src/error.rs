//! What can go wrong in the commands that talk to a server.

use atelier_api::{Problem, ProblemCode};
use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the server's own rules are not valid")]
    ServerRules(#[source] atelier_core::policy::RuleError),
    #[error("the rules in client.toml are not valid")]
    OwnRules(#[source] atelier_core::policy::RuleError),
    #[error("{0:?} is not a server address: write https://{0}, or http://{0} if it has no TLS")]
    InvalidAddress(String),
    #[error("cannot reach {server}: {}", unreachable_reason(cause))]
    Unreachable { server: String, cause: reqwest::Error },
    #[error("{0} did not answer in time")]
    Timeout(String),
    /// The server refused the request and says why.
    #[error("the server answered: {}", .0.detail)]
    Refused(Problem),
    #[error(
        "{server} does not answer like an Atelier server (HTTP status {status}): check the address"
    )]
    NotAtelier { server: String, status: u16 },
    #[error("there is no token for {0}: run `atelier login --server {0}`, or set ATELIER_TOKEN")]
    NoToken(String),
    #[error(
        "the token is expired or revoked: run `atelier login`, or check ATELIER_TOKEN if it is set"
    )]
    TokenRejected,
    #[error("you have no project “{wanted}” on this server: {remedy}")]
    NoProject { wanted: String, remedy: String },
    #[error("you have no project on this server yet: create one in the console")]
    NoProjects,
    #[error("say which project with --project: {0}")]
    WhichProject(String),
    #[error(
        "an agent's token cannot connect a machine: use your own token, or one made with --role \
         client"
    )]
    AgentToken,
    #[error("the project was deleted")]
    ProjectDeleted,
    #[error("cannot use {path} as a workspace")]
    Workspace { path: PathBuf, source: atelier_executor::Error },
    #[error("another `atelier connect` already serves this folder for the same project")]
    Busy,
    #[error("{path} is inside the folder to connect, where agents could change it")]
    StateInside { path: PathBuf },
    #[error("there is no home folder to store state in: set HOME")]
    NoHome,
    #[error("{path} cannot be used: {why}")]
    Unusable { path: PathBuf, why: String },
    #[error("{path} is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("the call crashed; the next start reports its outcome as unknown")]
    Panicked,
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// The message with all its causes, in one line.
    pub(crate) fn full_message(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |error| error.source());
        causes.fold(self.to_string(), |message, cause| format!("{message}: {cause}"))
    }

    /// Whether the same request may succeed later: the network or the server may come back.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout(_) => true,
            // A worker space that was reset is opened again by the next request.
            Self::Refused(problem) => {
                matches!(problem.status, 408 | 429 | 500..)
                    || problem.code == ProblemCode::WorkerSpaceClosed
            }
            // A proxy answers with its own page while the server behind it starts.
            Self::NotAtelier { .. } => true,
            _ => false,
        }
    }

    /// Whether another node of the same server may answer better.
    pub(crate) fn is_the_servers_fault(&self) -> bool {
        match self {
            // A node whose keys differ from those of the others accepts no token of theirs.
            Self::Unreachable { .. }
            | Self::Timeout(_)
            | Self::NotAtelier { .. }
            | Self::TokenRejected => true,
            Self::Refused(problem) => problem.status >= 500,
            _ => false,
        }
    }

    /// Whether what a machine reports about a call should be sent again. A report that is given up
    /// is lost for good, so this includes refusals of the token: they may come from a node with the
    /// wrong keys, and a token that has really ended ends the whole connection.
    pub(crate) fn allows_another_report(&self) -> bool {
        let is_refused_access = matches!(self.status(), Some(401 | 403));
        self.is_temporary() || matches!(self, Self::TokenRejected) || is_refused_access
    }

    /// The HTTP status, if the server refused the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(problem) => Some(problem.status),
            _ => None,
        }
    }
}

/// Why a server cannot be reached, in words. The chain of causes of an HTTP client says it three
/// times.
fn unreachable_reason(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let Some(innermost) = causes.last() else { return "the request failed".to_owned() };
    let refused = innermost
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    match refused {
        true => "no server answers there; start one with `atelier serve`, or check the address"
            .to_owned(),
        false => innermost.to_string(),
    }
}
