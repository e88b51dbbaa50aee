//! What `atelier connect` prints at its start: the folder, the project, and the sandbox of this machine.

use crate::{local_workspace::LocalWorkspace, project::ProjectApi, rules::ClientRules, screen::visible};
use atelier_api::tools::ServerPolicy;
use atelier_executor::{Isolation, NetworkWall, ProcessWall};
use serde_json::{Map, Value, json};

pub(crate) fn banner(
    local: &LocalWorkspace,
    project: &ProjectApi,
    approvals: &str,
    notes: &[String],
) -> String {
    let isolation = local.runner().isolation();
    let mut text = String::new();
    let mut row = |name: &str, value: &str| text.push_str(&format!("{name:<11}{}\n", visible(value)));
    row("Folder", local.display_path());
    row("Project", &format!("{} ({})", project.project.name.as_str(), project.project.id));
    row("Server", project.api.server());
    row("Sandbox", &isolation.to_string());
    for missing in missing(&isolation) {
        row("  missing", missing);
    }
    let folders: Vec<String> =
        local.runner().toolchains().folders.iter().map(|folder| folder.display().to_string()).collect();
    row("Toolchains", &if folders.is_empty() { "none found".to_owned() } else { folders.join(", ") });
    row("Approvals", approvals);
    for note in notes {
        row("Rules", note);
    }
    text
}

/// Notes about rules beyond the built-in ones, and about credentials that commands may use.
pub(crate) fn rule_notes(policy: &ServerPolicy, rules: &ClientRules, local: &LocalWorkspace) -> Vec<String> {
    let extension = &policy.extension;
    let (accepted, not): (Vec<&str>, Vec<&str>) =
        extension.commands().into_iter().partition(|name| rules.accept.iter().any(|known| known == name));
    let mut added = Vec::new();
    if !accepted.is_empty() {
        added.push(format!("the server's own rules for {} apply (you accepted them)", accepted.join(", ")));
    }
    if !not.is_empty() {
        let names = not.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        added.push(format!(
            "the server's own rules for {} do not apply here; to accept them, set accept = [{names}] in client.toml",
            not.join(", ")
        ));
    }
    if !extension.files.is_empty() || extension.narrow != Default::default() {
        added.push("the server has some stricter rules; they apply here too".to_owned());
    }
    if policy.demand_isolation && !local.runner().isolation().enforces_read_only() {
        added.push(
            "the server allows commands only on machines with a full sandbox: no command will run here"
                .to_owned(),
        );
    }
    if let Some(file) = &rules.git_identity().credentials {
        added.push(format!("git commands that you approve with network access may use {}", file.display()));
    }
    added
}

/// What this machine cannot enforce, and what follows from it.
fn missing(isolation: &Isolation) -> Vec<&'static str> {
    let lacks = [
        (isolation.landlock == 0, "no Landlock: commands can read and write everything that you can"),
        (!isolation.mounts, "no mount namespace: secret files cannot be hidden from commands"),
        (isolation.network == NetworkWall::None, "no network isolation: commands can use the network"),
        (
            isolation.processes == ProcessWall::Group,
            "no process isolation: a command could leave processes behind",
        ),
        (isolation.process_limit.is_none(), "no process limit: a command can start any number of processes"),
        (!isolation.enforces_read_only(), "for these reasons, every command needs your approval here"),
    ];
    lacks.into_iter().filter_map(|(lacking, words)| lacking.then_some(words)).collect()
}

/// What the server is told about the sandbox of this machine.
pub(crate) fn isolation(local: &LocalWorkspace) -> Map<String, Value> {
    let isolation = local.runner().isolation();
    let mut fields = json!(isolation).as_object().cloned().unwrap_or_default();
    fields.insert("enforces_read_only".into(), isolation.enforces_read_only().into());
    fields.insert("words".into(), isolation.to_string().into());
    fields.insert("missing".into(), missing(&isolation).into());
    fields
}
