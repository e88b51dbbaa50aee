//! Earlier versions of a file.

use super::{
    file_form::expectation,
    file_reading::{DownloadOptions, send},
};
use crate::{
    access::{OwnFiles, WritableFiles},
    body::Json,
    error::{Error, Result},
    path::{ConversationInPath, FileInPath, NumberInPath, TenantInPath},
    query::Params,
};
use atelier_api::files::{RestoreRequest, VersionList};
use atelier_core::ConversationFile;
use axum::{
    Json as Reply,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct VersionRange {
    /// The older version. The default is the one before `to`.
    #[param(minimum = 1)]
    from: Option<i64>,
    /// The newer version. The default is the newest one.
    #[param(minimum = 1)]
    to: Option<i64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct LinkLifetime {
    /// How long the link is valid, in seconds.
    #[param(minimum = 1, maximum = 86400, default = 900)]
    seconds: u32,
}

impl Default for LinkLifetime {
    fn default() -> Self {
        Self { seconds: 900 }
    }
}

/// A link to content in the object store.
#[derive(Serialize, ToSchema)]
pub(super) struct Link {
    url: String,
    expires_at: DateTime<Utc>,
}

/// List the versions of a file, newest first
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath),
    responses((status = 200, description = "The versions", body = VersionList)))]
pub(super) async fn list(
    own: OwnFiles,
    FileInPath(file): FileInPath,
) -> Result<Reply<VersionList>> {
    let versions = own.workspace.versions(file).await?;
    Ok(Reply(VersionList { total: versions.len(), versions }))
}

/// Download a version of a file
#[utoipa::path(get,
    path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions/{number}",
    tag = "files", operation_id = "version",
    params(TenantInPath, ConversationInPath, FileInPath, NumberInPath, DownloadOptions),
    responses(
    (status = 200, description = "The content, with the checksum as its ETag",
        content_type = "application/octet-stream"),
    (status = 206, description = "The requested range", content_type = "application/octet-stream"),
    (status = 304, description = "You already have this version"),
    (status = 416, description = "The range begins after the end of the file"),
))]
pub(super) async fn download(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    NumberInPath(version): NumberInPath,
    Params(options): Params<DownloadOptions>,
    headers: HeaderMap,
) -> Result<Response> {
    send(own.workspace.read(file, Some(version)).await?, &options, &headers).await
}

/// Restore an earlier version
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/restore",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath),
    request_body = RestoreRequest, responses(
    (status = 200, description = "The restored file", body = ConversationFile),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn restore(
    WritableFiles(own): WritableFiles,
    FileInPath(file): FileInPath,
    headers: HeaderMap,
    Json(request): Json<RestoreRequest>,
) -> Result<Reply<ConversationFile>> {
    let expect = expectation(&headers)?;
    Ok(Reply(own.workspace.restore(own.author, file, request.version, expect).await?))
}

/// Compare two versions of a text file
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/diff",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath, VersionRange), responses(
    (status = 200, body = String, description = "A unified diff", content_type = "text/plain"),
    (status = 422, description = "not_text: a version is not text, or it is too large"),
))]
pub(super) async fn diff(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    Params(range): Params<VersionRange>,
) -> Result<Response> {
    let diff = own.workspace.diff(file, range.from, range.to).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], diff).into_response())
}

/// Get a link to a file's content in the object store
///
/// Anybody who has the link can read the content until the link expires.
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/url",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath, LinkLifetime), responses(
    (status = 200, description = "The link", body = Link),
    (status = 409, description = "links_unavailable: this object store cannot make links"),
))]
pub(super) async fn link(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    Params(lifetime): Params<LinkLifetime>,
) -> Result<Reply<Link>> {
    if !(1..=86400).contains(&lifetime.seconds) {
        return Err(Error::Invalid("seconds: must be between 1 and 86400".into()));
    }
    let expires_at = Utc::now() + TimeDelta::seconds(lifetime.seconds.into());
    let url = own.workspace.link(file, Duration::from_secs(lifetime.seconds.into())).await?;
    Ok(Reply(Link { url, expires_at }))
}
