//! What `atelier connect` prints at its start: the folder, the project, and the sandbox of this
//! machine.

use crate::{local_workspace::LocalWorkspace, project::ProjectApi, rules::ClientRules};
use atelier_api::tools::ServerPolicy;
use atelier_core::{policy::verdict::Verdict, tools::layered::SHELL, visible::visible};
use serde_json::json;

pub(crate) fn banner(
    local: &LocalWorkspace,
    project: &ProjectApi,
    approvals: &str,
    notes: &[String],
) -> String {
    let isolation = local.runner().isolation();
    let mut text = String::new();
    let mut row =
        |name: &str, value: &str| text.push_str(&format!("{name:<11}{}\n", visible(value)));
    row("Folder", local.display_path());
    row("Project", &format!("{} ({})", project.project.name.as_str(), project.project.id));
    row("Server", project.api.server());
    row("Sandbox", &isolation.to_string());
    for missing in isolation.missing() {
        row("  missing", missing);
    }
    let folders: Vec<String> = local
        .runner()
        .toolchains()
        .folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    row(
        "Toolchains",
        &if folders.is_empty() { "none found".to_owned() } else { folders.join(", ") },
    );
    row("Shell", &shell(local));
    row("Approvals", approvals);
    for note in notes {
        row("Rules", note);
    }
    for note in local.review_layers() {
        row("Layers", &note);
    }
    text
}

/// Whether scripts run in a layer here, as far as this machine and the server say.
fn shell(local: &LocalWorkspace) -> String {
    let judged = local.judge(SHELL.name, json!({ "script": "true" }));
    match judged.verdict {
        Verdict::Low => "scripts run in a layer without a question; landing is asked about".into(),
        Verdict::Medium | Verdict::High => {
            format!("scripts are asked about, and run in a layer: {}", judged.reason)
        }
        Verdict::Deny => judged.reason,
    }
}

/// Notes about rules beyond the built-in ones, and about credentials that commands may use.
pub(crate) fn rule_notes(
    policy: &ServerPolicy,
    rules: &ClientRules,
    local: &LocalWorkspace,
) -> Vec<String> {
    let extension = &policy.extension;
    let (accepted, not): (Vec<&str>, Vec<&str>) = extension
        .commands()
        .into_iter()
        .partition(|name| rules.accept.iter().any(|known| known == name));
    let mut added = Vec::new();
    if !accepted.is_empty() {
        added.push(format!(
            "the server's own rules for {} apply (you accepted them)",
            accepted.join(", ")
        ));
    }
    if !not.is_empty() {
        let names = not.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        added.push(format!(
            "the server's own rules for {} do not apply here; to accept them, set accept = \
             [{names}] in client.toml",
            not.join(", ")
        ));
    }
    if !extension.files.is_empty() || extension.narrow != Default::default() {
        added.push("the server has some stricter rules; they apply here too".to_owned());
    }
    if policy.demand_isolation && !local.runner().isolation().enforces_read_only() {
        added.push(
            "the server allows commands only on machines with a full sandbox: no command will run \
             here"
                .to_owned(),
        );
    }
    if let Some(file) = &rules.git_identity().credentials {
        added.push(format!(
            "git commands that you approve with network access may use {}",
            file.display()
        ));
    }
    added
}
