//! `atelier token`: makes a token for a user with the secret of the data folder. The server need
//! not run.

use crate::config::{Config, Flags};
use anyhow::{Context, Result};
use atelier_core::{Role, Tenant};
use atelier_server::{LocalKey, NewToken, user_id};
use std::{io::Write, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// The user's name; the same name in the same tenant is always the same user
    #[arg(long, value_name = "NAME")]
    user: String,
    /// The role of the token: user, admin, client or agent
    #[arg(long, default_value = "user")]
    role: Role,
    /// How long the token is valid, such as 30m, 12h or 30d
    #[arg(long, default_value = "24h", value_name = "TIME")]
    ttl: humantime::Duration,
    /// The user's organisation (tenant)
    #[arg(long, default_value = "default")]
    tenant: Tenant,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.user.trim().is_empty() {
        anyhow::bail!("--user must not be blank");
    }
    let config = Config::load(args.flags.config.as_deref(), &args.flags)?;
    crate::serve::create_private(&config.data)?;
    // A server with another data folder refuses the token, which would be hard to understand.
    if !LocalKey::exists(&config.data) {
        let data = config.data.display();
        eprintln!(
            "there was no secret in {data}, so a new one was created; only a server with this \
             data folder accepts the token"
        );
    }
    let key = LocalKey::open(&config.data)
        .with_context(|| format!("cannot use the secret in {}", config.data.display()))?;
    let new = NewToken {
        user: user_id(&args.tenant, &args.user),
        tenant: args.tenant.clone(),
        role: args.role,
        lifetime: *args.ttl,
        renews: None,
    };
    let (token, _) = key.issue(&new, &config.auth.issuer, &config.auth.audience)?;
    writeln!(std::io::stdout(), "{token}").context("cannot print the token")?;
    Ok(ExitCode::SUCCESS)
}
