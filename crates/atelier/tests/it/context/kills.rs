//! Kills the server with `kill -9` at random moments while memories are written: acknowledged
//! interactions exist exactly once, and nothing else exists.

use super::{Engine, Engine::*, entry, with_engine};
use crate::build;
use atelier_memory::{Index, IndexError};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Qdrant as OwnQdrant, User, eventually,
};
use rand::Rng;
use rstest::rstest;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

/// How many kills; `make judge` sets more.
fn kills() -> usize {
    std::env::var("ATELIER_TEST_KILLS").ok().and_then(|times| times.parse().ok()).unwrap_or(4)
}

/// The largest number of results of a search.
const MOST: u64 = 100;

/// What the server acknowledged: which interactions were written, and which were cleared.
#[derive(Default)]
struct Told {
    acknowledged: BTreeSet<String>,
    /// Interactions that were sent but not acknowledged. They may exist or not.
    unanswered: BTreeSet<String>,
    cleared: BTreeSet<String>,
    next: usize,
}

impl Told {
    /// Writes, and sometimes clears, until the server stops answering.
    async fn write_until_killed(&mut self, user: &User, context: &str) {
        loop {
            if self.next % 30 == 29 {
                self.next += 1;
                let all = std::mem::take(&mut self.acknowledged);
                let sent = user.request(reqwest::Method::DELETE, context).send().await;
                match sent {
                    Ok(answer) if answer.status() == 200 => {
                        self.cleared.extend(all);
                        // An interaction that was not acknowledged before the clear was either
                        // written before it or never.
                        self.cleared.extend(std::mem::take(&mut self.unanswered));
                    }
                    _ => {
                        self.unanswered.extend(all);
                        return;
                    }
                }
                continue;
            }
            let texts: Vec<String> =
                (0..3).map(|n| format!("memory {} part {n}", self.next)).collect();
            self.next += 1;
            let entries: Vec<Value> = texts
                .iter()
                .map(|text| entry(text, "tool_call", true, "2026-01-01T00:00:00Z"))
                .collect();
            let sent = user
                .request(reqwest::Method::POST, &format!("{context}/import"))
                .json(&json!({"interactions": entries}))
                .send()
                .await;
            match sent {
                Ok(answer) if answer.status() == 200 => self.acknowledged.extend(texts),
                _ => {
                    self.unanswered.extend(texts);
                    return;
                }
            }
        }
    }

    /// After recovery, every acknowledged interaction exists exactly once, no cleared one exists,
    /// and the engine has as many points as there are interactions.
    async fn check(&self, user: &User, context: &str, count: impl AsyncFn() -> Option<u64>) {
        let export = user.get(&format!("{context}/export")).await.expect(200);
        let texts: Vec<String> = export["interactions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|interaction| interaction["text"].as_str().unwrap().to_owned())
            .collect();
        let there: BTreeSet<String> = texts.iter().cloned().collect();
        assert_eq!(there.len(), texts.len(), "no duplicates");
        let lost: Vec<_> = self.acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let back: Vec<_> = self.cleared.intersection(&there).collect();
        assert!(back.is_empty(), "cleared, and back: {back:?}");
        let odd: Vec<_> = there
            .iter()
            .filter(|text| !self.acknowledged.contains(*text) && !self.unanswered.contains(*text))
            .collect();
        assert!(odd.is_empty(), "phantoms: {odd:?}");
        eventually("the index has heard of everything", async || {
            let stats = user.get(&format!("{context}/stats")).await.expect(200);
            (stats["waiting"] == 0).then_some(())
        })
        .await;
        eventually("the engine has as many as the store", async || {
            // Repeated, because the database may still be finishing the last write of a killed
            // server.
            let stats = user.get(&format!("{context}/stats")).await.expect(200);
            let (points, facts) = (count().await?, stats["total_vectors"].as_u64()?);
            // A search returns a hundred results at most.
            (points == facts || points == MOST && facts > MOST).then_some(())
        })
        .await;
        if let Some(one) = self.acknowledged.iter().next_back() {
            let found = super::search(user, context, json!({"query": one, "k": 100})).await;
            assert!(super::texts(&found).contains(&one.as_str()), "{one}");
        }
    }
}

/// How many points the engine has. An embedded engine belongs to the server, so a dense search that
/// ranks everything counts them.
async fn points(user: &User, context: &str, engine: Engine) -> Option<u64> {
    match engine {
        Qdrant => {
            let key = super::collection_key(user, context.strip_suffix("/context").unwrap()).await;
            super::shared_index().count(&key).await.ok()
        }
        Edge => {
            let all = json!({"query": "memory part", "mode": "dense", "k": MOST});
            Some(super::search(user, context, all).await.len() as u64)
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn killed_server_keeps_exactly_the_acknowledged_interactions(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let mut server = with_engine(backend, engine).start().await;
    let (mut ann, mut told) = (server.user("ann"), Told::default());
    let context = format!("{}/agents/coder/context", ann.project("shop").await);
    for _ in 0..kills() {
        let pause = Duration::from_millis(rand::rng().random_range(20..900));
        let writing = told.write_until_killed(&ann, &context);
        let killing = async {
            tokio::time::sleep(pause).await;
            server.kill();
        };
        tokio::join!(writing, killing);
        server = server.restart_killed().await;
        ann = ann.at(&server);
        told.check(&ann, &context, async || points(&ann, &context, engine).await).await;
    }
    assert!(told.next > kills());
    if engine == Edge {
        // After the process has ended, the engine itself is examined: it has exactly one point per
        // interaction.
        // The index is locked, and knows its places all the same.
        let index = Index::embedded(&server.data().join("memory"), 4).unwrap();
        let agent = context.strip_suffix("/context").unwrap();
        let key = super::collection_key_in(&index, &ann, agent).await;
        let facts = ann.get(&format!("{context}/stats")).await.expect(200)["total_vectors"]
            .as_u64()
            .unwrap();
        server.terminate().await;
        let index = Index::embedded(&server.data().join("memory"), 4).unwrap();
        let there = match index.count(&key).await {
            // The collection was never created.
            Err(IndexError::CollectionMissing) => 0,
            count => count.unwrap(),
        };
        assert_eq!(there, facts);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn killed_qdrant_server_loses_no_indexed_interaction(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let mut qdrant = OwnQdrant::start().await;
    let server = build(backend).with("QDRANT_URL", qdrant.url()).start().await;
    let ann = server.user("ann");
    let agent = format!("{}/agents/coder", ann.project("shop").await);
    let context = format!("{agent}/context");
    let key = super::collection_key(&ann, &agent).await;
    for turn in 0..kills() {
        let writes = (0..12).map(|n| {
            let (ann, context) = (ann.clone(), context.clone());
            async move {
                let text = format!("turn {turn} fact {n}");
                super::import(
                    &ann,
                    &context,
                    json!([entry(&text, "tool_call", true, "2026-01-01T00:00:00Z")]),
                )
                .await
            }
        });
        let pause = Duration::from_millis(rand::rng().random_range(5..200));
        let killing = async {
            tokio::time::sleep(pause).await;
            qdrant.kill();
            qdrant.restart().await;
        };
        let (answers, ()) = tokio::join!(futures::future::join_all(writes), killing);
        assert!(answers.iter().all(|answer| answer["imported"] == 1));
        let index = Index::server(&qdrant.url(), None).unwrap();
        let total = 12 * (turn as u64 + 1);
        eventually("the engine has what the store has", async || {
            (index.count(&key).await.ok()? == total).then_some(())
        })
        .await;
        assert_eq!(ann.get(&format!("{context}/stats")).await.expect(200)["total_vectors"], total);
    }
}
