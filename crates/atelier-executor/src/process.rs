//! Runs a program for an agent: without a shell, with a clean environment, in a sandbox, and with a
//! time limit.

#[cfg(target_os = "linux")]
mod filter;
mod for_person;
mod git;
mod git_queries;
mod isolation;
mod known;
#[cfg(target_os = "linux")]
mod landlock_rules;
#[cfg(target_os = "linux")]
mod launch;
mod output;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(target_os = "linux")]
mod run;
mod runner;
#[cfg(target_os = "linux")]
mod running;
#[cfg_attr(not(target_os = "linux"), path = "process/no_scripts.rs")]
mod script;
#[cfg(target_os = "linux")]
mod script_end;
mod script_values;
mod temporary;
mod toolchain;
#[cfg(target_os = "linux")]
mod way_out;

use std::path::PathBuf;
use std::time::Duration;

use atelier_core::isolation::Isolation;
use atelier_core::path::WorkspacePath;
use serde::Serialize;

pub use for_person::run_for_person;
pub use git::GitIdentity;
pub(crate) use git::{at_hooks, configures, folder};
pub(crate) use git_queries::{GitAnswer, SETTINGS};
pub use isolation::detect_isolation;
pub(crate) use known::{
    FolderLook, FolderStamp, History, KnownRepository, KnownStore, Seal, SecretRules,
};
pub(crate) use output::{Kept, texts};
pub use runner::{Runner, RunnerOptions};
#[cfg(not(target_os = "linux"))]
pub(crate) use script::{
    collect, is_locked, read_report, stop_script, wait_for_holder, wait_for_script,
};
#[cfg(target_os = "linux")]
pub(crate) use script_end::{
    collect, is_locked, read_report, stop_script, wait_for_holder, wait_for_script,
};
pub(crate) use script_values::{Interrupted, LayerPlaces, ScriptEnding, ScriptSpec};
pub(crate) use temporary::{Temporary, open_up, sweep};
pub use toolchain::Toolchains;

/// Whether a command may change the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// The command only reads. Every LOW command is of this kind.
    ReadOnly,
    /// The command may write to the workspace and run programs in it.
    Workspace,
}

/// Where the changes of a command go that runs in a layer of its own.
#[derive(Debug, Clone)]
pub(crate) struct CommandLayer {
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
}

/// One command, as it was approved.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    /// A name without a path, which is looked up in the fixed PATH.
    pub program: String,
    pub args: Vec<String>,
    pub cwd: WorkspacePath,
    pub timeout: Duration,
    pub access: Access,
    pub network: bool,
    /// The limit for standard output and standard error together, in bytes.
    pub output_limit: usize,
    /// Paths below the root that the command must not see.
    pub hidden: Vec<PathBuf>,
    /// Folders of git hooks, which are hidden from git. The folders around them can still be moved.
    pub hooks: Vec<PathBuf>,
    /// Paths below the root that the command must not change, although it may change the files
    /// around them.
    pub read_only: Vec<PathBuf>,
    /// Paths below the root whose parent folders the command must not move.
    pub in_place: Vec<PathBuf>,
}

impl CommandSpec {
    /// A read-only command with the default limits.
    pub fn new(
        program: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            cwd: WorkspacePath::root(),
            timeout: Duration::from_secs(30),
            access: Access::ReadOnly,
            network: false,
            output_limit: 1 << 20,
            hidden: Vec::new(),
            hooks: Vec::new(),
            read_only: Vec::new(),
            in_place: Vec::new(),
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    /// Killed by a signal that we did not send.
    Killed(i32),
    TimedOut,
    Cancelled,
}

#[derive(Debug, Clone)]
pub struct Outcome {
    pub ending: Ending,
    pub stdout: String,
    pub stderr: String,
    /// Whether a part of either output was left out.
    pub truncated: bool,
    /// How many bytes the command really printed.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub elapsed: Duration,
    pub isolation: Isolation,
    pub access: Access,
    pub network: bool,
}
