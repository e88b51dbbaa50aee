//! The catalog of tools, for agents and people.

use serde::Serialize;
use serde_json::{Value, json};

/// One tool: what it does, its parameters, and its usual verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolInfo {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON Schema of `tool_params`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Value,
    /// The verdict of a call unless its parameters make the call more dangerous.
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

/// All tools, in the order of `TOOL_NAMES`.
pub fn catalog() -> Vec<ToolInfo> {
    let path = json!({"type": "string", "description": "Relative to the workspace"});
    let count = |text: &str| json!({"type": "integer", "minimum": 0, "description": text});
    let if_checksum = json!({
        "type": "string",
        "description": "The checksum that read_file returned. If the file has changed since, \
            nothing is written",
    });
    let flag = |text: &str| json!({"type": "boolean", "default": false, "description": text});
    vec![
        tool(
            "read_file",
            "Read a file.",
            "LOW",
            &["path"],
            json!({
                "path": path,
                "head": count("Read only this many lines from the beginning"),
                "tail": count("Read only this many lines from the end"),
            }),
        ),
        tool(
            "write_file",
            "Write a file, or append to it.",
            "MEDIUM",
            &["path", "content"],
            json!({
                "path": path,
                "content": {"type": "string"},
                "mode": {"enum": ["write", "append"], "default": "write"},
                "create_dirs": flag("Create missing parent directories"),
                "if_checksum": if_checksum,
            }),
        ),
        tool(
            "edit_file",
            "Replace exact text in a file. Either all edits are made or none.",
            "MEDIUM",
            &["path", "edits"],
            json!({
                "path": path,
                "edits": {"type": "array", "minItems": 1, "items": {
                    "type": "object",
                    "properties": {
                        "old_text": {"type": "string", "description": "Must occur exactly once, \
                            unless replace_all is true"},
                        "new_text": {"type": "string"},
                        "replace_all": flag("Replace every occurrence"),
                    },
                    "required": ["old_text", "new_text"],
                    "additionalProperties": false,
                }},
                "if_checksum": if_checksum,
            }),
        ),
        tool(
            "list_directory",
            "List a directory.",
            "LOW",
            &["path"],
            json!({
                "path": path,
                "recursive": flag("Include subdirectories"),
                "pattern": {"type": "string", "description": "A glob pattern. Hidden names are \
                    listed only if the pattern names them, as in .*"},
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
                "max_results": count("The most results to return"),
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
                "glob": {"type": "string", "description": "Search only files whose names match \
                    this glob pattern"},
                "ignore_case": flag("Ignore upper and lower case"),
                "literal": flag("Treat the pattern as plain text"),
                "context": count("How many lines to show around each match"),
                "max_results": count("The most results to return"),
            }),
        ),
        tool(
            "create_directory",
            "Create a directory and its parents.",
            "MEDIUM",
            &["path"],
            json!({"path": path}),
        ),
        tool(
            "get_file_info",
            "Return the size, times and type of a file.",
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
    fn it_lists_every_tool() {
        assert_eq!(catalog().iter().map(|tool| tool.name).collect::<Vec<_>>(), TOOL_NAMES);
        let asked = |name: &str| {
            catalog().into_iter().find(|tool| tool.name == name).unwrap().requires_approval
        };
        assert_eq!(
            (asked("read_file"), asked("write_file"), asked("delete_file")),
            (false, true, true)
        );
    }
}
