//! A patch is rated by the files that it writes, wherever its command puts them.
#![allow(clippy::unwrap_used, reason = "a test that fails says so")]

mod common;

use atelier_core::policy::Policy;
use atelier_core::policy::verdict::Verdict;
use common::Fixture;
use serde_json::json;

fn patch(name: &str) -> String {
    format!("From: a@b\nSubject: x\n\n---\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n")
}

#[test]
fn folders_in_front_of_the_names_count() {
    let f = Fixture::new();
    f.put("p.diff", patch("ci.yml"));
    f.put("docs/p.diff", patch("conf.py"));
    f.put("deep.diff", patch("workflows/ci.yml"));
    f.put(".github/keep", "");
    let verdict = |command: &str, cwd: &str, args: &[&str]| {
        f.judge("execute_command", json!({ "command": command, "args": args, "cwd": cwd })).verdict
    };
    for (command, cwd, args) in [
        ("git", ".", &["apply", "--directory=.github/workflows", "p.diff"][..]),
        ("git", ".", &["apply", "--directory", ".github/workflows", "p.diff"]),
        ("git", ".", &["apply", "--dir=.github/workflows", "p.diff"]),
        ("git", ".", &["apply", "--directory=.github", "deep.diff"]),
        ("git", ".", &["apply", "--directory=.github", "-p0", "deep.diff"]),
        ("git", ".", &["am", "--directory=.github/workflows", "p.diff"]),
        ("git", ".", &["-C", ".github", "apply", "--directory=workflows", "../p.diff"]),
        ("git", ".github", &["apply", "--directory=workflows", "../p.diff"]),
        ("git", ".github", &["am", "../deep.diff"]),
        ("patch", ".", &["-d", ".github/workflows", "-p1", "-i", "p.diff"]),
        ("patch", ".", &["-d.github", "-p1", "-i", "../deep.diff"]),
        ("patch", ".", &["--directory=.github", "-p1", "-i", "deep.diff"]),
        ("patch", ".github", &["-p1", "-i", "../deep.diff"]),
        ("patch", "docs", &["-p1", "-i", "p.diff"]),
        ("git", "docs", &["apply", "p.diff"]),
    ] {
        let rated = verdict(command, cwd, args);
        assert!(rated >= Verdict::High, "{command} {args:?} in {cwd}: {rated}");
    }
    let hooks = &["apply", "--directory=.git/hooks", "p.diff"];
    assert_eq!(verdict("git", ".", hooks), Verdict::Deny);
    // If a patch writes nothing but ordinary files, no stricter approval is needed.
    for (command, cwd, args) in [
        ("git", ".", &["apply", "p.diff"][..]),
        ("git", ".", &["apply", "--directory=src", "p.diff"]),
        ("git", ".", &["am", "--directory=src", "p.diff"]),
        ("patch", ".", &["-d", "src", "-p1", "-i", "../p.diff"]),
        ("patch", "src", &["-p1", "-i", "../p.diff"]),
    ] {
        let rated = verdict(command, cwd, args);
        // A path that goes up from a folder that was entered is refused for that reason.
        assert!(
            rated == Verdict::Medium || args.contains(&"../p.diff"),
            "{command} {args:?}: {rated}"
        );
    }
}

#[test]
fn every_mail_of_a_folder_counts() {
    let f = Fixture::new();
    f.put("mails/cur/1", patch("src/x.rs"));
    f.put("mails/new/2", patch("src/y.rs"));
    let judged =
        |args: &[&str]| f.judge("execute_command", json!({ "command": "git", "args": args }));
    assert_eq!(
        judged(&["am", "mails"]).verdict,
        Verdict::Medium,
        "{}",
        judged(&["am", "mails"]).reason
    );
    f.put("mails/new/3", patch(".github/workflows/ci.yml"));
    assert_eq!(judged(&["am", "mails"]).verdict, Verdict::High);
    f.put("mails/new/4", patch(".git/hooks/pre-push"));
    assert_eq!(judged(&["am", "-3", "mails/"]).verdict, Verdict::Deny);
    f.put("box", patch("src/x.rs") + &patch("Makefile"));
    assert_eq!(judged(&["am", "box"]).verdict, Verdict::High);
    f.put("series", "1.patch\n");
    assert_eq!(judged(&["am", "--patch-format=stgit-series", "series"]).verdict, Verdict::High);
}

/// `git am` recognises lists of patches, and decodes mails before it reads their names.
#[test]
fn mails_that_git_reads_otherwise_are_asked_about() {
    let f = Fixture::new();
    let rated = |text: &str| {
        f.put("mail", text);
        f.judge("execute_command", json!({ "command": "git", "args": ["am", "mail"] })).verdict
    };
    let with = |header: &str| format!("From: a@b\n{header}\nSubject: x\n\n{}", patch("src/x.rs"));
    assert_eq!(rated(&with("Content-Type: text/plain; charset=UTF-8")), Verdict::Medium);
    assert_eq!(rated(&with("Content-Transfer-Encoding: 8bit")), Verdict::Medium);
    for header in [
        "Content-Type: text/plain; format=flowed; delsp=yes",
        "Content-Type: text/plain; FORMAT=\"Flowed\"",
        "content-type: text/plain;\n format=flowed",
        "Content-Type: text/plain\n\t; charset=utf-7",
        "Content-Type: =?utf-8?q?text/plain;_format=3Dflowed?=",
        "Content-Type: text/plain; charset=utf-7",
        "Content-Type: multipart/mixed; boundary=x",
        "Content-Transfer-Encoding: base64",
        "Content-Transfer-Encoding:\n quoted-printable",
    ] {
        assert_eq!(rated(&with(header)), Verdict::High, "{header}");
    }
    let series = "# This series applies on GIT commit 0123abcd\nevil.patch\n";
    assert_eq!(rated(series), Verdict::High);
    assert_eq!(rated(&format!("\n\n{series}")), Verdict::High);
}

/// Whoever approves a patch of ordinary files is not asked again by the machine.
#[test]
fn an_ordinary_patch_is_asked_about_once() {
    let f = Fixture::new();
    f.put("p.diff", patch("src/new.rs"));
    for (command, args) in [("patch", &["-p1", "-i", "p.diff"][..]), ("git", &["apply", "p.diff"])]
    {
        let params = json!({ "command": command, "args": args });
        let (_, by_text) =
            Policy::builtin().judge_request("execute_command", params.clone(), &f.roots);
        assert_eq!(f.judge("execute_command", params).class, by_text.class, "{command}");
    }
}

/// Programs follow links on their way to a file, so the file at the end counts.
#[test]
fn links_on_the_way_count() {
    let f = Fixture::new();
    f.put(".github/workflows/ci.yml", "x\n");
    assert!(f.bash("ln -s .github/workflows flows && ln -s ../out away && ln -s src code"));
    let rated = |command: &str, args: &[&str], name: &str| {
        f.put("p.diff", patch(name));
        f.judge("execute_command", json!({ "command": command, "args": args })).verdict
    };
    let apply = &["-p1", "-i", "p.diff"][..];
    assert_eq!(rated("patch", apply, "flows/new.yml"), Verdict::High);
    assert_eq!(rated("patch", apply, "flows/deep/new.yml"), Verdict::High);
    assert_eq!(rated("patch", &[&["-d", "flows"], apply].concat(), "new.yml"), Verdict::High);
    assert_eq!(rated("git", &["apply", "p.diff"], "flows/new.yml"), Verdict::High);
    assert_eq!(rated("patch", apply, "away/new.yml"), Verdict::High);
    assert_eq!(rated("patch", apply, "code/new.rs"), Verdict::Medium);
    assert_eq!(rated("patch", apply, "new/deep/new.rs"), Verdict::Medium);
    let far = &["-d", ".github", "-d", ".", "-d", "workflows", "-p1", "-i", "p.diff"];
    assert_eq!(rated("patch", far, "new.yml"), Verdict::High);
}

/// The index has files that are hidden from commands, and a patch can copy them there.
#[test]
fn a_patch_does_not_touch_hidden_files() {
    let f = Fixture::new();
    f.put("private/plan.txt", "SECRET-hidden\n");
    assert!(f.bash("git init -q . && git add -A && git commit -qm one && ln -s private lnk"));
    f.put(".atelierignore", "/private/\n");
    let moved = |how: &str, from: &str| {
        format!(
            "diff --git a/{from} b/notes2.txt\nsimilarity index 100%\n{how} from {from}\n\
             {how} to notes2.txt\n"
        )
    };
    let back = "diff --git a/notes2.txt b/private/plan.txt\nsimilarity index 100%\n\
                copy from notes2.txt\ncopy to private/plan.txt\n";
    f.put("copy.diff", moved("copy", "private/plan.txt"));
    f.put("rename.diff", moved("rename", "private/plan.txt"));
    f.put("back.diff", back);
    f.put("below.diff", moved("copy", "plan.txt"));
    f.put("link.diff", moved("copy", "lnk/plan.txt"));
    f.put("deep.diff", moved("copy", "x/y/private/plan.txt"));
    f.put("plain.diff", patch("private/plan.txt"));
    for args in [
        &["apply", "--cached", "copy.diff"][..],
        &["apply", "copy.diff"],
        &["apply", "--cached", "rename.diff"],
        &["apply", "--cached", "-R", "back.diff"],
        &["apply", "--cached", "--directory=private", "below.diff"],
        &["apply", "--cached", "link.diff"],
        &["am", "plain.diff"],
    ] {
        let judged = f.judge("execute_command", json!({ "command": "git", "args": args }));
        assert_eq!(judged.verdict, Verdict::Deny, "{args:?}: {judged:?}");
        assert!(!judged.reason.contains("plan.txt"), "{args:?}: {judged:?}");
    }
    let deep = &["apply", "--cached", "-p3", "deep.diff"];
    let judged = f.judge("execute_command", json!({ "command": "git", "args": deep }));
    assert_eq!(judged.verdict, Verdict::High, "{judged:?}");
    let ordinary = json!({ "command": "git", "args": ["apply", "p.diff"] });
    f.put("p.diff", patch("src/new.rs"));
    assert_eq!(f.judge("execute_command", ordinary).verdict, Verdict::Medium);
}

/// A command that names a patch writes the files that the patch names.
#[test]
fn a_patch_is_rated_by_what_it_writes() {
    let f = Fixture::new();
    let patch = |name: &str| format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n");
    for (text, verdict, rule) in [
        (patch("src/x.rs"), Verdict::Medium, ""),
        (patch("Makefile"), Verdict::High, "file.build"),
        (patch("sub/.env.local"), Verdict::High, "file.secret"),
        (patch("evil.exe"), Verdict::Deny, "file.executable"),
        (patch("src/x.rs") + &patch(".git/hooks/pre-push"), Verdict::Deny, "file.git"),
        ("*** a/notes.txt\tnow\n--- b/Makefile\tnow\n".into(), Verdict::High, "file.build"),
        (
            "diff --git a/x b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n".into(),
            Verdict::High,
            "mode",
        ),
        (
            "diff --git a/x b/run.dll\nsimilarity index 100%\nrename from x\nrename to run.dll\n"
                .into(),
            Verdict::Deny,
            "file.executable",
        ),
        (
            "diff --git \"a/x\" \"b/\\321\\217.sh\"\n--- /dev/null\n+++ \"b/\\321\\217.sh\"\n"
                .into(),
            Verdict::High,
            "file.script",
        ),
        // Names are read as git and GNU patch read them, not as they are written.
        (
            "--- /dev/null\n+++ \"b/\\056env\"\n@@ -0,0 +1 @@\n+x\n".into(),
            Verdict::High,
            "file.secret",
        ),
        ("--- /dev/null\n+++ \"b/Make\\146ile\" behind it\n".into(), Verdict::High, "file.build"),
        ("diff --git \"a/\\056env\" \"b/x y\"\n".into(), Verdict::High, "file.secret"),
        (
            "diff --git a/x b/x\nrename from .env\nrename new x\n".into(),
            Verdict::High,
            "file.secret",
        ),
        (
            "diff --git a/x b/x\nrename old x\nrename new Makefile\n".into(),
            Verdict::High,
            "file.build",
        ),
        (
            "--- x\n+++ b/Makefile 2020-01-01 00:00:00.000000000 +0000\n".into(),
            Verdict::High,
            "file.build",
        ),
        (
            "--- x\n+++ x\t/Makefile\t2020-01-01 00:00:00.000000000 +0000\n".into(),
            Verdict::High,
            "file.build",
        ),
        ("  --- x\n  +++   b/Makefile\n".into(), Verdict::High, "file.build"),
        ("- --- Makefile\n".into(), Verdict::High, "file.build"),
        ("Index:Makefile\n".into(), Verdict::High, "file.build"),
        // A patch that cannot be read does not count as harmless.
        ("--- /dev/null\n+++ \"b/x\\n\"\n".into(), Verdict::High, "unread"),
        ("--- /dev/null\n+++ \"b/x\\400\"\n".into(), Verdict::High, "unread"),
        ("--- /dev/null\n+++ \"b/x\n".into(), Verdict::High, "unread"),
        (patch("../x"), Verdict::High, "unread"),
        (patch(&"a ".repeat(100)), Verdict::High, "unread"),
        (
            "Content-Transfer-Encoding: base64\n\nLS0tIC9kZXYvbnVsbAo=\n".into(),
            Verdict::High,
            "unread",
        ),
        // Harmless names in unusual forms are rated like ordinary writes.
        (
            "--- /dev/null\t1970-01-01 00:00:00.000000000 +0000\n+++ b/src/a b.rs\t1/2/3\n".into(),
            Verdict::Medium,
            "",
        ),
        ("--- /dev/null\n+++ \"b/src/\\321\\217 \\\"x\\\".txt\"\n".into(), Verdict::Medium, ""),
        (
            "Content-Transfer-Encoding: 8bit\n\n".to_owned() + &patch("src/x.rs"),
            Verdict::Medium,
            "",
        ),
    ] {
        f.put("p.diff", &text);
        for (command, args) in [
            ("patch", &["-p1", "-i", "p.diff"][..]),
            ("patch", &["-p0", "notes.txt", "p.diff"]),
            ("git", &["apply", "p.diff"]),
            ("git", &["-C", ".", "am", "p.diff"]),
        ] {
            let judged = f.judge("execute_command", json!({ "command": command, "args": args }));
            assert_eq!(judged.verdict, verdict, "{command} {args:?} {text}: {}", judged.reason);
            assert!(judged.rule.ends_with(rule), "{}", judged.rule);
        }
    }
}
