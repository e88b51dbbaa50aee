//! Uploads in parts, for large files and unreliable connections.

use super::{
    DONE,
    file_form::{expectation, original_name},
};
use crate::{
    App,
    access::{OwnFiles, WritableFiles},
    auth::Person,
    body::Json,
    error::{Error, Result},
    path::{ConversationInPath, NumberInPath, TenantInPath, UploadInPath},
};
use atelier_api::files::{Upload, UploadPart, UploadRequest};
use atelier_core::{ConversationFile, FilePath};
use atelier_files::{Error as FilesError, NewUpload, UploadState};
use axum::{
    Json as Reply,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use futures::StreamExt;
use utoipa::ToSchema;

fn view(UploadState { upload, parts }: UploadState) -> Upload {
    Upload {
        upload_id: upload.id,
        file_path: upload.path.to_string(),
        size: upload.size,
        received: parts.iter().map(|part| part.size).sum(),
        parts: parts.into_iter().map(part_view).collect(),
        expires_at: upload.expires_at,
        file_id: upload.done,
    }
}

fn part_view(part: atelier_store::Part) -> UploadPart {
    UploadPart { number: part.number, size: part.size, checksum: part.checksum }
}

/// Begin an upload in parts
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads",
    tag = "uploads",
    params(TenantInPath, ConversationInPath), request_body = UploadRequest, responses(
    (status = 201, description = "The upload", body = Upload),
    (status = 413, description = "FileSizeError: the file is too large"),
))]
pub(super) async fn begin(
    WritableFiles(own): WritableFiles,
    Json(request): Json<UploadRequest>,
) -> Result<(StatusCode, Reply<Upload>)> {
    let UploadRequest { path, original_name: sent, description, size } = request;
    let refused = |text: &Option<String>| {
        text.as_ref().is_some_and(|text| text.len() > 8192 || text.contains('\0'))
    };
    if refused(&description) || refused(&sent) {
        let problem = "description and original_name: must have at most 8192 bytes and no NUL";
        return Err(Error::Invalid(problem.into()));
    }
    // The size is checked before the path, as in every upload.
    let limit = own.workspace.limit();
    if size > limit {
        return Err(FilesError::TooLarge { limit }.into());
    }
    let path = FilePath::parse(&path)?;
    let original_name = original_name(sent.as_deref().unwrap_or_default(), &path);
    let begun =
        own.workspace.begin_upload(NewUpload { path, original_name, description, size }).await?;
    Ok((StatusCode::CREATED, Reply(view(begun))))
}

/// Show an upload and the parts that have arrived
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}",
    tag = "uploads",
    params(TenantInPath, ConversationInPath, UploadInPath),
    responses((status = 200, description = "The upload", body = Upload)))]
pub(super) async fn show(
    own: OwnFiles,
    UploadInPath(upload): UploadInPath,
) -> Result<Reply<Upload>> {
    Ok(Reply(view(own.workspace.upload(upload).await?)))
}

/// The bytes of a part.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "describes the body in the OpenAPI document")]
pub(super) struct PartBody(Vec<u8>);

/// Send a part
///
/// A part that did not arrive whole can be sent again.
#[utoipa::path(put,
    path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}/parts/{number}",
    tag = "uploads",
    params(TenantInPath, ConversationInPath, UploadInPath, NumberInPath),
    request_body(content = PartBody, content_type = "application/octet-stream"), responses(
    (status = 200, description = "The part", body = UploadPart),
    (status = 409, description = "upload_incomplete: there are more bytes than announced"),
))]
pub(super) async fn put_part(
    State(app): State<App>,
    WritableFiles(own): WritableFiles,
    UploadInPath(upload): UploadInPath,
    NumberInPath(number): NumberInPath,
    body: Body,
) -> Result<Reply<UploadPart>> {
    let timeout = app.settings.request_timeout;
    let body = futures::stream::try_unfold(body.into_data_stream(), move |mut body| async move {
        let chunk = tokio::time::timeout(timeout, body.next()).await;
        let chunk = chunk.map_err(|_| FilesError::Broken("it arrived too slowly".into()))?;
        let chunk = chunk.transpose().map_err(|error| FilesError::Broken(error.to_string()))?;
        Ok(chunk.map(|chunk| (chunk, body)))
    });
    Ok(Reply(part_view(own.workspace.put_part(upload, number, body.boxed()).await?)))
}

/// Complete an upload: make a file of its parts
#[utoipa::path(post,
    path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}/complete",
    tag = "uploads",
    params(TenantInPath, ConversationInPath, UploadInPath), responses(
    (status = 201, description = "The saved file", body = ConversationFile),
    (status = 409, description = "upload_incomplete: parts or bytes are missing"),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn complete(
    WritableFiles(own): WritableFiles,
    UploadInPath(upload): UploadInPath,
    headers: HeaderMap,
) -> Result<(StatusCode, Reply<ConversationFile>)> {
    let file = own.workspace.complete_upload(own.author, upload, expectation(&headers)?).await?;
    Ok((StatusCode::CREATED, Reply(file)))
}

/// Cancel an upload
#[utoipa::path(delete, path = "/api/tenants/{tenant}/workspace/{conversation}/uploads/{upload}",
    tag = "uploads",
    params(TenantInPath, ConversationInPath, UploadInPath),
    responses((status = 204, description = "Cancelled")))]
pub(super) async fn cancel(
    _: Person,
    own: OwnFiles,
    UploadInPath(upload): UploadInPath,
) -> Result<StatusCode> {
    own.workspace.end_upload(upload).await?;
    Ok(DONE)
}
