//! A plan as the orchestrator asks for one: a task for each request in the message.

use super::wish::{Wish, wishes};
use crate::Request;
use serde_json::{Value, json};

/// `{tasks: [{id, description, agent, depends_on}]}`; `None` when there is nobody to give a task to.
pub(super) fn plan(request: &Request, message: &str) -> Option<Value> {
    let agents = agents(request);
    let first = agents.first()?;
    let wishes = wishes(message);
    if wishes.is_empty() {
        return Some(json!({"tasks": [
            {"id": "1", "description": message.trim(), "agent": first, "depends_on": []}
        ]}));
    }
    // What comes "then" waits for everything that was said before it, back to the last "then".
    let (mut waits_for, mut stage) = (Vec::new(), Vec::new());
    let task = |(at, wish): (usize, &Wish)| {
        if wish.afterwards {
            waits_for = std::mem::take(&mut stage);
        }
        let id = (at + 1).to_string();
        stage.push(id.clone());
        json!({
            "id": id,
            "description": wish.words,
            "agent": fitting(wish, &agents).unwrap_or(first),
            "depends_on": waits_for,
        })
    };
    let tasks: Vec<Value> = wishes.iter().enumerate().map(task).collect();
    Some(json!({"tasks": tasks}))
}

/// Who there is: the schema's own list, or else what the system prompt lists as `- name: …`.
fn agents(request: &Request) -> Vec<String> {
    let listed = request.format.as_ref().and_then(|format| {
        let names = format.schema.pointer("/properties/tasks/items/properties/agent/enum")?.as_array()?;
        Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>())
    });
    listed.filter(|names| !names.is_empty()).unwrap_or_else(|| {
        let name = |line: &str| {
            let entry = line.trim().strip_prefix(['-', '*'])?.trim_start();
            let end = entry.find(|c: char| c == ':' || c == ',' || c.is_whitespace()).unwrap_or(entry.len());
            let name = entry[..end].trim_matches(['`', '*', '"']);
            (!name.is_empty()).then(|| name.to_owned())
        };
        request.system.lines().filter_map(name).collect()
    })
}

/// The starter pack's agents by what they are good at; other agents get what comes first.
fn fitting<'a>(wish: &Wish, agents: &'a [String]) -> Option<&'a String> {
    let prose = [".md", ".txt", ".rst"];
    let writes_prose = wish.arguments["path"]
        .as_str()
        .is_some_and(|path| prose.iter().any(|end| path.to_lowercase().ends_with(end)));
    let role = match wish.tool {
        "write_file" | "edit_file" if writes_prose => "writer",
        "grep" | "search_files" => "researcher",
        "read_file" | "list_directory" | "get_file_info" => "analyzer",
        _ => "coder",
    };
    agents.iter().find(|agent| agent.contains(role))
}
