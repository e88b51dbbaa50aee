//! Running a program for an agent: no shell, a clean environment, walls around it, and an end to it.

mod asking;
#[cfg(target_os = "linux")]
mod fence;
#[cfg(target_os = "linux")]
mod filter;
mod git;
mod isolation;
#[cfg(target_os = "linux")]
mod launch;
mod output;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(target_os = "linux")]
mod run;
mod surroundings;
mod temporary;
mod toolchain;

use std::path::PathBuf;
use std::time::Duration;

use atelier_core::isolation::Isolation;
use atelier_core::path::WorkspacePath;
use serde::Serialize;

pub(crate) use asking::{GitAnswer, ScannedHistory};
pub use git::GitIdentity;
pub(crate) use git::{at_hooks, configures};
pub use isolation::detect_isolation;
pub use surroundings::{Runner, RunnerOptions};
pub use toolchain::Toolchains;

/// What a command may do to the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Looks only: every LOW command.
    ReadOnly,
    /// Writes to the workspace; runs programs in it.
    Workspace,
}

/// One command, as it was approved.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    /// A bare name, looked up in the fixed PATH.
    pub program: String,
    pub args: Vec<String>,
    pub cwd: WorkspacePath,
    pub timeout: Duration,
    pub access: Access,
    pub network: bool,
    /// Of standard output and standard error together, in bytes.
    pub output_limit: usize,
    /// Paths below the root that the command must not see.
    pub hidden: Vec<PathBuf>,
    /// Folders of hooks, which git must not see, either; what is around them can be moved all the same.
    pub hooks: Vec<PathBuf>,
    /// Paths below the root that it must not change, although it may change what is around them.
    pub read_only: Vec<PathBuf>,
}

impl CommandSpec {
    /// With the specification's limits, looking only.
    pub fn new(program: impl Into<String>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
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
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    /// By a signal that was not ours.
    Killed(i32),
    TimedOut,
    Cancelled,
}

#[derive(Debug, Clone)]
pub struct Outcome {
    pub ending: Ending,
    pub stdout: String,
    pub stderr: String,
    /// Something was left out of either.
    pub truncated: bool,
    /// How much it really printed.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub elapsed: Duration,
    pub isolation: Isolation,
    pub access: Access,
    pub network: bool,
}
