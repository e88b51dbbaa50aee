//! The environment of a command: PATH, HOME, variables, temporary folder. Nothing is taken from the
//! caller's environment.

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::git::{self, GitIdentity};
use super::temporary::{Temporary, sweep};
use super::{
    CommandLayer, CommandSpec, Isolation, KnownRepository, KnownStore, Outcome, Toolchains,
    detect_isolation,
};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::Workspace;

/// The folders of toolchains come before these. The caller's PATH is never used, because it may
/// contain anything.
const SYSTEM_PATH: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

#[derive(Debug, Clone, Default)]
pub struct RunnerOptions {
    /// The folder for HOME, caches and temporary files of this workspace's commands. It is outside
    /// the workspace.
    pub state_dir: PathBuf,
    pub toolchains: Toolchains,
    pub git: GitIdentity,
    /// Variables from the machine's owner (proxy settings, registries), never from an agent.
    pub environment: Vec<(String, String)>,
}

/// Runs commands in one workspace.
#[derive(Debug)]
pub struct Runner {
    pub(super) home: PathBuf,
    tmp: PathBuf,
    path: Vec<PathBuf>,
    toolchains: Toolchains,
    git: GitIdentity,
    environment: Vec<(String, String)>,
    #[cfg(target_os = "linux")]
    pub(super) system: super::landlock_rules::System,
    /// An empty folder and an empty file, which are mounted over hidden paths.
    pub(super) empty_dir: PathBuf,
    pub(super) empty_file: PathBuf,
    /// Settings that run programs, by repository, with the fingerprint of its configuration.
    pub(super) settings: Mutex<HashMap<PathBuf, (u64, Vec<String>)>>,
    pub(super) histories: Mutex<Vec<KnownRepository>>,
    pub(super) stores: Mutex<Vec<Arc<KnownStore>>>,
    pub(super) folders: Mutex<Option<super::known::KnownFolders>>,
}

impl Runner {
    pub fn new(workspace: &Workspace, options: RunnerOptions) -> Result<Self> {
        let state = private_dir(&options.state_dir)?;
        if state.starts_with(workspace.root()) {
            let path = state.display().to_string();
            return Err(Error::Protected {
                path,
                why: "the state folder of commands must be outside the workspace",
            });
        }
        let toolchains = options.toolchains.outside(workspace.root());
        let mut path: Vec<PathBuf> = toolchains.programs.clone();
        path.extend(SYSTEM_PATH.iter().map(PathBuf::from));
        path.retain(|dir| !dir.starts_with(workspace.root()));
        let tmp = private_dir(&state.join("tmp"))?;
        sweep(&tmp);
        Ok(Self {
            home: private_dir(&state.join("home"))?,
            tmp,
            empty_dir: private_dir(&state.join("empty"))?,
            empty_file: empty_file(&state.join("nothing"))?,
            settings: Mutex::default(),
            histories: Mutex::default(),
            stores: Mutex::default(),
            folders: Mutex::default(),
            path,
            #[cfg(target_os = "linux")]
            system: super::landlock_rules::System::open(&toolchains),
            toolchains,
            git: options.git,
            environment: options.environment,
        })
    }

    pub fn toolchains(&self) -> &Toolchains {
        &self.toolchains
    }

    pub fn isolation(&self) -> Isolation {
        detect_isolation()
    }

    /// Runs a command until it ends, times out or is cancelled. Blocks.
    pub fn run(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        self.run_in(workspace, spec, None, cancel)
    }

    /// Runs a command, in a layer of its own if there is one.
    pub(crate) fn run_in(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        layer: Option<&CommandLayer>,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        if spec.program == "diff" && compares_folders(&spec.args) {
            // A link in a folder can lead to a file that the command does not name, so the links
            // themselves are compared.
            let args = ["--no-dereference".to_owned()].into_iter().chain(spec.args.iter().cloned());
            let spec = CommandSpec { args: args.collect(), ..spec.clone() };
            let environment = self.base_environment(&spec);
            return self.start(workspace, &spec, layer, environment, cancel);
        }
        if spec.program != "git" {
            return self.start(workspace, spec, layer, self.base_environment(spec), cancel);
        }
        // git itself says which helpers the repository names; reading its configuration runs none
        // of them.
        let helpers = self.helpers(workspace, spec, cancel)?;
        let spec = CommandSpec { args: git::arguments(&spec.args), ..spec.clone() };
        let environment = self.git_environment(&spec, &helpers);
        self.start(workspace, &spec, layer, environment, cancel)
    }

    pub(super) fn git_environment(
        &self,
        spec: &CommandSpec,
        neutralised: &[String],
    ) -> Vec<(String, String)> {
        let mut environment = self.base_environment(spec);
        environment.extend(git::environment(&self.git, neutralised, self.lends(spec)));
        environment
    }

    fn lends(&self, spec: &CommandSpec) -> bool {
        spec.program == "git" && spec.network && self.git.credentials.is_some()
    }

    /// Copies the owner's git credentials into the command's own temporary folder, if the command
    /// may use them.
    pub(super) fn lend(&self, spec: &CommandSpec, tmp: &Path) -> Result<()> {
        let Some(file) = self.git.credentials.as_ref().filter(|_| self.lends(spec)) else {
            return Ok(());
        };
        let fail = |source| Error::Io { action: "lend", path: file.display().to_string(), source };
        std::fs::copy(file, tmp.join(git::LENT)).map(drop).map_err(fail)
    }

    /// The variables of a script in a layer, which has its own home.
    #[cfg(target_os = "linux")]
    pub(super) fn script_environment(&self, home: &Path) -> Vec<(String, String)> {
        let mut environment = self.environment_in(home);
        environment.retain(|(name, _)| name != "SHELL");
        for (name, value) in [("SHELL", "/bin/bash"), ("TMPDIR", "/tmp")] {
            environment.push((name.to_owned(), value.to_owned()));
        }
        environment.extend(git::script_environment(&self.git));
        environment
    }

    fn base_environment(&self, spec: &CommandSpec) -> Vec<(String, String)> {
        let mut environment = self.environment_in(&self.home);
        if spec.network {
            environment.extend(self.environment.iter().cloned());
        }
        environment
    }

    fn environment_in(&self, home: &Path) -> Vec<(String, String)> {
        let path =
            self.path.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":");
        let below = |name: &str| home.join(name).display().to_string();
        let mut environment: Vec<(String, String)> = vec![
            ("PATH".to_owned(), path),
            ("HOME".to_owned(), home.display().to_string()),
            ("CARGO_HOME".to_owned(), below(".cargo")),
            ("GOPATH".to_owned(), below("go")),
            ("XDG_CACHE_HOME".to_owned(), below(".cache")),
            ("XDG_CONFIG_HOME".to_owned(), below(".config")),
            ("XDG_DATA_HOME".to_owned(), below(".local/share")),
        ];
        for (name, value) in [
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
            ("NO_COLOR", "1"),
            ("PAGER", "cat"),
            ("SHELL", "/bin/sh"),
            ("USER", "atelier"),
            ("LOGNAME", "atelier"),
            // HOME is kept for later commands, so files that a command wrote there must not
            // configure the next one.
            ("npm_config_userconfig", "/dev/null"),
            ("PIP_CONFIG_FILE", "/dev/null"),
            ("npm_config_update_notifier", "false"),
            ("npm_config_fund", "false"),
            ("npm_config_audit", "false"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_NO_INPUT", "1"),
            ("PYTHONUNBUFFERED", "1"),
        ] {
            environment.push((name.to_owned(), value.to_owned()));
        }
        environment.extend(self.toolchains.variables.iter().cloned());
        environment
    }

    /// The program's file. A program inside the workspace is refused, because an agent may have put
    /// it there.
    pub(super) fn find(&self, workspace: &Workspace, program: &str) -> Result<PathBuf> {
        let unknown = || Error::CommandNotFound { program: program.to_owned() };
        if program.is_empty() || program.contains(['/', '\0']) || program.starts_with('.') {
            return Err(unknown());
        }
        for dir in &self.path {
            let candidate = dir.join(program);
            let Ok(meta) = candidate.metadata() else { continue };
            if !meta.is_file() || meta.mode() & 0o111 == 0 {
                continue;
            }
            let real = candidate.canonicalize().map_err(|_| unknown())?;
            if real.starts_with(workspace.root()) {
                return Err(Error::ProgramInWorkspace { program: program.to_owned() });
            }
            return Ok(candidate);
        }
        Err(unknown())
    }

    /// A folder for one run. It is deleted when the value is dropped.
    pub(super) fn temporary(&self) -> Result<Temporary> {
        Temporary::new(&self.tmp)
    }
}

/// Whether diff compares whole folders. A wrong yes only makes it compare links.
fn compares_folders(args: &[String]) -> bool {
    let mut options = args.iter().take_while(|arg| *arg != "--");
    options.any(|arg| match arg.strip_prefix("--") {
        Some(long) => long.starts_with("rec"),
        None => arg.starts_with('-') && arg.contains('r'),
    })
}

/// Creates an empty file, unless it exists.
fn empty_file(path: &Path) -> Result<PathBuf> {
    let fail = |source| Error::Io { action: "make", path: path.display().to_string(), source };
    std::fs::write(path, b"").map_err(fail)?;
    Ok(path.to_owned())
}

/// Creates a folder for this user only, and returns its path without links.
fn private_dir(path: &Path) -> Result<PathBuf> {
    let fail = |source| Error::Io { action: "make", path: path.display().to_string(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
    path.canonicalize().map_err(fail)
}
