//! Approved commands run in a layer that lands whole: what they do is in the folder afterwards, can
//! be undone, and loses nothing that somebody else has changed meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that fails says so")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use atelier_core::policy::Policy;
use atelier_executor::Preview;
use common::Fixture;
use serde_json::{Value, json};

/// Runs a Python script as an approved command.
fn python(f: &Fixture, script: &str) -> Value {
    f.put("t.py", script);
    f.call("execute_command", json!({ "command": "python3", "args": ["t.py"] })).to_value()
}

fn text(f: &Fixture, name: &str) -> Option<String> {
    fs::read_to_string(f.path(name)).ok()
}

fn undo(f: &Fixture, answer: &Value) -> Value {
    f.call("undo", json!({ "tool_id": answer["tool_id"] })).to_value()
}

/// What a person sees before the command is undone.
fn undo_preview(f: &Fixture, answer: &Value) -> String {
    let params = json!({ "tool_id": answer["tool_id"] });
    let (call, _) = Policy::builtin().judge_request("undo", params, &f.roots);
    match f.tools().preview(&call.unwrap()).unwrap() {
        Some(Preview::Landing { diff, .. }) => diff,
        other => panic!("{other:?}"),
    }
}

/// Everything in the folder with its kind, permissions and content.
fn whole(f: &Fixture) -> Vec<(PathBuf, u32, String)> {
    let mut found = Vec::new();
    let mut todo = vec![f.path("")];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = match (meta.is_dir(), meta.is_symlink()) {
            (true, _) => {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                String::new()
            }
            (_, true) => fs::read_link(&path).unwrap().display().to_string(),
            _ => fs::read_to_string(&path).unwrap(),
        };
        found.push((path, meta.mode(), content));
    }
    found.sort();
    found
}

/// The layers that commands have now.
fn layers(f: &Fixture) -> Vec<PathBuf> {
    let listed = fs::read_dir(f.base().join("state/commands")).unwrap();
    listed.map(|entry| entry.unwrap().path()).collect()
}

/// LY-44
#[test]
fn a_command_lands_whole_and_can_be_undone() {
    let f = Fixture::new();
    f.put(".gitignore", "node_modules\n*.log\n");
    f.put("node_modules/old/index.js", "old\n");
    f.put("build.log", "before\n");
    f.put("gone/a", "a\n");
    f.put("gone/b/c", "c\n");
    f.put("old.o", "o\n");
    let script = "
import os, shutil
open('notes.txt', 'a').write('more\\n')
open('build.log', 'w').write('after\\n')
os.makedirs('node_modules/new/deep')
for n in range(60): open(f'node_modules/new/deep/{n}.js', 'w').write(str(n))
os.makedirs('node_modules/.bin'); os.symlink('../new/deep/1.js', 'node_modules/.bin/one')
shutil.rmtree('node_modules/old'); shutil.rmtree('gone')
os.symlink('/usr/bin/python3', 'absolute')
open('run.sh', 'w').write('#!/bin/sh\\n'); os.chmod('run.sh', 0o755)
os.mkdir('closed'); open('closed/x', 'w').write('x'); os.chmod('closed', 0o500)
os.mkdir('empty')
os.utime('old.o', (1000000000, 1000000000))
os.utime('run.sh', (1000000001, 1000000001))
os.link('notes.txt', 'other name')
os.remove('main.c'); os.mkdir('main.c'); open('main.c/inside', 'w').write('i')
print('done')
";
    f.put("t.py", script);
    let before = whole(&f);
    let answer = python(&f, script);
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    assert_eq!(answer["stdout"], "done\n");
    assert_eq!(answer.get("note"), None, "{answer:#}");
    assert_eq!(answer["changes"], json!({ "added": 5, "changed": 1, "deleted": 3, "ignored": 63 }));
    assert_eq!(text(&f, "notes.txt").as_deref(), Some("notes\nmore\n"));
    assert_eq!(text(&f, "other name").as_deref(), Some("notes\nmore\n"));
    assert_eq!(text(&f, "node_modules/.bin/one").as_deref(), Some("1"));
    assert_eq!(text(&f, "build.log").as_deref(), Some("after\n"));
    assert_eq!(text(&f, "main.c/inside").as_deref(), Some("i"));
    assert_eq!(fs::read_link(f.path("absolute")).unwrap(), Path::new("/usr/bin/python3"));
    assert!(!f.path("gone").exists() && !f.path("node_modules/old").exists());
    let mode = |name: &str| f.path(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run.sh"), mode("closed"), mode("empty")), (0o755, 0o500, 0o755));
    // Programs like make compare the times of files.
    let time = |name: &str| f.path(name).metadata().unwrap().mtime();
    assert_eq!((time("old.o"), time("run.sh")), (1_000_000_000, 1_000_000_001));
    assert_eq!(layers(&f), [PathBuf::new(); 0]);
    // The person sees what comes back, and files that git ignores are counted.
    let preview = undo_preview(&f, &answer);
    let counted = "node_modules\nIgnored by git: 1 files added, 0 changed, 61 deleted\n";
    assert!(preview.contains(counted), "{preview}");
    assert!(preview.contains("-more\n") && preview.contains("+before\n"), "{preview}");
    let undone = undo(&f, &answer);
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    assert_eq!(undone["refused"], json!([]));
    assert_eq!(whole(&f), before);
    // An undo is a change that can be undone.
    let again = undo(&f, &undone);
    assert_eq!(again["success"], json!(true), "{again:#}");
    assert_eq!(text(&f, "node_modules/.bin/one").as_deref(), Some("1"));
}

/// Waits for something that gives no signal.
fn until(mut is_so: impl FnMut() -> bool) {
    let (_sender, never) = mpsc::channel::<()>();
    while !is_so() {
        never.recv_timeout(Duration::from_millis(2)).ok();
    }
}

/// LY-45
#[test]
fn what_somebody_changes_meanwhile_stays() {
    let f = Fixture::new();
    f.put(".gitignore", "target\n");
    f.put("target/out", "old\n");
    f.put("both.txt", "base\n");
    f.put("removed/by-command", "x\n");
    let script = "
import os, shutil, time
for name in ['both.txt', 'new.txt', 'target/out', 'alone.txt']: open(name, 'w').write('command\\n')
shutil.rmtree('removed')
os.remove('app.js')
open('last', 'w').write('x')
while not os.path.exists(os.path.expanduser('~/go')): time.sleep(0.002)
print(open('src/a.py').read())
";
    let answer = std::thread::scope(|scope| {
        let answer = scope.spawn(|| python(&f, script));
        until(|| layers(&f).iter().any(|layer| layer.join("upper/last").exists()));
        // Nothing of it is in the folder yet.
        assert_eq!(text(&f, "both.txt").as_deref(), Some("base\n"));
        for name in ["both.txt", "new.txt", "target/out", "app.js", "removed/by-person"] {
            f.put(name, "person\n");
        }
        f.put("src/a.py", "print('seen')\n");
        // The kernel does not promise that a layer shows a file that is new in the folder.
        fs::write(f.base().join("state/home/go"), "").unwrap();
        answer.join().unwrap()
    });
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    assert_eq!(answer["stdout"], "print('seen')\n\n");
    for name in ["both.txt", "new.txt", "app.js", "removed/by-person"] {
        assert_eq!(text(&f, name).as_deref(), Some("person\n"), "{name}");
        let note = answer["note"].as_str().unwrap();
        assert!(note.contains(&format!("{name} (it was changed in the folder")), "{note}");
    }
    // What can be made again is as the last one made it, and the other version can come back.
    assert_eq!(text(&f, "target/out").as_deref(), Some("command\n"));
    assert_eq!(text(&f, "alone.txt").as_deref(), Some("command\n"));
    assert!(!f.path("removed/by-command").exists());
    let undone = undo(&f, &answer);
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    assert_eq!(text(&f, "target/out").as_deref(), Some("person\n"));
    assert_eq!(text(&f, "removed/by-command").as_deref(), Some("x\n"));
    assert!(!f.path("alone.txt").exists());
}

/// LY-46
#[test]
fn undo_says_what_ran_in_the_folder_itself() {
    let f = Fixture::new();
    assert!(f.bash("git init -q . && git add . && git commit -qm first"));
    let call = |params| f.call("execute_command", params).to_value();
    let wrote = f.call("write_file", json!({ "path": "w.txt", "content": "w\n" })).to_value();
    assert_eq!(wrote["success"], json!(true), "{wrote:#}");
    let added = call(json!({ "command": "git", "args": ["add", "w.txt"] }));
    assert_eq!(added["success"], json!(true), "{added:#}");
    assert_eq!((added.get("tool_id"), added.get("changes")), (None, None));
    // The latest change that can be undone is that of the file. What cannot is named.
    let undone = f.call("undo", json!({})).to_value();
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    let why = "`git add w.txt` ran in the folder itself; what it did is not undone";
    assert_eq!(undone["refused"], json!([{ "path": ".", "why": why }]));
    assert!(!f.path("w.txt").exists());
    let nothing = f.call("undo", json!({})).to_value();
    assert_eq!(nothing["success"], json!(false), "{nothing:#}");
    assert_eq!(nothing["refused"], json!([{ "path": ".", "why": why }]));
}

/// LY-46
#[test]
fn a_new_repository_stays_when_its_command_is_undone() {
    let f = Fixture::new();
    let script = "
import subprocess
subprocess.run(['git', 'init', '-q', 'made'], check=True)
open('made/file', 'w').write('x')
";
    let answer = python(&f, script);
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    assert!(f.bash("git -C made add file && git -C made commit -qm mine"));
    let undone = undo(&f, &answer);
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    let why = "it is a new repository, which only you remove";
    assert_eq!(undone["refused"], json!([{ "path": "made/.git", "why": why }]));
    assert!(!f.path("made/file").exists());
    assert!(f.bash("git -C made cat-file -e HEAD:file"));
}

/// LY-44: a command that fails or runs out of time has done what it has done.
#[test]
fn what_a_failed_command_did_lands_too() {
    let f = Fixture::new();
    let failed = python(&f, "open('made', 'w').write('x'); raise SystemExit(3)");
    assert_eq!((&failed["success"], &failed["exit_code"]), (&json!(false), &json!(3)));
    assert_eq!(text(&f, "made").as_deref(), Some("x"));
    f.put("t.py", "open('late', 'w').write('x')\nwhile True: pass\n");
    let params = json!({ "command": "python3", "args": ["t.py"], "timeout": 1 });
    let late = f.call("execute_command", params).to_value();
    assert_eq!(late["code"], json!("command_timeout"), "{late:#}");
    assert_eq!(text(&f, "late").as_deref(), Some("x"));
    let undone = undo(&f, &late);
    assert_eq!(undone["success"], json!(true), "{undone:#}");
    assert!(!f.path("late").exists() && f.path("made").exists());
}

/// LY-47
#[test]
fn a_command_reaches_nothing_around_its_layer() {
    let f = Fixture::new();
    f.put(".env", "TOKEN=1\n");
    fs::create_dir_all(f.base().join("state/other")).unwrap();
    let state = f.base().join("state").display().to_string();
    let root = f.ws.root().display().to_string();
    let script = format!(
        "
import os
def tries(name, work):
    try: work(); print(name, 'worked')
    except OSError as error: print(name, 'failed')
tries('xattr', lambda: os.setxattr('src', 'user.overlay.opaque', b'y'))
tries('whiteout', lambda: os.mknod('hole', 0o020644, os.makedev(0, 0)))
tries('setuid', lambda: (open('s', 'w'), os.chmod('s', 0o4755)))
tries('layers', lambda: os.listdir('{state}/commands'))
tries('state', lambda: open('{state}/other/x', 'w'))
tries('below', lambda: open('/proc/1/root{root}/x', 'w'))
os.mkfifo('pipe')
for fd in range(3, 256):
    if os.path.isdir(f'/proc/self/fd/{{fd}}'): print('handle', fd)
os.chdir('{root}'); open('absolute.txt', 'w').write('in the layer')
"
    );
    let answer = python(&f, &script);
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    let printed = answer["stdout"].as_str().unwrap();
    for name in ["xattr", "whiteout", "setuid", "layers", "state", "below"] {
        assert!(printed.contains(&format!("{name} failed\n")), "{name}: {printed}");
    }
    assert!(!printed.contains("handle"), "{printed}");
    assert_eq!(text(&f, "absolute.txt").as_deref(), Some("in the layer"));
    assert!(!f.path("pipe").exists());
    let note = answer["note"].as_str().unwrap();
    assert!(note.contains("pipe (devices, sockets and FIFOs do not land)"), "{note}");
    assert_eq!(text(&f, "src/a.py").as_deref(), Some("print(1)\n"));
}
