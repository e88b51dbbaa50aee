//! Lines like those that coding agents write, in the shares that were counted over public sessions
//! (`data/agent_lines.jsonl`). Each says what it needs besides a layer: a network, the home folder,
//! or containers and administration.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::path::Path;

use atelier_core::policy::verdict::Verdict;
use common::Fixture;
use serde_json::{Value, json};

fn lines() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agent_lines.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// LY-29
#[test]
fn no_line_is_refused_for_its_form() {
    let f = Fixture::new();
    let lines = lines();
    assert!(lines.len() >= 500, "{}", lines.len());
    let (mut free, mut asked) = (0, 0);
    for line in &lines {
        let mut params = json!({ "script": line["script"] });
        if line["network"].is_array() {
            params["network"] = line["network"].clone();
        }
        let judgement = f.judge("shell", params);
        match judgement.verdict {
            Verdict::Low => free += 1,
            Verdict::Medium | Verdict::High => asked += 1,
            Verdict::Deny => panic!("{line}: {judgement:?}"),
        }
    }
    let share = |n: usize| n as f64 / lines.len() as f64;
    println!("{} lines: {free} free, {asked} asked", lines.len());
    assert!(share(free + asked) >= 0.95 && share(free) >= 0.78);
}

/// LY-29: one in twelve of them is run; `ATELIER_LINES=1` runs all. What a line needs beyond the
/// layer fails inside, and nothing of it reaches the folder.
#[test]
fn lines_of_agents_run() {
    let f = Fixture::new();
    let before = f.snapshot("ws");
    let every = std::env::var("ATELIER_LINES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for line in lines().iter().filter(|line| line["network"].is_null()).step_by(every) {
        let answer = f.call("shell", json!({ "script": line["script"], "timeout": 60 })).to_value();
        assert!(answer["exit_code"].is_number(), "{line}: {answer:#}");
        let errors = answer["stderr"].as_str().unwrap();
        assert!(!errors.contains("syntax error"), "{line}: {errors}");
        assert!(!answer.to_string().contains("SECRET-42"), "{line}");
    }
    assert_eq!(f.snapshot("ws"), before);
}
