//! Protected files under other names: replacements, sides of a conflict, tags, and names that are not
//! UTF-8.

use super::*;

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
    // A file with a harmless path and a commit are asked about only once.
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
