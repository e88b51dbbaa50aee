//! Renewing the token before it expires.

use crate::{api_client::ApiClient, screen::Screen};
use chrono::{DateTime, Utc};
use std::{convert::Infallible, time::Duration};

/// How long to wait before the server is asked again.
const RETRY: Duration = Duration::from_secs(5);

/// Renews the token whenever two thirds of its lifetime have passed. Never returns. If the server
/// refuses, it is asked again while the token is valid: another node may accept the token.
pub(crate) async fn keep_fresh(
    api: &ApiClient,
    mut expires_at: DateTime<Utc>,
    screen: &Screen,
) -> Infallible {
    let mut has_warned = false;
    loop {
        let left = (expires_at - Utc::now()).to_std().unwrap_or_default();
        tokio::time::sleep(left.mul_f64(2.0 / 3.0).max(Duration::from_secs(1))).await;
        match api.refresh().await {
            Ok(new) => {
                (expires_at, has_warned) = (new.expires_at, false);
                if let Err(error) = api.store_renewed(&new.token) {
                    screen
                        .line(&format!("cannot store the renewed token: {}", error.full_message()));
                }
                api.use_token(new.token);
            }
            Err(error) if error.is_temporary() => tokio::time::sleep(RETRY).await,
            Err(_) if expires_at <= Utc::now() => return std::future::pending().await,
            Err(error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    let until = expires_at.format("%Y-%m-%d %H:%M UTC");
                    let why = error.full_message();
                    screen.line(&format!(
                        "cannot renew the token, which is valid until {until}: {why}"
                    ));
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
