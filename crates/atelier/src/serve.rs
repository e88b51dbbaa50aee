//! `atelier serve`: the server from its configuration to its end.

use crate::{
    config::{Config, Flags},
    mcp_conversations::Conversations,
    mcp_mounts::Mounts,
    mcp_projects::Projects,
    telemetry,
};
use anyhow::{Context, Result};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_model::Models;
use atelier_runtime::{AgentServices, Bus, Gate, ModelKeys, Settings as RuntimeSettings, Spaces};
use atelier_server::{App, Auth, Listening, LocalKey, Services};
use atelier_store::Store;
use chrono::Utc;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde::Serialize;
use std::{
    fs::{File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    flags: Flags,
    /// The address to serve on [env: ATELIER_LISTEN] [default: 127.0.0.1:7420]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Tls::is_empty")]
    server: Tls,
    /// Show the configuration that results from defaults, file, environment and flags, and stop
    #[arg(long)]
    #[serde(skip)]
    print_config: bool,
}

#[derive(clap::Args, Serialize)]
struct Tls {
    /// A certificate (PEM), to serve over TLS without a proxy
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
}

impl Tls {
    fn is_empty(&self) -> bool {
        self.tls_cert.is_none()
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(args.flags.config.as_deref(), args)?;
    if args.print_config {
        print_all(&config.shown()?);
        return Ok(ExitCode::SUCCESS);
    }
    // Before the runtime: the exporter of traces brings a thread of its own.
    let _telemetry = telemetry::start(&config.telemetry)?;
    raise_file_limit();
    let token = token_command(&config, args.flags.config.as_deref());
    tokio::runtime::Runtime::new()?.block_on(serve(config, &token))?;
    Ok(ExitCode::SUCCESS)
}

/// Every stream is an open file, and the usual limit is a thousand: take what the system allows.
#[cfg(unix)]
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(not(unix))]
fn raise_file_limit() {}

/// Prints, whether or not anybody reads it: a closed pipe is no reason to stop.
fn print_all(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "nobody reads standard output");
    }
}

async fn serve(config: Config, token: &str) -> Result<()> {
    // Whatever the folder allows: what is in it is for this user.
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    create_private(&config.data)?;
    let _lock = config.database_url.is_none().then(|| lock(&config.data)).transpose()?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)?
        .install_recorder()
        .context("cannot set up metrics")?;
    crate::metrics::describe();
    let listening = Listening::bind(&config.listen, &config.server).await?;
    let store = Store::open(&config.store()).await?;
    store.register_node().await?;
    let key = LocalKey::open(&config.data)
        .with_context(|| format!("cannot use the secret in {}", config.data.display()))?;
    let models = Models::new(&config.models, &config.providers).context("the models cannot be used")?;
    let model_keys = ModelKeys::open(store.clone(), &config.data)
        .with_context(|| format!("cannot use the secret in {}", config.data.display()))?;
    let auth = Auth::open(config.auth.clone(), key, store.clone()).await?;
    let files =
        Files::open(config.files.clone(), config.object_store.as_deref(), &config.data, store.clone());
    let files = files.await.context("cannot use the place for conversations' files")?;
    let runtime = RuntimeSettings {
        worker_space: config.worker_space.clone(),
        starter_pack: config.starter_pack.clone(),
    };
    let gate = Gate::new(store.clone(), &config.gate)
        .with_rules(config.policy.clone())
        .context("the configuration is not valid: policy")?;
    let stop = CancellationToken::new();
    let memory =
        Memory::open(store.clone(), config.memory.clone(), config.qdrant_url.as_deref(), &config.data)
            .context("memory cannot be used")?;
    let spaces = Spaces::new(store.clone(), memory.clone(), runtime.worker_space.clone());
    let url = listening.url()?;
    let public_url = config.server.public_url.clone().unwrap_or_else(|| url.clone());
    let tasks = TaskTracker::new();
    let mounts = Mounts {
        url: public_url.trim_end_matches('/').to_owned(),
        max_body: config.server.file_body_limit,
        stop: stop.clone(),
    };
    let projects = Projects { gate: gate.clone(), mounts: mounts.clone() };
    let conversations = Conversations {
        store: store.clone(),
        files: files.clone(),
        gate: gate.clone(),
        changes: config.work.own_files,
        tasks: tasks.clone(),
        mounts,
    };
    let app = App::new(Services {
        bus: Bus::new(AgentServices {
            store: store.clone(),
            spaces: spaces.clone(),
            gate: gate.clone(),
            memory: memory.clone(),
            models: models.clone(),
            keys: model_keys.clone(),
            files: files.clone(),
            settings: config.work.clone(),
        }),
        memory,
        gate,
        spaces,
        starter_pack: runtime.starter_agents(),
        files,
        settings: config.server.clone(),
        models,
        model_keys,
        mcp_projects: projects.door(),
        mcp_conversations: conversations.door(),
        store,
        auth,
        metrics,
        stop: stop.clone(),
    });
    let sign_in = app.prepare_first_start().await?;
    let token = app.auth.is_local().then_some(token);
    greet(&url, sign_in.as_deref(), token);
    tracing::info!(url, store = app.store.kind(), version = env!("CARGO_PKG_VERSION"), "serving");

    tasks.spawn(stop_on_signal(stop.clone()));
    let bus = (app.bus.clone(), stop.clone());
    tasks.spawn(watch_over(
        "what runs tasks",
        stop.clone(),
        async move { bus.0.run_background(bus.1).await },
    ));
    let memory = (app.memory.clone(), stop.clone());
    tasks.spawn(watch_over("what feeds the index", stop.clone(), async move {
        memory.0.run_background(memory.1).await
    }));
    tasks.spawn(watch_over("what goes on beside the requests", stop.clone(), tend(app.clone(), config)));
    // Until nothing is in its hands any more.
    let end = CancellationToken::new();
    let living = tokio::spawn(live(app.store.clone(), end.clone()));
    let served = atelier_server::serve(listening, app.clone()).await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    app.files.close().await;
    end.cancel();
    living.await?;
    app.store.close().await;
    tracing::info!("stopped");
    served.context("the server failed")
}

/// Seconds; from a cached read to a request that is about to time out.
const BUCKETS: [f64; 13] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Tends, and stops the server if that ends before its time: half a server is worse than none.
async fn watch_over(what: &str, stop: CancellationToken, tending: impl Future<Output = ()> + Send + 'static) {
    let ended = tokio::spawn(tending).await;
    if !stop.is_cancelled() {
        tracing::error!(?ended, "{what} has ended; stopping");
        stop.cancel();
    }
}

/// Says that this server is there, whatever else it is busy with, so that no other takes for left what it holds.
async fn live(store: Store, end: CancellationToken) {
    let mut beats = tokio::time::interval(Duration::from_secs(1));
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = end.cancelled() => break,
            _ = beats.tick() => {
                if let Err(error) = store.renew_node().await {
                    tracing::warn!(%error, "cannot say that this server is there");
                }
            }
        }
    }
    if let Err(error) = store.unregister_node().await {
        tracing::warn!(%error, "cannot say goodbye to the other servers");
    }
}

/// What goes on beside the requests, until the server stops.
async fn tend(app: App, config: Config) {
    let sweep = async {
        let mut hours = tokio::time::interval(Duration::from_secs(3600));
        loop {
            hours.tick().await;
            match app.store.sweep_events(config.retention(), Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed events that were kept long enough"),
                Err(error) => tracing::warn!(%error, "cannot remove old events"),
            }
            match app.gate.sweep(Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed tool calls that were kept long enough"),
                Err(error) => tracing::warn!(%error, "cannot remove old tool calls"),
            }
        }
    };
    let upkeep = async {
        let mut seconds = tokio::time::interval(Duration::from_secs(5));
        loop {
            seconds.tick().await;
            // Keeps histograms from growing while nobody scrapes them.
            app.metrics.run_upkeep();
        }
    };
    tokio::select! {
        () = app.stop.cancelled() => {}
        () = app.spaces.clone().run_background(app.stop.clone()) => {}
        () = app.auth.run_background() => {}
        () = app.gate.tend() => {}
        () = app.files.run_background() => {}
        () = sweep => {}
        () = upkeep => {}
    }
}

async fn stop_on_signal(stop: CancellationToken) {
    tokio::select! {
        signal = signal() => tracing::info!(signal, "stopping"),
        () = stop.cancelled() => {}
    }
    stop.cancel();
    // Who asks twice does not want to wait for anything.
    tokio::spawn(async {
        let signal = signal().await;
        tracing::warn!(signal, "stopping at once");
        std::process::exit(1);
    });
}

#[cfg(unix)]
async fn signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (term, int) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut term), Ok(mut int)) = (term, int) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}

#[cfg(not(unix))]
async fn signal() -> &'static str {
    match tokio::signal::ctrl_c().await {
        Ok(()) => "Ctrl-C",
        Err(_) => std::future::pending().await,
    }
}

/// The address, the way in, and on the very first start a link that signs in once. On standard output, not in the
/// log: whoever collects logs should not find such a link.
///
/// The address comes last: whoever waits for it has heard everything.
fn greet(url: &str, sign_in: Option<&str>, token: Option<&str>) {
    let link = sign_in.map(|code| {
        format!(
            "\n  Sign in once, within a day:  {url}/#sign-in={code}\n  \
             A project and four agents are waiting; the project's page says how to let them at a folder.\n\n"
        )
    });
    let token =
        token.map(|command| format!("  A token for the console or for `atelier login`:\n    {command}\n\n"));
    let [link, token] = [link, token].map(Option::unwrap_or_default);
    print_all(&format!("{link}{token}Atelier is listening on {url}\n"));
}

/// What gives the owner a token, as it works in any other terminal of this machine: with the program and the data
/// that serve here.
fn token_command(config: &Config, file: Option<&Path>) -> String {
    let mut words = vec![program(), "token".into(), "--user".into(), atelier_server::OWNER.into()];
    words.extend(["--role".into(), "admin".into()]);
    let whole = |path: &Path| quoted(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    if let Some(file) = file {
        words.extend(["--config".into(), whole(file)]);
    }
    if config.data != Config::default().data {
        words.extend(["--data".into(), whole(&config.data)]);
    }
    words.join(" ")
}

/// This program by its name where that finds it, and by its path elsewhere: after `make run` no shell knows the name.
fn program() -> String {
    const NAME: &str = "atelier";
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|file| file.is_file())
    });
    let same = |exe: &Path| found.and_then(|found| found.canonicalize().ok()) == exe.canonicalize().ok();
    match std::env::current_exe() {
        Ok(exe) if !same(&exe) => quoted(&exe),
        _ => NAME.into(),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Only the user who runs the server may look into its data.
pub(crate) fn create_private(data: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(data).with_context(|| format!("cannot create the data folder {}", data.display()))
}

/// Two servers on one embedded database would each believe to be alone.
fn lock(data: &Path) -> Result<File> {
    let path = data.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write to {}", data.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            anyhow::bail!("another atelier is serving {}: stop it, or give another --data", data.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}
