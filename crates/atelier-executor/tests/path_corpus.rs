//! Every case of `path_attacks.json`, in the real file system, through the tools as an agent calls
//! them.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::time::{Duration, Instant};

use common::{Fixture, corpus};
use serde_json::{Value, json};

fn params(op: &str, path: &str, case: &Value) -> (&'static str, Value) {
    match op {
        "read" => ("read_file", json!({ "path": path })),
        "write" => ("write_file", json!({ "path": path, "content": case["content"] })),
        "list" => match case.get("pattern") {
            Some(pattern) => ("list_directory", json!({ "path": path, "pattern": pattern })),
            None => ("list_directory", json!({ "path": path })),
        },
        "create_dir" => ("create_directory", json!({ "path": path })),
        "info" => ("get_file_info", json!({ "path": path })),
        "search" => ("search_files", json!({ "path": path, "pattern": case["pattern"] })),
        other => panic!("unknown op {other}"),
    }
}

fn check(case: &Value) -> Result<(), String> {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    let fixture = Fixture::new();
    for line in case["setup"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()) {
        // The race has its own test. Here, only its initial state is created.
        let line =
            line.strip_prefix("RACE: ").map_or(line, |race| race.split("loop:").next().unwrap());
        if !fixture.bash(line) {
            assert!(line.starts_with("mknod"), "setup failed: {line}");
            return Ok(());
        }
    }
    let path = match text("class") {
        "literal" => text("path").to_owned(),
        _ => fixture.expand(text("path")),
    };
    let (tool, params) = params(text("op"), &path, case);
    let before = fixture.snapshot("out");
    let inside = fixture.path("").read_dir().unwrap().count();
    let started = Instant::now();
    let result = fixture.call(tool, params);
    let took = started.elapsed();
    let shown = serde_json::to_string(&result).unwrap();
    let fail = |why: &str| Err(format!("{why}: {}", &shown[..shown.floor_char_boundary(300)]));
    if result.success() != (text("expect") == "allow") {
        return fail("wrong answer");
    }
    // Opening a FIFO or a device would block for ever. Nothing else takes long.
    if took > Duration::from_secs(30) {
        return fail(&format!("took {took:?}"));
    }
    if shown.contains("SECRET") || shown.contains("root:x:0") {
        return fail("leaked");
    }
    if fixture.snapshot("out") != before {
        return fail("changed the outside");
    }
    let invariant = text("invariant");
    if invariant.contains("'.hidden' not in") && shown.contains(".hidden") {
        return fail("showed a hidden name");
    }
    if invariant.contains("read back byte-equal") {
        let read = fixture.call("read_file", json!({ "path": path }));
        let listed = fixture.call(
            "list_directory",
            json!({ "path": ".", "pattern": if path.starts_with('.') { ".*" } else { "*" } }),
        );
        let named = listed.fields["files"]
            .as_array()
            .unwrap()
            .iter()
            .any(|file| file["name"] == path.as_str());
        if read.fields.get("content") != case.get("content") || !named {
            return fail("not read back under its name");
        }
    }
    if invariant.contains("no partial file")
        && fixture.path("").read_dir().unwrap().count() != inside
    {
        return fail("left something behind");
    }
    Ok(())
}

#[test]
fn every_path_case_answers_as_it_should() {
    let cases = corpus("path_attacks.json");
    assert!(cases.len() > 80, "{}", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        match case {
            Ok(case) => {
                failures.extend(check(case).err().map(|why| format!("{}: {why}", case["id"])));
            }
            // A lone surrogate is not valid in a JSON string, so the request never becomes a call.
            Err(line) => assert!(line.contains("lone surrogate"), "{line}"),
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} fail:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}
