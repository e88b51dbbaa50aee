//! One table that turns every error into a problem (RFC 9457) with a stable code.

use atelier_api::{Problem, ProblemCode};
use atelier_core::{Invalid, file::FilePathError, gate::Refusal};
use atelier_files::Error as FilesError;
use atelier_memory::Error as MemoryError;
use atelier_runtime::Error as RuntimeError;
use atelier_store::{Error as StoreError, Trouble};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use std::borrow::Cow;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Files(FilesError),
    #[error("{0}")]
    MalformedJson(String),
    #[error("{0}")]
    Invalid(String),
    #[error("the body must be application/json")]
    NotJson,
    #[error("the body must be multipart/form-data")]
    NotForm,
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Unauthorized(Cow<'static, str>),
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("it does not exist, or it is not yours")]
    NotFound,
    #[error("the project has no agent {0:?}")]
    NoAgent(String),
    #[error("the range begins after the end of the file, which has {0} bytes")]
    Range(u64),
    #[error("this path does not support this method")]
    MethodNotAllowed,
    #[error("{0}")]
    TooManyRequests(&'static str),
    #[error("{0} event streams are open already: close some first")]
    TooManyStreams(usize),
    #[error("the request arrived too slowly")]
    Timeout,
    #[error("the server took too long to answer; try again")]
    TookTooLong,
    #[error("the server failed; its log says why")]
    Internal,
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Error::Runtime(error.into())
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Store(error) => error.into(),
            other => Error::Runtime(RuntimeError::Memory(other)),
        }
    }
}

impl From<FilesError> for Error {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::Store(error) => error.into(),
            other => Error::Files(other),
        }
    }
}

impl From<FilePathError> for Error {
    fn from(error: FilePathError) -> Self {
        Error::Files(error.into())
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(invalid.to_string())
    }
}

impl Error {
    /// The one table of errors and codes. A code also decides the status.
    fn code(&self) -> ProblemCode {
        use FilesError as F;
        use ProblemCode as C;
        use RuntimeError as R;
        use StoreError as S;
        match self {
            Error::NotFound | Error::NoAgent(_) => C::NotFound,
            Error::Range(_) => C::RangeNotSatisfiable,
            Error::Invalid(_) => C::InvalidRequest,
            Error::MalformedJson(_) => C::MalformedJson,
            Error::NotJson | Error::NotForm => C::UnsupportedMediaType,
            Error::TooLarge(_) => C::BodyTooLarge,
            Error::Unauthorized(_) => C::Unauthorized,
            Error::Forbidden(_) => C::Forbidden,
            Error::MethodNotAllowed => C::MethodNotAllowed,
            Error::TooManyRequests(_) => C::TooManyRequests,
            Error::TooManyStreams(_) => C::TooManyStreams,
            Error::Timeout => C::RequestTimeout,
            Error::TookTooLong => C::TookTooLong,
            Error::Internal => C::Internal,
            Error::Files(error) if error.is_disk_full() => C::DiskFull,
            Error::Files(error) => match error {
                F::TooLarge { .. } => C::FileSizeExceeded,
                F::Path(FilePathError::Traversal(_)) => C::PathOutsideWorkspace,
                F::Path(_) => C::InvalidPath,
                F::Disabled => C::WorkspaceDisabled,
                F::Refused(_) => C::Forbidden,
                F::NotText(_) => C::NotText,
                F::NoLinks => C::LinksUnavailable,
                F::Parts(_) => C::UploadIncomplete,
                F::Locked => C::ConversationLocked,
                F::Broken(_) => C::UploadBroken,
                F::NoSuchRun | F::NoSuchFile(_) => C::NotFound,
                F::Objects(_) | F::ObjectsTimeout | F::Stopping => C::ObjectStoreUnavailable,
                F::Damaged { .. } => C::ContentDamaged,
                F::Lost { .. } => C::ContentLost,
                F::Expired { .. } => C::ContentExpired,
                _ => C::Internal,
            },
            Error::Runtime(R::Store(error)) if error.trouble() == Some(Trouble::DiskFull) => {
                C::DiskFull
            }
            Error::Runtime(R::Store(error)) => match error {
                S::NotFound => C::NotFound,
                S::NameTaken => C::NameTaken,
                S::OtherTenant => C::OtherTenant,
                S::ClientTaken => C::ClientTaken,
                S::Sql(_) | S::Commit(_) | S::NotBegun | S::Closed => C::StoreUnavailable,
                S::Precondition => C::PreconditionFailed,
                S::PathTaken(_) | S::FileThere(_) => C::PathTaken,
                S::BlobGone => C::ChangedMeanwhile,
                S::LeaseLost => C::ConversationLocked,
                S::QueueFull { .. } => C::QueueFull,
                S::KeyReused => C::IdempotencyKeyReused,
                S::Damaged(_) => C::StoreUnavailable,
                S::Archived => C::ConversationArchived,
                S::AgentDeleted => C::AgentDeleted,
                S::TaskAtWork => C::TaskAtWork,
                S::TaskSettled(_) | S::PlanSettled(_) => C::AlreadySettled,
                S::PlanNotApproved => C::PlanNotApproved,
                S::DependencyUnfinished(_) => C::DependencyUnfinished,
                _ => C::Internal,
            },
            Error::Runtime(R::Refused(refusal)) => match refusal {
                Refusal::Already(_) => C::AlreadySettled,
                Refusal::NotYours => C::NotYourCall,
                Refusal::OtherResult => C::ResultDiffers,
                Refusal::AskedAnew => C::AskedAnew,
            },
            Error::Runtime(R::Invalid(_)) => C::InvalidRequest,
            Error::Runtime(R::Busy { .. }) => C::QueueFull,
            Error::Runtime(R::TooManyOpenCalls { .. }) => C::TooManyOpenCalls,
            Error::Runtime(R::CallStorageFull { .. }) => C::CallStorageFull,
            Error::Runtime(R::Memory(_)) => C::MemoryUnavailable,
            Error::Runtime(R::SpaceClosed) => C::WorkerSpaceClosed,
        }
    }

    /// What the caller is told. Details of failures on the server stay in its log.
    fn detail(&self, code: ProblemCode) -> String {
        match code {
            ProblemCode::Internal => Error::Internal.to_string(),
            ProblemCode::ObjectStoreUnavailable => {
                "the object store does not answer; try again".into()
            }
            ProblemCode::StoreUnavailable => match self {
                Error::Runtime(RuntimeError::Store(error))
                    if error.trouble() == Some(Trouble::Damaged) =>
                {
                    Trouble::Damaged.to_string()
                }
                _ => "the database does not answer; try again".into(),
            },
            ProblemCode::DiskFull => {
                "the server's disk is full, so nothing was stored; try again when there is space"
                    .into()
            }
            ProblemCode::NotFound if !matches!(self, Error::NoAgent(_)) => {
                Error::NotFound.to_string()
            }
            _ => self.to_string(),
        }
    }

    pub(crate) fn problem(&self) -> Problem {
        let code = self.code();
        Problem {
            kind: format!("urn:atelier:problem:{code}"),
            title: status(code).canonical_reason().unwrap_or("Problem").into(),
            status: code.status(),
            detail: self.detail(code),
            code,
        }
    }
}

fn status(code: ProblemCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let problem = self.problem();
        let (code, status) = (problem.code, status(problem.code));
        if status.is_server_error() {
            tracing::error!(error = %self, code = %problem.code, "a request failed");
        }
        let mut response = (status, axum::Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                if let Error::Range(size) = self {
                    headers.insert(header::CONTENT_RANGE, ascii_header(&format!("bytes */{size}")));
                }
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::INSUFFICIENT_STORAGE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(retry_after(code)));
            }
            _ => {}
        }
        response
    }
}

/// In how many seconds a request may succeed that was refused with this code.
fn retry_after(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::TooManyStreams | ProblemCode::TooManyOpenCalls | ProblemCode::DiskFull => "10",
        ProblemCode::CallStorageFull => "3600",
        _ => "1",
    }
}

/// A header value that we build ourselves from printable ASCII characters.
pub(crate) fn ascii_header(value: &str) -> HeaderValue {
    HeaderValue::from_str(value)
        .unwrap_or_else(|error| unreachable!("printable ASCII is a valid header: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tools report the same codes in their outcomes, from `FilesError::code`.
    #[test]
    fn file_errors_have_the_same_code_in_problems_and_in_tool_outcomes() {
        let path = || "notes.txt".to_owned();
        for error in [
            FilesError::TooLarge { limit: 1 },
            FilesError::Path(FilePathError::Traversal(path())),
            FilesError::Path(FilePathError::Backslash(path())),
            FilesError::Disabled,
            FilesError::Refused("it usually holds secrets".into()),
            FilesError::NotText("it is not text"),
            FilesError::NoLinks,
            FilesError::Parts("a part is missing".into()),
            FilesError::Locked,
            FilesError::Broken("it ended early".into()),
            FilesError::NoSuchFile(path()),
            FilesError::ObjectsTimeout,
            FilesError::Io(std::io::ErrorKind::StorageFull.into()),
            FilesError::Stopping,
            FilesError::Damaged { path: path() },
            FilesError::Lost { path: path() },
            FilesError::Expired { path: path() },
            FilesError::Store(StoreError::NotFound),
            FilesError::Store(StoreError::Precondition),
            FilesError::Store(StoreError::PathTaken(path())),
            FilesError::Store(StoreError::BlobGone),
            FilesError::Store(StoreError::LeaseLost),
            FilesError::Store(StoreError::NotBegun),
            FilesError::Store(StoreError::Closed),
        ] {
            let code = error.code();
            assert_eq!(Error::from(error).code().as_str(), code);
        }
    }
}
