//! The names, descriptions and schemas of the tools: what a model reads about them.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::space::Settings;

/// What a tool does to the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Looks,
    /// A second identical call changes nothing more.
    Adds,
    Replaces,
    Changes,
}

/// The tools of a workspace with these settings, in the order of the specification.
pub(crate) fn tools(settings: &Settings) -> Vec<Tool> {
    let root = &settings.root_name;
    let mut tools = core(root);
    if settings.extra_tools {
        tools.extend(extra(root));
    }
    tools.retain(|(effect, _)| !settings.read_only || *effect == Effect::Looks);
    tools.into_iter().map(|(_, tool)| tool).collect()
}

fn core(root: &str) -> Vec<(Effect, Tool)> {
    let file = string(&format!("File path relative to {root} (or absolute path within {root})"));
    let directory =
        string(&format!("Directory path relative to {root} (or absolute path within {root})"));
    let either = string(&format!(
        "File or directory path relative to {root} (or absolute path within {root})"
    ));
    vec![
        tool(
            Effect::Looks,
            "read_file",
            "Read file",
            "Read complete file contents from workspace. Text files (UTF-8) only.",
            &json!({
                "path": file,
                "head": count("Read only first N lines"),
                "tail": count("Read only last N lines"),
            }),
            &["path"],
            None,
        ),
        tool(
            Effect::Replaces,
            "write_file",
            "Write file",
            "Create new file or completely overwrite existing file in workspace. This replaces \
             the entire \
             file contents: to append, read the file first and write back the combined content. \
             Parent \
             directories are created.",
            &json!({
                "path": file,
                "content": string("Complete file contents to write (replaces any existing \
                    content)"),
            }),
            &["path", "content"],
            None,
        ),
        tool(
            Effect::Looks,
            "list_directory",
            "List directory",
            "List directory contents with [FILE] and [DIR] indicators.",
            &json!({ "path": directory }),
            &["path"],
            Some(json!({
                "path": { "type": "string" },
                "directories": names(),
                "files": names(),
            })),
        ),
        tool(
            Effect::Adds,
            "create_directory",
            "Create directory",
            "Create new directory in workspace, with parent directories as needed. Succeeds if it \
             exists.",
            &json!({ "path": directory }),
            &["path"],
            None,
        ),
        tool(
            Effect::Looks,
            "get_file_info",
            "Get file info",
            "Get detailed file or directory metadata: type, size, permissions, owner, timestamps.",
            &json!({ "path": either }),
            &["path"],
            Some(info()),
        ),
        tool(
            Effect::Looks,
            "search_files",
            "Search files",
            "Recursively search for files and directories matching a glob pattern: * (not /), ** \
             (any depth), \
             ?, [abc], {a,b}. Hidden names match only if the pattern contains the dot.",
            &json!({
                "path": string(&format!("Starting directory path relative to {root}")),
                "pattern": string("Glob pattern to match (e.g., '*.rb', '**/*.txt')"),
                "max_results": count("Maximum number of results to return (default: 100)"),
            }),
            &["path", "pattern"],
            Some(json!({
                "pattern": { "type": "string" },
                "count": { "type": "integer" },
                "limited": { "type": "boolean" },
                "directories": names(),
                "files": names(),
            })),
        ),
    ]
}

fn extra(root: &str) -> Vec<(Effect, Tool)> {
    let file = string(&format!("File path relative to {root} (or absolute path within {root})"));
    let start = string(&format!("Where to start, relative to {root}"));
    let edit = json!({
        "type": "object",
        "properties": {
            "old_text": string("Text to replace, exactly as it is in the file"),
            "new_text": string("Text to put in its place"),
            "replace_all": flag("Replace every occurrence; otherwise there must be exactly one"),
        },
        "required": ["old_text", "new_text"],
        "additionalProperties": false,
    });
    vec![
        tool(
            Effect::Changes,
            "edit_file",
            "Edit file",
            "Replace exact pieces of text in a file. All edits are made, or none.",
            &json!({ "path": file, "edits": { "type": "array", "items": edit, "minItems": 1 } }),
            &["path", "edits"],
            None,
        ),
        tool(
            Effect::Changes,
            "append_file",
            "Append to file",
            "Add text to the end of a file, which is created if it does not exist.",
            &json!({ "path": file, "content": string("Text to add") }),
            &["path", "content"],
            None,
        ),
        tool(
            Effect::Changes,
            "move_file",
            "Move file",
            "Move or rename a file or directory. An existing destination is never replaced.",
            &json!({ "source": file, "destination": file }),
            &["source", "destination"],
            None,
        ),
        tool(
            Effect::Changes,
            "delete_file",
            "Delete file",
            "Delete a file, a link or an empty directory; with recursive a whole directory.",
            &json!({ "path": file, "recursive": flag("Delete a directory with everything in it") }),
            &["path"],
            None,
        ),
        tool(
            Effect::Looks,
            "read_multiple_files",
            "Read multiple files",
            "Read several text files at once. A file that cannot be read does not affect the \
             others.",
            &json!({ "paths": { "type": "array", "items": file, "minItems": 1 } }),
            &["paths"],
            None,
        ),
        tool(
            Effect::Looks,
            "grep",
            "Search in files",
            "Search file contents by regular expression and list matching lines as path:line:text.",
            &json!({
                "path": start,
                "pattern": string("Regular expression, or plain text with literal"),
                "glob": string("Only files whose path matches this glob"),
                "literal": flag("The pattern is plain text"),
                "ignore_case": flag("Ignore case"),
                "context": count("Lines to show before and after each match"),
                "max_results": count("Maximum number of matching lines (default: 100)"),
            }),
            &["path", "pattern"],
            None,
        ),
        tool(
            Effect::Looks,
            "directory_tree",
            "Directory tree",
            "Show a directory and everything below it as an indented tree. Hidden names are left \
             out.",
            &json!({
                "path": start,
                "max_depth": count("How many levels to show (default: all)"),
                "max_results": count("Maximum number of entries (default: 1000)"),
            }),
            &["path"],
            None,
        ),
    ]
}

fn tool(
    effect: Effect,
    name: &'static str,
    title: &str,
    description: &'static str,
    properties: &Value,
    required: &[&str],
    output: Option<Value>,
) -> (Effect, Tool) {
    let mut tool = Tool::new(name, description, object(properties, required));
    tool.title = Some(title.to_owned());
    tool.output_schema = output.map(|properties| {
        // Not every file system records creation times, and only directories have entries.
        let optional = ["created", "entries"];
        let names =
            properties.as_object().into_iter().flat_map(JsonObject::keys).map(String::as_str);
        let required: Vec<&str> = names.filter(|name| !optional.contains(name)).collect();
        object(&properties, &required)
    });
    tool.annotations = Some(
        ToolAnnotations::with_title(title)
            .read_only(effect == Effect::Looks)
            .destructive(matches!(effect, Effect::Replaces | Effect::Changes))
            .idempotent(effect != Effect::Changes)
            .open_world(false),
    );
    (effect, tool)
}

fn object(properties: &Value, required: &[&str]) -> Arc<JsonObject> {
    let mut schema = JsonObject::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("properties".into(), properties.clone());
    schema.insert("required".into(), json!(required));
    schema.insert("additionalProperties".into(), json!(false));
    Arc::new(schema)
}

fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// `integer` also accepts `10.0`, which is the same number in JSON Schema.
fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn names() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn info() -> Value {
    let time = || json!({ "type": "string", "format": "date-time" });
    json!({
        "path": { "type": "string" },
        "type": { "enum": ["file", "directory", "symlink", "other"] },
        "size": { "type": "integer" },
        "permissions": { "type": "string" },
        "uid": { "type": "integer" },
        "gid": { "type": "integer" },
        "created": time(),
        "modified": time(),
        "accessed": time(),
        "entries": { "type": "integer" },
    })
}
