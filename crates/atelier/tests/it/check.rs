//! `atelier check` and `atelier tool`: for people who want to know why a call was refused.

use crate::BINARY;
use serde_json::{Value, json};
use std::{
    io::Write,
    path::Path,
    process::{Output, Stdio},
};

fn atelier(arguments: &[&str], input: &str) -> Output {
    #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
    let mut command = std::process::Command::new(BINARY);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn workspace() -> tempfile::TempDir {
    let base = tempfile::tempdir().unwrap();
    std::fs::create_dir(base.path().join("ws")).unwrap();
    std::fs::write(base.path().join("secret.txt"), "SECRET").unwrap();
    std::fs::write(base.path().join("ws/notes.txt"), "notes\n").unwrap();
    std::os::unix::fs::symlink("../secret.txt", base.path().join("ws/link.txt")).unwrap();
    base
}

fn root(base: &Path) -> String {
    base.join("ws").to_str().unwrap().to_owned()
}

/// TL-02.1
#[test]
fn verdict_names_its_rule_and_reason() {
    for (words, verdict) in [
        (&["git", "status"][..], "LOW"),
        (&["git", "commit", "-m", "x"], "MEDIUM"),
        (&["git", "push", "--force"], "HIGH"),
        (&["git", "-c", "core.pager=x", "log"], "DENY"),
        (&["rm", "-rf", "/"], "DENY"),
        (&["grep", "x", "/etc/passwd"], "DENY"),
    ] {
        let arguments = [&["check", "--json", "command", "--"], words].concat();
        let judged = lines(&atelier(&arguments, "")).remove(0);
        assert_eq!(judged["verdict"], verdict, "{words:?}: {judged}");
        assert!(
            !judged["rule"].as_str().unwrap().is_empty()
                && !judged["reason"].as_str().unwrap().is_empty()
        );
    }
    let shown = atelier(&["check", "command", "--", "rm", "-rf", "/"], "");
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.starts_with("DENY") && text.contains("Command not allowed"), "{text}");
}

#[test]
fn path_is_rated_by_its_real_target() {
    let base = workspace();
    let root = root(base.path());
    let check = |path: &str, op: &str| {
        let output = atelier(&["check", "--json", "path", "--root", &root, "--op", op, path], "");
        lines(&output)[0]["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!(check("notes.txt", "read"), "LOW");
    assert_eq!(check("notes.txt", "write"), "MEDIUM");
    assert_eq!(check("../secret.txt", "read"), "DENY");
    assert_eq!(check("link.txt", "read"), "DENY");
    assert_eq!(check(&format!("{root}/notes.txt"), "read"), "LOW");
    assert_eq!(check(&format!("{root}-evil/notes.txt"), "read"), "DENY");
    assert_eq!(check("build.so", "write"), "DENY");
}

/// Every line of input gets one line of output.
#[test]
fn check_reads_one_call_per_line() {
    let base = workspace();
    let input = [
        json!({"tool_name": "read_file", "tool_params": {"path": "notes.txt"}}).to_string(),
        json!({"tool_name": "tool_read_file", "tool_params": {"path": "notes.txt"}}).to_string(),
        json!({"tool_name": "execute_command", "tool_params": {"command": "rm", "args": ["-rf", "/"]}})
            .to_string(),
        json!({"tool_name": "no_such_tool", "tool_params": {}}).to_string(),
        json!({"tool_name": "read_file", "tool_params": {"path": "notes.txt", "user_id": 7}}).to_string(),
        r#"{"tool_name": "read_file", "tool_params": {"path": "\ud800"}}"#.to_owned(),
        "garbage".to_owned(),
    ]
    .join("\n");
    let judged =
        lines(&atelier(&["check", "--json", "--root", &root(base.path()), "calls", "-"], &input));
    let verdicts: Vec<&str> = judged.iter().map(|line| line["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["LOW", "LOW", "DENY", "DENY", "DENY", "DENY", "DENY"]);
}

/// TL-01.1 TL-01.2 TL-01.3 TL-01.4: the tools as a person runs them in a terminal.
#[test]
fn tool_command_prints_its_result() {
    let base = workspace();
    let root = root(base.path());
    let tool = |name: &str, params: Value| {
        let output = atelier(&["tool", "--root", &root, name, &params.to_string()], "");
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.success(), result["success"] == true, "{result}");
        result
    };
    let read = tool("read_file", json!({"path": "notes.txt"}));
    assert_eq!(
        (&read["content"], &read["size"], &read["encoding"]),
        (&json!("notes\n"), &json!(6), &json!("utf-8"))
    );
    let wrote =
        tool("write_file", json!({"path": "notes.txt", "content": "more\n", "mode": "append"}));
    assert_eq!(wrote["size"], 11);
    let ran = tool("execute_command", json!({"command": "wc", "args": ["-c", "notes.txt"]}));
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(0), &json!("11 notes.txt\n")));
    let listed = tool("list_directory", json!({"path": "."}));
    assert_eq!(listed["total_count"], 2, "{listed}");

    // The texts of seed 000.
    for (path, text) in [
        ("no.txt", "Path no.txt does not exist"),
        ("link.txt", "Path link.txt is outside workspace bounds"),
    ] {
        assert_eq!(tool("read_file", json!({"path": path}))["error"], text);
    }

    let refused = tool("read_file", json!({"path": "link.txt"}));
    assert_eq!((&refused["success"], &refused["verdict"]), (&json!(false), &json!("DENY")));
    assert!(!refused.to_string().contains("SECRET"));
    let output = atelier(&["tool", "--root", &root, "read_file", "{bad"], "");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((result["success"].clone(), output.status.code()), (json!(false), Some(1)));
}

/// LY-30, LY-21
#[test]
fn scripts_are_tried_and_landed_from_the_command_line() {
    let base = workspace();
    let root = root(base.path());
    let state = base.path().join("state");
    let notes = || std::fs::read_to_string(base.path().join("ws/notes.txt")).unwrap();
    let atelier = |arguments: &[&str]| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        command.args(arguments).env("XDG_STATE_HOME", &state).env("XDG_CACHE_HOME", &state);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let tool = |name: &str, params: Value| -> Value {
        let (_, text, errors) = atelier(&["tool", "--root", &root, name, &params.to_string()]);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"))
    };
    let ran = tool("shell", json!({ "script": "echo more >> notes.txt; echo x > new.txt; pwd" }));
    assert_eq!((&ran["success"], &ran["stdout"]), (&json!(true), &json!(format!("{root}\n"))));
    assert_eq!(notes(), "notes\n");
    let (_, listed, _) = atelier(&["changes", "--root", &root]);
    let (files, kept) = listed.split_once("Kept until ").unwrap();
    assert_eq!(files, "added    new.txt\nchanged  notes.txt\n");
    assert!(kept.ends_with(", or longer if the layer is used.\n"), "{kept}");
    let (_, diff, _) = atelier(&["changes", "--root", &root, "--diff"]);
    assert!(diff.contains("--- a/notes.txt\n+++ b/notes.txt\n@@ -1,1 +1,2 @@\n notes\n+more\n"));
    let (landed, text, _) = atelier(&["land", "--root", &root, "notes.txt"]);
    assert!(landed && text.starts_with("changed  notes.txt\nLanded."), "{text}");
    assert_eq!(notes(), "notes\nmore\n");
    let (undone, text, _) = atelier(&["undo", "--root", &root]);
    assert!(undone && text.starts_with("changed  notes.txt\nUndone."), "{text}");
    assert_eq!(notes(), "notes\n");
    let (discarded, text, _) = atelier(&["discard", "--root", &root]);
    assert!(discarded && text == "Discarded 1 changes.\n", "{text}");
    assert_eq!(atelier(&["changes", "--root", &root]).1, "The layer has no changes.\n");
    let (failed, text, _) = atelier(&["land", "--root", &root]);
    assert!(!failed && text.contains("Not found: a change in the layer"), "{text}");
    // A job goes on after the command that started it.
    let job = tool("shell", json!({ "script": "python3 -m http.server 8126", "background": true }));
    let script =
        "for i in $(seq 100); do curl -s localhost:8126/notes.txt && break; sleep 0.1; done";
    assert_eq!(tool("shell", json!({ "script": script }))["stdout"], json!("notes\n"));
    let stopped = tool("job_stop", json!({ "job_id": job["job_id"] }));
    assert_eq!((&stopped["running"], &stopped["ended"]), (&json!(false), &json!("stopped")));
}
