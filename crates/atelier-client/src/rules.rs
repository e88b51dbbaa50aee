//! `~/.config/atelier/client.toml`: rules of the machine's owner, which apply whatever a server
//! says.
//!
//! ```toml
//! parallel = 4                       # how many commands run at the same time
//! accept = ["curl"]                  # commands for which the server's own rules apply; default: none
//!
//! [policy]                           # can only be stricter than the built-in rules
//! deny = ["git push", "delete_file"]
//! at_least = { npm = "high" }
//! no_network = false
//!
//! [environment]                      # for commands with network access: proxies, registries
//! npm_config_registry = "https://registry.example"
//!
//! [git]                              # author of commits; default: your git configuration
//! name = "Ann"
//! email = "ann@example.org"
//! credentials = "~/.git-credentials" # for approved git commands with network access; default: none
//!
//! [layers]
//! keep_days = 30                     # how long a layer is kept that nobody uses
//! ```

use crate::error::{Error, Result};
use atelier_core::policy::Restrictions;
use atelier_executor::{GitIdentity, LayerOptions};
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
    /// Commands for which a server's own rules apply here. Stricter rules of the server always
    /// apply.
    pub accept: Vec<String>,
    pub policy: Restrictions,
    /// Environment variables for commands that may use the network.
    pub environment: BTreeMap<String, String>,
    git: Git,
    layers: LayerRules,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LayerRules {
    /// For how many days a layer is kept that nobody uses. `atelier connect` says so at least seven
    /// days before it drops one. The default is 30.
    keep_days: u32,
    /// How many bytes a layer may hold. The default is 10 GiB.
    max_bytes: u64,
    /// How many files a layer may change. The default is a million.
    max_files: u64,
    /// For how many days the way back of changes is kept. The default is 30.
    undo_days: u32,
    /// How many bytes are kept for the way back of changes. The default is 2 GiB.
    undo_bytes: u64,
}

impl Default for LayerRules {
    fn default() -> Self {
        let LayerOptions { keep_days, max_bytes, max_files, undo_days, undo_bytes, .. } =
            LayerOptions::default();
        Self { keep_days, max_bytes, max_files, undo_days, undo_bytes }
    }
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
            policy: Restrictions::default(),
            environment: BTreeMap::new(),
            git: Git::default(),
            layers: LayerRules::default(),
        }
    }
}

impl ClientRules {
    /// Reads the file; without one, only the built-in rules apply. A file that cannot be parsed is
    /// an error, because the owner's rules must not be ignored silently.
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

    /// Reports invalid settings at the start instead of when a call fails.
    fn checked(self) -> Result<Self, String> {
        if !(1..=64).contains(&self.parallel) {
            return Err(format!("parallel is {}: it must be between 1 and 64", self.parallel));
        }
        let LayerRules { keep_days, max_bytes, max_files, .. } = self.layers;
        if keep_days == 0 || max_bytes == 0 || max_files == 0 {
            return Err("layers: keep_days, max_bytes and max_files must be at least 1".to_owned());
        }
        let ours = |name: &&String| {
            ["PATH", "HOME", "TMPDIR", ""].contains(&name.as_str())
                || ["LD_", "GIT_"].iter().any(|start| name.starts_with(start))
                || name.contains(['=', '\0'])
        };
        if let Some(name) = self.environment.keys().find(ours) {
            return Err(format!(
                "environment: {name:?} cannot be set, because Atelier sets it for commands"
            ));
        }
        match self.credentials().map(|file| (std::fs::metadata(&file), file)) {
            Some((Err(error), file)) => {
                Err(format!("git.credentials: {}: {error}", file.display()))
            }
            _ => Ok(self),
        }
    }

    /// How much of layers is kept, and for how long.
    pub(crate) fn layer_options(&self) -> LayerOptions {
        let LayerRules { keep_days, max_bytes, max_files, undo_days, undo_bytes } = self.layers;
        LayerOptions {
            keep_days,
            max_bytes,
            max_files,
            undo_days,
            undo_bytes,
            ..LayerOptions::default()
        }
    }

    fn credentials(&self) -> Option<PathBuf> {
        let home = dirs::home_dir().unwrap_or_default();
        self.git.credentials.as_ref().map(|file| match file.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => file.into(),
        })
    }

    /// Name and e-mail of the user, and credentials if configured. Nothing else of the user's git
    /// configuration is used.
    pub(crate) fn git_identity(&self) -> GitIdentity {
        let own = dirs::home_dir().map(|home| own_identity(&home)).unwrap_or_default();
        let Git { name, email, .. } = self.git.clone();
        GitIdentity {
            name: name.or(own.name),
            email: email.or(own.email),
            credentials: self.credentials(),
        }
    }
}

fn own_identity(home: &Path) -> Git {
    let files = [home.join(".config/git/config"), home.join(".gitconfig")];
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.fold(Git::default(), |known, text| {
        let found = identity_in(&text);
        Git {
            name: found.name.or(known.name),
            email: found.email.or(known.email),
            credentials: None,
        }
    })
}

/// Name and e-mail in the `[user]` section. Lines that need more of git's syntax are ignored.
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
    fn only_the_identity_is_read() {
        let text = "[core]\n\tname = no\n[user]\n\tname = Ann Smith\n\temail = \"ann@example.org\"\n[alias]\nemail = x";
        let found = identity_in(text);
        assert_eq!(
            (found.name.as_deref(), found.email.as_deref()),
            (Some("Ann Smith"), Some("ann@example.org"))
        );
    }

    /// The example in the manual is valid.
    #[test]
    fn example_in_the_manual_is_valid() {
        let manual = include_str!("../../../docs/gate.md");
        let text = manual.split("`~/.config/atelier/client.toml` holds").nth(1).unwrap();
        let text = text.split("```toml\n").nth(1).unwrap();
        let rules: ClientRules = toml::from_str(text.split("```").next().unwrap()).unwrap();
        Policy::builtin().check_restrictions(&rules.policy).unwrap();
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
            ("[layers]\nkeep_days = 0", "keep_days"),
            ("[environment]\nLD_PRELOAD = \"x\"", "LD_PRELOAD"),
            ("[environment]\nPATH = \"x\"", "PATH"),
            ("[git]\ncredentials = \"/nowhere/at/all\"", "/nowhere/at/all"),
        ] {
            let why = checked(text).unwrap_err();
            assert!(why.contains(about), "{why}");
        }
    }
}
