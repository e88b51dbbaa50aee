//! What owners change in the memories of their agents: they correct a text, and pin what an agent is
//! to always know.

use crate::{
    Error, OwnedAgent, Result, Store,
    db::sql,
    feed::Wakeup,
    rows::{
        from_micros,
        interactions::{delete_search_data, insert_outbox, insert_terms, search_terms},
        now,
    },
};
use atelier_core::{Interaction, InteractionId, mask::masked, memory::FormerText};

/// How many former texts of an interaction are kept.
const MAX_FORMER_TEXTS: i64 = 50;

/// What to change. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InteractionChange {
    pub text: Option<String>,
    pub pinned: Option<bool>,
}

impl Store {
    /// Changes an interaction. A text that is replaced is kept in its history, and searches find the
    /// new one only.
    pub async fn change_interaction(
        &self,
        agent: OwnedAgent,
        id: InteractionId,
        change: InteractionChange,
    ) -> Result<Interaction> {
        // PostgreSQL stores no NUL in a text.
        let text = change.text.map(|text| masked(&text).replace('\0', "\u{fffd}"));
        let terms = text.as_deref().map(search_terms).unwrap_or_default();
        let pinned = change.pinned;
        let agent_id = agent.id();
        self.write(agent.owner(), move |tx| {
            Box::pin(async move {
                let row: Option<(i64, String)> =
                    sql("SELECT seq, text FROM interactions WHERE agent_id = $1 AND id = $2")
                        .bind(agent_id.0)
                        .bind(id.0)
                        .fetch_optional(&mut tx.conn)
                        .await?;
                let (seq, old) = row.ok_or(Error::NotFound)?;
                if let Some(pinned) = pinned {
                    sql("UPDATE interactions SET pinned = $1 WHERE seq = $2")
                        .bind(pinned)
                        .bind(seq)
                        .execute(&mut tx.conn)
                        .await?;
                }
                let Some(text) = text.filter(|text| *text != old) else { return Ok(()) };
                sql("INSERT INTO interaction_history (seq, version, text, replaced_at)
                         SELECT $1, COALESCE(MAX(version), 0) + 1, $2, $3
                         FROM interaction_history WHERE seq = $1")
                .bind(seq)
                .bind(&old)
                .bind(now().timestamp_micros())
                .execute(&mut tx.conn)
                .await?;
                sql("DELETE FROM interaction_history WHERE seq = $1 AND version <=
                         (SELECT MAX(version) - $2 FROM interaction_history WHERE seq = $1)")
                .bind(seq)
                .bind(MAX_FORMER_TEXTS)
                .execute(&mut tx.conn)
                .await?;
                sql("UPDATE interactions SET text = $1 WHERE seq = $2")
                    .bind(&text)
                    .bind(seq)
                    .execute(&mut tx.conn)
                    .await?;
                sql("UPDATE memory_collections SET restless = TRUE WHERE agent_id = $1")
                    .bind(agent_id.0)
                    .execute(&mut tx.conn)
                    .await?;

                delete_search_data(&mut tx.conn, &[seq]).await?;
                insert_terms(&mut tx.conn, &[(seq, agent_id, terms.as_slice())]).await?;
                insert_outbox(&mut tx.conn, &[(agent_id, id.0)]).await?;
                tx.wake(Wakeup::Memory);
                Ok(())
            })
        })
        .await?;
        self.interaction(agent, id).await
    }

    /// The texts that an interaction had before, oldest first.
    pub async fn interaction_history_of(
        &self,
        agent: OwnedAgent,
        id: InteractionId,
    ) -> Result<Vec<FormerText>> {
        // A foreign interaction is answered like an unknown one.
        self.interaction(agent, id).await?;
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String, i64)> =
            sql("SELECT h.text, h.replaced_at FROM interaction_history h
             JOIN interactions i ON i.seq = h.seq WHERE i.agent_id = $1 AND i.id = $2
             ORDER BY h.version")
            .bind(agent.id().0)
            .bind(id.0)
            .fetch_all(&mut conn)
            .await?;
        let read = |(text, replaced_at): (String, i64)| {
            let text = masked(&text).into_owned();
            Ok(FormerText { text, replaced_at: from_micros(replaced_at)? })
        };
        rows.into_iter().map(read).collect()
    }
}
