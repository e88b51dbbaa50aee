//! The files of a conversation: listing, uploading, changing, deleting.

use super::{
    DONE,
    file_form::{Form, UploadForm, expectation, receive},
};
use crate::{
    App,
    access::{OwnFiles, WritableFiles},
    auth::Person,
    body::{Json, OptionalJson},
    error::{Error, Result},
    path::{ConversationInPath, FileInPath, TenantInPath},
    query::Params,
};
use atelier_api::files::{SyncRequest, UploadedFiles, WorkspaceInfo};
use atelier_core::{ConversationFile, FilePath, file::FileStatus, json};
use atelier_files::SyncReport;
use atelier_store::FileChanges;
use axum::{
    Json as Reply,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The fields to change. Absent fields stay as they are.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileUpdate {
    /// Another path in the workspace.
    file_path: Option<String>,
    /// Null removes the description.
    #[serde(default, deserialize_with = "json::given")]
    #[schema(value_type = Option<String>, max_length = 8192)]
    description: Option<Option<String>>,
    is_presented: Option<bool>,
}

/// Which files to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FileFilter {
    /// `deleted` lists the files that agents deleted and that can be restored.
    status: Option<FileStatus>,
}

/// The most seconds that a sync waits for a run in the same folder.
const MAX_WAIT: u8 = 30;

/// Show a conversation's workspace and its files
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}", tag = "files",
    params(TenantInPath, ConversationInPath, FileFilter),
    responses((status = 200, description = "The workspace and its files", body = WorkspaceInfo)))]
pub(super) async fn info(
    own: OwnFiles,
    Params(filter): Params<FileFilter>,
) -> Result<Reply<WorkspaceInfo>> {
    let files = match filter.status {
        Some(FileStatus::Deleted) => own.workspace.deleted().await?,
        Some(FileStatus::Active) | None => own.workspace.list().await?,
    };
    Ok(Reply(WorkspaceInfo {
        conversation_id: own.conversation.id,
        workspace_enabled: own.conversation.workspace_enabled,
        workspace_path: own.conversation.workspace_path,
        file_count: files.len(),
        total_size: files.iter().map(|file| file.file_size).sum(),
        files,
    }))
}

/// Upload files
///
/// A file at an existing path becomes the next version of that file. `If-Match` with the checksum
/// that you know keeps you from replacing a version that you have not seen; `If-None-Match: *`
/// keeps you from replacing anything. Either all files of a request are saved, or none.
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/files", tag = "files",
    params(TenantInPath, ConversationInPath),
    request_body(content = UploadForm, content_type = "multipart/form-data"), responses(
    (status = 201, description = "The saved files", body = UploadedFiles),
    (status = 403, description = "PathTraversalError: the path leads out of the workspace; or \
                                  the workspace is switched off"),
    (status = 409, description = "The path is already a folder, or one of its folders is a file"),
    (status = 412, description = "The file is not the one that If-Match names"),
    (status = 413, description = "FileSizeError: the file is too large"),
))]
pub(super) async fn upload(
    State(app): State<App>,
    WritableFiles(own): WritableFiles,
    request: Request,
) -> Result<(StatusCode, Reply<UploadedFiles>)> {
    let expect = expectation(request.headers())?;
    let new = receive(&app, &own, Form::read(request).await?, expect).await?;
    let files = own.workspace.save(own.author, new).await?;
    Ok((StatusCode::CREATED, Reply(UploadedFiles { files })))
}

/// Rename a file, describe it, or mark it as presented
#[utoipa::path(patch, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath),
    request_body = FileUpdate, responses(
    (status = 200, description = "The changed file", body = ConversationFile),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn change(
    WritableFiles(own): WritableFiles,
    FileInPath(file): FileInPath,
    headers: HeaderMap,
    Json(update): Json<FileUpdate>,
) -> Result<Reply<ConversationFile>> {
    let path = update.file_path.as_deref().map(FilePath::parse).transpose()?;
    if update.description.iter().flatten().any(|text| text.len() > 8192 || text.contains('\0')) {
        return Err(Error::Invalid("description: must have at most 8192 bytes and no NUL".into()));
    }
    let expect = expectation(&headers)?;
    let FileUpdate { description, is_presented: presented, .. } = update;
    let to = FileChanges { path, description, presented, kind: None };
    Ok(Reply(own.workspace.change(own.author, file, to, expect).await?))
}

/// Delete a file with all its versions
#[utoipa::path(delete, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath), responses(
    (status = 204, description = "Deleted"),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn delete(
    _: Person,
    own: OwnFiles,
    FileInPath(file): FileInPath,
    headers: HeaderMap,
) -> Result<StatusCode> {
    own.workspace.delete(own.author, file, expectation(&headers)?).await?;
    Ok(DONE)
}

/// Sync the conversation's folder on the server
///
/// Missing and damaged files are fetched again. Changes that an interrupted run left in the folder
/// are saved. Runs of agents sync by themselves.
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/sync", tag = "files",
    params(TenantInPath, ConversationInPath), request_body = Option<SyncRequest>, responses(
    (status = 200, description = "What the sync did", body = SyncReport),
    (status = 409, description = "conversation_locked: a run is working in the folder"),
))]
pub(super) async fn sync(
    WritableFiles(own): WritableFiles,
    OptionalJson(request): OptionalJson<SyncRequest>,
) -> Result<Reply<SyncReport>> {
    if request.wait_seconds > MAX_WAIT {
        return Err(Error::Invalid(format!("wait_seconds: must be at most {MAX_WAIT}")));
    }
    let wait = Duration::from_secs(request.wait_seconds.into());
    Ok(Reply(own.workspace.sync(wait).await?))
}
