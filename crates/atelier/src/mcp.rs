//! `atelier mcp DIR`: serves a folder as a workspace to MCP hosts, on standard input or over HTTP.

use crate::{config::TelemetrySettings, telemetry};
use anyhow::{Context, Result};
use atelier_mcp::hosts::{AllowedHosts, ServiceNames};
use atelier_mcp::http::{self, Lifetime};
use atelier_mcp::{ServedWorkspace, Settings, WorkspaceServer, stdio};
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to serve; hosts cannot reach anything outside it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Serve over HTTP on this address instead of standard input (paths: /mcp and /health)
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Offer more tools: edit, append, move, delete, read several files, grep, tree
    #[arg(long)]
    extra_tools: bool,
    /// Offer only tools that change nothing
    #[arg(long)]
    read_only: bool,
    /// The size of the largest file to read or write, such as 100MB
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    max_file_size: u64,
    /// Sync every write to disk before answering
    #[arg(long)]
    durable: bool,
    /// The name of the folder in messages and absolute paths
    #[arg(long, value_name = "NAME", default_value = "/workspace")]
    root_name: String,
    /// Another host name that requests may use; `*` for any (repeatable). On an address that other
    /// machines can reach, names of Kubernetes Services and names without dots need no permission
    #[arg(long, value_name = "NAME", env = "ATELIER_MCP_ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// A web origin that may call the server, such as https://app.example:443 (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "ATELIER_MCP_ALLOWED_ORIGINS", value_delimiter = ',')]
    allowed_origin: Vec<String>,
    /// The bearer token that hosts must send; better set in the environment than on the command
    /// line
    #[arg(long, env = "ATELIER_MCP_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// The size of a request without the content that it writes.
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
        functions: None,
        host_asks: true,
        utf8_only: true,
    };
    let workspace = ServedWorkspace::open(&args.directory, settings)
        .with_context(|| format!("cannot serve {}", args.directory.display()))?;
    // Text grows when it is escaped as JSON. Twice its size is enough, except for control
    // characters.
    let max_message =
        usize::try_from(args.max_file_size.saturating_mul(2).saturating_add(ENVELOPE))
            .unwrap_or(usize::MAX);
    match args.http.clone() {
        // One host needs one thread, which uses less memory and avoids switching between threads.
        None => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let stop = stop_on_signal()?;
                let server = WorkspaceServer::new(workspace);
                stdio::serve(server, max_message, stop).await.context("the handshake failed")
            })?;
        }
        Some(address) => {
            let runtime = tokio::runtime::Runtime::new()?;
            let served = runtime.block_on(over_http(args, &address, workspace, max_message));
            // A search that nobody waits for must not delay the end.
            runtime.shutdown_background();
            served?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn over_http(
    args: Args,
    address: &str,
    workspace: ServedWorkspace,
    max_body: usize,
) -> Result<()> {
    let listener =
        TcpListener::bind(address).await.map_err(|error| cannot_listen(address, error))?;
    let bound = listener.local_addr()?;
    let mut allowed_hosts =
        AllowedHosts::loopback().with(args.allowed_host.iter().map(String::as_str));
    if !bound.ip().is_unspecified() {
        allowed_hosts = allowed_hosts.with([bound.ip().to_string().as_str()]);
    }
    if !bound.ip().is_loopback() {
        // A machine without this file is in no cluster.
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        allowed_hosts = allowed_hosts.with_services(ServiceNames::from_resolv_conf(&resolv_conf));
    }
    let settings = http::Settings {
        allowed_hosts,
        allowed_origins: args.allowed_origin,
        // Secrets often end with a line break, which no caller can send.
        token: args.token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
        max_body,
        session_idle: SESSION_IDLE,
    };
    if settings.token.is_none() && !bound.ip().is_loopback() {
        tracing::warn!("no token is set: anyone who can reach {bound} can use this workspace");
    }
    // Signals are handled before the address is printed, because a signal may follow immediately.
    let stop = stop_on_signal()?;
    eprintln!("atelier mcp is listening on http://{bound}/mcp");
    let make = move |lifetime| match lifetime {
        Lifetime::Session => WorkspaceServer::new(workspace.clone()),
        Lifetime::Request => WorkspaceServer::stateless(workspace.clone()),
    };
    http::serve(listener, make, settings, stop).await.context("serving failed")
}

fn cannot_listen(address: &str, error: std::io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        // The usual cause is a port below 1024 in a container that does not run as root.
        std::io::ErrorKind::PermissionDenied => {
            ": set the sysctl net.ipv4.ip_unprivileged_port_start=0, or choose a port from 1024 on"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address}{hint}"))
}

/// A token that is cancelled by SIGTERM or Ctrl-C.
fn stop_on_signal() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping.cancel();
    });
    Ok(stop)
}

/// Parses a size such as `1048576`, `100MB`, `1GB` or `64 KiB`. Units are powers of 1024.
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
        _ => return Err(format!("{unit} is not a unit of size (KB, MB, GB, TB)")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text} is not a size, such as 100MB"))?;
    number
        .checked_mul(1 << shift)
        .filter(|size| *size > 0)
        .ok_or_else(|| format!("{text} is not a usable size"))
}
