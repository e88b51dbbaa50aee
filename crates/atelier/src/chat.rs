//! `atelier chat`: talks with agents from a terminal or a script.

use crate::connect::end_on_signal;
use anyhow::{Context, Result, bail};
use atelier_client::{ChatOptions, InteractiveOptions, Start};
use std::{
    io::{IsTerminal, Read},
    process::ExitCode,
};
use tokio_util::sync::CancellationToken;

/// Talks with a project's agents. Without a message, in a terminal, it is a session: it connects this
/// folder, and shows the answer, the plan, each call and each approval as they come. `/help` lists its
/// commands.
///
/// With a message (an argument, or standard input), it sends the message and follows the work to its
/// end. Without `--agent`, the project plans which agents do what. The answer goes to standard output,
/// everything else to standard error. In a terminal, approvals are asked for here; otherwise the output
/// says where to decide. Ctrl-C cancels the work. The exit code is 0 if the work was completed,
/// otherwise 1.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// The message [default: read from standard input, unless it is a terminal]
    message: Option<String>,
    /// The project, by id or name [default: the last one in this folder, or the only one]
    #[arg(long, value_name = "ID_OR_NAME")]
    project: Option<String>,
    /// The agent to talk to, by id or name
    #[arg(long, value_name = "ID_OR_NAME")]
    agent: Option<String>,
    /// The conversation to continue [default: a new one]
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Continue the last conversation of this folder
    #[arg(long = "continue", short = 'c', conflicts_with_all = ["session", "message"])]
    continues: bool,
    /// Choose a conversation to continue, or name it
    #[arg(long, value_name = "ID", num_args = 0..=1,
        conflicts_with_all = ["session", "message", "continues"])]
    resume: Option<Option<String>>,
    /// Do not connect this folder
    #[arg(long)]
    no_connect: bool,
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Your token [default: the token that `atelier login` stored for the server]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the conversation's events as lines of JSON, for programs; approvals are not asked for
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The arguments of `atelier` alone.
    pub(crate) fn of_bare_command() -> Self {
        let token = std::env::var("ATELIER_TOKEN").ok();
        Self { token, ..Self::default() }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let attended = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match args.message.clone() {
        Some(message) => send(args, message),
        None if attended && !args.json => talk(args),
        None if std::io::stdin().is_terminal() => {
            bail!("say what to send: `atelier chat MESSAGE`, or pipe it to standard input")
        }
        None => {
            let mut message = String::new();
            std::io::stdin().read_to_string(&mut message).context("cannot read the message")?;
            match message.trim() {
                "" => bail!("standard input is empty: there is no message to send"),
                message => send(args, message.to_owned()),
            }
        }
    }
}

/// A session in the terminal.
fn talk(args: Args) -> Result<ExitCode> {
    let start = match (args.continues, args.resume, args.session) {
        (true, ..) => Start::Last,
        (_, Some(Some(id)), _) | (_, _, Some(id)) => Start::Id(id),
        (_, Some(None), _) => Start::Choose,
        _ => Start::New,
    };
    let options = InteractiveOptions {
        server: args.server,
        project: args.project,
        agent: args.agent,
        token: args.token,
        dir: std::env::current_dir().context("cannot find the current folder")?,
        connect: !args.no_connect,
        start,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(atelier_client::interactive(options));
    // Calls that still block are in the journal, and the next start reports them.
    runtime.shutdown_background();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

fn send(args: Args, message: String) -> Result<ExitCode> {
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
            message,
            json: args.json,
        };
        let outcome = atelier_client::chat(options, stop).await;
        ending.abort();
        outcome
    })?;
    Ok(if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
