//! What a server's owner may add to the rules, and how a project may tighten them.

use super::{
    FileClass, RuleFile,
    limits::Limits,
    verdict::{Judgement, Verdict},
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A server's own rules, in the form of the built-in ones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Extension {
    pub rules: RuleFile,
    pub files: Vec<FileClass>,
    pub limits: Option<Limits>,
}

/// A project's stricter wishes. Keys are tools (`delete_file`), commands (`npm`) or sub-commands (`git push`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Narrowing {
    pub deny: Vec<String>,
    pub at_least: BTreeMap<String, Verdict>,
    /// Commands that need the network are refused.
    pub no_network: bool,
}

impl Narrowing {
    /// Joins the wishes that concern a call of these rules into its judgement.
    pub(super) fn apply(&self, judgement: Judgement, rules: &[&str]) -> Judgement {
        let concerns = |key: &String| rules.iter().any(|rule| same(key, rule));
        let mut judgement = judgement;
        if let Some(key) = self.deny.iter().find(|key| concerns(key)) {
            judgement = judgement.stricter(refused(&format!("This project does not allow {key}.")));
        }
        if self.no_network && judgement.network {
            judgement = judgement.stricter(refused("This project allows no network."));
        }
        let floor =
            self.at_least.iter().filter(|(key, _)| concerns(key)).max_by_key(|(_, verdict)| **verdict);
        if let Some((key, verdict)) = floor {
            let raised = match verdict {
                Verdict::Deny => refused(&format!("This project does not allow {key}.")),
                verdict => Judgement::new(
                    *verdict,
                    format!("{} project", judgement.rule),
                    format!("This project rates {key} as {verdict}."),
                ),
            };
            judgement = judgement.stricter(raised);
        }
        judgement
    }
}

fn refused(reason: &str) -> Judgement {
    Judgement::denied("command_not_allowed", "project", format!("Command not allowed: {reason}"))
}

/// `git push` is the rule `git.push`, and `git` all that begins with `git.`.
fn same(key: &str, rule: &str) -> bool {
    let alike = |(k, r): (u8, u8)| k == r || (k == b' ' && r == b'.');
    key.len() <= rule.len()
        && key.bytes().zip(rule.bytes()).all(alike)
        && matches!(rule.as_bytes().get(key.len()), None | Some(b'.'))
}
