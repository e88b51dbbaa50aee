//! The door for MCP hosts. The protocol is spoken by what the program stands behind it; who may come in, and for
//! how long, is decided here.

use crate::{
    App,
    auth::{Asker, Caller},
    body::ConversationInPath,
    error::Error,
    guard::{Member, owned_conversation},
};
use atelier_core::ConversationId;
use atelier_store::Owned;
use axum::{
    body::Body,
    extract::{Request, State},
    http::header,
    response::Response,
};
use chrono::Utc;
use futures::{StreamExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

/// Answers a request of a host that was let into this place, on behalf of its owner.
pub type McpDoor<Place> = Arc<dyn Fn(Place, Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// A conversation, and whose it is.
pub struct OwnedConversation {
    pub owned: Owned,
    pub conversation: ConversationId,
}

pub(super) async fn project(
    State(app): State<App>,
    _: Asker,
    caller: Caller,
    space: Member,
    request: Request,
) -> Response {
    let response = (app.mcp_projects)(space.owned().clone(), request).await;
    until_token_ends(response, app, caller)
}

pub(super) async fn conversation(
    State(app): State<App>,
    _: Asker,
    caller: Caller,
    ConversationInPath(conversation): ConversationInPath,
    request: Request,
) -> Result<Response, Error> {
    let owned = owned_conversation(&app, &caller, conversation).await?;
    let response = (app.mcp_conversations)(OwnedConversation { owned, conversation }, request).await;
    Ok(until_token_ends(response, app, caller))
}

/// A stream lasts no longer than the right to it.
fn until_token_ends(response: Response, app: App, caller: Caller) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(token_ends(app, caller))))
}

async fn token_ends(app: App, caller: Caller) {
    let left = (caller.expires_at - Utc::now()).to_std().unwrap_or(Duration::ZERO);
    // Near enough for the clock to count to.
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
