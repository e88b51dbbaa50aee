//! `atelier chat`: sends a message to agents from a terminal or a script.

use crate::connect::end_on_signal;
use anyhow::Result;
use atelier_client::ChatOptions;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;

/// Sends a message to a project's agents and follows their work: the plan, each step, and the
/// answer as the model writes it. Without `--agent`, the project plans which agents do what.
///
/// The answer goes to standard output, everything else to standard error. In a terminal, approvals
/// are asked for here; otherwise the output says where to decide. Ctrl-C cancels the work. The exit
/// code is 0 if the work was completed, otherwise 1.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The message
    message: String,
    /// The project, by id or name
    #[arg(long, value_name = "ID_OR_NAME")]
    project: String,
    /// The agent to talk to, by id or name
    #[arg(long, value_name = "ID_OR_NAME")]
    agent: Option<String>,
    /// The conversation to continue [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// The server's address
    #[arg(long, default_value = "http://127.0.0.1:7420", value_name = "URL")]
    server: String,
    /// Your token [default: the token that `atelier login` stored for the server]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the conversation's events as lines of JSON, for programs; approvals are not asked for
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let completed = runtime.block_on(async {
        let stop = CancellationToken::new();
        let ending = tokio::spawn(end_on_signal(stop.clone()));
        let options = ChatOptions {
            server: args.server,
            project: args.project,
            agent: args.agent,
            session: args.session,
            token: args.token,
            message: args.message,
            json: args.json,
        };
        let outcome = atelier_client::chat(options, stop).await;
        ending.abort();
        outcome
    })?;
    Ok(if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
