//! Secrets that a script could find in another place than a file of the folder: in objects of git,
//! behind links and other names, and in files that appear while it runs.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use common::Fixture;
use serde_json::{Value, json};

/// Prints every file, and every object that lies in a file of its own.
const READ: &str = r#"import os, zlib
for top, _, names in os.walk("."):
    for name in names:
        try: data = open(os.path.join(top, name), "rb").read()
        except OSError: continue
        try: data += zlib.decompress(data)
        except zlib.error: pass
        print(data.decode("latin-1"))
"#;

fn shell(f: &Fixture, script: &str) -> Value {
    f.call("shell", json!({ "script": script, "timeout": 60 })).to_value()
}

/// Reads everything by a script that nobody was asked about, and by a command that was approved.
fn read_all(f: &Fixture) -> [Value; 2] {
    f.put("read.py", READ);
    let script = "find . -name objects | while read -r dir; do
        git --git-dir=$dir/.. cat-file --batch-all-objects --batch; done; python3 read.py";
    assert!(f.bash(&format!("({script}) | grep -qa SECRET-")), "the secret is there");
    let by_script = shell(f, script);
    let by_command =
        f.call("execute_command", json!({ "command": "python3", "args": ["read.py"] }));
    let by_command = by_command.to_value();
    for answer in [&by_script, &by_command] {
        assert_eq!(answer["success"], json!(true), "{answer:#}");
    }
    [by_script, by_command]
}

/// LY-38
#[test]
fn objects_without_a_harmless_name_are_hidden() {
    let secret = "echo SECRET-1 > .env";
    let init = "git init -q . && git add -A && git commit -qm one";
    let forget = "git reflog expire --expire=now --all";
    for (what, made) in [
        (
            "staged once",
            format!("{init}; {secret}; git add .env; git rm -q --cached .env; rm .env"),
        ),
        (
            "staged once and packed",
            format!(
                "{init}; {secret}; git add .env; git rm -q --cached .env; rm .env; find .git/objects -type f | sed 's|.git/objects/||; s|/||' | git pack-objects -q .git/objects/pack/pack; git prune-packed"
            ),
        ),
        (
            "amended away",
            format!(
                "{init}; {secret}; git add .env; git commit -qm x; git rm -q --cached .env; rm .env; git commit -q --amend -m y --allow-empty; {forget}"
            ),
        ),
        (
            "reset, and the parents gone",
            format!(
                "{init}; {secret}; git add .env; git commit -qm x; git reset -q --hard HEAD^; {forget}"
            ),
        ),
        (
            "a bare repository",
            format!(
                "{init}; git init -q --bare store.git; {secret}; git --git-dir=store.git --work-tree=. add -f .env; git --git-dir=store.git commit -qm x; rm .env"
            ),
        ),
        (
            "a bare repository below",
            format!(
                "{init}; mkdir sub; git init -q --bare sub/store; {secret}; git --git-dir=sub/store hash-object -w .env; rm .env"
            ),
        ),
        (
            "a submodule",
            format!(
                "{init}; git init -q --bare .git/modules/a/x; {secret}; git --git-dir=.git/modules/a/x --work-tree=. add -f .env; rm .env"
            ),
        ),
        (
            "another working tree",
            format!("{init}; git worktree add -q ../wt; cd ../wt; {secret}; git add .env"),
        ),
        (
            "a tag without a path",
            format!("{init}; {secret}; git tag t $(git hash-object -w .env); rm .env"),
        ),
        (
            "a stash that was dropped",
            format!("{init}; {secret}; git add .env; git stash -q; git stash drop -q"),
        ),
    ] {
        let f = Fixture::new();
        assert!(f.bash(&format!("{made}; true")), "{what}");
        for answer in read_all(&f) {
            assert!(!answer.to_string().contains("SECRET-"), "{what}: {answer:#}");
        }
    }
}

/// LY-38: a repository without protected files stays open, and so does the rest of a repository in
/// which single objects are hidden.
#[test]
fn git_works_in_scripts_where_nothing_is_protected() {
    let f = Fixture::new();
    let worked = |answer: Value| {
        assert_eq!(answer["success"], json!(true), "{answer:#}");
        let note = answer["note"].as_str().unwrap_or_default();
        assert!(!note.contains("closed to scripts"), "{answer:#}");
        answer["stdout"].as_str().unwrap().to_owned()
    };
    assert!(f.bash("git init -q . && git add -A && git commit -qm one && git tag -a -m t v1"));
    assert_eq!(worked(shell(&f, "git log --oneline | wc -l")), "1\n");
    // A file that was staged twice leaves an object that nothing names.
    assert!(f.bash("echo UNNAMED > a; git add a; echo two > a; git add a; git commit -qm two"));
    let script = "git log --oneline | wc -l; git show HEAD:a; git status --short; git fsck 2>&1 |
        grep -c UNNAMED; git cat-file --batch-all-objects --batch 2>&1 | grep -c UNNAMED";
    let answer = shell(&f, script);
    assert_eq!(answer["stdout"], json!("2\ntwo\n0\n0\n"), "{answer:#}");
    // The amended commit has lost its branch, but its files have names, and they are harmless.
    assert!(f.bash("echo LOST > b; git add b; git commit -qm b; git commit -q --amend -m c; echo 3 > b; git commit -qam d; git reset -q --hard HEAD^; git reflog expire --expire=now --all"));
    assert_eq!(worked(shell(&f, "git log --oneline | wc -l; cat b")), "3\nLOST\n");
    // Submodules, other working trees, bare and shallow clones are no reason by themselves.
    assert!(f.bash("git -c protocol.file.allow=always submodule add -q $PWD sub && git worktree add -q wt && git clone -q --bare . store && git clone -q --depth 1 file://$PWD shallow && git commit -qm sub"));
    let script =
        "for dir in sub wt store shallow; do git -C $dir rev-parse -q --verify HEAD: | wc -l; done";
    assert_eq!(worked(shell(&f, script)), "1\n1\n1\n1\n");
    assert!(f.bash("git reset -q --hard HEAD^; git worktree remove --force wt; rm -rf sub store shallow .git/modules; git branch -q -D wt"));
    // New commits are looked at, the old ones are known.
    assert!(f.bash("echo 4 > b; git commit -qam four"));
    assert_eq!(worked(shell(&f, "git log --oneline | wc -l")), "4\n");
    assert!(f.bash("echo SECRET-1 > .env; git add -f .env; git commit -qm five; git rm -q .env"));
    let answer = shell(&f, "git log -p --all; git stash list");
    assert!(!answer.to_string().contains("SECRET-"), "{answer:#}");
    assert!(answer["note"].as_str().unwrap().contains("closed to scripts"), "{answer:#}");
}

/// LY-39
#[test]
fn links_and_other_names_do_not_show_protected_files() {
    let f = Fixture::new();
    f.put("envs/prod", "SECRET-1\n");
    f.put("envs/dev", "harmless\n");
    f.put("sshreal/deploy", "SECRET-2\n");
    f.put("kept/hosts", "SECRET-3\n");
    f.put("plans/a", "SECRET-4\n");
    f.put("id_rsa", "SECRET-5\n");
    f.put(".atelierignore", "hidden\n");
    let links = "ln -s envs/prod .env; ln -s sshreal .ssh; mkdir -p c/.config; ln -s ../../kept \
        c/.config/gh; ln -s plans hidden; ln id_rsa src/plain.txt; ln -s .env one; ln -s /etc x.key;
        ln -s . root.pem; ln -s missing y.key; ln -s envs/dev open";
    assert!(f.bash(links));
    let script = "cat envs/prod sshreal/* kept/* plans/* id_rsa src/plain.txt .env .ssh/* one hidden/*;
        rm -f .env; cat envs/prod; cp -rL . /tmp/copy; cat /tmp/copy/envs/prod; grep -r SECRET- .; cat open";
    let answer = shell(&f, script);
    assert!(!answer.to_string().contains("SECRET-"), "{answer:#}");
    assert!(answer["stdout"].as_str().unwrap().ends_with("harmless\n"), "{answer:#}");
    let answer = f.call("execute_command", json!({ "command": "cat", "args": ["envs/dev"] }));
    assert_eq!(answer.to_value()["stdout"], json!("harmless\n"));
    // A link that leads elsewhere the next time is followed again.
    assert!(f.bash("ln -sf envs/dev .env && echo SECRET-6 > envs/dev"));
    let answer = shell(&f, "cat envs/*");
    assert_eq!(answer["stdout"], json!("SECRET-1\n"), "{answer:#}");
}

/// Begins a job that reads what it can, and does something in the folder. Returns how the job ended,
/// and what it has read. With `ends`, it is told to end, by a file in its layer.
fn meanwhile(f: &Fixture, done: &str, ends: bool) -> (Value, String) {
    let script = "touch begun; while [ ! -e end ]; do cat .env .env.* late/.env envs/* 2>/dev/null
        sleep 0.1; done; echo ended";
    let job = f.call("shell", json!({ "script": script, "background": true })).to_value();
    let id = job["job_id"].as_str().unwrap().to_owned();
    // A second script in the same layer sees that the first one has begun.
    shell(f, "until [ -e begun ]; do sleep 0.05; done; rm begun");
    assert!(f.bash(done), "{done}");
    if ends {
        shell(f, "touch end");
    }
    loop {
        let output = f.call("job_output", json!({ "job_id": id })).to_value();
        if output["running"] == json!(false) {
            return (output["ended"].clone(), output["stdout"].as_str().unwrap().to_owned());
        }
        f.bash("sleep 0.05");
    }
}

/// LY-40
#[test]
fn a_script_ends_when_a_protected_file_appears() {
    for done in [
        "echo x > .env.production",
        "mkdir late; echo x > late/.env",
        "mkdir -p ../l2/deep; touch ../l2/deep/x.pem; mv ../l2 .",
        "ln -s envs/prod .env",
        "mv src/a.py src/id_rsa",
    ] {
        let f = Fixture::new();
        f.put("envs/prod", "");
        assert_eq!(meanwhile(&f, done, false).0, json!("exposed"), "{done}");
    }
    // A file that was hidden from the start, or is harmless, does not end the script.
    let f = Fixture::new();
    f.put(".env", "SECRET-1");
    f.put("envs/prod", "SECRET-2");
    assert!(f.bash("ln -s envs/prod x.pem"));
    let done = "echo SECRET-3 > .env; mkdir -p new/deep; touch new/deep/a notes.txt src/b; \
        ln -s ../out/secret.txt y.pem";
    let (ended, read) = meanwhile(&f, done, true);
    assert_eq!((ended, read.as_str()), (json!("exited"), "ended\n"));
    // A script in the foreground says why it ended.
    let answer = std::thread::scope(|scope| {
        let script = scope.spawn(|| shell(&f, "echo begun > /tmp/b; exec sleep 50"));
        shell(&f, "until [ -e /tmp/b ]; do sleep 0.05; done");
        assert!(f.bash("echo x > server.key"));
        script.join().unwrap()
    });
    assert_eq!(answer["code"], json!("command_failed"), "{answer:#}");
    assert!(answer["error"].as_str().unwrap().contains("a protected file appeared"), "{answer:#}");
}
