//! Collections that change hands: after a change of the embedder, after an upgrade, and after the
//! index was lost.

use super::{
    Engine, Engine::*, collection_key_in, entry, folders_of, open, texts, week, with_engine,
};
use crate::{build, embeddings::Service};
use atelier_core::AgentId;
use atelier_memory::Index;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Qdrant as OwnQdrant, Server, User, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

async fn agent_id(user: &User, project: &str) -> AgentId {
    let agent = user.get(&format!("{project}/agents/coder")).await.expect(200);
    agent["id"].as_str().unwrap().parse().unwrap()
}

async fn memory_part(user: &User, project: &str) -> Value {
    let space = user.get(&format!("{project}/worker-space")).await.expect(200);
    let parts = space["health"]["parts"].as_array().unwrap().clone();
    parts.into_iter().find(|part| part["name"] == "memory").unwrap()
}

/// How many collections have a part that another embedder has made.
async fn former_parts(server: &Server) -> i64 {
    let mut sql = server.sql().await;
    sql.count("SELECT COUNT(*) FROM memory_collections WHERE reembed_below IS NOT NULL").await
}

/// CX-02.6: after a change of the embedder, memories are embedded again in the background. Until
/// then each part is searched with its own embedder.
#[rstest]
#[tokio::test]
async fn change_of_embedder_embeds_memories_again(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    memory.import(week()).await;
    let agent = agent_id(&memory.ann, &memory.project).await;
    let service = Service::start(64).await;
    service.fail(true);
    let mut server = memory.server;
    server.terminate().await;
    for (name, value) in [("KIND", "openai"), ("BASE_URL", &service.url()), ("DIMENSION", "64")] {
        server.set(&format!("ATELIER_MEMORY__EMBEDDER__{name}"), value);
    }
    let server = server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let search = format!("{}/search", memory.context);
    eventually("the new part is begun", async || (former_parts(&server).await > 0).then_some(()))
        .await;
    // The new embedder fails, so all vectors are still those of the former one.
    let found = eventually("the former part is searched", async || {
        let body = json!({"query": "which indentation does the user prefer", "k": 1});
        let found = ann.post(&search, body).await.expect(200);
        found["results"][0]["score_parts"]["dense"].is_number().then_some(found)
    })
    .await;
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].as_str().unwrap().contains("embedding service"), "{found}");
    // What is deleted meanwhile is in neither part.
    let id = found["results"][0]["id"].as_str().unwrap();
    ann.delete(&format!("{}/interactions/{id}", memory.context)).await.expect(204);

    service.fail(false);
    eventually("all is embedded again", async || (former_parts(&server).await == 0).then_some(()))
        .await;
    let exact = json!({"query": "Refactored the parser and its tests", "mode": "dense", "k": 1});
    let found = super::search(&ann, &memory.context, exact).await;
    assert_eq!(texts(&found), ["Refactored the parser and its tests"]);
    assert!(found[0]["score"].as_f64().unwrap() > 0.99, "{found:?}");
    let stats = ann.get(&format!("{}/stats", memory.context)).await.expect(200);
    assert_eq!((&stats["dimension"], &stats["total_vectors"]), (&json!(64), &json!(7)));
    let all = json!({"query": "parser", "mode": "dense", "k": 50});
    assert_eq!(super::search(&ann, &memory.context, all).await.len(), 7);
    if engine == Edge {
        assert_eq!(folders_of(&server, agent).len(), 1, "the former part is gone");
    }
}

/// CX-01.5: a collection of an older version, which had one for each agent, moves into the shared
/// one and is found all the time.
#[tokio::test]
async fn collections_of_single_agents_move_into_the_shared_one() {
    let qdrant = OwnQdrant::start().await;
    let server = build(Sqlite).with("QDRANT_URL", qdrant.url()).start().await;
    let mut memory = super::Fixture::over(server).await;
    memory.import(week()).await;
    let index = Index::server(&qdrant.url(), None).unwrap();
    let agent = format!("{}/agents/coder", memory.project);
    let key = collection_key_in(&index, &memory.ann, &agent).await;
    memory.server.terminate().await;
    // What an older version has left: its own collection, and rows that say so.
    index.drop(&key).await.unwrap();
    qdrant.create_collection(&key.name, 1536).await;
    let mut sql = memory.server.sql().await;
    sql.run("UPDATE memory_collections SET index_id = 'qdrant', place = NULL WHERE total > 0")
        .await;
    drop(sql);

    let server = memory.server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let body = json!({"query": "tabs", "k": 1});
    eventually("its memories are in the shared collection", async || {
        (index.count(&key).await.ok()? == 8).then_some(())
    })
    .await;
    eventually("the old collection is gone", async || {
        (!index.collections().await.unwrap().contains(&key.name)).then_some(())
    })
    .await;
    let found = super::search(&ann, &memory.context, body).await;
    assert_eq!(texts(&found), ["The user prefers tabs over spaces"]);
    assert_eq!(former_parts(&server).await, 0);
}

/// CX-09.1: a lost or damaged index is rebuilt without being asked, and nothing is missing.
#[rstest]
#[tokio::test]
async fn lost_index_is_rebuilt_by_itself(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values("the folder", "the id", "a generation", "the segments")] lost: &str,
) {
    let mut memory = open(backend, Edge).await;
    memory.import(week()).await;
    let agent = agent_id(&memory.ann, &memory.project).await;
    memory.server.terminate().await;
    let root = memory.server.data().join("memory");
    let collection = folders_of(&memory.server, agent).remove(0);
    let generation = std::fs::read_to_string(collection.join("generation")).unwrap();
    match lost {
        "the folder" => std::fs::remove_dir_all(&root).unwrap(),
        "the id" => std::fs::write(root.join("id"), b"\xff\0").unwrap(),
        "a generation" => std::fs::remove_dir_all(collection.join(&generation)).unwrap(),
        _ => {
            let segments = collection.join(&generation).join("segments");
            std::fs::remove_dir_all(&segments).unwrap();
            std::fs::write(&segments, "not a folder").unwrap();
        }
    }
    let server = memory.server.restart_killed().await;
    let ann = memory.ann.at(&server);
    // Nobody searches: the statistics only read the database.
    let segments = collection.join(&generation).join("segments");
    eventually("the collection is whole", async || {
        let stats = ann.get(&format!("{}/stats", memory.context)).await.expect(200);
        let mut sql = server.sql().await;
        let here = "SELECT COUNT(*) FROM memory_collections WHERE state = 'live' AND total = 8 \
                    AND NOT restless";
        (stats["waiting"] == 0 && sql.count(here).await == 1 && segments.is_dir()).then_some(())
    })
    .await;
    let all = json!({"query": "parser", "mode": "dense", "k": 50});
    eventually("all of it is found", async || {
        (super::search(&ann, &memory.context, all.clone()).await.len() == 8).then_some(())
    })
    .await;
    eventually("the space is healthy", async || {
        (memory_part(&ann, &memory.project).await["status"] == "healthy").then_some(())
    })
    .await;
}

/// CX-03.6: a slow embedder is waited for, its vectors of queries are kept, and when it is too slow
/// the answer, health and metrics say so.
#[tokio::test]
async fn slow_embedder_does_not_make_memory_forget() {
    let service = Service::start(1536).await;
    let server = with_engine(Sqlite, Edge)
        .with("MEMORY__EMBEDDER__KIND", "openai")
        .with("MEMORY__EMBEDDER__BASE_URL", service.url())
        .with("MEMORY__EMBEDDER__API_KEY", "sk-test")
        .start()
        .await;
    let memory = super::Fixture::over(server).await;
    memory.import(week()).await;
    let search = format!("{}/search", memory.context);
    // Slower than the index may be, and faster than the embedder has to be.
    service.delay(std::time::Duration::from_millis(600));
    let body = json!({"query": "The user prefers tabs over spaces", "mode": "dense", "k": 1});
    let found = memory.ann.post(&search, body.clone()).await.expect(200);
    assert_eq!(
        (&found["degraded"], found["results"][0]["score"].as_f64().unwrap() > 0.99),
        (&Value::Null, true),
        "{found}"
    );
    let before = service.asked().len();
    assert_eq!(memory.ann.post(&search, body).await.expect(200), found);
    assert_eq!(service.asked().len(), before, "the vector of the query is known");
    assert_eq!(memory.server.metric("atelier_memory_cached_queries_total").await, 1.0);

    // Slower than the embedder may be.
    let mut server = memory.server;
    server.terminate().await;
    server.set("ATELIER_MEMORY__EMBEDDER_PATIENCE", "100ms");
    let server = server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    let why = found["degraded"].as_str().unwrap();
    assert!(why.contains("openai-text-embedding-3-small-1536") && why.contains("100ms"), "{why}");
    eventually("health names the slow embedder", async || {
        let health = memory_part(&ann, &memory.project).await;
        let names_it = health["reason"].as_str().unwrap().contains("100ms");
        (health["status"] == "degraded" && names_it).then_some(())
    })
    .await;
    let cause = "atelier_memory_fallbacks_total{cause=\"embedder\"}";
    assert!(server.metric(cause).await >= 1.0);
    // The late answer is kept, so that the same query finds by meaning soon.
    eventually("the vector has arrived", async || {
        let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
        found["degraded"].is_null().then_some(())
    })
    .await;
    // An answer in time ends the problem.
    service.delay(std::time::Duration::ZERO);
    let mut turn = 0;
    eventually("the space is healthy", async || {
        turn += 1;
        let query = json!({"query": format!("spaces {turn}"), "k": 1});
        ann.post(&search, query).await.expect(200);
        (memory_part(&ann, &memory.project).await["status"] == "healthy").then_some(())
    })
    .await;
}

/// CX-02.5: with nothing configured, memory finds what was said in other words. Without the
/// weights it finds words, and health and doctor say so.
#[tokio::test]
async fn meaning_is_found_by_default() {
    let server = build(Sqlite)
        .with("MEMORY__EMBEDDER__KIND", "auto")
        .with("MEMORY__MINILM", crate::minilm().display())
        .start()
        .await;
    let memory = super::Fixture::over(server).await;
    memory
        .import(json!([
            entry("The automobile would not start", "user_message", true, "2026-01-01T10:00:00Z"),
            entry("Customers cannot sign in", "user_message", true, "2026-01-02T10:00:00Z"),
            entry("The cake needs three eggs", "user_message", true, "2026-01-03T10:00:00Z"),
        ]))
        .await;
    let stats = memory.stats().await;
    assert_eq!(
        (&stats["embedder"], &stats["dimension"]),
        (&json!("minilm-l6-v2-int8"), &json!(384))
    );
    for (query, fact) in [
        ("car trouble", "The automobile would not start"),
        ("login problem", "Customers cannot sign in"),
        ("baking ingredients", "The cake needs three eggs"),
    ] {
        let found = memory.search(json!({"query": query, "k": 1})).await;
        assert_eq!(texts(&found), [fact], "{query}");
    }
    assert_eq!(memory_part(&memory.ann, &memory.project).await["status"], "healthy");

    let mut server = memory.server;
    server.terminate().await;
    let nowhere = server.data().join("nowhere").display().to_string();
    server.set("ATELIER_MEMORY__MINILM", &nowhere);
    let server = server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let health = memory_part(&ann, &memory.project).await;
    assert_eq!(health["status"], "degraded");
    let detail = health["reason"].as_str().unwrap();
    assert!(detail.contains("words, not meaning") && detail.contains(&nowhere), "{detail}");
    let output = server.command(&["doctor"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("✗ memory") && printed.contains(&nowhere), "{printed}");
}

/// CX-03.7: of facts that are asked for in other words, a hybrid search finds nine of ten among
/// its first five hits. `make bench-memory` measures all pairs.
#[tokio::test]
async fn paraphrases_are_found_among_the_first_hits() {
    let file = include_str!("../../../../atelier-bench/data/paraphrases-en.tsv");
    let pairs: Vec<(&str, &str)> = file.lines().filter_map(|line| line.split_once('\t')).collect();
    assert_eq!(pairs.len(), 220);
    let server = build(Sqlite)
        .with("MEMORY__EMBEDDER__KIND", "minilm")
        .with("MEMORY__MINILM", crate::minilm().display())
        .start()
        .await;
    let memory = super::Fixture::over(server).await;
    let facts =
        pairs.iter().map(|(fact, _)| entry(fact, "user_message", true, "2026-01-01T00:00:00Z"));
    let facts: Vec<Value> = facts.collect();
    for batch in facts.chunks(20) {
        memory.import(json!(batch)).await;
    }
    eventually("all facts are indexed", async || {
        (memory.stats().await["waiting"] == 0).then_some(())
    })
    .await;
    let asked: Vec<_> = pairs.iter().step_by(3).collect();
    let mut missed = Vec::new();
    for (fact, question) in &asked {
        let found = memory.search(json!({"query": question, "k": 5})).await;
        if !texts(&found).contains(fact) {
            missed.push(question);
        }
    }
    assert!(missed.len() * 10 <= asked.len(), "{} of {}: {missed:?}", missed.len(), asked.len());
}
