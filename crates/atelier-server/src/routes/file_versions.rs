//! What a file was before.

use super::{
    file_form::expectation,
    file_reading::{Manner, send},
};
use crate::{
    body::{FileInPath, Json, NumberInPath, Params},
    error::{Error, Result},
    guard::{OpenFiles, OwnFiles},
};
use atelier_core::{ConversationFile, FileVersion};
use axum::{
    Json as Reply,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

#[derive(Serialize, ToSchema)]
pub(super) struct VersionList {
    versions: Vec<FileVersion>,
    total: usize,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Restoration {
    /// The version to go back to; it becomes the newest under a number of its own.
    #[schema(minimum = 1)]
    version: i64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Span {
    /// The older version; the one before `to`, unless given.
    #[param(minimum = 1)]
    from: Option<i64>,
    /// The newer version; the newest, unless given.
    #[param(minimum = 1)]
    to: Option<i64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Lifetime {
    /// How long the link is good, in seconds.
    #[param(minimum = 1, maximum = 86400, default = 900)]
    seconds: u32,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self { seconds: 900 }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Link {
    url: String,
    expires_at: DateTime<Utc>,
}

/// List the versions of a file, newest first
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions", tag = "files",
    params(("tenant" = String, Path), ("conversation" = uuid::Uuid, Path), ("file" = uuid::Uuid, Path)),
    responses((status = 200, body = VersionList)))]
pub(super) async fn list(own: OwnFiles, FileInPath(file): FileInPath) -> Result<Reply<VersionList>> {
    let versions = own.workspace.versions(file).await?;
    Ok(Reply(VersionList { total: versions.len(), versions }))
}

/// Download a version of a file
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions/{number}",
    tag = "files", operation_id = "version",
    params(("tenant" = String, Path), ("conversation" = uuid::Uuid, Path), ("file" = uuid::Uuid, Path), ("number" = i64, Path), Manner),
    responses(
    (status = 200, description = "The content, with the checksum as its ETag", content_type = "application/octet-stream"),
    (status = 206, description = "The range that was asked for", content_type = "application/octet-stream"),
    (status = 304, description = "You have it already"),
    (status = 416, description = "The range lies beyond the end"),
))]
pub(super) async fn download(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    NumberInPath(version): NumberInPath,
    Params(manner): Params<Manner>,
    headers: HeaderMap,
) -> Result<Response> {
    send(own.workspace.read(file, Some(version)).await?, &manner, &headers).await
}

/// Go back to an earlier version
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/restore", tag = "files",
    params(("tenant" = String, Path), ("conversation" = uuid::Uuid, Path), ("file" = uuid::Uuid, Path)),
    request_body = Restoration, responses(
    (status = 200, body = ConversationFile),
    (status = 412, description = "The file is not the one that If-Match names, or changed just now"),
))]
pub(super) async fn restore(
    OpenFiles(own): OpenFiles,
    FileInPath(file): FileInPath,
    headers: HeaderMap,
    Json(wanted): Json<Restoration>,
) -> Result<Reply<ConversationFile>> {
    Ok(Reply(own.workspace.restore(own.author, file, wanted.version, expectation(&headers)?).await?))
}

/// Compare two versions of a text
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/diff", tag = "files",
    params(("tenant" = String, Path), ("conversation" = uuid::Uuid, Path), ("file" = uuid::Uuid, Path), Span), responses(
    (status = 200, body = String, description = "A unified diff", content_type = "text/plain"),
    (status = 422, description = "not_text: the versions are no texts, or too large"),
))]
pub(super) async fn diff(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    Params(span): Params<Span>,
) -> Result<Response> {
    let diff = own.workspace.diff(file, span.from, span.to).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], diff).into_response())
}

/// Get a link to a file's content in the object store
///
/// Whoever has the link can read the content until it expires.
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/url", tag = "files",
    params(("tenant" = String, Path), ("conversation" = uuid::Uuid, Path), ("file" = uuid::Uuid, Path), Lifetime), responses(
    (status = 200, body = Link),
    (status = 409, description = "links_unavailable: this object store gives no links"),
))]
pub(super) async fn link(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    Params(lifetime): Params<Lifetime>,
) -> Result<Reply<Link>> {
    if !(1..=86400).contains(&lifetime.seconds) {
        return Err(Error::Invalid("seconds: must be between 1 and 86400".into()));
    }
    let expires_at = Utc::now() + TimeDelta::seconds(lifetime.seconds.into());
    let url = own.workspace.link(file, Duration::from_secs(lifetime.seconds.into())).await?;
    Ok(Reply(Link { url, expires_at }))
}
