//! One line in the log for each tool call. It never has the contents of files.

use std::time::Instant;

use atelier_core::tools::ToolDef;
use rmcp::model::{CallToolResult, JsonObject};
use serde_json::Value;

use crate::served::shown;

/// The fields of the log line about a call, noted before the call runs.
pub(crate) struct CallLog {
    tool: String,
    path: String,
    bytes_in: usize,
    began: Instant,
}

impl CallLog {
    pub(crate) fn begin(name: &str, tool: Option<&ToolDef>, arguments: &JsonObject) -> Self {
        let params = tool.iter().flat_map(|tool| tool.params);
        let paths: Vec<&str> = params
            .filter(|param| param.kind.access().is_some())
            .filter_map(|param| arguments.get(param.name))
            .flat_map(texts)
            .collect();
        Self {
            tool: shown(name).into_owned(),
            path: shown(&paths.join(", ")).into_owned(),
            bytes_in: arguments.values().map(size).sum(),
            began: Instant::now(),
        }
    }

    pub(crate) fn end(self, result: &CallToolResult) {
        let outcome = if result.is_error == Some(true) { "error" } else { "ok" };
        let texts = result.content.iter().filter_map(|block| block.as_text());
        self.write(outcome, texts.map(|text| text.text.len()).sum());
    }

    /// Logs that the tool does not exist, or failed without an answer.
    pub(crate) fn failed(self) {
        self.write("failed", 0);
    }

    fn write(self, outcome: &str, bytes_out: usize) {
        let Self { tool, path, bytes_in, began } = self;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        tracing::info!(tool, path, outcome, ms, bytes_in, bytes_out, "tool call");
    }
}

/// The texts in a value that is a text or a list of texts.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect(),
        value => value.as_str().into_iter().collect(),
    }
}

/// How many bytes of text a value holds.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
