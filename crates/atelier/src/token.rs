//! `atelier token`: makes a token for a user with the secret of the data folder. The server need
//! not run.
//!
//! Tokens of programs (`client`, `agent`) are for one project. Its name is looked up in the
//! server's database.

use crate::config::{Config, Flags};
use anyhow::{Context, Result};
use atelier_core::{ConversationId, ProjectId, ProjectName, Role, Tenant, TokenPlace, UserId};
use atelier_server::{LocalKey, NewToken, user_id};
use atelier_store::Store;
use std::{io::Write, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,
    /// The user's name; the same name in the same tenant is always the same user
    #[arg(long, value_name = "NAME")]
    user: String,
    /// The role of the token: user or admin for people, client or agent for programs
    #[arg(long, default_value = "user")]
    role: Role,
    /// The project that a client or agent token is for, by name or id; the token reaches no other
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// The conversation that an agent token is for, by id; the token reaches nothing else of the
    /// project
    #[arg(long, value_name = "ID", requires = "project")]
    conversation: Option<ConversationId>,
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
    if !LocalKey::exists(config.keys()) {
        let data = config.keys().display();
        eprintln!(
            "there was no secret in {data}, so a new one was created; only a server that \
             uses this folder accepts the token"
        );
    }
    let key = LocalKey::open(config.keys())
        .with_context(|| format!("cannot use the secret in {}", config.keys().display()))?;
    let user = user_id(&args.tenant, &args.user);
    let new = NewToken {
        user,
        tenant: args.tenant.clone(),
        role: args.role,
        place: place(args, &config, user)?,
        lifetime: *args.ttl,
        renews: None,
        browser: None,
    };
    let (token, _) = key.issue(&new, &config.auth.issuer, &config.auth.audience)?;
    writeln!(std::io::stdout(), "{token}").context("cannot print the token")?;
    Ok(ExitCode::SUCCESS)
}

/// What the token is for, if it is a program's.
fn place(args: &Args, config: &Config, user: UserId) -> Result<Option<TokenPlace>> {
    let role = args.role.as_str();
    let Some(wanted) = &args.project else {
        anyhow::ensure!(
            args.role.is_person(),
            "a token with the role {role} is for one project: name it with --project NAME_OR_ID"
        );
        return Ok(None);
    };
    anyhow::ensure!(
        !args.role.is_person(),
        "--project is for the roles client and agent: a token with the role {role} reaches all \
         projects of its user"
    );
    anyhow::ensure!(
        args.conversation.is_none() || args.role == Role::Agent,
        "--conversation is for the role agent: a client runs the calls of the whole project"
    );
    let project = match wanted.parse() {
        Ok(id) => id,
        Err(_) => project_named(args, config, user, wanted)?,
    };
    Ok(Some(TokenPlace { project, conversation: args.conversation }))
}

fn project_named(args: &Args, config: &Config, user: UserId, wanted: &str) -> Result<ProjectId> {
    let missing = || {
        format!(
            "{} has no project {wanted:?}: the console and `GET /my/projects` have the names",
            args.user
        )
    };
    let name = ProjectName::try_from(wanted.to_owned()).with_context(missing)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(Store::find_project(&config.store(), user, &name));
    found.context("cannot look up the project; give its id instead")?.with_context(missing)
}
