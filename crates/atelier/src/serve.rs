//! `atelier serve`: runs the server from its configuration until it is stopped.

use crate::{
    config::{Config, Flags},
    entrance::Entrance,
    mcp_conversations::Conversations,
    mcp_mounts::Mounts,
    mcp_projects::Projects,
    telemetry,
};
use anyhow::{Context, Result};
use atelier_files::Files;
use atelier_memory::{Memory, OpenAiAccess};
use atelier_model::Models;
use atelier_runtime::{
    AgentServices, Budgets, Bus, Gate, ModelKeys, NodeHealth, OwnFiles,
    Settings as RuntimeSettings, Spaces,
};
use atelier_server::{App, Auth, Listening, Loads, LocalKey, Services};
use atelier_store::{KeyCheck, Store};
use chrono::Utc;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
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
    /// The address to listen on [env: ATELIER_LISTEN] [default: 127.0.0.1:7420]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Tls::is_empty")]
    server: Tls,
    /// Make the keys of this node those of all nodes, after the old ones were lost. All tokens and
    /// stored model keys end. Stop all other nodes first
    #[arg(long)]
    #[serde(skip)]
    new_keys: bool,
    /// Print the configuration that results from defaults, file, environment and flags, and exit
    #[arg(long)]
    #[serde(skip)]
    print_config: bool,
}

#[derive(clap::Args, Serialize)]
struct Tls {
    /// The TLS certificate (PEM file), to serve HTTPS without a proxy
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM file)
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
    // Started before the runtime, because the exporter of traces has a thread of its own.
    let _telemetry = telemetry::start(&config.telemetry)?;
    raise_file_limit();
    let token = token_command(&config, args.flags.config.as_deref());
    tokio::runtime::Runtime::new()?.block_on(serve(config, &token, args.new_keys))?;
    Ok(ExitCode::SUCCESS)
}

/// Raises the limit of open files as far as the system allows: every event stream is one, and the
/// usual limit is 1024.
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

/// How many files this process may have open, if that is limited.
#[cfg(unix)]
fn open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current
}

#[cfg(not(unix))]
fn open_files() -> Option<u64> {
    None
}

/// Prints to standard output. A closed pipe is ignored, because the server can run without it.
fn print_all(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "cannot print to standard output");
    }
}

async fn serve(config: Config, token_command: &str, new_keys: bool) -> Result<()> {
    let _lock = prepare_data_folder(&config)?;
    let metrics = install_metrics()?;
    let listening = Listening::bind(&config.listen, &config.server).await?;
    let entrance = Entrance::new(&listening, config.server.public_url.as_deref())?;
    let url = entrance.url().to_owned();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let app = build_app(&config, &url, metrics, &tasks, &stop, new_keys).await?;
    let sign_in = app.prepare_first_start().await?;
    let token_command = app.auth.is_local().then_some(token_command);
    print_all(&entrance.start_text(sign_in.as_deref(), token_command));
    tracing::info!(url, store = app.store.kind(), version = env!("CARGO_PKG_VERSION"), "serving");
    start_background(&app, config, &tasks);
    // The heartbeat goes on until this node holds nothing any more.
    let released = CancellationToken::new();
    let heartbeat = tokio::spawn(send_heartbeats(app.store.clone(), released.clone()));
    let served = atelier_server::serve(listening, app.clone()).await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    app.files.close().await;
    released.cancel();
    heartbeat.await?;
    app.store.close().await;
    tracing::info!("stopped");
    served.context("the server failed")
}

/// Creates the data folder for this user only. Returns a lock on it, if the database is in it.
fn prepare_data_folder(config: &Config) -> Result<Option<File>> {
    // New files are private, whatever the permissions of the folder are.
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    create_private(&config.data)?;
    config.database_url.is_none().then(|| lock(&config.data)).transpose()
}

fn install_metrics() -> Result<PrometheusHandle> {
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)?
        .install_recorder()
        .context("cannot set up metrics")?;
    crate::metrics::describe();
    Ok(metrics)
}

/// Opens every service from the configuration and puts the application together.
async fn build_app(
    config: &Config,
    url: &str,
    metrics: PrometheusHandle,
    tasks: &TaskTracker,
    stop: &CancellationToken,
    new_keys: bool,
) -> Result<App> {
    let store = Store::open(&config.store()).await?;
    let secret_error = || format!("cannot use the secret in {}", config.keys().display());
    let key = LocalKey::open(config.keys()).with_context(secret_error)?;
    let models = Models::new(&config.models, &config.providers)
        .context("cannot use the configured models")?;
    let openai = openai_access(&models);
    let model_keys =
        ModelKeys::open(store.clone(), config.keys(), models).with_context(secret_error)?;
    let keys = join_with_keys(config, &store, new_keys).await?;
    store.register_node().await?;
    let auth = Auth::open(config.auth.clone(), key, store.clone()).await?;
    let files = Files::open(
        config.files.clone(),
        config.object_store.as_deref(),
        &config.data,
        store.clone(),
    )
    .await
    .context("cannot use the object store for conversations' files")?;
    let runtime = RuntimeSettings {
        worker_space: config.worker_space.clone(),
        starter_pack: config.starter_pack.clone(),
    };
    let gate = Gate::new(store.clone(), &config.gate)
        .with_rules(config.policy.clone())
        .context("the configuration is not valid: policy")?
        .with_own_files(config.work.own_files);
    let memory = Memory::open(
        store.clone(),
        config.memory.clone(),
        openai.as_ref(),
        config.qdrant_url.as_deref(),
        &config.data,
    )
    .context("cannot use the memory index")?;
    let health =
        NodeHealth::new(store.clone(), memory.clone(), files.clone(), keys, config.data.clone());
    let spaces =
        Spaces::new(store.clone(), memory.clone(), health.clone(), runtime.worker_space.clone());
    let mounts = Mounts {
        url: config.server.public_url.as_deref().unwrap_or(url).trim_end_matches('/').to_owned(),
        max_body: config.server.file_body_limit,
        stop: stop.clone(),
    };
    let projects = Projects { gate: gate.clone(), mounts: mounts.clone() };
    let own_files = OwnFiles { files: files.clone(), gate: gate.clone() };
    let conversations =
        Conversations { own_files: own_files.clone(), tasks: tasks.clone(), mounts };
    let budgets = Budgets::new(store.clone(), config.work.budgets.clone());
    let bus = Bus::new(AgentServices {
        store: store.clone(),
        spaces: spaces.clone(),
        gate: gate.clone(),
        memory: memory.clone(),
        keys: model_keys.clone(),
        own_files,
        budgets: budgets.clone(),
        settings: config.work.clone(),
    });
    Ok(App::new(Services {
        bus,
        memory,
        gate,
        spaces,
        health,
        starter_pack: runtime.starter_agents(),
        files,
        settings: config.server.clone(),
        model_keys,
        budgets,
        mcp_projects: projects.handler(),
        mcp_conversations: conversations.handler(),
        store,
        auth,
        loads: Loads::new(&config.server, open_files()),
        metrics,
        stop: stop.clone(),
    }))
}

/// Compares the keys of this node with those of the other nodes. A node with other keys would
/// refuse everybody's tokens, and could not read the stored keys of model providers.
async fn join_with_keys(config: &Config, store: &Store, new_keys: bool) -> Result<Vec<KeyCheck>> {
    let folder = config.keys();
    let check = |file| {
        atelier_runtime::check_value(folder, file)
            .with_context(|| format!("cannot read {file} in {}", folder.display()))
    };
    let checks = vec![check("secret.key")?, check("models.key")?];
    // An embedded database has one node, which may get new keys whenever it starts.
    let is_alone = config.database_url.is_none();
    let differing = match is_alone && !new_keys {
        true => store.differing_keys(&checks).await?,
        false => Vec::new(),
    };
    for name in differing {
        tracing::warn!("{name} is new: what depends on the old one is not valid any more");
    }
    let differing = store.join_with_keys(checks.clone(), is_alone || new_keys).await?;
    if !differing.is_empty() {
        anyhow::bail!(
            "this node has another {} than the other nodes, so it would refuse everybody's tokens: \
             copy secret.key and models.key from another node to {}, or set ATELIER_KEYS to the \
             folder that all nodes share; only if the keys are lost, stop all nodes and start the \
             first one with --new-keys, which ends all tokens and stored model keys",
            differing.join(" and "),
            folder.display()
        );
    }
    Ok(checks)
}

/// How memory reaches OpenAI's embeddings, if the server has a key for them.
pub(crate) fn openai_access(models: &Models) -> Option<OpenAiAccess> {
    let (base_url, key) = models.openai()?;
    Some(OpenAiAccess { base_url, key })
}

/// Starts everything that runs beside the requests.
fn start_background(app: &App, config: Config, tasks: &TaskTracker) {
    let stop = &app.stop;
    tasks.spawn(stop_on_signal(app.clone()));
    let (bus, bus_stop) = (app.bus.clone(), stop.clone());
    let bus = async move { bus.run_background(bus_stop).await };
    tasks.spawn(stop_when_it_ends("the agent bus", stop.clone(), bus));
    let (memory, memory_stop) = (app.memory.clone(), stop.clone());
    let memory = async move { memory.run_background(memory_stop).await };
    tasks.spawn(stop_when_it_ends("the memory index", stop.clone(), memory));
    let upkeep = run_upkeep(app.clone(), config);
    tasks.spawn(stop_when_it_ends("the background work", stop.clone(), upkeep));
}

/// Buckets of the histograms in seconds, from a cached read to a request that is about to time out.
const BUCKETS: [f64; 13] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Runs background work. If it ends early, the server stops, because half a server is worse than
/// none.
async fn stop_when_it_ends(
    what: &str,
    stop: CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let ended = tokio::spawn(work).await;
    if !stop.is_cancelled() {
        tracing::error!(?ended, "{what} has ended unexpectedly; stopping the server");
        stop.cancel();
    }
}

/// Tells the other nodes regularly that this one is alive, so that they do not take over what it
/// holds.
async fn send_heartbeats(store: Store, end: CancellationToken) {
    let mut beats = tokio::time::interval(Duration::from_secs(1));
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = end.cancelled() => break,
            _ = beats.tick() => {
                if let Err(error) = store.renew_node().await {
                    tracing::warn!(%error, "cannot write the heartbeat of this node");
                }
            }
        }
    }
    if let Err(error) = store.unregister_node().await {
        tracing::warn!(%error, "cannot unregister this node");
    }
}

/// Runs the background work of all services until the server stops.
async fn run_upkeep(app: App, config: Config) {
    let sweep = async {
        let mut hours = tokio::time::interval(Duration::from_secs(3600));
        loop {
            hours.tick().await;
            // The store logs and remembers what is wrong.
            if let Err(error) = app.store.check_integrity().await {
                tracing::warn!(%error, "cannot check the database");
            }
            match app.store.sweep_events(config.retention(), Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed expired events"),
                Err(error) => tracing::warn!(%error, "cannot remove expired events"),
            }
            match app.store.sweep_sessions().await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed expired sign-in sessions"),
                Err(error) => tracing::warn!(%error, "cannot remove expired sign-in sessions"),
            }
            if let Err(error) = app.store.sweep_request_keys().await {
                tracing::warn!(%error, "cannot remove expired idempotency keys");
            }
            match app.store.sweep_usage(config.work.keep_usage_days, Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed old sums of usage"),
                Err(error) => tracing::warn!(%error, "cannot remove old sums of usage"),
            }
            match app.bus.sweep(Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed expired tasks"),
                Err(error) => tracing::warn!(%error, "cannot remove expired tasks"),
            }
            match app.gate.sweep(Utc::now()).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "removed expired tool calls"),
                Err(error) => tracing::warn!(%error, "cannot remove expired tool calls"),
            }
        }
    };
    let metrics = async {
        let mut seconds = tokio::time::interval(Duration::from_secs(5));
        loop {
            seconds.tick().await;
            // Keeps histograms from growing while nobody scrapes them.
            app.metrics.run_upkeep();
        }
    };
    let own_files = OwnFiles { files: app.files.clone(), gate: app.gate.clone() };
    tokio::select! {
        () = app.stop.cancelled() => {}
        () = app.spaces.clone().run_background(app.stop.clone()) => {}
        () = app.auth.run_background() => {}
        () = app.gate.run_background() => {}
        () = app.files.run_background() => {}
        () = own_files.run_background() => {}
        () = sweep => {}
        () = metrics => {}
    }
}

async fn stop_on_signal(app: App) {
    tokio::select! {
        signal = signal() => tracing::info!(signal, "stopping"),
        () = app.stop.cancelled() => {}
    }
    // A second signal stops the server immediately.
    tokio::spawn(async {
        let signal = signal().await;
        tracing::warn!(signal, "stopping immediately");
        std::process::exit(1);
    });
    app.health.drain();
    app.bus.drain();
    let nodes = tokio::time::timeout(Duration::from_secs(1), app.store.live_nodes()).await;
    if matches!(nodes, Ok(Ok(2..))) {
        tracing::info!("other nodes take over; this one serves a little longer");
        tokio::select! {
            () = tokio::time::sleep(app.settings.drain) => {}
            () = app.stop.cancelled() => {}
        }
    }
    app.stop.cancel();
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

/// The command that makes a token for the owner. It works in any terminal of this machine, because
/// it names this program and this data folder.
fn token_command(config: &Config, file: Option<&Path>) -> String {
    let mut words = vec![program(), "token".into(), "--user".into(), atelier_server::OWNER.into()];
    words.extend(["--role".into(), "admin".into()]);
    let whole =
        |path: &Path| quoted(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    if let Some(file) = file {
        words.extend(["--config".into(), whole(file)]);
    }
    if config.data != Config::default().data {
        words.extend(["--data".into(), whole(&config.data)]);
    }
    words.join(" ")
}

/// The name of this program if the shell finds it by that name, otherwise its path, as after `make
/// run`.
fn program() -> String {
    const NAME: &str = "atelier";
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|file| file.is_file())
    });
    let same =
        |exe: &Path| found.and_then(|found| found.canonicalize().ok()) == exe.canonicalize().ok();
    match std::env::current_exe() {
        Ok(exe) if !same(&exe) => quoted(&exe),
        _ => NAME.into(),
    }
}

/// A path, quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Creates a folder that only the current user can read.
pub(crate) fn create_private(data: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(data)
        .with_context(|| format!("cannot create the data folder {}", data.display()))
}

/// Locks the data folder, because only one server may use an embedded database.
pub(crate) fn lock(data: &Path) -> Result<File> {
    let path = data.join("lock");
    let file =
        File::create(&path).with_context(|| format!("cannot write to {}", data.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            anyhow::bail!(
                "another Atelier server is using {}: stop it, or choose another folder with --data",
                data.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}
