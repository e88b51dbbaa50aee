//! Agents of a project.

use crate::{
    Error, NewAgent, Owned, OwnedAgent, Result, Store, Tx,
    collections::{create_collections, mark_collections_gone},
    db::{SqlBuilder, sql},
    feed::Wakeup,
    projects::lock_project,
    rows::{corrupt, from_json, from_name, json, name_taken, new_id, now, page},
    tasks::{StoppedTask, stop_queue},
};
use atelier_core::{
    Agent, AgentId, AgentName, AgentStatus, Event, Invalid, PartialAgentConfig, ProjectId,
    TaskFailure, TaskFailureCode, UserId, agent::STARTER_PREFIX,
};
use chrono::{DateTime, Utc};
use std::convert::Infallible;
use uuid::Uuid;

/// A reference to an agent: its id, its name, or the short name of a starter agent (`coder`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AgentRef {
    Id(AgentId),
    Name(String),
}

impl std::str::FromStr for AgentRef {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| AgentRef::Name(text.to_owned()), AgentRef::Id))
    }
}

/// Changes to an agent; `None` leaves a field as it is.
#[derive(Debug, Default)]
pub struct AgentChanges {
    pub name: Option<AgentName>,
    pub config: Option<PartialAgentConfig>,
}

type AgentRow = (Uuid, Uuid, String, String, String, DateTime<Utc>, DateTime<Utc>);

fn read_agent(row: AgentRow) -> Result<Agent> {
    let (id, project, name, status, config, created_at, updated_at) = row;
    Ok(Agent {
        id: AgentId(id),
        project_id: ProjectId(project),
        name: corrupt(AgentName::try_from(name))?,
        status: from_name(status)?,
        config: from_json(&config)?,
        created_at,
        updated_at,
    })
}

/// Creates agents of a project in one statement.
pub(crate) async fn insert_agents(
    tx: &mut Tx,
    project: ProjectId,
    owner: UserId,
    new: Vec<NewAgent>,
) -> Result<Vec<Agent>> {
    let time = now();
    let agent = |new: NewAgent| Agent {
        id: AgentId(new_id()),
        project_id: project,
        name: new.name,
        status: AgentStatus::Active,
        config: new.config,
        created_at: time,
        updated_at: time,
    };
    let agents: Vec<Agent> = new.into_iter().map(agent).collect();
    if agents.is_empty() {
        return Ok(agents);
    }
    {
        let mut insert = SqlBuilder::new(
            "INSERT INTO agents (id, project_id, name, status, config, created_at, updated_at) ",
        );
        insert.push_values(&agents, |mut row, agent| {
            row.push_bind(agent.id.0)
                .push_bind(project.0)
                .push_bind(agent.name.as_str())
                .push_bind("active")
                .push_bind(json(&agent.config))
                .push_bind(time)
                .push_bind(time);
        });
        insert.execute(&mut tx.conn).await
    }
    .map_err(name_taken)?;
    create_collections(tx, project, owner, &agents).await?;
    for agent in &agents {
        tx.emit(project, owner, &Event::AgentCreated { agent: agent.clone() });
    }
    Ok(agents)
}

impl Store {
    pub async fn create_agent(&self, owned: &Owned, new: NewAgent) -> Result<Agent> {
        let (project, owner) = (owned.project, owned.owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                // The lock keeps the project from being deleted before its new agent is stored.
                lock_project(tx, project).await?;
                tx.wake(Wakeup::Agents(project));
                let mut agents = insert_agents(tx, project, owner, vec![new]).await?;
                agents.pop().ok_or(Error::NotFound)
            })
        })
        .await
    }

    pub async fn agents(
        &self,
        owned: &Owned,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Agent>, i64)> {
        let mut conn = self.db.connect().await?;
        let (rows, total) = page!(
            &mut conn,
            SELECT "id, project_id, name, status, config, created_at, updated_at",
            FROM "agents WHERE project_id = $1",
            ORDER BY "id",
            [owned.project.0],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_agent).collect::<Result<_>>()?, total))
    }

    /// An agent of a project, with the right to act on what it remembers.
    pub async fn agent(&self, owned: &Owned, wanted: &AgentRef) -> Result<(OwnedAgent, Agent)> {
        let mut conn = self.db.connect().await?;
        let row: Option<AgentRow> = match wanted {
            AgentRef::Id(id) => sql(
                "SELECT id, project_id, name, status, config, created_at, updated_at FROM agents
                 WHERE project_id = $1 AND id = $2",
            )
            .bind(owned.project.0)
            .bind(id.0)
            .fetch_optional(&mut conn)
            .await,
            // PostgreSQL refuses a text with NUL even in a query.
            AgentRef::Name(name) if name.contains('\0') => Ok(None),
            // An agent of exactly this name comes before a starter agent with this short name.
            AgentRef::Name(name) => sql(
                "SELECT id, project_id, name, status, config, created_at, updated_at FROM agents
                 WHERE project_id = $1 AND name IN ($2, $3)
                 ORDER BY CASE WHEN name = $2 THEN 0 ELSE 1 END LIMIT 1",
            )
            .bind(owned.project.0)
            .bind(name)
            .bind(format!("{STARTER_PREFIX}{name}"))
            .fetch_optional(&mut conn)
            .await,
        }?;
        let agent = read_agent(row.ok_or(Error::NotFound)?)?;
        Ok((OwnedAgent::new(agent.id, owned.owner), agent))
    }

    pub async fn update_agent(
        &self,
        owned: &Owned,
        id: AgentId,
        changes: AgentChanges,
    ) -> Result<Result<Agent, Invalid>> {
        let (project, owner) = (owned.project, owned.owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                let mut agent = lock_agent(tx, project, id).await?;
                agent.name = changes.name.unwrap_or(agent.name);
                if let Some(changes) = changes.config {
                    agent.config = match agent.config.with(changes) {
                        Ok(config) => config,
                        Err(invalid) => return Ok(Err(invalid)),
                    };
                }
                sql("UPDATE agents SET name = $1, config = $2, updated_at = $3 WHERE id = $4")
                    .bind(agent.name.as_str())
                    .bind(json(&agent.config))
                    .bind(agent.updated_at)
                    .bind(id.0)
                    .execute(&mut tx.conn)
                    .await
                    .map_err(name_taken)?;
                tx.wake(Wakeup::Agents(project));
                tx.emit(project, owner, &Event::AgentUpdated { agent: agent.clone() });
                Ok(Ok(agent))
            })
        })
        .await
    }

    /// Deletes an agent and stops its tasks.
    pub async fn delete_agent(&self, owned: &Owned, id: AgentId) -> Result<Vec<StoppedTask>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let (project, owner) = (owned.project, owned.owner);
                let agent = lock_agent(tx, project, id).await?;
                let why = TaskFailure::new(
                    TaskFailureCode::AgentDeleted,
                    format!("the agent {} was deleted", agent.name),
                );
                let stopped = stop_queue(tx, &owned, id, &why).await?;
                sql("DELETE FROM agents WHERE id = $1").bind(id.0).execute(&mut tx.conn).await?;
                mark_collections_gone(&mut tx.conn, Some(id), project).await?;
                tx.wake(Wakeup::Memory);
                tx.wake(Wakeup::Agents(project));
                tx.emit(project, owner, &Event::AgentDeleted { agent_id: id, name: agent.name });
                Ok(stopped)
            })
        })
        .await
    }
}

/// Locks the agent until the commit, and returns it with a new time of change.
async fn lock_agent(tx: &mut Tx, project: ProjectId, id: AgentId) -> Result<Agent> {
    let row: Option<AgentRow> =
        sql("UPDATE agents SET updated_at = updated_at WHERE id = $1 AND project_id = $2
         RETURNING id, project_id, name, status, config, created_at, updated_at")
        .bind(id.0)
        .bind(project.0)
        .fetch_optional(&mut tx.conn)
        .await?;
    let mut agent = read_agent(row.ok_or(Error::NotFound)?)?;
    agent.updated_at = now();
    Ok(agent)
}
