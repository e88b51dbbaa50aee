//! The parameters of a call in their canonical form: what is stored, shown and sent.
//!
//! Each parameter has one name and each path one spelling, and what a call does not set is left
//! out. So a card shows everything that the call would act with, however the call was written.

use super::{Command, Edit, Grep, ToolCall, WriteMode};
use crate::path::WorkspacePath;
use serde_json::{Map, Value, json};

impl ToolCall {
    /// Parameters that parse to this call again.
    pub fn into_params(self) -> Value {
        let mut params = Params::default();
        match self {
            Self::ReadFile { path, head, tail } => {
                params.path("path", &path).maybe("head", head).maybe("tail", tail);
            }
            Self::WriteFile { path, content, mode, create_dirs, if_checksum } => {
                let mode = (mode != WriteMode::default()).then_some(mode);
                params
                    .path("path", &path)
                    .set("content", content)
                    .maybe("mode", mode.map(|mode| json!(mode)));
                params.flag("create_dirs", create_dirs).maybe("if_checksum", if_checksum);
            }
            Self::EditFile { path, edits, if_checksum } => {
                let edits: Vec<Value> = edits.into_iter().map(edit).collect();
                params.path("path", &path).set("edits", edits).maybe("if_checksum", if_checksum);
            }
            Self::ListDirectory { path, recursive, pattern } => {
                params.path("path", &path).flag("recursive", recursive);
                params.maybe("pattern", pattern.as_ref().map(|pattern| pattern.as_str()));
            }
            Self::SearchFiles { path, pattern, max_results } => {
                params
                    .path("path", &path)
                    .set("pattern", pattern.as_str())
                    .maybe("max_results", max_results);
            }
            Self::Grep(Grep {
                pattern,
                path,
                glob,
                ignore_case,
                literal,
                context,
                max_results,
            }) => {
                params.path("path", &path).set("pattern", pattern);
                params.maybe("glob", glob.as_ref().map(|glob| glob.as_str()));
                params.flag("ignore_case", ignore_case).flag("literal", literal);
                params
                    .maybe("context", (context > 0).then_some(context))
                    .maybe("max_results", max_results);
            }
            Self::CreateDirectory { path }
            | Self::GetFileInfo { path }
            | Self::DeleteFile { path } => {
                params.path("path", &path);
            }
            Self::MoveFile { source, destination } => {
                params.path("source", &source).path("destination", &destination);
            }
            Self::ExecuteCommand(Command { command, args, timeout, cwd }) => {
                params.set("command", command).set("args", args).maybe("timeout", timeout);
                if !cwd.is_root() {
                    params.path("cwd", &cwd);
                }
            }
        }
        Value::Object(params.0)
    }
}

fn edit(edit: Edit) -> Value {
    let Edit { old_text, new_text, replace_all } = edit;
    let mut params = Params::default();
    params.set("old_text", old_text).set("new_text", new_text).flag("replace_all", replace_all);
    Value::Object(params.0)
}

#[derive(Default)]
struct Params(Map<String, Value>);

impl Params {
    fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    fn maybe(&mut self, name: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.set(name, value);
        }
        self
    }

    /// A switch that is off unless it is given.
    fn flag(&mut self, name: &str, on: bool) -> &mut Self {
        self.maybe(name, on.then_some(true))
    }

    /// The slash at the end of a path that can only mean a directory is part of its meaning.
    fn path(&mut self, name: &str, path: &WorkspacePath) -> &mut Self {
        let slash = if path.demands_directory() && !path.is_root() { "/" } else { "" };
        self.set(name, format!("{path}{slash}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{digest::CallDigest, path::Roots, policy::limits::Limits};

    fn parse(name: &str, params: Value) -> ToolCall {
        let roots = Roots::announced("/home/ann/shop");
        ToolCall::parse(name, params, &roots, &Limits::default()).unwrap()
    }

    /// TL-06.3: whatever names and spellings a call uses, its card shows the same.
    #[test]
    fn every_spelling_has_one_canonical_form() {
        let sum = "0123456789abcdef".repeat(4);
        for (name, given, canonical) in [
            (
                "move_file",
                json!({"from": "a", "to": "b"}),
                json!({"source": "a", "destination": "b"}),
            ),
            (
                "move_file",
                json!({"path": "./a/", "to": "b/"}),
                json!({"source": "a/", "destination": "b/"}),
            ),
            ("read_file", json!({"path": "/home/ann/shop//x/../a"}), json!({"path": "a"})),
            (
                "tool_read_file",
                json!({"path": "a", "head": 0, "tail": null}),
                json!({"path": "a", "head": 0}),
            ),
            (
                "write_file",
                json!({"path": "a", "content": "x", "mode": "overwrite", "create_dirs": false}),
                json!({"path": "a", "content": "x"}),
            ),
            (
                "write_file",
                json!({"path": "a", "content": "x", "mode": "append", "create_dirs": true, "if_checksum": sum}),
                json!({"path": "a", "content": "x", "mode": "append", "create_dirs": true, "if_checksum": sum}),
            ),
            (
                "edit_file",
                json!({"path": "a", "old_string": "x", "new_string": "y", "replace_all": true}),
                json!({"path": "a", "edits": [{"old_text": "x", "new_text": "y", "replace_all": true}]}),
            ),
            (
                "edit_file",
                json!({"path": "a", "edits": [{"old_string": "x", "new_text": "y"}]}),
                json!({"path": "a", "edits": [{"old_text": "x", "new_text": "y"}]}),
            ),
            ("list_directory", json!({}), json!({"path": "."})),
            (
                "list_directory",
                json!({"path": "src/", "recursive": true, "pattern": "*.rs"}),
                json!({"path": "src/", "recursive": true, "pattern": "*.rs"}),
            ),
            ("search_files", json!({"pattern": "*.rs"}), json!({"path": ".", "pattern": "*.rs"})),
            (
                "grep",
                json!({"pattern": "x", "include": "*.rs", "context": 900}),
                json!({"path": ".", "pattern": "x", "glob": "*.rs", "context": 100}),
            ),
            ("create_directory", json!({"path": "a/"}), json!({"path": "a/"})),
            ("delete_file", json!({"path": "a/./b"}), json!({"path": "a/b"})),
            ("execute_command", json!({"command": "ls"}), json!({"command": "ls", "args": []})),
            (
                "execute_command",
                json!({"command": "ls", "args": ["-l"], "timeout": 9, "cwd": "src/"}),
                json!({"command": "ls", "args": ["-l"], "timeout": 9, "cwd": "src/"}),
            ),
            (
                "execute_command",
                json!({"command": "ls", "cwd": "/home/ann/shop"}),
                json!({"command": "ls", "args": []}),
            ),
        ] {
            let call = parse(name, given.clone());
            assert_eq!(call.clone().into_params(), canonical, "{name} {given}");
            let again = parse(call.name(), canonical.clone());
            assert_eq!(again, call, "{name} {given}");
            assert_eq!(CallDigest::of(&again), CallDigest::of(&call));
        }
    }
}
