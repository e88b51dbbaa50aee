//! Rows of requests that may be sent again.

use crate::{
    db::{Conn, DbError},
    rows::write_rows,
};
use atelier_core::ProjectId;
use chrono::{DateTime, Utc};

/// The key of a request, which its caller has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// Whose key it is. Callers do not share keys.
    pub caller: String,
    pub key: String,
    /// A digest of the request. A key stands for one request only.
    pub digest: Vec<u8>,
}

/// What a request with a key did.
pub(crate) struct RequestKeyRow {
    pub(crate) project: ProjectId,
    pub(crate) key: RequestKey,
    /// The answer as JSON.
    pub(crate) answer: String,
    pub(crate) created_at: DateTime<Utc>,
}

pub(crate) async fn write_request_keys(
    conn: &mut Conn,
    rows: Vec<RequestKeyRow>,
) -> Result<(), DbError> {
    write_rows!(
        conn,
        rows,
        "INSERT INTO request_keys (project_id, caller, key, digest, answer, created_at) ",
        |row, one| {
            row.push_bind(one.project.0)
                .push_bind(one.key.caller)
                .push_bind(one.key.key)
                .push_bind(one.key.digest)
                .push_bind(one.answer)
                .push_bind(one.created_at);
        },
        ""
    )
}
