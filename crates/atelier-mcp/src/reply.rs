//! Answers of tools, and the reasons for failures.

use atelier_core::TextEncoding;
use atelier_core::policy::call::CallError;
use atelier_executor::Error;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Map, Value};

/// The key in `_meta` for the encoding of a file that is not UTF-8.
const ENCODING: &str = "atelier/encoding";

/// A tool's answer: text for the model and, for some tools, the same as data.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) data: Option<Value>,
    /// The encoding of the file that was read or written.
    pub(crate) encoding: Option<TextEncoding>,
}

impl Reply {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), data: None, encoding: None }
    }

    pub(crate) fn with_data(text: String, data: Value) -> Self {
        Self { text, data: Some(data), encoding: None }
    }
}

/// Why a tool failed. It is shown as `Error: …`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// A function asked for an argument that the definition of its tool does not have.
impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::new(error.to_string())
    }
}

pub(crate) type Answer = Result<Reply, Failure>;

pub(crate) fn result(answer: Answer) -> CallToolResult {
    match answer {
        Ok(Reply { text, data, encoding }) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = data;
            result.meta = encoding.and_then(encoding_note);
            result
        }
        Err(Failure(text)) => {
            CallToolResult::error(vec![ContentBlock::text(format!("Error: {text}"))])
        }
    }
}

/// Names the encoding of a file, unless it is UTF-8, which hosts expect anyway.
pub(crate) fn encoding_note(encoding: TextEncoding) -> Option<MetaObject> {
    let entry = (ENCODING.to_owned(), encoding.name().into());
    (encoding != TextEncoding::UTF_8).then(|| MetaObject(Map::from_iter([entry])))
}

/// Only the reason, for texts that name the path or the action themselves.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::NotFound { .. } => "No such file or directory".to_owned(),
        Error::NotAFile { .. } => "Not a regular file".to_owned(),
        Error::NotADirectory { .. } => "Not a directory".to_owned(),
        Error::Exists { .. } => "Already exists".to_owned(),
        Error::NotEmpty { .. } => "Directory is not empty".to_owned(),
        Error::Permission { .. } => "Permission denied".to_owned(),
        Error::Link { .. } => "It is a link".to_owned(),
        Error::LinkLoop { .. } => "Too many links".to_owned(),
        Error::NameTooLong { .. } => "Name too long".to_owned(),
        Error::TooLarge { size, limit, .. } => {
            format!("File too large ({size} bytes, the limit is {limit})")
        }
        Error::Protected { why, .. } => (*why).to_owned(),
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(_) => plain(&source.to_string()),
            None => source.to_string(),
        },
        other => other.to_string(),
    }
}

/// The system's message without its number: "No space left on device (os error 28)" loses the part
/// in parentheses.
fn plain(text: &str) -> String {
    text.split(" (os error").next().unwrap_or(text).to_owned()
}
