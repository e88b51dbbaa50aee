//! The conversations of a project, and their messages. The tenant's routes to the same
//! conversations are in `conversations.rs`; both use the same code.

use super::conversations::{self, ConversationUpdate};
use crate::{
    App,
    access::{OwnConversation, OwnSpace},
    auth::{Caller, Person},
    body::{Json, OptionalJson},
    error::{Error, Result},
    idempotency::IdempotencyKey,
    path::{ProjectInPath, SessionInPath},
    program_view::ProgramView,
    query::{LastEventId, Page, PageQuery, Params, preferred_wait},
    routes::events::StartQuery,
    stream::{self, Filter},
};
use atelier_api::chat::{Accepted, MessageList, NewMessage, NewSession};
use atelier_core::{
    Agent, Conversation, ConversationId, FileId, Invalid, Message, chat::check_message,
};
use atelier_store::{Error as StoreError, MessageIds, Owned, Scope, UserMessage};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub(super) struct SessionList {
    sessions: Vec<Conversation>,
    /// How many conversations the project has in total.
    total: i64,
}

/// Start a conversation
#[utoipa::path(post, path = "/my/projects/{project}/chat/sessions",
    tag = "chat", params(ProjectInPath),
    request_body = Option<NewSession>,
    responses((status = 201, description = "The new conversation", body = Conversation)))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    space: OwnSpace,
    OptionalJson(new): OptionalJson<NewSession>,
) -> Result<(StatusCode, Reply<Conversation>)> {
    let enabled = new.workspace_enabled.unwrap_or(true);
    conversations::start(&app, space.owned(), new.title, enabled).await
}

/// List the project's conversations, newest first
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions", tag = "chat",
    params(ProjectInPath, Page),
    responses(
        (status = 200, description = "A page of the project's conversations", body = SessionList),
    ))]
pub(super) async fn list(
    State(app): State<App>,
    space: OwnSpace,
    PageQuery { page, .. }: PageQuery,
) -> Result<Reply<SessionList>> {
    let (owner, project) = (space.owned().owner, Some(space.owned().project));
    let (sessions, total) = conversations::page(&app, owner, project, None, page).await?;
    Ok(Reply(SessionList { sessions, total }))
}

/// Show a conversation
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(ProjectInPath, SessionInPath),
    responses((status = 200, description = "The conversation", body = Conversation)))]
pub(super) async fn show(own: OwnConversation) -> Reply<Conversation> {
    conversations::show(own).await
}

/// Rename or archive a conversation, or switch its workspace on or off
#[utoipa::path(patch, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(ProjectInPath, SessionInPath), request_body = ConversationUpdate,
    responses((status = 200, description = "The changed conversation", body = Conversation)))]
pub(super) async fn update(
    app: State<App>,
    person: Person,
    own: OwnConversation,
    update: Json<ConversationUpdate>,
) -> Result<Reply<Conversation>> {
    conversations::update(app, person, own, update).await
}

/// Delete a conversation with its messages, plans and tasks
///
/// Tasks and tool calls that are not finished are cancelled first.
#[utoipa::path(delete, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(ProjectInPath, SessionInPath), responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    app: State<App>,
    person: Person,
    own: OwnConversation,
    headers: HeaderMap,
) -> Result<StatusCode> {
    conversations::delete(app, person, own, headers).await
}

/// List the messages of a conversation, oldest first
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions/{session}/messages", tag = "chat",
    params(ProjectInPath, SessionInPath, Page),
    responses((status = 200, description = "A page of messages", body = MessageList)))]
pub(super) async fn messages(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    SessionInPath(session): SessionInPath,
    PageQuery { page, .. }: PageQuery,
) -> Result<Reply<MessageList>> {
    let (mut messages, total) =
        app.store.messages(space.owned(), session, page.limit, page.offset).await?;
    ProgramView::new(&app, &caller).messages(&mut messages).await?;
    Ok(Reply(MessageList { messages, total }))
}

/// Send a message to one agent, or to the project, which plans which agents do what
///
/// Answers immediately with 202. With `Prefer: wait=60`, the request waits up to 60 seconds for
/// the agent's answer and returns it.
///
/// With an `Idempotency-Key`, the message can be sent again within a day after its answer was lost:
/// the same key and body get the same answer, and nothing is done twice.
#[utoipa::path(post, path = "/my/projects/{project}/chat/{session}/message", tag = "chat",
    params(ProjectInPath, SessionInPath, ("Prefer" = Option<String>, Header), IdempotencyKey),
    request_body = NewMessage, responses(
    (status = 202, description = "The message is accepted; the answer follows", body = Accepted),
    (status = 200, description = "The answer, if `Prefer: wait` asked for it and it came in time",
        body = Message),
    (status = 409, description = "The conversation is archived"),
    (status = 422, description = "The body is not valid, or the key was used for another request"),
    (status = 429, description = "Too many tasks are waiting for the agent"),
))]
pub(super) async fn send_message(
    State(app): State<App>,
    Person(caller): Person,
    space: OwnSpace,
    SessionInPath(session): SessionInPath,
    headers: HeaderMap,
    Json(new): Json<NewMessage>,
) -> Result<Response> {
    let owned = space.owned();
    let key = IdempotencyKey::read(&headers)?;
    let key = key.map(|key| key.of_request(&caller, &("message", session, &new)));
    if let Some(key) = &key
        && let Some(ids) = app.store.earlier_answer(owned.project, key).await?
    {
        return accepted(&app, owned, &headers, ids).await;
    }
    check_message(&new.content, &new.attachments)?;
    if !(-100..=100).contains(&new.priority) {
        return Err(Invalid::new("priority", "must be between -100 and 100").into());
    }
    check_attachments(&app, owned, session, &new.attachments).await?;
    let agent = match &new.target_agent {
        None => None,
        Some(name) => Some(Agent::clone(&**space.named_agent(name).await?)),
    };
    let NewMessage { content, attachments, priority, .. } = new;
    let message = UserMessage { session, content, attachments, agent, priority, max_queue: 0, key };
    let ids = app.bus.send_message(owned, message).await?;
    accepted(&app, owned, &headers, ids).await
}

/// The answer to a message that was accepted: the agent's answer, if the caller wants to wait for it
/// and it comes in time, otherwise the ids of the work.
async fn accepted(
    app: &App,
    owned: &Owned,
    headers: &HeaderMap,
    ids: MessageIds,
) -> Result<Response> {
    if let Some(time) = preferred_wait(app, headers) {
        let work = ids.plan.map_or(ids.task.0, |plan| plan.0);
        let answer = tokio::select! {
            biased;
            answer = app.bus.wait(owned, work, time) => answer?,
            // Another node will finish the work. The caller learns the ids to look it up while
            // there is still time.
            () = app.stop.cancelled() => None,
        };
        if let Some(answer) = answer {
            return Ok(Reply(answer).into_response());
        }
    }
    let MessageIds { message, task, plan } = ids;
    let accepted = Accepted { message_id: message, task_id: task, plan_id: plan };
    Ok((StatusCode::ACCEPTED, Reply(accepted)).into_response())
}

/// Checks that attached file ids belong to the conversation. Paths are not checked: they may be on
/// the user's machine.
async fn check_attachments(
    app: &App,
    owned: &Owned,
    session: ConversationId,
    attachments: &[String],
) -> Result<()> {
    let ids: Vec<(&String, FileId)> = attachments
        .iter()
        .filter_map(|attached| Some((attached, attached.parse().ok()?)))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    let (conversation, _) = app.store.conversation(owned, session).await?;
    for (attached, id) in ids {
        app.store.file(&conversation, id).await.map_err(|error| match error {
            StoreError::NotFound => {
                let problem = format!("{attached:?} is not a file of the conversation");
                Error::from(Invalid::new("attachments", problem))
            }
            other => other.into(),
        })?;
    }
    Ok(())
}

/// Follow one conversation (server-sent events)
///
/// The project's event stream, reduced to the events of the conversation. Event ids are those of
/// the project's stream.
#[utoipa::path(get, path = "/my/projects/{project}/chat/{session}/events", tag = "chat",
    params(ProjectInPath, SessionInPath, StartQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "The conversation's events",
        content_type = "text/event-stream", body = String)))]
pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    space: OwnSpace,
    SessionInPath(session): SessionInPath,
    LastEventId(last): LastEventId,
    Params(query): Params<StartQuery>,
) -> Result<Response> {
    app.store.conversation(space.owned(), session).await?;
    let filter = Filter::Conversation(session);
    stream::open(app, caller, Scope::Project(space.owned().project), filter, query.start(last)?)
        .await
}
