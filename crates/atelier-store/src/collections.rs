//! The collections of the index as the store knows them: what they are called, which index has them, how their
//! vectors were made, who feeds them, how full they are.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, on},
    feed::Wakeup,
    nodes::is_gone,
    rows::{
        collections::{CollectionState, ensure_collection},
        from_json,
        interactions::delete_interactions,
    },
};
use atelier_core::{Agent, AgentConfig, AgentId, Event, ProjectId, UserId, memory::collection_name};
use chrono::TimeDelta;
use uuid::Uuid;

/// How long a feeder has a collection to itself without saying that it is still there.
const LEASE: TimeDelta = TimeDelta::seconds(10);
/// Facts of a deleted agent that go in one transaction.
const PURGE: i64 = 2000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collection {
    pub agent: AgentId,
    pub project: ProjectId,
    pub owner: UserId,
    /// What it is called in the index and in statistics.
    pub name: String,
    pub state: CollectionState,
    /// The index that has it; an embedded index is on one node's disk.
    pub index: Option<String>,
    /// How its vectors were made; those of another embedder do not compare.
    pub embedder: Option<String>,
    pub dimension: Option<i64>,
    pub total: i64,
}

/// What a look at a collection's size found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fullness {
    Fits,
    /// The owner was warned just now.
    Warned,
    /// Only so many may stay.
    Full {
        keep: u64,
    },
}

type Row = (Uuid, Uuid, Uuid, String, String, Option<String>, Option<String>, Option<i64>, i64);

macro_rules! columns {
    () => {
        "agent_id, project_id, user_id, name, state, index_id, embedder, dimension, total"
    };
}

fn read((agent, project, owner, name, state, index, embedder, dimension, total): Row) -> Result<Collection> {
    Ok(Collection {
        agent: AgentId(agent),
        project: ProjectId(project),
        owner: UserId(owner),
        name,
        state: CollectionState::parse(&state)?,
        index,
        embedder,
        dimension,
        total,
    })
}

/// Writes down the collections of agents that are being made. One whose plain name another collection still has is
/// left to [`ensure_collection`].
pub(crate) async fn want_collections(
    tx: &mut Tx,
    project: ProjectId,
    owner: UserId,
    agents: &[Agent],
) -> Result<()> {
    on!(&mut tx.conn, |c| {
        let mut insert = sqlx::QueryBuilder::new(
            "INSERT INTO memory_collections (agent_id, project_id, user_id, name, state) ",
        );
        insert.push_values(agents, |mut row, agent| {
            row.push_bind(agent.id.0)
                .push_bind(project.0)
                .push_bind(owner.0)
                .push_bind(collection_name(owner, project, &agent.name, agent.id, false))
                .push_bind(CollectionState::Wanted.as_str());
        });
        insert.push(" ON CONFLICT DO NOTHING");
        insert.build().execute(c).await.map(drop)
    })?;
    Ok(())
}

/// The agents' collections are to go. Their facts can be many: they go in the background.
pub(crate) async fn abandon(conn: &mut Conn, agent: Option<AgentId>, project: ProjectId) -> Result<()> {
    on!(conn, |c| {
        sqlx::query(
        "UPDATE memory_collections SET state = 'gone', restless = TRUE WHERE project_id = $1 AND ($2 OR agent_id = $3)"
    )
    .bind(project.0)
    .bind(agent.is_none())
    .bind(agent.map_or(Uuid::nil(), |agent| agent.0))
    .execute(c)
    .await
    .map(drop)
    })?;
    Ok(())
}

impl Store {
    /// Makes sure that all agents of a project have a collection, and tells which they are.
    pub async fn ensure_collections(&self, owned: &Owned) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let missing: Vec<(Uuid,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT a.id FROM agents a WHERE a.project_id = $1
             AND NOT EXISTS (SELECT 1 FROM memory_collections c WHERE c.agent_id = a.id)"
        )
        .bind(owned.project.0)
        .fetch_all(c)
        .await)?;
        drop(conn);
        if !missing.is_empty() {
            let (project, owner) = (owned.project, owned.owner);
            self.write(owner, move |tx| {
                Box::pin(async move {
                    for (agent,) in missing {
                        ensure_collection(&mut tx.conn, project, owner, AgentId(agent)).await?;
                    }
                    Ok(())
                })
            })
            .await?;
        }
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE project_id = $1 AND state <> 'gone'"
        ))
        .bind(owned.project.0)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    pub async fn collection(&self, agent: AgentId) -> Result<Collection> {
        let mut conn = self.db.connect().await?;
        let row: Option<Row> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE agent_id = $1"
        ))
        .bind(agent.0)
        .fetch_optional(c)
        .await)?;
        read(row.ok_or(Error::NotFound)?)
    }

    /// All collections that are not about to go.
    pub async fn collections(&self) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE state <> 'gone' ORDER BY agent_id"
        ))
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// Collections of this index, or of none yet, that there is something to do about, each with the newest line of the
    /// outbox that is about it.
    pub async fn collections_to_index(&self, index: &str) -> Result<Vec<(Collection, Option<i64>)>> {
        type Row =
            (Uuid, Uuid, Uuid, String, String, Option<String>, Option<String>, Option<i64>, i64, Option<i64>);
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            ", (SELECT MAX(o.seq) FROM memory_outbox o WHERE o.agent_id = c.agent_id)
             FROM memory_collections c WHERE restless AND (index_id IS NULL OR index_id = $1)"
        ))
        .bind(index)
        .fetch_all(c)
        .await)?;
        let pair = |row: Row| {
            let (agent, project, owner, name, state, index, embedder, dimension, total, newest) = row;
            let row = (agent, project, owner, name, state, index, embedder, dimension, total);
            Ok((read(row)?, newest))
        };
        rows.into_iter().map(pair).collect()
    }

    /// Collections of other indexes whose agents are gone, and that still have facts.
    pub async fn abandoned_collections(&self, index: &str) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE restless AND state = 'gone' AND total > 0 AND index_id <> $1"
        ))
        .bind(index)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// Takes a collection for a while, unless another feeder has it. Returns it as it is now. Whoever is `alone` with
    /// the index need not look whether that one is still there.
    pub async fn lease_collection(
        &self,
        collection: &Collection,
        index: &str,
        alone: bool,
    ) -> Result<Option<Collection>> {
        let (agent, node, index) = (collection.agent, self.node(), index.to_owned());
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                let time = tx.time().await?;
                let row: Option<Row> = on!(&mut tx.conn, |c| sqlx::query_as(concat!(
                    "UPDATE memory_collections SET holder = $1, lease_until = $2, index_id = $3
                     WHERE agent_id = $4 AND (index_id IS NULL OR index_id = $3)
                     AND ($6 OR holder IS NULL OR holder = $1 OR lease_until < $5 OR ",
                    is_gone!("memory_collections.holder", "$1", "$5"),
                    ") RETURNING ",
                    columns!()
                ))
                .bind(node.0)
                .bind(time + LEASE)
                .bind(&index)
                .bind(agent.0)
                .bind(time)
                .bind(alone)
                .fetch_optional(c)
                .await)?;
                row.map(read).transpose()
            })
        })
        .await
    }

    /// Lets a collection go, so that the next feeder need not wait.
    pub async fn release_collection(&self, collection: &Collection) -> Result<()> {
        let (agent, node) = (collection.agent, self.node());
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| sqlx::query(
                    "UPDATE memory_collections SET holder = NULL, lease_until = NULL
                     WHERE agent_id = $1 AND holder = $2"
                )
                .bind(agent.0)
                .bind(node.0)
                .execute(c)
                .await
                .map(drop))?;
                Ok(())
            })
        })
        .await
    }

    /// The index has made the collection, empty: every fact is to be told to it.
    pub async fn collection_created(
        &self,
        collection: &Collection,
        embedder: &str,
        dimension: i64,
    ) -> Result<()> {
        let (agent, embedder) = (collection.agent, embedder.to_owned());
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| {
                    sqlx::query("DELETE FROM memory_outbox WHERE agent_id = $1")
                        .bind(agent.0)
                        .execute(&mut *c)
                        .await?;
                    sqlx::query(
                        "INSERT INTO memory_outbox (agent_id, id)
                         SELECT agent_id, id FROM interactions WHERE agent_id = $1 ORDER BY seq",
                    )
                    .bind(agent.0)
                    .execute(&mut *c)
                    .await?;
                    sqlx::query(
                        "UPDATE memory_collections SET state = 'live', embedder = $1, dimension = $2, restless = EXISTS
                         (SELECT 1 FROM memory_outbox WHERE agent_id = $3) WHERE agent_id = $3 AND state = 'wanted'",
                    )
                    .bind(&embedder)
                    .bind(dimension)
                    .bind(agent.0)
                    .execute(&mut *c)
                    .await?;
                });
                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await
    }

    /// Has a collection made anew, in whichever index gets hold of it first; unless it is no more in the state that it
    /// was seen in, for then somebody else has done so.
    pub async fn rebuild_collection(&self, collection: &Collection) -> Result<()> {
        let (agent, seen) = (collection.agent, collection.state);
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| sqlx::query(
                    "UPDATE memory_collections SET state = 'wanted', restless = TRUE, index_id = NULL, embedder = NULL,
                     dimension = NULL, frequencies = NULL WHERE agent_id = $1 AND state = $2 AND state <> 'gone'"
                )
                .bind(agent.0)
                .bind(seen.as_str())
                .execute(c)
                .await
                .map(drop))?;
                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await
    }

    /// Removes the facts of a collection that is gone, a part at a time; `false` when none are left. Its row stays for
    /// whoever can drop it from the index.
    pub async fn purge(&self, collection: &Collection) -> Result<bool> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                let seqs: Vec<(i64,)> = on!(&mut tx.conn, |c| sqlx::query_as(
                    "SELECT seq FROM interactions WHERE agent_id = $1 LIMIT $2"
                )
                .bind(agent.0)
                .bind(PURGE)
                .fetch_all(c)
                .await)?;
                let seqs: Vec<i64> = seqs.into_iter().map(|(seq,)| seq).collect();
                delete_interactions(&mut tx.conn, &seqs).await?;
                if seqs.is_empty() {
                    on!(&mut tx.conn, |c| {
                        sqlx::query("DELETE FROM memory_outbox WHERE agent_id = $1")
                            .bind(agent.0)
                            .execute(&mut *c)
                            .await?;
                        sqlx::query("UPDATE memory_collections SET total = 0 WHERE agent_id = $1")
                            .bind(agent.0)
                            .execute(&mut *c)
                            .await?;
                    });
                }
                Ok(!seqs.is_empty())
            })
        })
        .await
    }

    /// The index has dropped the collection: nothing is left of it.
    pub async fn collection_dropped(&self, collection: &Collection) -> Result<()> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| sqlx::query(
                    "DELETE FROM memory_collections WHERE agent_id = $1 AND state = 'gone'"
                )
                .bind(agent.0)
                .execute(c)
                .await
                .map(drop))?;
                Ok(())
            })
        })
        .await
    }

    /// Looks how full a collection is by its agent's `max_vectors`, and warns the owner once when it is at 80 %.
    pub async fn check_fullness(&self, agent: AgentId, owner: UserId) -> Result<Fullness> {
        self.write(owner, move |tx| {
            Box::pin(async move {
                type Row = (Uuid, i64, bool, String);
                let row: Option<Row> = on!(&mut tx.conn, |c| sqlx::query_as(
                    "SELECT c.project_id, c.total, c.warned, a.config FROM memory_collections c
                     JOIN agents a ON a.id = c.agent_id WHERE c.agent_id = $1"
                )
                .bind(agent.0)
                .fetch_optional(c)
                .await)?;
                let (project, total, warned, config) = row.ok_or(Error::NotFound)?;
                let config: AgentConfig = from_json(&config)?;
                let (total, max) = (u64::try_from(total).unwrap_or(0), u64::from(config.max_vectors));
                let near = total * 10 >= max * 8;
                if near != warned {
                    on!(&mut tx.conn, |c| sqlx::query(
                        "UPDATE memory_collections SET warned = $1 WHERE agent_id = $2"
                    )
                    .bind(near)
                    .bind(agent.0)
                    .execute(c)
                    .await
                    .map(drop))?;
                }
                if near && !warned {
                    let event = Event::ContextLimitWarning {
                        agent_id: agent,
                        total_vectors: total,
                        max_vectors: max,
                    };
                    tx.emit(ProjectId(project), owner, &event);
                }
                Ok(match () {
                    () if total >= max => Fullness::Full { keep: (max * 8 / 10).max(1) },
                    () if near && !warned => Fullness::Warned,
                    () => Fullness::Fits,
                })
            })
        })
        .await
    }

    /// How often terms occur in a collection's facts, as whoever feeds it counts them.
    pub async fn frequencies(&self, agent: AgentId) -> Result<Option<Vec<u8>>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Option<Vec<u8>>,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT frequencies FROM memory_collections WHERE agent_id = $1"
        )
        .bind(agent.0)
        .fetch_optional(c)
        .await)?;
        Ok(row.and_then(|(bytes,)| bytes))
    }
}
