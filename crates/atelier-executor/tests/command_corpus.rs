//! Every case of `command_attacks.json`: the verdict with links resolved, the run if it is allowed,
//! and, for cases with visible harm, the sandbox alone without the policy.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use atelier_core::policy::verdict::Verdict;
use atelier_executor::{Access, Cancel, CommandSpec, detect_isolation};
use common::{Fixture, corpus};
use serde_json::{Value, json};

/// Creates what `cwd_note` describes in words.
fn arrange(f: &Fixture, case: &Value) {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    let pwn = "touch ../out/PWNED";
    let script = |name: &str| {
        f.put(name, format!("#!/bin/sh\n{pwn}\n"));
        fs::set_permissions(f.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    if text("command") == "git" {
        assert!(f.bash(
            "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm one && \
             git clone -q . repo 2>/dev/null && echo changed >> notes.txt"
        ));
    }
    let note = text("cwd_note");
    for (word, name) in [
        ("ws/evil.sh", "evil.sh"),
        ("ws/bin/cat", "bin/cat"),
        ("ws/ls", "ls"),
        ("tpl/hooks", "tpl/hooks/post-checkout"),
        ("hooks/pre-commit", ".git/hooks/pre-commit"),
    ] {
        if note.contains(word) {
            script(name);
        }
    }
    for (word, line) in [
        ("ws/pipe is a FIFO", "mkfifo pipe"),
        ("truncate -s 10G", "truncate -s 2G huge.bin"),
        ("ws/list.bin", "printf '%s\\0' $OUT/secret.txt > list.bin"),
        ("fsmonitor", "git config core.fsmonitor 'touch ../out/PWNED;touch PWNED'"),
        ("[diff] external", "git config diff.external 'touch ../out/PWNED;touch PWNED'"),
        ("[alias] pwn", "git config alias.pwn '!touch ../out/PWNED'"),
        (
            "evil.tar",
            "ln -s $OUT l && tar -cf evil.tar l && rm l && mkdir l && echo x > l/PWNED && tar -rf \
             evil.tar l/PWNED && rm -r l",
        ),
        (
            "evil.zip",
            "mkdir -p d/e && cd d/e && mkdir -p ../out && echo x > ../out/PWNED && zip -q \
             ../../evil.zip ../out/PWNED && cd ../.. && rm -r d",
        ),
        (
            "evil-link.zip",
            "ln -s $OUT l && zip -qy evil-link.zip l && rm l && mkdir l && echo x > l/PWNED && \
             zip -q evil-link.zip l/PWNED && rm -r l",
        ),
    ] {
        if note.contains(word) {
            assert!(f.bash(line), "{line}");
        }
    }
    for (name, code) in [
        ("fork.py", "import os\nwhile True: os.fork()\n"),
        ("bg.py", "import subprocess\nsubprocess.Popen(['sleep', '600'])\n"),
        (
            "term.py",
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n",
        ),
        ("flood.py", "import sys\nwhile 1: sys.stderr.write('x' * 65536)\n"),
        ("split.py", "print('я' * 2000000)\n"),
        (
            "net.py",
            "import socket\nfor a in [('169.254.169.254', 80), ('127.0.0.1', 22)]:\n  try: \
             socket.create_connection(a, 1); print('CONNECTED')\n  except OSError as e: print(e)\n",
        ),
        ("app.log", "line\n"),
        ("name with spaces.txt", "x\n"),
        ("файл.txt", "x\n"),
        ("scripts/build.py", "print('built')\n"),
    ] {
        f.put(name, code);
    }
    for line in case["setup"].as_array().into_iter().flatten() {
        assert!(f.bash(line.as_str().unwrap()), "setup: {line}");
    }
}

fn args(case: &Value) -> Vec<String> {
    let expand = |arg: &Value| match arg.as_str() {
        Some(text) => text.to_owned(),
        None => arg["repeat"]
            .as_str()
            .unwrap()
            .repeat(usize::try_from(arg["times"].as_u64().unwrap()).unwrap()),
    };
    case["args"].as_array().unwrap().iter().map(expand).collect()
}

fn call_of(case: &Value) -> Value {
    let mut params = json!({ "command": case["command"], "args": args(case) });
    for (name, value) in case["params"].as_object().into_iter().flatten() {
        params[name] = value.clone();
    }
    params
}

/// Asserts that no harm was done, whatever the verdict was.
fn harm(f: &Fixture, case: &Value, shown: &str, took: Duration) -> Option<&'static str> {
    let check = case["runtime_check"].as_str().unwrap_or_default();
    let secret_in_archive =
        || fs::read(f.path("x.zip")).is_ok_and(|zip| zip.windows(6).any(|w| w == b"SECRET"));
    [
        (f.base().join("out/PWNED").exists(), "PWNED outside"),
        (shown.contains("SECRET"), "the secret was shown"),
        (shown.contains("topsecret"), "the environment was shown"),
        (shown.contains("CONNECTED"), "the network was reached"),
        (check.contains("x.zip does not contain") && secret_in_archive(), "the secret was packed"),
        (
            check.contains("nothing in ws changed") && f.path("PWNED").exists(),
            "the workspace was changed",
        ),
        (took > Duration::from_secs(60), "it did not end"),
    ]
    .into_iter()
    .find_map(|(harmed, what)| harmed.then_some(what))
}

fn check(case: &Value) -> Result<(), String> {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    let f = Fixture::new();
    arrange(&f, case);
    let expect: Verdict = text("expect").parse().unwrap();
    let mut params = call_of(case);
    let judgement = f.judge("execute_command", params.clone());
    let by_verdict = match text("kind") {
        "benign" => judgement.verdict <= expect,
        _ => judgement.verdict >= expect || matches!(text("class"), "dos" | "process"),
    };
    if !by_verdict {
        return Err(format!(
            "{} by {}, expected {expect}: {}",
            judgement.verdict, judgement.rule, judgement.reason
        ));
    }
    // Tests must not contact registries and remote repositories.
    if judgement.network {
        return Ok(());
    }
    params["timeout"] = json!(if endless(case) { 1 } else { 3 });
    let started = Instant::now();
    let result = f.call("execute_command", params);
    let shown = serde_json::to_string(&result).unwrap();
    if let Some(harm) = harm(&f, case, &shown, started.elapsed()) {
        return Err(format!("{harm}: {}", &shown[..shown.floor_char_boundary(400)]));
    }
    let printed = |name| result.fields.get(name).and_then(Value::as_str).map_or(0, str::len);
    if printed("stdout") + printed("stderr") > 1 << 20 {
        return Err("more than 1 MiB of output".to_owned());
    }
    if text("runtime_check").contains("truncated flag")
        && result.fields.get("truncated") != Some(&Value::Bool(true))
    {
        return Err("not marked as cut".to_owned());
    }
    Ok(())
}

fn run_all(wanted: impl Fn(&Value) -> bool, check: impl Fn(&Value) -> Result<(), String>) {
    let cases: Vec<Value> =
        corpus("command_attacks.json").into_iter().map(Result::unwrap).filter(wanted).collect();
    assert!(!cases.is_empty());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| Some(format!("{}: {}", case["id"], check(case).err()?)))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} fail:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

fn endless(case: &Value) -> bool {
    matches!(case["class"].as_str(), Some("dos" | "process"))
}

#[test]
fn every_command_case_is_judged_and_does_no_harm() {
    run_all(|case| !endless(case), check);
}

#[test]
fn every_case_that_would_not_end_is_ended() {
    run_all(endless, check);
}

/// The sandbox is the boundary: even without the policy, the marker does not appear outside.
#[test]
fn without_the_policy_the_sandbox_alone_stops_the_harm() {
    if detect_isolation().landlock == 0 {
        return;
    }
    let visible = |case: &Value| {
        let check = case["runtime_check"].as_str().unwrap_or_default();
        (check.contains("PWNED") || check.contains("SECRET")) && !endless(case)
    };
    run_all(visible, |case| {
        let f = Fixture::new();
        arrange(&f, case);
        let out = f.snapshot("out");
        for access in [Access::ReadOnly, Access::Workspace] {
            let mut spec = CommandSpec::new(case["command"].as_str().unwrap(), args(case));
            spec.access = access;
            spec.timeout = Duration::from_secs(5);
            let started = Instant::now();
            // A program that is not found, or a path instead of a name, counts as stopped.
            let Ok(outcome) = f.runner.run(&f.ws, &spec, &Cancel::new().unwrap()) else { continue };
            let shown = outcome.stdout + &outcome.stderr;
            if let Some(harm) = harm(&f, case, &shown, started.elapsed()) {
                return Err(format!(
                    "{access:?}: {harm}: {}",
                    &shown[..shown.floor_char_boundary(300)]
                ));
            }
        }
        if f.snapshot("out") == out { Ok(()) } else { Err("the outside changed".to_owned()) }
    });
}
