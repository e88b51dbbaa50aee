//! What is said at the start: which folder, whose project, and what holds commands in on this machine.

use crate::{api::ServerPolicy, desk::Desk, local::Local, rules::ClientRules, screen::visible};
use atelier_executor::{Isolation, NetworkWall, ProcessWall};
use serde_json::{Value, json};

pub(crate) fn greeting(local: &Local, desk: &Desk, approvals: &str, added: &[String]) -> String {
    let isolation = local.runner().isolation();
    let mut text = String::new();
    let mut row = |name: &str, value: &str| text.push_str(&format!("{name:<11}{}\n", visible(value)));
    row("Folder", local.shown());
    row("Project", &format!("{} ({})", desk.project.project.name.as_str(), desk.project.project.id));
    row("Server", desk.project.api.server());
    row("Isolation", &isolation.to_string());
    for missing in missing(&isolation) {
        row("  missing", missing);
    }
    let folders: Vec<String> =
        local.runner().toolchains().folders.iter().map(|folder| folder.display().to_string()).collect();
    row("Toolchains", &if folders.is_empty() { "none found".to_owned() } else { folders.join(", ") });
    row("Approvals", approvals);
    for rule in added {
        row("Rules", rule);
    }
    text
}

/// What differs from the rules that every Atelier has: the server's own, and what was lent.
pub(crate) fn added(policy: &ServerPolicy, rules: &ClientRules, local: &Local) -> Vec<String> {
    let extension = &policy.extension;
    let (accepted, not): (Vec<&str>, Vec<&str>) =
        extension.commands().into_iter().partition(|name| rules.accept.iter().any(|known| known == name));
    let mut added = Vec::new();
    if !accepted.is_empty() {
        added.push(format!("the server's own for {} (you accept them)", accepted.join(", ")));
    }
    if !not.is_empty() {
        let names = not.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        added.push(format!(
            "the server's own for {} are not in force here; to accept them: accept = [{names}] in client.toml",
            not.join(", ")
        ));
    }
    if !extension.files.is_empty() || extension.narrow != Default::default() {
        added.push("the server is stricter in some things; so is this machine".to_owned());
    }
    if policy.demand_isolation && !local.runner().isolation().enforces_read_only() {
        added.push("the server runs commands only where they can be held in: none will run here".to_owned());
    }
    if let Some(file) = &rules.git_identity().credentials {
        added.push(format!("git commands that you approve with network are lent {}", file.display()));
    }
    added
}

/// What this machine cannot enforce, in words of consequences.
fn missing(isolation: &Isolation) -> Vec<&'static str> {
    let lacks = [
        (isolation.landlock == 0, "no Landlock: commands can read and write whatever you can"),
        (!isolation.mounts, "no mount namespace: files cannot be hidden from commands"),
        (isolation.network == NetworkWall::None, "nothing keeps commands from the network"),
        (
            isolation.processes == ProcessWall::Group,
            "only a process group: a command could leave processes behind",
        ),
        (isolation.process_limit.is_none(), "nothing limits how many processes a command starts"),
        (!isolation.enforces_read_only(), "so no command runs unasked here"),
    ];
    lacks.into_iter().filter_map(|(lacking, words)| lacking.then_some(words)).collect()
}

/// The same for the server.
pub(crate) fn isolation(local: &Local) -> Value {
    let isolation = local.runner().isolation();
    let mut value = json!(isolation);
    value["enforces_read_only"] = json!(isolation.enforces_read_only());
    value["words"] = json!(isolation.to_string());
    value["missing"] = json!(missing(&isolation));
    value
}
