//! `atelier projects`, `agents`, `conversations`, `approvals` and `tasks`: lists for people, and JSON
//! for programs.

use crate::remote::Remote;
use anyhow::Result;
use atelier_client::ApiClient;
use serde_json::Value;
use std::{io::Write, process::ExitCode};

/// Prints your projects.
#[derive(clap::Args)]
pub(crate) struct Projects {
    #[command(flatten)]
    remote: Remote,
}

/// Prints what waits for your approval, in all projects.
#[derive(clap::Args)]
pub(crate) struct Approvals {
    #[command(flatten)]
    remote: Remote,
}

/// Prints a list of one project.
#[derive(clap::Args)]
pub(crate) struct OfProject {
    #[command(flatten)]
    remote: Remote,
    /// The project, by id or name [default: the only one]
    #[arg(long, value_name = "ID_OR_NAME")]
    project: Option<String>,
    /// The largest number of entries, newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

/// A list: where it is in the answer, and the fields of an entry that people see.
struct List {
    key: &'static str,
    fields: &'static [&'static str],
}

const PROJECTS: List =
    List { key: "projects", fields: &["/id", "/name", "/workspace", "/updated_at"] };
const AGENTS: List =
    List { key: "agents", fields: &["/id", "/name", "/config/model", "/answered_by"] };
const CONVERSATIONS: List =
    List { key: "sessions", fields: &["/id", "/updated_at", "/status", "/title"] };
const APPROVALS: List =
    List { key: "approvals", fields: &["/tool_id", "/risk_level", "/tool_name", "/reason"] };
const TASKS: List = List {
    key: "tasks",
    fields: &["/id", "/created_at", "/status", "/agent_name", "/description"],
};

pub(crate) fn projects(args: &Projects) -> Result<ExitCode> {
    run(async {
        let api = args.remote.client("projects")?;
        show(&api, "/my/projects?limit=1000", &PROJECTS, args.remote.json).await
    })
}

pub(crate) fn approvals(args: &Approvals) -> Result<ExitCode> {
    run(async {
        let api = args.remote.client("approvals")?;
        show(&api, "/my/approvals", &APPROVALS, args.remote.json).await
    })
}

pub(crate) fn agents(args: &OfProject) -> Result<ExitCode> {
    run(of_project(args, "agents", "agents", &AGENTS))
}

pub(crate) fn conversations(args: &OfProject) -> Result<ExitCode> {
    run(of_project(args, "conversations", "chat/sessions", &CONVERSATIONS))
}

pub(crate) fn tasks(args: &OfProject) -> Result<ExitCode> {
    run(of_project(args, "tasks", "tasks", &TASKS))
}

fn run(listing: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(listing)?;
    Ok(ExitCode::SUCCESS)
}

async fn of_project(args: &OfProject, command: &str, path: &str, list: &List) -> Result<()> {
    let api = args.remote.client(command)?;
    let project = api.project_or_only(args.project.as_deref()).await?;
    let path = format!("/my/projects/{}/{path}?limit={}", project.id, args.limit);
    show(&api, &path, list, args.remote.json).await
}

async fn show(api: &ApiClient, path: &str, list: &List, json: bool) -> Result<()> {
    let mut answer: Value = api.get(path).await?;
    let entries = answer[list.key].take();
    let text = match (json, entries.as_array()) {
        (true, _) => format!("{}\n", serde_json::to_string_pretty(&entries)?),
        (false, Some(entries)) => table(entries, list.fields),
        (false, None) => String::new(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The longest text of a column.
const MAX_COLUMN: usize = 60;

/// Entries in lines with columns, without a line of names.
pub(crate) fn table(entries: &[Value], fields: &[&str]) -> String {
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| fields.iter().map(|at| cell(entry.pointer(at))).collect())
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..fields.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A value in one line. Others chose the text, so it must not move the cursor.
fn cell(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let line = text.lines().next().unwrap_or("").chars();
    line.map(|c| if c.is_control() { '?' } else { c }).take(MAX_COLUMN).collect()
}
