//! Tools as `tools/available` lists them.

use super::{CardRow, Surface, ToolDef, ToolTable};
use crate::policy::{limits::Limits, verdict::Verdict};
use serde::Serialize;
use serde_json::Value;

/// One tool: what it does, its parameters, and its usual verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolInfo {
    pub name: &'static str,
    /// The tool's name for people, in English.
    pub title: &'static str,
    pub description: &'static str,
    /// JSON Schema of `tool_params`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Value,
    /// The verdict of a call unless its parameters make the call more dangerous.
    pub usual_risk: &'static str,
    pub requires_approval: bool,
    /// Whether the tool runs commands, which are rated one by one.
    pub runs_commands: bool,
    /// The rows of an approval of a call. Names of parameters in braces stand for their values.
    pub card: &'static [CardRow],
    /// A call in one line, with names of parameters in braces.
    pub summary: &'static str,
}

impl ToolDef {
    pub fn info(&self, limits: &Limits) -> ToolInfo {
        let usual = self.usual_verdict();
        ToolInfo {
            name: self.name,
            title: self.title,
            description: self.description,
            parameters: self.schema(Surface::Gate, "the workspace", limits).into(),
            usual_risk: usual.as_str(),
            requires_approval: usual > Verdict::Low,
            runs_commands: self.runs_commands(),
            card: self.card,
            summary: self.summary,
        }
    }
}

impl ToolTable {
    /// The tools that agents can use.
    pub fn available(&self, limits: &Limits) -> Vec<ToolInfo> {
        self.gated().map(|tool| tool.info(limits)).collect()
    }
}
