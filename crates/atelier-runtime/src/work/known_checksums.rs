//! Checksums of the files that an agent has read or written. A change of a file carries the known
//! checksum, so that a change by somebody else is a conflict and not a lost update.

use super::tools::tool;
use atelier_core::{
    CallId,
    gate::{CallStatus, GatedCall},
    task::{Step, StepCall},
};
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
        for call in calls.filter(|call| call.status == CallStatus::Completed) {
            let checksum = call.result.as_ref().and_then(|result| result["checksum"].as_str());
            known.record(&call.tool_name, &call.tool_params, checksum);
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
        self.record(&call.name, &params, result.checksum.as_deref());
    }

    fn record(&mut self, name: &str, params: &Value, checksum: Option<&str>) {
        let path = |name: &str| params[name].as_str().map(normalized);
        match (tool(name), path("path"), checksum) {
            ("move_file" | "delete_file", ..) => {
                for gone in ["source", "destination", "path"].into_iter().filter_map(path) {
                    self.0.remove(gone);
                }
            }
            // The agent has read only a part of the file, so it must not replace the whole.
            _ if ["head", "tail"].iter().any(|part| params[*part].as_u64().unwrap_or(0) > 0) => {}
            (_, Some(path), Some(checksum)) => {
                self.0.insert(path.to_owned(), checksum.to_owned());
            }
            _ => {}
        }
    }

    /// Adds the known checksum to the arguments of a write.
    pub(super) fn add_expected_checksum(&self, name: &str, params: &mut Map<String, Value>) {
        if !matches!(tool(name), "write_file" | "edit_file") || params.contains_key("if_checksum") {
            return;
        }
        let path = params.get("path").and_then(Value::as_str).map(normalized);
        if let Some(known) = path.and_then(|path| self.0.get(path)) {
            params.insert("if_checksum".into(), known.as_str().into());
        }
    }
}

fn normalized(path: &str) -> &str {
    path.trim_start_matches("./")
}
