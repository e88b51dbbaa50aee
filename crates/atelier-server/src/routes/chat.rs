//! Conversations of a project: what is said in them, and to whom.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    body::{Json, LastEventId, OptionalJson, Paging, Params, SessionInPath, preferred_wait},
    error::{Error, Result},
    guard::{Member, decider},
    routes::events::{From, ServerSentEvent},
    stream::{self, Filter},
};
use atelier_core::{
    Conversation, ConversationId, FileId, Invalid, Message, MessageId, PlanId, TaskFailure, TaskId,
    chat::check_message, conversation::check_title,
};
use atelier_store::{ConversationChanges, Error as StoreError, Owned, Scope, UserMessage};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSession {
    #[schema(max_length = 200, pattern = r"^[^\x00]*$")]
    title: Option<String>,
    /// Whether the conversation has files of its own. Yes, unless told.
    workspace_enabled: Option<bool>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct SessionList {
    sessions: Vec<Conversation>,
    total: i64,
}

#[derive(Serialize, ToSchema)]
pub(super) struct MessageList {
    messages: Vec<Message>,
    total: i64,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMessage {
    #[schema(min_length = 1, max_length = 65_536, pattern = r"^[^\x00]*$")]
    content: String,
    /// The agent it is for, by id or name. Without one, the project plans who does what.
    target_agent: Option<String>,
    /// Paths or file ids that the message is about.
    #[serde(default)]
    #[schema(schema_with = atelier_core::chat::attachments_schema)]
    attachments: Vec<String>,
    /// Higher goes first among those that wait for the same agent; 0 unless told.
    #[serde(default, deserialize_with = "atelier_core::json::whole")]
    #[schema(minimum = -100, maximum = 100)]
    priority: i32,
}

/// What a message has set going.
#[derive(Serialize, ToSchema)]
pub(super) struct Accepted {
    #[schema(value_type = uuid::Uuid)]
    message_id: MessageId,
    /// The agent's task or, for a plan, the task that makes it.
    #[schema(value_type = uuid::Uuid)]
    task_id: TaskId,
    #[schema(value_type = Option<uuid::Uuid>)]
    plan_id: Option<PlanId>,
}

/// Start a conversation
#[utoipa::path(post, path = "/my/projects/{project}/chat/sessions", tag = "chat", params(("project" = uuid::Uuid, Path)),
    request_body = Option<NewSession>, responses((status = 201, body = Conversation)))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    space: Member,
    OptionalJson(new): OptionalJson<NewSession>,
) -> Result<(StatusCode, Reply<Conversation>)> {
    new.title.as_deref().map_or(Ok(()), check_title)?;
    let enabled = new.workspace_enabled.unwrap_or(true);
    let session = app.store.create_conversation(space.owned(), new.title, enabled).await?;
    Ok((StatusCode::CREATED, Reply(session)))
}

/// List the project's conversations, newest first
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions", tag = "chat",
    params(("project" = uuid::Uuid, Path), Paging), responses((status = 200, body = SessionList)))]
pub(super) async fn list(State(app): State<App>, space: Member, page: Paging) -> Result<Reply<SessionList>> {
    let owned = space.owned();
    let (limit, offset) = (page.limit.into(), page.offset.into());
    let (sessions, total) =
        app.store.conversations(owned.owner, Some(owned.project), None, limit, offset).await?;
    Ok(Reply(SessionList { sessions, total }))
}

/// Show a conversation
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path)), responses((status = 200, body = Conversation)))]
pub(super) async fn show(
    State(app): State<App>,
    space: Member,
    SessionInPath(session): SessionInPath,
) -> Result<Reply<Conversation>> {
    Ok(Reply(app.store.conversation(space.owned(), session).await?))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionChanges {
    #[schema(max_length = 200, pattern = r"^[^\x00]*$")]
    title: Option<String>,
    /// An archived conversation takes no more messages; it keeps everything.
    status: Option<atelier_core::ConversationStatus>,
    workspace_enabled: Option<bool>,
}

/// Rename or archive a conversation
#[utoipa::path(patch, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path)), request_body = SessionChanges,
    responses((status = 200, body = Conversation)))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    space: Member,
    SessionInPath(session): SessionInPath,
    Json(changes): Json<SessionChanges>,
) -> Result<Reply<Conversation>> {
    changes.title.as_deref().map_or(Ok(()), check_title)?;
    let SessionChanges { title, status, workspace_enabled } = changes;
    let changes = ConversationChanges { title, status, workspace_enabled };
    Ok(Reply(app.store.update_conversation(space.owned(), session, changes).await?))
}

/// Delete a conversation with its messages, plans and tasks
///
/// What is still going on in it is ended first.
#[utoipa::path(delete, path = "/my/projects/{project}/chat/sessions/{session}", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path)),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(app): State<App>,
    Person(caller): Person,
    space: Member,
    SessionInPath(session): SessionInPath,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let owned = space.owned();
    app.store.conversation(owned, session).await?;
    let why = TaskFailure::new("conversation_deleted", "the conversation was deleted");
    app.bus.stop_all(owned, Some(session), &decider(&caller, &headers), &why).await?;
    app.store.delete_conversation(owned, session).await?;
    Ok(DONE)
}

/// The messages of a conversation, oldest first
#[utoipa::path(get, path = "/my/projects/{project}/chat/sessions/{session}/messages", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path), Paging),
    responses((status = 200, body = MessageList)))]
pub(super) async fn messages(
    State(app): State<App>,
    space: Member,
    SessionInPath(session): SessionInPath,
    page: Paging,
) -> Result<Reply<MessageList>> {
    let (limit, offset) = (page.limit.into(), page.offset.into());
    let (messages, total) = app.store.messages(space.owned(), session, limit, offset).await?;
    Ok(Reply(MessageList { messages, total }))
}

/// Say something: to one agent, or to the project, which plans who does what
///
/// Answers at once; with `Prefer: wait=60` with the answer, if it comes within that many seconds.
#[utoipa::path(post, path = "/my/projects/{project}/chat/{session}/message", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path), ("Prefer" = Option<String>, Header)),
    request_body = NewMessage, responses(
    (status = 202, description = "It is taken, and the answer will come", body = Accepted),
    (status = 200, description = "The answer, when `Prefer: wait` asked for it and it came in time", body = Message),
    (status = 409, description = "The conversation is archived"),
    (status = 429, description = "Too many tasks wait for the agent already"),
))]
pub(super) async fn say(
    State(app): State<App>,
    _: Person,
    space: Member,
    SessionInPath(session): SessionInPath,
    headers: HeaderMap,
    Json(new): Json<NewMessage>,
) -> Result<Response> {
    check_message(&new.content, &new.attachments)?;
    if !(-100..=100).contains(&new.priority) {
        return Err(Invalid::new("priority", "must be -100 to 100").into());
    }
    let owned = space.owned();
    check_attachments(&app, owned, session, &new.attachments).await?;
    let agent = match &new.target_agent {
        None => None,
        Some(name) => Some((*space.named_agent(name).await?).clone()),
    };
    let NewMessage { content, attachments, priority, .. } = new;
    let said = UserMessage { session, content, attachments, agent, priority, max_queue: 0 };
    let (message, task, plan) = app.bus.send_message(owned, said).await?;
    if let Some(time) = preferred_wait(&app, &headers) {
        let work = plan.as_ref().map_or(task.id.0, |plan| plan.id.0);
        let answer = tokio::select! {
            biased;
            answer = app.bus.wait(owned, work, time) => answer?,
            // The work is kept and goes on elsewhere: whoever waits is told where to look, while there is time to.
            () = app.stop.cancelled() => None,
        };
        if let Some(answer) = answer {
            return Ok(Reply(answer).into_response());
        }
    }
    let plan_id = plan.map(|plan| plan.id);
    let accepted = Accepted { message_id: message.id, task_id: task.id, plan_id };
    Ok((StatusCode::ACCEPTED, Reply(accepted)).into_response())
}

/// What is attached by id is a file of the conversation. A path may also be one on the person's machine.
async fn check_attachments(
    app: &App,
    owned: &Owned,
    session: ConversationId,
    attachments: &[String],
) -> Result<()> {
    let ids: Vec<(&String, FileId)> =
        attachments.iter().filter_map(|attached| Some((attached, attached.parse().ok()?))).collect();
    if !ids.is_empty() {
        // Whoever names a conversation that is not theirs learns nothing of its files.
        app.store.conversation(owned, session).await?;
    }
    for (attached, id) in ids {
        app.store.file(session, id).await.map_err(|error| match error {
            StoreError::NotFound => {
                let problem = format!("{attached:?} is no file of the conversation");
                Error::from(Invalid::new("attachments", problem))
            }
            other => other.into(),
        })?;
    }
    Ok(())
}

/// Follow one conversation (server-sent events)
///
/// The project's stream with what does not concern the conversation left out; ids are the project's.
#[utoipa::path(get, path = "/my/projects/{project}/chat/{session}/events", tag = "chat",
    params(("project" = uuid::Uuid, Path), ("session" = uuid::Uuid, Path), From, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = ServerSentEvent)))]
pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    space: Member,
    SessionInPath(session): SessionInPath,
    LastEventId(last): LastEventId,
    Params(from): Params<From>,
) -> Result<Response> {
    app.store.conversation(space.owned(), session).await?;
    let filter = Filter::Session(session);
    stream::open(app, caller, Scope::Project(space.owned().project), filter, from.beginning(last)?).await
}
