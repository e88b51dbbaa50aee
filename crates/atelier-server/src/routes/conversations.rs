//! Conversations by their tenant: the door for those who come for the files.

use crate::{
    App,
    auth::Person,
    body::{Json, OptionalJson, Paging, Params},
    error::Result,
    guard::{InTenant, OwnConversation},
};
use atelier_core::{
    Conversation, ConversationStatus, ProjectId, ProjectName, WorkspaceKind, conversation::check_title,
};
use atelier_store::{ConversationChanges, Error as StoreError, Owned};
use axum::{Json as Reply, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewConversation {
    #[schema(max_length = 200)]
    title: Option<String>,
    /// One of your projects; without it, your project `default`, which is made if it is missing.
    project_id: Option<Uuid>,
    /// Whether it has files of its own, and its agents the tools for them.
    #[schema(default = true)]
    workspace_enabled: bool,
}

impl Default for NewConversation {
    fn default() -> Self {
        Self { title: None, project_id: None, workspace_enabled: true }
    }
}

/// What to change; what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConversationUpdate {
    #[schema(max_length = 200)]
    title: Option<String>,
    /// An archived conversation keeps its files.
    status: Option<ConversationStatus>,
    workspace_enabled: Option<bool>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ConversationFilter {
    #[param(inline)]
    status: Option<ConversationStatus>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    offset: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ConversationList {
    conversations: Vec<Conversation>,
    /// How many there are in all.
    total: i64,
}

/// Start a conversation
#[utoipa::path(post, path = "/api/tenants/{tenant}/conversations", tag = "conversations",
    params(("tenant" = String, Path)), request_body = Option<NewConversation>, responses((status = 201, body = Conversation)))]
pub(super) async fn create(
    State(app): State<App>,
    _: Person,
    InTenant(caller): InTenant,
    OptionalJson(new): OptionalJson<NewConversation>,
) -> Result<(StatusCode, Reply<Conversation>)> {
    new.title.as_deref().map_or(Ok(()), check_title)?;
    let owned = match new.project_id {
        Some(project) => app.store.owned_by(caller.user, ProjectId(project)).await?,
        None => default_project(&app, caller.user, caller.tenant).await?,
    };
    let created = app.store.create_conversation(&owned, new.title, new.workspace_enabled).await?;
    Ok((StatusCode::CREATED, Reply(created)))
}

async fn default_project(
    app: &App,
    user: atelier_core::UserId,
    tenant: atelier_core::Tenant,
) -> Result<Owned> {
    let name = ProjectName::try_from("default")
        .unwrap_or_else(|invalid| unreachable!("a name of ours is valid: {invalid}"));
    if let Some(project) = app.store.project_named(user, &name).await? {
        return Ok(app.store.owned_by(user, project).await?);
    }
    let (kind, agents) = (WorkspaceKind::Conversation, app.starter_pack.clone());
    let created =
        app.store.create_project(user, tenant, name.clone(), kind, Default::default(), agents).await;
    let project = match created {
        Ok(project) => project.id,
        // Somebody was faster.
        Err(StoreError::NameTaken) => {
            app.store.project_named(user, &name).await?.ok_or(StoreError::NotFound)?
        }
        Err(error) => return Err(error.into()),
    };
    Ok(app.store.owned_by(user, project).await?)
}

/// List your conversations, newest first
#[utoipa::path(get, path = "/api/tenants/{tenant}/conversations", tag = "conversations",
    params(("tenant" = String, Path), ConversationFilter), responses((status = 200, body = ConversationList)))]
pub(super) async fn list(
    State(app): State<App>,
    InTenant(caller): InTenant,
    Params(filter): Params<ConversationFilter>,
) -> Result<Reply<ConversationList>> {
    let page = Paging::checked(filter.limit, filter.offset)?;
    let (limit, offset) = (page.limit.into(), page.offset.into());
    let (conversations, total) =
        app.store.conversations(caller.user, None, filter.status, limit, offset).await?;
    Ok(Reply(ConversationList { conversations, total }))
}

/// Show a conversation
#[utoipa::path(get, path = "/api/tenants/{tenant}/conversations/{conversation}", tag = "conversations",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)), responses((status = 200, body = Conversation)))]
pub(super) async fn show(own: OwnConversation) -> Reply<Conversation> {
    Reply(own.conversation)
}

/// Rename or archive a conversation, or switch its workspace on or off
#[utoipa::path(patch, path = "/api/tenants/{tenant}/conversations/{conversation}", tag = "conversations",
    params(("tenant" = String, Path), ("conversation" = Uuid, Path)), request_body = ConversationUpdate,
    responses((status = 200, body = Conversation)))]
pub(super) async fn update(
    State(app): State<App>,
    _: Person,
    own: OwnConversation,
    Json(update): Json<ConversationUpdate>,
) -> Result<Reply<Conversation>> {
    let ConversationUpdate { title, status, workspace_enabled } = update;
    title.as_deref().map_or(Ok(()), check_title)?;
    let changes = ConversationChanges { title, status, workspace_enabled };
    Ok(Reply(app.store.update_conversation(&own.owned, own.conversation.id, changes).await?))
}
