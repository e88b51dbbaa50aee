//! `atelier connect`: the user's side of the gate.

use anyhow::{Context, Result};
use atelier_client::Options;
use std::{path::PathBuf, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Connects a folder to a project: calls of its agents that you approve (or that only look) run here, in a
/// sandbox, and nothing else is written into the folder.
///
/// Stricter rules of your own, and settings for commands, go into `~/.config/atelier/client.toml`. In a terminal
/// you are asked here; the console asks as well, and whoever answers first decides.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that agents may work in
    dir: PathBuf,
    /// The server's address
    #[arg(long, default_value = "http://127.0.0.1:7420", value_name = "URL")]
    server: String,
    /// The project, by id or name
    #[arg(long, value_name = "ID_OR_NAME")]
    project: String,
    /// Your token; without it, the one that `atelier login` stored for the server
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Ask nothing in this terminal: approvals are decided elsewhere, and run here
    #[arg(long)]
    no_approve: bool,
    /// Run only what is rated LOW (it looks and changes nothing) and refuse the rest here, even if it was
    /// approved elsewhere; nothing is asked in this terminal
    #[arg(long)]
    yes_low_only: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let stop = CancellationToken::new();
        let ending = tokio::spawn(end_on_signal(stop.clone()));
        let options = Options {
            dir: args.dir,
            server: args.server,
            project: args.project,
            token: args.token,
            no_approve: args.no_approve,
            low_only: args.yes_low_only,
        };
        let outcome = atelier_client::connect(options, stop).await;
        ending.abort();
        outcome
    });
    // Whatever still blocks is in the journal; the next start reports it.
    runtime.shutdown_background();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

/// The first signal ends in good order, the second at once.
pub(crate) async fn end_on_signal(stop: CancellationToken) -> Result<()> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<std::io::Result<Vec<_>>>()
        .context("cannot listen for signals")?;
    let [interrupt, terminate, hangup] = &mut signals[..] else { unreachable!("three were asked for") };
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
