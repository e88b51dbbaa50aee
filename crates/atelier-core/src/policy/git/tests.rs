use super::*;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Decides about a command line whose words have these meanings.
fn decide(line: &str, meanings: &[Meaning], facts: GitFacts) -> GitDecision {
    let args = words(line);
    let existing = BTreeSet::from(["src", "v1"]);
    let line = Line::read(&args).unwrap();
    GitDecision::about(&line, &existing, GitFacts { meanings: meanings.to_vec(), ..facts })
}

fn paths(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn secret(names: &[&str]) -> GitFacts {
    let protected = ProtectedPaths { secret: paths(names), ..Default::default() };
    GitFacts { protected, ..Default::default() }
}

fn hidden(names: &[&str]) -> GitFacts {
    let protected = ProtectedPaths { hidden: paths(names), ..Default::default() };
    GitFacts { protected, ..Default::default() }
}

fn named(name: &str) -> GitFacts {
    GitFacts {
        named: ProtectedPaths { secret: paths(&[name]), ..Default::default() },
        ..Default::default()
    }
}

/// The kind of a decision as one word, for tables of cases.
fn outcome(decision: &GitDecision) -> &'static str {
    match decision {
        GitDecision::AsItIs => "runs",
        GitDecision::Pinned(_) => "pinned",
        GitDecision::Excluding(_) => "excludes",
        GitDecision::Ask(_) => "asks",
    }
}

#[test]
fn protected_files_are_excluded_or_asked_about() {
    use Meaning::{Commits, File, Object, Tree, Unknown};
    let many: Vec<String> = (0..=MAX_EXCLUDED).map(|n| format!("{n}.pem")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let none = GitFacts::default;
    let untracked = GitFacts { untracked: paths(&[".env"]), ..none() };
    let leaves = GitFacts { leaves: true, ..none() };
    let file = || File("src/x".to_owned());
    for (line, meanings, facts, expected) in [
        ("branch", &[][..], secret(&[".env"]), "runs"),
        ("show HEAD", &[Commits], none(), "runs"),
        ("show HEAD", &[Commits], secret(&[".env"]), "excludes"),
        ("show HEAD", &[Commits], hidden(&["plan"]), "excludes"),
        ("status", &[], untracked, "excludes"),
        ("status src", &[], none(), "pinned"),
        ("show HEAD", &[Commits], secret(&many[1..]), "excludes"),
        ("show HEAD", &[Commits], secret(&many), "asks"),
        ("show HEAD:src/x", &[file()], none(), "runs"),
        ("show HEAD:src/x", &[file()], named("src/x"), "asks"),
        ("show HEAD:src/x HEAD", &[file(), Commits], secret(&[".env"]), "asks"),
        ("show HEAD:src", &[Tree], none(), "runs"),
        ("show HEAD:src", &[Tree], hidden(&["plan"]), "asks"),
        ("diff HEAD:src/x src", &[file(), Unknown], none(), "pinned"),
        ("diff v1 --", &[Commits], secret(&[".env"]), "excludes"),
        ("diff HEAD src", &[Commits, Unknown], secret(&[".env"]), "excludes"),
        ("diff a b", &[Unknown, Unknown], leaves, "asks"),
        ("archive HEAD", &[], none(), "runs"),
        ("archive HEAD", &[], secret(&[".env"]), "asks"),
        ("archive HEAD", &[], hidden(&["plan"]), "asks"),
        ("show abcd", &[Object], none(), "asks"),
        ("show abcd --", &[Object], none(), "asks"),
        ("archive abcd", &[Object], none(), "asks"),
        // Git refuses names that it does not know, so nobody has to be asked about them. But they
        // may mean something by the time the command runs.
        ("show nowhere", &[Unknown], none(), "pinned"),
        ("show nowhere", &[Unknown], secret(&[".env"]), "excludes"),
        ("show HEAD~99", &[Unknown], secret(&[".env"]), "excludes"),
        ("show main..nowhere", &[Unknown], secret(&[".env"]), "excludes"),
        ("show HEAD:nowhere", &[Unknown], secret(&[".env"]), "excludes"),
        ("log -p src nowhere", &[Unknown, Unknown], secret(&[".env"]), "excludes"),
        ("log -p -L1,2:src nowhere", &[Unknown], secret(&[".env"]), "asks"),
        // `git log` passes over files and shows commits.
        ("log -p HEAD:src/x", &[file()], secret(&[".env"]), "asks"),
        ("log -p --all HEAD:src/x", &[file()], secret(&[".env"]), "asks"),
        // Git would take another name than the one that is meant.
        ("show HEAD", &[Commits], secret(&["d\u{fffd}/.env"]), "asks"),
        // They print or bring back contents of files.
        ("stash push", &[], secret(&[".env"]), "runs"),
        ("stash push -p", &[], secret(&[".env"]), "asks"),
        ("stash save --pat", &[], secret(&[".env"]), "asks"),
        ("stash push -kp", &[], secret(&[".env"]), "asks"),
        ("add -i", &[], secret(&[".env"]), "asks"),
        ("commit -m input", &[], secret(&[".env"]), "runs"),
        ("commit -minput", &[], secret(&[".env"]), "runs"),
        ("apply x.diff", &[], secret(&[".env"]), "runs"),
        ("apply -p3 x.diff", &[], secret(&[".env"]), "runs"),
        ("apply -3 x.diff", &[], secret(&[".env"]), "asks"),
        ("am --3way x.mbox", &[], secret(&[".env"]), "asks"),
        ("merge side", &[], secret(&[".env"]), "runs"),
        ("merge -X subtree=private side", &[], hidden(&["plan"]), "asks"),
        ("rebase -s subtree side", &[], hidden(&["plan"]), "asks"),
        // These could mean something to a subcommand that `git rev-parse` does not know.
        ("show abcd", &[Unknown], none(), "asks"),
        // A folder of a commit comes to another place.
        ("reset HEAD -- src", &[Commits], secret(&[".env"]), "runs"),
        ("reset HEAD:src -- x", &[Tree], none(), "runs"),
        ("reset HEAD:src -- x", &[Tree], secret(&[".env"]), "asks"),
        ("reset HEAD:src -- x", &[Tree, Commits], hidden(&["plan"]), "asks"),
        ("checkout k -- x", &[Object], none(), "asks"),
        ("restore -sk x", &[Object], none(), "asks"),
        ("cat-file -p HEAD:src/x", &[file(), Commits], none(), "runs"),
        ("cat-file -p HEAD:src/x", &[file(), Commits], named("src/x"), "asks"),
        ("show v-1-gabcd --", &[Unknown], none(), "asks"),
        ("show HEAD:a..HEAD:b", &[Unknown], none(), "asks"),
        ("show HEAD^{/x}", &[Unknown], none(), "asks"),
        ("show --frob HEAD", &[Commits], none(), "asks"),
    ] {
        let decision = decide(line, meanings, facts.clone());
        assert_eq!(outcome(&decision), expected, "{line} {meanings:?} {facts:?}: {decision:?}");
    }
    let leaves = GitFacts { leaves: true, ..none() };
    assert_eq!(outcome(&decide("diff src v1", &[Unknown, Unknown], leaves)), "asks");
}

#[test]
fn every_protected_file_is_excluded() {
    let facts = GitFacts {
        protected: ProtectedPaths { secret: paths(&["a.pem"]), hidden: paths(&["plan"]) },
        untracked: paths(&[".env"]),
        ..Default::default()
    };
    let spec = |path: &str| format!(":(exclude,top,literal){path}");
    let args = ["status".to_owned(), "--".to_owned(), spec(".env"), spec("a.pem"), spec("plan")];
    assert_eq!(decide("status", &[], facts), GitDecision::Excluding(args.into()));
}

#[test]
fn a_question_names_a_secret_file_but_no_hidden_one() {
    let reason = |facts| match decide("archive HEAD", &[], facts) {
        GitDecision::Ask(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason(secret(&["deep/.env"])).contains("deep/.env"));
    assert!(!reason(hidden(&["plan"])).contains("plan"));
    let GitDecision::Ask(unclear) = GitDecision::unclear("git cannot be asked") else { panic!() };
    assert!(unclear.ends_with("git keeps here: git cannot be asked."), "{unclear}");
}

/// A name that gets a meaning while a command starts must not get that of a file.
#[test]
fn unknown_names_are_taken_for_commits() {
    use Meaning::{Commits, Unknown};
    for (line, meanings, expected) in [
        ("show nowhere", &[Unknown][..], "show nowhere^{commit}"),
        ("show nowhere --", &[Unknown], "show nowhere^{commit} --"),
        ("diff a..b", &[Unknown], "diff a^{commit}..b^{commit}"),
        ("diff a...", &[Unknown], "diff a^{commit}..."),
        ("show HEAD nowhere~2", &[Commits, Unknown], "show HEAD nowhere~2^{commit}"),
        ("log -p src nowhere", &[Unknown, Unknown], "log -p src nowhere^{commit}"),
    ] {
        let decision = decide(line, meanings, GitFacts::default());
        assert_eq!(decision, GitDecision::Pinned(words(expected)), "{line}");
    }
}
