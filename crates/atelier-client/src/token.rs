//! Renewing the token before it expires.

use crate::{api_client::ApiClient, credentials::Credentials, screen::Screen};
use chrono::{DateTime, Utc};
use std::{convert::Infallible, time::Duration};

/// Renews the token whenever two thirds of its lifetime have passed. Never returns, even if the
/// server refuses to renew the token.
pub(crate) async fn keep_fresh(
    api: &ApiClient,
    mut expires_at: DateTime<Utc>,
    screen: &Screen,
) -> Infallible {
    loop {
        let left = (expires_at - Utc::now()).to_std().unwrap_or_default();
        tokio::time::sleep(left.mul_f64(2.0 / 3.0).max(Duration::from_secs(1))).await;
        match api.refresh().await {
            Ok(new) => {
                expires_at = new.expires_at;
                if api.token_is_stored()
                    && let Err(error) = Credentials::store(api.server(), &new.token)
                {
                    screen
                        .line(&format!("cannot store the renewed token: {}", error.full_message()));
                }
                api.use_token(new.token);
            }
            Err(error) if error.is_temporary() => tokio::time::sleep(Duration::from_secs(5)).await,
            Err(error) => {
                let until = expires_at.format("%Y-%m-%d %H:%M UTC");
                let why = error.full_message();
                screen
                    .line(&format!("cannot renew the token, which is valid until {until}: {why}"));
                return std::future::pending().await;
            }
        }
    }
}
