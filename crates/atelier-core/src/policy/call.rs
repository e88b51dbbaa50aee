//! Tool calls. A call is parsed once; a parsed call is complete, keeps within the limits, and names
//! only paths inside the workspace.

use super::{
    Access,
    limits::Limits,
    pattern::{GlobPattern, PatternError},
};
use crate::{
    failure::FailureCode,
    path::{PathError, Roots, WorkspacePath},
    tools::{
        Kind, Param, Rating, Surface, ToolDef, ToolTable, builtin,
        parse::{Arg, Rules, arguments, canonical},
    },
};
use serde_json::Value;
use std::borrow::Cow;

/// One call of a tool: its definition, and the arguments that the definition's parameters were
/// checked into.
#[derive(Debug, Clone)]
pub struct ToolCall {
    pub tool: &'static ToolDef,
    form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// In the order of the tool's parameters.
    Args(Vec<Arg>),
    Command(Command),
}

/// One exact replacement. The text must occur exactly once, unless `replace_all` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub old_text: String,
    pub new_text: String,
    pub replace_all: bool,
}

/// A program by its bare name, with arguments that no shell sees.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl ToolCall {
    /// Parses a call of a built-in tool, as it comes through the gate.
    pub fn parse(
        tool_name: &str,
        params: Value,
        roots: &Roots,
        limits: &Limits,
    ) -> Result<Self, CallError> {
        Self::parse_on(Surface::Gate, ToolTable::builtin(), tool_name, params, roots, limits)
    }

    /// Parses a call of one of these tools.
    pub fn parse_on(
        surface: Surface,
        tools: &ToolTable,
        tool_name: &str,
        params: Value,
        roots: &Roots,
        limits: &Limits,
    ) -> Result<Self, CallError> {
        // A list could be read by position, but nobody would see which value belongs to which
        // parameter.
        let Value::Object(params) = params else {
            return Err(CallError::Params(
                "expected an object with a field for each parameter".into(),
            ));
        };
        let tool = tools.get(tool_name).filter(|tool| tool.is_offered(surface));
        let tool = tool.ok_or_else(|| CallError::UnknownTool(tool_name.to_owned()))?;
        let args = arguments(tool.params, params, Rules { surface, roots, limits })?;
        let form = match tool.rating {
            Rating::Command => Form::Command(Command::from_args(tool, args)),
            _ => Form::Args(args),
        };
        Ok(Self { tool, form })
    }

    pub fn name(&self) -> &'static str {
        self.tool.name
    }

    /// The command, if the tool runs commands.
    pub fn command(&self) -> Option<&Command> {
        match &self.form {
            Form::Command(command) => Some(command),
            Form::Args(_) => None,
        }
    }

    /// The parameters in canonical form: the same for all ways to write the same call. They parse
    /// to this call again.
    pub fn into_params(self) -> Value {
        let args = self.args();
        let fields = self.tool.params.iter().zip(args.iter());
        let fields =
            fields.filter_map(|(param, arg)| Some((param.name.to_owned(), canonical(param, arg)?)));
        Value::Object(fields.collect())
    }

    /// The paths that the call names itself, each with its parameter.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'static Param, &WorkspacePath)> {
        self.stored().filter_map(|(param, arg)| match arg {
            Arg::Path(path) => Some((param, path)),
            _ => None,
        })
    }

    /// The first path that the call uses in this way.
    pub fn path_used_to(&self, access: Access) -> Option<&WorkspacePath> {
        self.paths().find(|(param, _)| param.kind.access() == Some(access)).map(|(_, path)| path)
    }

    /// The globs of the call, each with its parameter.
    pub(crate) fn globs(&self) -> impl Iterator<Item = (&'static Param, &GlobPattern)> {
        self.stored().filter_map(|(param, arg)| match arg {
            Arg::Glob(glob) => Some((param, glob)),
            _ => None,
        })
    }

    /// The arguments in the order of the tool's parameters.
    pub(crate) fn args(&self) -> Cow<'_, [Arg]> {
        match &self.form {
            Form::Args(args) => Cow::Borrowed(args),
            Form::Command(command) => {
                self.tool.params.iter().map(|param| command.argument(param.name)).collect()
            }
        }
    }

    fn stored(&self) -> impl Iterator<Item = (&'static Param, &Arg)> {
        let args: &[Arg] = match &self.form {
            Form::Args(args) => args,
            Form::Command(_) => &[],
        };
        self.tool.params.iter().zip(args)
    }

    /// The argument of a parameter. Asking for a parameter that the definition lacks is a mistake
    /// in the program.
    fn arg(&self, name: &str) -> &Arg {
        debug_assert!(
            self.tool.param(name).is_some(),
            "{} has no parameter {name}",
            self.tool.name
        );
        self.stored().find(|(param, _)| param.name == name).map_or(&Arg::Absent, |(_, arg)| arg)
    }

    /// A path. An error only if the tool's definition has no such path, or allows calls without it.
    pub fn path(&self, name: &str) -> Result<&WorkspacePath, CallError> {
        match self.arg(name) {
            Arg::Path(path) => Ok(path),
            _ => Err(self.lacks(name)),
        }
    }

    /// A text. An error only if the tool's definition has no such text, or allows calls without it.
    pub fn text(&self, name: &str) -> Result<&str, CallError> {
        self.optional_text(name).ok_or_else(|| self.lacks(name))
    }

    fn lacks(&self, name: &str) -> CallError {
        CallError::Params(format!("Missing required parameters: {name}"))
    }

    /// A text, a checksum or a glob.
    pub fn optional_text(&self, name: &str) -> Option<&str> {
        match self.arg(name) {
            Arg::Text(text) => Some(text),
            Arg::Glob(glob) => Some(glob.as_str()),
            _ => None,
        }
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        match self.arg(name) {
            Arg::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.arg(name), Arg::Flag(true))
    }

    /// Whether the call has chosen this value.
    pub fn chose(&self, name: &str, choice: &str) -> bool {
        match (self.arg(name), self.tool.param(name).map(|param| param.kind)) {
            (Arg::Choice(at), Some(Kind::Choice(choices))) => {
                choices.get(*at).is_some_and(|chosen| chosen.name == choice)
            }
            _ => false,
        }
    }

    pub fn edits(&self, name: &str) -> &[Edit] {
        match self.arg(name) {
            Arg::Edits(edits) => edits,
            _ => &[],
        }
    }

    /// A list of paths; `None` if the call leaves it out.
    pub fn path_list(&self, name: &str) -> Option<&[WorkspacePath]> {
        match self.arg(name) {
            Arg::Paths(paths) => Some(paths),
            _ => None,
        }
    }

    pub fn words(&self, name: &str) -> &[String] {
        match self.arg(name) {
            Arg::Words(words) => words,
            _ => &[],
        }
    }
}

impl PartialEq for ToolCall {
    fn eq(&self, other: &Self) -> bool {
        self.tool.name == other.tool.name && self.form == other.form
    }
}

impl From<Command> for ToolCall {
    fn from(command: Command) -> Self {
        Self { tool: &builtin::EXECUTE_COMMAND, form: Form::Command(command) }
    }
}

impl Command {
    fn from_args(tool: &ToolDef, args: Vec<Arg>) -> Self {
        let cwd = WorkspacePath::root();
        let mut command = Self { command: String::new(), args: Vec::new(), timeout: None, cwd };
        for (param, arg) in tool.params.iter().zip(args) {
            match (param.name, arg) {
                ("cwd", Arg::Path(cwd)) => command.cwd = cwd,
                ("command", Arg::Text(program)) => command.command = program,
                ("args", Arg::Words(args)) => command.args = args,
                ("timeout", Arg::Number(seconds)) => command.timeout = u32::try_from(seconds).ok(),
                _ => {}
            }
        }
        if command.args.is_empty()
            && let Some(mut words) = simple_command(&command.command)
        {
            command.command = words.remove(0);
            command.args = words;
        }
        command
    }

    fn argument(&self, param: &str) -> Arg {
        match param {
            "cwd" => Arg::Path(self.cwd.clone()),
            "command" => Arg::Text(self.command.clone()),
            "args" => Arg::Words(self.args.clone()),
            "timeout" => self.timeout.map_or(Arg::Absent, |seconds| Arg::Number(seconds.into())),
            _ => Arg::Absent,
        }
    }
}

/// Longer lines are not split: their arguments are given one by one.
const MOST_SPLIT: usize = 1000;

/// Splits a line that a shell would read as one simple command into words. `None` if the line is
/// one word, or if a shell would treat it specially: pipes, variables, patterns, assignments.
fn simple_command(line: &str) -> Option<Vec<String>> {
    // Blanks are the only white space that separates words here.
    if !line.contains(' ') || line.contains(char::is_control) {
        return None;
    }
    let (mut quote, mut escaped, mut at_start) = (None, false, true);
    for c in line.chars() {
        let is_escaped = std::mem::take(&mut escaped);
        match (c, quote) {
            _ if is_escaped => {}
            ('\\', None | Some('"')) => escaped = true,
            ('$' | '`', None | Some('"')) => return None,
            ('\'' | '"', None) => quote = Some(c),
            (_, Some(begun)) if begun == c => quote = None,
            ('|' | '&' | ';' | '<' | '>' | '(' | ')' | '*' | '?' | '[' | ']' | '{' | '}', None) => {
                return None;
            }
            ('~' | '#' | '!', None) if at_start => return None,
            _ => {}
        }
        at_start = c == ' ' && quote.is_none() && !is_escaped;
    }
    let words = shlex::split(line)?;
    ((2..=MOST_SPLIT).contains(&words.len()) && !words[0].contains('=')).then_some(words)
}

#[cfg(test)]
mod tests;
