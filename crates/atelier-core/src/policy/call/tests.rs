use super::*;
use serde_json::json;

fn parse(name: &str, params: Value) -> Result<ToolCall, &'static str> {
    ToolCall::parse(name, params, &Roots::relative_only(), &Limits::default())
        .map_err(|e| e.code().known().unwrap())
}

fn path(raw: &str) -> WorkspacePath {
    WorkspacePath::parse(raw, &Roots::relative_only()).unwrap()
}

#[test]
fn names_paths_and_defaults() {
    let read = parse("read_file", json!({"path": "./a/b"})).unwrap();
    assert_eq!(
        (read.name(), read.path("path"), read.number("head")),
        ("read_file", Ok(&path("a/b")), None)
    );
    assert_eq!(parse("tool_read_file", json!({"path": "a//b"})), Ok(read));
    let list = parse("list_directory", json!({})).unwrap();
    assert_eq!(list.path("path"), Ok(&WorkspacePath::root()));
    assert_eq!((list.flag("recursive"), list.optional_text("pattern")), (false, None));
    let edit = Edit { old_text: "a".into(), new_text: "b".into(), replace_all: false };
    let short = json!({"path": "x", "old_string": "a", "new_string": "b"});
    let edited = parse("edit_file", short).unwrap();
    assert_eq!(edited.edits("edits"), [edit]);
    let spelled = json!({"path": "x", "edits": [{"old_text": "a", "new_text": "b"}]});
    assert_eq!(parse("edit_file", spelled), Ok(edited));
    let command =
        parse("execute_command", json!({"command": "ls", "args": ["-l"], "timeout": 9})).unwrap();
    let cwd = WorkspacePath::root();
    let ls = Command { command: "ls".into(), args: vec!["-l".into()], timeout: Some(9), cwd };
    assert_eq!(command.command(), Some(&ls));
    assert_eq!(command, ToolCall::from(ls));
}

#[test]
fn what_is_no_call_says_why() {
    let long = "a".repeat(70_000);
    for (name, params, code) in [
        ("rm_rf", json!({}), "unknown_tool"),
        ("tool_tool_read_file", json!({"path": "x"}), "unknown_tool"),
        ("read_file", json!({}), "invalid_params"),
        ("read_file", json!({"path": "x", "user_id": "someone else"}), "invalid_params"),
        ("read_file", json!({"path": "../x"}), "path_outside_workspace"),
        ("read_file", json!({"path": "x/"}), "not_a_file"),
        ("write_file", json!({"path": ".", "content": ""}), "not_a_file"),
        ("write_file", json!({"path": "x", "content": "", "mode": "truncate"}), "invalid_params"),
        ("edit_file", json!({"path": "x"}), "invalid_params"),
        ("edit_file", json!({"path": "x", "old_text": "", "new_text": "b"}), "invalid_params"),
        ("search_files", json!({"pattern": "../*"}), "path_outside_workspace"),
        ("search_files", json!({"pattern": "{a"}), "pattern_invalid"),
        ("execute_command", json!({"command": "ls", "env": {"LD_PRELOAD": "x"}}), "invalid_params"),
        ("execute_command", json!({"command": "ls", "timeout": 301}), "timeout_exceeded"),
        ("execute_command", json!({"command": "ls", "timeout": 0}), "timeout_exceeded"),
        ("execute_command", json!({"command": "ls", "args": ["a\0b"]}), "invalid_params"),
        ("execute_command", json!({"command": "echo", "args": [long]}), "arguments_too_long"),
        ("execute_command", json!({"command": "ls", "cwd": "/etc"}), "path_outside_workspace"),
        ("execute_command", json!({"command": "ls", "args": "x"}), "invalid_params"),
    ] {
        assert_eq!(parse(name, params.clone()), Err(code), "{name} {params}");
    }
    let small = Limits { write_bytes: 3, ..Limits::default() };
    let params = json!({"path": "x", "content": "яя"});
    let error = ToolCall::parse("write_file", params, &Roots::relative_only(), &small).unwrap_err();
    assert_eq!(error, CallError::Size { size: 4, limit: 3 }, "bytes, not characters");
    let params = json!({"path": "x", "content": "яb"});
    assert!(
        ToolCall::parse("write_file", params, &Roots::relative_only(), &small).is_ok(),
        "as much as fits"
    );
}

#[test]
fn a_checksum_is_one() {
    let edit = |sum: &str| {
        let params = json!({"path": "x", "old_text": "a", "new_text": "b", "if_checksum": sum});
        parse("edit_file", params).map(|call| call.optional_text("if_checksum").map(str::to_owned))
    };
    let good = "0123456789abcdef".repeat(4);
    assert_eq!(edit(&good), Ok(Some(good.clone())));
    for bad in ["", &good[1..], &good.to_uppercase(), &good.replace('a', "g"), &format!("{good}0")]
    {
        assert_eq!(edit(bad), Err("invalid_params"), "{bad}");
    }
}

#[test]
fn edits_are_counted_and_measured() {
    let limits = Limits { edits: 2, write_bytes: 8, argument_bytes: 4, ..Limits::default() };
    let parse = |name: &str, params: Value| {
        ToolCall::parse(name, params, &Roots::relative_only(), &limits)
            .map_err(|error| error.code().known().unwrap())
    };
    let edit = |old: &str, new: &str| json!({"old_text": old, "new_text": new});
    let edits = |edits: Value| parse("edit_file", json!({"path": "x", "edits": edits})).map(drop);
    assert_eq!(edits(json!([])), Err("invalid_params"));
    assert_eq!(edits(json!([edit("a", "b"), edit("c", "d")])), Ok(()));
    assert_eq!(
        edits(json!([edit("a", "b"), edit("c", "d"), edit("e", "f")])),
        Err("invalid_params")
    );
    assert_eq!(edits(json!([edit("a", "b"), edit("", "d")])), Err("invalid_params"));
    // The old and the new text both count.
    assert_eq!(edits(json!([edit("aaaa", "bbbb")])), Ok(()));
    assert_eq!(edits(json!([edit("aaaa", "bbbbb")])), Err("file_size_exceeded"));
    assert_eq!(edits(json!([edit("aaaaa", "bb"), edit("a", "b")])), Err("file_size_exceeded"));
    // `replace_all` belongs to an edit.
    let beside = json!({"path": "x", "edits": [edit("a", "b")], "replace_all": true});
    assert_eq!(parse("edit_file", beside).map(drop), Err("invalid_params"));

    assert!(parse("grep", json!({"pattern": "aaaa"})).is_ok());
    assert_eq!(parse("grep", json!({"pattern": "aaaaa"})).map(drop), Err("invalid_params"));
}

#[test]
fn arguments_are_counted_and_measured() {
    let limits =
        Limits { arguments: 3, argument_bytes: 4, arguments_bytes: 6, ..Limits::default() };
    let run = |command: &str, args: &[&str]| {
        let params = json!({"command": command, "args": args});
        ToolCall::parse("execute_command", params, &Roots::relative_only(), &limits)
            .map_err(|e| e.code().known().unwrap())
    };
    for (command, args) in
        [("aaaa", &[][..]), ("a", &["b", "c", "d"]), ("a", &["bbbb"]), ("a", &["bbbb", "cc"])]
    {
        assert!(run(command, args).is_ok(), "{command} {args:?}");
    }
    for (command, args) in [
        ("aaaaa", &[][..]),
        ("a", &["b", "c", "d", "e"]),
        ("a", &["bbbbb"]),
        ("a", &["bbbb", "ccc"]),
    ] {
        assert_eq!(run(command, args), Err("arguments_too_long"), "{command} {args:?}");
    }
}

#[test]
fn parameters_have_names() {
    for params in [json!(["notes.txt", null, null]), json!("notes.txt"), json!(null)] {
        let error =
            ToolCall::parse("read_file", params, &Roots::relative_only(), &Limits::default());
        assert_eq!(error.unwrap_err().code().as_str(), "invalid_params");
    }
}

#[test]
fn one_simple_command_line_is_split_as_a_shell_would() {
    let parse = |params: serde_json::Value| {
        let call =
            ToolCall::parse("execute_command", params, &Roots::relative_only(), &Limits::default());
        let command = call.unwrap().command().unwrap().clone();
        [vec![command.command], command.args].concat()
    };
    for (line, words) in [
        ("pytest -x", &["pytest", "-x"][..]),
        ("git commit -m 'it; works | $HOME'", &["git", "commit", "-m", "it; works | $HOME"]),
        (r#"grep "a b" x\ y.txt"#, &["grep", "a b", "x y.txt"]),
        ("  ls  -la ", &["ls", "-la"]),
        ("cargo test a::b=c", &["cargo", "test", "a::b=c"]),
        ("ls ", &["ls"]),
        (" pwd", &["pwd"]),
        ("test ! -f x", &["test", "!", "-f", "x"]),
        ("test a != b", &["test", "a", "!=", "b"]),
    ] {
        assert_eq!(parse(json!({"command": line})), words, "{line}");
    }
    for line in [
        "ls",
        "ls | wc",
        "ls && rm x",
        "a; b",
        "echo $HOME x",
        "echo \"$(id)\" x",
        "echo `id` x",
        "cat < x",
        "cat > x",
        "ls *.rs x",
        "ls ~/x y",
        "FOO=1 make x",
        "! true x",
        " ! true",
        "'ls -l' ",
        " ''",
        "make x &",
        "(ls x)",
        "echo {a,b} x",
        "ls # x",
        "git\tstatus x",
        "ls\nrm x",
        "echo 'open x",
    ] {
        assert_eq!(parse(json!({"command": line})), [line], "{line}");
    }
    assert_eq!(parse(json!({"command": "a b", "args": ["c"]})), ["a b", "c"]);
}
