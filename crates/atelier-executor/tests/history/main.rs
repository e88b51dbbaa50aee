//! Tests that neither git nor anything else shows protected files from git's index and history
//! without approval.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

#[path = "../common/mod.rs"]
mod common;
mod objects;
mod other_names;

use std::fs;

use atelier_core::gate::ToolOutcome;
use atelier_core::policy::verdict::Verdict;
use atelier_executor::{Approval, Expect, detect_isolation};
use common::{Fixture, approved, git};
use serde_json::{Value, json};

fn unasked(f: &Fixture, command: &str, args: &[&str]) -> ToolOutcome {
    approved(f, "execute_command", json!({ "command": command, "args": args }), &Approval::none())
}

/// The output of a line of bash.
fn printed(f: &Fixture, line: &str) -> String {
    assert!(f.bash(&format!("{line} > ../printed")), "{line}");
    fs::read_to_string(f.base().join("printed")).unwrap().trim().to_owned()
}

/// A repository with a secret that was deleted, one that no branch leads to any more, and one that
/// is hidden.
///
/// Returns the id of the commit that no branch leads to.
fn with_secrets(f: &Fixture) -> String {
    f.put(".env", "TOKEN=SECRET-deleted\n");
    f.put("private/plan.txt", "SECRET-hidden\n");
    f.put("v1/x.txt", "x\n");
    f.put("a.txt", "one\n");
    let commit = "git add -f -A && git commit -qm";
    assert!(f.bash(&format!("git init -q . && {commit} one && git tag v1")));
    f.put("a.txt", "two\n");
    assert!(f.bash(&format!("git rm -q .env && {commit} two")));
    f.put(".atelierignore", "/private/\n");
    f.put("lost.pem", "SECRET-lost\n");
    assert!(f.bash(&format!("{commit} three")));
    let lost = printed(f, "git rev-parse HEAD");
    assert!(f.bash(
        "git reset -q --hard HEAD~1 && git reflog expire --expire=now --all && rm -f .git/ORIG_HEAD"
    ));
    f.put(".atelierignore", "/private/\n");
    lost
}

/// TL-02.1: git decides what a word of a command means, and what it means is searched for secrets
/// before it is shown.
#[test]
fn git_itself_says_what_a_command_would_show() {
    let f = Fixture::new();
    let lost = with_secrets(&f);
    let blob = printed(&f, "git rev-parse v1:.env");
    let lost_blob = printed(&f, &format!("git rev-parse {lost}:lost.pem"));
    let lost_tree = printed(&f, &format!("git rev-parse {lost}^{{tree}}"));
    assert!(f.bash(&format!("git tag blob {blob} && git tag -am x annotated {blob}")));
    let cases: Vec<Vec<String>> = [
        // The value of an option is no option.
        "diff v1 HEAD --src-prefix --no-index".to_owned(),
        "diff HEAD v1 --src-prefix --no-index -- .".to_owned(),
        // This expression excludes the commit's parents, but git still shows the commit.
        format!("show {lost}^!"),
        format!("show {lost}^-"),
        format!("show {lost}^-1 --"),
        format!("diff {lost}^!"),
        format!("log -p {lost}^!"),
        format!("log -p --boundary HEAD..{lost}"),
        format!("log -p --not {lost} --not HEAD"),
        format!("diff HEAD...{lost}"),
        format!("diff {lost}..HEAD"),
        format!("show {}", &lost[..7]),
        // A word before `--` is a revision, whatever lies there.
        "diff v1 --".to_owned(),
        "show v1 --".to_owned(),
        format!("show {blob} --"),
        format!("show {lost_blob} --"),
        format!("show {}", &lost_blob[..9]),
        format!("diff HEAD {lost_tree}"),
        format!("show {lost_tree}:lost.pem"),
        format!("show {lost}:lost.pem"),
        "show blob".to_owned(),
        "show annotated".to_owned(),
        "show annotated^{}".to_owned(),
        "show --tags".to_owned(),
        // A colon may be part of the revision.
        "show HEAD^{/:*}:private/plan.txt".to_owned(),
        "show HEAD^{/t:*}:private/plan.txt".to_owned(),
        "show :/one^{tree}".to_owned(),
        "show :/one:.env".to_owned(),
        "show :private/plan.txt".to_owned(),
        "show :0:private/plan.txt".to_owned(),
        "show HEAD@{0}:private/plan.txt".to_owned(),
        "diff HEAD:a.txt..HEAD:private/plan.txt".to_owned(),
        // The name that `git describe` gives contains an id.
        format!("show v1-1-g{lost}"),
        format!("show nothing-1-g{}", &lost[..8]),
        format!("log -p -1 x-g{lost}"),
        // Other commands take ids as well.
        format!("archive {lost}"),
        format!("archive --format=tar {lost_tree}"),
        format!("format-patch -1 {lost} --stdout"),
        format!("diff-tree -p {lost}"),
        format!("range-diff HEAD~1..HEAD HEAD~1..{lost}"),
        format!("cat-file -p {lost_blob}"),
        format!("cat-file blob {}", &lost_blob[..6]),
        format!("grep SECRET {lost}"),
        format!("grep SECRET {lost_tree}"),
        "for-each-ref --format=%(raw)".to_owned(),
        "tag -l --format=%(*raw)".to_owned(),
        "log -p --all".to_owned(),
        // A file that is named does not keep git from showing what options add.
        "log -p --all HEAD:a.txt".to_owned(),
        "log -p --reflog HEAD:a.txt".to_owned(),
        "log -p --glob=* HEAD:a.txt".to_owned(),
        "log -p --exclude=x --all :a.txt".to_owned(),
        "whatchanged -p --all HEAD:a.txt".to_owned(),
        // Git does not refuse a word that it may pass over.
        "log -p --ignore-missing nope HEAD".to_owned(),
        "show --ignore-missing nope v1".to_owned(),
        "show --ignore-missing nope v1 --".to_owned(),
        "show HEAD:a.txt --ignore-missing nope v1".to_owned(),
        "log -p --notes=blob".to_owned(),
    ]
    .iter()
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .collect();
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Anything, ..Approval::none() };
    for args in &cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reported = json!(approved(&f, "execute_command", git(&args), &medium)).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
    }
    // A second time, now that the history is known.
    for args in &cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reported = json!(approved(&f, "execute_command", git(&args), &medium)).to_string();
        assert!(!reported.contains("SECRET-"), "again, {args:?}: {reported}");
    }
    // A person may approve it, and then it is shown.
    let result = f.call("execute_command", git(&["show", &blob, "--"]));
    assert!(json!(result).to_string().contains("SECRET-deleted"), "{result:?}");
}

/// Interactive commands print the changes to choose from, and some merges put files where nothing
/// hides them.
#[test]
fn choosing_and_merging_shows_nothing_that_is_protected() {
    let f = Fixture::new();
    with_secrets(&f);
    f.put("private/plan.txt", "SECRET-changed\n");
    assert!(f.bash(
        "git checkout -q --orphan side && git rm -rqf --cached . && git add -f private &&
         git commit -qm side && git checkout -qf master 2>/dev/null || git checkout -qf main"
    ));
    f.put("private/plan.txt", "SECRET-changed\n");
    f.put(".atelierignore", "/private/\n");
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Anything, ..Approval::none() };
    for args in [
        &["stash", "push", "-p"][..],
        &["stash", "save", "-p"],
        &["stash", "push", "--patch", "--keep-index"],
        &["add", "-p"],
        &["checkout", "-p"],
        &["reset", "-p", "v1"],
        &["merge", "-X", "subtree=private", "--allow-unrelated-histories", "side"],
        &["merge", "-s", "subtree", "--allow-unrelated-histories", "side"],
        &["cherry-pick", "-Xsubtree=private", "side"],
    ] {
        let reported = json!(approved(&f, "execute_command", git(args), &medium)).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
        assert!(!f.path("plan.txt").exists(), "{args:?}: {reported}");
    }
}

/// A patch can name an object of the history instead of carrying content.
#[test]
fn a_patch_brings_nothing_back_from_history() {
    let f = Fixture::new();
    with_secrets(&f);
    let blob = printed(&f, "git rev-parse v1:.env");
    let zeros = "0".repeat(40);
    f.put(
        "binary.diff",
        format!(
            "diff --git a/x.txt b/x.txt\nnew file mode 100644\nindex {zeros}..{blob}\n\
             GIT binary patch\nliteral 5\nMcmZQzWMT#Y01f~L\n\nliteral 0\nHcmV?d00001\n\n"
        ),
    );
    f.put(
        "merge.diff",
        format!(
            "diff --git a/a.txt b/a.txt\nindex {blob}..{zeros} 100644\n--- a/a.txt\n+++ b/a.txt\n\
             @@ -1 +1 @@\n-x\n+y\n"
        ),
    );
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Anything, ..Approval::none() };
    for args in [
        &["apply", "binary.diff"][..],
        &["apply", "--index", "binary.diff"],
        &["apply", "-3", "merge.diff"],
        &["apply", "--3way", "--unidiff-zero", "merge.diff"],
        &["am", "-3", "merge.diff"],
    ] {
        let reported = json!(approved(&f, "execute_command", git(args), &medium)).to_string();
        assert!(reported.contains("approval"), "{args:?} is not asked about: {reported}");
    }
    assert!(!f.path("x.txt").exists());
}

/// A folder of a commit can be put to another place, where nothing protects its files.
#[test]
fn files_of_a_commit_do_not_come_to_other_places() {
    let f = Fixture::new();
    f.put("home/.config/gh/hosts.yml", "oauth_token: SECRET-place\n");
    with_secrets(&f);
    assert!(f.bash("git tag folder HEAD:private && git tag -am x away HEAD:home/.config"));
    let tree = printed(&f, "git rev-parse HEAD:private");
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Anything, ..Approval::none() };
    let source = format!("--source={tree}");
    for args in [
        &["reset", "HEAD:home/.config", "--", "gh/hosts.yml"][..],
        &["reset", "HEAD:home/.config", "gh/hosts.yml"],
        &["reset", "-q", "HEAD:private", "--", "plan.txt"],
        &["reset", "v1:private", "--", "."],
        &["reset", "HEAD^{tree}:private", "--", "plan.txt"],
        &["reset", "folder", "--", "plan.txt"],
        &["reset", "away", "--", "gh"],
        &["reset", "tags/folder^{}", "--", "plan.txt"],
        &["reset", &tree, "--", "plan.txt"],
        &["checkout", "HEAD:private", "--", "plan.txt"],
        &["checkout", "--conflict", "merge", "folder", "plan.txt"],
        &["restore", "--source=HEAD:private", "--staged", "plan.txt"],
        &["restore", "--sou=HEAD:private", "--staged", "plan.txt"],
        &["restore", "--source", "HEAD:private", "-S", "--", "plan.txt"],
        &["restore", "-Ss", "HEAD:private", "--", "plan.txt"],
        &["restore", "-SsHEAD:private", "--", "plan.txt"],
        &["restore", "-sfolder", "-S", "--", "plan.txt"],
        &["restore", &source, "--staged", "--", "plan.txt"],
        &["read-tree", "--prefix=x/", "HEAD:private"],
        &["read-tree", "--prefix=x/", "folder"],
        &["commit-tree", "folder", "-m", "x"],
    ] {
        let reported = json!(approved(&f, "execute_command", git(args), &medium)).to_string();
        // A hidden folder that the command names is refused, and the others are asked about.
        let refused = reported.contains("approval") || reported.contains("\"DENY\"");
        assert!(refused, "{args:?} is not asked about: {reported}");
    }
    for place in [":plan.txt", ":gh/hosts.yml", ":x/plan.txt"] {
        let reported = json!(unasked(&f, "git", &["show", place])).to_string();
        assert!(!reported.contains("SECRET-"), "{place}: {reported}");
    }
    // If a person is asked for another reason, they are asked for this reason as well.
    let restore = |source: &str| {
        let judged =
            f.judge("execute_command", git(&["restore", source, "--staged", "gh/hosts.yml"]));
        judged.class.findings.iter().any(|found| found.ends_with(" history"))
    };
    assert!(restore("--source=HEAD:home/.config") && restore("-saway") && !restore("-sHEAD"));
    // Commits are put to their own places, so nobody is asked about them for this reason.
    for args in [
        &["reset", "-q", "HEAD", "--", "a.txt"][..],
        &["reset", "-q", "v1~0", "--", "a.txt"],
        &["reset", "-q", "a.txt"],
        &["reset", "--soft", "HEAD"],
        &["checkout", "-q", "-b", "other", "HEAD~1"],
    ] {
        let judged = f.judge("execute_command", git(args));
        assert_eq!(judged.verdict, Verdict::Medium, "{args:?}: {judged:?}");
        let result = approved(&f, "execute_command", git(args), &medium);
        assert!(result.success(), "{args:?}: {result:?}");
    }
}

/// An approval for a file that a command names says nothing about other files.
#[test]
fn an_approval_shows_only_the_files_that_were_named() {
    let f = Fixture::new();
    with_secrets(&f);
    for args in [
        &["show", "v1", "--", ".", "nope.env"][..],
        &["log", "-p", "--", ".", "nope.env"],
        &["diff", "v1", "HEAD", "--", ".", "nope.env"],
    ] {
        let reported = json!(f.call("execute_command", git(args))).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
    }
    let reported =
        json!(f.call("execute_command", git(&["show", "v1", "--", ".", ".env"]))).to_string();
    assert!(
        reported.contains("SECRET-deleted") && !reported.contains("SECRET-hidden"),
        "{reported}"
    );
}

/// Names protect nothing inside an archive, so secret files are left out of it.
#[test]
fn archives_leave_secret_files_out() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    f.put(".env", "SECRET-live\n");
    f.put("deep/server.key", "SECRET-key\n");
    f.put("deep/a.txt", "plain text\n");
    for args in [&["cf", "-", "."][..], &["cf", "-", "deep"], &["-c", "deep", "src"]] {
        let call = json!({ "command": "tar", "args": args });
        let reported = json!(f.call("execute_command", call)).to_string();
        assert!(reported.contains("left out"), "{args:?}: {reported}");
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
    }
    let packed = json!({ "command": "tar", "args": ["cf", "x.tar", "deep"] });
    let result = f.call("execute_command", packed);
    assert!(result.success(), "{result:?}");
    let packed = String::from_utf8_lossy(&fs::read(f.path("x.tar")).unwrap()).into_owned();
    assert!(packed.contains("plain text") && !packed.contains("SECRET-"), "{packed}");
    // An archive is asked about for the sake of its name as well, which says nothing of secrets.
    for name in ["backup.cfg", "backup.sh", ".backup"] {
        let result =
            f.call("execute_command", json!({ "command": "tar", "args": ["cf", name, "."] }));
        assert!(result.success(), "{result:?}");
        let packed = String::from_utf8_lossy(&fs::read(f.path(name)).unwrap()).into_owned();
        assert!(packed.contains("plain text") && !packed.contains("SECRET-"), "{name}");
        fs::remove_file(f.path(name)).unwrap();
    }
    // Somebody who is asked about a secret file by its name decides about it.
    let named = json!({ "command": "tar", "args": ["cf", "-", ".env"] });
    let reported = json!(f.call("execute_command", named)).to_string();
    assert!(reported.contains("SECRET-live"), "{reported}");
}

/// New commits are examined, and earlier findings are kept.
#[test]
fn new_commits_are_looked_through() {
    let f = Fixture::new();
    f.put("a.txt", "one\n");
    assert!(f.bash("git init -q . && git add -A && git commit -qm one"));
    let log = |f: &Fixture| {
        let result = unasked(f, "git", &["log", "-p"]);
        let noted = result.fields.get("note").is_some();
        assert!(result.success() && !json!(result).to_string().contains("SECRET-"), "{result:?}");
        noted
    };
    assert!(!log(&f));
    f.put("new.pem", "SECRET-new\n");
    assert!(f.bash("git add -A && git commit -qm two"));
    assert!(log(&f));
    assert!(f.bash("git rm -q new.pem && git commit -qm three && git gc -q"));
    assert!(log(&f));
    f.put("plan.txt", "SECRET-plan\n");
    assert!(f.bash("git add plan.txt && git commit -qm four && echo plan.txt > .atelierignore"));
    assert!(log(&f));
    f.put("staged.key", "SECRET-staged\n");
    assert!(f.bash("git add staged.key"));
    let staged = unasked(&f, "git", &["diff", "--cached"]);
    assert!(staged.success() && !json!(staged).to_string().contains("SECRET-"), "{staged:?}");
}

/// Nobody is asked about a command whose output git can name in advance, and git itself refuses
/// names that it does not know.
#[test]
fn ordinary_looks_into_history_are_not_asked_about() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash(
        "git branch side HEAD~1 && git checkout -q -b topic && git mv a.txt b.txt && git commit -qm x"
    ));
    for args in [
        &["status"][..],
        &["status", "-sb", "src"],
        &["log", "--oneline", "-5"],
        &["log", "-p", "-2", "--stat"],
        &["log", "--graph", "--all", "--format=%h %s", "--date", "short"],
        &["log", "side..topic", "--name-status"],
        &["log", "-p", "--", "*.txt"],
        &["log", "-Stwo", "--oneline"],
        &["diff"],
        &["diff", "HEAD~1", "--stat-width", "40"],
        &["diff", "v1", "--", "src"],
        &["diff", "side...topic", "src"],
        &["diff", "--cached"],
        &["diff", "side", "topic", "--", "src"],
        &["diff", "HEAD~1:a.txt", "HEAD:b.txt"],
        &["show"],
        &["show", "HEAD^!"],
        &["show", "HEAD~1:a.txt"],
        &["show", ":b.txt"],
        &["show", "--stat", "side^{commit}"],
        &["show", ":/two"],
    ] {
        let result = unasked(&f, "git", args);
        let reported = json!(result).to_string();
        assert!(result.success() && !reported.contains("SECRET-"), "{args:?}: {reported}");
    }
    for (args, words) in [
        (&["show", "nowhere"][..], "bad revision"),
        (&["log", "-p", "main..nowhere"], "bad revision"),
        (&["show", "HEAD:nowhere.txt"], "bad revision"),
        (&["show", "HEAD~99"], "bad revision"),
        (&["diff", "nowhere", "--"], "bad revision"),
    ] {
        let result = unasked(&f, "git", args);
        let reported = json!(result).to_string();
        assert!(reported.contains(words), "{args:?}: {reported}");
    }
    let inside = json!({ "command": "git", "args": ["show", "HEAD:./x.txt"], "cwd": "v1" });
    let shown = approved(&f, "execute_command", inside, &Approval::none());
    assert_eq!(shown.fields["stdout"], "x\n", "{shown:?}");
}
