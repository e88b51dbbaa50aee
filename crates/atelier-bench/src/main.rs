//! `make bench`: measures the real server and its floors in the same run.
//!
//! A figure alone says as much about the machine as about the program. So every figure has a floor:
//! the same generator against a bare server that answers the same bytes, or a bare loop that
//! commits the same rows. The difference is the cost of Atelier.

#![expect(
    clippy::disallowed_methods,
    reason = "starts the program under test, which is no tool call"
)]

mod bare_loop;
mod bare_server;
mod calls;
mod clients;
mod crowd;
mod durable_server;
mod fanout;
mod followers;
mod history;
mod load;
mod locomo;
mod memory;
mod paraphrases;
mod process;
mod reads;
mod recall;
mod report;
mod start;
mod verdicts;
mod wire;
mod work;
mod writes;

use anyhow::{Context, Result, ensure};
use atelier_testkit::{Backend, Server, User};
use clap::{Parser, ValueEnum};
use report::Report;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Measure the server and compare it with its floors
#[derive(Parser)]
struct Args {
    /// Also measure on PostgreSQL (`make services` starts one)
    #[arg(long)]
    postgres: bool,
    /// Measure once and briefly, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<Part>,
    /// How many requests are in progress at the same time [default: 1,16,64; tool calls: 1,16,256]
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    at: Vec<usize>,
    /// How many idle event streams to hold open [default: 10000, quick: 1000]
    #[arg(long)]
    clients: Option<usize>,
    /// How often each figure is measured; the median counts [default: 3, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// The program to measure [default: a fresh release build]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Start,
    Reads,
    Writes,
    Fanout,
    Clients,
    Calls,
    Work,
    Verdicts,
    Git,
}

#[derive(clap::Subcommand)]
enum Role {
    /// Run the bare server in its own process
    #[command(hide = true)]
    BareServer(bare_server::Answers),
    /// Measure the memory index: insert, search, recall
    Memory(memory::Args),
    /// Measure how well memory finds paraphrases, and answers the questions of a LoCoMo file
    Recall(recall::Args),
    /// Measure many agents with a small memory each
    Crowd(crowd::Args),
    /// Run the bare server that commits before each answer
    #[command(hide = true)]
    DurableServer(durable_server::RowStorage),
}

/// The settings that all parts of a benchmark use.
struct Plan {
    binary: PathBuf,
    backend: Backend,
    rounds: usize,
    /// How long one measurement takes after the warm-up.
    window: Duration,
    clients: usize,
    /// How many requests are in progress at the same time.
    concurrencies: Vec<usize>,
    /// How many tool calls are in progress at the same time.
    calls: Vec<usize>,
}

impl Plan {
    /// Starts a server to measure, and makes a user with a token for it.
    async fn server(&self) -> Result<(Server, SocketAddr, User)> {
        // One user stands for a crowd here.
        let server =
            Server::build(&self.binary, self.backend).with("SERVER__USER_STREAMS", 1_000_000);
        let server = server.start().await;
        let address = process::address(&server.url)?;
        let user = server.user("bench");
        Ok((server, address, user))
    }
}

fn main() -> Result<()> {
    let mut args = Args::parse();
    match args.role.take_if(|role| matches!(role, Role::BareServer(_) | Role::DurableServer(_))) {
        Some(Role::BareServer(answers)) => return bare_server::run(answers),
        Some(Role::DurableServer(place)) => return durable_server::run(place),
        _ => {}
    }
    ensure!(!cfg!(debug_assertions), "a debug build measures nothing: make bench");
    let binary = match &args.binary {
        Some(path) => path.canonicalize()?,
        None => build()?,
    };
    // Durable writes need a real disk, and a temporary folder is often in memory.
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
    std::fs::create_dir_all(&place)?;
    let place = place.canonicalize()?;
    tempfile::env::override_temp_dir(&place).ok();
    let room = process::raise_open_files()?;
    if let Some(role) = &args.role {
        let plan = Plan {
            concurrencies: args.at.clone(),
            binary,
            backend: if args.postgres { Backend::Postgres } else { Backend::Sqlite },
            rounds: 1,
            window: Duration::from_secs(1),
            clients: 0,
            calls: Vec::new(),
        };
        return tokio::runtime::Runtime::new()?.block_on(async {
            match role {
                Role::BareServer(_) | Role::DurableServer(_) => unreachable!("it was run above"),
                Role::Memory(args) => memory::run(args, &plan).await,
                Role::Recall(args) => recall::run(args, &plan).await,
                Role::Crowd(args) => crowd::run(args, &plan).await,
            }
        });
    }
    // One thread only, so that the other core is free for the measured server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        // Dropping these futures ends and removes everything that was started.
        tokio::select! {
            report = measure(&args, &binary, room) => report,
            () = told_to_stop() => anyhow::bail!("stopped"),
        }
    })?;
    report.print(args.json)?;
    Ok(())
}

async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut term) => tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => std::future::pending().await,
    }
}

/// Builds the program to measure. If nothing has changed, this takes about a second.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--locked", "--quiet", "--bin", "atelier"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .status()
        .context("cannot run cargo")?;
    ensure!(built.success(), "cannot build atelier");
    let beside = std::env::current_exe()?.with_file_name("atelier");
    ensure!(beside.exists(), "no atelier beside this program: give --binary");
    Ok(beside)
}

async fn measure(args: &Args, binary: &Path, room: usize) -> Result<Report> {
    let mut report = Report::new().await?;
    let backends =
        if args.postgres { &[Backend::Sqlite, Backend::Postgres][..] } else { &[Backend::Sqlite] };
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    for &backend in backends {
        let plan = Plan {
            concurrencies: if args.at.is_empty() { vec![1, 16, 64] } else { args.at.clone() },
            calls: if args.at.is_empty() { vec![1, 16, 256] } else { args.at.clone() },
            binary: binary.to_owned(),
            backend,
            rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
            window: Duration::from_secs(if args.quick { 1 } else { 3 }),
            // Each stream is an open file on both sides.
            clients: args
                .clients
                .unwrap_or(if args.quick { 1000 } else { 10_000 })
                // A server gives one user at most three eighths of its files.
                .min(room / 3),
        };
        report.section(backend);
        if wanted(Part::Start) {
            start::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Reads) {
            reads::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Writes) {
            writes::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Fanout) {
            fanout::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Calls) {
            calls::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Work) {
            work::measure(&plan, &mut report).await?;
        }
        if wanted(Part::Clients) {
            clients::measure(&plan, &mut report).await?;
        }
    }
    if wanted(Part::Verdicts) {
        report.title("the policy, on one core");
        verdicts::measure(args.rounds.unwrap_or(if args.quick { 1 } else { 3 }), &mut report);
    }
    if wanted(Part::Git) {
        report.title("git through the gate, 10,000 commits");
        history::measure(args.rounds.unwrap_or(if args.quick { 1 } else { 3 }), &mut report)?;
    }
    Ok(report)
}
