//! `atelier doctor`: finds out what is wrong, and says how to fix it.

use crate::{
    config::{Config, Flags},
    serve::openai_access,
};
use anyhow::Result;
use atelier_client::{ApiClient, detect_isolation, detect_layers};
use atelier_core::isolation::{NetworkIsolation, ProcessIsolation};
use atelier_core::policy::ShellMode;
use atelier_files::Files;
use atelier_memory::Embedders;
use atelier_model::{KeySource, ModelAccess, ModelError, Models};
use atelier_server::{Listening, LocalKey};
use atelier_store::{Schema, Store};
use serde::Serialize;
use std::{path::Path, process::ExitCode, time::Duration};

#[derive(clap::Args, Serialize)]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    flags: Flags,
}

/// The result of one check.
struct Finding {
    what: &'static str,
    outcome: Result<String, Defect>,
}

struct Defect {
    problem: String,
    remedy: String,
}

fn defect(problem: impl ToString, remedy: impl Into<String>) -> Defect {
    Defect { problem: problem.to_string(), remedy: remedy.into() }
}

#[expect(clippy::print_stdout, reason = "the command prints its report")]
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = match Config::load(args.flags.config.as_deref(), args) {
        Ok(config) => config,
        Err(error) => {
            println!(
                "✗ configuration: {error:#}\n    fix it in atelier.toml or in the ATELIER_ \
                 environment variables"
            );
            return Ok(ExitCode::FAILURE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(examine(&config));
    let mut code = ExitCode::SUCCESS;
    for finding in findings {
        match finding.outcome {
            Ok(good) => println!("✓ {}: {good}", finding.what),
            Err(defect) => {
                println!("✗ {}: {}\n    {}", finding.what, defect.problem, defect.remedy);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = vec![
        Finding { what: "configuration", outcome: Ok("valid".into()) },
        Finding { what: "data folder", outcome: data_folder(&config.data) },
        Finding { what: "secret", outcome: secret(config) },
        Finding { what: "database", outcome: database(config).await },
        Finding { what: "object store", outcome: object_store(config).await },
        Finding { what: "models", outcome: models(config).await },
        Finding { what: "memory", outcome: memory(config) },
        Finding { what: "address", outcome: address(config).await },
    ];
    if let Some(url) = &config.redis_url {
        findings.push(Finding { what: "Redis", outcome: redis(url).await });
    }
    if config.auth.jwks.is_some() {
        findings.push(Finding { what: "identity provider", outcome: provider(config).await });
    }
    if let Some(endpoint) = &config.telemetry.otlp_endpoint {
        findings.push(Finding { what: "traces", outcome: collector(endpoint).await });
    }
    findings.push(Finding { what: "sandbox", outcome: Ok(sandbox()) });
    findings
}

/// What this machine can enforce for commands and scripts, one line each. A machine that lacks
/// something can still be a server, so it is no defect.
fn sandbox() -> String {
    let found = detect_isolation();
    let mut lines = vec!["what commands and scripts on this machine are limited by".to_owned()];
    let mut line = |has: bool, what: &str, remedy: &str| {
        lines.push(match has {
            true => format!("    ✓ {what}"),
            false => format!("    – {what}: missing. {remedy}"),
        });
    };
    let spaces = "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 or, on Ubuntu, \
                  install the AppArmor profile of docs/shell.md.";
    line(found.landlock > 0, "Landlock (files)", "It needs Linux 5.13 with Landlock enabled.");
    line(found.mounts, "mount namespace (read-only system, hidden secrets)", spaces);
    line(
        found.network == NetworkIsolation::NamespaceAndSeccomp,
        "network namespace and seccomp (no network)",
        spaces,
    );
    line(
        found.processes == ProcessIsolation::PidNamespace,
        "pid namespace (processes end with their command)",
        spaces,
    );
    line(found.process_limit.is_some(), "limit of processes", "It needs Linux 6.14 for root.");
    let layers = detect_layers();
    let why = layers.as_ref().err().map(ToString::to_string).unwrap_or_default();
    line(
        layers.is_ok(),
        "layers for the shell (overlay mount)",
        &format!("{why} It needs Linux 5.11 and user namespaces."),
    );
    lines.push(
        "    – memory and processor time are limited for each process. To limit the whole, start \
         atelier with: systemd-run --user --scope -p MemoryMax=8G -p CPUQuota=200%"
            .to_owned(),
    );
    let mode = match layers {
        Ok(()) => ShellMode::of(&found),
        Err(_) => ShellMode::Off,
    };
    lines.push(format!(
        "    shell: {}",
        match mode {
            ShellMode::Free => "scripts run in a layer without a question",
            ShellMode::Ask => "every script needs approval",
            ShellMode::Off => "off",
        }
    ));
    lines.join("\n")
}

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).is_ok()
}

fn data_folder(data: &Path) -> Result<String, Defect> {
    let path = data.display();
    if !data.exists() {
        let nearest = data.ancestors().find(|folder| folder.exists());
        return match nearest {
            Some(folder) if folder.is_dir() && writable(folder) => {
                Ok(format!("{path} will be created at the first start"))
            }
            _ => Err(defect(
                format!("{path} cannot be created"),
                "choose another folder with --data",
            )),
        };
    }
    let probe = data.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(|error| {
        defect(
            format!("cannot write to {path}: {error}"),
            "give the user who runs Atelier write access, or choose another folder with --data",
        )
    })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::metadata(data).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
        if open {
            return Err(defect(
                format!("other users can read {path}"),
                format!("run: chmod 700 {path}"),
            ));
        }
    }
    Ok(format!("{path} is writable"))
}

fn secret(config: &Config) -> Result<String, Defect> {
    let path = config.keys().join("secret.key");
    if !path.exists() {
        return Ok("will be created at the first start".into());
    }
    LocalKey::open(config.keys()).map_err(|error| {
        defect(
            error,
            "restore the file from a backup, or remove it: all tokens become invalid then",
        )
    })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A mounted secret belongs to root, and its reader is in its group.
        let others = if config.keys.is_some() { 0o007 } else { 0o077 };
        let open =
            std::fs::metadata(&path).is_ok_and(|meta| meta.permissions().mode() & others != 0);
        if open {
            let path = path.display();
            return Err(defect(
                format!("other users can read {path}"),
                format!("run: chmod 600 {path}"),
            ));
        }
    }
    Ok("present, other users cannot read it".into())
}

async fn database(config: &Config) -> Result<String, Defect> {
    let settings = config.store();
    // All of an embedded database is read, which may take a while.
    let patience = Duration::from_secs(if settings.database_url.is_some() { 10 } else { 120 });
    match tokio::time::timeout(patience, Store::examine(&settings)).await {
        Err(_) => Err(defect(
            format!("the database did not answer within {} seconds", patience.as_secs()),
            "check the address and the network",
        )),
        Ok(Err(error)) => Err(defect(
            format!("{:#}", anyhow::Error::from(error)),
            match config.database_url {
                Some(_) => {
                    "check database_url, and that the database server is running and accepts the \
                     login"
                }
                None => {
                    "restore the file from a backup, or move it away to start with an empty \
                     database"
                }
            },
        )),
        Ok(Ok(Schema::Missing)) => Ok("empty; will be set up at the first start".into()),
        Ok(Ok(Schema::Known { found, known, .. })) if found == known => {
            Ok(format!("answers, schema {found}"))
        }
        Ok(Ok(Schema::Known { found, known, .. })) if found < known => {
            Ok(format!("answers, schema {found}; will be migrated to {known} at the next start"))
        }
        Ok(Ok(Schema::Known { found, is_usable: true, .. })) => {
            Ok(format!("answers, schema {found} of a newer version, which this version can use"))
        }
        Ok(Ok(Schema::Known { found, known, .. })) => Err(defect(
            format!(
                "the database has schema {found}, but this version supports only schemas up to \
                 {known}"
            ),
            "run a newer version of Atelier, or restore an older backup",
        )),
    }
}

async fn redis(url: &str) -> Result<String, Defect> {
    match Store::ping_redis(url).await {
        Ok(()) => Ok("answers".into()),
        Err(error) => Err(defect(
            error,
            "check redis_url, and that the Redis server is running and accepts the login",
        )),
    }
}

async fn object_store(config: &Config) -> Result<String, Defect> {
    let found = Files::examine(&config.files, config.object_store.as_deref(), &config.data).await;
    found.map_err(|error| {
        defect(
            error,
            "check object_store, the credentials in the environment, and that the bucket exists",
        )
    })
}

/// How long a provider may take to answer the test of its key.
const MODEL_TIME: Duration = Duration::from_secs(30);

/// Checks what the agents' models resolve to, and tries every key of the configuration with a real
/// request. Keys that people have entered in the console are tried by `atelier models test`.
async fn models(config: &Config) -> Result<String, Defect> {
    let models = Models::new(&config.models, &config.providers)
        .map_err(|error| defect(error, "fix [models] or [providers] in atelier.toml"))?;
    let access = ModelAccess::default();
    let asked = config.starter_pack.iter().map(|agent| agent.config.model.as_str());
    let mut answers = Vec::new();
    for name in asked.collect::<std::collections::BTreeSet<_>>() {
        match models.resolve(name, &access).await {
            Ok(model) => answers.push(format!("{name} is answered by {}", model.name())),
            // This is not an error: tenants can have keys of their own.
            Err(error @ ModelError::NoKey { .. }) => answers.push(format!("{name}: {error}")),
            Err(error) => {
                return Err(defect(
                    format!("{name}: {error}"),
                    "fix starter_pack or [models] in atelier.toml",
                ));
            }
        }
    }
    let has_key = |name: &&str| models.key_source(name, &access) == KeySource::Configuration;
    for provider in models.providers(&access).into_iter().filter(has_key) {
        let test = tokio::time::timeout(MODEL_TIME, models.test(provider, None, &access)).await;
        match test {
            Ok(Ok(tested)) => answers.push(format!(
                "the key for {provider} works ({} answered in {} ms)",
                tested.model,
                tested.time.as_millis()
            )),
            Ok(Err(error)) => {
                return Err(defect(error.in_plain_words(), "fix the key, or remove it"));
            }
            Err(_) => {
                return Err(defect(
                    format!("{provider} did not answer within {} seconds", MODEL_TIME.as_secs()),
                    "check the network and the provider's address",
                ));
            }
        }
    }
    Ok(answers.join(", "))
}

fn memory(config: &Config) -> Result<String, Defect> {
    let models = Models::new(&config.models, &config.providers)
        .map_err(|error| defect(error, "fix [models] or [providers] in atelier.toml"))?;
    let openai = openai_access(&models);
    let embedders = Embedders::open(&config.memory, &config.data, openai.as_ref())
        .map_err(|error| defect(error, "fix memory.embedder in atelier.toml"))?;
    match embedders.fallback() {
        None => Ok(format!("vectors by {}", embedders.describe())),
        Some(why) => Err(defect(
            why,
            "or choose the built-in embedder with memory.embedder.kind = \"builtin\"",
        )),
    }
}

async fn address(config: &Config) -> Result<String, Defect> {
    let tls = (&config.server.tls_cert, &config.server.tls_key);
    match Listening::bind(&config.listen, &config.server).await {
        Ok(_) => Ok(format!("{} is free", config.listen)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let scheme = if tls.0.is_some() { "https" } else { "http" };
            let api = ApiClient::anonymous("doctor", &format!("{scheme}://{}", config.listen));
            let is_atelier = match api {
                Ok(api) => api.is_atelier(Duration::from_secs(3)).await,
                Err(_) => false,
            };
            match is_atelier {
                true => Ok(format!("an Atelier server is running on {}", config.listen)),
                false => Err(defect(
                    format!("another program uses {}", config.listen),
                    "stop that program, or choose another address with --listen",
                )),
            }
        }
        Err(error) => Err(defect(error, "check listen, tls_cert and tls_key")),
    }
}

async fn provider(config: &Config) -> Result<String, Defect> {
    match atelier_server::check_keys(&config.auth).await {
        Ok(count) => Ok(format!("{count} keys")),
        Err(error) => Err(defect(
            error,
            "check auth.jwks: it must be a file or an address with a JSON Web Key Set",
        )),
    }
}

async fn collector(endpoint: &str) -> Result<String, Defect> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(3)).build();
    let answer = async { client?.get(endpoint).send().await }.await;
    match answer {
        Ok(_) => Ok(format!("{endpoint} answers")),
        Err(error) => Err(defect(
            format!("{endpoint} does not answer: {error}"),
            "start the collector, or remove telemetry.otlp_endpoint",
        )),
    }
}
