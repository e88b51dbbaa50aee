//! The routes for MCP hosts. Access is checked here; the handlers that the program provides speak
//! the protocol.

use crate::{
    App,
    access::{OwnSpace, owned_conversation},
    auth::{Caller, ToolRequester},
    error::Error,
    path::ConversationInPath,
};
use atelier_core::TokenId;
use atelier_store::{Owned, OwnedConversation};
use axum::{
    body::Body,
    extract::{Request, State},
    http::header,
    response::Response,
};
use chrono::Utc;
use futures::{StreamExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

/// Answers a request of an MCP host that uses the target (a project, or a conversation) on behalf
/// of its owner.
pub type McpHandler<Target> =
    Arc<dyn Fn(Target, Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// A project, for the program that uses it.
pub struct ProjectHost {
    pub owned: Owned,
    /// The session of the program's `agent` token; `None` if the program has a person's token.
    pub program: Option<TokenId>,
}

/// A conversation, for the program that uses it.
pub struct ConversationHost {
    pub owned: OwnedConversation,
    /// The session of the program's `agent` token; `None` if the program has a person's token.
    pub program: Option<TokenId>,
}

pub(super) async fn project(
    State(app): State<App>,
    _: ToolRequester,
    caller: Caller,
    space: OwnSpace,
    request: Request,
) -> Result<Response, Error> {
    let host = ProjectHost { owned: space.owned().clone(), program: caller.program() };
    let response = (app.mcp_projects)(host, request).await;
    until_token_ends(response, app, caller)
}

pub(super) async fn conversation(
    State(app): State<App>,
    _: ToolRequester,
    caller: Caller,
    ConversationInPath(conversation): ConversationInPath,
    request: Request,
) -> Result<Response, Error> {
    let owned = owned_conversation(&app, &caller, conversation).await?;
    let host = ConversationHost { owned, program: caller.program() };
    let response = (app.mcp_conversations)(host, request).await;
    until_token_ends(response, app, caller)
}

/// Counts a stream as one of its user, and ends it when the token that opened it ends.
fn until_token_ends(response: Response, app: App, caller: Caller) -> Result<Response, Error> {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
        return Ok(response);
    }
    let open = app.loads.open_stream(caller.user)?;
    let ends = token_ends(app, caller);
    Ok(response.map(|body| {
        let body = body.into_data_stream().take_until(ends).map(move |chunk| {
            // The stream counts for as long as its body exists.
            let _ = &open;
            chunk
        });
        Body::from_stream(body)
    }))
}

async fn token_ends(app: App, caller: Caller) {
    let left = (caller.expires_at - Utc::now()).to_std().unwrap_or(Duration::ZERO);
    // The timer cannot hold every date that a token can have.
    let expired = tokio::time::sleep(left.min(Duration::from_secs(365 * 24 * 3600)));
    let revoked = async {
        let mut revocations = app.auth.revocations();
        while !app.auth.is_revoked(&caller) {
            if revocations.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = expired => {}
        () = revoked => {}
        () = app.stop.cancelled() => {}
    }
}
