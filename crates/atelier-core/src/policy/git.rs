//! Decides whether a git command may run without approval, although git's index and history may
//! hold protected files.
//!
//! Hiding a file from a command does not hide it from git. So the machine asks git what it holds
//! ([`GitFacts`]), and this module decides from these facts: the command runs as it is, it runs
//! with protected files excluded, or a person is asked. If something is not known, a person is
//! asked.

mod command_line;
mod options;
mod planted;
mod silent;
mod words;

pub use command_line::{Line, Meaning, Scope, Shown, compares_files, overwritten_path, subcommand};
pub use planted::NewRepository;
pub use words::named_file;

use std::collections::BTreeSet;

/// More pathspecs than this make git slow and its command line too long.
const MAX_EXCLUDED: usize = 1000;

/// Files that must not be shown without approval, as paths from the repository's top.
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

/// The facts that the machine found about a repository for one command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitFacts {
    /// The meanings of the words of the command, in their order.
    pub meanings: Vec<Meaning>,
    /// Protected files among those that the command names as `revision:path`.
    pub named: ProtectedPaths,
    /// Protected files among all others that the command could show.
    pub protected: ProtectedPaths,
    /// Protected files of the working tree that git does not track, as paths from the repository's
    /// top.
    pub untracked: BTreeSet<String>,
    /// Whether the command names a path outside the repository.
    pub leaves: bool,
}

/// How a git command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitDecision {
    AsItIs,
    /// With these arguments, which mean the same to git whatever changes meanwhile.
    Pinned(Vec<String>),
    /// With these arguments, which exclude protected files.
    Excluding(Vec<String>),
    /// Only with an approval, for this reason.
    Ask(String),
}

impl GitDecision {
    /// Decides about a command line from what git says that it means. `existing` holds the words
    /// that name a file or folder where git runs.
    pub fn about(line: &Line<'_>, existing: &BTreeSet<&str>, facts: GitFacts) -> Self {
        let GitFacts { meanings, named, protected, untracked, leaves } = facts;
        match line.shown() {
            Shown::Nothing => return Self::AsItIs,
            Shown::NothingOfCommits if !names_no_commit(&meanings) => return Self::AsItIs,
            Shown::Unknown => return Self::unclear("a part of the command line is not known"),
            Shown::NothingOfCommits | Shown::Filterable | Shown::Whole => {}
        }
        // Git may take the word for something else, which must not be something that was not
        // examined.
        let stray = line.stray(&meanings, existing);
        if let Some(word) = stray.filter(|word| !words::is_refused(word)) {
            return Self::unclear(&format!("it is unknown what {word:?} means"));
        }
        if line.is_diff() && leaves {
            return Self::unclear(
                "it compares files outside the repository; git diff --no-index does that",
            );
        }
        // An object that is named by its id alone has no path that could be checked.
        if meanings.contains(&Meaning::Object) {
            let why = "This command shows an object of which no path is known, so it is unknown \
                which file it is.";
            return Self::Ask(why.to_owned());
        }
        if !named.is_empty() {
            return Self::ask_about(&named);
        }
        // Git refuses a word that it does not know. But the word can have a meaning by the time the
        // command runs, so it stays where it is, and protected files are excluded all the same.
        let pinned = |excluded: &BTreeSet<String>| match stray {
            Some(_) => line.excluding(&meanings, existing, excluded),
            None => line.pinned(&meanings, excluded),
        };
        let revisions = command_line::revisions(&meanings);
        let has_files = revisions.iter().any(|meaning| !matches!(meaning, Meaning::Commits));
        let whole = line.shown() != Shown::Filterable || has_files;
        match (line.scope(&meanings), whole) {
            (Scope::NamedFiles, _) => pinned(&BTreeSet::new()).map_or(Self::AsItIs, Self::Pinned),
            (_, true) if !protected.is_empty() => Self::ask_about(&protected),
            (_, true) => pinned(&BTreeSet::new()).map_or(Self::AsItIs, Self::Pinned),
            (_, false) => {
                let mut excluded = untracked;
                excluded.extend(protected.secret.iter().chain(&protected.hidden).cloned());
                // A name that is not UTF-8 cannot be written into an argument.
                if excluded.iter().any(|path| path.contains(char::REPLACEMENT_CHARACTER)) {
                    return Self::unclear("the name of a protected file is not UTF-8");
                }
                match (pinned(&excluded), excluded.len()) {
                    (None, _) => Self::AsItIs,
                    (Some(args), 0) => Self::Pinned(args),
                    (Some(args), 1..=MAX_EXCLUDED) => Self::Excluding(args),
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
            // Agents read this reason, and hidden files do not exist for them, so the reason names
            // none.
            None => {
                "This command may show files that .atelierignore names and git keeps.".to_owned()
            }
        })
    }
}

/// Whether a word of a command names a file, a folder or another object that is no commit.
pub fn names_no_commit(meanings: &[Meaning]) -> bool {
    meanings.iter().any(|it| matches!(it, Meaning::File(_) | Meaning::Tree | Meaning::Object))
}

#[cfg(test)]
mod tests;
