//! Repositories inside the workspace stay what they are, and new ones run nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use atelier_core::gate::ToolOutcome;
use atelier_executor::detect_isolation;
use common::{Fixture, git, is_not_root};
use serde_json::json;

/// Runs a Python script that somebody approved.
fn python(f: &Fixture, script: &str) -> ToolOutcome {
    f.put("script.py", script);
    let result = f.call("execute_command", json!({ "command": "python3", "args": ["script.py"] }));
    assert!(result.success(), "{result:?}");
    result
}

/// Runs a Python script that somebody approved. It knows how to make repositories by hand.
fn by_hand(f: &Fixture, script: &str) -> ToolOutcome {
    python(
        f,
        &format!(
            r"import os, shutil, subprocess
EVIL = '[core]\n\tfsmonitor = touch PWNED; false\n'
def repository(path, config=EVIL):
    for part in ['objects', 'refs/heads']: os.makedirs(f'{{path}}/{{part}}')
    open(f'{{path}}/HEAD', 'w').write('ref: refs/heads/main\n')
    open(f'{{path}}/config', 'w').write(config)
    return path
{script}"
        ),
    )
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
    let printed = moved.fields["stdout"].as_str().unwrap();
    for word in ["MOVED", "REMOVED", "WROTE", "REPLACED"] {
        assert!(!printed.contains(word), "{printed}");
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
    // `npm install` and similar commands do this for dependencies from git.
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

/// A folder that nobody can list can still be entered, and git works there.
#[test]
fn a_new_repository_in_a_closed_folder_is_found() {
    if !is_not_root("a_new_repository_in_a_closed_folder_is_found") {
        return;
    }
    let f = Fixture::new();
    f.put("shut/notes.txt", "x\n");
    assert!(f.bash("chmod 311 shut"));
    let made = by_hand(
        &f,
        r"for mode in [0o311, 0o111, 0o000, 0o444, 0o555]:
    d = f'd{mode:o}'
    repository(f'{d}/deep/.git')
    os.chmod(f'{d}/deep', mode); os.chmod(d, mode)
repository('inside/.git'); os.chmod('inside/.git', 0o311)
",
    );
    let note = note(&made);
    for name in ["d311", "d111", "d0", "d444", "d555"] {
        assert!(note.contains(&format!("{name}/deep/.git is a new repository")), "{name}: {note}");
        let check = format!(
            "chmod u+rwx {name} {name}/deep && cd {name}/deep && ls -a && git status;
             test -d .git.set-aside && test ! -e .git && test ! -e PWNED"
        );
        assert!(f.bash(&check), "{name}: {note}");
    }
    assert!(note.contains("inside/.git is a new repository"), "{note}");
    assert!(f.bash("cd inside; git status; test ! -e PWNED"));
    // Folders have the permissions again that they had.
    assert!(f.bash("test $(stat -c %a shut) = 311"));
    let closed = by_hand(&f, "os.makedirs('quiet'); os.chmod('quiet', 0o311)");
    assert!(closed.fields.get("note").is_none(), "{closed:?}");
    assert!(f.bash("test $(stat -c %a quiet) = 311"));
    assert!(f.bash("chmod -R u+rwx ."));
}

/// The demonstrated case: one script puts a repository into the folder of a harmless one, where
/// nobody looks for it, and the next one points to it.
#[test]
fn a_repository_inside_of_another_is_found() {
    let f = Fixture::new();
    assert!(f.bash("git init -q known && git init -q --bare known/.git/evil"));
    f.put("known/.git/evil/config", "[core]\n\tfsmonitor = touch PWNED; false\n");
    let made = by_hand(
        &f,
        r"clean = '[core]\n\tbare = false\n'
tree = '[core]\n\tworktree = ../../sub\n\tfsmonitor = touch PWNED; false\n'
repository('x/.git', clean); repository('x/.git/evil', tree)
repository('y/.git', clean); repository('y/.git/objects/ab/.git')
repository('z/.git', clean); repository('z/.git/modules/objects')
repository('v/.git', clean); os.makedirs('v/.git/worktrees/w')
open('v/.git/worktrees/w/HEAD', 'w').write('ref: refs/heads/main\n')
open('v/.git/worktrees/w/commondir', 'w').write('../../evil\n')
os.makedirs('v/.git/evil/objects'); os.makedirs('v/.git/evil/refs')
open('v/.git/evil/config', 'w').write(EVIL)
os.makedirs('store/objects'); os.makedirs('store/refs'); os.makedirs('store/worktrees/w')
open('store/config', 'w').write(EVIL)
open('store/worktrees/w/HEAD', 'w').write('ref: refs/heads/main\n')
open('store/worktrees/w/commondir', 'w').write('../..\n')
repository('.GIT/p/.git')
repository('.GIT/q')
",
    );
    for place in
        ["x/.git/evil", "y/.git/objects/ab/.git", "z/.git/modules/objects", ".GIT/p/.git", ".GIT/q"]
    {
        assert!(note(&made).contains(&format!("{place} is a new repository")), "{place}: {made:?}");
    }
    for place in ["v/.git/worktrees/w", "store/worktrees/w"] {
        assert!(note(&made).contains(place), "{place}: {made:?}");
    }
    let pointed = by_hand(
        &f,
        r"for place, target in [('x/sub', '../.git/evil'), ('y/sub', '../.git/objects/ab/.git'),
                      ('known/sub', '../.git/evil'), ('v/sub', '../.git/worktrees/w'),
                      ('elsewhere', '../store/worktrees/w')]:
    os.makedirs(place); open(f'{place}/.git', 'w').write(f'gitdir: {target}\n')
",
    );
    assert!(note(&pointed).contains("known/sub/.git is a new repository"), "{pointed:?}");
    for place in ["x/sub", "y/sub", "known/sub", "v/sub", "elsewhere", ".GIT/p", ".GIT/q"] {
        assert!(f.bash(&format!("cd {place}; git status; test ! -e PWNED")), "{place}: {made:?}");
    }
    // Repositories that git makes in the same places stay.
    let f = Fixture::new();
    let ordinary = by_hand(
        &f,
        r"env = {'GIT_CONFIG_NOSYSTEM': '1', 'PATH': '/usr/local/bin:/usr/bin:/bin', 'HOME': '/nonexistent',
       'GIT_AUTHOR_NAME': 'a', 'GIT_AUTHOR_EMAIL': 'a@b', 'GIT_COMMITTER_NAME': 'a', 'GIT_COMMITTER_EMAIL': 'a@b'}
def git(*args): subprocess.run(['git', *args], check=True, env=env)
git('init', '-q', 'fine'); git('-C', 'fine', 'commit', '-q', '--allow-empty', '-m', 'one')
git('-C', 'fine', 'worktree', 'add', '-q', '../fine-tree')
",
    );
    assert!(note(&ordinary).is_empty(), "{ordinary:?}");
    assert!(f.bash("git -C fine-tree status"));
}

/// Other parts of a script's repository that run when its owner continues the work in it.
#[test]
fn a_new_repository_with_work_under_way_is_set_aside() {
    let f = Fixture::new();
    let made = by_hand(
        &f,
        r#"clean = '[core]\n\tbare = false\n'
for name, part in [('a', 'rebase-merge'), ('b', 'rebase-apply'), ('c', 'sequencer')]:
    repository(f'{name}/.git', clean); os.makedirs(f'{name}/.git/{part}')
    open(f'{name}/.git/{part}/git-rebase-todo', 'w').write('exec touch PWNED\n')
repository('d/.git', clean + '[remote \"o\"]\n\turl = ssh://attacker.invalid/x\n\tpromisor = true\n')
repository('e/.git', clean + '[remote \"o\"]\n\turl = https://example.invalid/x\n\tpromisor = true\n')
"#,
    );
    for name in ["a", "b", "c", "d"] {
        assert!(note(&made).contains(&format!("{name}/.git is a new repository")), "{made:?}");
        assert!(!f.path(&format!("{name}/.git")).exists(), "{name}");
    }
    assert!(f.path("e/.git/HEAD").exists(), "{made:?}");
}

/// A workspace that is no repository does not become one unseen, nor does a folder that only an
/// ignore rule hides.
#[test]
fn the_workspace_and_hidden_folders_count() {
    let f = Fixture::new();
    f.put(".atelierignore", "private/\nmine/\n");
    assert!(f.bash("git init -q mine && git -C mine config core.fsmonitor 'touch OWN; false'"));
    let made = by_hand(&f, "repository('private/.git')\nrepository('.', EVIL)");
    for place in ["private/.git is", ". is"] {
        assert!(note(&made).contains(&format!("{place} a new repository")), "{place}: {made:?}");
    }
    assert!(f.bash("git status; cd private; git status; test ! -e PWNED && test ! -e ../PWNED"));
    assert!(f.path("mine/.git/HEAD").exists(), "the owner's own repository stays: {made:?}");
}

/// However many repositories a command leaves, none stays unexamined.
#[test]
fn a_flood_of_repositories_is_set_aside() {
    let f = Fixture::new();
    let made = by_hand(
        &f,
        r"for at in range(4200):
    os.makedirs(f'many/{at}/.git'); open(f'many/{at}/.git/HEAD', 'w').close()
    os.makedirs(f'many/{at}/.git/hooks')
    open(f'many/{at}/.git/hooks/pre-commit', 'w').close()
repository('many/0/deep/.git')
",
    );
    let note = note(&made);
    assert!(note.contains("is a new repository") && note.contains("more."), "{note}");
    assert!(note.len() < 10_000, "{}", note.len());
    assert!(f.bash("test -z \"$(find many -name .git)\""), "{note}");
}
