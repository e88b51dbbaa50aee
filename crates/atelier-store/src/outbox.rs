//! Interactions that the vector index still has to process.
//!
//! A line of the outbox names an interaction and not what happened to it: the indexer checks
//! whether the interaction exists, and adds it to the index or removes it. So a line can be
//! processed twice, late, or after other lines of the same interaction.

use crate::{
    Error, OwnedAgent, Result, Store,
    collections::Collection,
    db::{SqlBuilder, sql},
    feed::Wakeup,
    interactions::read_interaction,
    rows::interactions::{insert_outbox, write_vectors},
};
use atelier_core::{Interaction, InteractionId};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A change that the index has to make.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a few hundred at a time, nearly all of them the large one"
)]
pub enum IndexChange {
    /// The interaction exists. `seq` is its number among all interactions; `vector` is `None` if
    /// its text was not embedded yet.
    Add {
        seq: i64,
        interaction: Interaction,
        vector: Option<StoredVector>,
    },
    Remove(InteractionId),
}

/// A vector and the name of its embedder.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredVector {
    pub embedder: String,
    pub vector: Vec<f32>,
}

/// Reads a vector from its columns; `None` if they are null.
pub(crate) fn read_vector(
    embedder: Option<String>,
    bytes: Option<Vec<u8>>,
) -> Result<Option<StoredVector>> {
    let Some((embedder, bytes)) = embedder.zip(bytes) else { return Ok(None) };
    let (values, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Error::Corrupt("half a number in a vector".into()));
    }
    let vector = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    Ok(Some(StoredVector { embedder, vector }))
}

impl Store {
    /// The next changes of a collection after a line of the outbox, each interaction once, and the
    /// last line that they cover.
    pub async fn index_changes(
        &self,
        collection: &Collection,
        after: i64,
        limit: i64,
    ) -> Result<(Vec<IndexChange>, i64)> {
        type Row = (
            i64,
            Uuid,
            Option<i64>,
            Option<String>,
            Option<String>,
            Option<bool>,
            Option<String>,
            Option<i64>,
            Option<String>,
            Option<String>,
            Option<String>,
            Option<bool>,
            Option<String>,
            Option<Vec<u8>>,
        );
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> =
            sql("SELECT o.seq, o.id, i.seq, i.type, i.text, i.success, i.error_details, i.at, \
             i.task_id, i.session_id,
             i.metadata, i.pinned, v.embedder, v.vector FROM memory_outbox o
             LEFT JOIN interactions i ON i.agent_id = o.agent_id AND i.id = o.id
             LEFT JOIN interaction_vectors v ON v.seq = i.seq
             WHERE o.agent_id = $1 AND o.seq > $2 ORDER BY o.seq LIMIT $3")
            .bind(collection.agent.0)
            .bind(after)
            .bind(limit)
            .fetch_all(&mut conn)
            .await?;
        let last = rows.last().map_or(after, |row| row.0);
        let mut changes = BTreeMap::new();
        for (
            _,
            id,
            seq,
            kind,
            text,
            success,
            error,
            at,
            task,
            session,
            metadata,
            pinned,
            embedder,
            vector,
        ) in rows
        {
            let change = match (seq, kind, text, success, at, metadata) {
                (Some(seq), Some(kind), Some(text), Some(success), Some(at), Some(metadata)) => {
                    let pinned = pinned.unwrap_or(false);
                    let interaction = read_interaction((
                        id, kind, text, success, error, at, task, session, metadata, pinned,
                    ))?;
                    let stored = read_vector(embedder, vector)?;
                    let (interaction, vector) = self.clean_with_vector(interaction, stored);
                    IndexChange::Add { seq, interaction, vector }
                }
                _ => IndexChange::Remove(InteractionId(id)),
            };
            changes.insert(id, change);
        }
        Ok((changes.into_values().collect(), last))
    }

    /// The newest interactions with lower numbers than `below`, newest first, each with its number.
    pub async fn interactions_below(
        &self,
        collection: &Collection,
        below: i64,
        limit: i64,
    ) -> Result<Vec<(i64, Interaction, Option<StoredVector>)>> {
        type Row = (
            i64,
            Uuid,
            String,
            String,
            bool,
            Option<String>,
            i64,
            Option<String>,
            Option<String>,
            String,
            bool,
            Option<String>,
            Option<Vec<u8>>,
        );
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> =
            sql("SELECT i.seq, i.id, i.type, i.text, i.success, i.error_details, i.at, i.task_id,
             i.session_id, i.metadata, i.pinned, v.embedder, v.vector FROM interactions i
             LEFT JOIN interaction_vectors v ON v.seq = i.seq
             WHERE i.agent_id = $1 AND i.seq < $2 ORDER BY i.seq DESC LIMIT $3")
            .bind(collection.agent.0)
            .bind(below)
            .bind(limit)
            .fetch_all(&mut conn)
            .await?;
        let read = |row: Row| {
            let (seq, id, kind, text, success, error, at, task, session, metadata, pinned, ..) =
                row;
            let (.., embedder, vector) = row;
            let interaction = read_interaction((
                id, kind, text, success, error, at, task, session, metadata, pinned,
            ))?;
            let stored = read_vector(embedder, vector)?;
            let (interaction, vector) = self.clean_with_vector(interaction, stored);
            Ok((seq, interaction, vector))
        };
        rows.into_iter().map(read).collect()
    }

    /// How many interactions of an agent have lower numbers than `below`.
    pub async fn count_below(&self, collection: &Collection, below: i64) -> Result<u64> {
        let mut conn = self.db.connect().await?;
        let (count,): (i64,) =
            sql("SELECT COUNT(*) FROM interactions WHERE agent_id = $1 AND seq < $2")
                .bind(collection.agent.0)
                .bind(below)
                .fetch_one(&mut conn)
                .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Stores vectors, so that no text is embedded twice. An interaction that was removed in the
    /// meantime gets none.
    pub async fn save_vectors(
        &self,
        collection: &Collection,
        embedder: &str,
        vectors: Vec<(i64, Vec<f32>)>,
    ) -> Result<()> {
        let embedder = embedder.to_owned();
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                let rows: Vec<(i64, &str, &[f32])> = vectors
                    .iter()
                    .map(|(seq, vector)| (*seq, embedder.as_str(), vector.as_slice()))
                    .collect();
                write_vectors(&mut tx.conn, &rows).await?;
                for rows in rows.chunks(500) {
                    let mut delete = SqlBuilder::new(
                        "DELETE FROM interaction_vectors WHERE NOT EXISTS
                             (SELECT 1 FROM interactions i WHERE i.seq = interaction_vectors.seq) \
                             AND seq IN (",
                    );
                    let mut list = delete.separated(", ");
                    for (seq, ..) in rows {
                        list.push_bind(*seq);
                    }
                    delete.push(")");
                    delete.execute(&mut tx.conn).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Records that the index has processed all lines up to `through`. If another node has leased
    /// the collection in the meantime, this node may have written outdated rows, so `ids` are
    /// processed again.
    pub async fn mark_indexed(
        &self,
        collection: &Collection,
        through: i64,
        ids: Vec<InteractionId>,
        frequencies: Option<Vec<u8>>,
    ) -> Result<()> {
        let (agent, node) = (collection.agent, self.node());
        self.write(collection.owner, move |tx| {
            Box::pin(async move {
                let held =
                    sql("UPDATE memory_collections SET frequencies = COALESCE($1, frequencies)
                     WHERE agent_id = $2 AND holder = $3")
                    .bind(frequencies)
                    .bind(agent.0)
                    .bind(node.0)
                    .execute(&mut tx.conn)
                    .await?;
                if held == 0 {
                    let lines: Vec<_> = ids.into_iter().map(|id| (agent, id.0)).collect();
                    insert_outbox(&mut tx.conn, &lines).await?;
                    tx.wake(Wakeup::Memory);
                    return Ok(());
                }
                sql("DELETE FROM memory_outbox WHERE agent_id = $1 AND seq <= $2")
                    .bind(agent.0)
                    .bind(through)
                    .execute(&mut tx.conn)
                    .await?;
                sql("UPDATE memory_collections SET restless = reembed_below IS NOT NULL OR EXISTS
                         (SELECT 1 FROM memory_outbox WHERE agent_id = $1) WHERE agent_id = $1 \
                         AND state = 'live'")
                .bind(agent.0)
                .execute(&mut tx.conn)
                .await?;

                Ok(())
            })
        })
        .await
    }

    /// Whether any of these interactions is in a line of the outbox after `indexed`.
    pub async fn has_unindexed(
        &self,
        agent: OwnedAgent,
        indexed: i64,
        ids: &[InteractionId],
    ) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        for ids in ids.chunks(500) {
            let mut select = SqlBuilder::new("SELECT 1 FROM memory_outbox WHERE agent_id = ");
            select
                .push_bind(agent.id().0)
                .push(" AND seq > ")
                .push_bind(indexed)
                .push(" AND id IN (");
            let mut list = select.separated(", ");
            for id in ids {
                list.push_bind(id.0);
            }
            select.push(") LIMIT 1");
            let row: Option<(i32,)> = select.fetch_optional(&mut conn).await?;
            if row.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first interactions in lines of the outbox after `indexed`, at most `limit`.
    pub async fn first_unindexed(
        &self,
        agent: OwnedAgent,
        indexed: i64,
        limit: i64,
    ) -> Result<Vec<InteractionId>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid,)> = sql(
            "SELECT id FROM memory_outbox WHERE agent_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        )
        .bind(agent.id().0)
        .bind(indexed)
        .bind(limit)
        .fetch_all(&mut conn)
        .await?;
        Ok(rows.into_iter().map(|(id,)| InteractionId(id)).collect())
    }

    /// How many lines of the outbox come after `indexed`.
    pub async fn count_unindexed(&self, agent: OwnedAgent, indexed: i64) -> Result<u64> {
        let mut conn = self.db.connect().await?;
        let (count,): (i64,) =
            sql("SELECT COUNT(*) FROM memory_outbox WHERE agent_id = $1 AND seq > $2")
                .bind(agent.id().0)
                .bind(indexed)
                .fetch_one(&mut conn)
                .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}
