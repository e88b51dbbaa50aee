//! `atelier login`: checks a token with its server and stores it for the other commands.

use anyhow::{Context, Result, bail};
use atelier_client::{ApiClient, Credentials, Error, server_or_usual};
use chrono::SecondsFormat;
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The token to store [default: read a token or a sign-in link from standard input]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(login(args))
}

async fn login(args: &Args) -> Result<ExitCode> {
    let api = ApiClient::anonymous("login", &server_or_usual(args.server.as_deref())?)?;
    let given = match &args.token {
        Some(token) if token.trim().is_empty() => {
            bail!("the token is empty: make one with `atelier token --user NAME`")
        }
        Some(token) => token.clone(),
        None => read_token()?,
    };
    let token = match sign_in_code(&given) {
        Some(code) => api
            .sign_in(code)
            .await
            .context(
                "the text contains no dots, so it was used as a sign-in code and not as a token",
            )?
            .token,
        None => given,
    };
    api.use_token(token.clone());
    let me = match api.me().await {
        Err(Error::TokenRejected) => {
            bail!(
                "{} rejected the token: it is expired, revoked or from another server",
                api.server()
            )
        }
        me => me?,
    };
    let path = Credentials::store(api.server(), &token)?;
    Credentials::remember(api.server())?;
    eprintln!(
        "Signed in to {} as {} ({}, tenant {}) until {}. The token is stored in {}.",
        api.server(),
        me.user_id,
        me.role.as_str(),
        me.tenant,
        me.expires_at.to_rfc3339_opts(SecondsFormat::Secs, true),
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

fn read_token() -> Result<String> {
    if std::io::stdin().is_terminal() {
        eprint!("Paste a token (make one with `atelier token`) or a sign-in link: ");
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

/// The code in a sign-in link, or a bare code. A token contains dots, a code does not.
fn sign_in_code(given: &str) -> Option<&str> {
    match given.split_once("#sign-in=") {
        Some((_, code)) => Some(code),
        None if !given.contains('.') => Some(given),
        None => None,
    }
}
