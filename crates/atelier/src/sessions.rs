//! `atelier sessions`: lists what is signed in as you, and ends it.

use anyhow::{Context, Result};
use atelier_api::account::SignInSession;
use atelier_client::ApiClient;
use atelier_core::TokenId;
use chrono::{DateTime, Utc};
use std::{io::Write, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The token [default: the one that `atelier login` stored]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// End the session with this id
    #[arg(long, value_name = "ID")]
    end: Option<TokenId>,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(sessions(args))
}

async fn sessions(args: Args) -> Result<ExitCode> {
    let api = ApiClient::signed_in("sessions", args.server.as_deref(), args.token)?;
    if let Some(id) = args.end {
        api.end_session(id).await?;
        eprintln!("The session has ended: none of its tokens is accepted any more.");
        return Ok(ExitCode::SUCCESS);
    }
    let sessions = api.sessions().await?;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&sessions)?),
        false => sessions.iter().map(line).collect(),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot print the sessions")?;
    Ok(ExitCode::SUCCESS)
}

fn line(session: &SignInSession) -> String {
    let time = |time: DateTime<Utc>| time.format("%Y-%m-%d %H:%M").to_string();
    let place = match (session.project_id, session.conversation_id) {
        (Some(project), None) => format!("  project {project}"),
        (_, Some(conversation)) => format!("  conversation {conversation}"),
        (None, None) => String::new(),
    };
    // Another program chose this text, so it must not move the cursor.
    let agent = session.user_agent.as_deref().unwrap_or("-");
    let agent: String = agent.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!(
        "{}  {:7}  last used {}  since {}  until {}{}{place}  {agent}\n",
        session.id,
        session.kind.as_str(),
        time(session.last_used_at),
        time(session.created_at),
        time(session.expires_at),
        if session.current { "  (this one)" } else { "" },
    )
}
