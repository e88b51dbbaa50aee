//! Repositories inside the workspace stay what they are, and new ones run nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use atelier_core::gate::ToolOutcome;
use atelier_executor::detect_isolation;
use common::{Fixture, git};
use serde_json::json;

/// Runs a Python script that somebody approved.
fn python(f: &Fixture, script: &str) -> ToolOutcome {
    f.put("script.py", script);
    let result = f.call("execute_command", json!({ "command": "python3", "args": ["script.py"] }));
    assert!(result.success(), "{result:?}");
    result
}

fn note(result: &ToolOutcome) -> String {
    result.fields.get("note").map_or(String::new(), |note| note.as_str().unwrap().to_owned())
}

/// The demonstrated case: a script moves the folder around a repository, copies it back and
/// configures a program that the owner's own `git status` runs outside of every sandbox.
#[test]
fn the_folders_above_a_repository_stay_where_they_are() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    assert!(f.bash(
        "mkdir -p vendor/deep node_modules && git init -q vendor/lib && git init -q vendor/deep/er &&
                    git init -q --bare vendor/mirror && git init -q node_modules/pkg"
    ));
    let before = f.snapshot("ws/vendor/lib/.git");
    let moved = python(
        &f,
        r"import os, shutil
for path in ['vendor/lib', 'vendor', 'vendor/deep', 'vendor/deep/er', 'node_modules', 'node_modules/pkg']:
    try: os.rename(path, path + '-old'); print('MOVED', path)
    except OSError as e: print(e)
    try: shutil.rmtree(path); print('REMOVED', path)
    except OSError as e: pass
for config in ['vendor/lib/.git/config', 'vendor/mirror/config', 'node_modules/pkg/.git/config']:
    try: open(config, 'a').write('[core]\n\tfsmonitor = touch PWNED\n'); print('WROTE', config)
    except OSError as e: print(e)
shutil.copytree('vendor/lib', 'copy')
open('copy/.git/config', 'a').write('[core]\n\tfsmonitor = touch PWNED\n')
try: os.rename('copy', 'vendor/lib'); print('REPLACED')
except OSError as e: print(e)
",
    );
    let said = moved.fields["stdout"].as_str().unwrap();
    for word in ["MOVED", "REMOVED", "WROTE", "REPLACED"] {
        assert!(!said.contains(word), "{said}");
    }
    assert_eq!(f.snapshot("ws/vendor/lib/.git"), before);
    assert!(f.bash("cd vendor/lib && git status && test ! -e PWNED"));
    assert!(f.bash("cd copy; git status; test ! -e PWNED"));
    assert!(
        note(&moved).contains("copy/.git") && note(&moved).contains("core.fsmonitor"),
        "{moved:?}"
    );
}

/// Whatever would run something, in whatever form it comes.
#[test]
fn a_new_repository_that_runs_something_is_set_aside() {
    let f = Fixture::new();
    assert!(f.bash("git init -q . && git add -A && git commit -qm one"));
    let made = python(
        &f,
        r"import os, shutil
def repository(path):
    for part in ['objects', 'refs/heads', 'info', 'hooks']: os.makedirs(f'{path}/{part}')
    open(f'{path}/HEAD', 'w').write('ref: refs/heads/main\n')
    open(f'{path}/config', 'w').write('[core]\n\tbare = false\n')
    return path
def add(path, name, text):
    open(f'{path}/{name}', 'a').write(text)
add(repository('fsmonitor/.git'), 'config', '[core]\n\tfsmonitor = touch PWNED\n')
add(repository('hook/.git'), 'hooks/pre-commit', '#!/bin/sh\ntouch PWNED\n')
add(repository('attributes/.git'), 'info/attributes', '* filter=lfs\n')
add(repository('included/.git'), 'config', '[include]\n\tpath = ../evil\n')
add(repository('alias/.git'), 'config', '[alias]\n\tst = !touch PWNED\n')
add(repository('broken/.git'), 'config', '[core\n')
add(repository('common/.git'), 'commondir', '../store\n')
add(repository('bare.git'), 'config', '[core]\n\tpager = touch PWNED\n')
repository('module/.git')
add(repository('module/.git/modules/lib'), 'config', '[core]\n\tsshCommand = touch PWNED\n')
os.makedirs('tree')
repository('worktree/.git')
os.makedirs('worktree/.git/worktrees/w')
add('worktree/.git', 'worktrees/w/config.worktree', '[core]\n\tfsmonitor = touch PWNED\n')
add(repository('store'), 'config', '[core]\n\tfsmonitor = touch PWNED\n')
open('tree/.git', 'w').write('gitdir: ../store\n')
os.makedirs('away'); open('away/.git', 'w').write('gitdir: /tmp/elsewhere\n')
os.makedirs('linked'); os.symlink('../store', 'linked/.git')
def other(path, *parts):
    os.makedirs(path)
    for part in parts: os.makedirs(f'{path}/{part}')
    add(path, 'config', '[core]\n\tfsmonitor = touch PWNED\n')
    return path
os.makedirs('elsewhere/objects'); os.makedirs('elsewhere/refs')
other('links'); add('links', 'HEAD', 'ref: refs/heads/main\n')
os.symlink('../elsewhere/objects', 'links/objects'); os.symlink('../elsewhere/refs', 'links/refs')
other('headlink', 'objects', 'refs'); os.symlink('refs/heads/main', 'headlink/HEAD')
other('headless', 'objects', 'refs')
other('apart'); add('apart', 'HEAD', 'ref: refs/heads/main\n'); add('apart', 'commondir', '../headless\n')
repository('outer'); add(repository('outer/objects/u/.git'), 'config', '[core]\n\tpager = touch PWNED\n')
repository('plain/.git')
",
    );
    let note = note(&made);
    for place in [
        "fsmonitor",
        "hook",
        "attributes",
        "included",
        "alias",
        "broken",
        "common",
        "module",
        "worktree",
        "tree",
        "away",
        "linked",
    ] {
        assert!(note.contains(&format!("{place}/.git is a new repository")), "{place}: {note}");
        assert!(f.path(&format!("{place}/.git.set-aside")).symlink_metadata().is_ok(), "{place}");
        // Git finds the repository around it, or none, and runs nothing.
        let check = format!(
            "cd {place} && git status >/dev/null; git -C .git.set-aside log; test ! -e PWNED"
        );
        assert!(f.bash(&check), "{place}");
    }
    for place in ["links", "headlink", "apart"] {
        assert!(note.contains(&format!("{place} is a new repository")), "{place}: {note}");
        assert!(f.bash(&format!("cd {place}; git status; test ! -e PWNED")), "{place}");
    }
    assert!(note.contains("outer/objects/u/.git is a new repository"), "{note}");
    assert!(note.contains("bare.git is a new repository"), "{note}");
    assert!(f.path("bare.git/HEAD.set-aside").exists());
    assert!(!note.contains("plain") && f.path("plain/.git/HEAD").exists(), "{note}");
}

/// Clones, submodules, worktrees and new repositories of the project work as before.
#[test]
fn ordinary_new_repositories_stay() {
    let f = Fixture::new();
    assert!(f.bash("git init -q . && git add -A && git commit -qm one"));
    for args in [
        &["init", "-q", "fresh"][..],
        &["worktree", "add", "-q", "trees/wt"],
        &["-C", "fresh", "config", "user.name", "Bob"],
    ] {
        let result = f.call("execute_command", git(args));
        assert!(result.success() && note(&result).is_empty(), "{args:?}: {result:?}");
    }
    // What `npm install` and its like do for dependencies from git.
    let cloned = python(
        &f,
        r"import subprocess
env = {'GIT_CONFIG_NOSYSTEM': '1', 'PATH': '/usr/local/bin:/usr/bin:/bin', 'HOME': '/nonexistent'}
subprocess.run(['git', 'clone', '-q', '.', 'packages/dep'], check=True, env=env)
subprocess.run(['git', 'clone', '-q', '--bare', '.', 'packages/mirror.git'], check=True, env=env)
",
    );
    assert!(note(&cloned).is_empty(), "{cloned:?}");
    assert!(
        f.path("packages/dep/.git/HEAD").exists() && f.path("packages/mirror.git/HEAD").exists()
    );
    let removed = f.call("execute_command", git(&["worktree", "remove", "trees/wt"]));
    assert!(removed.success(), "{removed:?}");
}

/// A folder becomes a repository by what is in it, so the file that makes it one is asked about,
/// and so is every change inside of it.
#[test]
fn no_file_tool_makes_or_changes_a_repository_unasked() {
    use atelier_core::policy::verdict::Verdict;
    let f = Fixture::new();
    assert!(f.bash("git init -q --bare mirror && mkdir -p docs/objects docs/refs other"));
    f.put("other/HEAD", "x\n");
    f.put("docs/config", "x\n");
    let write = |path: &str| json!({ "path": path, "content": "x\n", "create_dirs": true });
    for (tool, params) in [
        ("write_file", write("mirror/config")),
        ("write_file", write("mirror/hooks/pre-push")),
        (
            "edit_file",
            json!({ "path": "mirror/config", "edits": [{ "old_text": "a", "new_text": "b" }] }),
        ),
        ("write_file", write("docs/HEAD")),
        ("move_file", json!({ "source": "notes.txt", "destination": "docs/HEAD" })),
        ("write_file", write("other/commondir")),
        ("create_directory", json!({ "path": "mirror/modules" })),
    ] {
        let judged = f.judge(tool, params.clone());
        assert!(judged.verdict >= Verdict::High, "{tool} {params}: {judged:?}");
    }
    for path in ["docs/heads", "docs/objects/readme.md", "other/config", "config"] {
        let judged = f.judge("write_file", write(path));
        assert_eq!(judged.verdict, Verdict::Medium, "{path}: {judged:?}");
    }
}

/// A person's git would write to the working tree of a repository, wherever it lies.
#[test]
fn a_new_repository_that_works_outside_is_set_aside() {
    let f = Fixture::new();
    let made = python(
        &f,
        r"import os
def repository(path, tree):
    for part in ['objects', 'refs/heads']: os.makedirs(f'{path}/{part}')
    open(f'{path}/HEAD', 'w').write('ref: refs/heads/main\n')
    open(f'{path}/config', 'w').write(f'[core]\n\tworktree = {tree}\n')
repository('away/.git', '/tmp'); repository('up/.git', '../../../out')
os.symlink('/tmp', 'lnk'); repository('linked/.git', '../../lnk')
os.makedirs('tree'); repository('fine/.git', '../../tree'); repository('own/.git', os.getcwd() + '/tree')
",
    );
    for name in ["away", "up", "linked"] {
        assert!(!f.path(&format!("{name}/.git")).exists(), "{name}: {made:?}");
        assert!(note(&made).contains(&format!("{name}/.git")), "{made:?}");
    }
    for name in ["fine", "own"] {
        assert!(f.path(&format!("{name}/.git")).exists(), "{name}: {made:?}");
    }
}
