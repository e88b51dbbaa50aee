//! The store's own search by words: for when the index is away.

use crate::{
    Result, Store,
    db::{Conn, on},
    interactions::{bind_filter, matching},
};
use atelier_core::{AgentId, Filter, InteractionId, terms::terms};
use uuid::Uuid;

/// Of one text; nothing is found by its five thousandth word that is not found by another.
const MAX_TERMS: usize = 5000;

/// Makes texts findable by their words.
pub(crate) async fn add(conn: &mut Conn, agent: AgentId, texts: &[(i64, &str)]) -> Result<()> {
    if texts.is_empty() {
        return Ok(());
    }
    let rows = texts.iter().map(|(seq, text)| {
        let mut terms = terms(text);
        terms.truncate(MAX_TERMS);
        (*seq, terms)
    });
    match conn {
        Conn::Lite(conn) => {
            let agent = agent.0.simple().to_string();
            let mut insert = sqlx::QueryBuilder::new("INSERT INTO interaction_terms (rowid, agent, terms) ");
            insert.push_values(rows, |mut row, (seq, terms)| {
                row.push_bind(seq).push_bind(agent.clone()).push_bind(terms.join(" "));
            });
            insert.build().execute(&mut **conn).await?;
        }
        Conn::Pg(conn) => {
            let mut insert = sqlx::QueryBuilder::new("INSERT INTO interaction_terms (seq, terms) ");
            insert.push_values(rows, |mut row, (seq, terms)| {
                row.push_bind(seq)
                    .push("array_to_tsvector(")
                    .push_bind_unseparated(terms)
                    .push_unseparated(")");
            });
            insert.build().execute(&mut **conn).await?;
        }
    }
    Ok(())
}

impl Store {
    /// The facts that share most words with the text, best first, with how good they are: more is better, and
    /// figures of different searches do not compare.
    pub async fn search_words(
        &self,
        agent: AgentId,
        text: &str,
        filter: &Filter,
        limit: i64,
    ) -> Result<Vec<(InteractionId, f32)>> {
        let mut words = terms(text);
        words.sort_unstable();
        words.dedup();
        words.truncate(64);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.db.connect().await?;
        let (sql, asked) = match conn {
            Conn::Lite(_) => {
                let any: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                let agent = agent.0.simple();
                (
                    concat!(
                        "SELECT i.id, -bm25(interaction_terms, 0.0, 1.0) AS score FROM interaction_terms
                         JOIN interactions i ON i.seq = interaction_terms.rowid
                         WHERE interaction_terms MATCH $14 AND ",
                        matching!(),
                        " ORDER BY score DESC, i.at DESC LIMIT $15"
                    ),
                    format!("agent:\"{agent}\" AND terms:({})", any.join(" OR ")),
                )
            }
            Conn::Pg(_) => {
                // Terms are letters, digits and underscores: nothing to escape.
                let any: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
                (
                    concat!(
                        "SELECT i.id, CAST(ts_rank(t.terms, CAST($14 AS tsquery)) AS DOUBLE PRECISION) AS score
                         FROM interaction_terms t JOIN interactions i ON i.seq = t.seq
                         WHERE t.terms @@ CAST($14 AS tsquery) AND ",
                        matching!(),
                        " ORDER BY score DESC, i.at DESC LIMIT $15"
                    ),
                    any.join(" | "),
                )
            }
        };
        let rows: Vec<(Uuid, f64)> = on!(&mut conn, |c| bind_filter!(sqlx::query_as(sql), agent, filter)
            .bind(&asked)
            .bind(limit)
            .fetch_all(c)
            .await)?;
        Ok(rows.into_iter().map(|(id, score)| (InteractionId(id), score as f32)).collect())
    }
}
