//! A path inside the workspace, checked once and carried as proof.
//!
//! The check is of the text alone: it cannot see links. It promises that, followed name by name from the
//! workspace's root, the path never climbs above it. The executor then opens it beneath a directory handle.

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
/// The deepest path: far deeper than real trees, and cheap to walk.
pub const MAX_DEPTH: usize = 256;

/// Why a text is not a path of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The seeds' words; MCP puts "Error: " in front.
    #[error("Access denied. Path must be within {root}")]
    Outside { root: String },
    #[error("The path is empty")]
    Empty,
    #[error("The path is too long: at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} bytes a name")]
    TooLong,
    #[error("The path is too deep: at most {MAX_DEPTH} names")]
    TooDeep,
    #[error("The path holds a character that cannot be shown truthfully (U+{:04X})", *.0 as u32)]
    Unprintable(char),
    #[error("The name {0:?} is reserved on Windows")]
    Reserved(String),
}

impl PathError {
    /// The stable code of the error, as it goes over the wire.
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

/// Whose rules for names hold where the workspace lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    #[default]
    Unix,
    Windows,
}

/// The names under which a workspace's root may be addressed absolutely: those that its client or server
/// announced itself, never one that a call brought along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    announced: Vec<String>,
    display: String,
    platform: Platform,
}

impl Default for Roots {
    fn default() -> Self {
        Self::relative_only()
    }
}

impl Roots {
    /// No absolute path is good; errors speak of `/workspace`.
    pub fn relative_only() -> Self {
        Self { announced: Vec::new(), display: "/workspace".into(), platform: Platform::Unix }
    }

    /// A root by its absolute name, which is also what errors show.
    pub fn announced(root: impl Into<String>) -> Self {
        let root = root.into();
        Self { display: root.clone(), announced: vec![root], platform: Platform::Unix }
    }

    /// Another name of the same directory, e.g. before and after links are resolved.
    pub fn also(mut self, root: impl Into<String>) -> Self {
        self.announced.push(root.into());
        self
    }

    /// What errors call the root, when its real place is nobody's business.
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

    /// What follows the root in an absolute path. Name by name: `/ws-evil` starts with `/ws` only as text.
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
            // An announced root that is no absolute path announces nothing.
            (root.starts_with('/') || windows::is_drive(root)).then_some(rest)
        })
    }
}

/// The names of a path, without what adds nothing (`//`, `.`).
fn names(path: &str, platform: Platform) -> impl Iterator<Item = &str> {
    path.split(move |c| c == '/' || (c == '\\' && platform == Platform::Windows))
        .filter(|name| !name.is_empty() && *name != ".")
}

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

/// A path that stays inside the workspace, relative to its root and in its shortest form. The root is `.`.
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

    /// As `parse`, with relative paths taken from a directory of the workspace.
    pub fn parse_in(raw: &str, base: &WorkspacePath, roots: &Roots) -> Result<Self, PathError> {
        Ok(normalise(raw, base.relative(), roots)?.into_path())
    }

    pub fn root() -> Self {
        Self { relative: String::new(), directory: true }
    }

    pub fn is_root(&self) -> bool {
        self.relative.is_empty()
    }

    /// Relative to the root, `/` between names; `.` for the root itself.
    pub fn as_str(&self) -> &str {
        if self.is_root() { "." } else { &self.relative }
    }

    /// As `as_str`, with the root as the empty text.
    pub(crate) fn relative(&self) -> &str {
        &self.relative
    }

    /// Whether the text can only mean a directory (`src/`, `src/.`): then a regular file is no answer to it.
    pub fn demands_directory(&self) -> bool {
        self.directory
    }

    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.relative.split('/').filter(|name| !name.is_empty())
    }

    /// How many names lie between the root and the path: 0 for the root, 1 for what is directly beneath it.
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

    /// A path below this one, checked like any other.
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

/// From the wire only relative paths come, and they are checked again.
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

/// A checked path that still borrows from the text, so that judging a command need not allocate.
pub(crate) struct Normal<'a> {
    pub(crate) relative: Cow<'a, str>,
    pub(crate) directory: bool,
}

impl Normal<'_> {
    pub(crate) fn into_path(self) -> WorkspacePath {
        WorkspacePath { relative: self.relative.into_owned(), directory: self.directory }
    }
}

pub(crate) fn normalise<'a>(raw: &'a str, base: &str, roots: &Roots) -> Result<Normal<'a>, PathError> {
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
    let absolute = raw.starts_with('/') || (roots.platform == Platform::Windows && windows::is_drive(raw));
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
                // Refused at the step that leaves, so that coming back does not mend it.
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
    // `./~/x` is shown, stored and sent as `~/x`, so it must be good in that form as well.
    if !relative.is_empty() {
        lookalike::refuse(&relative, roots)?;
    }
    Ok(Normal { relative: Cow::Owned(relative), directory })
}

#[cfg(test)]
mod tests;
