//! Plans in the form that the orchestrator requests, with a task for each request in the message.

use super::intent::{Intent, intents};
use crate::Request;
use serde_json::{Value, json};

/// `{tasks: [{id, description, agent, depends_on}]}`; `None` if the request lists no agents.
pub(super) fn plan(request: &Request, message: &str) -> Option<Value> {
    let agents = agents(request);
    let first = agents.first()?;
    let intents = intents(message);
    if intents.is_empty() {
        return Some(json!({"tasks": [
            {"id": "1", "description": message.trim(), "agent": first, "depends_on": []}
        ]}));
    }
    // A request after "then" waits for all requests between it and the previous "then".
    let (mut waits_for, mut stage) = (Vec::new(), Vec::new());
    let task = |(at, intent): (usize, &Intent)| {
        if intent.afterwards {
            waits_for = std::mem::take(&mut stage);
        }
        let id = (at + 1).to_string();
        stage.push(id.clone());
        json!({
            "id": id,
            "description": intent.words,
            "agent": fitting(intent, &agents).unwrap_or(first),
            "depends_on": waits_for,
        })
    };
    let tasks: Vec<Value> = intents.iter().enumerate().map(task).collect();
    Some(json!({"tasks": tasks}))
}

/// The agents in the schema's `enum`, or else those that the system prompt lists as `- name: …`.
fn agents(request: &Request) -> Vec<String> {
    let listed = request.format.as_ref().and_then(|format| {
        let names =
            format.schema.pointer("/properties/tasks/items/properties/agent/enum")?.as_array()?;
        Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>())
    });
    listed.filter(|names| !names.is_empty()).unwrap_or_else(|| {
        let name = |line: &str| {
            let entry = line.trim().strip_prefix(['-', '*'])?.trim_start();
            let end = entry
                .find(|c: char| c == ':' || c == ',' || c.is_whitespace())
                .unwrap_or(entry.len());
            let name = entry[..end].trim_matches(['`', '*', '"']);
            (!name.is_empty()).then(|| name.to_owned())
        };
        request.system.lines().filter_map(name).collect()
    })
}

/// The starter agent that fits the request best; `None` if it is not among the agents.
fn fitting<'a>(intent: &Intent, agents: &'a [String]) -> Option<&'a String> {
    let prose = [".md", ".txt", ".rst"];
    let writes_prose = intent.arguments["path"]
        .as_str()
        .is_some_and(|path| prose.iter().any(|end| path.to_lowercase().ends_with(end)));
    let role = match intent.tool {
        "write_file" | "edit_file" if writes_prose => "writer",
        "grep" | "search_files" => "researcher",
        "read_file" | "list_directory" | "get_file_info" => "analyzer",
        _ => "coder",
    };
    agents.iter().find(|agent| agent.contains(role))
}
