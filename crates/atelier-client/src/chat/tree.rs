//! A plan as a small tree that shows which task waits for which.

use atelier_core::{Task, TaskId};
use std::collections::HashMap;

/// One line for each task, below and to the right of the tasks that it waits for.
pub(crate) fn tree(tasks: &[Task]) -> Vec<String> {
    let mut depths: HashMap<TaskId, usize> = HashMap::new();
    // The server refuses cycles. If there were one, the loop would still end.
    for _ in 0..tasks.len() {
        for task in tasks {
            let depth =
                task.depends_on.iter().map(|id| depths.get(id).copied().unwrap_or(0) + 1).max();
            depths.insert(task.id, depth.unwrap_or(0).min(tasks.len()));
        }
    }
    let mut ordered: Vec<&Task> = tasks.iter().collect();
    ordered.sort_by_key(|task| depths[&task.id]);
    ordered.into_iter().map(|task| line(task, depths[&task.id], tasks)).collect()
}

fn line(task: &Task, depth: usize, tasks: &[Task]) -> String {
    let awaited: Vec<&str> =
        tasks.iter().filter(|other| task.depends_on.contains(&other.id)).map(label).collect();
    let after =
        if awaited.is_empty() { String::new() } else { format!(", after {}", awaited.join(", ")) };
    let branch = if depth == 0 { "" } else { "└ " };
    let agent = task.agent_name.as_ref().map_or("the project", |name| name.as_str());
    let indent = "  ".repeat(depth);
    format!("{indent}{branch}{}: {} ({agent}{after})", label(task), first_line(&task.description))
}

/// The name of a task in its plan.
pub(crate) fn label(task: &Task) -> &str {
    task.key.as_deref().unwrap_or("task")
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    match line.char_indices().nth(100) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use uuid::Uuid;

    fn task(id: u128, key: &str, depends_on: &[u128]) -> Task {
        let depends_on: Vec<Uuid> = depends_on.iter().copied().map(Uuid::from_u128).collect();
        let some = Uuid::from_u128(99);
        serde_json::from_value(json!({
            "id": Uuid::from_u128(id), "project_id": some, "session_id": some, "message_id": some, "plan_id": some,
            "kind": "work", "key": key, "description": format!("do {key}\nwith \
                care"), "agent_id": some,
            "agent_name": "coder", "depends_on": depends_on, "status": "waiting", "priority": 0, "steps": 0,
            "usage": {"input_tokens": 0, "output_tokens": 0}, "cost": 0.0, "ran_ms": 0, "result": null, "error": null,
            "created_at": "2026-01-01T00:00:00Z", "started_at": null, "completed_at": null,
        }))
        .unwrap()
    }

    #[test]
    fn task_is_below_the_tasks_it_waits_for() {
        let tasks = [task(3, "join", &[1, 2]), task(1, "left", &[]), task(2, "right", &[1])];
        assert_eq!(
            tree(&tasks),
            [
                "left: do left (coder)",
                "  └ right: do right (coder, after left)",
                "    └ join: do join (coder, after left, right)",
            ]
        );
    }
}
