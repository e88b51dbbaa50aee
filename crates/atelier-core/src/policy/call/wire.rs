//! The parameters of each tool as they are received, before they are checked.

use super::{CallError, Edit, GlobPattern, Limits, Roots, WorkspacePath, WriteMode, within};
use serde::Deserialize;

fn here() -> String {
    ".".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OnlyPath {
    pub(super) path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    pub(super) path: String,
    pub(super) head: Option<u64>,
    pub(super) tail: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    pub(super) path: String,
    pub(super) content: String,
    #[serde(default)]
    pub(super) mode: WriteMode,
    #[serde(default)]
    pub(super) create_dirs: bool,
    pub(super) if_checksum: Option<String>,
}

/// Either `edits`, or the fields of a single edit next to the path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    pub(super) path: String,
    pub(super) if_checksum: Option<String>,
    edits: Option<Vec<Edit>>,
    #[serde(alias = "old_string")]
    old_text: Option<String>,
    #[serde(alias = "new_string")]
    new_text: Option<String>,
    #[serde(default)]
    replace_all: bool,
}

impl EditFile {
    pub(super) fn into_edits(self, limits: &Limits) -> Result<Vec<Edit>, CallError> {
        let edits = match (self.edits, self.old_text, self.new_text) {
            (Some(edits), None, None) if !self.replace_all => edits,
            (None, Some(old_text), Some(new_text)) => {
                vec![Edit { old_text, new_text, replace_all: self.replace_all }]
            }
            _ => {
                return Err(CallError::Params(
                    "give either `edits`, or `old_text` and `new_text`".into(),
                ));
            }
        };
        if edits.is_empty()
            || edits.len() > limits.edits
            || edits.iter().any(|e| e.old_text.is_empty())
        {
            let why = format!("give 1 to {} edits, each with an `old_text`", limits.edits);
            return Err(CallError::Params(why));
        }
        within(
            edits.iter().map(|e| e.old_text.len() + e.new_text.len()).sum(),
            limits.write_bytes,
        )?;
        Ok(edits)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDirectory {
    #[serde(default = "here")]
    pub(super) path: String,
    #[serde(default)]
    pub(super) recursive: bool,
    pub(super) pattern: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    #[serde(default = "here")]
    pub(super) path: String,
    pub(super) pattern: String,
    pub(super) max_results: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grep {
    pattern: String,
    #[serde(default = "here")]
    path: String,
    #[serde(alias = "include")]
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    context: u32,
    max_results: Option<usize>,
}

impl Grep {
    pub(super) fn checked(self, roots: &Roots, limits: &Limits) -> Result<super::Grep, CallError> {
        if self.pattern.len() > limits.argument_bytes {
            return Err(CallError::Params("the pattern is too long".into()));
        }
        Ok(super::Grep {
            path: WorkspacePath::parse(&self.path, roots)?,
            glob: self.glob.as_deref().map(GlobPattern::parse).transpose()?,
            pattern: self.pattern,
            ignore_case: self.ignore_case,
            literal: self.literal,
            context: self.context.min(100),
            max_results: self.max_results,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveFile {
    #[serde(alias = "from", alias = "path")]
    pub(super) source: String,
    #[serde(alias = "to")]
    pub(super) destination: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    timeout: Option<u64>,
    cwd: Option<String>,
}

impl Command {
    pub(super) fn checked(
        self,
        roots: &Roots,
        limits: &Limits,
    ) -> Result<super::Command, CallError> {
        let timeout = match self.timeout {
            None => None,
            Some(asked) => match u32::try_from(asked) {
                Ok(seconds) if (1..=limits.timeout_max).contains(&seconds) => Some(seconds),
                _ => return Err(CallError::Timeout { asked, limit: limits.timeout_max }),
            },
        };
        let too_long = self.command.len() > limits.argument_bytes
            || self.args.len() > limits.arguments
            || self.args.iter().any(|arg| arg.len() > limits.argument_bytes)
            || self.args.iter().map(String::len).sum::<usize>() > limits.arguments_bytes;
        if too_long {
            return Err(CallError::Arguments {
                count: limits.arguments,
                each: limits.argument_bytes,
                total: limits.arguments_bytes,
            });
        }
        if self.args.iter().any(|arg| arg.contains('\0')) {
            return Err(CallError::Params("an argument holds a NUL".into()));
        }
        let cwd = match &self.cwd {
            Some(raw) => WorkspacePath::parse(raw, roots)?,
            None => WorkspacePath::root(),
        };
        Ok(super::Command { command: self.command, args: self.args, timeout, cwd })
    }
}
