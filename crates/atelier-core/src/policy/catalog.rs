//! The tools as agents and people are told of them.

use serde::Serialize;
use serde_json::{Value, json};

/// One tool: what it does, what it takes, and how it is rated when nothing in the call says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolInfo {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON Schema of `tool_params`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Value,
    pub usual_risk: &'static str,
    pub requires_approval: bool,
}

fn tool(
    name: &'static str,
    description: &'static str,
    usual_risk: &'static str,
    required: &[&str],
    properties: Value,
) -> ToolInfo {
    let parameters = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    ToolInfo { name, description, parameters, usual_risk, requires_approval: usual_risk != "LOW" }
}

/// Every tool there is, in the order of `TOOL_NAMES`.
pub fn catalog() -> Vec<ToolInfo> {
    let path = json!({"type": "string", "description": "Relative to the workspace"});
    let whole = |text: &str| json!({"type": "integer", "minimum": 0, "description": text});
    let unless_changed = json!({
        "type": "string",
        "description": "The checksum that read_file told; a file that has another by now is left alone",
    });
    let yes = |text: &str| json!({"type": "boolean", "default": false, "description": text});
    vec![
        tool(
            "read_file",
            "Read a file.",
            "LOW",
            &["path"],
            json!({
                "path": path,
                "head": whole("Only the first lines"),
                "tail": whole("Only the last lines"),
            }),
        ),
        tool(
            "write_file",
            "Write a file, whole or at its end.",
            "MEDIUM",
            &["path", "content"],
            json!({
                "path": path,
                "content": {"type": "string"},
                "mode": {"enum": ["write", "append"], "default": "write"},
                "create_dirs": yes("Make missing parent directories"),
                "if_checksum": unless_changed,
            }),
        ),
        tool(
            "edit_file",
            "Replace exact text in a file, all or nothing.",
            "MEDIUM",
            &["path", "edits"],
            json!({
                "path": path,
                "edits": {"type": "array", "minItems": 1, "items": {
                    "type": "object",
                    "properties": {
                        "old_text": {"type": "string", "description": "Must occur once, or replace_all says that all are meant"},
                        "new_text": {"type": "string"},
                        "replace_all": yes("Every place"),
                    },
                    "required": ["old_text", "new_text"],
                    "additionalProperties": false,
                }},
                "if_checksum": unless_changed,
            }),
        ),
        tool(
            "list_directory",
            "List a directory.",
            "LOW",
            &["path"],
            json!({
                "path": path,
                "recursive": yes("Everything below, too"),
                "pattern": {"type": "string", "description": "A glob; hidden names only when it names them"},
            }),
        ),
        tool(
            "search_files",
            "Find files by a glob pattern.",
            "LOW",
            &["pattern"],
            json!({
                "path": path,
                "pattern": {"type": "string"},
                "max_results": whole("At most so many"),
            }),
        ),
        tool(
            "grep",
            "Search file contents for a regular expression.",
            "LOW",
            &["pattern"],
            json!({
                "pattern": {"type": "string"},
                "path": path,
                "glob": {"type": "string", "description": "Only in files that match"},
                "ignore_case": yes("Upper and lower case alike"),
                "literal": yes("The pattern is plain text"),
                "context": whole("Lines around each match"),
                "max_results": whole("At most so many"),
            }),
        ),
        tool(
            "create_directory",
            "Make a directory and its parents.",
            "MEDIUM",
            &["path"],
            json!({"path": path}),
        ),
        tool(
            "get_file_info",
            "Tell size, times and kind of a file.",
            "LOW",
            &["path"],
            json!({"path": path}),
        ),
        tool(
            "move_file",
            "Move or rename a file.",
            "MEDIUM",
            &["source", "destination"],
            json!({
                "source": path,
                "destination": path,
            }),
        ),
        tool("delete_file", "Delete a file.", "HIGH", &["path"], json!({"path": path})),
        tool(
            "execute_command",
            "Run a program with arguments; there is no shell.",
            "MEDIUM",
            &["command"],
            json!({
                "command": {"type": "string", "description": "The bare name of an allowed program"},
                "args": {"type": "array", "items": {"type": "string"}},
                "timeout": {"type": "integer", "minimum": 1, "maximum": 300, "description": "Seconds"},
                "cwd": path,
            }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::call::TOOL_NAMES;

    #[test]
    fn it_tells_of_every_tool() {
        assert_eq!(catalog().iter().map(|tool| tool.name).collect::<Vec<_>>(), TOOL_NAMES);
        let asked =
            |name: &str| catalog().into_iter().find(|tool| tool.name == name).unwrap().requires_approval;
        assert_eq!((asked("read_file"), asked("write_file"), asked("delete_file")), (false, true, true));
    }
}
