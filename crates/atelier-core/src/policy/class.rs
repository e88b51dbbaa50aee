//! The class of a call: what a standing permission for calls like it covers.

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
    /// All rules that gave the call its verdict, such as `tar` and `tar file.secret`. Findings with
    /// a lower verdict are left out.
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

    /// Adds another class at the same verdict.
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
        let kind = |about: &'_ str| about.strip_prefix("file.").map(|kind| format!("“{kind}”"));
        let kinds: BTreeSet<String> = abouts().filter_map(kind).collect();
        if !kinds.is_empty() {
            words += &format!(" on files of the kind {}", joined(&kinds));
        }
        let is_folder = |about: &&str| about.ends_with("/**") || *about == "*";
        let folders: BTreeSet<String> =
            abouts().filter(is_folder).map(|folder| format!("“{folder}”")).collect();
        if !folders.is_empty() {
            words += &format!(" on files in {}", joined(&folders));
        }
        let others: BTreeSet<String> = abouts()
            .filter(|about| kind(about).is_none() && !is_folder(about))
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

fn split(rule: &str) -> (&str, &str) {
    rule.split_once(' ').unwrap_or((rule, ""))
}

fn joined(parts: &BTreeSet<String>) -> String {
    parts.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::{CONFIGURED, CallClass};

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
    fn classes_are_described_in_words() {
        for (class, words) in [
            (class(&["git.commit"], &[]), "every “git commit”"),
            (
                class(&["write_file file.script"], &[]),
                "every “write_file” on files of the kind “script”",
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
}
