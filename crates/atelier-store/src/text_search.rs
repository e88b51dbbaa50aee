//! The store's own full-text search, for when the vector index is not available.

use crate::{
    OwnedAgent, Result, Store,
    db::{Conn, sql},
    interactions::{bind_filter, matching},
};
use atelier_core::{Filter, InteractionId, terms::terms};
use std::collections::HashSet;
use uuid::Uuid;

/// How many terms of a long query are used from its beginning, where people say what they want.
const FIRST_TERMS: usize = 192;
/// How many terms of a long query are used from its end.
const LAST_TERMS: usize = 64;

/// The terms of a query, each once.
fn query_terms(text: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut words: Vec<String> =
        terms(text).into_iter().filter(|word| seen.insert(word.clone())).collect();
    if words.len() > FIRST_TERMS + LAST_TERMS {
        words.drain(FIRST_TERMS..words.len() - LAST_TERMS);
    }
    words
}

/// `CROSS JOIN` keeps the order of the tables. Without it SQLite would scan all interactions of the
/// agent and look for the terms in each.
const IN_SQLITE: &str = concat!(
    "SELECT i.id, -bm25(interaction_terms, 0.0, 1.0) AS score FROM interaction_terms
     CROSS JOIN interactions i ON i.seq = interaction_terms.rowid
     WHERE interaction_terms MATCH $14 AND ",
    matching!(),
    " ORDER BY score DESC, i.at DESC LIMIT $15"
);

impl Store {
    /// The interactions that share most terms with the text, best first, with their scores. Scores
    /// of different searches cannot be compared.
    pub async fn search_text(
        &self,
        agent: OwnedAgent,
        text: &str,
        filter: &Filter,
        limit: i64,
    ) -> Result<Vec<(InteractionId, f32)>> {
        let words = query_terms(text);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.db.connect_for_long().await?;
        let (text, asked) = match conn {
            Conn::Lite(_) => {
                let any: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                let agent = agent.id().0.simple();
                (IN_SQLITE, format!("agent:\"{agent}\" AND terms:({})", any.join(" OR ")))
            }
            Conn::Pg(_) => {
                // Terms are letters, digits and underscores: nothing to escape.
                let any: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
                (
                    concat!(
                        "SELECT i.id, CAST(ts_rank(t.terms, CAST($14 AS tsquery)) AS DOUBLE \
                         PRECISION) AS score
                         FROM interaction_terms t JOIN interactions i ON i.seq = t.seq
                         WHERE t.terms @@ CAST($14 AS tsquery) AND ",
                        matching!(),
                        " ORDER BY score DESC, i.at DESC LIMIT $15"
                    ),
                    any.join(" | "),
                )
            }
        };
        let rows: Vec<(Uuid, f64)> = bind_filter!(sql(text), agent.id(), filter)
            .bind(&asked)
            .bind(limit)
            .fetch_all(&mut conn)
            .await?;
        Ok(rows.into_iter().map(|(id, score)| (InteractionId(id), score as f32)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[tokio::test]
    async fn terms_are_looked_up_before_interactions() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            Settings { data: folder.path().into(), database_url: None, ..Default::default() };
        let store = Store::open(&settings).await.unwrap();
        let mut conn = store.db.connect().await.unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {IN_SQLITE}");
        let query = sql(explain);
        let plan: Vec<(i64, i64, i64, String)> =
            bind_filter!(query, atelier_core::AgentId(Uuid::nil()), &Filter::default())
                .bind("terms:word")
                .bind(10i64)
                .fetch_all(&mut conn)
                .await
                .unwrap();
        assert!(plan[0].3.starts_with("SCAN interaction_terms VIRTUAL TABLE"), "{plan:?}");
    }

    #[test]
    fn a_long_query_keeps_what_it_begins_and_ends_with() {
        let words: Vec<String> = (0..400).map(|n| format!("word_{n}")).collect();
        let kept = query_terms(&format!("парсер {} парсер сервер", words.join(" ")));
        assert_eq!(kept.len(), FIRST_TERMS + LAST_TERMS);
        assert_eq!((kept[0].as_str(), kept[1].as_str()), ("парсер", "word_0"));
        assert_eq!(kept.last().map(String::as_str), Some("сервер"));
    }
}
