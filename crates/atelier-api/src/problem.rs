//! Problems: the body of every answer that is not a success (RFC 9457).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The body of every answer that is not a success (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The kind of problem as a URI: `urn:atelier:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name of the status, such as `Not Found`.
    pub title: String,
    pub status: u16,
    /// What happened this time, in a sentence.
    pub detail: String,
    pub code: ProblemCode,
}

macro_rules! problem_codes {
    ($($(#[doc = $meaning:literal])+ $variant:ident = $code:literal, $status:literal;)+) => {
        /// Which kind of problem it is. Codes are stable: programs decide by them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemCode {
            $($(#[doc = $meaning])+ $variant,)+
            /// A code that this version does not know: the server is newer.
            Unknown,
        }

        impl ProblemCode {
            /// Every code that a server sends, by status.
            pub const ALL: &[ProblemCode] = &[$(ProblemCode::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ProblemCode::$variant => $code,)+
                    ProblemCode::Unknown => "unknown",
                }
            }

            /// The HTTP status that the code comes with.
            pub const fn status(self) -> u16 {
                match self {
                    $(ProblemCode::$variant => $status,)+
                    ProblemCode::Unknown => 500,
                }
            }

            /// What the code means, in a sentence.
            pub fn meaning(self) -> String {
                let lines: &[&str] = match self {
                    $(ProblemCode::$variant => &[$($meaning),+],)+
                    ProblemCode::Unknown => &["A code that this version does not know."],
                };
                lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
            }
        }
    };
}

problem_codes! {
    /// The body is not well-formed JSON.
    MalformedJson = "malformed_json", 400;
    /// The upload ended before all of it had arrived.
    UploadBroken = "upload_broken", 400;
    /// The token is missing, expired, revoked or not valid.
    Unauthorized = "unauthorized", 401;
    /// The token names another tenant than the one its user belongs to.
    OtherTenant = "other_tenant", 401;
    /// The token's role may not do this: `client` and `agent` tokens change no projects or agents.
    Forbidden = "forbidden", 403;
    /// The path leads out of the workspace.
    PathOutsideWorkspace = "path_outside_workspace", 403;
    /// The workspace of this conversation is switched off.
    WorkspaceDisabled = "workspace_disabled", 403;
    /// What the request names does not exist, or it is not yours.
    NotFound = "not_found", 404;
    /// The path does not support this method.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The request arrived too slowly.
    RequestTimeout = "request_timeout", 408;
    /// The name is already in use.
    NameTaken = "name_taken", 409;
    /// The call, task or plan is already settled; `detail` says how.
    AlreadySettled = "already_settled", 409;
    /// The call needs another approval by now.
    AskedAnew = "asked_anew", 409;
    /// The tool call was sent to another machine.
    NotYourCall = "not_your_call", 409;
    /// A machine with this id is connected with another token.
    ClientTaken = "client_taken", 409;
    /// The tool call already has another result.
    ResultDiffers = "result_differs", 409;
    /// The conversation is archived and accepts no messages.
    ConversationArchived = "conversation_archived", 409;
    /// The agent was deleted, so nobody can resume its task.
    AgentDeleted = "agent_deleted", 409;
    /// The agent is at work on the task, so nothing can be added to it at this moment.
    TaskAtWork = "task_at_work", 409;
    /// The plan has not been approved yet.
    PlanNotApproved = "plan_not_approved", 409;
    /// A task that this one depends on did not succeed.
    DependencyUnfinished = "dependency_unfinished", 409;
    /// The worker space was reset while the request ran.
    WorkerSpaceClosed = "worker_space_closed", 409;
    /// The path is already a file, or already a folder.
    PathTaken = "path_taken", 409;
    /// The file changed while the request ran.
    ChangedMeanwhile = "changed_meanwhile", 409;
    /// A run is working in the conversation's folder.
    ConversationLocked = "conversation_locked", 409;
    /// Parts of the upload are missing, or there are more bytes than announced.
    UploadIncomplete = "upload_incomplete", 409;
    /// The object store cannot make links.
    LinksUnavailable = "links_unavailable", 409;
    /// A rule of the object store deleted the content after its conversation was archived.
    ContentExpired = "content_expired", 410;
    /// The file is not the one that `If-Match` names.
    PreconditionFailed = "precondition_failed", 412;
    /// The body of the request is too large.
    BodyTooLarge = "body_too_large", 413;
    /// The file is too large.
    FileSizeExceeded = "file_size_exceeded", 413;
    /// The `Content-Type` is not the one that the operation reads.
    UnsupportedMediaType = "unsupported_media_type", 415;
    /// The range begins after the end of the file.
    RangeNotSatisfiable = "range_not_satisfiable", 416;
    /// A value is missing, unknown or out of range; `detail` names it.
    InvalidRequest = "invalid_request", 422;
    /// The path is not a valid file path.
    InvalidPath = "invalid_path", 422;
    /// The file is not text, or too large to compare.
    NotText = "not_text", 422;
    /// The `Idempotency-Key` was used for another request.
    IdempotencyKeyReused = "idempotency_key_reused", 422;
    /// Too many requests or tasks are waiting; see `Retry-After`.
    QueueFull = "queue_full", 429;
    /// You send too many requests in a second, or too many of them are running; see `Retry-After`.
    TooManyRequests = "too_many_requests", 429;
    /// You have too many event streams open.
    TooManyStreams = "too_many_streams", 429;
    /// Too many of your tool calls wait for a person or a machine, or are running.
    TooManyOpenCalls = "too_many_open_calls", 429;
    /// Your tool calls and their results take as much space as the server stores for one user.
    CallStorageFull = "call_storage_full", 429;
    /// The server failed; its log says why.
    Internal = "internal", 500;
    /// The object store returned something other than what was stored.
    ContentDamaged = "content_damaged", 502;
    /// The object store no longer has the content.
    ContentLost = "content_lost", 502;
    /// The database does not answer; see `Retry-After`.
    StoreUnavailable = "store_unavailable", 503;
    /// The memory index or the embedder does not answer; see `Retry-After`.
    MemoryUnavailable = "memory_unavailable", 503;
    /// The object store does not answer; see `Retry-After`.
    ObjectStoreUnavailable = "object_store_unavailable", 503;
    /// The server took too long to answer; see `Retry-After`.
    TookTooLong = "took_too_long", 503;
    /// The server's disk is full, so nothing was stored; see `Retry-After`.
    DiskFull = "disk_full", 507;
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ProblemCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ProblemCode {
    /// Accepts every text: a client must understand that it was refused, even if it does not know
    /// why.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = Self::ALL.iter().find(|code| code.as_str() == text);
        Ok(known.copied().unwrap_or(Self::Unknown))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ProblemCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                "Which kind of problem it is. Codes are stable: programs decide by them.",
            ))
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ProblemCode {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json, to_value};
    use std::collections::HashSet;

    #[test]
    fn codes_are_unique_and_survive_the_wire() {
        let mut seen = HashSet::new();
        for code in ProblemCode::ALL {
            assert!(seen.insert(code.as_str()), "{code} is listed twice");
            assert_eq!(from_value::<ProblemCode>(to_value(code).unwrap()).unwrap(), *code);
            assert!((400..600).contains(&code.status()), "{code}: {}", code.status());
            assert!(code.meaning().ends_with('.'), "{code}: {}", code.meaning());
        }
    }

    #[test]
    fn a_code_of_a_newer_server_is_unknown() {
        let problem = json!({
            "type": "urn:atelier:problem:too_blue", "title": "Conflict", "status": 409,
            "detail": "the folder is too blue", "code": "too_blue",
        });
        let expected = Problem {
            kind: "urn:atelier:problem:too_blue".into(),
            title: "Conflict".into(),
            status: 409,
            detail: "the folder is too blue".into(),
            code: ProblemCode::Unknown,
        };
        assert_eq!(from_value::<Problem>(problem).unwrap(), expected);
    }
}
