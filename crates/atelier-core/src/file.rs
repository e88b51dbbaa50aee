//! Files of conversations.

use crate::{
    ConversationId, FileId, UserId,
    path::{PathError, Roots, WorkspacePath},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The newest version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConversationFile {
    /// The id of the file, the same for all its versions.
    pub file_id: FileId,
    pub conversation_id: ConversationId,
    /// The path, relative to the workspace.
    pub file_path: FilePath,
    /// The name that the file had where it came from.
    pub original_name: String,
    pub description: Option<String>,
    /// The size in bytes.
    pub file_size: i64,
    pub mime_type: String,
    /// The number of the version. Every change of the content adds one.
    pub version: i64,
    pub source: FileSource,
    /// Whether an agent has presented the file to the user.
    pub is_presented: bool,
    /// SHA-256, in hexadecimal digits.
    pub checksum: String,
    pub status: FileStatus,
    /// The user who made this version; `None` if an agent did.
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// One version of a file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileVersion {
    pub version: i64,
    pub original_name: String,
    pub file_size: i64,
    pub mime_type: String,
    pub source: FileSource,
    pub checksum: String,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
}

/// Where the content of a version comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileSource {
    UserUpload,
    /// An agent created the file.
    AiCreated,
    /// An agent changed an existing file.
    AiModified,
}

impl FileSource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserUpload => "user_upload",
            Self::AiCreated => "ai_created",
            Self::AiModified => "ai_modified",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    Active,
    Deleted,
}

/// One change of a conversation's files, as an event reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChange {
    pub change: ChangeKind,
    pub file_id: FileId,
    pub file_path: FilePath,
    pub version: i64,
    pub source: FileSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Created,
    Updated,
    /// The path, the description or `is_presented` changed, but not the content.
    Renamed,
    Deleted,
}

/// The path of a file in its workspace. A value of this type was checked: it stays inside the
/// workspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(WorkspacePath);

/// Why a text is not the path of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilePathError {
    #[error("PathTraversalError: the path {0:?} is absolute or leaves the workspace")]
    Traversal(String),
    #[error("{0}")]
    Other(#[from] PathError),
    #[error("The path {0:?} names a folder, not a file")]
    Folder(String),
    /// Some systems and some object stores treat a backslash like a slash.
    #[error("The path {0:?} holds a backslash; folders are separated by a slash")]
    Backslash(String),
    #[error("The path is too long: the object store takes at most {most} bytes here")]
    TooLong { most: usize },
}

impl FilePath {
    /// Parses a path. A name `..` is refused wherever it leads, because no file needs it
    /// (`a..b.txt` is a valid name).
    pub fn parse(raw: &str) -> Result<Self, FilePathError> {
        let traversal = || FilePathError::Traversal(raw.to_owned());
        if raw.split(['/', '\\']).any(|name| name == "..") {
            return Err(traversal());
        }
        let path =
            WorkspacePath::parse(raw, &Roots::relative_only()).map_err(|error| match error {
                PathError::Outside { .. } => traversal(),
                other => FilePathError::Other(other),
            })?;
        if raw.contains('\\') {
            return Err(FilePathError::Backslash(raw.to_owned()));
        }
        if path.is_root() || path.demands_directory() {
            return Err(FilePathError::Folder(raw.to_owned()));
        }
        Ok(Self(path))
    }

    /// The path of a file with this name in a folder. An empty folder means the workspace itself.
    pub fn in_folder(folder: &str, name: &str) -> Result<Self, FilePathError> {
        match folder.trim_end_matches('/') {
            "" if folder.starts_with('/') => Err(FilePathError::Traversal(folder.to_owned())),
            "" => Self::parse(name),
            folder => Self::parse(&format!("{folder}/{name}")),
        }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub fn as_workspace(&self) -> &WorkspacePath {
        &self.0
    }

    pub fn file_name(&self) -> &str {
        self.0.file_name().unwrap_or_else(|| self.as_str())
    }

    /// The part of the name after its last dot; `None` if the name has no other part.
    pub fn extension(&self) -> Option<&str> {
        let (stem, extension) = self.file_name().rsplit_once('.')?;
        (!stem.is_empty()).then_some(extension)
    }

    /// The folders that the file is in, from the outside in.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        let text = self.as_str();
        text.match_indices('/').map(move |(at, _)| &text[..at])
    }

    /// A path in the same folder whose name has `mark` before its extension.
    pub fn marked(&self, mark: &str) -> Result<Self, FilePathError> {
        let (folder, name) =
            self.as_str().rsplit_once('/').map_or(("", self.as_str()), |split| split);
        let extension =
            self.extension().map_or_else(String::new, |extension| format!(".{extension}"));
        let stem = &name[..name.len() - extension.len()];
        // The stem is shortened if the new name would be too long.
        let room = crate::path::MAX_NAME_BYTES.saturating_sub(mark.len() + 1 + extension.len());
        let stem = &stem[..stem.floor_char_boundary(room)];
        Self::in_folder(folder, &format!("{stem}.{mark}{extension}"))
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePath({:?})", self.as_str())
    }
}

impl TryFrom<String> for FilePath {
    type Error = FilePathError;
    fn try_from(raw: String) -> Result<Self, FilePathError> {
        Self::parse(&raw)
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> String {
        path.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_dots_are_refused_only_as_a_whole_name() {
        for bad in [
            "../x",
            "a/../x",
            "a/..",
            "/etc/passwd",
            "..\\x",
            "a\\..\\x",
            "%2e%2e/x",
            "~/x",
            "C:\\x",
        ] {
            assert_eq!(FilePath::parse(bad), Err(FilePathError::Traversal(bad.into())), "{bad}");
        }
        for good in
            ["a..b.txt", "...", "отчёт.txt", "報告/資料 1.txt", "😀.txt", "CON", "a b/c#1", "x%20y"]
        {
            assert_eq!(FilePath::parse(good).map(String::from), Ok(good.to_owned()));
        }
        assert_eq!(FilePath::parse("a//./b").map(String::from), Ok("a/b".to_owned()));
        assert!(matches!(FilePath::parse("a\\b"), Err(FilePathError::Backslash(_))));
        assert!(matches!(FilePath::parse("a/"), Err(FilePathError::Folder(_))));
        assert!(matches!(FilePath::parse(""), Err(FilePathError::Other(PathError::Empty))));
    }

    #[test]
    fn a_mark_goes_before_the_extension_and_always_fits() {
        let marked =
            |path: &str| FilePath::parse(path).unwrap().marked("copy").unwrap().to_string();
        assert_eq!(marked("a/b.tar.gz"), "a/b.tar.copy.gz");
        assert_eq!(marked(".env"), ".env.copy");
        assert_eq!(marked(&format!("{}.txt", "я".repeat(125))).len(), 255);
    }

    #[test]
    fn folders_come_from_the_outside_in() {
        let path = FilePath::parse("a/b/c.txt").unwrap();
        assert_eq!(path.folders().collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!(path.file_name(), "c.txt");
    }
}
