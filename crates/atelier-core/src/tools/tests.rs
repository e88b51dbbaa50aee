use super::*;
use crate::{
    digest::CallDigest,
    path::Roots,
    policy::{
        call::{CallError, ToolCall},
        limits::Limits,
    },
};
use serde_json::{Value, json};
use std::collections::HashSet;

fn parse(name: &str, params: Value) -> ToolCall {
    ToolCall::parse(name, params, &Roots::relative_only(), &Limits::default()).unwrap()
}

#[test]
fn definitions_are_consistent() {
    let mut names = HashSet::new();
    for tool in builtin::ALL {
        assert!(names.insert(tool.name), "{} is defined twice", tool.name);
        assert!(
            tool.offered != Offered::OverMcpOnly || tool.mcp.is_some(),
            "{} is offered nowhere",
            tool.name
        );
        let mut params = HashSet::new();
        for name in tool
            .params
            .iter()
            .flat_map(|param| [param.name].into_iter().chain(param.aliases.to_vec()))
        {
            assert!(params.insert(name), "{} has {name} twice", tool.name);
        }
        for template in tool.card.iter().map(|row| row.value).chain([tool.summary]) {
            for name in template.split('{').skip(1).filter_map(|part| part.split('}').next()) {
                assert!(
                    tool.param(name).is_some(),
                    "{} shows {name}, which is no parameter",
                    tool.name
                );
            }
        }
        // Nobody needs to be asked about a tool that does not change the workspace.
        let is_harmless =
            tool.only_reads() || matches!(tool.effect, Effect::ChangesLayer | Effect::ActsBeside);
        assert_eq!(
            is_harmless,
            tool.rating == Rating::Always(Verdict::Low) || tool.rating == Rating::Shell,
            "{}",
            tool.name
        );
    }
}

#[test]
fn tools_are_listed_with_schema_risk_and_card() {
    let available =
        ToolTable::builtin().available(&Limits { timeout_max: 60, ..Limits::default() });
    let of = |name: &str| available.iter().find(|tool| tool.name == name).unwrap();
    assert_eq!(
        of("read_file").parameters,
        json!({
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "description": "File path relative to the workspace (or absolute path within \
                        the workspace)",
                },
                "head": {"type": "integer", "minimum": 0, "description": "Read only first N lines"},
                "tail": {"type": "integer", "minimum": 0, "description": "Read only last N lines"},
            },
            "required": ["path"],
            "additionalProperties": false,
        })
    );
    let risk = |name: &str| (of(name).usual_risk, of(name).requires_approval);
    assert_eq!(risk("read_file"), ("LOW", false));
    assert_eq!(risk("write_file"), ("MEDIUM", true));
    assert_eq!(risk("delete_file"), ("HIGH", true));
    assert_eq!(of("execute_command").parameters["properties"]["timeout"]["maximum"], 60);
    assert_eq!(of("edit_file").parameters["required"], json!(["path", "edits"]));
    assert!(available.iter().all(|tool| tool.name != "append_file"), "MCP alone has it");
    assert!(available.iter().all(|tool| tool.name != "add_context"), "nobody is asked about it");
    assert_eq!(of("delete_file").parameters["properties"]["recursive"], Value::Null);
}

/// Tools that act beside the workspace are defined like all others, but the gate takes no calls of
/// them.
#[test]
fn tools_without_the_gate_are_in_the_same_table() {
    let table = ToolTable::builtin();
    let of_agents = table.of_agents().filter(|tool| !tool.is_gated()).map(|tool| tool.name);
    assert_eq!(of_agents.collect::<Vec<_>>(), ["search_context", "add_context", "present_files"]);
    let hosts = table.offered(Offered::ToHostsOfOwnFiles).map(|tool| tool.name);
    assert_eq!(hosts.collect::<Vec<_>>(), ["begin_run", "end_run"]);
    let schema = |tool: &ToolDef| {
        Value::Object(tool.schema(Surface::Gate, "the workspace", &Limits::default()))
    };
    let search = schema(&ungated::SEARCH_CONTEXT);
    assert_eq!(
        search["properties"]["types"],
        json!({
            "type": "array",
            "items": {"type": "string", "enum": crate::InteractionType::NAMES},
            "description": "Only interactions of these types",
        })
    );
    assert_eq!(
        search["properties"]["success"],
        json!({
            "type": "boolean",
            "description": "Only interactions that succeeded, or only those that failed",
        })
    );
    assert_eq!(schema(&ungated::PRESENT_FILES)["properties"]["paths"]["minItems"], 1);
    let (roots, limits) = (Roots::relative_only(), Limits::default());
    for name in ["search_context", "add_context", "present_files", "begin_run", "end_run"] {
        let refused = ToolCall::parse(name, json!({}), &roots, &limits).unwrap_err();
        assert!(matches!(refused, CallError::UnknownTool(_)), "{name}: {refused}");
    }
}

fn parse_at(root: &str, name: &str, params: Value) -> ToolCall {
    ToolCall::parse(name, params, &Roots::announced(root), &Limits::default()).unwrap()
}

/// TL-06.3: whatever names and spellings a call uses, its card shows the same.
#[test]
fn every_spelling_has_one_canonical_form() {
    let sum = "0123456789abcdef".repeat(4);
    for (name, given, canonical) in [
        ("move_file", json!({"from": "a", "to": "b"}), json!({"source": "a", "destination": "b"})),
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
        let call = parse_at("/home/ann/shop", name, given.clone());
        assert_eq!(call.clone().into_params(), canonical, "{name} {given}");
        let again = parse_at("/home/ann/shop", call.name(), canonical.clone());
        assert_eq!(again, call, "{name} {given}");
        assert_eq!(CallDigest::of(&again), CallDigest::of(&call));
    }
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let (roots, limits) = (Roots::relative_only(), Limits::default());
    let error = |name: &str, params| {
        ToolCall::parse(name, params, &roots, &limits).unwrap_err().to_string()
    };
    assert_eq!(
        error("write_file", json!({"content": 5, "mode": "x", "env": {}})),
        "Invalid parameters: Missing required parameters: path; Parameter 'content' must be a \
         string; \
         Parameter 'mode' must be one of write, append; Unknown parameters: env"
    );
    assert_eq!(
        error("edit_file", json!({"path": "a", "edits": [{"old": "x"}]})),
        "Invalid parameters: Missing required parameters: old_text, new_text; Unknown parameters: \
         old"
    );
}

#[test]
fn whole_numbers_may_be_written_as_floats_and_are_clamped() {
    for (given, number) in [
        (json!(10), Some(10)),
        (json!(10.0), Some(10)),
        (json!(0), Some(0)),
        (json!(1e18), Some(1_000_000_000_000_000_000)),
        (json!(1e300), Some(u64::MAX)),
        (json!(null), None),
    ] {
        assert_eq!(
            parse("read_file", json!({"path": "a", "head": given})).number("head"),
            number,
            "{given}"
        );
    }
    for given in [json!(1.5), json!(-1), json!("10"), json!(true), json!([1])] {
        let params = json!({"path": "a", "head": given});
        let error =
            ToolCall::parse("read_file", params, &Roots::relative_only(), &Limits::default());
        let text = "Invalid parameters: Parameter 'head' must be a whole number, 0 or more";
        assert_eq!(error.unwrap_err().to_string(), text, "{given}");
    }
}

#[test]
fn cards_show_what_a_call_is_about() {
    let rows =
        |name: &str, params: Value| ToolTable::builtin().get(name).unwrap().card_rows(&params);
    let row = |label: &'static str, value: &str| (label, value.to_owned());
    assert_eq!(rows("read_file", json!({"path": "a"})), [row("path", "a")]);
    assert_eq!(rows("list_directory", json!({})), [row("path", ".")]);
    assert_eq!(
        rows("move_file", json!({"from": "a", "to": "b"})),
        [row("from", "a"), row("to", "b")]
    );
    assert_eq!(
        rows("execute_command", json!({"command": "git", "args": ["add", "a b"]})),
        [row("command", "git add \"a b\""), row("folder", ".")]
    );
    let summary =
        |name: &str, params: Value| ToolTable::builtin().get(name).unwrap().summarize(&params);
    assert_eq!(summary("move_file", json!({"source": "a", "destination": "b"})), "a → b");
    assert_eq!(summary("execute_command", json!({"command": "ls"})), "ls");
}
