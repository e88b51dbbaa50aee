//! Tools as the protocol lists them, from their definitions.

use std::sync::Arc;

use atelier_core::policy::limits::Limits;
use atelier_core::tools::{Effect, Surface, ToolDef, ToolTable};
use rmcp::model::{Tool, ToolAnnotations};

use crate::served::Settings;

/// The tools of a workspace with these settings.
pub(crate) fn workspace_tools(settings: &Settings) -> Vec<Tool> {
    let offered = settings.table().mcp().filter(|(tool, form)| {
        (settings.extra_tools || !form.extra) && (!settings.read_only || tool.only_reads())
    });
    let listed = offered.map(|(tool, form)| {
        let schema = tool.schema(Surface::Mcp, &settings.root_name, &Limits::default());
        let mut listed = Tool::new(tool.name, form.description, Arc::new(schema));
        listed.output_schema = form.output_schema().map(Arc::new);
        annotated(listed, tool)
    });
    listed.collect()
}

/// The tools that go through the gate.
pub(crate) fn gated_tools(tools: &ToolTable, limits: &Limits) -> Vec<Tool> {
    let listed = tools.gated().map(|tool| {
        let schema = tool.schema(Surface::Gate, "the workspace", limits);
        annotated(Tool::new(tool.name, tool.description, Arc::new(schema)), tool)
    });
    listed.collect()
}

/// A tool that acts beside the workspace of its mount.
pub(crate) fn ungated_tool(tool: &ToolDef) -> Tool {
    let schema = tool.schema(Surface::Mcp, "the workspace", &Limits::default());
    annotated(Tool::new(tool.name, tool.description, Arc::new(schema)), tool)
}

fn annotated(mut listed: Tool, tool: &ToolDef) -> Tool {
    listed.title = Some(tool.title.to_owned());
    listed.annotations = Some(
        ToolAnnotations::with_title(tool.title)
            .read_only(tool.only_reads())
            .destructive(
                !tool.only_reads() && !matches!(tool.effect, Effect::Adds | Effect::ActsBeside),
            )
            .idempotent(tool.only_reads() || matches!(tool.effect, Effect::Adds | Effect::Replaces))
            .open_world(tool.runs_commands()),
    );
    listed
}
