//! What git keeps of files that nobody may see unasked: not shown by git, and not to be had without
//! git.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;

use atelier_core::gate::ToolOutcome;
use atelier_core::policy::verdict::Verdict;
use atelier_executor::{Approval, Expect, detect_isolation};
use common::{Fixture, approved, git};
use serde_json::{Value, json};

fn unasked(f: &Fixture, command: &str, args: &[&str]) -> ToolOutcome {
    approved(f, "execute_command", json!({ "command": command, "args": args }), &Approval::none())
}

/// What a line of bash prints.
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
        // What excludes a commit's parents still shows the commit.
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

/// Commands that let somebody choose print what there is to choose from, and some merges put files
/// where nothing hides them.
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
    // What is asked about for another reason is asked about for this one as well.
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

/// A tag can lead to a file that was staged once and is in no commit. Nothing tells which file.
#[test]
fn a_tag_on_an_object_without_a_path_is_asked_about() {
    let f = Fixture::new();
    assert!(f.bash("git init -q . && git add -A && git commit -qm one"));
    f.put(".env", "TOKEN=SECRET-staged\n");
    let blob = printed(&f, "git hash-object -w .env");
    assert!(f.bash(&format!("rm .env && git tag k {blob} && git tag -am x annotated {blob}")));
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Anything, ..Approval::none() };
    let info = format!("100644,{blob},notes.txt");
    let short = format!("100644,{},notes.txt", &blob[..7]);
    for args in [
        &["cat-file", "-p", "k"][..],
        &["cat-file", "-p", "annotated^{}"],
        &["cat-file", "blob", "tags/k"],
        &["cat-file", "blob", "--", "k"],
        &["cat-file", "--textconv", "--path=x", "k"],
        &["diff-tree", "-p", "HEAD", "k"],
        &["unpack-file", "k"],
        &["notes", "add", "-C", "k", "HEAD"],
        &["update-index", "--add", "--cacheinfo", &info],
        &["update-index", "--add", "--cacheinfo", &short],
        &["update-index", "--add", "--cacheinfo", "100644", &blob, "notes.txt"],
        &["show", "k"],
        &["diff", "k", "HEAD:notes.txt"],
    ] {
        let reported = json!(approved(&f, "execute_command", git(args), &medium)).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
        let judged = f.judge("execute_command", git(args));
        assert!(judged.verdict >= Verdict::High, "{args:?}: {judged:?}");
    }
    // What has a path that protects nothing, or is a commit, is asked about only once.
    for args in [
        &["cat-file", "-p", "HEAD"][..],
        &["cat-file", "-p", "HEAD:notes.txt"],
        &["diff-tree", "-p", "HEAD"],
        &["archive", "--format=tar", "HEAD", "src"],
        &["archive", "HEAD:src"],
    ] {
        let result = approved(&f, "execute_command", git(args), &medium);
        assert!(result.success(), "{args:?}: {result:?}");
    }
    // A name that becomes a tag while the command starts is taken for a commit or for nothing.
    let (call, _) = atelier_core::policy::Policy::builtin().judge_request(
        "execute_command",
        git(&["show", "later"]),
        &f.roots,
    );
    let judged = f.tools().judge(&call.unwrap());
    assert_eq!(judged.verdict, Verdict::Low, "{judged:?}");
    let reported = json!(unasked(&f, "git", &["show", "later"])).to_string();
    assert!(reported.contains("later^{commit}"), "{reported}");
}

/// A name that is not UTF-8 cannot be excluded, so somebody is asked.
#[test]
fn secrets_below_names_that_are_not_utf8_are_not_shown() {
    let f = Fixture::new();
    assert!(f.bash(
        r"mkdir $'d\377' && echo SECRET-bytes > $'d\377/.env' && git init -q . &&
          git add -f -A && git commit -qm one && echo SECRET-more >> $'d\377/.env'"
    ));
    for args in [&["log", "-p"][..], &["show"], &["diff"], &["diff", "HEAD"], &["status", "-v"]] {
        let reported = json!(unasked(&f, "git", args)).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
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

/// A replacement shows another object under an id that was looked at.
#[test]
fn replacements_are_not_shown_unasked() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash("git replace $(git rev-parse HEAD:a.txt) $(git rev-parse v1:.env)"));
    for args in [&["show", "HEAD:a.txt"][..], &["show", "HEAD"], &["diff", "v1", "--", "a.txt"]] {
        let reported = unasked(&f, "git", args);
        assert!(
            reported.success() && !json!(reported).to_string().contains("SECRET-"),
            "{args:?}: {reported:?}"
        );
    }
}

/// A replacement does not stand for an object that somebody approved to be shown or written.
#[test]
fn replacements_do_not_count_for_approved_commands_either() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash("git replace $(git rev-parse HEAD:a.txt) $(git rev-parse v1:.env)"));
    let medium = Approval { up_to: Verdict::Medium, ..Approval::none() };
    let blame = git(&["blame", "-s", "HEAD", "--", "a.txt"]);
    let reported = json!(approved(&f, "execute_command", blame, &medium)).to_string();
    assert!(reported.contains("two") && !reported.contains("SECRET-"), "{reported}");
    assert!(f.bash("rm a.txt"));
    f.call("execute_command", git(&["checkout", "--", "a.txt"]));
    assert_eq!(fs::read_to_string(f.path("a.txt")).unwrap(), "two\n");
}

/// In a conflict of a file and a folder, git writes the file to `name~branch`. It is the same
/// secret: in the folder, and where a merge is made again to be shown.
#[test]
fn sides_of_a_conflict_stay_secret() {
    let f = Fixture::new();
    f.put("deploy.pem", "SECRET-key\n");
    f.put("plan.txt", "SECRET-plan\n");
    assert!(f.bash(
        "git init -qb main . && git add -A && git commit -qm one && git checkout -qb other &&
         git rm -q deploy.pem plan.txt && mkdir deploy.pem plan.txt &&
         echo x > deploy.pem/x && echo x > plan.txt/x && git add -A && git commit -qm folders &&
         git checkout -q main && echo SECRET-two >> deploy.pem && echo SECRET-two >> plan.txt &&
         git commit -qam two && ! git merge -q other"
    ));
    f.put(".atelierignore", "/plan.txt\n");
    assert!(f.path("deploy.pem~HEAD").exists() && f.path("plan.txt~HEAD").exists());
    let judged = |args: &[&str]| {
        f.judge("execute_command", json!({ "command": "cat", "args": args })).verdict
    };
    assert_eq!(judged(&["deploy.pem~HEAD"]), Verdict::High);
    assert_eq!(judged(&["plan.txt~HEAD"]), Verdict::Deny);
    let reported = json!(unasked(&f, "grep", &["-r", "SECRET", "."])).to_string();
    assert!(!reported.contains("SECRET-"), "{reported}");
    assert!(f.bash("git add -A && git rm -qf --cached 'deploy.pem~HEAD' 'plan.txt~HEAD'"));
    assert!(f.bash("git commit -qm merged"));
    for args in [
        &["show", "--remerge-diff", "HEAD"][..],
        &["show", "--diff-merges=remerge", "HEAD"],
        &["show", "--diff-merges", "r", "HEAD"],
        &["log", "-p", "--diff-merges=r"],
    ] {
        let reported = json!(unasked(&f, "git", args)).to_string();
        assert!(!reported.contains("SECRET-"), "{args:?}: {reported}");
    }
    let reported = unasked(&f, "git", &["log", "-p", "--diff-merges=first-parent"]);
    assert!(reported.success(), "{reported:?}");
}

/// A folder that git goes to in several steps is one folder.
#[test]
fn hidden_files_are_hidden_however_git_gets_there() {
    let f = Fixture::new();
    with_secrets(&f);
    for way in
        [&["-C", "private"][..], &["-C", "private", "-C", "."], &["-C", ".", "-C", "private"]]
    {
        let args = [way, &["blame", "HEAD", "--", "plan.txt"]].concat();
        assert_eq!(f.judge("execute_command", git(&args)).verdict, Verdict::Deny, "{args:?}");
    }
}

/// What is new since the last look is looked through, and nothing that was found is forgotten.
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

/// Files of a repository that hold what was deleted, or say what there is.
fn sealed(f: &Fixture, repository: &str) -> Vec<String> {
    let list = format!("find {repository}/objects {repository}/logs {repository}/index -type f");
    printed(f, &list).lines().map(str::to_owned).collect()
}

/// The demonstrated case: a deleted `.env` lies in an object that `cat` can print.
#[test]
fn only_git_reads_what_git_keeps() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash(
        "git clone -q --no-hardlinks . sub && git clone -q --bare . mirror.git && touch mirror.git/index &&
         mkdir mirror.git/logs && touch mirror.git/logs/HEAD && git -C sub repack -adq &&
         git init -q --separate-git-dir store moved && cp .git/index .git/logs store -r && ln -s .git/objects o &&
         git worktree add -q wt HEAD"
    ));
    for repository in [".git", "sub/.git", "mirror.git", "store", ".git/worktrees/wt"] {
        let files = match repository {
            ".git/worktrees/wt" => vec![format!("{repository}/index")],
            "store" => vec!["store/index".to_owned(), "store/logs/HEAD".to_owned()],
            _ => sealed(&f, repository),
        };
        assert!(!files.is_empty(), "{repository}");
        for file in files {
            for (tool, params) in [
                ("execute_command", json!({ "command": "cat", "args": ["-v", file] })),
                ("execute_command", json!({ "command": "file", "args": [file] })),
                ("execute_command", json!({ "command": "stat", "args": [file] })),
                ("execute_command", json!({ "command": "tar", "args": ["-cf", "x.tar", file] })),
                ("execute_command", json!({ "command": "cp", "args": [file, "copy"] })),
                (
                    "execute_command",
                    json!({ "command": "git", "args": ["diff", "--no-index", "a.txt", file] }),
                ),
                ("read_file", json!({ "path": file })),
                ("get_file_info", json!({ "path": file })),
            ] {
                assert_eq!(f.judge(tool, params.clone()).verdict, Verdict::Deny, "{tool} {params}");
            }
        }
        let objects = format!("{repository}/objects");
        for (tool, params) in [
            ("execute_command", json!({ "command": "ls", "args": [objects] })),
            ("execute_command", json!({ "command": "ls", "args": ["src"], "cwd": objects })),
            ("list_directory", json!({ "path": objects })),
            ("search_files", json!({ "path": objects, "pattern": "**/*" })),
        ] {
            if repository != ".git/worktrees/wt" {
                assert_eq!(f.judge(tool, params.clone()).verdict, Verdict::Deny, "{tool} {params}");
            }
        }
    }
    assert_eq!(
        f.judge("execute_command", json!({ "command": "ls", "args": ["o"] })).verdict,
        Verdict::Deny
    );
    // What else lies there stays readable.
    for path in [".git/HEAD", "mirror.git/HEAD", ".git/refs/heads/master", ".git/info/exclude"] {
        let verdict = f.judge("read_file", json!({ "path": path })).verdict;
        assert_eq!(verdict, Verdict::Low, "{path}");
    }
}

/// What a command finds below a folder is as closed to it as what it names.
#[test]
fn nothing_lists_or_searches_what_git_keeps() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash(
        "git clone -q --bare . mirror.git && mkdir deep && git clone -q --no-hardlinks . deep/sub"
    ));
    let objects: Vec<String> = [".git", "mirror.git", "deep/sub/.git"]
        .iter()
        .flat_map(|repository| sealed_names(&f, repository))
        .collect();
    assert!(objects.len() > 10, "{objects:?}");
    let mut calls: Vec<(&str, Value)> = vec![
        ("list_directory", json!({ "path": ".git", "recursive": true, "pattern": "**/*" })),
        ("list_directory", json!({ "path": "mirror.git", "recursive": true })),
        ("search_files", json!({ "pattern": "**/.git/**" })),
        ("search_files", json!({ "path": "mirror.git", "pattern": "**/*" })),
        ("grep", json!({ "pattern": ".", "path": "mirror.git" })),
    ];
    if detect_isolation().mounts {
        for args in [
            &["ls", "-R", ".git", "mirror.git", "deep"][..],
            &["find", ".", "-type", "f"],
            &["grep", "-rc", ".", "."],
            &["grep", "-r", "-a", ".", ".git", "mirror.git"],
            &["diff", "-r", ".git", "mirror.git"],
            &["git", "diff", "--no-index", ".git", "mirror.git"],
            &["git", "-C", "src", "diff", "--no-index", "."],
        ] {
            calls.push(("execute_command", json!({ "command": args[0], "args": args[1..] })));
        }
    }
    for (tool, params) in calls {
        let result = approved(&f, tool, params.clone(), &Approval::none());
        let reported = json!(result).to_string();
        assert!(!reported.contains("approval_required"), "{tool} {params}: {reported}");
        for name in &objects {
            assert!(!reported.contains(name), "{tool} {params} tells {name}: {reported}");
        }
    }
    // Outside of every repository git reads files like any other program.
    let plain = Fixture::new();
    plain.put("one/x", "1\n");
    assert!(plain.bash(
        "git init -q two && cd two && echo SECRET-42 > .env && git add -A && git commit -qm x"
    ));
    if detect_isolation().mounts {
        let reported = json!(unasked(&plain, "git", &["diff", "one", "two"])).to_string();
        assert!(!reported.contains("objects/") && !reported.contains("SECRET"), "{reported}");
    }
}

/// The ids of all files in a repository. References name commits, and those may be known.
fn sealed_names(f: &Fixture, repository: &str) -> Vec<String> {
    let check = "--batch-all-objects --batch-check='%(objecttype) %(objectname)'";
    let list = format!("git --git-dir={repository} cat-file {check} | sed -n 's/^blob ..//p'");
    printed(f, &list).lines().map(str::to_owned).collect()
}

/// An approved command reads neither objects nor the index, unless the history holds nothing to
/// protect. In that case, builds that call git work.
#[test]
fn approved_commands_get_at_objects_only_where_nothing_is_protected() {
    if !detect_isolation().mounts {
        return;
    }
    let read = "import glob\nprint(sum(open(p, 'rb').read(1) != b'' for p in glob.glob('.git/objects/**/*', recursive=True) if len(p) > 40))\n";
    let run = |f: &Fixture| {
        f.put("read.py", read);
        let result =
            f.call("execute_command", json!({ "command": "python3", "args": ["read.py"] }));
        assert!(result.success(), "{result:?}");
        (
            result.fields["stdout"].as_str().unwrap().trim() != "0",
            result.fields.get("note").is_some(),
        )
    };
    let plain = Fixture::new();
    assert!(plain.bash("git init -q . && git add -A && git commit -qm one"));
    assert_eq!(run(&plain), (true, false));
    let secret = Fixture::new();
    with_secrets(&secret);
    assert_eq!(run(&secret), (false, true));
}

/// TL-02.1: what `git add` would take in without being told its name is asked about like a file that
/// is named, so that a permission for local git commands commits no secrets.
#[test]
fn adding_a_secret_that_is_not_named_is_asked_about() {
    let f = Fixture::new();
    assert!(f.bash("git init -q ."));
    f.put("src/a.txt", "a\n");
    f.put("conf/.env", "TOKEN=SECRET\n");
    f.put("ignored/.env", "TOKEN=SECRET\n");
    f.put(".gitignore", "ignored/\n");
    let judged = |args: &[&str]| {
        let judged = f.judge("execute_command", json!({ "command": "git", "args": args }));
        (judged.verdict, judged.class.local_git)
    };
    for args in [
        &["add", "-A"][..],
        &["add", "."],
        &["add", "--all", "src", "conf"],
        &["stage", "conf"],
        &["add", "*"],
        &["add", "--", ":/"],
        &["-C", "conf", "add", "."],
    ] {
        assert_eq!(judged(args), (Verdict::High, false), "{args:?}");
    }
    for args in [
        &["add", "src"][..],
        &["add", "-u"],
        &["add", "src/a.txt", ".gitignore"],
        &["-C", "src", "add", "."],
    ] {
        assert_eq!(judged(args), (Verdict::Medium, true), "{args:?}");
    }
    assert!(f.bash("rm conf/.env"));
    assert_eq!(judged(&["add", "-A"]), (Verdict::Medium, true));
}
