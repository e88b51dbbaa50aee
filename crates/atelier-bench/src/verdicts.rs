//! How fast the policy judges on one core, compared with parsing the same calls from JSON.

use crate::report::{Aim, Report, Unit};
use atelier_core::{
    path::Roots,
    policy::{Policy, call::ToolCall},
};
use serde_json::{Value, json};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

pub(crate) fn measure(rounds: usize, report: &mut Report) {
    let policy = Policy::builtin();
    let roots = Roots::announced("/home/someone/code/shop");
    let requests: Vec<(&str, Value, String)> = requests()
        .into_iter()
        .map(|(tool, params)| (tool, params.clone(), params.to_string()))
        .collect();
    let calls: Vec<ToolCall> = requests
        .iter()
        .filter_map(|(tool, params, _)| {
            ToolCall::parse(tool, params.clone(), &roots, policy.limits()).ok()
        })
        .collect();
    let (mut judged, mut whole, mut read) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        judged.push(rate(calls.len(), || {
            for call in &calls {
                black_box(policy.judge(black_box(call), &roots));
            }
        }));
        whole.push(rate(requests.len(), || {
            for (tool, params, _) in &requests {
                black_box(policy.judge_request(tool, black_box(params.clone()), &roots).1);
            }
        }));
        read.push(rate(requests.len(), || {
            for (_, _, text) in &requests {
                drop(black_box(serde_json::from_str::<Value>(black_box(text))));
            }
        }));
    }
    let aim = Some(Aim::AtLeast(500_000.0));
    report.add("verdicts (floor: their JSON read)", Unit::PerSecond, judged, read.clone(), aim);
    report.add("verdicts, parameters checked, too", Unit::PerSecond, whole, read, None);
}

/// Runs whole rounds for a second, after one round to warm up.
fn rate(calls: usize, mut round: impl FnMut()) -> f64 {
    round();
    let (start, mut rounds) = (Instant::now(), 0u32);
    while start.elapsed() < Duration::from_secs(1) {
        round();
        rounds += 1;
    }
    f64::from(rounds) * calls as f64 / start.elapsed().as_secs_f64()
}

/// A typical mix: mostly reads, some changes, a few attacks.
fn requests() -> Vec<(&'static str, Value)> {
    let run = |command: &str, args: &[&str]| {
        ("execute_command", json!({"command": command, "args": args}))
    };
    vec![
        ("read_file", json!({"path": "src/main.rs"})),
        ("read_file", json!({"path": "/home/someone/code/shop/src/lib.rs"})),
        ("read_file", json!({"path": "../../etc/passwd"})),
        ("list_directory", json!({"path": "src", "recursive": true})),
        ("search_files", json!({"pattern": "**/*.rs"})),
        ("write_file", json!({"path": "src/a.py", "content": "print(1)\n"})),
        ("write_file", json!({"path": ".env", "content": "x"})),
        run("grep", &["-rn", "TODO", "src"]),
        run("grep", &["-E", "foo|bar", "--include=*.rs", "-r", "."]),
        run("find", &[".", "-name", "*.rs", "-type", "f", "-not", "-path", "*/target/*"]),
        run("ls", &["-la", "src"]),
        run("cat", &["src/../notes.txt"]),
        run("git", &["status", "--porcelain"]),
        run("git", &["log", "--oneline", "-20", "main..HEAD", "--", "src"]),
        run("git", &["diff", "--stat", "HEAD~1"]),
        run("git", &["commit", "-am", "Say what changed"]),
        run("git", &["push", "--force", "origin", "main"]),
        run("npm", &["install", "express"]),
        run("cargo", &["test", "-p", "shop", "--", "--nocapture"]),
        run("python", &["scripts/build.py", "--out", "dist"]),
        run("sed", &["-i", "s/a/b/g", "src/a.py"]),
        run("tar", &["-czf", "src.tgz", "src"]),
        run("tar", &["-cf", "x.tar", "src", "--checkpoint-act=exec=id"]),
        run("rm", &["-rf", "/"]),
    ]
}
