//! `atelier changes`, `land`, `discard` and `undo`: what scripts tried in a layer over a folder, for
//! the person at the keyboard.

use anyhow::Result;
use atelier_client::{LocalWorkspace, Origin};
use atelier_core::{ConversationId, gate::ToolOutcome};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{fmt::Write as _, io::Write as _, path::PathBuf, process::ExitCode};

/// The layer that a command works on.
#[derive(clap::Args)]
struct Which {
    /// The folder that the layer is over
    #[arg(long, default_value = ".", value_name = "DIR")]
    root: PathBuf,
    /// The conversation whose layer to use [default: the layer of `atelier tool`]
    #[arg(long, value_name = "ID")]
    conversation: Option<ConversationId>,
    /// Print the answer of the tool as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct ChangesArgs {
    #[command(flatten)]
    which: Which,
    /// Show the whole difference
    #[arg(long)]
    diff: bool,
}

#[derive(clap::Args)]
pub(crate) struct PathsArgs {
    #[command(flatten)]
    which: Which,
    /// Files and folders, relative to the folder [default: all changes]
    paths: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    which: Which,
    /// The call to undo, as `land` prints it [default: the latest change]
    call: Option<String>,
}

pub(crate) fn changes(args: &ChangesArgs) -> Result<ExitCode> {
    match args.diff {
        true => run(&args.which, "diff", json!({})),
        false => run(&args.which, "changes", json!({})),
    }
}

pub(crate) fn land(args: &PathsArgs) -> Result<ExitCode> {
    run(&args.which, "land", paths(args))
}

pub(crate) fn discard(args: &PathsArgs) -> Result<ExitCode> {
    run(&args.which, "discard", paths(args))
}

pub(crate) fn undo(args: &UndoArgs) -> Result<ExitCode> {
    let params = args.call.as_ref().map_or(json!({}), |call| json!({ "tool_id": call }));
    run(&args.which, "undo", params)
}

fn paths(args: &PathsArgs) -> Value {
    match args.paths.is_empty() {
        true => json!({}),
        false => json!({ "paths": args.paths }),
    }
}

fn run(which: &Which, tool: &str, params: Value) -> Result<ExitCode> {
    let local = LocalWorkspace::open(&which.root)?;
    let mut origin = Origin::local().clone();
    if let Some(conversation) = which.conversation {
        origin.layer = conversation.to_string();
        origin.session_id = Some(conversation);
    }
    let outcome = local.run_in(&origin, tool, params);
    let code = if outcome.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = match which.json {
        true => format!("{}\n", serde_json::to_string(&outcome)?),
        false => in_words(tool, outcome)?,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(code)
}

/// What the tools answer. Each has some of the fields.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    files: Vec<File>,
    landed: Vec<File>,
    undone: Vec<File>,
    refused: Vec<Refused>,
    diff: String,
    ignored: u64,
    discarded: u64,
    /// When the layer is dropped if nobody uses it.
    kept_until: String,
    /// By what a landing, or an undo, can be undone.
    tool_id: String,
}

#[derive(Deserialize)]
struct File {
    path: String,
    change: String,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    conflict: bool,
}

#[derive(Deserialize)]
struct Refused {
    path: String,
    why: String,
}

/// The answer for a person.
fn in_words(tool: &str, outcome: ToolOutcome) -> Result<String> {
    let ToolOutcome { mut fields, failure } = outcome;
    if tool == "diff" {
        // A difference only counts its files.
        fields.remove("files");
    }
    let answer: Answer = serde_json::from_value(Value::Object(fields))?;
    let mut text = String::new();
    for file in answer.files.iter().chain(&answer.landed).chain(&answer.undone) {
        let File { path, change, from, conflict } = file;
        write!(text, "{change:<8} {}", visible(path))?;
        if let Some(from) = from {
            write!(text, " (from {})", visible(from))?;
        }
        text.push_str(if *conflict { "  ! changed in the folder as well\n" } else { "\n" });
    }
    for Refused { path, why } in &answer.refused {
        writeln!(text, "left     {}: {why}", visible(path))?;
    }
    for line in answer.diff.lines() {
        writeln!(text, "{}", visible(line))?;
    }
    if let Some(failure) = failure {
        writeln!(text, "{}", failure.detail)?;
        return Ok(text);
    }
    let id = &answer.tool_id;
    match tool {
        "changes" | "diff" if text.is_empty() && answer.ignored == 0 => {
            text.push_str("The layer has no changes.\n");
        }
        "changes" => {
            if answer.ignored > 0 {
                writeln!(text, "{} more that git ignores.", answer.ignored)?;
            }
            let day = answer.kept_until.split('T').next().unwrap_or_default();
            writeln!(text, "Kept until {}, or longer if the layer is used.", visible(day))?;
        }
        "land" => writeln!(text, "Landed. `atelier undo {id}` takes it back.")?,
        "undo" => writeln!(text, "Undone. `atelier undo {id}` takes that back.")?,
        "discard" => writeln!(text, "Discarded {} changes.", answer.discarded)?,
        _ => {}
    }
    Ok(text)
}

/// A text without control characters, which a terminal would obey.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}
