//! Paths inside a workspace. A value of [`WorkspacePath`] was checked.
//!
//! The check looks at the text alone and cannot see links. It guarantees that the path, followed
//! name by name from the root of the workspace, never leads above the root. The executor then opens
//! the path beneath a directory handle.

mod lookalike;
mod windows;

pub use lookalike::is_unprintable;

use crate::failure::FailureCode;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// The longest path in bytes: what Linux accepts, without the closing NUL.
pub const MAX_PATH_BYTES: usize = 4095;
/// The longest file name in bytes, as every common file system accepts it.
pub const MAX_NAME_BYTES: usize = 255;
/// The most names in a path. Real trees are far less deep.
pub const MAX_DEPTH: usize = 256;

/// Why a text is not a path of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Models know this wording. The MCP tools put "Error: " in front of it.
    #[error("Access denied. Path must be within {root}")]
    Outside { root: String },
    #[error("The path is empty")]
    Empty,
    #[error(
        "The path is too long: at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} bytes a name"
    )]
    TooLong,
    #[error("The path is too deep: at most {MAX_DEPTH} names")]
    TooDeep,
    #[error("The path holds a character that cannot be shown truthfully (U+{:04X})", *.0 as u32)]
    Unprintable(char),
    #[error("The name {0:?} is reserved on Windows")]
    Reserved(String),
}

impl PathError {
    /// The stable code of the error, as it is sent.
    pub fn code(&self) -> FailureCode {
        match self {
            Self::Outside { .. } => FailureCode::PathOutsideWorkspace,
            Self::Empty => FailureCode::PathEmpty,
            Self::TooLong => FailureCode::PathTooLong,
            Self::TooDeep => FailureCode::PathTooDeep,
            Self::Unprintable(_) => FailureCode::PathUnprintable,
            Self::Reserved(_) => FailureCode::PathReserved,
        }
    }
}

/// The operating system whose rules for file names apply to a workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    #[default]
    Unix,
    Windows,
}

/// The absolute paths by which calls may address the root of a workspace. They come from the
/// machine or the server that has the workspace, never from a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    announced: Vec<String>,
    /// The name of the root in errors.
    display: String,
    platform: Platform,
}

impl Default for Roots {
    fn default() -> Self {
        Self::relative_only()
    }
}

impl Roots {
    /// Roots that allow no absolute path. Errors call the root `/workspace`.
    pub fn relative_only() -> Self {
        Self { announced: Vec::new(), display: "/workspace".into(), platform: Platform::Unix }
    }

    /// A root with its absolute path, which errors show.
    pub fn announced(root: impl Into<String>) -> Self {
        let root = root.into();
        Self { display: root.clone(), announced: vec![root], platform: Platform::Unix }
    }

    /// Adds another absolute path of the same directory, such as the one after links are resolved.
    pub fn also(mut self, root: impl Into<String>) -> Self {
        self.announced.push(root.into());
        self
    }

    /// Sets the name of the root in errors, for callers that must not see the real path.
    pub fn shown_as(mut self, display: impl Into<String>) -> Self {
        self.display = display.into();
        self
    }

    pub fn on(mut self, platform: Platform) -> Self {
        self.platform = platform;
        self
    }

    pub fn display(&self) -> &str {
        &self.display
    }

    pub fn platform(&self) -> Platform {
        self.platform
    }

    pub(crate) fn outside(&self) -> PathError {
        PathError::Outside { root: self.display.clone() }
    }

    /// The part of an absolute path after the root. Whole names are compared, because `/ws-evil` is
    /// not inside `/ws`.
    fn strip<'a>(&self, raw: &'a str) -> Option<&'a str> {
        self.announced.iter().find_map(|root| {
            let mut rest = raw;
            for name in names(root, self.platform) {
                let (head, tail) = next_name(rest)?;
                let same = match self.platform {
                    Platform::Unix => head == name,
                    Platform::Windows => head.eq_ignore_ascii_case(name),
                };
                if !same {
                    return None;
                }
                rest = tail;
            }
            // A root that is not an absolute path is ignored.
            (root.starts_with('/') || windows::is_drive(root)).then_some(rest)
        })
    }
}

/// The names of a path, without empty names and `.`.
fn names(path: &str, platform: Platform) -> impl Iterator<Item = &str> {
    path.split(move |c| c == '/' || (c == '\\' && platform == Platform::Windows))
        .filter(|name| !name.is_empty() && *name != ".")
}

/// The first name of a path, and the rest.
fn next_name(path: &str) -> Option<(&str, &str)> {
    let mut rest = path;
    loop {
        rest = rest.trim_start_matches('/');
        if rest.is_empty() {
            return None;
        }
        let (head, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if head != "." {
            return Some((head, tail));
        }
        rest = tail;
    }
}

/// A path that stays inside the workspace, relative to its root and in its shortest form. The root
/// is `.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkspacePath {
    relative: String,
    directory: bool,
}

impl WorkspacePath {
    pub fn parse(raw: &str, roots: &Roots) -> Result<Self, PathError> {
        Self::parse_in(raw, &Self::root(), roots)
    }

    /// Parses a path like `parse`, relative to a directory of the workspace.
    pub fn parse_in(raw: &str, base: &WorkspacePath, roots: &Roots) -> Result<Self, PathError> {
        Ok(normalise(raw, base.relative(), roots)?.into_path())
    }

    pub fn root() -> Self {
        Self { relative: String::new(), directory: true }
    }

    pub fn is_root(&self) -> bool {
        self.relative.is_empty()
    }

    /// The path relative to the root, with `/` between names; `.` for the root itself.
    pub fn as_str(&self) -> &str {
        if self.is_root() { "." } else { &self.relative }
    }

    /// The path like `as_str`, but the empty text for the root.
    pub(crate) fn relative(&self) -> &str {
        &self.relative
    }

    /// Whether the path can only mean a directory (`src/`, `src/.`), so that it must not lead to a
    /// regular file.
    pub fn demands_directory(&self) -> bool {
        self.directory
    }

    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.relative.split('/').filter(|name| !name.is_empty())
    }

    /// How many names the path has: 0 for the root, 1 for a file directly beneath it.
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    pub fn file_name(&self) -> Option<&str> {
        self.components().next_back()
    }

    pub fn parent(&self) -> Option<WorkspacePath> {
        if self.is_root() {
            return None;
        }
        let relative = self.relative.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        Some(Self { relative, directory: true })
    }

    /// A path below this one. It is checked like any other path.
    pub fn join(&self, below: &str) -> Result<Self, PathError> {
        Self::parse_in(below, self, &Roots::relative_only())
    }

    pub fn starts_with(&self, ancestor: &WorkspacePath) -> bool {
        ancestor.is_root()
            || self
                .relative
                .strip_prefix(&ancestor.relative)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkspacePath({:?})", self.as_str())
    }
}

/// Only relative paths are sent between programs, and they are checked again here.
impl TryFrom<String> for WorkspacePath {
    type Error = PathError;
    fn try_from(raw: String) -> Result<Self, PathError> {
        Self::parse(&raw, &Roots::relative_only())
    }
}

impl From<WorkspacePath> for String {
    fn from(path: WorkspacePath) -> String {
        if path.is_root() { ".".into() } else { path.relative }
    }
}

/// A checked path that borrows from the text, so that judging a command need not allocate.
pub(crate) struct Normal<'a> {
    pub(crate) relative: Cow<'a, str>,
    pub(crate) directory: bool,
}

impl Normal<'_> {
    pub(crate) fn into_path(self) -> WorkspacePath {
        WorkspacePath { relative: self.relative.into_owned(), directory: self.directory }
    }
}

/// Checks a path and brings it into its shortest form. `base` is the directory that it is relative
/// to.
pub(crate) fn normalise<'a>(
    raw: &'a str,
    base: &str,
    roots: &Roots,
) -> Result<Normal<'a>, PathError> {
    if raw.is_empty() {
        return Err(PathError::Empty);
    }
    if raw.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    lookalike::refuse(raw, roots)?;
    if roots.platform == Platform::Windows {
        let slashed = raw.replace('\\', "/");
        windows::refuse(&slashed, roots)?;
        let walked = walk(&slashed, base, roots)?;
        return Ok(Normal {
            relative: Cow::Owned(walked.relative.into_owned()),
            directory: walked.directory,
        });
    }
    walk(raw, base, roots)
}

fn walk<'a>(raw: &'a str, base: &str, roots: &Roots) -> Result<Normal<'a>, PathError> {
    let absolute =
        raw.starts_with('/') || (roots.platform == Platform::Windows && windows::is_drive(raw));
    let (rest, base) =
        if absolute { (roots.strip(raw).ok_or_else(|| roots.outside())?, "") } else { (raw, base) };
    let mut shortest = !absolute && base.is_empty();
    let mut depth = if base.is_empty() { 0 } else { base.split('/').count() };
    let mut last = "";
    for name in rest.split('/') {
        last = name;
        match name {
            "" | "." => shortest = false,
            ".." => {
                shortest = false;
                // A path that leaves the root is refused even if it comes back later.
                depth = depth.checked_sub(1).ok_or_else(|| roots.outside())?;
            }
            name if name.len() > MAX_NAME_BYTES => return Err(PathError::TooLong),
            _ => depth += 1,
        }
        if depth > MAX_DEPTH {
            return Err(PathError::TooDeep);
        }
    }
    let directory = matches!(last, "" | "." | "..");
    if shortest {
        return Ok(Normal { relative: Cow::Borrowed(raw), directory });
    }
    let mut relative = String::with_capacity(base.len() + 1 + rest.len());
    relative.push_str(base);
    for name in rest.split('/') {
        match name {
            "" | "." => {}
            ".." => relative.truncate(relative.rfind('/').unwrap_or(0)),
            name => {
                if !relative.is_empty() {
                    relative.push('/');
                }
                relative.push_str(name);
            }
        }
    }
    if relative.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    // `./~/x` is shown, stored and sent as `~/x`, so that form must be valid too.
    if !relative.is_empty() {
        lookalike::refuse(&relative, roots)?;
    }
    Ok(Normal { relative: Cow::Owned(relative), directory })
}

#[cfg(test)]
mod tests;
