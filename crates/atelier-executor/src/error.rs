//! Everything that can go wrong in a workspace, as one enum with stable codes.
//!
//! Paths in errors are as the caller wrote them, or relative to the workspace. No message reveals
//! where the root is or what is outside it.

use atelier_core::policy::call::CallError;
use atelier_core::{FailureCode, NotEncodable};
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Path {path} does not exist")]
    NotFound { path: String },
    /// Something other than a file, such as a job or a change.
    #[error("Not found: {what}")]
    Unknown { what: String },
    #[error("Not found: the folder of {path}. Set create_dirs to create it.")]
    NoFolder { path: String },
    #[error("Not a file: {path}")]
    NotAFile { path: String },
    #[error("Not a directory: {path}")]
    NotADirectory { path: String },
    #[error("Already exists: {path}")]
    Exists { path: String },
    #[error("Directory is not empty: {path}")]
    NotEmpty { path: String },
    #[error("Permission denied to {action} {path}")]
    Permission { action: &'static str, path: String },
    /// A link, or a race with a link, that would have left the root.
    #[error("Path {path} is outside workspace bounds")]
    Outside { path: String },
    #[error("Refusing to write through a link: {path}")]
    Link { path: String },
    #[error("Too many links: {path}")]
    LinkLoop { path: String },
    /// Entries that agents may not change: the root itself, directories directly beneath it,
    /// `.git`.
    #[error("Protected: {path} ({why})")]
    Protected { path: String, why: &'static str },
    #[error("File size exceeded: {path} has {size} bytes, the limit is {limit}")]
    TooLarge { path: String, size: u64, limit: u64 },
    #[error("Binary file: {path}")]
    Binary { path: String },
    #[error("File contains invalid UTF-8 encoding")]
    InvalidUtf8 { path: String },
    /// The file keeps its encoding, which lacks a character of the new text.
    #[error(
        "{path} cannot hold this text: {missing}. Leave the character out, or delete the file and \
         write it again, which makes it UTF-8."
    )]
    NotEncodable { path: String, missing: NotEncodable },
    #[error("{path} changed: expected {expected}, found {found}")]
    Stale { path: String, expected: String, found: String },
    /// The file changed after the caller read it.
    #[error("{path} has changed since it was read. Read it again before you change it.")]
    Conflict { path: String },
    #[error("Text to replace was found {found} times in {path}, expected {expected}")]
    EditMismatch { path: String, found: usize, expected: usize },
    #[error("Text to replace is empty or equal to its replacement")]
    EditEmpty,
    #[error("Pattern not allowed: {why}")]
    Pattern { why: String },
    /// A function asked for an argument that the definition of its tool does not have.
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("Name too long: {path}")]
    NameTooLong { path: String },
    #[error("Command not found: {program}")]
    CommandNotFound { program: String },
    /// The program is inside the workspace, where an agent could have put it.
    #[error("Command not allowed: {program} resolves into the workspace")]
    ProgramInWorkspace { program: String },
    #[error("Argument contains a NUL byte")]
    NulArgument,
    #[error("Sandbox could not be set up ({stage}: {source})")]
    Sandbox { stage: &'static str, source: io::Error },
    #[error("This workspace has no layers, so scripts cannot run here")]
    NoLayers,
    /// The kernel, or a rule of the machine, does not allow the mounts of a layer.
    #[error(
        "This machine does not allow layers ({stage}: {source}). `atelier doctor` says what to do."
    )]
    LayerRefused { stage: &'static str, source: io::Error },
    /// The layer and the workspace have both changed the file.
    #[error(
        "{path} was changed in the layer and in the workspace. Read the workspace's version with \
         read_file, discard the layer's version, and make the change again."
    )]
    ChangedInBoth { path: String },
    #[error("Jobs are running in the layer. Stop them with job_stop first.")]
    JobsRunning,
    #[error("Cancelled")]
    Cancelled,
    #[error("Could not {action} {path}: {source}")]
    Io { action: &'static str, path: String, source: io::Error },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The stable code for RFC 9457 problems and tool results.
    pub fn code(&self) -> FailureCode {
        match self {
            Self::NotFound { .. } | Self::NoFolder { .. } | Self::Unknown { .. } => {
                FailureCode::NotFound
            }
            Self::NotAFile { .. } => FailureCode::NotAFile,
            Self::NotADirectory { .. } => FailureCode::NotADirectory,
            Self::Exists { .. } => FailureCode::AlreadyExists,
            Self::NotEmpty { .. } => FailureCode::DirectoryNotEmpty,
            Self::Permission { .. } => FailureCode::PermissionDenied,
            Self::Outside { .. } => FailureCode::PathOutsideWorkspace,
            Self::Link { .. } => FailureCode::LinkRefused,
            Self::LinkLoop { .. } => FailureCode::TooManyLinks,
            Self::Protected { .. } => FailureCode::PathProtected,
            Self::TooLarge { .. } => FailureCode::FileSizeExceeded,
            Self::Binary { .. } => FailureCode::BinaryFile,
            Self::InvalidUtf8 { .. } => FailureCode::InvalidUtf8,
            Self::NotEncodable { .. } => FailureCode::NotEncodable,
            Self::Stale { .. } => FailureCode::Stale,
            Self::Conflict { .. } | Self::ChangedInBoth { .. } | Self::JobsRunning => {
                FailureCode::Conflict
            }
            Self::EditMismatch { .. } => FailureCode::EditMismatch,
            Self::EditEmpty => FailureCode::EditEmpty,
            Self::Pattern { .. } => FailureCode::PatternNotAllowed,
            Self::Call(error) => error.code(),
            Self::NameTooLong { .. } => FailureCode::NameTooLong,
            Self::CommandNotFound { .. } => FailureCode::CommandNotFound,
            Self::ProgramInWorkspace { .. } | Self::NulArgument | Self::NoLayers => {
                FailureCode::CommandNotAllowed
            }
            Self::Sandbox { .. } | Self::LayerRefused { .. } => FailureCode::SandboxFailed,
            Self::Cancelled => FailureCode::Cancelled,
            Self::Io { .. } => FailureCode::IoError,
        }
    }

    /// Turns the kernel's error for `action` on `path` into an error for the caller.
    pub(crate) fn from_os(errno: rustix::io::Errno, action: &'static str, path: &str) -> Self {
        use rustix::io::Errno;
        let path = if path.is_empty() { "." } else { path }.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound { path },
            Errno::NOTDIR => Self::NotADirectory { path },
            Errno::EXIST => Self::Exists { path },
            Errno::NOTEMPTY => Self::NotEmpty { path },
            Errno::ACCESS | Errno::PERM => {
                let action = match action {
                    "open" => "read",
                    "write" => "write to",
                    other => other,
                };
                Self::Permission { action, path }
            }
            Errno::XDEV if action != "move" => Self::Outside { path },
            Errno::LOOP => Self::LinkLoop { path },
            Errno::ISDIR => Self::NotAFile { path },
            // A socket, or a FIFO whose other end is not open. It is not a regular file.
            Errno::NXIO => Self::NotAFile { path },
            Errno::NAMETOOLONG => Self::NameTooLong { path },
            other => Self::Io { action, path, source: other.into() },
        }
    }
}
