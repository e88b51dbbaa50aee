//! Projects, and the lookups that hand out access to them.

use crate::{
    Error, Owned, ProjectOwner, Result, Schema, Settings, Store, Tx,
    agents::insert_agents,
    collections::mark_collections_gone,
    db::{Conn, Db, sql},
    feed::Wakeup,
    file_upkeep::forget_files,
    pending::PendingRows,
    rows::{corrupt, from_json, from_name, json, name_taken, new_id, now, page},
};
use atelier_core::{
    AgentConfig, AgentName, ConversationId, Event, Project, ProjectId, ProjectName, Tenant, UserId,
    WorkspaceKind,
};
use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use uuid::Uuid;

/// An agent to create.
#[derive(Debug, Clone)]
pub struct NewAgent {
    pub name: AgentName,
    pub config: AgentConfig,
}

pub(crate) type ProjectRow = (Uuid, String, String, String, DateTime<Utc>, DateTime<Utc>);

pub(crate) fn read_project(row: ProjectRow) -> Result<Project> {
    let (id, name, workspace, settings, created_at, updated_at) = row;
    Ok(Project {
        id: ProjectId(id),
        name: corrupt(ProjectName::try_from(name))?,
        workspace: from_name(workspace)?,
        settings: from_json(&settings)?,
        created_at,
        updated_at,
    })
}

async fn named(conn: &mut Conn, owner: UserId, name: &ProjectName) -> Result<Option<ProjectId>> {
    let row: Option<(Uuid,)> =
        sql("SELECT id FROM projects WHERE user_id = $1 AND name = $2 AND deleted_at IS NULL")
            .bind(owner.0)
            .bind(name.as_str())
            .fetch_optional(conn)
            .await?;
    Ok(row.map(|(id,)| ProjectId(id)))
}

impl Store {
    /// Creates a project with its first agents in one transaction.
    pub async fn create_project(
        &self,
        owner: UserId,
        tenant: Tenant,
        name: ProjectName,
        workspace: WorkspaceKind,
        settings: Map<String, Value>,
        agents: Vec<NewAgent>,
    ) -> Result<Project> {
        self.write(owner, move |tx| {
            Box::pin(async move {
                let time = now();
                let id = ProjectId(new_id());
                let project =
                    Project { id, name, workspace, settings, created_at: time, updated_at: time };
                sql("INSERT INTO projects
                     (id, tenant_id, user_id, name, workspace, settings, created_at, updated_at)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $7)")
                .bind(id.0)
                .bind(tenant.as_str())
                .bind(owner.0)
                .bind(project.name.as_str())
                .bind(workspace.as_str())
                .bind(json(&project.settings))
                .bind(time)
                .execute(&mut tx.conn)
                .await
                .map_err(name_taken)?;
                tx.emit(id, owner, &Event::ProjectCreated { project: project.clone() });
                insert_agents(tx, id, owner, agents).await?;
                Ok(project)
            })
        })
        .await
    }

    pub async fn projects(
        &self,
        owner: UserId,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Project>, i64)> {
        let mut conn = self.db.connect().await?;
        let (rows, total) = page!(
            &mut conn,
            SELECT "id, name, workspace, settings, created_at, updated_at",
            FROM "projects WHERE user_id = $1 AND deleted_at IS NULL",
            ORDER BY "id",
            [owner.0],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_project).collect::<Result<_>>()?, total))
    }

    pub async fn project(&self, owned: &Owned) -> Result<Project> {
        let mut conn = self.db.connect().await?;
        let row: Option<ProjectRow> =
            sql("SELECT id, name, workspace, settings, created_at, updated_at FROM projects
             WHERE id = $1 AND deleted_at IS NULL")
            .bind(owned.project.0)
            .fetch_optional(&mut conn)
            .await?;
        read_project(row.ok_or(Error::NotFound)?)
    }

    /// The owner's project of this name.
    pub async fn project_named(
        &self,
        owner: UserId,
        name: &ProjectName,
    ) -> Result<Option<ProjectId>> {
        named(&mut self.db.connect().await?, owner, name).await
    }

    /// The owner's project of this name, in a database that is not migrated and that a server may
    /// use at the same time. `None` if there is no such project, or no database yet.
    pub async fn find_project(
        settings: &Settings,
        owner: UserId,
        name: &ProjectName,
    ) -> Result<Option<ProjectId>> {
        if Self::examine(settings).await? == Schema::Missing {
            return Ok(None);
        }
        let db = Db::open(settings).await?;
        let found = named(&mut db.connect().await?, owner, name).await?;
        db.close().await;
        Ok(found)
    }

    /// A project of this user. Somebody else's project is not found.
    pub async fn owned_by(&self, user: UserId, project: ProjectId) -> Result<Owned> {
        self.owned_if(project, |found| found.owner == user).await
    }

    /// A project for somebody who may only stop what happens in it: its owner, or an administrator
    /// of the owner's tenant.
    pub async fn owned_by_or_in(
        &self,
        user: UserId,
        administered: Option<&Tenant>,
        project: ProjectId,
    ) -> Result<Owned> {
        self.owned_if(project, |found| found.owner == user || Some(&found.tenant) == administered)
            .await
    }

    /// The project, if `allows` agrees. Refusal and absence look alike.
    async fn owned_if(
        &self,
        project: ProjectId,
        allows: impl FnOnce(&ProjectOwner) -> bool + Send,
    ) -> Result<Owned> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid, String)> =
            sql("SELECT user_id, tenant_id FROM projects WHERE id = $1 AND deleted_at IS NULL")
                .bind(project.0)
                .fetch_optional(&mut conn)
                .await?;
        let (owner, tenant) = row.ok_or(Error::NotFound)?;
        let found = Owned::from_row((project.0, owner, tenant))?;
        if allows(&found) { Ok(found) } else { Err(Error::NotFound) }
    }

    pub async fn update_project(
        &self,
        owned: &Owned,
        name: Option<ProjectName>,
        workspace: Option<WorkspaceKind>,
        settings: Option<Map<String, Value>>,
    ) -> Result<Project> {
        let (id, owner) = (owned.project, owned.owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                let mut project = lock_project(tx, id).await?;
                project.name = name.unwrap_or(project.name);
                project.workspace = workspace.unwrap_or(project.workspace);
                project.settings = settings.unwrap_or(project.settings);
                sql("UPDATE projects SET name = $1, workspace = $2, settings = $3 WHERE id = $4")
                    .bind(project.name.as_str())
                    .bind(project.workspace.as_str())
                    .bind(json(&project.settings))
                    .bind(id.0)
                    .execute(&mut tx.conn)
                    .await
                    .map_err(name_taken)?;
                tx.emit(id, owner, &Event::ProjectUpdated { project: project.clone() });
                Ok(project)
            })
        })
        .await
    }

    /// Deletes a project and what belongs to it. Its event log stays for the time of retention, so
    /// that its readers learn that the project was deleted.
    pub async fn delete_project(&self, owned: &Owned) -> Result<()> {
        let (id, owner) = (owned.project, owned.owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                lock_project(tx, id).await?;
                let conversations: Vec<(Uuid,)> =
                    sql("SELECT id FROM conversations WHERE project_id = $1")
                        .bind(id.0)
                        .fetch_all(&mut tx.conn)
                        .await?;
                for (conversation,) in conversations {
                    forget_files(tx, ConversationId(conversation)).await?;
                }
                for table in [
                    "DELETE FROM agents WHERE project_id = $1",
                    "DELETE FROM task_steps WHERE task_id IN (SELECT id FROM tasks WHERE \
                         project_id = $1)",
                    "DELETE FROM tasks WHERE project_id = $1",
                    "DELETE FROM plans WHERE project_id = $1",
                    "DELETE FROM messages WHERE project_id = $1",
                    "DELETE FROM conversations WHERE project_id = $1",
                    "DELETE FROM tool_calls WHERE project_id = $1",
                    "DELETE FROM clients WHERE project_id = $1",
                    "DELETE FROM grants WHERE project_id = $1",
                    "DELETE FROM audit WHERE project_id = $1",
                    "DELETE FROM request_keys WHERE project_id = $1",
                ] {
                    sql(table).bind(id.0).execute(&mut tx.conn).await?;
                }
                sql("UPDATE projects SET deleted_at = $1 WHERE id = $2")
                    .bind(now())
                    .bind(id.0)
                    .execute(&mut tx.conn)
                    .await?;

                mark_collections_gone(&mut tx.conn, None, id).await?;
                tx.wake(Wakeup::Memory);
                tx.wake(Wakeup::ProjectDeleted(id));
                tx.emit(id, owner, &Event::ProjectDeleted {});
                Ok(())
            })
        })
        .await
    }

    /// Appends an event that reports no change of the database.
    pub async fn append_event(&self, owned: &Owned, event: Event) -> Result<()> {
        let (id, owner) = (owned.project, owned.owner);
        self.write_deferred(owner, None, move |group| {
            Box::pin(async move {
                let found: Option<(i32,)> =
                    sql("SELECT 1 FROM projects WHERE id = $1 AND deleted_at IS NULL")
                        .bind(id.0)
                        .fetch_optional(&mut group.conn)
                        .await?;
                found.ok_or(Error::NotFound)?;
                let mut rows = PendingRows::default();
                rows.emit(id, owner, &event);
                Ok(((), rows))
            })
        })
        .await
    }
}

/// Locks the project until the commit. An update locks on both databases; SQLite has no `FOR
/// UPDATE`.
pub(crate) async fn lock_project(tx: &mut Tx, id: ProjectId) -> Result<Project> {
    let row: Option<ProjectRow> =
        sql("UPDATE projects SET updated_at = $1 WHERE id = $2 AND deleted_at IS NULL
         RETURNING id, name, workspace, settings, created_at, updated_at")
        .bind(now())
        .bind(id.0)
        .fetch_optional(&mut tx.conn)
        .await?;
    read_project(row.ok_or(Error::NotFound)?)
}
