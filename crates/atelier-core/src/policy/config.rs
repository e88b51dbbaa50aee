//! What a server's owner may add to the rules, and how a project may tighten them.

use super::{
    FileClass, RuleFile,
    limits::Limits,
    verdict::{Judgement, Verdict},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A server's own rules, in the form of the built-in ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Extension {
    /// Commands whose rules come with Atelier and are in force only where somebody wants them: `curl`, `wget`.
    pub allow: Vec<String>,
    /// Rules for commands, written like the built-in ones.
    pub rules: RuleFile,
    /// Kinds of files, with a verdict each.
    pub files: Vec<FileClass>,
    /// Limits of tool calls, in place of the built-in ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// What it does not want of the rest.
    pub narrow: Narrowing,
}

impl Extension {
    /// Commands that it adds, or judges by rules of its own.
    pub fn commands(&self) -> BTreeSet<&str> {
        let own = self.rules.command.iter().filter_map(|rule| rule.name.split(' ').next());
        self.allow.iter().map(String::as_str).chain(own).collect()
    }

    /// As much of it as a machine takes on whose owner accepts only these commands: those, and everything that makes
    /// its own rules stricter. A server can tighten what runs there, but loosen only what its owner named.
    #[must_use]
    pub fn accepted(&self, accept: &[String], own: &Limits) -> Extension {
        let named =
            |name: &str| accept.iter().any(|accepted| Some(accepted.as_str()) == name.split(' ').next());
        let mut extension = self.clone();
        extension.allow.retain(|name| named(name));
        extension.rules.command.retain(|rule| named(&rule.name));
        extension.limits = self.limits.as_ref().map(|limits| limits.stricter(own));
        extension
    }
}

/// The stricter wishes of a project or of a machine's owner. Keys are tools (`delete_file`), commands (`npm`) or sub-commands (`git push`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Narrowing {
    /// Tools, commands and sub-commands that are denied.
    pub deny: Vec<String>,
    /// Tools, commands and sub-commands with the lowest verdict that they get.
    pub at_least: BTreeMap<String, Verdict>,
    /// Commands that need the network are refused.
    pub no_network: bool,
}

/// Whose wishes they are, for the words of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wisher {
    Server,
    Project,
    Machine,
}

impl Wisher {
    fn word(self) -> &'static str {
        match self {
            Wisher::Server => "server",
            Wisher::Project => "project",
            Wisher::Machine => "machine",
        }
    }
}

impl Narrowing {
    /// Joins the wishes that concern a call of these rules into its judgement.
    pub(super) fn apply(&self, whose: Wisher, judgement: Judgement, rules: &[&str]) -> Judgement {
        let whose = whose.word();
        let refused = |reason: String| {
            Judgement::denied("command_not_allowed", whose, format!("Command not allowed: {reason}"))
        };
        let concerns = |key: &String| rules.iter().any(|rule| same(key, rule));
        let mut judgement = judgement;
        if let Some(key) = self.deny.iter().find(|key| concerns(key)) {
            judgement = judgement.stricter(refused(format!("This {whose} does not allow {key}.")));
        }
        if self.no_network && judgement.network {
            judgement = judgement.stricter(refused(format!("This {whose} allows no network.")));
        }
        let floor =
            self.at_least.iter().filter(|(key, _)| concerns(key)).max_by_key(|(_, verdict)| **verdict);
        if let Some((key, verdict)) = floor {
            let raised = match verdict {
                Verdict::Deny => refused(format!("This {whose} does not allow {key}.")),
                verdict => Judgement::new(
                    *verdict,
                    format!("{} {whose}", judgement.rule),
                    format!("This {whose} rates {key} as {verdict}."),
                ),
            };
            judgement = judgement.stricter(raised);
        }
        judgement
    }
}

impl Narrowing {
    /// A wish that concerns nothing there is: a slip of the pen that would protect nothing.
    pub(super) fn idle<'a>(&'a self, rules: &[&str]) -> Option<&'a str> {
        let keys = self.deny.iter().chain(self.at_least.keys());
        keys.map(String::as_str).find(|key| !rules.iter().any(|rule| same(key, rule)))
    }
}

/// `git push` is the rule `git.push`, and `git` all that begins with `git.`.
fn same(key: &str, rule: &str) -> bool {
    let alike = |(k, r): (u8, u8)| k == r || (k == b' ' && r == b'.');
    key.len() <= rule.len()
        && key.bytes().zip(rule.bytes()).all(alike)
        && matches!(rule.as_bytes().get(key.len()), None | Some(b'.'))
}
