use super::super::words::named_file;
use super::*;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn shown(line: &str) -> &'static str {
    let args = words(line);
    match Line::read(&args).map_or(Shown::Nothing, |line| line.shown()) {
        Shown::Nothing => "nothing",
        Shown::NothingOfCommits => "nothing of commits",
        Shown::Filterable => "filterable",
        Shown::Whole => "whole",
        Shown::Unknown => "unknown",
    }
}

#[test]
fn only_exactly_known_options_are_understood() {
    for (line, expected) in [
        ("--version", "nothing"),
        ("commit -am verbose", "nothing"),
        ("commit --no-verify -m x", "nothing"),
        ("commit --verb --dry-run", "whole"),
        ("commit -av", "whole"),
        ("log --oneline -5 --all", "nothing"),
        ("log -n 5 --author x -g", "nothing"),
        ("log --author --patch", "nothing"),
        ("log --max-parents -p", "unknown"),
        ("log -p", "filterable"),
        ("log -U5 --stat=80 main..x -- src", "filterable"),
        ("log -Sx --oneline", "filterable"),
        ("log --pat", "unknown"),
        ("log -pu", "unknown"),
        ("log --notes=HEAD", "unknown"),
        ("log --output=x", "unknown"),
        ("log --alternate-refs -p", "unknown"),
        ("log -p --full-diff", "whole"),
        ("log --follow --oneline -- a.txt", "nothing"),
        ("log --follow -p a.txt", "whole"),
        ("log --follow --name-only a.txt", "whole"),
        ("log --follow --frob a.txt", "unknown"),
        ("show --follow HEAD", "whole"),
        ("diff --follow HEAD", "whole"),
        ("log -L1,1:a.txt", "whole"),
        ("--literal-pathspecs log -p", "whole"),
        ("-P -C src log -p", "filterable"),
        ("show --tags", "unknown"),
        ("show --stat-width 40 HEAD", "filterable"),
        ("diff --no-indent-heuristic a b", "filterable"),
        ("diff --all", "unknown"),
        ("diff --no-index a b", "nothing"),
        ("diff --no-ind a b", "unknown"),
        ("diff a b --src-prefix --no-index", "filterable"),
        ("diff a b --frob --no-index", "unknown"),
        ("diff a b -- --no-index", "filterable"),
        ("show HEAD:a.txt", "filterable"),
        ("grep -n x HEAD -- src", "filterable"),
        ("grep -rn x", "filterable"),
        ("grep x -n", "unknown"),
        ("grep --no-index x", "unknown"),
        ("grep -Ovi x", "unknown"),
        ("status -sb", "filterable"),
        ("status -v", "whole"),
        ("status --verb", "unknown"),
        ("archive HEAD", "whole"),
        ("stash pop", "nothing"),
        ("stash show", "whole"),
        ("reflog -5", "nothing"),
        ("reflog -p", "whole"),
        ("am --show-current-patch", "whole"),
        ("am --sh", "whole"),
        ("am --skip", "nothing"),
        ("rebase --show-current-patch", "whole"),
        ("rebase --show", "whole"),
        ("rebase main", "nothing"),
        ("log -p --diff-merges=first-parent", "filterable"),
        ("log -p --diff-merges=remerge", "whole"),
        ("show --diff-merges r HEAD", "whole"),
        ("--attr-source add log -p", "whole"),
        ("am x.mbox", "nothing"),
        ("tag -l --format=%(raw)", "whole"),
        ("for-each-ref --format %(*raw:size)", "whole"),
        ("for-each-ref --sort=raw", "whole"),
        ("for-each-ref --sort -raw", "whole"),
        ("tag -l --so *raw:size", "whole"),
        ("branch --sort -committerdate", "nothing"),
        ("branch raw", "nothing"),
        ("reset --hard HEAD~1", "nothing of commits"),
        ("checkout -p", "whole"),
        ("restore --source=k x", "nothing of commits"),
        ("branch raw", "nothing"),
        ("cat-file -t HEAD", "nothing"),
        ("cat-file -p HEAD", "whole"),
    ] {
        assert_eq!(shown(line), expected, "{line}");
    }
}

#[test]
fn words_are_told_from_options_and_their_values() {
    for (line, expected) in [
        ("diff", &[][..]),
        ("diff --stat main...x ^y", &["main...x", "^y"]),
        ("diff main --src-prefix x :(top)x", &["main", ":(top)x"]),
        ("show abcd -- a.txt", &["abcd"]),
        ("status a.txt", &[]),
        ("grep pattern main", &["main"]),
        ("grep -e pattern main", &["main"]),
        ("grep -n -e pattern main -- x", &["main"]),
        ("log -p -n 5 main", &["main"]),
        ("log -p -- main", &[]),
        // These subcommands read words in ways that are not known here, so only ids are found.
        ("archive main", &[]),
        ("archive -o abcd.tar abcd^ --prefix=beef v1-2-gabcdef", &["abcd", "beef", "abcdef"]),
        ("diff-tree abcd..beef", &["abcd", "beef"]),
    ] {
        let args = words(line);
        assert_eq!(Line::read(&args).unwrap().words(), expected, "{line}");
    }
}

#[test]
fn the_scope_follows_from_what_words_mean() {
    use Meaning::{Commits, File, Unknown};
    let file = || File("a.txt".to_owned());
    for (line, meanings, expected) in [
        ("diff", &[][..], Scope::Index),
        ("diff a.txt", &[Unknown], Scope::Index),
        ("diff --cached", &[], Scope::History),
        ("diff --staged a.txt", &[Unknown], Scope::History),
        ("diff main", &[Commits], Scope::History),
        ("diff main:a.txt a.txt", &[file(), Unknown], Scope::NamedFiles),
        ("show main:a.txt main", &[file(), Commits], Scope::History),
        ("show", &[], Scope::History),
        ("status", &[], Scope::Index),
        ("grep x", &[], Scope::Index),
        ("grep x main", &[Commits], Scope::History),
        ("archive main", &[], Scope::History),
    ] {
        let args = words(line);
        assert_eq!(Line::read(&args).unwrap().scope(meanings), expected, "{line}");
    }
}

#[test]
fn named_files_have_a_plain_revision() {
    for (word, expected) in [
        ("HEAD:a.txt", Some(("HEAD", "a.txt"))),
        ("main~2^:src/x y", Some(("main~2^", "src/x y"))),
        (":a.txt", Some(("", "a.txt"))),
        (":0:a.txt", Some(("", "a.txt"))),
        (":1:a.txt", Some(("", "a.txt"))),
        (":4:a.txt", None),
        ("HEAD^{/:*}:private/plan.txt", None),
        ("HEAD@{1}:a.txt", None),
        ("HEAD:a:b", None),
        ("HEAD:", None),
        (":/fix", None),
        (":(top)c", None),
        ("a..b:c", None),
        ("HEAD", None),
    ] {
        assert_eq!(named_file(word), expected, "{word}");
    }
}

#[test]
fn paths_go_behind_dashes_with_those_that_are_excluded() {
    use Meaning::{Commits, Unknown};
    let excluded = BTreeSet::from(["deep/.env".to_owned()]);
    let spec = ":(exclude,top,literal)deep/.env";
    for (line, meanings, expected) in [
        ("-C src show HEAD", &[Commits][..], "-C src show HEAD -- X"),
        ("log -p", &[], "log --full-history --sparse -p -- X"),
        ("log -p src", &[Unknown], "log -p -- src X"),
        ("log HEAD src --stat", &[Commits, Unknown], "log HEAD --stat -- src X"),
        ("log -p -- a", &[], "log -p -- a X"),
        ("log -p --", &[], "log --full-history --sparse -p -- X"),
        ("status -s src", &[], "status -s -- src X"),
        ("ls-files -x *.o src", &[], "ls-files -x *.o src -- X"),
    ] {
        let args = words(line);
        let found = Line::read(&args).unwrap().pinned(meanings, &excluded).unwrap().join(" ");
        assert_eq!(found, expected.replace('X', spec), "{line}");
    }
    let args = words("show HEAD");
    assert_eq!(Line::read(&args).unwrap().pinned(&[Commits], &BTreeSet::new()), None);
}

#[test]
fn only_diff_without_a_repository_compares_files() {
    for (line, compares) in [
        ("diff --no-index a b", true),
        ("-C src diff --no-index a b", true),
        ("diff a -- --no-index", false),
        ("diff a b --src-prefix --no-index", false),
        ("log --no-index", false),
        ("diff a b", false),
        ("--version", false),
    ] {
        assert_eq!(compares_files(&words(line)), compares, "{line}");
    }
}

#[test]
fn a_checkout_of_a_file_overwrites_it() {
    let existing: BTreeSet<&str> = ["src", "a.txt"].into();
    for (line, path) in [
        ("checkout a.txt", Some("a.txt")),
        ("checkout main a.txt", Some("a.txt")),
        ("checkout main", None),
        ("checkout -b a.txt", None),
        ("checkout --track a.txt", None),
        ("checkout main -- a.txt", None),
        ("restore a.txt", None),
    ] {
        let args = words(line);
        assert_eq!(overwritten_path(&args, &existing), path, "{line}");
    }
}

#[test]
fn every_part_of_a_word_can_name_an_object() {
    for (line, expected) in [
        ("reset HEAD:x -- abcd", &["HEAD", "HEAD:x"][..]),
        ("restore --source=k:x -sm -Wst a", &["a", "k", "k:x", "m", "t"]),
        ("checkout -- a", &[]),
        ("cat-file -p -- k^{}", &["k", "k^{}"]),
        ("update-index --cacheinfo 1,k,x", &["1", "1,k,x", "k", "x"]),
        ("archive a..b -q --", &["a", "a..b", "b"]),
        ("show HEAD:x", &[]),
        ("branch x", &["x"]),
    ] {
        let args = words(line);
        let names: Vec<&str> = Line::read(&args).unwrap().names().into_iter().collect();
        assert_eq!(names, expected, "{line}");
    }
}
