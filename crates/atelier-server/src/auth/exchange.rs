//! Signing in at an identity provider: the authorization code flow with PKCE (RFC 7636), as a public client.
//!
//! The browser goes to the provider and comes back with a code; only who began (and has the verifier) can make a
//! token of it, and the token is checked like any other of the provider's.

use super::AuthError;
use reqwest::{Client, Url, header, redirect};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where people sign in, if not with a token of their own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSignIn {
    /// The provider's page where people sign in.
    pub authorization_endpoint: String,
    /// The provider's endpoint that exchanges the browser's code for a token.
    pub token_endpoint: String,
    /// The client id of this server at the provider. The `aud` of its tokens must be `auth.audience`.
    pub client_id: String,
    /// The scope that the console asks for.
    #[serde(default = "openid")]
    pub scope: String,
}

fn openid() -> String {
    "openid".into()
}

/// What the browser brings back from the provider, and what it kept to itself.
pub(crate) struct Return<'a> {
    pub(crate) code: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) redirect_uri: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    id_token: String,
}

impl ProviderSignIn {
    /// The provider's token for the code.
    pub(super) async fn exchange(&self, came: Return<'_>) -> Result<String, AuthError> {
        let failed = |why: String| {
            tracing::warn!(endpoint = self.token_endpoint, why, "a sign-in at the identity provider failed");
            AuthError::Refused("the identity provider did not confirm the sign-in")
        };
        let mut form = Url::parse(&self.token_endpoint).map_err(|error| failed(error.to_string()))?;
        let address = form.clone();
        form.query_pairs_mut().clear().extend_pairs([
            ("grant_type", "authorization_code"),
            ("code", came.code),
            ("code_verifier", came.verifier),
            ("redirect_uri", came.redirect_uri),
            ("client_id", &self.client_id),
        ]);
        let body = form.query().unwrap_or_default().to_owned();
        // A code must not be carried on to wherever an answer points.
        let client = Client::builder().timeout(Duration::from_secs(10)).redirect(redirect::Policy::none());
        let client = client.build().map_err(|error| failed(error.to_string()))?;
        let request = client
            .post(address)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(body);
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let Answer { id_token } = answer.json().await.map_err(|error| failed(error.to_string()))?;
        Ok(id_token)
    }
}
