//! The tools: one definition each, and everything that is derived from it.
//!
//! A definition is data. It has the tool's name, parameters, texts, rating, card and MCP form.
//! Parsing, canonical parameters, digest, JSON Schema, rating, the entry of `tools/available`, the
//! MCP listing and the rows of a card are made from it. To add a tool, add a definition to
//! [`builtin`] and a function to `atelier-executor`.

pub mod builtin;
mod card;
mod info;
pub mod layered;
mod param;
pub(crate) mod parse;
mod schema;
pub mod ungated;

pub use card::{CardRow, fill, quoted};
pub use info::ToolInfo;
pub use param::{Choice, Kind, Param, Presence, TextLimit, TimeLimit};
pub use schema::{Output, OutputKind};

use crate::policy::{Access, verdict::Verdict};
use std::borrow::Cow;

/// Everything about one tool but the code that runs it.
#[derive(Debug)]
pub struct ToolDef {
    /// The name that models and programs use. The console translates the title as `tool.<name>`.
    pub name: &'static str,
    pub title: &'static str,
    /// The description for agents.
    pub description: &'static str,
    /// The parameters, in the order in which they enter the digest.
    pub params: &'static [Param],
    pub effect: Effect,
    pub rating: Rating,
    /// The reason for the rating of a call, unless a rule gives another one.
    pub reason: &'static str,
    /// Whether the machine can show what a call would change before a person decides.
    pub has_preview: bool,
    /// The parameters that an approval shows first.
    pub card: &'static [CardRow],
    /// A call in one line, such as `{source} → {destination}`.
    pub summary: &'static str,
    pub offered: Offered,
    /// The form of the tool in `atelier mcp` and in conversations' MCP mounts, if it is one of the
    /// tools of a workspace there.
    pub mcp: Option<McpForm>,
}

/// The callers that a tool is offered to. [`ToolDef::mcp`] says whether MCP hosts of a workspace
/// may call it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// Agents and projects' MCP hosts, whose calls go through the gate.
    ThroughGate,
    /// Only MCP hosts of a workspace.
    OverMcpOnly,
    /// Agents with a memory, wherever they work.
    WithMemory,
    /// Agents and MCP hosts that use the files of a conversation.
    WithOwnFiles,
    /// Only MCP hosts that use the files of a conversation.
    ToHostsOfOwnFiles,
}

/// The effect of a tool on the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Makes something new. Doing it twice is the same as doing it once.
    Adds,
    /// Replaces something. Doing it twice is the same as doing it once.
    Replaces,
    Changes,
    /// Starts a program, which may do anything that the sandbox allows.
    Runs,
    /// Reads the layer of a conversation.
    ReadsLayer,
    /// Changes the layer of a conversation, and nothing else.
    ChangesLayer,
    /// Puts changes of a layer into the workspace, or takes them back.
    Lands,
    /// Nothing: the tool acts on something beside the workspace, such as an agent's memory.
    ActsBeside,
}

/// How a call is rated before the rules about files apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rating {
    Always(Verdict),
    /// Rated as the policy rates changes: MEDIUM, or less for the files of a conversation.
    Change,
    /// Rated by the rules about commands.
    Command,
    /// Rated by the destinations of the script, and by the mode of the shell.
    Shell,
    /// Rated by the files that the call would change, which only the machine knows.
    Landing,
}

/// The way a call comes. Agents go through the gate; MCP hosts of a workspace use it directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    Gate,
    Mcp,
}

/// The form of a tool where a workspace is served over MCP.
#[derive(Debug)]
pub struct McpForm {
    /// Offered only with `--extra-tools`.
    pub extra: bool,
    pub description: &'static str,
    /// Whether the tool walks a tree, which takes long and can be cancelled.
    pub walks: bool,
    /// The fields of the structured result; empty if the result is only text.
    pub output: &'static [Output],
}

impl ToolDef {
    pub fn param(&self, name: &str) -> Option<&'static Param> {
        self.params.iter().find(|param| param.name == name)
    }

    /// The verdict on a call that no rule about files, commands or conversations changes.
    pub fn usual_verdict(&self) -> Verdict {
        match self.rating {
            Rating::Always(verdict) => verdict,
            Rating::Shell => Verdict::Low,
            Rating::Change | Rating::Command | Rating::Landing => Verdict::Medium,
        }
    }

    pub fn runs_commands(&self) -> bool {
        matches!(self.rating, Rating::Command | Rating::Shell)
    }

    /// Whether the tool works on the layer of a conversation.
    pub fn is_layered(&self) -> bool {
        matches!(self.effect, Effect::ReadsLayer | Effect::ChangesLayer | Effect::Lands)
    }

    /// Whether the tool only reads.
    pub fn only_reads(&self) -> bool {
        matches!(self.effect, Effect::Reads | Effect::ReadsLayer)
    }

    /// Whether the tool opens regular files, so that pipes and devices have to be refused.
    pub fn opens_files(&self) -> bool {
        self.params.iter().any(|param| matches!(param.kind, Kind::File(_)))
    }

    /// Whether the tool takes files away from where they are.
    pub fn removes_files(&self) -> bool {
        self.params.iter().any(|param| param.kind.access() == Some(Access::Remove))
    }

    /// Whether a call can demand that the file has not changed since its caller read it.
    pub fn takes_checksum(&self) -> bool {
        self.params.iter().any(|param| param.kind == Kind::Checksum)
    }

    /// Whether calls of the tool go through the gate.
    pub fn is_gated(&self) -> bool {
        self.offered == Offered::ThroughGate
    }

    pub(crate) fn is_offered(&self, surface: Surface) -> bool {
        match surface {
            Surface::Gate => self.is_gated(),
            Surface::Mcp => self.mcp.is_some(),
        }
    }
}

/// The tools that a program knows.
#[derive(Debug, Clone)]
pub struct ToolTable(Cow<'static, [&'static ToolDef]>);

static BUILTIN: ToolTable = ToolTable(Cow::Borrowed(&builtin::ALL));

impl ToolTable {
    /// The tools that come with Atelier.
    pub fn builtin() -> &'static ToolTable {
        &BUILTIN
    }

    /// The table with one more tool. A tool of the same name is replaced.
    #[must_use]
    pub fn with(&self, tool: &'static ToolDef) -> ToolTable {
        let others = self.0.iter().copied().filter(|other| other.name != tool.name);
        ToolTable(others.chain([tool]).collect())
    }

    /// A tool by its name. Some models write `tool_` before it.
    pub fn get(&self, name: &str) -> Option<&'static ToolDef> {
        let name = name.strip_prefix("tool_").unwrap_or(name);
        self.0.iter().copied().find(|tool| tool.name == name)
    }

    /// The tools that go through the gate.
    pub fn gated(&self) -> impl Iterator<Item = &'static ToolDef> {
        self.offered(Offered::ThroughGate)
    }

    /// The tools that are offered in this way.
    pub fn offered(&self, offered: Offered) -> impl Iterator<Item = &'static ToolDef> {
        self.0.iter().copied().filter(move |tool| tool.offered == offered)
    }

    /// The tools that an agent can have. Which of them it gets depends on its workspace.
    pub fn of_agents(&self) -> impl Iterator<Item = &'static ToolDef> {
        let of_agents = |tool: &&ToolDef| match tool.offered {
            Offered::ThroughGate | Offered::WithMemory | Offered::WithOwnFiles => true,
            Offered::OverMcpOnly | Offered::ToHostsOfOwnFiles => false,
        };
        self.0.iter().copied().filter(of_agents)
    }

    /// The tools of a workspace that is served over MCP, with their forms there.
    pub fn mcp(&self) -> impl Iterator<Item = (&'static ToolDef, &'static McpForm)> {
        self.0.iter().copied().filter_map(|tool| Some((tool, tool.mcp.as_ref()?)))
    }
}

#[cfg(test)]
mod tests;
