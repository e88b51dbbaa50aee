//! Cleans memories that older versions stored with secrets in them.
//!
//! It happens in small writes beside all other work, and continues after a restart where it
//! stopped: first it records which calls have shown secrets, then it looks at every interaction in
//! the order in which they were stored. When all are clean, the collections of changed interactions
//! are rebuilt, so that neither an old text nor its vector is left in the index. Later passes look
//! at what was stored since, because a node of an older version may still have written some of it.
//! Until the first pass has ended, interactions are cleaned when they are read.

use crate::{
    Error, Result, Store,
    db::{Conn, SqlBuilder, sql},
    feed::Wakeup,
    interactions::read_interaction,
    outbox::StoredVector,
    rows::{
        calls::write_withheld_calls,
        from_json,
        interactions::{delete_search_data, insert_terms, search_terms},
        json,
    },
};
use atelier_core::{
    AgentId, CallId, ConversationId, Interaction, UserId,
    gate::GatedCall,
    remembered::{KnownSecrets, cleaned, is_withheld},
    task::Step,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::Ordering,
};
use uuid::Uuid;

/// The version of the rules. A higher number cleans everything again.
const RULES: i64 = 1;
/// How many calls are read at once. Their results can be large.
const CALLS: usize = 50;
/// How many interactions are read at once.
const INTERACTIONS: usize = 200;

/// How far the clean-up has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The last call that was looked at.
    call: Uuid,
    /// The number of the last interaction that was looked at.
    seq: i64,
    /// Agents whose collections have to be rebuilt.
    changed: BTreeSet<AgentId>,
}

/// An interaction as it is stored, with its number, its agent and its owner.
struct Stored {
    seq: i64,
    agent: AgentId,
    owner: UserId,
    interaction: Interaction,
}

impl Store {
    /// Does the next part of the clean-up. Returns `false` when there is nothing left to do.
    pub async fn clean_memory(&self) -> Result<bool> {
        let position = self.cleanup_position().await?;
        let calls = self.calls_after(position.call).await?;
        if let Some((last, _)) = calls.last() {
            let position = Position { call: *last, ..position };
            self.record_withheld_calls(calls, position).await?;
            return Ok(true);
        }
        let stored = self.interactions_after(position.seq).await?;
        if let Some(last) = stored.last() {
            let position = Position { seq: last.seq, ..position };
            self.clean_interactions(stored, position).await?;
            return Ok(true);
        }
        if !position.changed.is_empty() {
            self.rebuild_collections(position).await?;
        }
        self.memory_is_clean.store(true, Ordering::Relaxed);
        Ok(false)
    }

    async fn cleanup_position(&self) -> Result<Position> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> = sql("SELECT position FROM memory_cleanup WHERE rules = $1")
            .bind(RULES)
            .fetch_optional(&mut conn)
            .await?;
        row.map_or_else(|| Ok(Position::default()), |(position,)| from_json(&position))
    }

    async fn calls_after(&self, call: Uuid) -> Result<Vec<(Uuid, String)>> {
        let mut conn = self.db.connect().await?;
        Ok(sql("SELECT id, record FROM tool_calls WHERE id > $1 ORDER BY id LIMIT $2")
            .bind(call)
            .bind(CALLS as i64)
            .fetch_all(&mut conn)
            .await?)
    }

    /// Records which calls have shown secrets, as this version does when a call is settled.
    async fn record_withheld_calls(
        &self,
        calls: Vec<(Uuid, String)>,
        position: Position,
    ) -> Result<()> {
        let calls = calls.iter().filter_map(|(id, record)| readable_call(*id, record));
        let withheld: Vec<(CallId, ConversationId)> = calls
            .filter(|call| call.result.is_some() && is_withheld(call))
            .filter_map(|call| Some((call.tool_id, call.session_id?)))
            .collect();
        // The rows belong to several owners, and nothing else changes them.
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                write_withheld_calls(&mut tx.conn, withheld).await?;
                save_position(&mut tx.conn, &position).await
            })
        })
        .await
    }

    async fn interactions_after(&self, seq: i64) -> Result<Vec<Stored>> {
        type Row = (
            i64,
            Uuid,
            Uuid,
            Uuid,
            String,
            String,
            bool,
            Option<String>,
            i64,
            Option<String>,
            Option<String>,
            String,
        );
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> =
            sql("SELECT i.seq, i.agent_id, c.user_id, i.id, i.type, i.text, i.success,
             i.error_details, i.at, i.task_id, i.session_id, i.metadata
             FROM interactions i JOIN memory_collections c ON c.agent_id = i.agent_id
             WHERE i.seq > $1 ORDER BY i.seq LIMIT $2")
            .bind(seq)
            .bind(INTERACTIONS as i64)
            .fetch_all(&mut conn)
            .await?;
        let read = |row: Row| {
            let (seq, agent, owner, id, kind, text, success, error, at, task, session, metadata) =
                row;
            // Cleaning changes no pin, so it does not read them.
            let interaction = read_interaction((
                id, kind, text, success, error, at, task, session, metadata, false,
            ))?;
            Ok(Stored { seq, agent: AgentId(agent), owner: UserId(owner), interaction })
        };
        rows.into_iter().map(read).collect()
    }

    /// Rewrites the interactions that hold secrets.
    async fn clean_interactions(&self, stored: Vec<Stored>, mut position: Position) -> Result<()> {
        let mut by_owner: BTreeMap<Uuid, Vec<Stored>> = BTreeMap::new();
        for dirty in self.dirty(stored).await? {
            position.changed.insert(dirty.agent);
            by_owner.entry(dirty.owner.0).or_default().push(dirty);
        }
        for (owner, rows) in by_owner {
            let count = rows.len();
            self.write(UserId(owner), move |tx| {
                Box::pin(async move {
                    for row in &rows {
                        rewrite(&mut tx.conn, row).await?;
                    }
                    Ok(())
                })
            })
            .await?;
            tracing::info!(user = %owner, count, "removed secrets from old memories");
        }
        self.save_cleanup_position(position).await
    }

    /// The interactions that have to be rewritten, as they should be.
    async fn dirty(&self, stored: Vec<Stored>) -> Result<Vec<Stored>> {
        let calls = self.calls_about(&stored).await?;
        let mut secrets: HashMap<String, KnownSecrets> = HashMap::new();
        let sessions = stored.iter().filter_map(|stored| stored.interaction.session_id.as_deref());
        for session in sessions.collect::<BTreeSet<_>>() {
            if let Ok(id) = session.parse() {
                secrets
                    .insert(session.to_owned(), self.secrets_shown_in(ConversationId(id)).await?);
            }
        }
        // Long texts take their time, so this does not run on the threads that answer requests.
        let work = move || {
            let none = KnownSecrets::default();
            let clean = |Stored { interaction, seq, agent, owner }| {
                let call = interaction.call_id().and_then(|id| calls.get(&id));
                let secrets =
                    interaction.session_id.as_ref().and_then(|session| secrets.get(session));
                let clean = cleaned(&interaction, call, secrets.unwrap_or(&none));
                (clean != interaction).then_some(Stored { seq, agent, owner, interaction: clean })
            };
            stored.into_iter().filter_map(clean).collect()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| Error::Closed)
    }

    /// The calls that interactions are about, as far as they are still stored.
    async fn calls_about(&self, stored: &[Stored]) -> Result<HashMap<CallId, GatedCall>> {
        let ids: Vec<CallId> =
            stored.iter().filter_map(|stored| stored.interaction.call_id()).collect();
        let mut calls = HashMap::new();
        let mut conn = self.db.connect().await?;
        for ids in ids.chunks(CALLS) {
            let mut query = SqlBuilder::new("SELECT id, record FROM tool_calls WHERE id IN (");
            let mut list = query.separated(", ");
            for id in ids {
                list.push_bind(id.0);
            }
            let rows: Vec<(Uuid, String)> = query.push(")").fetch_all(&mut conn).await?;
            let readable =
                |(id, record): (Uuid, String)| Some((CallId(id), readable_call(id, &record)?));
            calls.extend(rows.into_iter().filter_map(readable));
        }
        Ok(calls)
    }

    /// The values of secret files that were read in a conversation.
    pub async fn secrets_shown_in(&self, session: ConversationId) -> Result<KnownSecrets> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid, String)> =
            sql("SELECT t.id, t.record FROM withheld_calls w JOIN tool_calls t ON t.id = w.call_id
             WHERE w.session_id = $1")
            .bind(session.0)
            .fetch_all(&mut conn)
            .await?;
        let calls: Vec<GatedCall> =
            rows.iter().filter_map(|(id, record)| readable_call(*id, record)).collect();
        let rows: Vec<(String,)> = sql("SELECT s.record FROM withheld_steps w
             JOIN task_steps s ON s.task_id = w.task_id AND s.step = w.step
             WHERE w.session_id = $1")
        .bind(session.0)
        .fetch_all(&mut conn)
        .await?;
        let steps: Vec<Step> =
            rows.iter().filter_map(|(record,)| serde_json::from_str(record).ok()).collect();
        Ok(KnownSecrets::shown_in(&calls, &steps))
    }

    /// Has the collections of changed interactions rebuilt.
    async fn rebuild_collections(&self, mut position: Position) -> Result<()> {
        for agent in std::mem::take(&mut position.changed) {
            match self.collection_of(agent).await {
                Ok(collection) => self.rebuild_collection(&collection).await?,
                // The agent was deleted meanwhile.
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        self.save_cleanup_position(position).await
    }

    async fn save_cleanup_position(&self, position: Position) -> Result<()> {
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                tx.wake(Wakeup::Memory);
                save_position(&mut tx.conn, &position).await
            })
        })
        .await
    }

    /// An interaction as it may be shown: cleaned, if the clean-up may not have reached it yet.
    pub(crate) fn clean(&self, interaction: Interaction) -> Interaction {
        self.clean_with_vector(interaction, None).0
    }

    /// Like `clean`. A vector that was made of another text is left out.
    pub(crate) fn clean_with_vector(
        &self,
        interaction: Interaction,
        vector: Option<StoredVector>,
    ) -> (Interaction, Option<StoredVector>) {
        if self.memory_is_clean.load(Ordering::Relaxed) {
            return (interaction, vector);
        }
        let clean = cleaned(&interaction, None, &KnownSecrets::default());
        let vector = vector.filter(|_| clean.text == interaction.text);
        (clean, vector)
    }
}

/// A stored call. One that cannot be read must not keep the others from being cleaned.
fn readable_call(id: Uuid, record: &str) -> Option<GatedCall> {
    let call = from_json(record);
    call.inspect_err(|error| tracing::warn!(%error, %id, "a stored tool call cannot be read")).ok()
}

async fn save_position(conn: &mut Conn, position: &Position) -> Result<()> {
    sql("INSERT INTO memory_cleanup (rules, position) VALUES ($1, $2)
         ON CONFLICT (rules) DO UPDATE SET position = excluded.position")
    .bind(RULES)
    .bind(json(position))
    .execute(conn)
    .await?;
    Ok(())
}

/// Replaces the text of an interaction, unless it was removed meanwhile.
async fn rewrite(conn: &mut Conn, Stored { seq, agent, interaction, .. }: &Stored) -> Result<()> {
    let found: u64 =
        sql("UPDATE interactions SET text = $1, error_details = $2, metadata = $3 WHERE seq = $4")
            .bind(&interaction.text)
            .bind(&interaction.error_details)
            .bind(json(&interaction.metadata))
            .bind(*seq)
            .execute(conn)
            .await?;
    if found == 0 {
        return Ok(());
    }
    delete_search_data(conn, &[*seq]).await?;
    insert_terms(conn, &[(*seq, *agent, &search_terms(&interaction.text))]).await
}

#[cfg(test)]
mod tests;
