//! The conversations of a tenant's user, and the code behind both families of routes to
//! conversations.

use super::DONE;
use crate::{
    App,
    access::{OwnConversation, TenantMember, decider},
    auth::Person,
    body::{Json, OptionalJson},
    error::Result,
    path::{ConversationInPath, TenantInPath},
    query::{Page, PageQuery},
};
use atelier_core::{
    Conversation, ConversationStatus, ProjectId, ProjectName, TaskFailure, TaskFailureCode, Tenant,
    TokenPlace, UserId, WorkspaceKind, conversation::check_title,
};
use atelier_store::{ConversationChanges, Error as StoreError, Owned};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A conversation to start in one of your projects.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewConversation {
    #[schema(max_length = 200)]
    title: Option<String>,
    /// One of your projects. The default is your project `default`, which is created if necessary.
    project_id: Option<ProjectId>,
    /// Whether the conversation has files of its own, and its agents the tools for them.
    #[schema(default = true)]
    workspace_enabled: bool,
}

impl Default for NewConversation {
    fn default() -> Self {
        Self { title: None, project_id: None, workspace_enabled: true }
    }
}

/// The fields to change. Absent fields stay as they are.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConversationUpdate {
    #[schema(max_length = 200, pattern = r"^[^\x00]*$")]
    title: Option<String>,
    /// An archived conversation accepts no messages. It keeps its messages and files.
    status: Option<ConversationStatus>,
    workspace_enabled: Option<bool>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ConversationFilter {
    /// Only conversations with this status.
    status: Option<ConversationStatus>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ConversationList {
    conversations: Vec<Conversation>,
    /// How many conversations there are in total.
    total: i64,
}

/// Start a conversation
#[utoipa::path(post, path = "/api/tenants/{tenant}/conversations", tag = "conversations",
    params(TenantInPath), request_body = Option<NewConversation>,
    responses((status = 201, description = "The new conversation", body = Conversation)))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    TenantMember(caller): TenantMember,
    OptionalJson(new): OptionalJson<NewConversation>,
) -> Result<(StatusCode, Reply<Conversation>)> {
    // Checked before the default project is created for it.
    new.title.as_deref().map_or(Ok(()), check_title)?;
    let owned = match new.project_id {
        Some(project) => app.store.owned_by(caller.user, project).await?,
        None => default_project(&app, caller.user, caller.tenant).await?,
    };
    start(&app, &owned, new.title, new.workspace_enabled).await
}

/// Starts a conversation in a project.
pub(super) async fn start(
    app: &App,
    owned: &Owned,
    title: Option<String>,
    workspace_enabled: bool,
) -> Result<(StatusCode, Reply<Conversation>)> {
    title.as_deref().map_or(Ok(()), check_title)?;
    let created = app.store.create_conversation(owned, title, workspace_enabled).await?;
    Ok((StatusCode::CREATED, Reply(created)))
}

async fn default_project(app: &App, user: UserId, tenant: Tenant) -> Result<Owned> {
    let name = ProjectName::try_from("default")
        .unwrap_or_else(|invalid| unreachable!("the name is valid: {invalid}"));
    if let Some(project) = app.store.project_named(user, &name).await? {
        return Ok(app.store.owned_by(user, project).await?);
    }
    let (kind, agents) = (WorkspaceKind::Conversation, app.starter_pack.clone());
    let created = app
        .store
        .create_project(user, tenant, name.clone(), kind, Default::default(), agents)
        .await;
    let project = match created {
        Ok(project) => project.id,
        // Another request has just created it.
        Err(StoreError::NameTaken) => {
            app.store.project_named(user, &name).await?.ok_or(StoreError::NotFound)?
        }
        Err(error) => return Err(error.into()),
    };
    Ok(app.store.owned_by(user, project).await?)
}

/// List your conversations, newest first
#[utoipa::path(get, path = "/api/tenants/{tenant}/conversations", tag = "conversations",
    params(TenantInPath, ConversationFilter, Page),
    responses(
        (status = 200, description = "A page of your conversations", body = ConversationList),
    ))]
pub(super) async fn list(
    State(app): State<App>,
    TenantMember(caller): TenantMember,
    PageQuery { page, filter }: PageQuery<ConversationFilter>,
) -> Result<Reply<ConversationList>> {
    let (conversations, total) = match caller.place {
        Some(TokenPlace { project, conversation: Some(only) }) => {
            let owned = app.store.owned_by(caller.user, project).await?;
            let (_, conversation) = app.store.conversation(&owned, only).await?;
            let fits = filter.status.is_none_or(|status| status == conversation.status);
            page.of(Vec::from_iter(fits.then_some(conversation)))
        }
        place => {
            let project = place.map(|place| place.project);
            self::page(&app, caller.user, project, filter.status, page).await?
        }
    };
    Ok(Reply(ConversationList { conversations, total }))
}

/// A page of a user's conversations, in one project or in all of them, and how many there are in
/// total.
pub(super) async fn page(
    app: &App,
    owner: UserId,
    project: Option<ProjectId>,
    status: Option<ConversationStatus>,
    page: Page,
) -> Result<(Vec<Conversation>, i64)> {
    Ok(app.store.conversations(owner, project, status, page.limit, page.offset).await?)
}

/// Show a conversation
#[utoipa::path(get, path = "/api/tenants/{tenant}/conversations/{conversation}",
    tag = "conversations",
    params(TenantInPath, ConversationInPath),
    responses((status = 200, description = "The conversation", body = Conversation)))]
pub(super) async fn show(own: OwnConversation) -> Reply<Conversation> {
    Reply(own.conversation)
}

/// Rename or archive a conversation, or switch its workspace on or off
#[utoipa::path(patch, path = "/api/tenants/{tenant}/conversations/{conversation}",
    tag = "conversations",
    params(TenantInPath, ConversationInPath), request_body = ConversationUpdate,
    responses((status = 200, description = "The changed conversation", body = Conversation)))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    own: OwnConversation,
    Json(update): Json<ConversationUpdate>,
) -> Result<Reply<Conversation>> {
    let ConversationUpdate { title, status, workspace_enabled } = update;
    title.as_deref().map_or(Ok(()), check_title)?;
    let changes = ConversationChanges { title, status, workspace_enabled };
    let before = own.conversation;
    let updated = app.store.update_conversation(own.owned.owned(), before.id, changes).await?;
    if updated.status != before.status {
        app.files.workspace(&own.owned).follow_status();
    }
    Ok(Reply(updated))
}

/// Delete a conversation with its messages, plans, tasks and files
///
/// Tasks and tool calls that are not finished are cancelled first.
#[utoipa::path(delete, path = "/api/tenants/{tenant}/conversations/{conversation}",
    tag = "conversations",
    params(TenantInPath, ConversationInPath), responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(app): State<App>,
    Person(caller): Person,
    OwnConversation { owned, conversation, .. }: OwnConversation,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let why =
        TaskFailure::new(TaskFailureCode::ConversationDeleted, "the conversation was deleted");
    app.bus
        .stop_all(owned.owned(), Some(conversation.id), &decider(&caller, &headers), &why)
        .await?;
    app.store.delete_conversation(owned.owned(), conversation.id).await?;
    Ok(DONE)
}
