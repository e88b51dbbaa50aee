//! Signing in at an identity provider: the authorization code flow with PKCE (RFC 7636), as a
//! public client.
//!
//! The browser goes to the provider and comes back with a code. Only the browser that began the
//! sign-in has the verifier that turns the code into a token, and the token is checked like any
//! other token of the provider.

use super::AuthError;
use reqwest::{Client, Url, header, redirect};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The identity provider where people sign in from the console.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSignIn {
    /// The provider's page where people sign in.
    pub authorization_endpoint: String,
    /// The provider's endpoint that exchanges the browser's code for a token.
    pub token_endpoint: String,
    /// The client id of this server at the provider. The `aud` of its tokens must be
    /// `auth.audience`.
    pub client_id: String,
    /// The scope that the console asks for.
    #[serde(default = "openid")]
    pub scope: String,
}

fn openid() -> String {
    "openid".into()
}

/// The code that the browser came back with, and the verifier that it kept.
pub(crate) struct ProviderCode<'a> {
    pub(crate) code: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) redirect_uri: &'a str,
}

#[derive(Deserialize)]
struct TokenResponse {
    id_token: String,
}

impl ProviderSignIn {
    /// Exchanges the code for the provider's token.
    pub(super) async fn exchange(&self, code: ProviderCode<'_>) -> Result<String, AuthError> {
        let failed = |why: String| {
            tracing::warn!(
                endpoint = self.token_endpoint,
                why,
                "a sign-in at the identity provider failed"
            );
            AuthError::Refused("the identity provider did not confirm the sign-in")
        };
        let mut form =
            Url::parse(&self.token_endpoint).map_err(|error| failed(error.to_string()))?;
        let address = form.clone();
        form.query_pairs_mut().clear().extend_pairs([
            ("grant_type", "authorization_code"),
            ("code", code.code),
            ("code_verifier", code.verifier),
            ("redirect_uri", code.redirect_uri),
            ("client_id", &self.client_id),
        ]);
        let body = form.query().unwrap_or_default().to_owned();
        // The code must not follow a redirect to another address.
        let client =
            Client::builder().timeout(Duration::from_secs(10)).redirect(redirect::Policy::none());
        let client = client.build().map_err(|error| failed(error.to_string()))?;
        let request = client
            .post(address)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(body);
        let response = request.send().await.and_then(reqwest::Response::error_for_status);
        let response = response.map_err(|error| failed(error.to_string()))?;
        let TokenResponse { id_token } =
            response.json().await.map_err(|error| failed(error.to_string()))?;
        Ok(id_token)
    }
}
