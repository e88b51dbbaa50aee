//! Scripts in a layer: what runs, what it changes, and that the workspace stays as it is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;

use common::Fixture;
use serde_json::{Value, json};

/// Runs a script and returns its answer.
fn shell(f: &Fixture, script: &str) -> Value {
    f.call("shell", json!({ "script": script })).to_value()
}

/// The output of a script that must succeed.
fn printed(f: &Fixture, script: &str) -> String {
    let answer = shell(f, script);
    assert_eq!(answer["success"], json!(true), "{script}: {answer:#}");
    answer["stdout"].as_str().unwrap().to_owned()
}

/// The changes of the layer, as `change path` lines.
fn changes(f: &Fixture) -> Vec<String> {
    let answer = f.call("changes", json!({})).to_value();
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    let line = |file: &Value| {
        let mut line =
            format!("{} {}", file["change"].as_str().unwrap(), file["path"].as_str().unwrap());
        if let Some(from) = file["from"].as_str() {
            line = format!("{line} from {from}");
        }
        if file["conflict"] == json!(true) {
            line.push_str(" (conflict)");
        }
        line
    };
    answer["files"].as_array().unwrap().iter().map(line).collect()
}

/// LY-23
#[test]
fn what_a_script_does_stays_in_the_layer_until_it_lands() {
    let f = Fixture::new();
    let before = f.snapshot("ws");
    let answer = shell(
        &f,
        "echo new > new.txt; echo more >> notes.txt; rm main.c; mkdir -p a/b; \
        echo deep > a/b/c; mv app.js moved.js; chmod +x s.py",
    );
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    assert_eq!(
        answer["changes"],
        json!({ "added": 2, "changed": 2, "deleted": 1, "renamed": 1, "ignored": 0 })
    );
    assert_eq!(f.snapshot("ws"), before, "the workspace is as it was");
    // The layer is kept between calls.
    assert_eq!(
        printed(&f, "cat notes.txt a/b/c; ls main.c 2>/dev/null | wc -l"),
        "notes\nmore\ndeep\n0\n"
    );
    assert_eq!(
        changes(&f),
        [
            "added a/b/c",
            "deleted main.c",
            "renamed moved.js from app.js",
            "added new.txt",
            "changed notes.txt",
            "changed s.py",
        ]
    );
    let landed = f.call("land", json!({})).to_value();
    assert_eq!(landed["success"], json!(true), "{landed:#}");
    assert_eq!(fs::read_to_string(f.path("notes.txt")).unwrap(), "notes\nmore\n");
    assert_eq!(fs::read_to_string(f.path("a/b/c")).unwrap(), "deep\n");
    assert!(!f.path("main.c").exists() && !f.path("app.js").exists());
    assert_eq!(fs::read_to_string(f.path("moved.js")).unwrap(), "console.log(1)\n");
    assert_eq!(changes(&f), [""; 0]);
    // A landing can be undone.
    let undone = f.call("undo", json!({})).to_value();
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    let names = |snapshot: std::collections::BTreeMap<std::path::PathBuf, String>| {
        snapshot
            .into_iter()
            .map(|(path, text)| {
                // The inode of a file that was put back is another one.
                let mut words = text.splitn(3, ' ');
                let (mode, _, content) = (words.next(), words.next(), words.next());
                (path, mode.map(str::to_owned), content.map(str::to_owned))
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(names(f.snapshot("ws")), names(before));
    assert_eq!(changes(&f), [""; 0]);
}

/// LY-20
#[test]
fn forms_of_scripts_that_agents_write() {
    let f = Fixture::new();
    f.put("run.sh", "#!/bin/sh\necho \"ran $1\"\n");
    f.put("test_x.py", "def test_it():\n    assert 1 + 1 == 2\n");
    let root = f.ws.root().to_str().unwrap().to_owned();
    for (script, wanted) in [
        ("echo hi | tr h H", "Hi\n"),
        ("cat <<'EOF' > made.txt\nline $HOME\nEOF\ncat made.txt", "line $HOME\n"),
        ("for i in 1 2 3; do echo -n $i; done", "123"),
        ("cd src && ls *.rs", "main.rs\n"),
        ("ls *.txt | sort | head -1", "made.txt\n"),
        ("chmod +x run.sh && ./run.sh now", "ran now\n"),
        ("sleep 30 & kill $! && wait $! 2>/dev/null; echo killed", "killed\n"),
        ("echo t > /tmp/t && cat /tmp/t && rm /tmp/t && ls /tmp/t 2>/dev/null | wc -l", "t\n0\n"),
        ("cd ~ && echo x > y && cat $HOME/y", "x\n"),
        ("cat <(echo sub) 2>&1 | tee /dev/stderr 2>/dev/null", "sub\n"),
        ("python3 -c 'print(6 * 7)'", "42\n"),
        ("X=1 bash -c 'echo $X'; (echo sub); { echo group; }", "1\nsub\ngroup\n"),
        ("true && false || echo or", "or\n"),
        ("echo out; echo err >&2; exit 0", "out\n"),
        (
            "git init -q r && cd r && echo a > a && git add a && git commit -qm m && git log --oneline | wc -l",
            "1\n",
        ),
        (
            "echo $((2 ** 10)); printf '%s\\n' a b | wc -l; test -f notes.txt && echo yes",
            "1024\n2\nyes\n",
        ),
        ("seq 3 | xargs -n1 echo n", "n 1\nn 2\nn 3\n"),
        ("id -u >/dev/null; ps aux | wc -l | grep -q . && echo ps", "ps\n"),
    ] {
        assert_eq!(printed(&f, script), wanted, "{script}");
    }
    // The root's own path means the layer.
    let script = format!("echo abs > {root}/abs.txt; cd {root}; pwd; cat abs.txt");
    assert_eq!(printed(&f, &script), format!("{root}\nabs\n"));
    assert!(!f.path("abs.txt").exists());
    let failed = shell(&f, "echo before; exit 3");
    assert_eq!(
        (&failed["success"], &failed["exit_code"], &failed["stdout"], &failed["code"]),
        (&json!(false), &json!(3), &json!("before\n"), &json!("command_failed"))
    );
}

/// LY-21
#[test]
fn a_server_is_reached_at_localhost_and_nothing_else_is() {
    let f = Fixture::new();
    let script = "python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & \
        for i in $(seq 100); do curl -s localhost:8123/notes.txt && break; sleep 0.1; done; kill %1";
    assert_eq!(printed(&f, script), "notes\n");
    // A job goes on, and a later script reaches it.
    let job = f.call(
        "shell",
        json!({ "script": "echo up; exec python3 -m http.server 8124", "background": true }),
    );
    let job = job.to_value();
    assert_eq!(job["success"], json!(true), "{job:#}");
    let id = job["job_id"].as_str().unwrap().to_owned();
    let script =
        "for i in $(seq 100); do curl -s localhost:8124/notes.txt && break; sleep 0.1; done";
    assert_eq!(printed(&f, script), "notes\n");
    let jobs = f.call("jobs", json!({})).to_value();
    assert_eq!(jobs["jobs"][0]["job_id"], json!(id));
    assert_eq!(jobs["jobs"][0]["running"], json!(true));
    let output = f.call("job_output", json!({ "job_id": id })).to_value();
    assert!(output["stdout"].as_str().unwrap().starts_with("up\n"), "{output:#}");
    let stopped = f.call("job_stop", json!({ "job_id": id })).to_value();
    assert_eq!((&stopped["running"], &stopped["ended"]), (&json!(false), &json!("stopped")));
    assert_eq!(shell(&f, "curl -s -m 2 localhost:8124")["exit_code"], json!(7));
    // Nothing but the layer's own loopback can be reached.
    assert_ne!(shell(&f, "curl -s -m 3 http://192.0.2.1/")["exit_code"], json!(0));
    assert_eq!(
        printed(
            &f,
            "python3 -c 'import socket
try: socket.socket(socket.AF_UNIX)
except PermissionError: print(\"refused\")'"
        ),
        "refused\n"
    );
}

/// LY-22
#[test]
fn secrets_are_not_there_in_files_or_in_history() {
    let f = Fixture::new();
    f.put(".env", "TOKEN=SECRET-1\n");
    f.put("hidden/plan.txt", "SECRET-2\n");
    f.put(".atelierignore", "hidden/\n");
    let seen = shell(
        &f,
        "cat .env hidden/plan.txt ../out/secret.txt /etc/shadow; \
        grep -r SECRET- . ; cp .env x; cat x; mv hidden h2; cat h2/plan.txt",
    );
    assert!(!seen.to_string().contains("SECRET-"), "{seen:#}");
    assert_eq!(fs::read_to_string(f.path(".env")).unwrap(), "TOKEN=SECRET-1\n");
    assert!(
        f.bash("git init -q && git add -f .env && git commit -qm x && git rm -q --cached .env")
    );
    let seen =
        shell(&f, "git log -p; git show HEAD:.env; git cat-file --batch-all-objects --batch");
    assert!(!seen.to_string().contains("SECRET-"), "{seen:#}");
    assert!(seen["note"].as_str().unwrap().contains("closed to scripts"), "{seen:#}");
}

/// LY-28
#[test]
fn a_file_that_both_sides_changed_does_not_land() {
    let f = Fixture::new();
    shell(&f, "echo layer >> notes.txt; echo layer > src/a.py");
    f.put("notes.txt", "notes\nperson\n");
    assert_eq!(changes(&f), ["changed notes.txt (conflict)", "changed src/a.py"]);
    let refused = f.call("land", json!({})).to_value();
    assert_eq!((&refused["success"], &refused["code"]), (&json!(false), &json!("conflict")));
    assert_eq!(fs::read_to_string(f.path("src/a.py")).unwrap(), "print(1)\n", "all or nothing");
    let landed = f.call("land", json!({ "paths": ["src"] })).to_value();
    assert_eq!(landed["landed"], json!([{ "path": "src/a.py", "change": "changed" }]));
    let discarded = f.call("discard", json!({ "paths": ["notes.txt"] })).to_value();
    assert_eq!(discarded, json!({ "success": true, "discarded": 1 }));
    assert_eq!(changes(&f), [""; 0]);
    assert_eq!(printed(&f, "cat notes.txt"), "notes\nperson\n");
    // A file that a person changes after it has landed is not undone.
    f.put("src/a.py", "person\n");
    let undone = f.call("undo", json!({})).to_value();
    assert_eq!((&undone["success"], &undone["code"]), (&json!(false), &json!("conflict")));
    assert_eq!(undone["refused"][0]["path"], json!("src/a.py"));
    assert_eq!(fs::read_to_string(f.path("src/a.py")).unwrap(), "person\n");
}

/// LY-27: what the file tools change can be undone like a landing, and an undo as well.
#[test]
fn every_change_of_the_folder_can_be_undone() {
    let f = Fixture::new();
    let call = |tool: &str, params: Value| {
        let answer = f.call(tool, params).to_value();
        assert_eq!(answer["success"], json!(true), "{tool}: {answer:#}");
        answer
    };
    let text = |name: &str| fs::read_to_string(f.path(name)).ok();
    call("write_file", json!({ "path": "notes.txt", "content": "written\n" }));
    let undone = call("undo", json!({}));
    assert_eq!(undone["undone"], json!([{ "path": "notes.txt", "change": "changed" }]));
    assert_eq!(text("notes.txt").as_deref(), Some("notes\n"));
    // The undo itself can be undone, by its id.
    call("undo", json!({ "tool_id": undone["tool_id"] }));
    assert_eq!(text("notes.txt").as_deref(), Some("written\n"));
    call("write_file", json!({ "path": "n/e/w.txt", "content": "x", "create_dirs": true }));
    call("undo", json!({}));
    assert!(!f.path("n").exists(), "the folders go with the file");
    call("move_file", json!({ "source": "main.c", "destination": "src/main.c" }));
    call("undo", json!({}));
    assert!(f.path("main.c").exists() && !f.path("src/main.c").exists());
    let edits = json!([{ "old_text": "print(1)", "new_text": "print(2)" }]);
    call("edit_file", json!({ "path": "src/a.py", "edits": edits }));
    call("delete_file", json!({ "path": "app.js" }));
    call("undo", json!({}));
    call("undo", json!({}));
    assert_eq!(text("app.js").as_deref(), Some("console.log(1)\n"));
    assert_eq!(text("src/a.py").as_deref(), Some("print(1)\n"));
    // Everything is undone but the first write, whose undo was undone.
    assert_eq!(text("notes.txt").as_deref(), Some("written\n"));
}
