//! git in the sandbox: it works, and starts nothing that a repository names.

use super::*;

fn repository(s: &Space) {
    ok(&s.work("git", &["init", "-q"]));
    s.put("f", "one\n");
    ok(&s.work("git", &["add", "f"]));
    ok(&s.work("git", &["commit", "-q", "-m", "first"]));
}

#[test]
fn git_works_and_knows_who_commits() {
    let s = space();
    repository(&s);
    s.put("f", "two\n");
    assert!(ok(&s.low("git", &["status", "--short"])).contains(" M f"));
    assert!(ok(&s.low("git", &["diff"])).contains("+two"));
    assert!(ok(&s.low("git", &["log"])).contains("Ada <ada@example.org>"));
}

#[test]
fn git_starts_none_of_the_helpers_a_repository_names() {
    let s = space();
    repository(&s);
    // A helper could write here if it were started, because the command may write to the workspace.
    let touch = format!("touch {}", s.path("HELPED").display());
    let config = fs::read_to_string(s.path(".git/config")).unwrap();
    s.put(
        ".git/config",
        &format!(
            "{config}\n[core]\n fsmonitor = {touch};true\n pager = {touch}\n sshCommand = \
             {touch}\n editor = {touch}\n\
             [diff]\n external = {touch};true\n[diff \"x\"]\n textconv = {touch};cat\n command = \
             {touch};true\n\
             [filter \"y\"]\n clean = {touch};cat\n smudge = {touch};cat\n process = {touch}\n \
             required = true\n\
             [gpg]\n program = {touch}\n[commit]\n gpgSign = true\n[credential]\n helper = \
             !{touch}\n\
             [alias]\n st = !{touch}\n[trailer \"t\"]\n cmd = {touch}\n[trailer \"u\"]\n command \
             = {touch}\n"
        ),
    );
    s.put(".gitattributes", "* diff=x filter=y\n");
    for hook in
        ["pre-commit", "post-commit", "post-checkout", "prepare-commit-msg", "post-index-change"]
    {
        s.put(&format!(".git/hooks/{hook}"), &format!("#!/bin/sh\n{touch}\n"));
        fs::set_permissions(
            s.path(&format!(".git/hooks/{hook}")),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
    }
    s.put("f", "two\n");
    for args in [
        &["status"][..],
        &["diff"],
        &["log", "-p"],
        &["show"],
        &["add", "f"],
        &["commit", "-q", "-m", "second"],
        &["checkout", "-q", "-b", "side", "HEAD~1"],
        &["checkout", "-q", "-"],
        &["stash", "list"],
        &["blame", "f"],
        &["annotate", "f"],
        &["reflog", "-p"],
        &["reflog", "show", "-p"],
        &["stash", "list", "-p"],
        &["range-diff", "HEAD~1..HEAD", "HEAD~1..HEAD"],
        &["commit", "-q", "--allow-empty", "-m", "third", "--trailer", "t:a", "--trailer", "u:b"],
    ] {
        let outcome = s.work("git", args);
        assert_eq!(outcome.ending, Ending::Exited(0), "{args:?}: {}", outcome.stderr);
        assert!(!s.path("HELPED").exists(), "{args:?} started a helper");
    }
}

/// A helper that is not found cannot be switched off, so the limits of the command do not apply to
/// the question.
#[test]
fn a_long_configuration_hides_no_helper() {
    let s = space();
    repository(&s);
    let touch = format!("touch {}", s.path("HELPED").display());
    let config = fs::read_to_string(s.path(".git/config")).unwrap();
    // The helper is in the middle, because the beginning and the end of a long answer are kept.
    let names = |of: &str| {
        (0..40_000).map(|n| format!("[{of} \"name-{n}\"]\n x = y\n")).collect::<String>()
    };
    let filter = format!("[filter \"y\"]\n clean = {touch};cat\n");
    s.put(".git/config", &format!("{config}\n{}{filter}{}", names("before"), names("behind")));
    s.put(".gitattributes", "* filter=y\n");
    s.put("f", "two\n");
    ok(&s.work("git", &["add", "f"]));
    assert!(!s.path("HELPED").exists(), "a filter behind many names was started");
    s.put(".git/config", &format!("{config}\n{filter}"));
    s.put("f", "three\n");
    ok(&s.run(&CommandSpec { output_limit: 64, ..working("git", &["add", "f"]) }));
    assert!(!s.path("HELPED").exists(), "a filter behind a limit was started");
}

/// Another repository has its own hooks and names its own programs. So does an earlier command that
/// wrote to HOME.
#[test]
fn git_starts_nothing_of_another_repository() {
    let s = space();
    repository(&s);
    let touch = format!("touch {}", s.path("HELPED").display());
    ok(&s.work("git", &["init", "-q", "--bare", "other.git"]));
    s.put("other.git/hooks/pre-receive", &format!("#!/bin/sh\n{touch}\n"));
    fs::set_permissions(s.path("other.git/hooks/pre-receive"), fs::Permissions::from_mode(0o755))
        .unwrap();
    let config = fs::read_to_string(s.path(".git/config")).unwrap();
    let other = s.path("other.git").display().to_string();
    s.put(
        ".git/config",
        &format!(
            "{config}\n[core]\n gitProxy = {touch};false\n[remote \"o\"]\n url = {other}\n \
             promisor = true\n\
             uploadpack = {touch};git-upload-pack\n receivepack = {touch};git-receive-pack\n\
             [remote \"p\"]\n url = git://127.0.0.1:1/x\n"
        ),
    );
    let home = s.dir.path().join("state/home");
    fs::write(home.join(".gitconfig"), format!("[core]\n gitProxy = {touch};false\n")).unwrap();
    // A missing object would be fetched from the promised remote.
    let blob = ok(&s.work("git", &["rev-parse", "HEAD:f"])).trim().to_owned();
    fs::remove_file(s.path(&format!(".git/objects/{}/{}", &blob[..2], &blob[2..]))).unwrap();
    for args in [
        &["push", "o", "HEAD:main"][..],
        &["push", "./other.git", "HEAD:main"],
        &["fetch", "o"],
        &["pull", "o", "main"],
        &["ls-remote", "o"],
        &["ls-remote", "p"],
        &["fetch", "p"],
        &["show", "HEAD:f"],
    ] {
        let outcome = s.run(&CommandSpec { network: args[0] != "show", ..working("git", args) });
        assert_ne!(outcome.ending, Ending::Exited(0), "{args:?}: {}", outcome.stdout);
        assert!(!s.path("HELPED").exists(), "{args:?} started a helper: {}", outcome.stderr);
    }
}

#[test]
fn git_does_not_look_into_submodules_with_filters_of_their_own() {
    let s = space();
    repository(&s);
    for args in
        [&["init", "-q", "sub"][..], &["-C", "sub", "commit", "-q", "--allow-empty", "-m", "x"]]
    {
        ok(&s.work("git", args));
    }
    s.put("sub/f", "one\n");
    s.put("sub/.gitattributes", "* filter=y\n");
    for args in
        [&["-C", "sub", "add", "."][..], &["-C", "sub", "commit", "-q", "-m", "y"], &["add", "sub"]]
    {
        ok(&s.work("git", args));
    }
    s.put(".gitmodules", "[submodule \"sub\"]\n path = sub\n url = ./sub\n ignore = none\n");
    let touch = format!("touch {}", s.path("HELPED").display());
    let config = fs::read_to_string(s.path("sub/.git/config")).unwrap();
    s.put("sub/.git/config", &format!("{config}\n[filter \"y\"]\n clean = {touch};cat\n"));
    s.put("sub/f", "two\n");
    for args in [
        &["status"][..],
        &["status", "--ignore-submodules=none"],
        &["diff"],
        &["diff", "HEAD"],
        &["-C", "sub", "status"],
        &["-P", "-C", "sub", "diff"],
    ] {
        ok(&s.work("git", args));
        assert!(!s.path("HELPED").exists(), "{args:?} started a filter of the submodule");
    }
}
