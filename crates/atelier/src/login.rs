//! `atelier login`: a token, checked with its server and stored for the commands that talk to it.

use anyhow::{Context, Result, bail};
use atelier_client::{Credentials, server_address};
use serde_json::{Value, json};
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address
    #[arg(long, default_value = "http://127.0.0.1:7420", value_name = "URL")]
    server: String,
    /// The token to store; without it, a token or a sign-in link is read from standard input
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(login(args))
}

async fn login(args: &Args) -> Result<ExitCode> {
    let server = server_address(&args.server)?;
    let http = reqwest::Client::builder().timeout(Duration::from_secs(15)).build()?;
    let given = match &args.token {
        Some(token) if token.trim().is_empty() => {
            bail!("the token is empty: `atelier token --user NAME` makes one")
        }
        Some(token) => token.clone(),
        None => ask()?,
    };
    let token = match sign_in_code(&given) {
        Some(code) => {
            let answer = http.post(format!("{server}/auth/sign-in")).json(&json!({"code": code}));
            // Perhaps it was meant to be a token.
            let no_token = || "this has no dots, as a token has, and was taken for a sign-in code".to_owned();
            let answer = understand(answer.send().await, server).await.with_context(no_token)?;
            answer["token"].as_str().context("the server sent no token")?.to_owned()
        }
        None => given,
    };
    let me: Value =
        understand(http.get(format!("{server}/auth/me")).bearer_auth(&token).send().await, server).await?;
    let path = Credentials::store(server, &token)?;
    eprintln!(
        "Signed in to {server} as {} ({}, tenant {}) until {}; stored in {}",
        text(&me["user_id"]),
        text(&me["role"]),
        text(&me["tenant"]),
        text(&me["expires_at"]),
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn ask() -> Result<String> {
    if std::io::stdin().is_terminal() {
        eprint!("Paste a token (`atelier token` makes one) or a sign-in link: ");
        std::io::stderr().flush()?;
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let line = line.trim();
    if line.is_empty() {
        bail!("no token was given");
    }
    Ok(line.to_owned())
}

/// The code in a sign-in link, or a bare one. A token has dots, a code has none.
fn sign_in_code(given: &str) -> Option<&str> {
    match given.split_once("#sign-in=") {
        Some((_, code)) => Some(code),
        None if !given.contains('.') => Some(given),
        None => None,
    }
}

async fn understand(answer: Result<reqwest::Response, reqwest::Error>, server: &str) -> Result<Value> {
    let answer = answer.with_context(|| format!("cannot reach {server}"))?;
    let status = answer.status();
    let body: Value = answer.json().await.with_context(|| format!("{server} is not an Atelier server"))?;
    if !status.is_success() {
        bail!("{server} says: {}", body["detail"].as_str().unwrap_or(status.as_str()));
    }
    Ok(body)
}
