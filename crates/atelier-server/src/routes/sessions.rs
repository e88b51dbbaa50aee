//! The caller's sign-in sessions: what is signed in as them, and how to end it.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    error::{Error, Result},
    path::SignInPath,
};
use atelier_api::account::{SessionKind, SignInSession, SignInSessions};
use atelier_core::Role;
use atelier_store::Session;
use axum::{Json as Reply, extract::State, http::StatusCode};

/// What uses a session, judged by its role and by the program that used it last.
fn kind(session: &Session) -> SessionKind {
    let agent = session.user_agent.as_deref().unwrap_or_default();
    match session.role {
        Role::Client => SessionKind::Client,
        Role::Agent => SessionKind::Agent,
        Role::User | Role::Admin if agent.starts_with("Mozilla/") => SessionKind::Browser,
        Role::User | Role::Admin if agent.starts_with("atelier-") => SessionKind::Cli,
        Role::User | Role::Admin => SessionKind::Other,
    }
}

fn view(session: Session, caller: &Caller) -> SignInSession {
    SignInSession {
        kind: kind(&session),
        current: session.id == caller.family,
        id: session.id,
        role: session.role,
        project_id: session.place.map(|place| place.project),
        conversation_id: session.place.and_then(|place| place.conversation),
        user_agent: session.user_agent,
        created_at: session.created_at,
        last_used_at: session.last_used_at,
        expires_at: session.expires_at,
    }
}

/// List what is signed in as you: browsers, machines and programs
///
/// The last used one comes first. A session is all tokens of one sign-in, or of one `atelier
/// token`, with those that were renewed from them. It is listed from its first use on.
#[utoipa::path(get, path = "/auth/sessions", tag = "account", operation_id = "sign_in_sessions",
    responses(
        (status = 200, description = "Your sessions that have not ended", body = SignInSessions),
    ))]
pub(super) async fn list(
    State(app): State<App>,
    Person(caller): Person,
) -> Result<Reply<SignInSessions>> {
    let sessions = app.store.sessions(caller.user).await?;
    let sessions: Vec<_> = sessions.into_iter().map(|session| view(session, &caller)).collect();
    Ok(Reply(SignInSessions { total: sessions.len(), sessions }))
}

/// End a session
///
/// Its tokens stop working on every node, and their open event streams end.
#[utoipa::path(delete, path = "/auth/sessions/{sign_in}", tag = "account",
    operation_id = "end_sign_in_session", params(SignInPath),
    responses((status = 204, description = "Ended")))]
pub(super) async fn end(
    State(app): State<App>,
    Person(caller): Person,
    SignInPath(id): SignInPath,
) -> Result<StatusCode> {
    let sessions = app.store.sessions(caller.user).await?;
    let session = sessions.into_iter().find(|session| session.id == id).ok_or(Error::NotFound)?;
    app.auth.end_session(caller.user, session.id, session.expires_at).await?;
    Ok(DONE)
}

/// Sign out everywhere
///
/// Ends all your sessions on every node, the one of this request included: browsers, machines, and
/// programs with `client` and `agent` tokens.
#[utoipa::path(post, path = "/auth/sign-out-everywhere", tag = "account",
    responses((status = 204, description = "All your sessions have ended")))]
pub(super) async fn sign_out_everywhere(
    State(app): State<App>,
    Person(caller): Person,
) -> Result<StatusCode> {
    app.auth.sign_out_everywhere(caller.user).await?;
    Ok(DONE)
}
