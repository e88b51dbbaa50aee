//! A workspace on this machine, with the rules that apply in it.

use crate::{
    error::{Error, Result},
    rules::ClientRules,
};
use atelier_core::{
    FailureCode,
    gate::ToolOutcome,
    path::Roots,
    policy::{
        Extension, Policy, RestrictionSource,
        call::ToolCall,
        verdict::{Judgement, Verdict},
    },
};
use atelier_executor::{
    AgingLayer, Approval, Cancel, Functions, GitIdentity, LayerOptions, Layers, Options, Origin,
    Runner, RunnerOptions, Toolchains, Tools, Workspace,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

pub struct LocalWorkspace {
    workspace: Workspace,
    runner: Runner,
    roots: Roots,
    layers: Layers,
    policy: Cow<'static, Policy>,
    /// The path as the user wrote it, made absolute.
    display_path: String,
    /// Commands that the server allows and that this machine's owner has not accepted.
    unaccepted: Vec<String>,
}

impl LocalWorkspace {
    /// Opens a workspace with the built-in rules, for the person at the keyboard.
    pub fn open(root: &Path) -> Result<Self> {
        let policy = Cow::Borrowed(Policy::builtin());
        // Jobs of the person at the keyboard outlive the command that starts them.
        let layers = LayerOptions { detached: true, ..ClientRules::load()?.layer_options() };
        Self::with(root, policy, GitIdentity::default(), Vec::new(), layers)
    }

    /// Opens a workspace for agents. The server's own rules apply as far as the owner of this
    /// machine accepts them, and the owner's rules come on top.
    pub fn guarded(root: &Path, rules: &ClientRules, server: &Extension) -> Result<Self> {
        let builtin = Policy::builtin();
        // The owner's rules may also name commands of the server that are not accepted here.
        let all = builtin.extended(server).map_err(Error::ServerRules)?;
        all.check_restrictions(&rules.policy).map_err(Error::OwnRules)?;
        let accepted = server.accepted(&rules.accept, builtin.limits());
        let policy = builtin.extended(&accepted).map_err(Error::ServerRules)?;
        let policy =
            Cow::Owned(policy.restricted(RestrictionSource::Machine, rules.policy.clone()));
        let environment = rules.environment.clone().into_iter().collect();
        let known = accepted.commands();
        let unaccepted = server.commands().into_iter().filter(|name| !known.contains(name));
        let unaccepted = unaccepted.map(str::to_owned).collect();
        Ok(Self {
            unaccepted,
            ..Self::with(root, policy, rules.git_identity(), environment, rules.layer_options())?
        })
    }

    fn with(
        root: &Path,
        policy: Cow<'static, Policy>,
        git: GitIdentity,
        environment: Vec<(String, String)>,
        options: LayerOptions,
    ) -> Result<Self> {
        let unusable = |source| Error::Workspace { path: root.to_owned(), source };
        let workspace = Workspace::open(root, Options::default()).map_err(unusable)?;
        let display_path = std::path::absolute(root).map_err(Error::io("find", root))?;
        let display_path = display_path.to_string_lossy().into_owned();
        let roots = Roots::announced(display_path.clone()).also(workspace.root().to_string_lossy());
        let home = dirs::home_dir().unwrap_or_default();
        let commands = RunnerOptions {
            state_dir: commands_state(workspace.root())?,
            toolchains: Toolchains::detect(&home, |name| std::env::var(name).ok()),
            git,
            environment,
        };
        let runner = Runner::new(&workspace, commands).map_err(unusable)?;
        let layers = Layers::open(&layers_state(workspace.root())?, &workspace, options)
            .map_err(unusable)?;
        let unaccepted = Vec::new();
        Ok(Self { workspace, runner, roots, layers, policy, display_path, unaccepted })
    }

    /// The tools for calls of the person at the keyboard.
    pub fn tools(&self) -> Tools<'_> {
        self.tools_for(Origin::local())
    }

    /// The tools for calls that come from here. The origin decides which layer they use.
    pub(crate) fn tools_for<'a>(&'a self, origin: &'a Origin) -> Tools<'a> {
        let Self { workspace, runner, roots, policy, .. } = self;
        Tools {
            workspace,
            runner: Some(runner),
            policy,
            roots,
            functions: Functions::builtin(),
            layers: Some(&self.layers),
            origin,
        }
    }

    /// What to say of layers that nobody uses. Those of which that was said in time are dropped.
    pub(crate) fn review_layers(&self) -> Vec<String> {
        match self.layers.review() {
            Ok(aging) => aging.iter().map(in_words).collect(),
            Err(error) => vec![format!("old layers cannot be looked at: {error}")],
        }
    }

    /// Removes the layer of a conversation that is gone, and ends its jobs. What has landed stays.
    pub(crate) fn end_layer(&self, key: &str) -> atelier_executor::Result<()> {
        self.layers.end(key)
    }

    pub(crate) fn root(&self) -> &Path {
        self.workspace.root()
    }

    pub(crate) fn display_path(&self) -> &str {
        &self.display_path
    }

    pub(crate) fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Parses a call by the rules of this machine.
    pub(crate) fn parse(&self, tool: &str, params: Value) -> Result<ToolCall, ToolOutcome> {
        let (call, judgement) = self.policy.judge_request(tool, params, &self.roots);
        call.map_err(|_| ToolOutcome::refused(&judgement))
    }

    /// The outcome of a call that does not run here. It says who can change that.
    pub(crate) fn refused(&self, call: &ToolCall, judgement: Judgement) -> ToolOutcome {
        let reason = match call.command() {
            Some(command)
                if judgement.verdict == Verdict::Deny
                    && self.unaccepted.contains(&command.command) =>
            {
                format!(
                    "The server allows {0}, but the owner of this machine has not accepted it. To \
                     accept it, set accept = [{0:?}] in client.toml.",
                    command.command
                )
            }
            _ => judgement.reason,
        };
        ToolOutcome::refused(&Judgement { reason, ..judgement })
    }

    /// The verdict on a call, with links in its paths resolved.
    pub fn judge(&self, tool: &str, params: Value) -> Judgement {
        let (call, judgement) = self.policy.judge_request(tool, params, &self.roots);
        call.map_or(judgement, |call| self.tools().judge(&call))
    }

    /// Runs a call for the person at the keyboard: everything below DENY is allowed.
    pub fn run(&self, tool: &str, params: Value) -> ToolOutcome {
        self.run_in(Origin::local(), tool, params)
    }

    /// Runs a call for the person at the keyboard, in the layer of this origin.
    pub fn run_in(&self, origin: &Origin, tool: &str, params: Value) -> ToolOutcome {
        let call = match self.parse(tool, params) {
            Ok(call) => call,
            Err(refusal) => return refusal,
        };
        match Cancel::new() {
            Ok(cancel) => self.tools_for(origin).execute(&call, &Approval::full(), &cancel),
            Err(error) => ToolOutcome::failed(FailureCode::IoError, error.to_string()),
        }
    }
}

fn in_words(layer: &AgingLayer) -> String {
    let whose = match layer.key.as_deref() {
        None => "a conversation".to_owned(),
        Some("local") => "`atelier tool`".to_owned(),
        Some(key) => format!("conversation {key}"),
    };
    let used = layer.last_used.format("%Y-%m-%d");
    match layer.until {
        None => format!("the layer of {whose} was dropped; it was last used on {used}"),
        Some(until) => format!(
            "the layer of {whose} has changes that did not land and was last used on {used}; it is \
             dropped on {} unless you use it: `atelier changes` shows it",
            until.format("%Y-%m-%d")
        ),
    }
}

/// The folder for HOME, caches and temporary files of commands. It is kept between calls, outside
/// the workspace.
fn commands_state(root: &Path) -> Result<PathBuf> {
    let caches = dirs::cache_dir().ok_or(Error::NoHome)?;
    Ok(caches.join("atelier/workspaces").join(short_hash(&[root.as_os_str().as_encoded_bytes()])))
}

/// The folder for layers and for what is kept to undo changes. It is no cache: it holds work that
/// has not landed yet.
fn layers_state(root: &Path) -> Result<PathBuf> {
    let state = dirs::state_dir().or_else(dirs::data_local_dir).ok_or(Error::NoHome)?;
    let name = short_hash(&[root.as_os_str().as_encoded_bytes()]);
    Ok(state.join("atelier/workspaces").join(name))
}

/// A short name for a folder, from values of any length.
pub(crate) fn short_hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
