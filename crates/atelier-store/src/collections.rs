//! Collections of the vector index: their names, the index that has them, their embedder, the node
//! that indexes them, and how full they are.

use crate::{
    Error, Owned, OwnedAgent, Result, Store, Tx,
    db::{Conn, SqlBuilder, sql},
    feed::Wakeup,
    nodes::is_gone,
    rows::{
        collections::{ensure_collection, read_state},
        database_time, from_json,
        interactions::delete_interactions,
    },
};
use atelier_core::{
    Agent, AgentConfig, AgentId, Event, ProjectId, UserId,
    memory::{CollectionState, collection_name},
};
use chrono::TimeDelta;
use std::collections::HashMap;
use uuid::Uuid;

/// How long a node's lease on a collection lasts.
const LEASE: TimeDelta = TimeDelta::seconds(10);
/// How many interactions of a deleted agent are removed in one transaction.
const PURGE: i64 = 2000;

/// A collection, as the store has found it. Other crates cannot make one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collection {
    pub agent: AgentId,
    pub project: ProjectId,
    pub owner: UserId,
    /// The name of the collection in the index and in statistics.
    pub name: String,
    pub state: CollectionState,
    /// The index that has the collection. An embedded index is on one node's disk.
    pub index: Option<String>,
    /// The embedder of its vectors. Vectors of different embedders cannot be compared.
    pub embedder: Option<String>,
    pub dimension: Option<i64>,
    pub total: i64,
    /// Where the index keeps the vectors; `None` for the place that older versions used.
    pub place: Option<String>,
    /// The vectors of the former embedder, while the interactions are embedded again.
    pub former: Option<FormerPart>,
}

/// The part of a collection whose vectors another embedder has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerPart {
    pub embedder: String,
    pub dimension: i64,
    pub place: Option<String>,
    /// Interactions with lower numbers are not embedded again yet.
    pub below: i64,
}

/// The vectors of a collection that is created: who makes them, and where the index keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVectors {
    pub index: String,
    pub embedder: String,
    pub dimension: i64,
    pub place: String,
}

impl Collection {
    /// The right to act on what the agent remembers, for work on the index.
    pub fn owned_agent(&self) -> OwnedAgent {
        OwnedAgent::new(self.agent, self.owner)
    }
}

/// How full a collection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fullness {
    Fits,
    /// The collection is nearly full, and the owner was warned just now.
    Warned,
    /// The collection is full: only this many interactions are to stay.
    Full {
        keep: u64,
    },
}

type Row = (
    Uuid,
    Uuid,
    Uuid,
    String,
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    i64,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
    Option<i64>,
);

macro_rules! columns {
    () => {
        "agent_id, project_id, user_id, name, state, index_id, embedder, dimension, total, place, \
         former_embedder, former_dimension, former_place, reembed_below"
    };
}

fn read(row: Row) -> Result<Collection> {
    let (agent, project, owner, name, state, index, embedder, dimension, total, place, ..) = row;
    let (.., former_embedder, former_dimension, former_place, below) = row;
    let former = match (former_embedder, former_dimension, below) {
        (Some(embedder), Some(dimension), Some(below)) => {
            Some(FormerPart { embedder, dimension, place: former_place, below })
        }
        _ => None,
    };
    Ok(Collection {
        agent: AgentId(agent),
        project: ProjectId(project),
        owner: UserId(owner),
        name,
        state: read_state(&state)?,
        index,
        embedder,
        dimension,
        total,
        place,
        former,
    })
}

/// Creates the collections of new agents. If another collection still has the plain name of an
/// agent, [`ensure_collection`] creates the agent's collection later.
pub(crate) async fn create_collections(
    tx: &mut Tx,
    project: ProjectId,
    owner: UserId,
    agents: &[Agent],
) -> Result<()> {
    let mut insert = SqlBuilder::new(
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
    insert.execute(&mut tx.conn).await?;
    Ok(())
}

/// Marks the collection of an agent, or of all agents of a project, as gone. Its interactions can
/// be many, so they are removed in the background.
pub(crate) async fn mark_collections_gone(
    conn: &mut Conn,
    agent: Option<AgentId>,
    project: ProjectId,
) -> Result<()> {
    sql("UPDATE memory_collections SET state = 'gone', restless = TRUE WHERE project_id = $1 AND \
         ($2 OR agent_id = $3)")
    .bind(project.0)
    .bind(agent.is_none())
    .bind(agent.map_or(Uuid::nil(), |agent| agent.0))
    .execute(conn)
    .await?;
    Ok(())
}

impl Store {
    /// Makes sure that all agents of a project have a collection, and returns the collections.
    pub async fn ensure_collections(&self, owned: &Owned) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let missing: Vec<(Uuid,)> = sql("SELECT a.id FROM agents a WHERE a.project_id = $1
             AND NOT EXISTS (SELECT 1 FROM memory_collections c WHERE c.agent_id = a.id)")
        .bind(owned.project.0)
        .fetch_all(&mut conn)
        .await?;
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
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE project_id = $1 AND state <> 'gone'"
        ))
        .bind(owned.project.0)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read).collect()
    }

    pub async fn collection(&self, agent: OwnedAgent) -> Result<Collection> {
        self.collection_of(agent.id()).await
    }

    /// The collection of an agent, for the store's own work.
    pub(crate) async fn collection_of(&self, agent: AgentId) -> Result<Collection> {
        let mut conn = self.db.connect().await?;
        let row: Option<Row> =
            sql(concat!("SELECT ", columns!(), " FROM memory_collections WHERE agent_id = $1"))
                .bind(agent.0)
                .fetch_optional(&mut conn)
                .await?;
        read(row.ok_or(Error::NotFound)?)
    }

    /// All collections of agents that exist.
    pub async fn collections(&self) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE state <> 'gone' ORDER BY agent_id"
        ))
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read).collect()
    }

    /// Collections of this index, or of no index yet, that the index has to process, each with its
    /// newest line of the outbox.
    pub async fn collections_to_index(
        &self,
        index: &str,
    ) -> Result<Vec<(Collection, Option<i64>)>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE restless AND (index_id IS NULL OR index_id = $1)
             ORDER BY agent_id"
        ))
        .bind(index)
        .fetch_all(&mut conn)
        .await?;
        let newest: Vec<(Uuid, i64)> =
            sql("SELECT c.agent_id, (SELECT MAX(o.seq) FROM memory_outbox o
             WHERE o.agent_id = c.agent_id) AS newest FROM memory_collections c
             WHERE c.restless AND EXISTS (SELECT 1 FROM memory_outbox o
             WHERE o.agent_id = c.agent_id)")
            .fetch_all(&mut conn)
            .await?;
        let newest: HashMap<Uuid, i64> = newest.into_iter().collect();
        let pair = |row: Row| {
            let collection = read(row)?;
            let newest = newest.get(&collection.agent.0).copied();
            Ok((collection, newest))
        };
        rows.into_iter().map(pair).collect()
    }

    /// Collections of an index whose vectors are not the current embedder's, and all that an older
    /// version has put into the same index.
    pub async fn outdated_collections(
        &self,
        index: &str,
        older: Option<&str>,
        embedder: &str,
    ) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE (state = 'live' AND index_id = $1 AND embedder <> $2)
             OR index_id = $3 ORDER BY agent_id"
        ))
        .bind(index)
        .bind(embedder)
        .bind(older)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read).collect()
    }

    /// Collections that only another index has, if this is the only node: nobody else can bring
    /// them back.
    pub async fn foreign_collections(
        &self,
        index: &str,
        older: Option<&str>,
    ) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let now = database_time(&mut conn).await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE state <> 'gone' AND index_id <> $1 AND index_id <> $2
             AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id <> $3 AND n.lease_until > $4)
             ORDER BY agent_id"
        ))
        .bind(index)
        .bind(older.unwrap_or(index))
        .bind(self.node().0)
        .bind(now)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read).collect()
    }

    /// Collections of other indexes whose agents are gone, and that still have interactions.
    pub async fn abandoned_collections(&self, index: &str) -> Result<Vec<Collection>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM memory_collections WHERE restless AND state = 'gone' AND total > 0 AND \
             index_id <> $1"
        ))
        .bind(index)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read).collect()
    }

    /// Leases a collection to this node, unless another node has it. Returns the current
    /// collection. A node that is `alone` with the index ignores the leases of other nodes.
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
                let row: Option<Row> = sql(concat!(
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
                .fetch_optional(&mut tx.conn)
                .await?;
                row.map(read).transpose()
            })
        })
        .await
    }

    /// Ends this node's lease on a collection, so that the next node need not wait.
    pub async fn release_collection(&self, agent: OwnedAgent) -> Result<()> {
        let node = self.node();
        self.write(agent.owner(), move |tx| {
            Box::pin(async move {
                sql("UPDATE memory_collections SET holder = NULL, lease_until = NULL
                     WHERE agent_id = $1 AND holder = $2")
                .bind(agent.id().0)
                .bind(node.0)
                .execute(&mut tx.conn)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Records that the index has created the collection, still empty: every interaction has to be
    /// indexed.
    pub async fn collection_created(
        &self,
        collection: &Collection,
        vectors: NewVectors,
    ) -> Result<()> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                sql("DELETE FROM memory_outbox WHERE agent_id = $1")
                    .bind(agent.0)
                    .execute(&mut tx.conn)
                    .await?;
                sql("INSERT INTO memory_outbox (agent_id, id)
                         SELECT agent_id, id FROM interactions WHERE agent_id = $1 ORDER BY seq")
                .bind(agent.0)
                .execute(&mut tx.conn)
                .await?;
                sql("UPDATE memory_collections SET state = 'live', embedder = $1, dimension = \
                         $2, place = $4, former_embedder = NULL, former_dimension = NULL,
                         former_place = NULL, reembed_below = NULL, restless = EXISTS
                         (SELECT 1 FROM memory_outbox WHERE agent_id = $3) WHERE agent_id = $3 \
                         AND state = 'wanted'")
                .bind(&vectors.embedder)
                .bind(vectors.dimension)
                .bind(agent.0)
                .bind(&vectors.place)
                .execute(&mut tx.conn)
                .await?;

                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await
    }

    /// Makes what the index has of a collection its former part. New interactions go to a new part;
    /// those that exist are embedded again, the newest first. `keeps_frequencies` says that the
    /// former part still needs the frequencies of terms, and the new one does not.
    pub async fn begin_reembedding(
        &self,
        collection: &Collection,
        vectors: NewVectors,
        keeps_frequencies: bool,
    ) -> Result<()> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                sql(
                    "UPDATE memory_collections SET former_embedder = embedder, former_dimension = \
                     dimension, former_place = place, reembed_below = COALESCE((SELECT MAX(seq) \
                     FROM interactions WHERE agent_id = $1), 0) + 1, index_id = $2, embedder = $3,
                     dimension = $4, place = $5, restless = TRUE,
                     frequencies = CASE WHEN $6 THEN frequencies END
                     WHERE agent_id = $1 AND state = 'live' AND reembed_below IS NULL",
                )
                .bind(agent.0)
                .bind(&vectors.index)
                .bind(&vectors.embedder)
                .bind(vectors.dimension)
                .bind(&vectors.place)
                .bind(keeps_frequencies)
                .execute(&mut tx.conn)
                .await?;
                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await
    }

    /// Records how far the interactions are embedded again, if this node still has the lease. Without
    /// a number all of them are, and the former part is gone.
    pub async fn save_reembedding(
        &self,
        collection: &Collection,
        below: Option<i64>,
        frequencies: Option<Vec<u8>>,
    ) -> Result<()> {
        let (agent, node) = (collection.agent, self.node());
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                sql("UPDATE memory_collections SET reembed_below = $1,
                     former_embedder = CASE WHEN $2 THEN former_embedder END,
                     former_dimension = CASE WHEN $2 THEN former_dimension END,
                     former_place = CASE WHEN $2 THEN former_place END,
                     frequencies = COALESCE($3, frequencies)
                     WHERE agent_id = $4 AND holder = $5 AND reembed_below IS NOT NULL")
                .bind(below)
                .bind(below.is_some())
                .bind(frequencies)
                .bind(agent.0)
                .bind(node.0)
                .execute(&mut tx.conn)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Lets the next index that leases the collection create it again. Does nothing if the
    /// collection is not in the given state any more, because then another node has done so.
    pub async fn rebuild_collection(&self, collection: &Collection) -> Result<()> {
        let (agent, seen) = (collection.agent, collection.state);
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                sql("UPDATE memory_collections SET state = 'wanted', restless = TRUE, index_id = \
                     NULL, embedder = NULL,
                     dimension = NULL, frequencies = NULL WHERE agent_id = $1 AND state = $2 AND \
                     state <> 'gone'")
                .bind(agent.0)
                .bind(seen.as_str())
                .execute(&mut tx.conn)
                .await?;
                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await
    }

    /// Removes some interactions of a collection that is gone, and returns `false` when none are
    /// left. The row of the collection stays until the index has dropped it.
    pub async fn purge(&self, collection: &Collection) -> Result<bool> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                let seqs: Vec<(i64,)> =
                    sql("SELECT seq FROM interactions WHERE agent_id = $1 LIMIT $2")
                        .bind(agent.0)
                        .bind(PURGE)
                        .fetch_all(&mut tx.conn)
                        .await?;
                let seqs: Vec<i64> = seqs.into_iter().map(|(seq,)| seq).collect();
                delete_interactions(&mut tx.conn, &seqs).await?;
                if seqs.is_empty() {
                    sql("DELETE FROM memory_outbox WHERE agent_id = $1")
                        .bind(agent.0)
                        .execute(&mut tx.conn)
                        .await?;
                    sql("UPDATE memory_collections SET total = 0 WHERE agent_id = $1")
                        .bind(agent.0)
                        .execute(&mut tx.conn)
                        .await?;
                }
                Ok(!seqs.is_empty())
            })
        })
        .await
    }

    /// Deletes the row of a collection that the index has dropped.
    pub async fn collection_dropped(&self, collection: &Collection) -> Result<()> {
        let agent = collection.agent;
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                sql("DELETE FROM memory_collections WHERE agent_id = $1 AND state = 'gone'")
                    .bind(agent.0)
                    .execute(&mut tx.conn)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    /// Compares the size of a collection with its agent's `max_vectors`. At 80 % the owner is
    /// warned once.
    pub async fn check_fullness(&self, collection: &Collection) -> Result<Fullness> {
        let (agent, owner) = (collection.agent, collection.owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                type Row = (Uuid, i64, bool, String);
                let row: Option<Row> = sql(
                    "SELECT c.project_id, c.total, c.warned, a.config FROM memory_collections c
                     JOIN agents a ON a.id = c.agent_id WHERE c.agent_id = $1",
                )
                .bind(agent.0)
                .fetch_optional(&mut tx.conn)
                .await?;
                let (project, total, warned, config) = row.ok_or(Error::NotFound)?;
                let config: AgentConfig = from_json(&config)?;
                let (total, max) =
                    (u64::try_from(total).unwrap_or(0), u64::from(config.max_vectors));
                let near = total * 10 >= max * 8;
                if near != warned {
                    sql("UPDATE memory_collections SET warned = $1 WHERE agent_id = $2")
                        .bind(near)
                        .bind(agent.0)
                        .execute(&mut tx.conn)
                        .await?;
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

    /// How often terms occur in a collection, as counted by the node that indexes it.
    pub async fn frequencies(&self, agent: OwnedAgent) -> Result<Option<Vec<u8>>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Option<Vec<u8>>,)> =
            sql("SELECT frequencies FROM memory_collections WHERE agent_id = $1")
                .bind(agent.id().0)
                .fetch_optional(&mut conn)
                .await?;
        Ok(row.and_then(|(bytes,)| bytes))
    }
}
