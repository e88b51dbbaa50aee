//! `atelier mcp DIR`: a directory as a workspace for any MCP host, on standard input or over HTTP.

use crate::{config::TelemetrySettings, telemetry};
use anyhow::{Context, Result};
use atelier_mcp::http::{self, Lifetime};
use atelier_mcp::{Settings, Space, WorkspaceServer, stdio};
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory to serve; nothing outside it can be reached
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Serve over HTTP on this address (/mcp and /health) instead of standard input
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Offer more tools: edit, append, move, delete, read several, grep, tree
    #[arg(long)]
    extra_tools: bool,
    /// Offer only tools that change nothing
    #[arg(long)]
    read_only: bool,
    /// Largest file to read or write, such as 100MB
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    max_file_size: u64,
    /// Sync every write to disk before answering
    #[arg(long)]
    durable: bool,
    /// What the directory is called in messages and absolute paths
    #[arg(long, value_name = "NAME", default_value = "/workspace")]
    root_name: String,
    /// Another host name that requests may be addressed to; `*` for any (repeatable)
    #[arg(long, value_name = "NAME", env = "ATELIER_MCP_ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// A web origin that may call the server, such as https://app.example:443 (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "ATELIER_MCP_ALLOWED_ORIGINS", value_delimiter = ',')]
    allowed_origin: Vec<String>,
    /// Callers must show this bearer token; better given by the environment than on the command line
    #[arg(long, env = "ATELIER_MCP_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// What of a request is not the content that it writes.
const ENVELOPE: u64 = 1 << 20;
/// Longer than any call takes.
const SESSION_IDLE: Duration = Duration::from_secs(5 * 60);

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let _telemetry = telemetry::start_for_host(&TelemetrySettings::default())?;
    let settings = Settings {
        root_name: args.root_name.clone(),
        extra_tools: args.extra_tools,
        read_only: args.read_only,
        max_file_size: args.max_file_size,
        durable: args.durable,
        policy: None,
        asked: true,
    };
    let space = Space::open(&args.directory, settings)
        .with_context(|| format!("cannot serve {}", args.directory.display()))?;
    // Escaped as JSON, text grows; twice its size is enough for everything but control characters.
    let max_message =
        usize::try_from(args.max_file_size.saturating_mul(2).saturating_add(ENVELOPE)).unwrap_or(usize::MAX);
    match args.http.clone() {
        // One host, one thread: less memory, and no message changes threads twice.
        None => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let stop = until_told()?;
            stdio::serve(WorkspaceServer::new(space), max_message, stop).await.context("the handshake failed")
        })?,
        Some(address) => {
            let runtime = tokio::runtime::Runtime::new()?;
            let served = runtime.block_on(over_http(args, &address, space, max_message));
            // A search that nobody waits for any more must not hold up the end.
            runtime.shutdown_background();
            served?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn over_http(args: Args, address: &str, space: Space, max_body: usize) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    let mut allowed_hosts = args.allowed_host;
    if !bound.ip().is_unspecified() {
        allowed_hosts.push(bound.ip().to_string());
    }
    let settings = http::Settings {
        allowed_hosts,
        allowed_origins: args.allowed_origin,
        // Secrets come with a newline behind them more often than not; no caller can send one.
        token: args.token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
        max_body,
        session_idle: SESSION_IDLE,
    };
    if settings.token.is_none() && !bound.ip().is_loopback() {
        tracing::warn!("anyone who reaches {bound} can use this workspace: no token is set");
    }
    // Before anybody can know that we are there: who is told to stop at once has to hear it.
    let stop = until_told()?;
    eprintln!("atelier mcp is listening on http://{bound}/mcp");
    let make = move |lifetime| match lifetime {
        Lifetime::Session => WorkspaceServer::new(space.clone()),
        Lifetime::Request => WorkspaceServer::stateless(space.clone()),
    };
    http::serve(listener, make, settings, stop).await.context("serving failed")
}

/// Cancelled when the system or the person at the terminal asks us to stop.
fn until_told() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}

/// `1048576`, `100MB`, `1GB`, `64 KiB`: powers of 1024, as this server shows sizes.
fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit} is no unit of size (KB, MB, GB, TB)")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text} is no size, such as 100MB"))?;
    number.checked_mul(1 << shift).filter(|size| *size > 0).ok_or_else(|| format!("{text} is no size to use"))
}
