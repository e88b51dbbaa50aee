//! `atelier tool`: runs one tool call for the person at the keyboard, with rules and sandbox.

use anyhow::Result;
use atelier_client::LocalWorkspace;
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to act in
    #[arg(long, default_value = ".", value_name = "DIR")]
    root: PathBuf,
    /// The name of the tool, such as read_file, write_file, list_directory, search_files or
    /// execute_command
    name: String,
    /// The parameters of the call, as a JSON object
    #[arg(default_value = "{}")]
    params: String,
}

/// Prints the result as JSON. The exit status says whether the call succeeded.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let local = LocalWorkspace::open(&args.root)?;
    let (shown, success) = match serde_json::from_str::<Value>(&args.params) {
        Ok(params) => {
            let result = local.run(&args.name, params);
            (serde_json::to_value(&result)?, result.success())
        }
        Err(error) => {
            let error = format!("the parameters are not JSON: {error}");
            (
                json!({"success": false, "error": error, "code": "invalid_params", "verdict": "DENY"}),
                false,
            )
        }
    };
    writeln!(std::io::stdout(), "{shown}")?;
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
