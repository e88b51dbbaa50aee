//! One shape for everything that goes wrong: RFC 9457, with a stable code.

use atelier_core::{Invalid, file::FilePathError, gate::Refusal};
use atelier_files::Error as FilesError;
use atelier_memory::Error as MemoryError;
use atelier_runtime::Error as RuntimeError;
use atelier_store::Error as StoreError;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use utoipa::ToSchema;

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
    #[error("the body has to be application/json")]
    NotJson,
    #[error("the body has to be multipart/form-data")]
    NotForm,
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Unauthorized(Cow<'static, str>),
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("there is no such thing here")]
    NotFound,
    #[error("the project has no agent {0:?}")]
    NoAgent(String),
    #[error("the range lies beyond the end of the file, which has {0} bytes")]
    Range(u64),
    #[error("this path does not take this method")]
    MethodNotAllowed,
    #[error("the request came too slowly")]
    Timeout,
    #[error("the answer took too long; try again")]
    TookTooLong,
    #[error("something went wrong on our side; the log says what")]
    Panicked,
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

/// What the body of every answer that is not a success looks like.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    /// A name for the kind of problem, as a URI.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) status: u16,
    /// What happened this time, in a sentence.
    pub(crate) detail: String,
    /// Stable; for programs.
    pub(crate) code: String,
}

impl Error {
    /// The one table of statuses and codes.
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        use FilesError as F;
        use RuntimeError as R;
        use StatusCode as S;
        use StoreError as D;
        match self {
            Error::Runtime(R::Store(D::NotFound)) | Error::NotFound | Error::NoAgent(_) => {
                (S::NOT_FOUND, "not_found")
            }
            Error::Runtime(R::Store(D::NameTaken)) => (S::CONFLICT, "name_taken"),
            Error::Runtime(R::Store(D::OtherTenant)) => (S::UNAUTHORIZED, "other_tenant"),
            Error::Runtime(R::Store(D::Sql(_) | D::Commit(_) | D::Closed)) => {
                (S::SERVICE_UNAVAILABLE, "store_unavailable")
            }
            Error::Runtime(R::Store(D::Precondition)) => (S::PRECONDITION_FAILED, "precondition_failed"),
            Error::Runtime(R::Store(D::PathTaken(_) | D::FileThere(_))) => (S::CONFLICT, "path_taken"),
            Error::Runtime(R::Store(D::BlobGone)) => (S::CONFLICT, "changed_meanwhile"),
            Error::Runtime(R::Store(D::LeaseLost)) => (S::CONFLICT, "conversation_locked"),
            Error::Runtime(R::Store(D::QueueFull { .. })) => (S::TOO_MANY_REQUESTS, "queue_full"),
            Error::Runtime(R::Store(D::Archived)) => (S::CONFLICT, "conversation_archived"),
            Error::Runtime(R::Store(D::AgentDeleted)) => (S::CONFLICT, "agent_deleted"),
            Error::Runtime(R::Store(D::TaskSettled(_) | D::PlanSettled(_))) => {
                (S::CONFLICT, "already_settled")
            }
            Error::Runtime(R::Store(D::PlanNotApproved)) => (S::CONFLICT, "plan_not_approved"),
            Error::Runtime(R::Store(D::DependencyUnfinished(_))) => (S::CONFLICT, "dependency_unfinished"),
            Error::Runtime(R::Store(_)) => (S::INTERNAL_SERVER_ERROR, "internal"),
            Error::Files(error) => match error {
                F::TooLarge { .. } => (S::PAYLOAD_TOO_LARGE, error.code()),
                F::Path(FilePathError::Traversal(_)) | F::Disabled => (S::FORBIDDEN, error.code()),
                F::Path(_) | F::NotText(_) => (S::UNPROCESSABLE_ENTITY, error.code()),
                F::NoLinks | F::Parts(_) | F::Locked => (S::CONFLICT, error.code()),
                F::Broken(_) => (S::BAD_REQUEST, error.code()),
                F::NoSuchFile(_) => (S::NOT_FOUND, error.code()),
                F::Objects(_) | F::ObjectsTimeout | F::Stopping => (S::SERVICE_UNAVAILABLE, error.code()),
                F::Damaged { .. } | F::Lost { .. } => (S::BAD_GATEWAY, error.code()),
                _ => (S::INTERNAL_SERVER_ERROR, "internal"),
            },
            Error::Range(_) => (S::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
            Error::Runtime(R::Invalid(_)) | Error::Invalid(_) => (S::UNPROCESSABLE_ENTITY, "invalid_request"),
            Error::Runtime(R::Busy { .. }) => (S::TOO_MANY_REQUESTS, "queue_full"),
            Error::Runtime(R::Refused(Refusal::Already(_))) => (S::CONFLICT, "already_settled"),
            Error::Runtime(R::Refused(Refusal::NotYours)) => (S::CONFLICT, "not_your_call"),
            Error::Runtime(R::Refused(Refusal::OtherResult)) => (S::CONFLICT, "result_differs"),
            Error::Runtime(R::Refused(Refusal::AskedAnew)) => (S::CONFLICT, "asked_anew"),
            Error::Runtime(R::Memory(_)) => (S::SERVICE_UNAVAILABLE, "memory_unavailable"),
            Error::Runtime(R::SpaceClosed) => (S::CONFLICT, "worker_space_closed"),
            Error::MalformedJson(_) => (S::BAD_REQUEST, "malformed_json"),
            Error::NotJson | Error::NotForm => (S::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Error::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, "body_too_large"),
            Error::Unauthorized(_) => (S::UNAUTHORIZED, "unauthorized"),
            Error::Forbidden(_) => (S::FORBIDDEN, "forbidden"),
            Error::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Error::Timeout => (S::REQUEST_TIMEOUT, "request_timeout"),
            Error::TookTooLong => (S::SERVICE_UNAVAILABLE, "took_too_long"),
            Error::Panicked => (S::INTERNAL_SERVER_ERROR, "internal"),
        }
    }

    /// What the asker is told: our own troubles stay in the log.
    fn detail(&self, status: StatusCode) -> String {
        match status {
            StatusCode::INTERNAL_SERVER_ERROR => Error::Panicked.to_string(),
            StatusCode::SERVICE_UNAVAILABLE if matches!(self, Error::Files(_)) => {
                "the object store refuses or does not answer; try again".into()
            }
            StatusCode::SERVICE_UNAVAILABLE
                if !matches!(self, Error::TookTooLong | Error::Runtime(RuntimeError::Memory(_))) =>
            {
                "the database refuses or does not answer; try again".into()
            }
            StatusCode::NOT_FOUND if !matches!(self, Error::NoAgent(_)) => Error::NotFound.to_string(),
            _ => self.to_string(),
        }
    }
}

impl Error {
    /// How it is told.
    pub(crate) fn problem(&self) -> Problem {
        let (status, code) = self.status_and_code();
        Problem {
            kind: format!("urn:atelier:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Problem").into(),
            status: status.as_u16(),
            detail: self.detail(status),
            code: code.into(),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        if status.is_server_error() {
            tracing::error!(error = %self, code, "a request failed");
        }
        let mut response = (status, axum::Json(self.problem())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                if let Error::Range(size) = self {
                    headers.insert(header::CONTENT_RANGE, plain(&format!("bytes */{size}")));
                }
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// A header of plain characters that we put together ourselves.
fn plain(value: &str) -> HeaderValue {
    HeaderValue::from_str(value)
        .unwrap_or_else(|error| unreachable!("plain characters are a header: {error}"))
}
