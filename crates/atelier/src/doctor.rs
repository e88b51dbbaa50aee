//! `atelier doctor`: what is wrong, and how to mend it.

use crate::config::{Config, Flags};
use anyhow::Result;
use atelier_files::Files;
use atelier_model::{ModelError, Models, TenantKeys};
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

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    outcome: Result<String, Trouble>,
}

struct Trouble {
    problem: String,
    remedy: String,
}

fn trouble(problem: impl ToString, remedy: impl Into<String>) -> Trouble {
    Trouble { problem: problem.to_string(), remedy: remedy.into() }
}

#[expect(clippy::print_stdout, reason = "the report is the point")]
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = match Config::load(args.flags.config.as_deref(), args) {
        Ok(config) => config,
        Err(error) => {
            println!("✗ configuration: {error:#}\n    mend it in atelier.toml or in the ATELIER_ variables");
            return Ok(ExitCode::FAILURE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(examine(&config));
    let mut code = ExitCode::SUCCESS;
    for finding in findings {
        match finding.outcome {
            Ok(good) => println!("✓ {}: {good}", finding.what),
            Err(trouble) => {
                println!("✗ {}: {}\n    {}", finding.what, trouble.problem, trouble.remedy);
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
        Finding { what: "secret", outcome: secret(&config.data) },
        Finding { what: "database", outcome: database(config).await },
        Finding { what: "object store", outcome: object_store(config).await },
        Finding { what: "models", outcome: models(config) },
        Finding { what: "address", outcome: address(config).await },
    ];
    if config.auth.jwks.is_some() {
        findings.push(Finding { what: "identity provider", outcome: provider(config).await });
    }
    if let Some(endpoint) = &config.telemetry.otlp_endpoint {
        findings.push(Finding { what: "traces", outcome: collector(endpoint).await });
    }
    findings
}

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).is_ok()
}

fn data_folder(data: &Path) -> Result<String, Trouble> {
    let place = data.display();
    if !data.exists() {
        let nearest = data.ancestors().find(|folder| folder.exists());
        return match nearest {
            Some(folder) if folder.is_dir() && writable(folder) => {
                Ok(format!("{place} will be made at the first start"))
            }
            _ => Err(trouble(format!("{place} cannot be made"), "choose another folder with --data")),
        };
    }
    let probe = data.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(|error| {
        trouble(
            format!("cannot write to {place}: {error}"),
            "give the user who runs Atelier the folder, or choose another with --data",
        )
    })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::metadata(data).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
        if open {
            return Err(trouble(format!("others may look into {place}"), format!("chmod 700 {place}")));
        }
    }
    Ok(format!("{place} can be written"))
}

fn secret(data: &Path) -> Result<String, Trouble> {
    let path = data.join("secret.key");
    if !path.exists() {
        return Ok("will be made at the first start".into());
    }
    LocalKey::open(data)
        .map_err(|error| trouble(error, "restore it from a backup, or remove it: all tokens end then"))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::metadata(&path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
        if open {
            let place = path.display();
            return Err(trouble(format!("others may read {place}"), format!("chmod 600 {place}")));
        }
    }
    Ok("there, and only for its owner".into())
}

async fn database(config: &Config) -> Result<String, Trouble> {
    let settings = config.store();
    match tokio::time::timeout(Duration::from_secs(10), Store::examine(&settings)).await {
        Err(_) => Err(trouble("no answer within 10 seconds", "check the address and the network")),
        Ok(Err(error)) => Err(trouble(
            format!("{:#}", anyhow::Error::from(error)),
            match config.database_url {
                Some(_) => "check database_url, and that the server runs and lets you in",
                None => "restore it from a backup, or move it away to begin anew",
            },
        )),
        Ok(Ok(Schema::Missing)) => Ok("empty; set up at the first start".into()),
        Ok(Ok(Schema::Known { found, known })) if found == known => Ok(format!("answers, schema {found}")),
        Ok(Ok(Schema::Known { found, known })) if found < known => {
            Ok(format!("answers, schema {found}; will be migrated to {known} at the next start"))
        }
        Ok(Ok(Schema::Known { found, known })) => Err(trouble(
            format!("has schema {found}, this version knows {known} at most"),
            "run the newer version of Atelier that wrote it, or restore an older backup",
        )),
    }
}

async fn object_store(config: &Config) -> Result<String, Trouble> {
    let found = Files::examine(&config.files, config.object_store.as_deref(), &config.data).await;
    found.map_err(|error| {
        trouble(error, "check object_store, the credentials in the environment, and that the bucket is there")
    })
}

fn models(config: &Config) -> Result<String, Trouble> {
    let models = Models::new(&config.models, &config.providers)
        .map_err(|error| trouble(error, "mend [models] or [providers] in atelier.toml"))?;
    let asked = config.starter_pack.iter().map(|agent| agent.config.model.as_str());
    let mut answers = Vec::new();
    for name in asked.collect::<std::collections::BTreeSet<_>>() {
        match models.resolve(name, &TenantKeys::default()) {
            Ok(model) => answers.push(format!("{name} is answered by {}", model.name())),
            // Not wrong by itself: tenants may have keys of their own.
            Err(error @ ModelError::NoKey { .. }) => answers.push(format!("{name}: {error}")),
            Err(error) => return Err(trouble(format!("{name}: {error}"), "mend starter_pack or [models]")),
        }
    }
    Ok(answers.join(", "))
}

async fn address(config: &Config) -> Result<String, Trouble> {
    let tls = (&config.server.tls_cert, &config.server.tls_key);
    match Listening::bind(&config.listen, &config.server).await {
        Ok(_) => Ok(format!("{} is free", config.listen)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let scheme = if tls.0.is_some() { "https" } else { "http" };
            let url = format!("{scheme}://{}/health", config.listen);
            let client = reqwest::Client::builder().timeout(Duration::from_secs(3)).build();
            let answer = async { client?.get(&url).send().await?.text().await }.await;
            match answer {
                Ok(body) if body.contains("\"atelier\"") => {
                    Ok(format!("{} is served by Atelier", config.listen))
                }
                _ => Err(trouble(
                    format!("{} is taken by another program", config.listen),
                    "stop it, or choose another address with --listen",
                )),
            }
        }
        Err(error) => Err(trouble(error, "check listen, tls_cert and tls_key")),
    }
}

async fn provider(config: &Config) -> Result<String, Trouble> {
    match atelier_server::check_keys(&config.auth).await {
        Ok(count) => Ok(format!("{count} keys")),
        Err(error) => Err(trouble(error, "check auth.jwks: a file or address with a JSON Web Key Set")),
    }
}

async fn collector(endpoint: &str) -> Result<String, Trouble> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(3)).build();
    let answer = async { client?.get(endpoint).send().await }.await;
    match answer {
        Ok(_) => Ok(format!("{endpoint} answers")),
        Err(error) => Err(trouble(
            format!("{endpoint} does not answer: {error}"),
            "start the collector, or take telemetry.otlp_endpoint out",
        )),
    }
}
