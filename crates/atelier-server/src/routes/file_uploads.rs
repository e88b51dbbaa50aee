//! Uploads in parts, for large files and lines that break.

use super::{
    DONE,
    file_form::{expectation, original_name},
};
use crate::{
    App,
    auth::Person,
    body::{Json, NumberInPath, UploadInPath},
    error::{Error, Result},
    guard::{OpenFiles, OwnFiles},
};
use atelier_core::{ConversationFile, FilePath};
use atelier_files::{Error as FilesError, NewUpload, UploadState};
use axum::{
    Json as Reply,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadRequest {
    /// Where the file goes.
    path: String,
    /// What it is called where it comes from; the last name of the path, unless given.
    original_name: Option<String>,
    #[schema(max_length = 8192)]
    description: Option<String>,
    /// In bytes, of the whole file.
    #[schema(minimum = 0)]
    size: u64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct UploadView {
    upload_id: Uuid,
    file_path: String,
    size: i64,
    /// How many bytes are there.
    received: i64,
    /// Those that are there; the next upload goes on with what is not.
    parts: Vec<PartView>,
    expires_at: DateTime<Utc>,
    /// The file that it became, once it is complete.
    file_id: Option<Uuid>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct PartView {
    number: i64,
    size: i64,
    checksum: String,
}

impl From<UploadState> for UploadView {
    fn from(UploadState { upload, parts }: UploadState) -> Self {
        Self {
            upload_id: upload.id.0,
            file_path: upload.path.to_string(),
            size: upload.size,
            received: parts.iter().map(|part| part.size).sum(),
            parts: parts.into_iter().map(PartView::from).collect(),
            expires_at: upload.expires_at,
            file_id: upload.done.map(|file| file.0),
        }
    }
}

impl From<atelier_store::Part> for PartView {
    fn from(part: atelier_store::Part) -> Self {
        Self { number: part.number, size: part.size, checksum: part.checksum }
    }
}

/// Begin an upload in parts
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads", tag = "uploads",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)), request_body = UploadRequest, responses(
    (status = 201, body = UploadView),
    (status = 413, description = "FileSizeError: the file is too large"),
))]
pub(super) async fn begin(
    OpenFiles(own): OpenFiles,
    Json(request): Json<UploadRequest>,
) -> Result<(StatusCode, Reply<UploadView>)> {
    let UploadRequest { path, original_name: sent, description, size } = request;
    let long =
        |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > 8192 || text.contains('\0'));
    if long(&description) || long(&sent) {
        return Err(Error::Invalid("description and original_name: at most 8192 bytes, and no NUL".into()));
    }
    // Sizes first, as with any upload.
    let limit = own.workspace.limit();
    if size > limit {
        return Err(FilesError::TooLarge { limit }.into());
    }
    let path = FilePath::parse(&path)?;
    let original_name = original_name(sent.as_deref().unwrap_or_default(), &path);
    let begun = own.workspace.begin_upload(NewUpload { path, original_name, description, size }).await?;
    Ok((StatusCode::CREATED, Reply(begun.into())))
}

/// Show what of an upload is there
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}", tag = "uploads",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("upload" = Uuid, Path)),
    responses((status = 200, body = UploadView)))]
pub(super) async fn show(own: OwnFiles, UploadInPath(upload): UploadInPath) -> Result<Reply<UploadView>> {
    Ok(Reply(own.workspace.upload(upload).await?.into()))
}

/// The bytes of a part.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "for the document only")]
pub(super) struct PartBody(Vec<u8>);

/// Send a part; again, if it broke off
#[utoipa::path(put, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}/parts/{number}",
    tag = "uploads",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("upload" = Uuid, Path), ("number" = i64, Path)),
    request_body(content = PartBody, content_type = "application/octet-stream"), responses(
    (status = 200, body = PartView),
    (status = 409, description = "upload_incomplete: more bytes than were announced"),
))]
pub(super) async fn put_part(
    State(app): State<App>,
    OpenFiles(own): OpenFiles,
    UploadInPath(upload): UploadInPath,
    NumberInPath(number): NumberInPath,
    body: Body,
) -> Result<Reply<PartView>> {
    let patience = app.settings.request_timeout;
    let body = futures::stream::try_unfold(body.into_data_stream(), move |mut body| async move {
        let chunk = tokio::time::timeout(patience, body.next()).await;
        let chunk = chunk.map_err(|_| FilesError::Broken("it came too slowly".into()))?;
        let chunk = chunk.transpose().map_err(|error| FilesError::Broken(error.to_string()))?;
        Ok(chunk.map(|chunk| (chunk, body)))
    });
    Ok(Reply(own.workspace.put_part(upload, number, body.boxed()).await?.into()))
}

/// Put the parts together
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}/complete",
    tag = "uploads",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("upload" = Uuid, Path)), responses(
    (status = 201, body = ConversationFile),
    (status = 409, description = "upload_incomplete: parts or bytes are missing"),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn complete(
    OpenFiles(own): OpenFiles,
    UploadInPath(upload): UploadInPath,
    headers: HeaderMap,
) -> Result<(StatusCode, Reply<ConversationFile>)> {
    let file = own.workspace.complete_upload(own.author, upload, expectation(&headers)?).await?;
    Ok((StatusCode::CREATED, Reply(file)))
}

/// Give an upload up
#[utoipa::path(delete, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}", tag = "uploads",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("upload" = Uuid, Path)),
    responses((status = 204, description = "Given up")))]
pub(super) async fn cancel(
    _: Person,
    own: OwnFiles,
    UploadInPath(upload): UploadInPath,
) -> Result<StatusCode> {
    own.workspace.end_upload(upload).await?;
    Ok(DONE)
}
