//! Runs calls of tools. A call that was judged and approved goes in, its outcome comes out.
//!
//! The server judged the call's text. Here it is judged again with links resolved, the stricter
//! verdict stands, and a call that turns out to need more than was approved is not run.

mod answer;
mod commands;
mod functions;
mod history;
mod judge;
mod kind;
mod layered;
mod new_repositories;
mod other_names;
mod patches;
mod path_restrictions;
mod planted;
mod repository;
mod seal;

use atelier_core::FailureCode;
use atelier_core::gate::ToolOutcome;
use atelier_core::path::Roots;
use atelier_core::policy::Policy;
use atelier_core::policy::call::{self, ToolCall};
use atelier_core::policy::class::CallClass;
use atelier_core::policy::verdict::{Judgement, Verdict};

pub use functions::{Function, Functions, ReadyCall};
pub use judge::Preview;
pub use layered::Origin;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::layer::Layers;
use crate::process::Runner;
use crate::workspace::Workspace;
use crate::write::{Edit, Expect};
use judge::Judged;

/// Everything that is needed to run a call.
#[derive(Debug, Clone, Copy)]
pub struct Tools<'a> {
    pub workspace: &'a Workspace,
    /// Runs commands. Without it, no command runs.
    pub runner: Option<&'a Runner>,
    pub policy: &'a Policy,
    /// The absolute names under which callers may address the workspace.
    pub roots: &'a Roots,
    /// The functions that run the tools.
    pub functions: &'a Functions,
    /// The layers of the workspace. Without them, no script runs.
    pub layers: Option<&'a Layers>,
    /// Where the call comes from.
    pub origin: &'a Origin,
}

/// The approval of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The strictest verdict that may run. LOW if nobody was asked.
    pub up_to: Verdict,
    /// Everything that was known about the call then. Empty if only the verdict counts.
    pub class: CallClass,
    /// For a write: the file it was shown against.
    pub expect: Expect,
}

impl Approval {
    /// The approval of a call about which nobody was asked.
    pub fn none() -> Self {
        Self { up_to: Verdict::Low, class: CallClass::default(), expect: Expect::Anything }
    }

    /// The approval of a call that a person makes directly.
    pub fn full() -> Self {
        Self { up_to: Verdict::High, class: CallClass::default(), expect: Expect::Anything }
    }

    /// Whether a call with this judgement is covered by the approval: it is not riskier, and
    /// nothing more was found about it.
    pub fn allows(&self, judgement: &Judgement) -> bool {
        let known = self.class.findings.is_empty() || self.class.covers(&judgement.class);
        judgement.verdict != Verdict::Deny
            && judgement.verdict <= self.up_to
            && (judgement.verdict < self.up_to || known)
    }
}

impl Tools<'_> {
    /// Judges the call again and runs it if the approval allows it. It never panics or hangs, so
    /// every call gets an answer.
    pub fn execute(&self, call: &ToolCall, approval: &Approval, cancel: &Cancel) -> ToolOutcome {
        let judged = self.judge_whole(call);
        let judgement = &judged.judgement;
        if !approval.allows(judgement) {
            return ToolOutcome::refused(judgement);
        }
        self.run(call, judged, approval, cancel).unwrap_or_else(|error| ToolOutcome::from(&error))
    }

    fn run(
        &self,
        call: &ToolCall,
        judged: Judged,
        approval: &Approval,
        cancel: &Cancel,
    ) -> Result<ToolOutcome> {
        match self.functions.get(call.name()) {
            Some(function) => {
                let expect = &approval.expect;
                let ready = ReadyCall { tools: self, call, judged, expect, cancel, approval };
                self.keeping(call, || function(&ready))
            }
            None => {
                let words = format!("{} cannot be run here", call.name());
                Ok(ToolOutcome::failed(FailureCode::UnknownTool, words))
            }
        }
    }
}

/// Converts the edits of a call to those of the executor.
fn exact(edits: &[call::Edit]) -> Vec<Edit> {
    edits
        .iter()
        .map(|edit| Edit {
            old: edit.old_text.clone(),
            new: edit.new_text.clone(),
            count: (!edit.replace_all).then_some(1),
        })
        .collect()
}
