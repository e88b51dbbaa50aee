//! Files of a conversation: looking, uploading, changing, deleting.

use super::{
    DONE,
    file_form::{Form, UploadForm, expectation, receive},
};
use crate::{
    App,
    auth::Person,
    body::{FileInPath, Json, OptionalJson},
    error::{Error, Result},
    guard::{OpenFiles, OwnFiles},
};
use atelier_core::{ConversationFile, FilePath, json};
use atelier_files::SyncReport;
use atelier_store::FileChanges;
use axum::{
    Json as Reply,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Serialize, ToSchema)]
pub(super) struct WorkspaceInfo {
    conversation_id: Uuid,
    workspace_enabled: bool,
    /// Where the files lie in the object store, from the first file operation on.
    workspace_path: Option<String>,
    file_count: usize,
    /// In bytes, of the newest versions.
    total_size: i64,
    files: Vec<ConversationFile>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Uploaded {
    files: Vec<ConversationFile>,
}

/// What to change; what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileUpdate {
    /// Another place in the workspace.
    file_path: Option<String>,
    /// Null takes it away.
    #[serde(default, deserialize_with = "json::given")]
    #[schema(value_type = Option<String>, max_length = 8192)]
    description: Option<Option<String>>,
    is_presented: Option<bool>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SyncRequest {
    /// How long to wait for another run in this conversation's folder to end.
    #[schema(maximum = 30)]
    wait_seconds: u8,
}

/// The most seconds that a sync waits for a run in the same folder.
const MAX_WAIT: u8 = 30;

/// Show a conversation's workspace and its files
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}", tag = "files",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)), responses((status = 200, body = WorkspaceInfo)))]
pub(super) async fn info(own: OwnFiles) -> Result<Reply<WorkspaceInfo>> {
    let files = own.workspace.list().await?;
    Ok(Reply(WorkspaceInfo {
        conversation_id: own.conversation.id.0,
        workspace_enabled: own.conversation.workspace_enabled,
        workspace_path: own.conversation.workspace_path,
        file_count: files.len(),
        total_size: files.iter().map(|file| file.file_size).sum(),
        files,
    }))
}

/// Upload files
///
/// Another file at the same path becomes its next version. `If-Match` with the checksum you know of keeps you from
/// replacing what you have not seen; `If-None-Match: *` from replacing anything. All files of a request are saved,
/// or none.
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/files", tag = "files",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)),
    request_body(content = UploadForm, content_type = "multipart/form-data"), responses(
    (status = 201, body = Uploaded),
    (status = 403, description = "PathTraversalError: the path leaves the workspace; or the workspace is switched off"),
    (status = 409, description = "A path is a file or a folder, not both"),
    (status = 412, description = "The file is not the one that If-Match names"),
    (status = 413, description = "FileSizeError: the file is too large"),
))]
pub(super) async fn upload(
    State(app): State<App>,
    OpenFiles(own): OpenFiles,
    request: Request,
) -> Result<(StatusCode, Reply<Uploaded>)> {
    let expect = expectation(request.headers())?;
    let new = receive(&app, &own, Form::of(request).await?, expect).await?;
    let files = own.workspace.save(own.author, new).await?;
    Ok((StatusCode::CREATED, Reply(Uploaded { files })))
}

/// Rename a file, describe it, or mark it as presented
#[utoipa::path(patch, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}", tag = "files",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("file" = Uuid, Path)),
    request_body = FileUpdate, responses(
    (status = 200, body = ConversationFile),
    (status = 412, description = "The file is not the one that If-Match names"),
))]
pub(super) async fn change(
    OpenFiles(own): OpenFiles,
    FileInPath(file): FileInPath,
    headers: HeaderMap,
    Json(update): Json<FileUpdate>,
) -> Result<Reply<ConversationFile>> {
    let path = update.file_path.as_deref().map(FilePath::parse).transpose()?;
    if update.description.iter().flatten().any(|text| text.len() > 8192 || text.contains('\0')) {
        return Err(Error::Invalid("description: must be at most 8192 bytes and hold no NUL".into()));
    }
    let expect = expectation(&headers)?;
    let FileUpdate { description, is_presented: presented, .. } = update;
    let to = FileChanges { path, description, presented, kind: None };
    Ok(Reply(own.workspace.change(own.author, file, to, expect).await?))
}

/// Delete a file with all its versions
#[utoipa::path(delete, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}", tag = "files",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path), ("file" = Uuid, Path)), responses(
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

/// Bring the conversation's folder on the server in step
///
/// What is missing or damaged there is fetched; what a run that did not end has left there is kept. Agents' runs do
/// this by themselves.
#[utoipa::path(post, path = "/api/tenants/{tenant}/workspace/{conversation}/sync", tag = "files",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)), request_body = Option<SyncRequest>, responses(
    (status = 200, body = SyncReport),
    (status = 409, description = "conversation_locked: a run works in the folder"),
))]
pub(super) async fn sync(
    OpenFiles(own): OpenFiles,
    OptionalJson(request): OptionalJson<SyncRequest>,
) -> Result<Reply<SyncReport>> {
    if request.wait_seconds > MAX_WAIT {
        return Err(Error::Invalid(format!("wait_seconds: must be at most {MAX_WAIT}")));
    }
    let wait = Duration::from_secs(request.wait_seconds.into());
    Ok(Reply(own.workspace.sync(wait).await?))
}
