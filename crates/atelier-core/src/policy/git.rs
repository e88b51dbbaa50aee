//! Whether a git command may run without a question, although git's index and history may hold
//! files that need one.
//!
//! Hiding a file from a command does not hide it from git. So the machine asks git itself what it
//! holds ([`GitFacts`]), and here it is decided from these facts: the command runs as it is, it
//! runs with protected files excluded, or a person is asked. What is not known is asked about.

mod command_line;

pub use command_line::{
    Scope, Shown, compares_files, is_object_id, overwritten_path, path_in, subcommand,
};

use std::collections::BTreeSet;

/// More pathspecs than this make git slow and its command line too long.
const MAX_EXCLUDED: usize = 1000;

/// Files that must not be shown without a question, as paths from the repository's top.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedPaths {
    /// Files that usually hold credentials.
    pub secret: BTreeSet<String>,
    /// Files that `.atelierignore` names.
    pub hidden: BTreeSet<String>,
}

impl ProtectedPaths {
    pub fn is_empty(&self) -> bool {
        self.secret.is_empty() && self.hidden.is_empty()
    }

    pub fn extend(&mut self, other: Self) {
        self.secret.extend(other.secret);
        self.hidden.extend(other.hidden);
    }
}

/// What git says an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Blob,
    Commit,
    /// A tree, or a tag that leads to no commit.
    Other,
}

impl ObjectKind {
    /// Reads the output of `git cat-file -t`.
    pub fn parse(output: &str) -> Self {
        match output.trim() {
            "blob" => Self::Blob,
            "commit" => Self::Commit,
            _ => Self::Other,
        }
    }
}

/// What the machine found out about a repository for one command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitFacts {
    /// Protected files among those that the command could show.
    pub protected: ProtectedPaths,
    /// What the revisions that the command names lead to. Revisions that do not exist are left out.
    pub revisions: Vec<ObjectKind>,
    /// Protected files of the working tree that git does not track, as paths from the repository's
    /// top.
    pub untracked: BTreeSet<String>,
}

/// How a git command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitDecision {
    AsItIs,
    /// With these arguments, which exclude protected files.
    Excluding(Vec<String>),
    /// Only with an approval, for this reason.
    Ask(String),
}

impl GitDecision {
    /// Decides about a command line from what it shows and what the repository holds.
    pub fn about(
        args: &[String],
        existing: &BTreeSet<&str>,
        shown: &Shown<'_>,
        facts: GitFacts,
    ) -> Self {
        let GitFacts { protected, revisions, untracked } = facts;
        match shown {
            Shown::Nothing => Self::AsItIs,
            Shown::Named(_) if protected.is_empty() => Self::AsItIs,
            Shown::Named(_) => Self::ask_about(&protected),
            // An object that is named by its id alone has no path that could be checked.
            Shown::Filterable(_) | Shown::Anything(_)
                if revisions.iter().any(|kind| *kind != ObjectKind::Commit) =>
            {
                let why =
                    "This command shows an object by its id, so it is unknown which file it is.";
                Self::Ask(why.to_owned())
            }
            Shown::Anything(_) if protected.is_empty() => Self::AsItIs,
            Shown::Anything(_) => Self::ask_about(&protected),
            Shown::Filterable(_) => {
                let mut excluded = untracked;
                excluded.extend(protected.secret.iter().chain(&protected.hidden).cloned());
                match excluded.len() {
                    0 => Self::AsItIs,
                    1..=MAX_EXCLUDED => {
                        Self::Excluding(command_line::excluding(args, &excluded, existing))
                    }
                    _ => Self::ask_about(&protected),
                }
            }
        }
    }

    /// The facts could not be found out.
    pub fn unclear(why: &str) -> Self {
        Self::Ask(format!("This command may show any file that git keeps here: {why}."))
    }

    fn ask_about(protected: &ProtectedPaths) -> Self {
        Self::Ask(match protected.secret.first() {
            Some(path) => {
                format!(
                    "This command may show {path}, which git keeps and which usually holds secrets."
                )
            }
            // Agents read this reason, and hidden files do not exist for them: so none is named.
            None => {
                "This command may show files that .atelierignore names and git keeps.".to_owned()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn decide(line: &str, facts: GitFacts) -> GitDecision {
        let (args, existing) = (words(line), BTreeSet::from(["src"]));
        GitDecision::about(&args, &existing, &Shown::by(&args, &existing), facts)
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

    fn leading_to(kind: ObjectKind) -> GitFacts {
        GitFacts { revisions: vec![ObjectKind::Commit, kind], ..Default::default() }
    }

    /// What is decided, in a word.
    fn outcome(decision: &GitDecision) -> &'static str {
        match decision {
            GitDecision::AsItIs => "runs",
            GitDecision::Excluding(_) => "excludes",
            GitDecision::Ask(_) => "asks",
        }
    }

    #[test]
    fn protected_files_are_excluded_or_asked_about() {
        let many: Vec<String> = (0..=MAX_EXCLUDED).map(|n| format!("{n}.pem")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let untracked = GitFacts { untracked: paths(&[".env"]), ..Default::default() };
        for (line, facts, expected) in [
            ("branch", secret(&[".env"]), "runs"),
            ("show HEAD", GitFacts::default(), "runs"),
            ("show HEAD", secret(&[".env"]), "excludes"),
            ("show HEAD", hidden(&["plan"]), "excludes"),
            ("status", untracked, "excludes"),
            ("show HEAD", secret(&many[1..]), "excludes"),
            ("show HEAD", secret(&many), "asks"),
            ("show HEAD:src/x", GitFacts::default(), "runs"),
            ("show HEAD:src/x", secret(&["src/x"]), "asks"),
            ("show HEAD:src/x", hidden(&["src/x"]), "asks"),
            ("archive HEAD", GitFacts::default(), "runs"),
            ("archive HEAD", secret(&[".env"]), "asks"),
            ("archive HEAD", hidden(&["plan"]), "asks"),
            ("show abcd", leading_to(ObjectKind::Commit), "runs"),
            ("show abcd", leading_to(ObjectKind::Blob), "asks"),
            ("show abcd", leading_to(ObjectKind::Other), "asks"),
            ("archive abcd", leading_to(ObjectKind::Other), "asks"),
        ] {
            assert_eq!(outcome(&decide(line, facts.clone())), expected, "{line} {facts:?}");
        }
    }

    #[test]
    fn every_protected_file_is_excluded() {
        let facts = GitFacts {
            protected: ProtectedPaths { secret: paths(&["a.pem"]), hidden: paths(&["plan"]) },
            untracked: paths(&[".env"]),
            ..Default::default()
        };
        let spec = |path: &str| format!(":(exclude,top,literal){path}");
        let args = ["status".to_owned(), spec(".env"), spec("a.pem"), spec("plan")];
        assert_eq!(decide("status", facts), GitDecision::Excluding(args.into()));
    }

    #[test]
    fn a_question_names_a_secret_file_but_no_hidden_one() {
        let reason = |facts| match decide("archive HEAD", facts) {
            GitDecision::Ask(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(secret(&["deep/.env"])).contains("deep/.env"));
        assert!(!reason(hidden(&["plan"])).contains("plan"));
        let GitDecision::Ask(unclear) = GitDecision::unclear("git cannot be asked") else {
            panic!()
        };
        assert!(unclear.ends_with("git keeps here: git cannot be asked."), "{unclear}");
    }

    #[test]
    fn git_names_the_kinds_of_objects() {
        let kinds = ["blob\n", "commit\n", "tree\n", "tag", ""].map(ObjectKind::parse);
        use ObjectKind::{Blob, Commit, Other};
        assert_eq!(kinds, [Blob, Commit, Other, Other, Other]);
    }
}
