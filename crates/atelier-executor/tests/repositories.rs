//! git in a workspace: what it shows, what it runs, what it may change.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;

use atelier_core::policy::verdict::Verdict;
use atelier_executor::{Approval, detect_isolation};
use common::{Fixture, approved, git};
use serde_json::json;

/// TL-02.1: commands without approval show no secrets, not even from history, and tell that
/// something was left out.
#[test]
fn git_leaves_out_what_nobody_may_see_unasked() {
    let fixture = Fixture::new();
    let git = |args: &[&str]| {
        let result = fixture.call("execute_command", json!({"command": "git", "args": args}));
        assert!(result.success(), "{args:?}: {result:?}");
        (
            result.fields["stdout"].as_str().unwrap().to_owned(),
            result.fields.get("note").is_some(),
            result.fields["access"].clone(),
        )
    };
    fixture.put(".env", "TOKEN=first\n");
    fixture.put("deep/server.key", "KEY=first\n");
    fixture.put("hidden.txt", "HIDDEN=first\n");
    fixture.put(".atelierignore", "hidden.txt\n");
    assert!(fixture.bash("git init -q . && git add -f -A && git commit -qm one"));
    fixture.put(".env", "TOKEN=second\n");
    assert!(fixture.bash("git commit -qam 'only a secret'"));
    for name in [".env", "deep/server.key", "hidden.txt", "notes.txt"] {
        fixture.put(name, "third\n");
    }
    for args in [
        &["diff"][..],
        &["diff", "HEAD"],
        &["diff", "HEAD~1", "HEAD", "--", "."],
        &["show", "HEAD"],
        &["show", "HEAD~1"],
        &["log", "-p"],
        &["log", "--patch", "--", "."],
        &["-C", "src", "diff", "HEAD"],
        &["status"],
    ] {
        let (shown, noted, access) = git(args);
        assert!(noted && access == "read_only", "{args:?}");
        for secret in ["TOKEN", "KEY", "HIDDEN", "b/.env", "server.key", "b/hidden.txt"] {
            assert!(!shown.contains(secret), "{args:?}: {shown}");
        }
    }
    assert_eq!(git(&["status", "--short"]).0, " M notes.txt\n");
    assert!(git(&["diff"]).0.contains("+third"));
    // The commits are the same, with and without content.
    assert_eq!(git(&["log", "--format=%s"]).0, "only a secret\none\n");
    assert!(git(&["log", "-p", "--format=%s"]).0.starts_with("only a secret\n"));
}

/// A repository with a history: secrets that exist, secrets that were deleted, and ignored files.
fn with_a_past(f: &Fixture) {
    f.put("a.txt", "one\n");
    f.put("c", "see\n");
    f.put(".env", "TOKEN=SECRET-first\n");
    f.put("gone.priv", "SECRET-gone\n");
    f.put("private/p.txt", "SECRET-private\n");
    f.put(".atelierignore", "/private/\n*.priv\n");
    let commit = "git add -f -A && git commit -qm";
    assert!(f.bash(&format!("git init -q . && {commit} one")));
    f.put(".env", "TOKEN=SECRET-second \n");
    f.put("a.txt", "two\n");
    assert!(f.bash(&format!("git rm -q --cached gone.priv && rm gone.priv && {commit} two")));
    f.put(".env", "TOKEN=SECRET-third\n");
    assert!(f.bash("git add -f .env && ln -s . sublink"));
}

/// TL-02.1: no form of a git command shows protected content without approval, and nobody is asked
/// without need.
#[test]
fn what_git_remembers_is_asked_about() {
    let f = Fixture::new();
    with_a_past(&f);
    assert!(f.bash("git rev-parse HEAD:.env > id"));
    let blob = fs::read_to_string(f.path("id")).unwrap().trim().to_owned();
    for args in [
        &["log", "-p", "--full-diff"][..],
        &["log", "-p", "--full-diff", "--", "a.txt"],
        &["log", "--cc", "--full-diff", "--", "a.txt"],
        &["--literal-pathspecs", "show", "HEAD", "--", "."],
        &["diff", "--no-indent-heuristic", "HEAD~1", "HEAD"],
        &["diff", "--no-indent-heuristic", "--cached"],
        &["status", "-v"],
        &["status", "-vv"],
        &["status", "--verb"],
        &["log", "--check"],
        &["log", "--diff-merges=1"],
        &["show", &blob],
        &["show", &blob[..8]],
        &["diff", &blob, "HEAD:a.txt"],
        &["-P", "-C", "src", "log", "-p"],
        &["-C", ".", "-C", "src", "log", "-p"],
        &["-C", "sublink", "log", "-p"],
        &["log", "--oneline", "-GSECRET-second"],
        &["log", "--oneline", "-SSECRET-second"],
        &["log", "-p"],
        &["show", "HEAD~1"],
        &["show", "HEAD:src"],
        &["show", "HEAD~1:gone.priv"],
        &["-C", "src", "show", "HEAD:private/p.txt"],
        &["log", "-p", "--", "gone.priv"],
        &["grep", "--cached", "SECRET"],
        &["grep", "SECRET", "HEAD~1"],
        &["archive", "HEAD"],
        &["format-patch", "-1", "HEAD~1", "--stdout"],
        &["diff", "HEAD~1", "HEAD", "--output=o.txt"],
        &["stash", "list", "-p"],
        &["reflog", "-p"],
        &["cat-file", "-p", &blob],
        &["commit", "--dry-run", "-v"],
        &["worktree", "add", "wt", "HEAD~1"],
        &["log", "-L1,1:a.txt"],
        &["log", "-p", "--follow", "a.txt"],
        &["ls-files"],
    ] {
        let medium = Approval { up_to: Verdict::Medium, ..Approval::none() };
        let result = approved(&f, "execute_command", git(args), &medium);
        let shown = json!(result).to_string();
        assert!(!shown.contains("SECRET-"), "{args:?}: {shown}");
        // A refusal repeats the given name.
        assert!(result.failure.is_some() || !shown.contains("private/p.txt"), "{args:?}: {shown}");
        match &result.failure {
            None => {}
            Some(failure) => {
                let code = failure.code.as_str();
                let fine = matches!(code, "approval_required" | "not_found" | "command_failed");
                assert!(fine && !shown.contains("fatal"), "{args:?}: {shown}");
            }
        }
        assert!(!f.path("o.txt").exists() && !f.path("wt").exists(), "{args:?}");
    }
    let asked = f.judge("execute_command", git(&["log", "-p", "--full-diff"]));
    assert_eq!((asked.verdict, asked.rule.as_str()), (Verdict::High, "git.log history"));
    assert!(asked.reason.contains(".env"), "{}", asked.reason);
    // The call was approved.
    let result = f.call("execute_command", git(&["log", "-p", "--full-diff"]));
    assert!(json!(result).to_string().contains("SECRET-second"), "{result:?}");
    for args in [
        &["status", "-sb"][..],
        &["log", "--oneline", "-5", "--graph", "--all"],
        &["log", "-p", "-1"],
        &["log", "--stat", "--", "a.txt"],
        &["show", "--stat", "HEAD"],
        &["show", "HEAD:a.txt"],
        &["diff", "HEAD:a.txt", "HEAD:c"],
        &["diff", "HEAD~1:a.txt", "a.txt"],
        &["diff", "--no-index", "a.txt", "c"],
    ] {
        let result = approved(&f, "execute_command", git(args), &Approval::none());
        let ended =
            result.failure.as_ref().is_none_or(|failure| failure.code.as_str() == "command_failed");
        let shown = json!(result).to_string();
        assert!(
            ended && !shown.contains("SECRET-") && !shown.contains("fatal"),
            "{args:?}: {shown}"
        );
    }
    assert_eq!(f.judge("execute_command", git(&["commit", "-m", "x"])).verdict, Verdict::Medium);
}

/// In a repository without secrets, every command runs unchanged.
#[test]
fn git_shows_what_holds_no_secrets() {
    let f = Fixture::new();
    f.put("a.txt", "one\n");
    f.put("c", "see\n");
    let commit = "git add -A && git commit -qm";
    assert!(f.bash(&format!("git init -q . && {commit} one && echo two > a.txt && {commit} two")));
    // The file was never committed and does not affect git commands.
    f.put(".env", "TOKEN=SECRET-42");
    for args in [
        &["log", "-L1,1:a.txt"][..],
        &["log", "-p", "--follow", "a.txt"],
        &["log", "-p", "--follow", "--", "a.txt"],
        &["log", "-p", "--full-diff"],
        &["log", "-Sone", "--oneline"],
        &["diff", "HEAD:a.txt", "HEAD:c"],
        &["diff", "HEAD~1:a.txt", "a.txt"],
        &["diff", "HEAD~1", "--no-indent-heuristic"],
        &["diff", "--no-index", ".", "src"],
        &["status", "-v"],
    ] {
        let result = approved(&f, "execute_command", git(args), &Approval::none());
        let (code, shown) = (result.fields["exit_code"].as_i64(), json!(result).to_string());
        assert!(matches!(code, Some(0 | 1)) && !shown.contains("SECRET"), "{args:?}: {shown}");
        assert!(result.fields.get("note").is_none(), "{args:?}: {shown}");
    }
    // The file is addressed by its object id, and nothing else refers to it.
    assert!(f.bash("git hash-object -w .env > id"));
    let id = fs::read_to_string(f.path("id")).unwrap().trim().to_owned();
    for args in [&["show", &*id][..], &["show", &id[..7]], &["cat-file", "-p", &id]] {
        let result = approved(&f, "execute_command", git(args), &Approval::none());
        assert_eq!(result.failure.unwrap().code.as_str(), "approval_required", "{args:?}");
    }
    // Outside of a repository, git itself reports that.
    let none = Fixture::new();
    let result = approved(&none, "execute_command", git(&["log", "-p"]), &Approval::none());
    assert!(
        result.fields["stderr"].as_str().unwrap().contains("not a git repository"),
        "{result:?}"
    );
}

/// Files in `.git` can run programs, also with the user's own git. Only git changes them.
#[test]
fn no_command_plants_what_git_would_run() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    f.put(".atelierignore", "private/\n");
    f.put("sub/f", "x\n");
    assert!(f.bash("git init -q . && git add -A && git init -q sub"));
    let inside = |f: &Fixture| (f.snapshot("ws/.git"), f.snapshot("ws/sub/.git"));
    let before = inside(&f);
    f.put(
        "w.py",
        r"import os
for path, text in [('.git/hooks/pre-push', '#!/bin/sh'), ('.git/config', '[core] fsmonitor = ./evil'),
                   ('sub/.git/hooks/pre-push', 'x'), ('.atelierignore', '')]:
    try: open(path, 'w').write(text); print('WROTE', path)
    except OSError as e: print(e)
for a in ['.git', '.atelierignore']:
    try: os.rename(a, 'moved'); print('MOVED', a)
    except OSError as e: print(e)
open('made.txt', 'w').write('made')
",
    );
    f.put("p.diff", "--- /dev/null\n+++ b/.git/hooks/post-commit\n@@ -0,0 +1 @@\n+#!/bin/sh\n");
    let script = f.call("execute_command", json!({ "command": "python3", "args": ["w.py"] }));
    assert!(script.success(), "{script:?}");
    let printed = script.fields["stdout"].as_str().unwrap();
    assert!(!printed.contains("WROTE") && !printed.contains("MOVED"), "{printed}");
    assert_eq!(fs::read_to_string(f.path("made.txt")).unwrap(), "made");
    let patched =
        f.call("execute_command", json!({ "command": "patch", "args": ["-p1", "-i", "p.diff"] }));
    assert!(!patched.success());
    assert_eq!(inside(&f), before);
    assert_eq!(fs::read_to_string(f.path(".atelierignore")).unwrap(), "private/\n");
    for (command, args) in [
        ("patch", &["-d", ".git/hooks", "-p1", "-i", "p.diff"][..]),
        ("tar", &["-xf", "x.tar", "-C", ".git/hooks"]),
        ("npm", &["--prefix", ".git/x", "install"]),
    ] {
        let judged = f.judge("execute_command", json!({ "command": command, "args": args }));
        assert_eq!(judged.verdict, Verdict::Deny, "{command}: {}", judged.reason);
    }
    // git itself still works, and its configuration commands do too.
    for args in
        [&["commit", "-qm", "x"][..], &["config", "user.name", "Bob"], &["switch", "-qc", "side"]]
    {
        let result = f.call("execute_command", git(args));
        assert!(result.success(), "{args:?}: {result:?}");
    }
}

/// In a worktree and in a submodule, `.git` is a file.
#[test]
fn git_works_in_worktrees_and_submodules() {
    let f = Fixture::new();
    let me = "-c user.name=a -c user.email=a@b -c protocol.file.allow=always";
    assert!(f.bash(&format!(
        "git init -q . && git add -A && git {me} commit -qm x && git init -q ../lib && cd ../lib \
         && \
         git {me} commit -q --allow-empty -m y && cd ../ws && git {me} submodule --quiet add \
         ../lib lib && \
         git {me} commit -qm z"
    )));
    f.put(".atelierignore", "private/\n");
    let added = f.call("execute_command", git(&["worktree", "add", "-q", "wt"]));
    assert!(added.success(), "{added:?}");
    for place in [".", "wt", "lib"] {
        f.put(&format!("{place}/new.txt"), "new\n");
        for args in [
            &["add", "new.txt"][..],
            &["commit", "-qm", "new"],
            &["status", "--short"],
            &["stash", "list"],
        ] {
            let call = json!({ "command": "git", "args": args, "cwd": place });
            let result = f.call("execute_command", call);
            assert!(result.success(), "{place} {args:?}: {result:?}");
        }
    }
    // The file that names the repository's folder stays unchanged.
    f.put(
        "w.py",
        "for p in ['wt/.git', 'lib/.git']:\n\ttry: open(p, 'w'); print('WROTE')\n\texcept \
         OSError: pass\n",
    );
    if detect_isolation().mounts {
        let result = f.call("execute_command", json!({ "command": "python3", "args": ["w.py"] }));
        assert_eq!(result.fields["stdout"], "", "{result:?}");
    }
}

/// A person who approves a commit must not believe that the project's hooks ran.
#[test]
fn it_is_said_that_hooks_do_not_run() {
    let f = Fixture::new();
    let hook =
        "printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit";
    assert!(f.bash("git init -q . && git add -A"));
    let plain = f.call("execute_command", git(&["commit", "-qm", "x"]));
    assert!(plain.success() && plain.fields.get("note").is_none(), "{plain:?}");
    assert!(f.bash(hook));
    f.put("notes.txt", "more\n");
    let noted = f.call("execute_command", git(&["commit", "-qam", "y"]));
    assert!(
        noted.success() && noted.fields["note"].as_str().unwrap().contains("hooks did not run"),
        "{noted:?}"
    );
    assert!(
        f.judge("execute_command", git(&["commit", "-m", "x"])).reason.contains("hooks do not run")
    );
}

#[test]
fn what_a_repository_is_configured_with_is_not_shown_unasked() {
    let f = Fixture::new();
    assert!(f.bash("git init -q . && git remote add o https://me:SECRET-42@host.invalid/x"));
    for (tool, params) in [
        ("read_file", json!({ "path": ".git/config" })),
        ("execute_command", json!({ "command": "cat", "args": [".git/config"] })),
    ] {
        assert_eq!(f.judge(tool, params).verdict, Verdict::High, "{tool}");
    }
    if detect_isolation().mounts {
        let grep = json!({ "command": "grep", "args": ["-r", "SECRET", "."] });
        let result = approved(&f, "execute_command", grep, &Approval::none());
        assert_eq!(result.fields["stdout"], "", "{result:?}");
    }
    let result = approved(&f, "execute_command", git(&["status", "--short"]), &Approval::none());
    assert!(result.success(), "git reads it: {result:?}");
}

/// TL-02.1: content that moved has several names in history, and all of them are left out.
#[test]
fn a_secret_that_moved_is_not_shown_from_history() {
    let f = Fixture::new();
    f.put("config/.env", "DB=SECRET-42\n");
    f.put("private/plan.txt", "PLAN-17\n");
    assert!(f.bash("git init -q . && git add -A && git commit -qm one"));
    f.put(".atelierignore", "private/\nold/\n");
    assert!(
        f.bash("git mv config settings && git mv private old && git add -A && git commit -qm two")
    );
    let approval = Approval { up_to: Verdict::Medium, ..Approval::none() };
    for args in [
        &["log", "-p"][..],
        &["show", "HEAD"],
        &["show", "HEAD~1"],
        &["diff", "HEAD~1"],
        &["whatchanged", "-p"],
        &["grep", "-e", "SECRET", "-e", "PLAN", "HEAD~1"],
    ] {
        let reported = json!(approved(&f, "execute_command", git(args), &approval)).to_string();
        assert!(
            !reported.contains("SECRET-42") && !reported.contains("PLAN-17"),
            "{args:?}: {reported}"
        );
    }
    let log = approved(&f, "execute_command", git(&["log", "-p"]), &Approval::none());
    assert!(
        log.fields["stdout"].as_str().unwrap().contains("notes.txt"),
        "the rest is shown: {log:?}"
    );
}

/// A tree may belong to no commit any more, and then its files were not examined.
#[test]
fn a_tree_is_asked_about() {
    let f = Fixture::new();
    let commit = "git commit -qm";
    assert!(f.bash(&format!("git init -q . && git add -A && {commit} one && git branch kept")));
    f.put(".env", "SECRET-42\n");
    assert!(f.bash(&format!(
        "git add -A && {commit} two && git rev-parse HEAD^{{tree}} > ../tree && git tag t \
         HEAD^{{tree}} &&
         git reset -q --hard kept && git reflog expire --expire=now --all"
    )));
    let tree = fs::read_to_string(f.base().join("tree")).unwrap();
    for tree in [tree.trim(), "t"] {
        let reported =
            approved(&f, "execute_command", git(&["diff", "HEAD", tree]), &Approval::none());
        assert!(!json!(reported).to_string().contains("SECRET-42"), "{reported:?}");
        assert_eq!(f.judge("execute_command", git(&["diff", "HEAD", tree])).verdict, Verdict::High);
    }
}

/// Some git commands run a hook before they have read the setting that disables hooks.
#[test]
fn no_hook_runs_however_early() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    assert!(f.bash(
        "git init -q . && git add -A && git commit -qm one && git commit -q --allow-empty -m two &&
         mkdir -p .git/modules/logs && git init -q --separate-git-dir .git/modules/logs/m m && cd \
         m && \
         git commit -q --allow-empty -m one && git commit -q --allow-empty -m two"
    ));
    for hooks in [".git/hooks", ".git/modules/logs/m/hooks"] {
        let hook = format!("{hooks}/reference-transaction");
        f.put(&hook, "#!/bin/sh\ntouch \"$(dirname \"$0\")/../../RAN\" RAN\n");
        assert!(f.bash(&format!("chmod +x {hook}")));
    }
    for cwd in [".", "m"] {
        for args in [&["bisect", "start"][..], &["bisect", "bad"], &["bisect", "reset"]] {
            let call = json!({ "command": "git", "args": args, "cwd": cwd });
            let done = f.call("execute_command", call);
            assert!(done.success(), "{done:?}");
        }
    }
    assert!(!f.path("RAN").exists() && !f.path("m/RAN").exists(), "a hook ran");
    assert!(f.bash("test ! -e .git/RAN"));
}

/// As text, a word may be a branch. If it is a file or a folder, changes in it could be lost.
#[test]
fn checking_out_what_lies_there_is_high() {
    let f = Fixture::new();
    f.put("Makefile", "all:\n");
    assert!(f.bash("git init -q . && git add -A && git commit -qm one && git branch topic"));
    let verdict = |args: &[&str]| f.judge("execute_command", git(args)).verdict;
    for args in [
        &["checkout", "src"][..],
        &["checkout", "Makefile"],
        &["checkout", "HEAD", "src", "Makefile"],
    ] {
        assert_eq!(verdict(args), Verdict::High, "{args:?}");
    }
    for args in
        [&["checkout", "topic"][..], &["checkout", "-b", "src"], &["checkout", "--detach", "topic"]]
    {
        assert_eq!(verdict(args), Verdict::Medium, "{args:?}");
    }
}
