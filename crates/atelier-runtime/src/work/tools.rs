//! The tools that an agent may call, as its model sees them.

use crate::own_files::{PRESENT_FILES, PRESENT_FILES_DESCRIPTION, present_files_schema};
use atelier_core::{
    AgentConfig, InteractionType, Invalid, WorkspaceKind, nearest::suggestion,
    policy::limits::Limits, tools::ToolTable,
};
use atelier_model::ToolSchema;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

pub(super) const SEARCH_CONTEXT: &str = "search_context";
pub(super) const ADD_CONTEXT: &str = "add_context";
/// Presents files of a conversation to the user.
pub(super) const PRESENT: &str = PRESENT_FILES;
/// The argument that says in which of two workspaces a file tool acts.
pub(super) const WORKSPACE: &str = "workspace";

/// Tools on the user's machine. Built once, because every step sends them to the model.
static ON_MACHINE: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let gated = ToolTable::builtin().available(&Limits::default()).into_iter();
    let gated = gated.map(|tool| ToolSchema::new(tool.name, tool.description, tool.parameters));
    gated.chain(about_memory()).collect()
});

/// Tools on the user's machine that can also act on the conversation's files.
static ON_MACHINE_AND_CONVERSATION: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let with_workspace = |tool: &ToolSchema| {
        if is_on_machine_only(&tool.name) || is_about_memory(&tool.name) {
            return tool.clone();
        }
        let mut parameters = tool.parameters().clone();
        parameters["properties"][WORKSPACE] = json!({
            "enum": ["client", "conversation"],
            "default": "client",
            "description": "The user's machine, or the files of this conversation",
        });
        ToolSchema::new(&tool.name, tool.description(), parameters)
    };
    ON_MACHINE.iter().map(with_workspace).chain([present()]).collect()
});

/// Tools on the conversation's files, which cannot run commands.
static ON_CONVERSATION: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    ON_MACHINE
        .iter()
        .filter(|tool| !is_on_machine_only(&tool.name))
        .cloned()
        .chain([present()])
        .collect()
});

/// Tools of an agent without any workspace.
static ON_MEMORY: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| about_memory().into());

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
    let known = || ON_MACHINE.iter().map(|tool| tool.name.as_str()).chain([PRESENT]);
    match names.iter().find(|name| !known().any(|known| known == tool(name))) {
        Some(unknown) => {
            let known: Vec<&str> = known().collect();
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
fn is_on_machine_only(name: &str) -> bool {
    let tool = ToolTable::builtin().get(name);
    tool.is_some_and(|tool| tool.runs_commands() || tool.is_layered())
}

/// Whether a tool acts only on the agent's own memory, and so does not need the gate.
pub(super) fn is_about_memory(name: &str) -> bool {
    matches!(name, SEARCH_CONTEXT | ADD_CONTEXT)
}

fn about_memory() -> [ToolSchema; 2] {
    let types: Vec<&str> = InteractionType::ALL.map(InteractionType::as_str).to_vec();
    [
        ToolSchema::new(
            SEARCH_CONTEXT,
            "Search your memory of earlier messages, tasks and tool calls.",
            object(
                &["query"],
                json!({
                    "query": {"type": "string", "description": "What to look for, in your own \
                        words"},
                    "k": {"type": "integer", "minimum": 1, "maximum": 20, "description": "The \
                        largest number of results, 5 by default"},
                    "types": {"type": "array", "items": {"type": "string", "enum": types}},
                    "success": {"type": "boolean", "description": "Only interactions that \
                        succeeded, or only those that failed"},
                }),
            ),
        ),
        ToolSchema::new(
            ADD_CONTEXT,
            "Add a note to your memory, to find it again in later tasks.",
            object(
                &["text"],
                json!({"text": {"type": "string", "description": "What to remember, in a few \
                    sentences"}}),
            ),
        ),
    ]
}

fn present() -> ToolSchema {
    ToolSchema::new(PRESENT, PRESENT_FILES_DESCRIPTION, present_files_schema())
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
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
