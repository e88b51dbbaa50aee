//! Tool calls. A call is parsed once; a parsed call is complete, keeps within the limits, and names
//! only paths inside the workspace.

use super::{
    limits::Limits,
    pattern::{GlobPattern, PatternError},
};
use crate::{
    failure::FailureCode,
    path::{PathError, Roots, WorkspacePath},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A parsed tool call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "tool_name", content = "tool_params", rename_all = "snake_case")]
pub enum ToolCall {
    ReadFile {
        path: WorkspacePath,
        head: Option<u64>,
        tail: Option<u64>,
    },
    WriteFile {
        path: WorkspacePath,
        content: String,
        mode: WriteMode,
        create_dirs: bool,
        /// If set, the file is written only while it has this checksum.
        if_checksum: Option<String>,
    },
    EditFile {
        path: WorkspacePath,
        edits: Vec<Edit>,
        if_checksum: Option<String>,
    },
    ListDirectory {
        path: WorkspacePath,
        recursive: bool,
        pattern: Option<GlobPattern>,
    },
    SearchFiles {
        path: WorkspacePath,
        pattern: GlobPattern,
        max_results: Option<usize>,
    },
    Grep(Grep),
    CreateDirectory {
        path: WorkspacePath,
    },
    GetFileInfo {
        path: WorkspacePath,
    },
    MoveFile {
        source: WorkspacePath,
        destination: WorkspacePath,
    },
    DeleteFile {
        path: WorkspacePath,
    },
    ExecuteCommand(Command),
}

/// Whether `write_file` replaces the content of a file or adds to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    #[default]
    #[serde(alias = "overwrite")]
    Write,
    Append,
}

/// One replacement of an exact text. The text must occur exactly once, unless `replace_all` is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    #[serde(alias = "old_string")]
    pub old_text: String,
    #[serde(alias = "new_string")]
    pub new_text: String,
    #[serde(default)]
    pub replace_all: bool,
}

/// A search for a regular expression in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grep {
    pub pattern: String,
    pub path: WorkspacePath,
    pub glob: Option<GlobPattern>,
    pub ignore_case: bool,
    /// Whether the pattern is plain text and not a regular expression.
    pub literal: bool,
    /// How many lines around each match are shown.
    pub context: u32,
    pub max_results: Option<usize>,
}

/// A program by its bare name, and its arguments. No shell interprets them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    pub command: String,
    pub args: Vec<String>,
    pub timeout: Option<u32>,
    pub cwd: WorkspacePath,
}

/// Why a call cannot be parsed. Nothing of it was done, and nobody was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("Unknown tool: {0}")]
    UnknownTool(String),
    #[error("Invalid parameters: {0}")]
    Params(String),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("File size exceeds limit: {size} bytes, at most {limit}")]
    Size { size: u64, limit: u64 },
    #[error("The timeout is {asked} s; it can be 1 to {limit} s")]
    Timeout { asked: u64, limit: u32 },
    #[error(
        "The arguments are too long: at most {count} of {each} bytes each and {total} bytes \
         together"
    )]
    Arguments { count: usize, each: usize, total: usize },
    #[error("Not a file: {0} names a directory")]
    NotAFile(WorkspacePath),
}

impl CallError {
    /// The stable code of the error, as it is sent.
    pub fn code(&self) -> FailureCode {
        match self {
            Self::UnknownTool(_) => FailureCode::UnknownTool,
            Self::Params(_) => FailureCode::InvalidParams,
            Self::Path(error) => error.code(),
            Self::Pattern(error) => error.code(),
            Self::Size { .. } => FailureCode::FileSizeExceeded,
            Self::Timeout { .. } => FailureCode::TimeoutExceeded,
            Self::Arguments { .. } => FailureCode::ArgumentsTooLong,
            Self::NotAFile(_) => FailureCode::NotAFile,
        }
    }
}

/// The names of all tools.
pub const TOOL_NAMES: [&str; 11] = [
    "read_file",
    "write_file",
    "edit_file",
    "list_directory",
    "search_files",
    "grep",
    "create_directory",
    "get_file_info",
    "move_file",
    "delete_file",
    "execute_command",
];

impl ToolCall {
    /// Parses the name and the parameters of a call. The name may have the prefix `tool_`, which
    /// some models add.
    pub fn parse(
        tool_name: &str,
        params: Value,
        roots: &Roots,
        limits: &Limits,
    ) -> Result<Self, CallError> {
        let name = tool_name.strip_prefix("tool_").unwrap_or(tool_name);
        // serde would also accept an array of values by position, which a person could not read.
        if !params.is_object() {
            return Err(CallError::Params(
                "expected an object with a field for each parameter".into(),
            ));
        }
        let path = |raw: &str| WorkspacePath::parse(raw, roots);
        Ok(match name {
            "read_file" => {
                let p: wire::ReadFile = typed(params)?;
                Self::ReadFile { path: file(&p.path, roots)?, head: p.head, tail: p.tail }
            }
            "write_file" => {
                let p: wire::WriteFile = typed(params)?;
                let path = file(&p.path, roots)?;
                within(p.content.len(), limits.write_bytes)?;
                let if_checksum = checksum(p.if_checksum)?;
                let (mode, create_dirs) = (p.mode, p.create_dirs);
                Self::WriteFile { path, content: p.content, mode, create_dirs, if_checksum }
            }
            "edit_file" => {
                let p: wire::EditFile = typed(params)?;
                let if_checksum = checksum(p.if_checksum.clone())?;
                Self::EditFile {
                    path: file(&p.path, roots)?,
                    edits: p.into_edits(limits)?,
                    if_checksum,
                }
            }
            "list_directory" => {
                let p: wire::ListDirectory = typed(params)?;
                let pattern = p.pattern.as_deref().map(GlobPattern::parse).transpose()?;
                Self::ListDirectory { path: path(&p.path)?, recursive: p.recursive, pattern }
            }
            "search_files" => {
                let p: wire::SearchFiles = typed(params)?;
                let pattern = GlobPattern::parse(&p.pattern)?;
                Self::SearchFiles { path: path(&p.path)?, pattern, max_results: p.max_results }
            }
            "grep" => Self::Grep(typed::<wire::Grep>(params)?.checked(roots, limits)?),
            "create_directory" => {
                Self::CreateDirectory { path: path(&typed::<wire::OnlyPath>(params)?.path)? }
            }
            "get_file_info" => {
                Self::GetFileInfo { path: path(&typed::<wire::OnlyPath>(params)?.path)? }
            }
            "move_file" => {
                let p: wire::MoveFile = typed(params)?;
                Self::MoveFile { source: path(&p.source)?, destination: path(&p.destination)? }
            }
            "delete_file" => {
                Self::DeleteFile { path: path(&typed::<wire::OnlyPath>(params)?.path)? }
            }
            "execute_command" => {
                Self::ExecuteCommand(typed::<wire::Command>(params)?.checked(roots, limits)?)
            }
            _ => return Err(CallError::UnknownTool(tool_name.to_owned())),
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::ReadFile { .. } => "read_file",
            Self::WriteFile { .. } => "write_file",
            Self::EditFile { .. } => "edit_file",
            Self::ListDirectory { .. } => "list_directory",
            Self::SearchFiles { .. } => "search_files",
            Self::Grep(_) => "grep",
            Self::CreateDirectory { .. } => "create_directory",
            Self::GetFileInfo { .. } => "get_file_info",
            Self::MoveFile { .. } => "move_file",
            Self::DeleteFile { .. } => "delete_file",
            Self::ExecuteCommand(_) => "execute_command",
        }
    }
}

fn typed<T: DeserializeOwned>(params: Value) -> Result<T, CallError> {
    // Unknown fields are refused, because a person who approves a call would believe that a field
    // which is silently dropped (`env`, `shell`) has an effect.
    serde_json::from_value(params).map_err(|error| CallError::Params(error.to_string()))
}

/// Parses the path of a regular file. The root and paths that end in a slash are refused.
fn file(raw: &str, roots: &Roots) -> Result<WorkspacePath, CallError> {
    let path = WorkspacePath::parse(raw, roots)?;
    if path.demands_directory() { Err(CallError::NotAFile(path)) } else { Ok(path) }
}

/// Checks that a checksum has the form that results have: SHA-256 in hexadecimal digits.
fn checksum(given: Option<String>) -> Result<Option<String>, CallError> {
    let good = |sum: &String| {
        sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    match given.as_ref().is_none_or(good) {
        true => Ok(given),
        false => {
            Err(CallError::Params("`if_checksum` is the `checksum` of an earlier result".into()))
        }
    }
}

fn within(size: usize, limit: u64) -> Result<(), CallError> {
    let size = size as u64;
    if size > limit { Err(CallError::Size { size, limit }) } else { Ok(()) }
}

mod canonical;
mod wire;

#[cfg(test)]
mod tests;
