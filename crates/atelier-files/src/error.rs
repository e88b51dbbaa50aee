use atelier_core::file::FilePathError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] atelier_store::Error),
    #[error("the object store returned an error: {0}")]
    Objects(#[from] object_store::Error),
    #[error("the object store did not answer in time")]
    ObjectsTimeout,
    #[error("the object store cannot be used: {0}")]
    Configuration(String),
    #[error("FileSizeError: the file is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error(transparent)]
    Path(#[from] FilePathError),
    /// The content is not what was stored.
    #[error("the content of {path} is damaged in the object store")]
    Damaged { path: String },
    /// The content is no longer there.
    #[error("the object store no longer has the content of {path}")]
    Lost { path: String },
    /// A rule of the object store has deleted the content after its conversation was archived.
    #[error(
        "the content of {path} has expired: it was deleted after its conversation was archived"
    )]
    Expired { path: String },
    #[error("another run is working in this conversation's folder; try again when it has ended")]
    Locked,
    #[error(
        "there is no such run here: it has ended, or the server was restarted; a sync stores \
             what it left in the folder"
    )]
    NoSuchRun,
    #[error("the workspace of this conversation is switched off")]
    Disabled,
    /// The rules for agents refuse the content.
    #[error("{0}")]
    Refused(String),
    #[error("this object store cannot make links")]
    NoLinks,
    #[error("{0}")]
    NotText(&'static str),
    /// The request body ended early or could not be read.
    #[error("the upload was interrupted: {0}")]
    Broken(String),
    #[error("{0}")]
    Parts(String),
    #[error("the file {0} does not exist")]
    NoSuchFile(String),
    #[error("cannot use the local folder: {0}")]
    Folder(#[from] atelier_executor::Error),
    #[error("cannot use the local folder: {0}")]
    Io(#[from] std::io::Error),
    #[error("the server is stopping")]
    Stopping,
}

impl Error {
    /// Whether a disk of this server, or of its database, has no space left.
    pub fn is_disk_full(&self) -> bool {
        if let Error::Store(error) = self {
            return error.trouble() == Some(atelier_store::Trouble::DiskFull);
        }
        let errors = std::iter::successors(Some(self as &dyn std::error::Error), |it| it.source());
        let mut errors = errors.filter_map(|error| error.downcast_ref::<std::io::Error>());
        errors.any(|error| error.kind() == std::io::ErrorKind::StorageFull)
    }

    /// Whether the object store failed, and not the request.
    pub(crate) fn is_store_failure(&self) -> bool {
        use object_store::Error as Objects;
        match self {
            Error::ObjectsTimeout => true,
            Error::Objects(error) => !matches!(
                error,
                Objects::NotFound { .. }
                    | Objects::AlreadyExists { .. }
                    | Objects::Precondition { .. }
                    | Objects::NotModified { .. }
            ),
            _ => false,
        }
    }

    /// Whether one object is lost or damaged, while the object store as a whole works.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::Damaged { .. }
                | Error::Lost { .. }
                | Error::Expired { .. }
                | Error::Store(atelier_store::Error::BlobGone)
        )
    }

    /// The stable code, for problems and for tool results.
    pub fn code(&self) -> &'static str {
        use atelier_store::Error as Store;
        if self.is_disk_full() {
            return "disk_full";
        }
        match self {
            Error::Store(Store::NotFound) | Error::NoSuchFile(_) | Error::NoSuchRun => "not_found",
            Error::Store(Store::Precondition) => "precondition_failed",
            Error::Store(Store::PathTaken(_) | Store::FileThere(_)) => "path_taken",
            Error::Store(Store::BlobGone) => "changed_meanwhile",
            Error::Store(Store::LeaseLost) | Error::Locked => "conversation_locked",
            Error::Store(_) => "store_unavailable",
            Error::Objects(_) | Error::ObjectsTimeout | Error::Stopping => {
                "object_store_unavailable"
            }
            Error::Configuration(_) => "object_store_unusable",
            Error::TooLarge { .. } => "file_size_exceeded",
            Error::Path(FilePathError::Traversal(_)) => "path_outside_workspace",
            Error::Path(_) => "invalid_path",
            Error::Damaged { .. } => "content_damaged",
            Error::Lost { .. } => "content_lost",
            Error::Expired { .. } => "content_expired",
            Error::Disabled => "workspace_disabled",
            Error::Refused(_) => "forbidden",
            Error::NoLinks => "links_unavailable",
            Error::NotText(_) => "not_text",
            Error::Broken(_) => "upload_broken",
            Error::Parts(_) => "upload_incomplete",
            Error::Folder(error) => error.code().known().unwrap_or("failed"),
            Error::Io(_) => "io_error",
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tokio::task::JoinError> for Error {
    fn from(_: tokio::task::JoinError) -> Self {
        Error::Stopping
    }
}
