//! `atelier check`: shows how the rules rate a call, and why. Nothing runs.

use anyhow::{Context, Result};
use atelier_client::LocalWorkspace;
use atelier_core::{
    FailureCode,
    path::Roots,
    policy::{Policy, verdict::Judgement},
    visible::visible,
};
use clap::{Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print each verdict as a JSON object with verdict, rule and reason
    #[arg(long, global = true)]
    json: bool,
    /// The folder that paths belong to, so that links are followed [default: judge paths by their
    /// text only]
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Rate a command, such as: atelier check command -- git push --force
    Command {
        /// The command and its arguments, after --
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Rate an operation on a path
    Path {
        /// The operation
        #[arg(long, value_enum, default_value = "read")]
        op: Operation,
        /// The path, relative to the folder
        path: String,
        /// The pattern of a search or a listing
        #[arg(long, default_value = "*")]
        pattern: String,
    },
    /// Rate tool calls from a file, one {"tool_name": …, "tool_params": {…}} in each line
    Calls {
        /// The file, or - for standard input
        file: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Operation {
    Read,
    Write,
    List,
    Search,
    Info,
    #[value(name = "create_dir", alias = "create-dir")]
    CreateDir,
    Delete,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool_name: String,
    #[serde(default)]
    tool_params: Value,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match check(args) {
        // The reader has closed the pipe, as `head` does.
        Err(error)
            if error
                .downcast_ref()
                .is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe) => {}
        outcome => outcome?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &Args) -> Result<()> {
    let local = args.root.as_deref().map(LocalWorkspace::open).transpose()?;
    let judge = |tool: &str, params: Value| match &local {
        Some(local) => local.judge(tool, params),
        None => Policy::builtin().judge_request(tool, params, &Roots::relative_only()).1,
    };
    let mut out = io::stdout().lock();
    let mut show = |judgement: &Judgement| match args.json {
        true => writeln!(out, "{}", as_json(judgement)),
        false => {
            let reason = visible(&judgement.reason);
            writeln!(out, "{:<6}  {}\n        {reason}", judgement.verdict, judgement.rule)
        }
    };
    match &args.what {
        What::Command { words } => {
            let params = json!({"command": words[0], "args": words[1..]});
            show(&judge("execute_command", params))?;
        }
        What::Path { op, path, pattern } => {
            let (tool, params) = match op {
                Operation::Read => ("read_file", json!({"path": path})),
                Operation::Write => ("write_file", json!({"path": path, "content": ""})),
                Operation::List => ("list_directory", json!({"path": path, "pattern": pattern})),
                Operation::Search => ("search_files", json!({"path": path, "pattern": pattern})),
                Operation::Info => ("get_file_info", json!({"path": path})),
                Operation::CreateDir => ("create_directory", json!({"path": path})),
                Operation::Delete => ("delete_file", json!({"path": path})),
            };
            show(&judge(tool, params))?;
        }
        What::Calls { file } => {
            let input: Box<dyn BufRead> = match file.to_str() {
                Some("-") => Box::new(io::stdin().lock()),
                _ => {
                    let file = std::fs::File::open(file)
                        .with_context(|| format!("cannot read {}", file.display()))?;
                    Box::new(io::BufReader::new(file))
                }
            };
            for line in input.split(b'\n') {
                let line = line?;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                // An invalid line gets a verdict as well, so that every line of input has one line
                // of output.
                let judgement = match serde_json::from_slice::<Call>(&line) {
                    Ok(call) => judge(&call.tool_name, call.tool_params),
                    Err(error) => Judgement::denied(
                        FailureCode::InvalidCall,
                        "call",
                        format!("The line is not a tool call: {error}."),
                    ),
                };
                show(&judgement)?;
            }
        }
    }
    Ok(())
}

fn as_json(judgement: &Judgement) -> Value {
    let mut shown =
        json!({"verdict": judgement.verdict, "rule": judgement.rule, "reason": judgement.reason});
    if let Some(code) = &judgement.code {
        shown["code"] = code.as_str().into();
    }
    if judgement.network {
        shown["network"] = true.into();
    }
    shown
}
