//! Rows of collections: which agents have one.

use crate::{
    Error, Result,
    db::{Conn, SqlBuilder, sql},
    rows::{corrupt, rows_at_once},
};
use atelier_core::{
    AgentId, AgentName, ProjectId, UserId,
    memory::{CollectionState, collection_name},
};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Reads the state of a collection from its row.
pub(crate) fn read_state(state: &str) -> Result<CollectionState> {
    let state = CollectionState::ALL.into_iter().find(|known| known.as_str() == state);
    state.ok_or_else(|| Error::Corrupt("a collection's state".into()))
}

/// The project and state of each agent's collection. Agents without a collection are left out.
pub(crate) async fn collection_states(
    conn: &mut Conn,
    agents: &BTreeSet<Uuid>,
) -> Result<Vec<(AgentId, ProjectId, CollectionState)>> {
    let mut states = Vec::with_capacity(agents.len());
    let mut left = agents.iter();
    while left.len() > 0 {
        let size = rows_at_once(left.len());
        let mut select = SqlBuilder::new(
            "SELECT agent_id, project_id, state FROM memory_collections WHERE agent_id IN (",
        );
        let mut list = select.separated(", ");
        for agent in left.by_ref().take(size) {
            list.push_bind(*agent);
        }
        select.push(")");
        let rows: Vec<(Uuid, Uuid, String)> = select.fetch_all(conn).await?;
        for (agent, project, state) in rows {
            states.push((AgentId(agent), ProjectId(project), read_state(&state)?));
        }
    }
    Ok(states)
}

/// Makes sure that an agent has a collection, and says whether it takes interactions: not if the
/// agent belongs to another project, does not exist or is being deleted.
pub(crate) async fn ensure_collection(
    conn: &mut Conn,
    project: ProjectId,
    owner: UserId,
    agent: AgentId,
) -> Result<bool> {
    let known: Option<(Uuid, String)> =
        sql("SELECT project_id, state FROM memory_collections WHERE agent_id = $1")
            .bind(agent.0)
            .fetch_optional(conn)
            .await?;
    if let Some((found, state)) = known {
        return Ok(found == project.0 && state != CollectionState::Gone.as_str());
    }
    let name: Option<(String,)> = sql("SELECT name FROM agents WHERE id = $1 AND project_id = $2")
        .bind(agent.0)
        .bind(project.0)
        .fetch_optional(conn)
        .await?;
    let Some((name,)) = name else { return Ok(false) };
    let name = corrupt(AgentName::try_from(name))?;
    // An agent that was renamed or deleted may still have a collection of the plain name.
    for with_id in [false, true] {
        let name = collection_name(owner, project, &name, agent, with_id);
        let made =
            sql("INSERT INTO memory_collections (agent_id, project_id, user_id, name, state)
             VALUES ($1, $2, $3, $4, 'wanted') ON CONFLICT DO NOTHING")
            .bind(agent.0)
            .bind(project.0)
            .bind(owner.0)
            .bind(name)
            .execute(conn)
            .await?;
        if made > 0 {
            break;
        }
    }
    Ok(true)
}
