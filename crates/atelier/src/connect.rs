//! `atelier connect`: connects a folder of this machine to a project.

use anyhow::{Context, Result};
use atelier_client::Options;
use std::{path::PathBuf, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Gives a project's agents access to a folder. Calls that only read run without asking; other
/// calls run after you have approved them. Commands run in a sandbox.
///
/// You can answer approvals in this terminal or in the console; the first answer counts. Your own
/// stricter rules, and settings for commands, go into `~/.config/atelier/client.toml`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for the agents
    dir: PathBuf,
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420].
    /// If the server has several nodes, repeat the option: a node that stops answering is left for
    /// the next one within ten seconds
    #[arg(long, value_name = "URL")]
    server: Vec<String>,
    /// The project, by id or name
    #[arg(long, value_name = "ID_OR_NAME", required_unless_present = "code")]
    project: Option<String>,
    /// A one-time code from the console, instead of a token and a project. The token that it is
    /// exchanged for is stored: the next time, name the project
    #[arg(long, value_name = "CODE", conflicts_with_all = ["project", "token"])]
    code: Option<String>,
    /// Your token [default: the token that `atelier login` stored for the server]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Do not ask for approvals in this terminal
    #[arg(long)]
    no_approve: bool,
    /// Run only calls rated LOW, which change nothing; refuse all others on this machine, even if
    /// they are approved; do not ask for approvals in this terminal
    #[arg(long)]
    yes_low_only: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let stop = CancellationToken::new();
        let ending = tokio::spawn(end_on_signal(stop.clone()));
        let options = Options {
            dir: args.dir,
            servers: args.server,
            project: args.project.unwrap_or_default(),
            token: args.token,
            code: args.code,
            no_approve: args.no_approve,
            low_only: args.yes_low_only,
            quiet: false,
        };
        let outcome = atelier_client::connect(options, stop).await;
        ending.abort();
        outcome
    });
    // Calls that still block are in the journal, and the next start reports them.
    runtime.shutdown_background();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

/// The first signal cancels `stop`. The second one ends the program immediately.
pub(crate) async fn end_on_signal(stop: CancellationToken) -> Result<()> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<std::io::Result<Vec<_>>>()
        .context("cannot listen for signals")?;
    let [interrupt, terminate, hangup] = &mut signals[..] else {
        unreachable!("three signals were registered")
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        if stop.is_cancelled() {
            std::process::exit(130);
        }
        stop.cancel();
    }
}
