//! Conversations of a project.

use crate::{
    Error, Owned, OwnedConversation, Result, Store, Tx,
    db::sql,
    file_upkeep::forget_files,
    gate::end_session,
    projects::lock_project,
    rows::{from_name, new_id, now, page},
};
use atelier_core::{
    Conversation, ConversationId, ConversationStatus, Event, ProjectId, Tenant, UserId,
};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Changes to a conversation; `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct ConversationChanges {
    pub title: Option<String>,
    pub status: Option<ConversationStatus>,
    pub workspace_enabled: Option<bool>,
}

pub(crate) type ConversationRow = (
    Uuid,
    Uuid,
    Uuid,
    Option<String>,
    String,
    bool,
    Option<String>,
    Option<DateTime<Utc>>,
    DateTime<Utc>,
    DateTime<Utc>,
);

/// The columns of a [`ConversationRow`].
const COLUMNS: &str = "id, project_id, user_id, title, status, workspace_enabled, workspace_path, \
     workspace_created_at, created_at, updated_at";

pub(crate) fn read_conversation(row: ConversationRow) -> Result<Conversation> {
    let (id, project, user, title, status, enabled, path, path_since, created_at, updated_at) = row;
    Ok(Conversation {
        id: ConversationId(id),
        project_id: ProjectId(project),
        user_id: UserId(user),
        title,
        status: from_name(status)?,
        workspace_enabled: enabled,
        workspace_path: path,
        workspace_created_at: path_since,
        created_at,
        updated_at,
    })
}

impl Store {
    pub async fn create_conversation(
        &self,
        owned: &Owned,
        title: Option<String>,
        workspace_enabled: bool,
    ) -> Result<Conversation> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                // The lock keeps the project from being deleted before its new conversation is
                // stored.
                lock_project(tx, owned.project).await?;
                let time = now();
                let conversation = Conversation {
                    id: ConversationId(new_id()),
                    project_id: owned.project,
                    user_id: owned.owner,
                    title,
                    status: ConversationStatus::Active,
                    workspace_enabled,
                    workspace_path: None,
                    workspace_created_at: None,
                    created_at: time,
                    updated_at: time,
                };
                sql("INSERT INTO conversations
                     (id, project_id, tenant_id, user_id, title, status, workspace_enabled, \
                     created_at, updated_at)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)")
                .bind(conversation.id.0)
                .bind(owned.project.0)
                .bind(owned.tenant.as_str())
                .bind(owned.owner.0)
                .bind(&conversation.title)
                .bind(conversation.status.as_str())
                .bind(workspace_enabled)
                .bind(time)
                .execute(&mut tx.conn)
                .await?;
                let created = Event::ConversationCreated { conversation: conversation.clone() };
                tx.emit(owned.project, owned.owner, &created);
                Ok(conversation)
            })
        })
        .await
    }

    /// A conversation of a project, with the right to act on it.
    pub async fn conversation(
        &self,
        owned: &Owned,
        id: ConversationId,
    ) -> Result<(OwnedConversation, Conversation)> {
        let mut conn = self.db.connect().await?;
        let row: Option<ConversationRow> =
            sql("SELECT id, project_id, user_id, title, status, workspace_enabled, workspace_path,
                    workspace_created_at, created_at, updated_at
             FROM conversations WHERE id = $1 AND project_id = $2")
            .bind(id.0)
            .bind(owned.project.0)
            .fetch_optional(&mut conn)
            .await?;
        let conversation = read_conversation(row.ok_or(Error::NotFound)?)?;
        Ok((OwnedConversation::new(owned.clone(), id), conversation))
    }

    /// A user's own conversation. Somebody else's conversation is not found.
    pub async fn owned_conversation(
        &self,
        user: UserId,
        tenant: &Tenant,
        id: ConversationId,
    ) -> Result<OwnedConversation> {
        let found = self.conversation_for_upkeep(id).await?;
        let is_theirs = |found: &OwnedConversation| {
            found.owned().owner == user && found.owned().tenant == *tenant
        };
        found.filter(is_theirs).ok_or(Error::NotFound)
    }

    /// A conversation, whoever owns it, for the server's own background work; `None` if it does not
    /// exist.
    pub async fn conversation_for_upkeep(
        &self,
        id: ConversationId,
    ) -> Result<Option<OwnedConversation>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid, Uuid, String)> =
            sql("SELECT project_id, user_id, tenant_id FROM conversations WHERE id = $1")
                .bind(id.0)
                .fetch_optional(&mut conn)
                .await?;
        row.map(|row| Ok(OwnedConversation::new(Owned::from_row(row)?, id))).transpose()
    }

    /// Archived conversations that have not changed since then and still have files.
    pub async fn archived_with_files(
        &self,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<OwnedConversation>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> =
            sql("SELECT c.id, c.project_id, c.user_id, c.tenant_id FROM conversations c
             WHERE c.status = 'archived' AND c.updated_at <= $1 AND EXISTS (
                 SELECT 1 FROM conversation_files f WHERE f.conversation_id = c.id
                 AND (f.status = 'active' OR f.restorable))
             ORDER BY c.id LIMIT $2")
            .bind(before)
            .bind(limit)
            .fetch_all(&mut conn)
            .await?;
        let owned = |(id, project, user, tenant)| {
            let owned = Owned::from_row((project, user, tenant))?;
            Ok(OwnedConversation::new(owned, ConversationId(id)))
        };
        rows.into_iter().map(owned).collect()
    }

    /// The user's conversations, in one project or in all, newest first.
    pub async fn conversations(
        &self,
        user: UserId,
        project: Option<ProjectId>,
        status: Option<ConversationStatus>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Conversation>, i64)> {
        let mut conn = self.db.connect().await?;
        let (any, project) = (project.is_none(), project.map_or(Uuid::nil(), |project| project.0));
        let status = status.map(ConversationStatus::as_str);
        let (rows, total) = page!(
            &mut conn,
            SELECT COLUMNS,
            FROM "conversations
                  WHERE user_id = $1 AND ($2 OR project_id = $3) AND status = COALESCE($4, status)",
            ORDER BY "id DESC",
            [user.0, any, project, status],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_conversation).collect::<Result<_>>()?, total))
    }

    pub async fn update_conversation(
        &self,
        owned: &Owned,
        id: ConversationId,
        changes: ConversationChanges,
    ) -> Result<Conversation> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut conversation = lock_conversation(tx, owned.project, id).await?;
                let ConversationChanges { title, status, workspace_enabled } = changes;
                conversation.title = title.or(conversation.title);
                conversation.status = status.unwrap_or(conversation.status);
                conversation.workspace_enabled =
                    workspace_enabled.unwrap_or(conversation.workspace_enabled);
                sql("UPDATE conversations SET title = $1, status = $2, workspace_enabled = $3 \
                     WHERE id = $4")
                .bind(&conversation.title)
                .bind(conversation.status.as_str())
                .bind(conversation.workspace_enabled)
                .bind(id.0)
                .execute(&mut tx.conn)
                .await?;
                let updated = Event::ConversationUpdated { conversation: conversation.clone() };
                tx.emit(owned.project, owned.owner, &updated);
                Ok(conversation)
            })
        })
        .await
    }

    /// Deletes a conversation with its messages, tasks, plans and files.
    pub async fn delete_conversation(&self, owned: &Owned, id: ConversationId) -> Result<()> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                lock_conversation(tx, owned.project, id).await?;
                forget_files(tx, id).await?;
                {
                    for table in [
                        "DELETE FROM task_steps WHERE task_id IN (SELECT id FROM tasks WHERE \
                         session_id = $1)",
                        "DELETE FROM withheld_steps WHERE session_id = $1",
                        "DELETE FROM tasks WHERE session_id = $1",
                        "DELETE FROM plans WHERE session_id = $1",
                        "DELETE FROM messages WHERE session_id = $1",
                        "DELETE FROM conversations WHERE id = $1",
                    ] {
                        sql(table).bind(id.0).execute(&mut tx.conn).await?;
                    }
                };
                end_session(tx, &owned, id.0).await?;
                tx.emit(owned.project, owned.owner, &Event::ConversationDeleted { session_id: id });
                Ok(())
            })
        })
        .await
    }
}

/// Locks the conversation until the commit, and gives it a new time of change.
pub(crate) async fn lock_conversation(
    tx: &mut Tx,
    project: ProjectId,
    id: ConversationId,
) -> Result<Conversation> {
    let row: Option<ConversationRow> =
        sql("UPDATE conversations SET updated_at = $1 WHERE id = $2 AND project_id = $3
         RETURNING id, project_id, user_id, title, status, workspace_enabled, workspace_path,
                   workspace_created_at, created_at, updated_at")
        .bind(now())
        .bind(id.0)
        .bind(project.0)
        .fetch_optional(&mut tx.conn)
        .await?;
    read_conversation(row.ok_or(Error::NotFound)?)
}
