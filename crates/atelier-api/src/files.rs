//! Files of a conversation.

use atelier_core::{ConversationFile, ConversationId, FileId, FileVersion, RunId, UploadId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The workspace of a conversation and its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkspaceInfo {
    pub conversation_id: ConversationId,
    pub workspace_enabled: bool,
    /// The prefix of the files in the object store; null until the first file operation.
    pub workspace_path: Option<String>,
    pub file_count: usize,
    /// Size of the newest versions, in bytes.
    pub total_size: i64,
    pub files: Vec<ConversationFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UploadedFiles {
    pub files: Vec<ConversationFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VersionList {
    /// The newest version comes first.
    pub versions: Vec<FileVersion>,
    pub total: usize,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// The version to restore. It becomes the newest version, under a new number.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub version: i64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SyncRequest {
    /// How many seconds to wait for another run in the conversation's folder to end.
    #[cfg_attr(feature = "openapi", schema(maximum = 30))]
    pub wait_seconds: u8,
}

/// How a program begins a run in a conversation's folder.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RunRequest {
    /// How many seconds to wait for another run in the conversation's folder to end.
    #[cfg_attr(feature = "openapi", schema(maximum = 30))]
    pub wait_seconds: u8,
    /// How many seconds the run lasts unless it is renewed.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400))]
    pub lease_seconds: u32,
}

impl Default for RunRequest {
    fn default() -> Self {
        Self { wait_seconds: 0, lease_seconds: RunLease::default().lease_seconds }
    }
}

/// How long a run lasts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RunLease {
    /// How many seconds the run lasts from now, unless it is renewed.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400))]
    pub lease_seconds: u32,
}

impl Default for RunLease {
    fn default() -> Self {
        Self { lease_seconds: 600 }
    }
}

/// A run that has begun.
#[derive(Debug, Clone, Deserialize)]
pub struct BegunRun {
    pub run_id: RunId,
    /// The folder on the server's machine.
    pub workspace_path: String,
}

/// A file to upload in parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UploadRequest {
    /// Where the file goes in the workspace.
    pub path: String,
    /// The name of the file where it comes from. The default is the last name of the path.
    pub original_name: Option<String>,
    #[cfg_attr(feature = "openapi", schema(max_length = 8192))]
    pub description: Option<String>,
    /// Size of the whole file, in bytes.
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub size: u64,
}

/// An upload in parts, and how far it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Upload {
    pub upload_id: UploadId,
    pub file_path: String,
    /// Size of the whole file, in bytes.
    pub size: i64,
    /// How many bytes have arrived.
    pub received: i64,
    /// The parts that have arrived. Send the missing ones to go on.
    pub parts: Vec<UploadPart>,
    pub expires_at: DateTime<Utc>,
    /// The file that the upload became; null until it is complete.
    pub file_id: Option<FileId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UploadPart {
    pub number: i64,
    pub size: i64,
    /// SHA-256 of the part, in hexadecimal.
    pub checksum: String,
}
