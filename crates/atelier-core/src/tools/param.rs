//! The parameters of tools.

use crate::policy::{Access, limits::Limits};

/// One parameter of a tool.
#[derive(Debug)]
pub struct Param {
    pub name: &'static str,
    /// Other names that the gate accepts.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    pub presence: Presence,
    /// The description for models. `{root}` stands for the name of the workspace.
    pub description: &'static str,
    /// The description for MCP hosts, if they get another one.
    pub mcp_description: Option<&'static str>,
    pub(super) on_gate: bool,
    pub(super) on_mcp: bool,
}

/// The kind of a parameter, which decides how it is checked, digested and described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The path of a regular file, and how it is used.
    File(Access),
    /// The path of a file or directory. A slash at its end is not part of the digest.
    Path(Access),
    /// The path of a file or directory. A slash at its end says that it is a directory.
    Entry(Access),
    Text(TextLimit),
    /// A glob, and how the files that match are used, if the policy has to know.
    Glob(Option<Access>),
    /// A whole number. A larger one counts as the maximum.
    Number {
        most: u64,
    },
    /// Seconds, within the limit of the policy.
    Timeout(TimeLimit),
    Flag,
    /// One of these values. The first is the default.
    Choice(&'static [Choice]),
    /// The checksum of a file, as results have it.
    Checksum,
    /// Replacements of text in a file.
    Edits,
    /// A list of texts.
    Words,
    /// A list of names from this set.
    Names(&'static [&'static str]),
    /// A list of host names. They are kept in lower case, in order and once each.
    Hosts,
    /// A list of paths in the workspace. How they are used depends on the layer.
    Paths,
    /// The id of a call, a task or a conversation.
    Id,
}

/// The limit of the policy that applies to a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    Command,
    Shell,
}

impl TimeLimit {
    /// The longest time in seconds.
    pub(super) fn most(self, limits: &Limits) -> u32 {
        match self {
            Self::Command => limits.timeout_max,
            Self::Shell => limits.shell_timeout_max,
        }
    }
}

/// One value of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub name: &'static str,
    pub alias: Option<&'static str>,
}

/// How long a text may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextLimit {
    None,
    /// As large as a file that may be written.
    File,
    /// As long as an argument of a command.
    Argument,
    /// As long as an argument of a command, for a regular expression.
    Pattern,
    /// As long as a script that a shell runs.
    Script,
}

/// Whether a call has to have the parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Required,
    Optional,
    /// The parameter can be left out. Then it is the root, zero, false, the first choice or the
    /// empty list.
    Default,
    /// The parameter has a default in the gate and is required over MCP.
    GateDefault,
}

impl Param {
    pub const fn required(name: &'static str, kind: Kind, description: &'static str) -> Param {
        Param {
            name,
            aliases: &[],
            kind,
            presence: Presence::Required,
            description,
            mcp_description: None,
            on_gate: true,
            on_mcp: true,
        }
    }

    pub const fn optional(name: &'static str, kind: Kind, description: &'static str) -> Param {
        Param { presence: Presence::Optional, ..Param::required(name, kind, description) }
    }

    pub const fn default(name: &'static str, kind: Kind, description: &'static str) -> Param {
        Param { presence: Presence::Default, ..Param::required(name, kind, description) }
    }

    pub const fn gate_default(name: &'static str, kind: Kind, description: &'static str) -> Param {
        Param { presence: Presence::GateDefault, ..Param::required(name, kind, description) }
    }

    pub const fn aliases(self, aliases: &'static [&'static str]) -> Param {
        Param { aliases, ..self }
    }

    pub const fn mcp_description(self, text: &'static str) -> Param {
        Param { mcp_description: Some(text), ..self }
    }

    /// The parameter is not offered over MCP.
    pub const fn gate_only(self) -> Param {
        Param { on_mcp: false, ..self }
    }

    /// The parameter is not offered in the gate.
    pub const fn mcp_only(self) -> Param {
        Param { on_gate: false, ..self }
    }

    pub(crate) fn is_on(&self, surface: super::Surface) -> bool {
        match surface {
            super::Surface::Gate => self.on_gate,
            super::Surface::Mcp => self.on_mcp,
        }
    }

    pub(super) fn is_required(&self, surface: super::Surface) -> bool {
        match self.presence {
            Presence::Required => true,
            Presence::GateDefault => surface == super::Surface::Mcp,
            Presence::Optional | Presence::Default => false,
        }
    }
}

impl Kind {
    /// How the path is used, if the parameter is one.
    pub fn access(self) -> Option<Access> {
        match self {
            Kind::File(access) | Kind::Path(access) | Kind::Entry(access) => Some(access),
            _ => None,
        }
    }
}

impl Choice {
    pub const fn new(name: &'static str) -> Choice {
        Choice { name, alias: None }
    }
}
