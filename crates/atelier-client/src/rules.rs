//! `~/.config/atelier/client.toml`: what the owner of this machine wants, whatever any server says.
//!
//! ```toml
//! parallel = 4                       # commands at a time
//! accept = ["curl"]                  # commands that a server may add, or judge by its own rules; none otherwise
//!
//! [policy]                           # only ever stricter than the built-in rules
//! deny = ["git push", "delete_file"]
//! at_least = { npm = "high" }
//! no_network = false
//!
//! [environment]                      # for commands that have the network: proxies, registries
//! npm_config_registry = "https://registry.example"
//!
//! [git]                              # who commits; otherwise as your own git configuration says
//! name = "Ann"
//! email = "ann@example.org"
//! credentials = "~/.git-credentials" # lent to approved git commands that use the network; none otherwise
//! ```

use crate::error::{Error, Result};
use atelier_core::policy::Narrowing;
use atelier_executor::GitIdentity;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientRules {
    /// How many commands may run at the same time.
    pub parallel: usize,
    /// Commands for which a server's own rules are good here. Everything that makes rules stricter is anyway.
    pub accept: Vec<String>,
    pub policy: Narrowing,
    /// Environment variables for commands that may use the network.
    pub environment: BTreeMap<String, String>,
    git: Git,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Git {
    /// The author's name of commits.
    name: Option<String>,
    /// The author's e-mail address of commits.
    email: Option<String>,
    /// A file in git's own format whose credentials approved git commands with network may use.
    credentials: Option<String>,
}

impl Default for ClientRules {
    fn default() -> Self {
        Self {
            parallel: 4,
            accept: Vec::new(),
            policy: Narrowing::default(),
            environment: BTreeMap::new(),
            git: Git::default(),
        }
    }
}

impl ClientRules {
    /// What the machine's owner wrote down, or nothing beyond the built-in rules. A file that cannot be
    /// understood is an error: rules that were meant to hold must not silently be none.
    pub fn load() -> Result<Self> {
        let path = dirs::config_dir().ok_or(Error::NoHome)?.join("atelier/client.toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let rules = toml::from_str(&text).map_err(|error| error.to_string());
                rules.and_then(Self::checked).map_err(|why| Error::Unusable { path, why })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// What cannot be meant, or would not be done, is said now rather than when a call fails.
    fn checked(self) -> Result<Self, String> {
        if !(1..=64).contains(&self.parallel) {
            return Err(format!("parallel: {} is not between 1 and 64", self.parallel));
        }
        let ours = |name: &&String| {
            ["PATH", "HOME", "TMPDIR", ""].contains(&name.as_str())
                || ["LD_", "GIT_"].iter().any(|start| name.starts_with(start))
                || name.contains(['=', '\0'])
        };
        if let Some(name) = self.environment.keys().find(ours) {
            return Err(format!("environment: {name:?} is not yours to set: commands get their own"));
        }
        match self.credentials().map(|file| (std::fs::metadata(&file), file)) {
            Some((Err(error), file)) => Err(format!("git.credentials: {}: {error}", file.display())),
            _ => Ok(self),
        }
    }

    fn credentials(&self) -> Option<PathBuf> {
        let home = dirs::home_dir().unwrap_or_default();
        self.git.credentials.as_ref().map(|file| match file.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => file.into(),
        })
    }

    /// The user's name and e-mail, and credentials only if they said so; nothing else of their git configuration.
    pub(crate) fn git_identity(&self) -> GitIdentity {
        let own = dirs::home_dir().map(|home| own_identity(&home)).unwrap_or_default();
        let Git { name, email, .. } = self.git.clone();
        GitIdentity { name: name.or(own.name), email: email.or(own.email), credentials: self.credentials() }
    }
}

fn own_identity(home: &Path) -> Git {
    let files = [home.join(".config/git/config"), home.join(".gitconfig")];
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.fold(Git::default(), |known, text| {
        let found = identity_in(&text);
        Git { name: found.name.or(known.name), email: found.email.or(known.email), credentials: None }
    })
}

/// The plain lines of a `[user]` section. What git would need more to understand is left out.
fn identity_in(text: &str) -> Git {
    let mut identity = Git::default();
    let mut in_user = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            in_user = line.eq_ignore_ascii_case("[user]");
        } else if in_user && let Some((key, value)) = line.split_once('=') {
            let value = value.trim().trim_matches('"');
            let plain = !value.is_empty() && !value.contains(['\\', '#', ';', '"']);
            let value = plain.then(|| value.to_owned());
            match key.trim().to_ascii_lowercase().as_str() {
                "name" => identity.name = value,
                "email" => identity.email = value,
                _ => {}
            }
        }
    }
    identity
}

#[cfg(test)]
mod tests {
    use super::*;
    use atelier_core::policy::Policy;

    #[test]
    fn the_identity_is_read_and_nothing_else() {
        let text = "[core]\n\tname = no\n[user]\n\tname = Ann Smith\n\temail = \"ann@example.org\"\n[alias]\nemail = x";
        let found = identity_in(text);
        assert_eq!(
            (found.name.as_deref(), found.email.as_deref()),
            (Some("Ann Smith"), Some("ann@example.org"))
        );
    }

    /// What the manual shows is what a machine takes.
    #[test]
    fn the_example_in_the_manual_works() {
        let manual = include_str!("../../../docs/gate.md");
        let text = manual.split("`~/.config/atelier/client.toml`:\n\n```toml\n").nth(1).unwrap();
        let rules: ClientRules = toml::from_str(text.split("```").next().unwrap()).unwrap();
        Policy::builtin().check_wishes(&rules.policy).unwrap();
        assert_eq!(rules.checked().unwrap().policy.deny, ["git push", "delete_file"]);
    }

    #[test]
    fn rules_are_read_strictly() {
        let rules: ClientRules =
            toml::from_str("[policy]\ndeny = [\"git push\"]\n[environment]\na = \"b\"").unwrap();
        assert_eq!((rules.parallel, rules.policy.deny), (4, vec!["git push".to_owned()]));
        assert!(toml::from_str::<ClientRules>("[polizy]").is_err());
        let checked = |text: &str| toml::from_str::<ClientRules>(text).unwrap().checked().map(drop);
        assert_eq!(checked("[environment]\nHTTPS_PROXY = \"x\""), Ok(()));
        for (text, about) in [
            ("parallel = 0", "parallel"),
            ("[environment]\nLD_PRELOAD = \"x\"", "LD_PRELOAD"),
            ("[environment]\nPATH = \"x\"", "PATH"),
            ("[git]\ncredentials = \"/nowhere/at/all\"", "/nowhere/at/all"),
        ] {
            let why = checked(text).unwrap_err();
            assert!(why.contains(about), "{why}");
        }
    }
}
