//! `atelier logout`: ends the stored token's session, or all sessions of its user, and forgets the
//! token.

use anyhow::Result;
use atelier_client::{ApiClient, Credentials, Error};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The token [default: the one that `atelier login` stored]
    #[arg(long, env = "ATELIER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// End all your sessions on this server: browsers, machines and programs
    #[arg(long)]
    everywhere: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(logout(args))
}

async fn logout(args: Args) -> Result<ExitCode> {
    let stored = args.token.as_ref().is_none_or(String::is_empty);
    let api = ApiClient::signed_in("logout", args.server.as_deref(), args.token)?;
    let ended = match args.everywhere {
        true => api.sign_out_everywhere().await,
        false => api.sign_out().await,
    };
    match ended {
        Ok(()) if args.everywhere => {
            eprintln!("Signed out of {} everywhere: all your tokens have ended.", api.server());
        }
        Ok(()) => eprintln!("Signed out of {}.", api.server()),
        // A token that is not accepted any more cannot end the other sessions.
        Err(Error::TokenRejected) if !args.everywhere => {
            eprintln!("The token for {} had already ended.", api.server());
        }
        Err(error) => return Err(error.into()),
    }
    if stored {
        Credentials::remove(api.server())?;
    }
    Ok(ExitCode::SUCCESS)
}
