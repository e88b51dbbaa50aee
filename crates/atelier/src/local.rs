//! A workspace on this machine, for the commands that look at one or act in it.

use anyhow::{Context, Result};
use atelier_core::{
    path::Roots,
    policy::{Policy, verdict::Judgement},
};
use atelier_executor::{
    Approval, Cancel, GitIdentity, Options, Runner, RunnerOptions, ToolResult, Toolchains, Tools, Workspace,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

pub(crate) struct Local {
    workspace: Workspace,
    runner: Runner,
    roots: Roots,
}

impl Local {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let workspace = Workspace::open(root, Options::default())
            .with_context(|| format!("cannot use {} as a workspace", root.display()))?;
        let given = std::path::absolute(root)?;
        let roots = Roots::announced(workspace.root().to_string_lossy()).also(given.to_string_lossy());
        let home = dirs::home_dir().unwrap_or_default();
        let options = RunnerOptions {
            state_dir: state_dir(workspace.root())?,
            toolchains: Toolchains::detect(&home, |name| std::env::var(name).ok()),
            git: GitIdentity::default(),
            environment: Vec::new(),
        };
        let runner = Runner::new(&workspace, options).context("cannot prepare to run commands")?;
        Ok(Self { workspace, runner, roots })
    }

    fn tools(&self) -> Tools<'_> {
        let Self { workspace, runner, roots } = self;
        Tools { workspace, runner, policy: Policy::builtin(), roots }
    }

    /// The verdict on the text of a call and on where its paths really lead.
    pub(crate) fn judge(&self, tool: &str, params: Value) -> Judgement {
        let (call, judgement) = Policy::builtin().judge_request(tool, params, &self.roots);
        call.map_or(judgement, |call| self.tools().judge(&call))
    }

    /// Runs a call as the person at the keyboard: everything below DENY.
    pub(crate) fn run(&self, tool: &str, params: Value) -> Result<ToolResult> {
        let (call, judgement) = Policy::builtin().judge_request(tool, params, &self.roots);
        Ok(match call {
            Ok(call) => self.tools().execute(&call, &Approval::full(), &Cancel::new()?),
            Err(_) => ToolResult::refused(&judgement),
        })
    }
}

/// HOME, caches and temporary files of a workspace's commands: kept from call to call, never in it.
fn state_dir(root: &Path) -> Result<PathBuf> {
    let caches = dirs::cache_dir().context("there is no home folder for caches")?;
    let mut name = String::new();
    for byte in &Sha256::digest(root.as_os_str().as_encoded_bytes())[..8] {
        write!(name, "{byte:02x}")?;
    }
    Ok(caches.join("atelier/workspaces").join(name))
}
