//! The rules that a server's owner may add, and the restrictions of servers, projects and machines.

use super::{
    FileClass, RuleFile,
    limits::Limits,
    verdict::{Judgement, Verdict},
};
use crate::{Invalid, failure::FailureCode, tools::layered::SHELL};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A server's own rules, in the form of the built-in ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Extension {
    /// Commands whose built-in rules apply only if a server lists them here: `curl`, `wget`.
    pub allow: Vec<String>,
    /// Rules for commands, written like the built-in ones.
    pub rules: RuleFile,
    /// Kinds of files, with a verdict each.
    pub files: Vec<FileClass>,
    /// Limits of tool calls, in place of the built-in ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The server's restrictions of all other rules.
    pub narrow: Restrictions,
}

impl Extension {
    /// Commands that the server allows in addition, or rates by rules of its own.
    pub fn commands(&self) -> BTreeSet<&str> {
        let own = self.rules.command.iter().filter_map(|rule| rule.name.split(' ').next());
        self.allow.iter().map(String::as_str).chain(own).collect()
    }

    /// The part that applies on a machine whose owner accepts only these commands: their rules, and
    /// everything that is stricter than the machine's own rules. So a server can restrict a
    /// machine, but loosens its rules only as far as the machine's owner accepts.
    #[must_use]
    pub fn accepted(&self, accept: &[String], own: &Limits) -> Extension {
        let named = |name: &str| {
            accept.iter().any(|accepted| Some(accepted.as_str()) == name.split(' ').next())
        };
        let mut extension = self.clone();
        extension.allow.retain(|name| named(name));
        extension.rules.command.retain(|rule| named(&rule.name));
        extension.limits = self.limits.as_ref().map(|limits| limits.stricter(own));
        extension
    }
}

/// Tools and commands that a server, a project or a machine's owner forbids or rates higher. Keys
/// are tools (`delete_file`), commands (`npm`) or subcommands (`git push`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restrictions {
    /// Tools, commands and subcommands that are denied.
    pub deny: Vec<String>,
    /// The lowest verdict that these tools, commands and subcommands get.
    pub at_least: BTreeMap<String, Verdict>,
    /// Commands that need the network are denied.
    pub no_network: bool,
    /// Whether scripts may run in a layer: `free`, `ask` or `off`. The strictest of server,
    /// project, machine and the machine's isolation applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellMode>,
}

/// Whether scripts may run in a layer. Modes are ordered by strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellMode {
    /// Scripts run without a question, unless they ask for the network.
    Free,
    /// Every script is asked about.
    Ask,
    /// No script runs.
    Off,
}

/// Who set a restriction. The reason of a refusal names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestrictionSource {
    Server,
    Project,
    Machine,
}

impl RestrictionSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Project => "project",
            Self::Machine => "machine",
        }
    }
}

impl Restrictions {
    /// The restrictions in the `policy` setting of a project, if it has that setting.
    pub fn from_setting(policy: Option<&Value>) -> Result<Option<Self>, Invalid> {
        let Some(policy) = policy else { return Ok(None) };
        let read = Self::deserialize(policy).map(Some);
        read.map_err(|error| Invalid::new("settings.policy", error.to_string()))
    }

    /// Applies these restrictions to the judgement of a call. `rules` are the names that
    /// restrictions can use for the call: its tool, command and subcommand.
    pub(super) fn apply(
        &self,
        source: RestrictionSource,
        judgement: Judgement,
        rules: &[&str],
    ) -> Judgement {
        let source = source.as_str();
        let denied = |reason: String| {
            let reason = format!("Command not allowed: {reason}");
            Judgement::denied(FailureCode::CommandNotAllowed, source, reason)
        };
        let concerns = |key: &String| rules.iter().any(|rule| names(key, rule));
        let mut judgement = judgement;
        if let Some(key) = self.deny.iter().find(|key| concerns(key)) {
            judgement = judgement.stricter(denied(format!("This {source} does not allow {key}.")));
        }
        if self.no_network && judgement.network {
            judgement =
                judgement.stricter(denied(format!("This {source} allows no network access.")));
        }
        if let Some(mode) = self.shell
            && rules.contains(&SHELL.name)
            && let Some(limited) = mode.judgement(&format!("this {source}"))
        {
            judgement = judgement.stricter(limited);
        }
        let minimum = self
            .at_least
            .iter()
            .filter(|(key, _)| concerns(key))
            .max_by_key(|(_, verdict)| **verdict);
        if let Some((key, verdict)) = minimum.filter(|(_, verdict)| **verdict > judgement.verdict) {
            let raised = match verdict {
                Verdict::Deny => denied(format!("This {source} does not allow {key}.")),
                verdict => {
                    let named = |rule: &String| format!("{rule} {source}");
                    let reason = format!("This {source} rates {key} as {verdict}.");
                    let mut raised = Judgement::new(*verdict, named(&judgement.rule), reason);
                    // Earlier findings stay in the class, now with the higher verdict.
                    raised.class.findings.extend(judgement.class.findings.iter().map(named));
                    raised
                }
            };
            judgement = judgement.stricter(raised);
        }
        judgement
    }

    /// A key that names no tool or command. It is probably a typing error and would protect
    /// nothing.
    pub(super) fn unused_key<'a>(&'a self, rules: &[&str]) -> Option<&'a str> {
        let keys = self.deny.iter().chain(self.at_least.keys());
        keys.map(String::as_str).find(|key| !rules.iter().any(|rule| names(key, rule)))
    }
}

/// Whether a key names a rule: `git push` names `git.push`, and `git` names every rule of git.
fn names(key: &str, rule: &str) -> bool {
    let alike = |(k, r): (u8, u8)| k == r || (k == b' ' && r == b'.');
    key.len() <= rule.len()
        && key.bytes().zip(rule.bytes()).all(alike)
        && matches!(rule.as_bytes().get(key.len()), None | Some(b'.'))
}
