//! The tools that an agent may call, as its model sees them.

use atelier_core::{
    AgentConfig, Invalid, WorkspaceKind,
    nearest::suggestion,
    policy::limits::Limits,
    tools::{Offered, Surface, ToolDef, ToolTable, ungated},
};
use atelier_model::ToolSchema;
use serde_json::json;
use std::sync::{Arc, LazyLock};

pub(super) const SEARCH_CONTEXT: &str = ungated::SEARCH_CONTEXT.name;
pub(super) const ADD_CONTEXT: &str = ungated::ADD_CONTEXT.name;
/// Presents files of a conversation to the user.
pub(super) const PRESENT: &str = ungated::PRESENT_FILES.name;
/// The argument that says in which of two workspaces a file tool acts.
pub(super) const WORKSPACE: &str = "workspace";

/// Tools on the user's machine. Built once, because every step sends them to the model.
static ON_MACHINE: LazyLock<Arc<[ToolSchema]>> =
    LazyLock::new(|| gated().map(schema).chain(on_memory().map(schema)).collect());

/// Tools on the user's machine that can also act on the conversation's files.
static ON_MACHINE_AND_CONVERSATION: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let in_either = |tool| match is_on_machine_only(tool) {
        true => schema(tool),
        false => with_workspace(&schema(tool)),
    };
    let others = on_memory().chain(on_own_files());
    gated().map(in_either).chain(others.map(schema)).collect()
});

/// Tools on the conversation's files, which cannot run commands.
static ON_CONVERSATION: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let on_files = gated().filter(|tool| !is_on_machine_only(tool));
    on_files.chain(on_memory()).chain(on_own_files()).map(schema).collect()
});

/// Tools of an agent without any workspace.
static ON_MEMORY: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| on_memory().map(schema).collect());

fn gated() -> impl Iterator<Item = &'static ToolDef> {
    ToolTable::builtin().gated()
}

fn on_memory() -> impl Iterator<Item = &'static ToolDef> {
    ToolTable::builtin().offered(Offered::WithMemory)
}

fn on_own_files() -> impl Iterator<Item = &'static ToolDef> {
    ToolTable::builtin().offered(Offered::WithOwnFiles)
}

fn schema(tool: &ToolDef) -> ToolSchema {
    let parameters = tool.schema(Surface::Gate, "the workspace", &Limits::default());
    ToolSchema::new(tool.name, tool.description, parameters.into())
}

/// The tool with an argument that says in which of two workspaces it acts.
fn with_workspace(tool: &ToolSchema) -> ToolSchema {
    let mut parameters = tool.parameters().clone();
    parameters["properties"][WORKSPACE] = json!({
        "enum": ["client", "conversation"],
        "default": "client",
        "description": "The user's machine, or the files of this conversation",
    });
    ToolSchema::new(&tool.name, tool.description(), parameters)
}

/// The tools of an agent in a conversation. `own_files`: it may use the conversation's files.
pub(super) fn offered(
    config: &AgentConfig,
    workspace: WorkspaceKind,
    own_files: bool,
) -> Arc<[ToolSchema]> {
    let tools = match (workspace, own_files) {
        (WorkspaceKind::Client, false) => &ON_MACHINE,
        (WorkspaceKind::Client, true) => &ON_MACHINE_AND_CONVERSATION,
        (WorkspaceKind::Conversation, true) => &ON_CONVERSATION,
        (WorkspaceKind::Conversation, false) => &ON_MEMORY,
    };
    let wanted = &config.tools;
    if wanted.is_empty() {
        return Arc::clone(tools);
    }
    let is_wanted = |name: &str| wanted.iter().any(|wanted| tool(wanted) == name);
    tools.iter().filter(|tool| tool.name == PRESENT || is_wanted(&tool.name)).cloned().collect()
}

/// Refuses names of tools that no agent can have, with what was probably meant.
pub fn check_tools(names: &[String]) -> Result<(), Invalid> {
    let known: Vec<&str> = ToolTable::builtin().of_agents().map(|tool| tool.name).collect();
    match names.iter().find(|name| !known.contains(&tool(name))) {
        Some(unknown) => {
            let problem =
                format!("there is no tool {unknown:?}: {}", suggestion(tool(unknown), known));
            Err(Invalid::new("config.tools", problem))
        }
        None => Ok(()),
    }
}

/// The name of a tool without the prefix that some models add.
pub(super) fn tool(name: &str) -> &str {
    name.strip_prefix("tool_").unwrap_or(name)
}

/// Whether the tool runs commands or works in a layer, which only machines can.
fn is_on_machine_only(tool: &ToolDef) -> bool {
    tool.runs_commands() || tool.is_layered()
}

/// Whether a tool acts only on the agent's own memory, and so does not need the gate.
pub(super) fn is_about_memory(name: &str) -> bool {
    on_memory().any(|tool| tool.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: &str = "execute_command";

    fn names(tools: &[ToolSchema]) -> Vec<&str> {
        tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn tools_depend_on_the_workspace_and_the_agent() {
        let everything = AgentConfig::default();
        let few = AgentConfig {
            tools: vec!["tool_read_file".into(), COMMAND.into()],
            ..AgentConfig::default()
        };
        let here = offered(&few, WorkspaceKind::Client, false);
        assert_eq!(names(&here), ["read_file", COMMAND]);
        assert!(here[0].parameters()["properties"].get(WORKSPACE).is_none());
        let both = offered(&few, WorkspaceKind::Client, true);
        assert_eq!(names(&both), ["read_file", COMMAND, PRESENT]);
        assert!(both[0].parameters()["properties"].get(WORKSPACE).is_some());
        assert!(both[1].parameters()["properties"].get(WORKSPACE).is_none());
        assert_eq!(
            names(&offered(&few, WorkspaceKind::Conversation, true)),
            ["read_file", PRESENT]
        );
        assert_eq!(
            names(&offered(&everything, WorkspaceKind::Conversation, false)),
            [SEARCH_CONTEXT, ADD_CONTEXT],
            "memory does not depend on a workspace"
        );
        // The memory tools have no workspace.
        let all = offered(&everything, WorkspaceKind::Client, true);
        let memory = all.iter().filter(|tool| is_about_memory(&tool.name));
        assert!(
            memory.clone().count() == 2
                && memory
                    .into_iter()
                    .all(|tool| tool.parameters()["properties"].get(WORKSPACE).is_none())
        );
    }
}
