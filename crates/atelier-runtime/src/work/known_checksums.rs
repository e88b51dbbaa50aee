//! Checksums of the files that an agent has read or written. A change of a file carries the known
//! checksum, so that a change by somebody else is a conflict and not a lost update.

use atelier_core::{
    CallId, WorkspaceKind,
    gate::{CallStatus, GatedCall, ToolOutcome},
    json,
    task::{Step, StepCall},
    tools::{ToolDef, ToolTable},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Checksums by path, in one of the two workspaces of an agent.
#[derive(Debug, Default)]
pub(super) struct KnownChecksums(HashMap<String, String>);

impl KnownChecksums {
    /// Checksums of files on the user's machine.
    pub(super) fn on_machine(steps: &[Step], calls: &HashMap<CallId, GatedCall>) -> Self {
        let mut known = Self::default();
        let calls =
            steps.iter().flat_map(|step| &step.calls).filter_map(|call| calls.get(&call.tool_id?));
        let on_machine = calls.filter(|call| call.workspace == WorkspaceKind::Client);
        for call in on_machine.filter(|call| call.status == CallStatus::Completed) {
            let checksum = call.result.as_ref().and_then(ToolOutcome::checksum);
            known.record(&call.tool_name, &FileArguments::read(&call.tool_params), checksum);
        }
        known
    }

    /// Checksums of the conversation's files.
    pub(super) fn in_conversation(steps: &[Step]) -> Self {
        let mut known = Self::default();
        steps.iter().flat_map(|step| &step.calls).for_each(|call| known.record_file_call(call));
        known
    }

    /// Records a finished call on the conversation's files.
    pub(super) fn record_file_call(&mut self, call: &StepCall) {
        let Some(result) = call.result.as_ref().filter(|result| !result.is_error) else { return };
        let params: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        self.record(&call.name, &FileArguments::read(&params), result.checksum.as_deref());
    }

    fn record(&mut self, name: &str, arguments: &FileArguments, checksum: Option<&str>) {
        let FileArguments { path, source, destination, .. } = arguments;
        let tool = ToolTable::builtin().get(name);
        match (path, checksum) {
            _ if tool.is_some_and(ToolDef::removes_files) => {
                for gone in [path, source, destination].into_iter().flatten() {
                    self.0.remove(normalized(gone));
                }
            }
            // The agent has read only a part of the file, so it must not replace the whole.
            _ if arguments.is_partial() => {}
            (Some(path), Some(checksum)) => {
                self.0.insert(normalized(path).to_owned(), checksum.to_owned());
            }
            _ => {}
        }
    }

    /// Adds the known checksum to the arguments of a write.
    pub(super) fn add_expected_checksum(&self, name: &str, params: &mut Map<String, Value>) {
        let takes_checksum = ToolTable::builtin().get(name).is_some_and(ToolDef::takes_checksum);
        if !takes_checksum || params.contains_key("if_checksum") {
            return;
        }
        let arguments = FileArguments::deserialize(&*params).unwrap_or_default();
        let path = arguments.path.as_deref().map(normalized);
        if let Some(known) = path.and_then(|path| self.0.get(path)) {
            params.insert("if_checksum".into(), known.as_str().into());
        }
    }
}

/// The arguments of file tools that say which file a call is about, and how much of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileArguments {
    path: Option<String>,
    #[serde(alias = "from")]
    source: Option<String>,
    #[serde(alias = "to")]
    destination: Option<String>,
    #[serde(deserialize_with = "json::whole_or_null")]
    head: Option<u64>,
    #[serde(deserialize_with = "json::whole_or_null")]
    tail: Option<u64>,
}

impl FileArguments {
    /// Arguments of another form belong to calls that were refused, so nothing is known from them.
    fn read(params: &Value) -> Self {
        Self::deserialize(params).unwrap_or_default()
    }

    fn is_partial(&self) -> bool {
        [self.head, self.tail].into_iter().flatten().any(|lines| lines > 0)
    }
}

fn normalized(path: &str) -> &str {
    path.trim_start_matches("./")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_file_that_was_read_whole_has_a_known_checksum() {
        for (arguments, known) in [
            (json!({"path": "./a"}), true),
            (json!({"path": "a", "head": 0, "tail": null}), true),
            (json!({"path": "a", "head": 3}), false),
            (json!({"path": "a", "tail": 3.0}), false),
        ] {
            let mut checksums = KnownChecksums::default();
            checksums.record("read_file", &FileArguments::read(&arguments), Some("1"));
            let mut write = Map::from_iter([("path".to_owned(), json!("a"))]);
            checksums.add_expected_checksum("tool_write_file", &mut write);
            assert_eq!(write.contains_key("if_checksum"), known, "{arguments}");
        }
    }
}
