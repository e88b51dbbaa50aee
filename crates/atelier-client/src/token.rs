//! The token: where it comes from, and a new one before it ends.

use crate::{
    api::Api,
    credentials::Credentials,
    error::{Error, Result},
    screen::Screen,
};
use chrono::{DateTime, Utc};
use std::time::Duration;

/// A token, and whether it was stored by `atelier login` and so is stored again when it is renewed.
pub(crate) fn find(given: Option<String>, server: &str) -> Result<(String, bool)> {
    if let Some(token) = given.filter(|token| !token.is_empty()) {
        return Ok((token, false));
    }
    let credentials = Credentials::load()?;
    let token = credentials.token(server).ok_or_else(|| Error::NoToken(server.to_owned()))?;
    Ok((token.to_owned(), true))
}

/// Renews the token when two thirds of its time are over, for as long as the server does that.
pub(crate) async fn keep_fresh(api: &Api, mut expires_at: DateTime<Utc>, stored: bool, screen: &Screen) {
    loop {
        let left = (expires_at - Utc::now()).to_std().unwrap_or_default();
        tokio::time::sleep(left.mul_f64(2.0 / 3.0).max(Duration::from_secs(1))).await;
        match api.refresh().await {
            Ok(new) => {
                expires_at = new.expires_at;
                if stored && let Err(error) = Credentials::store(api.server(), &new.token) {
                    screen.line(&format!("the renewed token could not be stored: {}", error.told()));
                }
                api.use_token(new.token);
            }
            Err(error) if error.passes() => tokio::time::sleep(Duration::from_secs(5)).await,
            Err(error) => {
                let until = expires_at.format("%Y-%m-%d %H:%M UTC");
                screen.line(&format!("the token is good until {until} and is not renewed: {}", error.told()));
                return;
            }
        }
    }
}
