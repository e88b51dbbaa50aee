//! The arguments of commands that ask a server.

use anyhow::Result;
use atelier_client::ApiClient;

#[derive(clap::Args)]
pub(crate) struct Remote {
    /// The server's address [default: that of the last `atelier login`, or http://127.0.0.1:7420]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Your token [default: the token that `atelier login` stored for the server]
    #[arg(long, global = true, env = "ATELIER_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Remote {
    pub(crate) fn client(&self, command: &str) -> Result<ApiClient> {
        Ok(ApiClient::signed_in(command, self.server.as_deref(), self.token.clone())?)
    }
}
