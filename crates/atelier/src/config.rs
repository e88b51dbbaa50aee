//! One configuration in layers: defaults, `atelier.toml`, environment, flags.

use anyhow::{Context, Result};
use atelier_core::policy::Extension;
use atelier_model::{ModelsConfig, Providers, known_providers};
use atelier_runtime::{GateSettings, StarterAgent, WorkSettings, WorkerSpaceSettings};
use atelier_server::AuthSettings;
use atelier_store::Retention;
use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

const FILE: &str = "atelier.toml";

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The folder for everything that is not configured to be elsewhere.
    pub(crate) data: PathBuf,
    /// The folder with `secret.key` and `models.key`, which all nodes must share, such as a mounted
    /// secret. The default is the data folder.
    pub(crate) keys: Option<PathBuf>,
    /// The address to serve on.
    pub(crate) listen: String,
    /// `postgres://…` instead of the embedded database.
    pub(crate) database_url: Option<String>,
    /// How many connections to PostgreSQL this node opens at most, 8 or more. All nodes together
    /// need fewer than `max_connections` of the database server.
    pub(crate) database_connections: u32,
    /// `redis://…` or `rediss://…` (TLS) of a Redis or Valkey server that carries messages between
    /// nodes instead of PostgreSQL. All nodes need the same one.
    pub(crate) redis_url: Option<String>,
    /// `http://…:6334` of a Qdrant server instead of the embedded index.
    pub(crate) qdrant_url: Option<String>,
    pub(crate) memory: atelier_memory::Settings,
    /// Where files of conversations are stored: `file:///…`, `s3://…`, `gs://…` or `az://…`. The
    /// default is the data folder.
    pub(crate) object_store: Option<String>,
    pub(crate) server: atelier_server::Settings,
    pub(crate) auth: AuthSettings,
    pub(crate) events: EventSettings,
    pub(crate) worker_space: WorkerSpaceSettings,
    pub(crate) gate: GateSettings,
    pub(crate) files: atelier_files::Settings,
    pub(crate) work: WorkSettings,
    pub(crate) models: ModelsConfig,
    /// Providers of models, by name.
    pub(crate) providers: Providers,
    /// Rules for tool calls in addition to the built-in ones.
    pub(crate) policy: Extension,
    pub(crate) telemetry: TelemetrySettings,
    /// The agents that a new project begins with.
    pub(crate) starter_pack: Vec<StarterAgent>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EventSettings {
    /// How many days events are kept.
    pub(crate) keep_days: u32,
    /// How many events of a project are kept.
    pub(crate) keep_events: u32,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TelemetrySettings {
    /// Where to send traces over OTLP/HTTP, such as `http://localhost:4318`.
    pub(crate) otlp_endpoint: Option<String>,
}

impl Default for EventSettings {
    fn default() -> Self {
        Self { keep_days: 30, keep_events: 100_000 }
    }
}

impl Default for Config {
    fn default() -> Self {
        let runtime = atelier_runtime::Settings::default();
        Self {
            data: dirs::data_dir().unwrap_or_default().join("atelier"),
            keys: None,
            listen: "127.0.0.1:7420".into(),
            database_url: None,
            database_connections: atelier_store::Settings::default().connections,
            redis_url: None,
            qdrant_url: None,
            memory: atelier_memory::Settings::default(),
            object_store: None,
            server: atelier_server::Settings::default(),
            auth: AuthSettings::default(),
            events: EventSettings::default(),
            worker_space: runtime.worker_space,
            gate: GateSettings::default(),
            files: atelier_files::Settings::default(),
            work: WorkSettings::default(),
            models: ModelsConfig::default(),
            providers: known_providers(),
            policy: Extension::default(),
            telemetry: TelemetrySettings::default(),
            starter_pack: runtime.starter_pack,
        }
    }
}

/// The flags that are settings. A flag that is not given changes nothing.
#[derive(Debug, Default, clap::Args, Serialize)]
pub(crate) struct Flags {
    /// The configuration file [default: atelier.toml in the current folder, if it exists]
    #[arg(long, env = "ATELIER_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// The data folder [env: ATELIER_DATA] [default: atelier in the user's data folder]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
}

/// Settings from environment variables with names that other programs use. Our own variables
/// override them.
fn common_variables() -> Result<figment::value::Dict> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut files = figment::value::Dict::new();
    for (name, key) in [
        ("S3_WORKSPACE_PREFIX", "prefix"),
        ("WORKSPACE_TEMP_DIR", "cache"),
        ("MAX_UPLOAD_FILE_SIZE", "max_upload"),
    ] {
        if let Some(value) = variable(name) {
            // Only max_upload is a number: a folder may be called 5.
            let value = match key {
                "max_upload" => {
                    let bytes: u64 = value
                        .parse()
                        .with_context(|| format!("{name}: {value:?} is not a number of bytes"))?;
                    bytes.into()
                }
                _ => figment::value::Value::from(value),
            };
            files.insert(key.into(), value);
        }
    }
    let mut settings = figment::value::Dict::new();
    if !files.is_empty() {
        settings.insert("files".into(), files.into());
    }
    if let Some(bucket) = variable("S3_BUCKET_NAME") {
        settings.insert("object_store".into(), format!("s3://{bucket}").into());
    }
    Ok(settings)
}

impl Config {
    /// Merges the layers. `flags` come last and override the others.
    pub(crate) fn load(file: Option<&Path>, flags: impl Serialize) -> Result<Self> {
        let defaults = Config::default();
        let known = Figment::from(Serialized::defaults(&defaults));
        let keys: Vec<String> = known.extract::<figment::value::Dict>()?.into_keys().collect();
        let file = match file {
            Some(path) if !path.exists() => {
                anyhow::bail!("the configuration file {} does not exist", path.display())
            }
            Some(path) => Toml::file_exact(path),
            None if Path::new(FILE).exists() => Toml::file_exact(FILE),
            None => Toml::string(""),
        };
        // Other ATELIER_ variables, such as ATELIER_TOKEN, are not settings of the server.
        let environment = Env::prefixed("ATELIER_")
            .filter(move |key| {
                let first = key.as_str().split("__").next().unwrap_or_default();
                keys.iter().any(|known| first.eq_ignore_ascii_case(known))
            })
            .split("__");
        let figment = known
            .merge(file)
            .merge(Serialized::defaults(common_variables()?))
            .merge(environment)
            .merge(Serialized::defaults(flags));
        let mut config: Config = figment.extract().context("the configuration is not valid")?;
        config.check()?;
        Ok(config)
    }

    fn check(&mut self) -> Result<()> {
        if self.data.as_os_str().is_empty() {
            anyhow::bail!(
                "there is no home folder for the data: choose a folder with --data or ATELIER_DATA"
            );
        }
        for url in [&mut self.database_url, &mut self.redis_url, &mut self.qdrant_url] {
            *url = url.take().filter(|url| !url.is_empty());
        }
        if let Some(url) = &self.qdrant_url
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            anyhow::bail!(
                "qdrant_url must start with http:// or https:// (leave it out to use the embedded \
                 index)"
            );
        }
        self.keys = self.keys.take().filter(|folder| !folder.as_os_str().is_empty());
        if self.object_store.as_deref() == Some("") {
            self.object_store = None;
        }
        if let Some(url) = &self.database_url
            && !url.starts_with("postgres://")
            && !url.starts_with("postgresql://")
        {
            anyhow::bail!(
                "database_url must start with postgres:// (leave it out to use the embedded \
                 database)"
            );
        }
        if let Some(url) = &self.redis_url {
            anyhow::ensure!(
                url.starts_with("redis://") || url.starts_with("rediss://"),
                "redis_url must start with redis:// or rediss:// (leave it out to let PostgreSQL \
                 carry the messages between nodes)"
            );
            anyhow::ensure!(
                self.database_url.is_some(),
                "redis_url is for several nodes, which need PostgreSQL: set database_url, or leave \
                 redis_url out"
            );
        }
        self.work.budgets.validate().context("work.budgets")?;
        let least = atelier_store::Settings::MIN_CONNECTIONS;
        anyhow::ensure!(
            self.database_connections >= least,
            "database_connections must be at least {least}"
        );
        let mut names = HashSet::new();
        for agent in &self.starter_pack {
            agent.config.validate().with_context(|| format!("starter_pack: {}", agent.name))?;
            if !names.insert(agent.name.as_str()) {
                anyhow::bail!("starter_pack: {} appears twice", agent.name);
            }
        }
        for (what, time) in [
            ("server.heartbeat", self.server.heartbeat),
            ("server.request_timeout", self.server.request_timeout),
            ("server.write_timeout", self.server.write_timeout),
            ("files.store_timeout", self.files.store_timeout),
            ("files.lease", self.files.lease),
        ] {
            anyhow::ensure!(!time.is_zero(), "{what} must not be 0");
        }
        for (what, limit) in [
            ("server.user_requests", self.server.user_requests),
            ("server.user_streams", self.server.user_streams),
            ("gate.max_open_calls", self.gate.max_open_calls as usize),
        ] {
            anyhow::ensure!(limit > 0, "{what} must not be 0: nobody could use the server");
        }
        let spaces = &self.worker_space;
        anyhow::ensure!(spaces.max_active > 0, "worker_space.max_active must not be 0");
        anyhow::ensure!(spaces.agent_cache > 0, "worker_space.agent_cache must not be 0");
        Ok(())
    }

    /// The folder with the keys that all nodes share.
    pub(crate) fn keys(&self) -> &Path {
        self.keys.as_deref().unwrap_or(&self.data)
    }

    pub(crate) fn store(&self) -> atelier_store::Settings {
        atelier_store::Settings {
            data: self.data.clone(),
            database_url: self.database_url.clone(),
            connections: self.database_connections,
            redis_url: self.redis_url.clone(),
        }
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention { days: self.events.keep_days, events: self.events.keep_events }
    }

    /// The configuration as TOML, with secrets masked.
    pub(crate) fn shown(&self) -> Result<String> {
        let mut shown = self.clone();
        let secrets = [
            &mut shown.database_url,
            &mut shown.redis_url,
            &mut shown.object_store,
            &mut shown.auth.jwks,
            &mut shown.telemetry.otlp_endpoint,
        ];
        for secret in secrets {
            *secret = secret.take().map(|url| match url.contains("://") {
                true => atelier_store::masked(&url),
                false => url,
            });
        }
        shown.qdrant_url = shown.qdrant_url.take().map(|url| atelier_store::masked(&url));
        shown.memory.hide_keys();
        for provider in shown.providers.values_mut() {
            provider.base_url = atelier_store::masked(&provider.base_url);
        }
        Ok(toml::to_string_pretty(&shown)?)
    }
}
