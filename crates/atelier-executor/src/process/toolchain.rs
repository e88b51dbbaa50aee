//! Compilers and interpreters in a user's home. They are found, listed and made readable; nothing
//! else in the home is.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// The toolchains that were found. Every command can read these folders, so `atelier connect` lists
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Toolchains {
    pub folders: Vec<PathBuf>,
    /// Folders that come before the system's folders in PATH.
    pub programs: Vec<PathBuf>,
    pub variables: Vec<(String, String)>,
}

/// Folders below HOME that contain only programs. A folder that also contains credentials
/// (`~/.cargo`, `~/.config`) must not be listed here.
const PLAIN: &[(&str, &str)] = &[
    (".volta", ".volta/bin"),
    (".deno/bin", ".deno/bin"),
    (".bun/bin", ".bun/bin"),
    (".local/share/mise", ".local/share/mise/shims"),
    (".asdf", ".asdf/shims"),
    (".sdkman/candidates", ".sdkman/candidates/java/current/bin"),
];

impl Toolchains {
    /// Looks for toolchains below `home`. `variable` returns the value of an environment variable.
    pub fn detect(home: &Path, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut found = Self::default();
        let folder = |name: &str, usual: &str| {
            variable(name).map_or_else(|| home.join(usual), PathBuf::from)
        };
        let (rustup, cargo) = (folder("RUSTUP_HOME", ".rustup"), folder("CARGO_HOME", ".cargo"));
        if found.add(&rustup, None) {
            found.variables.push(("RUSTUP_HOME".to_owned(), rustup.display().to_string()));
        }
        found.add(&cargo.join("bin"), Some(cargo.join("bin")));
        found.add_versioned(&folder("NVM_DIR", ".nvm"), "versions/node", "alias/default");
        found.add_versioned(&folder("PYENV_ROOT", ".pyenv"), "versions", "version");
        found.add_versioned(&home.join(".rbenv"), "versions", "version");
        for go in [Path::new("/usr/local/go"), &home.join("sdk/go"), &home.join(".local/go")] {
            found.add(go, Some(go.join("bin")));
        }
        for (root, programs) in PLAIN {
            found.add(&home.join(root), Some(home.join(programs)));
        }
        for package in ["/opt/node", "/opt/nodejs", "/opt/homebrew", "/home/linuxbrew/.linuxbrew"] {
            found.add(Path::new(package), Some(Path::new(package).join("bin")));
        }
        found
    }

    /// Removes toolchains inside or around the workspace, because an agent can write there.
    #[must_use]
    pub(super) fn outside(mut self, workspace: &Path) -> Self {
        let apart = |path: &PathBuf| !path.starts_with(workspace) && !workspace.starts_with(path);
        self.folders.retain(apart);
        self.programs.retain(|path| !path.starts_with(workspace));
        self
    }

    fn add(&mut self, folder: &Path, programs: Option<PathBuf>) -> bool {
        let Ok(folder) = folder.canonicalize() else { return false };
        self.folders.push(folder);
        self.programs.extend(programs.filter(|path| path.is_dir()));
        true
    }

    /// Version managers: the default version, or else the newest. Their shims are shell scripts
    /// that search the home folder, so the version's own programs are used.
    fn add_versioned(&mut self, root: &Path, versions: &str, chosen: &str) {
        let versions = root.join(versions);
        let Ok(listed) = versions.read_dir() else { return };
        let mut names: Vec<String> =
            listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| {
            name.split(|c: char| !c.is_ascii_digit())
                .filter_map(|part| part.parse().ok())
                .collect::<Vec<u64>>()
        });
        let chosen = std::fs::read_to_string(root.join(chosen)).unwrap_or_default();
        let chosen = chosen.split_whitespace().next().unwrap_or_default().trim_start_matches('v');
        let is_chosen =
            |name: &&String| !chosen.is_empty() && name.trim_start_matches('v').starts_with(chosen);
        if let Some(version) = names.iter().rfind(is_chosen).or(names.last()) {
            self.add(&versions, Some(versions.join(version).join("bin")));
        }
    }
}
