//! Rows of interactions with their search terms, vectors and lines of the outbox.

use crate::{
    Result,
    db::{Conn, SqlBuilder},
    rows::{
        collections::{collection_states, ensure_collection},
        json, new_id, now, rows_at_once,
    },
};
use atelier_core::{
    AgentId, InteractionId, NewInteraction, ProjectId, UserId, memory::CollectionState,
    remembered::without_secrets, terms::terms,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use uuid::Uuid;

/// How many terms of one text are searchable: later terms of so long a text do not help to find it.
const MAX_TERMS: usize = 5000;

/// What became of new interactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedInteractions {
    /// In the order in which the interactions were given.
    pub ids: Vec<InteractionId>,
    /// How many of the interactions were not stored before.
    pub new: usize,
}

/// A new interaction with its id and search terms, and without values that look like keys. Masking
/// a long text and finding its terms takes time, so it is done before a transaction and not in it.
pub(crate) struct PreparedInteraction {
    id: InteractionId,
    new: NewInteraction,
    terms: Vec<String>,
}

impl PreparedInteraction {
    pub(crate) fn new(new: NewInteraction) -> Self {
        let mut new = without_secrets(new);
        // PostgreSQL stores no NUL in a text.
        for text in [Some(&mut new.text), new.error_details.as_mut()].into_iter().flatten() {
            *text = text.replace('\0', "\u{fffd}");
        }
        let terms = search_terms(&new.text);
        Self { id: new.id.unwrap_or_else(|| InteractionId(new_id())), new, terms }
    }
}

/// The terms that a text is found by.
pub(crate) fn search_terms(text: &str) -> Vec<String> {
    let mut terms = terms(text);
    terms.truncate(MAX_TERMS);
    terms
}

/// An interaction that an agent of a project is to remember.
pub(crate) struct PendingInteraction {
    pub(crate) project: ProjectId,
    pub(crate) owner: UserId,
    pub(crate) agent: AgentId,
    pub(crate) interaction: PreparedInteraction,
}

/// Writes interactions. Those of an agent that is being deleted, or that is not of their project,
/// are dropped.
pub(crate) async fn write_interactions(
    conn: &mut Conn,
    pending: Vec<PendingInteraction>,
) -> Result<AddedInteractions> {
    let mut accepts: HashMap<AgentId, bool> = HashMap::new();
    let agents: BTreeSet<Uuid> = pending.iter().map(|one| one.agent.0).collect();
    for (agent, project, state) in collection_states(conn, &agents).await? {
        let one = pending.iter().find(|one| one.agent == agent);
        let accepted =
            state != CollectionState::Gone && one.is_some_and(|one| one.project == project);
        accepts.insert(agent, accepted);
    }
    let mut accepted = Vec::with_capacity(pending.len());
    for PendingInteraction { project, owner, agent, interaction } in pending {
        let accepts_it = match accepts.get(&agent) {
            Some(known) => *known,
            None => ensure_collection(conn, project, owner, agent).await?,
        };
        accepts.insert(agent, accepts_it);
        if accepts_it {
            accepted.push((agent, interaction));
        }
    }
    insert_interactions(conn, &accepted).await
}

/// Inserts interactions of agents that have a collection. The index processes them later.
pub(crate) async fn insert_interactions(
    conn: &mut Conn,
    interactions: &[(AgentId, PreparedInteraction)],
) -> Result<AddedInteractions> {
    let mut added = AddedInteractions::default();
    let mut new: BTreeMap<Uuid, i64> = BTreeMap::new();
    let mut left = interactions;
    while !left.is_empty() {
        let (batch, rest) = left.split_at(rows_at_once(left.len()));
        for agent in insert_batch(conn, batch).await? {
            *new.entry(agent).or_default() += 1;
            added.new += 1;
        }
        left = rest;
    }
    added.ids.extend(interactions.iter().map(|(_, one)| one.id));
    let new: Vec<(Uuid, i64)> = new.into_iter().collect();
    for new in new.chunks(64) {
        let mut update = SqlBuilder::new(
            "UPDATE memory_collections SET total = total + v.column2, restless = TRUE FROM (",
        );
        update.push_values(new, |mut row, (agent, count)| {
            row.push_bind(*agent).push_bind(*count);
        });
        update.push(") AS v WHERE agent_id = v.column1");
        update.execute(conn).await?;
    }
    Ok(added)
}

/// Returns the agent of each interaction that was not stored before.
async fn insert_batch(
    conn: &mut Conn,
    batch: &[(AgentId, PreparedInteraction)],
) -> Result<Vec<Uuid>> {
    let time = now();
    let mut insert = SqlBuilder::new(
        "INSERT INTO interactions
             (agent_id, id, type, text, success, error_details, at, task_id, session_id, \
             metadata, pinned) ",
    );
    insert.push_values(batch, |mut row, (agent, PreparedInteraction { id, new, .. })| {
        row.push_bind(agent.0)
            .push_bind(id.0)
            .push_bind(new.interaction_type.as_str())
            .push_bind(new.text.as_str())
            .push_bind(new.success)
            .push_bind(new.error_details.as_deref())
            .push_bind(new.timestamp.unwrap_or(time).timestamp_micros())
            .push_bind(new.task_id.as_deref())
            .push_bind(new.session_id.as_deref())
            .push_bind(json(&new.metadata))
            .push_bind(new.pinned);
    });
    insert.push(" ON CONFLICT (agent_id, id) DO NOTHING RETURNING seq, agent_id, id");
    let inserted: Vec<(i64, Uuid, Uuid)> = insert.fetch_all(conn).await?;
    let mut numbers: BTreeMap<(Uuid, Uuid), i64> =
        inserted.into_iter().map(|(seq, agent, id)| ((agent, id), seq)).collect();
    // An interaction that is twice in the batch is new once.
    let new: Vec<(i64, &(AgentId, PreparedInteraction))> = batch
        .iter()
        .filter_map(|one| Some((numbers.remove(&(one.0.0, one.1.id.0))?, one)))
        .collect();
    let terms: Vec<TermsRow<'_>> =
        new.iter().map(|(seq, (agent, one))| (*seq, *agent, one.terms.as_slice())).collect();
    insert_terms(conn, &terms).await?;
    // A vector without the name of its embedder cannot be compared, so it is dropped here and made
    // anew by the indexer, which also checks that the embedder is the server's.
    let vectors: Vec<(i64, &str, &[f32])> = new
        .iter()
        .filter_map(|(seq, (_, PreparedInteraction { new, .. }))| {
            Some((*seq, new.embedder.as_deref()?, new.embedding.as_deref()?))
        })
        .collect();
    write_vectors(conn, &vectors).await?;
    let lines: Vec<(AgentId, Uuid)> =
        new.iter().map(|(_, (agent, one))| (*agent, one.id.0)).collect();
    insert_outbox(conn, &lines).await?;
    Ok(lines.into_iter().map(|(agent, _)| agent.0).collect())
}

/// An interaction by its number, its agent and its search terms.
pub(crate) type TermsRow<'w> = (i64, AgentId, &'w [String]);

/// Makes interactions searchable by their terms.
pub(crate) async fn insert_terms(conn: &mut Conn, rows: &[TermsRow<'_>]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut insert = match conn {
        Conn::Lite(_) => {
            let mut insert =
                SqlBuilder::new("INSERT INTO interaction_terms (rowid, agent, terms) ");
            insert.push_values(rows, |mut row, (seq, agent, terms)| {
                row.push_bind(*seq)
                    .push_bind(agent.0.simple().to_string())
                    .push_bind(terms.join(" "));
            });
            insert
        }
        Conn::Pg(_) => {
            let mut insert = SqlBuilder::new("INSERT INTO interaction_terms (seq, terms) ");
            insert.push_values(rows, |mut row, (seq, _, terms)| {
                row.push_bind(*seq)
                    .push("array_to_tsvector(")
                    .push_bind_unseparated(terms.to_vec())
                    .push_unseparated(")");
            });
            insert
        }
    };
    insert.execute(conn).await?;
    Ok(())
}

/// Stores vectors, each with the number of its interaction and the name of its embedder.
pub(crate) async fn write_vectors(conn: &mut Conn, vectors: &[(i64, &str, &[f32])]) -> Result<()> {
    for vectors in vectors.chunks(100) {
        let bytes = |vector: &[f32]| {
            vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
        };
        let mut insert =
            SqlBuilder::new("INSERT INTO interaction_vectors (seq, embedder, vector) ");
        insert.push_values(vectors, |mut row, (seq, embedder, vector)| {
            row.push_bind(*seq).push_bind((*embedder).to_owned()).push_bind(bytes(vector));
        });
        insert.push(
            " ON CONFLICT (seq) DO UPDATE SET embedder = excluded.embedder, vector = \
                 excluded.vector",
        );
        insert.execute(conn).await?;
    }
    Ok(())
}

/// Adds lines to the outbox: these interactions were added or removed.
pub(crate) async fn insert_outbox(conn: &mut Conn, lines: &[(AgentId, Uuid)]) -> Result<()> {
    for lines in lines.chunks(500) {
        let mut insert = SqlBuilder::new("INSERT INTO memory_outbox (agent_id, id) ");
        insert.push_values(lines, |mut row, (agent, id)| {
            row.push_bind(agent.0).push_bind(*id);
        });
        insert.execute(conn).await?;
    }
    Ok(())
}

/// Deletes interactions by their numbers, with their vectors and search terms.
pub(crate) async fn delete_interactions(conn: &mut Conn, seqs: &[i64]) -> Result<()> {
    delete_search_data(conn, seqs).await?;
    delete_from(conn, seqs, &[("interactions", "seq"), ("interaction_history", "seq")]).await
}

/// Deletes what searches know of interactions: their vectors and search terms.
pub(crate) async fn delete_search_data(conn: &mut Conn, seqs: &[i64]) -> Result<()> {
    let terms_key = if matches!(conn, Conn::Lite(_)) { "rowid" } else { "seq" };
    delete_from(conn, seqs, &[("interaction_vectors", "seq"), ("interaction_terms", terms_key)])
        .await
}

async fn delete_from(
    conn: &mut Conn,
    seqs: &[i64],
    tables: &[(&'static str, &'static str)],
) -> Result<()> {
    for seqs in seqs.chunks(500) {
        for (table, key) in tables {
            let mut delete = SqlBuilder::new("DELETE FROM ");
            delete.push(*table).push(" WHERE ").push(*key).push(" IN (");
            let mut list = delete.separated(", ");
            for seq in seqs {
                list.push_bind(*seq);
            }
            delete.push(")");
            delete.execute(conn).await?;
        }
    }
    Ok(())
}
