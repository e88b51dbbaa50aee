//! The tools an agent may call, as its model is told of them.

use atelier_core::{AgentConfig, InteractionType, WorkspaceKind, policy::catalog::catalog};
use atelier_model::ToolSchema;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

pub(super) const SEARCH_CONTEXT: &str = "search_context";
pub(super) const ADD_CONTEXT: &str = "add_context";
/// Shows files of a conversation to the person.
pub(super) const PRESENT: &str = "present_files";
/// Where a file tool is to act, when there are two places.
pub(super) const PLACE: &str = "workspace";
const COMMAND: &str = "execute_command";

/// Made once: a model is told of them before every step.
static ON_THE_MACHINE: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let gated =
        catalog().into_iter().map(|tool| ToolSchema::new(tool.name, tool.description, tool.parameters));
    gated.chain(about_memory()).collect()
});

/// The same with the conversation's files for a second place.
static IN_BOTH_PLACES: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    let two_places = |tool: &ToolSchema| {
        if tool.name == COMMAND || is_about_memory(&tool.name) {
            return tool.clone();
        }
        let mut parameters = tool.parameters().clone();
        parameters["properties"][PLACE] = json!({
            "enum": ["client", "conversation"],
            "default": "client",
            "description": "The person's machine, or the files of this conversation",
        });
        ToolSchema::new(&tool.name, tool.description(), parameters)
    };
    ON_THE_MACHINE.iter().map(two_places).chain([present()]).collect()
});

/// A conversation has files, and nothing to run commands with.
static IN_THE_CONVERSATION: LazyLock<Arc<[ToolSchema]>> = LazyLock::new(|| {
    ON_THE_MACHINE.iter().filter(|tool| tool.name != COMMAND).cloned().chain([present()]).collect()
});

/// What an agent of this project is offered in a conversation, whose own files it may use or not.
pub(super) fn offered(config: &AgentConfig, place: WorkspaceKind, own_files: bool) -> Arc<[ToolSchema]> {
    let tools = match (place, own_files) {
        (WorkspaceKind::Client, false) => &ON_THE_MACHINE,
        (WorkspaceKind::Client, true) => &IN_BOTH_PLACES,
        (WorkspaceKind::Conversation, true) => &IN_THE_CONVERSATION,
        (WorkspaceKind::Conversation, false) => return Arc::default(),
    };
    let wanted = &config.tools;
    if wanted.is_empty() {
        return Arc::clone(tools);
    }
    let is_wanted = |name: &str| wanted.iter().any(|wanted| tool(wanted) == name);
    tools.iter().filter(|tool| tool.name == PRESENT || is_wanted(&tool.name)).cloned().collect()
}

/// Some models put what kind of thing it is before a tool's name.
pub(super) fn tool(name: &str) -> &str {
    name.strip_prefix("tool_").unwrap_or(name)
}

/// Whether it needs no gate: it reaches the agent's own memory and nothing else.
pub(super) fn is_about_memory(name: &str) -> bool {
    matches!(name, SEARCH_CONTEXT | ADD_CONTEXT)
}

fn about_memory() -> [ToolSchema; 2] {
    let types: Vec<&str> = InteractionType::ALL.map(InteractionType::as_str).to_vec();
    [
        ToolSchema::new(
            SEARCH_CONTEXT,
            "Search your own memory of earlier messages, tasks and tool calls.",
            object(
                &["query"],
                json!({
                    "query": {"type": "string", "description": "What to look for, in any words"},
                    "k": {"type": "integer", "minimum": 1, "maximum": 20, "description": "How many results, 5 by default"},
                    "types": {"type": "array", "items": {"type": "string", "enum": types}},
                    "success": {"type": "boolean", "description": "Only what succeeded, or only what failed"},
                }),
            ),
        ),
        ToolSchema::new(
            ADD_CONTEXT,
            "Note something in your own memory, to find it again in later tasks.",
            object(
                &["text"],
                json!({"text": {"type": "string", "description": "What to remember, in a few sentences"}}),
            ),
        ),
    ]
}

fn present() -> ToolSchema {
    ToolSchema::new(
        PRESENT,
        "Show files of this conversation to the person, who can then download them.",
        object(
            &["paths"],
            json!({
                "paths": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                "description": {"type": "string"},
            }),
        ),
    )
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tools: &[ToolSchema]) -> Vec<&str> {
        tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn an_agent_is_offered_what_it_may_use_where_it_works() {
        let everything = AgentConfig::default();
        let few =
            AgentConfig { tools: vec!["tool_read_file".into(), COMMAND.into()], ..AgentConfig::default() };
        let here = offered(&few, WorkspaceKind::Client, false);
        assert_eq!(names(&here), ["read_file", COMMAND]);
        assert!(here[0].parameters()["properties"].get(PLACE).is_none());
        let both = offered(&few, WorkspaceKind::Client, true);
        assert_eq!(names(&both), ["read_file", COMMAND, PRESENT]);
        assert!(both[0].parameters()["properties"].get(PLACE).is_some());
        assert!(both[1].parameters()["properties"].get(PLACE).is_none());
        assert_eq!(names(&offered(&few, WorkspaceKind::Conversation, true)), ["read_file", PRESENT]);
        assert!(offered(&everything, WorkspaceKind::Conversation, false).is_empty());
        // Memory is in neither place.
        let all = offered(&everything, WorkspaceKind::Client, true);
        let memory = all.iter().filter(|tool| is_about_memory(&tool.name));
        assert!(
            memory.clone().count() == 2
                && memory.into_iter().all(|tool| tool.parameters()["properties"].get(PLACE).is_none())
        );
    }
}
