//! The class of a call: what a standing permission for calls like it covers.

use super::files::{REMOVES, WRITES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The destination of a command that needs the network and names no address: the remote, registry
/// or index that is configured.
pub const CONFIGURED: &str = "as configured";

/// Everything that made the rules ask about a call, and where the call connects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = CallClass))]
#[serde(default)]
pub struct CallClass {
    /// All rules that a person is asked about, such as `tar` and `tar file.secret write`: each of
    /// them rates the call as MEDIUM or HIGH.
    pub findings: BTreeSet<String>,
    /// Addresses and names of remotes in the call, exactly as written.
    pub destinations: BTreeSet<String>,
    /// A MEDIUM git command that stays in the working tree and the local history, so that a
    /// permission for all such commands covers it.
    pub local_git: bool,
}

impl CallClass {
    /// The class of a call that one rule asks about.
    pub fn of(rule: impl Into<String>) -> Self {
        Self { findings: BTreeSet::from([rule.into()]), ..Self::default() }
    }

    /// Whether a permission for this class covers a call of the other class: it must have all
    /// findings and all destinations of that call.
    pub fn covers(&self, call: &Self) -> bool {
        !call.findings.is_empty()
            && call.findings.is_subset(&self.findings)
            && call.destinations.is_subset(&self.destinations)
    }

    /// Adds what else a person is asked about.
    pub fn add(&mut self, other: Self) {
        self.local_git &= other.local_git || other.findings.is_subset(&self.findings);
        self.findings.extend(other.findings);
        self.destinations.extend(other.destinations);
    }

    /// The class in words, without its scope: `every “git push” because of “--force”, to origin`.
    pub fn in_words(&self) -> String {
        let mut whats: Vec<&str> = self.findings.iter().map(|rule| split(rule).0).collect();
        whats.dedup();
        let whats: Vec<String> =
            whats.iter().map(|what| format!("“{}”", what.replace('.', " "))).collect();
        let mut words = format!("every {}", whats.join(" and "));
        let abouts =
            || self.findings.iter().map(|rule| split(rule).1).filter(|about| !about.is_empty());
        let kind = |about: &str, way: &str| {
            let (kind, rest) = split(about.strip_prefix("file.")?);
            (rest == way).then(|| format!("“{kind}”"))
        };
        for (way, says) in WAYS {
            let kinds: BTreeSet<String> = abouts().filter_map(|about| kind(about, way)).collect();
            if !kinds.is_empty() {
                words += &format!(" {says} files of the kind {}", joined(&kinds));
            }
        }
        let is_folder = |about: &&str| about.ends_with("/**") || *about == "*";
        let folders: BTreeSet<String> =
            abouts().filter(is_folder).map(|folder| format!("“{folder}”")).collect();
        if !folders.is_empty() {
            words += &format!(" on files in {}", joined(&folders));
        }
        let others: BTreeSet<String> = abouts()
            .filter(|about| WAYS.iter().all(|(way, _)| kind(about, way).is_none()))
            .filter(|about| !is_folder(about))
            .map(|about| format!("“{about}”"))
            .collect();
        if !others.is_empty() {
            words += &format!(" that is asked about because of {}", joined(&others));
        }
        let named = |to: &&String| to.as_str() != CONFIGURED;
        let to: BTreeSet<String> = self.destinations.iter().filter(named).cloned().collect();
        if !to.is_empty() {
            words += &format!(", only with {}", joined(&to));
        }
        words
    }
}

/// The ways to use a file of a class: how the finding ends, and how it is said.
const WAYS: [(&str, &str); 3] = [("", "on"), (WRITES, "writing"), (REMOVES, "taking away")];

fn split(rule: &str) -> (&str, &str) {
    rule.split_once(' ').unwrap_or((rule, ""))
}

fn joined(parts: &BTreeSet<String>) -> String {
    parts.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::{CONFIGURED, CallClass};
    use crate::{path::Roots, policy::Policy};
    use serde_json::json;

    fn class(findings: &[&str], destinations: &[&str]) -> CallClass {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        CallClass { findings: owned(findings), destinations: owned(destinations), local_git: false }
    }

    #[test]
    fn permission_covers_a_subset_of_what_it_was_given_for() {
        let given = class(&["tar", "tar --list"], &["origin"]);
        assert!(given.covers(&class(&["tar"], &[])));
        assert!(given.covers(&given));
        assert!(!given.covers(&class(&["tar", "tar file.secret"], &[])));
        assert!(!given.covers(&class(&["tar"], &["https://attacker.invalid/x.git"])));
        assert!(!given.covers(&class(&["tar"], &[CONFIGURED])));
        assert!(!given.covers(&CallClass::default()), "what nobody rated is never covered");
        assert!(!CallClass::default().covers(&CallClass::default()));
    }

    #[test]
    fn reading_and_writing_are_apart() {
        let given = class(&["sed file.secret"], &[]);
        assert!(given.covers(&given));
        assert!(!given.covers(&class(&["sed file.secret", "sed write"], &[])));
        assert!(!given.covers(&class(&["sed file.secret", "sed file.secret write"], &[])));
    }

    #[test]
    fn classes_are_described_in_words() {
        for (class, words) in [
            (class(&["git.commit"], &[]), "every “git commit”"),
            (
                class(&["write_file file.script write"], &[]),
                "every “write_file” writing files of the kind “script”",
            ),
            (
                class(&["git.push --force"], &["origin"]),
                "every “git push” that is asked about because of “--force”, only with origin",
            ),
            (
                class(&["tar", "tar --create", "tar file.secret"], &[]),
                "every “tar” on files of the kind “secret” that is asked about because of “--create”",
            ),
            (class(&["npm.install"], &[CONFIGURED]), "every “npm install”"),
        ] {
            assert_eq!(class.in_words(), words);
        }
    }

    /// A permission for reading a secret is none for writing it, and none for writing its content to an
    /// ordinary file.
    #[test]
    fn a_permission_to_read_covers_no_writing() {
        let command = |words: &[&str]| {
            let params = json!({"command": words[0], "args": words[1..]});
            Policy::builtin()
                .judge_request("execute_command", params, &Roots::relative_only())
                .1
                .class
        };
        let given: [(&[&str], &[&[&str]]); 6] = [
            (
                &["sed", "-n", "p", ".env"],
                &[&["sed", "-n", "w copy.txt", ".env"], &["sed", "-i", "s/a/b/", ".env"]],
            ),
            (
                &["sort", ".env"],
                &[&["sort", "-o", "copy.txt", ".env"], &["sort", "-o", ".env", "a"]],
            ),
            (&["awk", "{print}", ".env"], &[&["awk", "{print > \"copy.txt\"}", ".env"]]),
            (
                &["cp", ".env", "backup.env"],
                &[&["cp", ".env", "plain.txt"], &["cp", ".env", "a/b"]],
            ),
            (&["mv", "old.env", "backup.env"], &[&["mv", "old.env", "plain.txt"]]),
            (&["gcc", "--version"], &[&["gcc", "main.c", "-o", "src/app.py"]]),
        ];
        for (words, others) in given {
            let class = command(words);
            assert!(class.covers(&command(words)), "{words:?}: {class:?}");
            for other in others {
                assert!(!class.covers(&command(other)), "{words:?} {other:?}: {class:?}");
            }
        }
        let mv = |from: &str, to: &str| {
            let params = json!({"from": from, "to": to});
            Policy::builtin().judge_request("move_file", params, &Roots::relative_only()).1.class
        };
        assert!(mv("a.env", "b.env").covers(&mv("c.env", "b.env")));
        assert!(!mv("a.env", "b.env").covers(&mv("a.env", "plain.txt")));
        assert!(!mv("notes.txt", "b.env").covers(&mv("b.env", "notes.txt")));
    }

    /// A permission for local git commands does not reach what decides where `git push` goes.
    #[test]
    fn choosing_the_remote_of_a_branch_is_no_local_git() {
        let is_local = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let params = json!({"command": words[0], "args": words[1..]});
            let roots = Roots::relative_only();
            Policy::builtin().judge_request("execute_command", params, &roots).1.class.local_git
        };
        for line in ["git branch x main", "git checkout -b x", "git switch -c x", "git add -A"] {
            assert!(is_local(line), "{line}");
        }
        for line in [
            "git branch -u fork/main",
            "git branch --set-upstream-to=fork/main",
            "git branch --set-up fork/main",
            "git branch -t x fork/main",
            "git branch --track=inherit x main",
            "git checkout -t fork/main",
            "git checkout -b x --track fork/main",
            "git checkout --guess x",
            "git switch -tc x fork/main",
            "git switch --guess x",
        ] {
            assert!(!is_local(line), "{line}");
        }
    }
}
