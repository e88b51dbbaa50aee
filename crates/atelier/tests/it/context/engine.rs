//! The index behind it: gone for a while, shared by nodes, and without leftovers.

use super::{Engine, Engine::*, entry, open, texts, week};
use crate::build;
use atelier_memory::Index;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Qdrant as OwnQdrant, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// WS-05.3 WS-04.4 WS-13.3: a deleted agent or project leaves nothing, neither in the store nor in the engine.
#[rstest]
#[tokio::test]
async fn what_is_deleted_leaves_nothing_in_the_engine(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let agents = format!("{}/agents", memory.project);
    let mut keys = Vec::new();
    for name in ["agent_coder", "agent_writer"] {
        super::import(&memory.ann, &format!("{agents}/{name}/context"), week()).await;
        keys.push(super::key(&memory.ann, &format!("{agents}/{name}")).await);
    }
    let folder = memory.server.data().join("memory");
    let there = async |number: usize| match engine {
        Edge => folder.join(keys[number].agent.to_string()).exists(),
        Qdrant => super::shared_index().exists(&keys[number]).await.unwrap(),
    };
    assert!(there(0).await && there(1).await);
    memory.ann.delete(&format!("{agents}/coder")).await.expect(204);
    eventually("the agent's collection is gone", async || (!there(0).await).then_some(())).await;
    assert!(there(1).await);
    // The name is free at once, and the new agent knows nothing of the old.
    memory.ann.post(&agents, json!({"name": "agent_coder"})).await.expect(201);
    assert_eq!(memory.stats().await["total_vectors"], 0);
    assert_eq!(memory.search(json!({"query": "tabs"})).await, Vec::<Value>::new());
    memory.ann.delete(&memory.project).await.expect(204);
    eventually("all of the project's collections are gone", async || (!there(1).await).then_some(())).await;
    let mut sql = memory.server.sql().await;
    for table in
        ["interactions", "interaction_vectors", "interaction_terms", "memory_outbox", "memory_collections"]
    {
        eventually(table, async || {
            // The first start makes a project of its own, whose agents have collections.
            let ours = match table {
                "memory_collections" => {
                    sql.count("SELECT COUNT(*) FROM memory_collections WHERE total > 0").await
                }
                "interactions" => sql.count("SELECT COUNT(*) FROM interactions").await,
                "interaction_vectors" => sql.count("SELECT COUNT(*) FROM interaction_vectors").await,
                "interaction_terms" => sql.count("SELECT COUNT(*) FROM interaction_terms").await,
                _ => sql.count("SELECT COUNT(*) FROM memory_outbox").await,
            };
            (ours == 0).then_some(())
        })
        .await;
    }
}

/// WS-10.2: without its index a worker space is degraded, tasks and memory go on, searches go by words and say so in
/// time; when it is back, it hears of everything.
#[rstest]
#[tokio::test]
async fn memory_goes_on_while_its_index_is_away(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut qdrant = OwnQdrant::start().await;
    let server = build(backend).with("QDRANT_URL", qdrant.url()).start().await;
    let memory = super::Fixture::over(server).await;
    memory.import(week()).await;
    let health = async || {
        let space = memory.ann.get(&format!("{}/worker-space", memory.project)).await.expect(200);
        space["health"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(health().await, "healthy");
    qdrant.kill();
    eventually("the space is degraded", async || (health().await == "degraded").then_some(())).await;
    let search = async |query: &str| {
        let began = Instant::now();
        let found =
            memory.ann.post(&format!("{}/search", memory.context), json!({"query": query})).await.expect(200);
        (found, began.elapsed())
    };
    let (found, took) = search("user tabs").await;
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].is_string());
    assert!(
        took < Duration::from_secs(2),
        "{took:?}: it gives up after 250 ms, whatever else the machine does"
    );
    assert_eq!(memory.stats().await["collection_size_mb"], Value::Null, "unknown is not nothing");
    // Of a long question every word counts, whatever the alphabet.
    let names: Vec<String> = (0..70).map(|n| format!("identifier_{n}")).collect();
    let (found_late, _) = search(&format!("{} платежей", names.join(" "))).await;
    assert_eq!(found_late["results"][0]["text"], "Развернули сервис платежей на тестовом сервере");
    // What is written meanwhile waits for the index, but not whoever writes it; what is forgotten is not shown.
    let began = Instant::now();
    let wombat = entry("A wombat was here", "tool_call", true, "2026-02-01T00:00:00Z");
    assert_eq!(memory.import(json!([wombat])).await, json!({"imported": 1, "skipped": 0, "indexed": false}));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(search("wombat").await.0["results"][0]["text"], "A wombat was here");
    let forgotten = found["results"][0]["id"].as_str().unwrap();
    let delete = format!("{}/interactions/{forgotten}", memory.context);
    memory.ann.delete(&delete).await.expect(204);
    assert!(
        !texts(search("user tabs").await.0["results"].as_array().unwrap())
            .contains(&"The user prefers tabs over spaces")
    );
    qdrant.restart().await;
    eventually("the space is healthy", async || (health().await == "healthy").then_some(())).await;
    let found = memory.search(json!({"query": "wombat"})).await;
    assert_eq!(found[0]["text"], "A wombat was here");
    let key = super::key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    let index = Index::server(&qdrant.url(), None).unwrap();
    eventually("the engine has what the store has", async || {
        (index.count(&key).await.ok()? == 8).then_some(())
    })
    .await;
}

/// An index that lost its data is filled again from the facts, as soon as somebody looks for something.
#[rstest]
#[tokio::test]
async fn a_lost_collection_is_made_anew(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Qdrant).await;
    memory.import(week()).await;
    let key = super::key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    let index = super::shared_index();
    index.drop(&key).await.unwrap();
    let body = json!({"query": "tabs", "k": 1});
    let found = memory.ann.post(&format!("{}/search", memory.context), body.clone()).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].is_string(), "{found}");
    eventually("it is whole again", async || (index.count(&key).await.ok()? == 8).then_some(())).await;
    assert_eq!(memory.search(body).await[0]["text"], "The user prefers tabs over spaces");
}

/// WS-05.3: also when the index that had its collection is not this server's any more, nothing of what an agent
/// remembered stays.
#[rstest]
#[tokio::test]
async fn an_agent_in_another_index_leaves_no_facts(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Qdrant).await;
    memory.import(week()).await;
    let server = memory.server.restart_with("ATELIER_QDRANT_URL", None).await;
    let ann = memory.ann.at(&server);
    let found = ann.post(&format!("{}/search", memory.context), json!({"query": "tabs"})).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].as_str().unwrap().contains("reindex"), "{found}");
    ann.delete(&format!("{}/agents/coder", memory.project)).await.expect(204);
    let mut sql = server.sql().await;
    eventually("its facts are gone", async || {
        let facts = sql.count("SELECT COUNT(*) FROM interactions").await;
        let vectors = sql.count("SELECT COUNT(*) FROM interaction_vectors").await;
        let words = sql.count("SELECT COUNT(*) FROM interaction_terms").await;
        (facts + vectors + words == 0).then_some(())
    })
    .await;
}

/// An index that takes connections and says nothing costs no more than a moment.
#[tokio::test]
async fn an_index_that_hangs_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let server = build(Sqlite).with("QDRANT_URL", url).start().await;
    let ann = server.user("ann");
    let began = Instant::now();
    ann.project("shop").await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// Several nodes write, one feeds; all of them find everything.
#[tokio::test]
async fn nodes_share_a_memory() {
    let memory = open(Postgres, Qdrant).await;
    let second = memory.server.second_node().await;
    let there = memory.ann.at(&second);
    let mut writes = Vec::new();
    for turn in 0..10 {
        for user in [&memory.ann, &there] {
            let text = format!("fact {turn} by {}", writes.len());
            let entries = json!({"interactions": [entry(&text, "tool_call", true, "2026-01-01T00:00:00Z")]});
            let (user, path) = (user.clone(), format!("{}/import", memory.context));
            writes.push(tokio::spawn(async move { user.post(&path, entries).await.expect(200) }));
        }
    }
    for write in writes {
        assert_eq!(write.await.unwrap()["indexed"], true);
    }
    let key = super::key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    assert_eq!(super::shared_index().count(&key).await.unwrap(), 20);
    for user in [&memory.ann, &there] {
        let found = super::search(user, &memory.context, json!({"query": "fact", "k": 50})).await;
        assert_eq!(found.len(), 20);
    }
    // What one node forgets, the other does not find.
    memory.ann.delete(&memory.context).await.expect(200);
    assert_eq!(super::search(&there, &memory.context, json!({"query": "fact"})).await, Vec::<Value>::new());
    eventually("the engine forgets, too", async || {
        (super::shared_index().count(&key).await.unwrap() == 0).then_some(())
    })
    .await;
}

/// A memory that moves: from the embedded index to a server, from its facts.
#[rstest]
#[tokio::test]
async fn a_memory_follows_to_another_index(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let mut server = memory.server;
    server.terminate().await;
    let server = server.restart_with("ATELIER_QDRANT_URL", Some(&atelier_testkit::qdrant_url())).await;
    let ann = memory.ann.at(&server);
    let search = format!("{}/search", memory.context);
    let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
    assert_eq!(
        found["results"][0]["text"], "The user prefers tabs over spaces",
        "by words, until it is there"
    );
    ann.post(&format!("{}/reindex", memory.context), json!(null)).await;
    eventually("the server has it", async || {
        let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
        (found["degraded"].is_null() && found["results"][0].is_object()).then_some(())
    })
    .await;
}

/// Forty agents, of whom eight may be open at a time: every one is found, and maps stay few.
#[tokio::test]
async fn more_agents_than_may_be_open_are_all_found() {
    let server = build(Sqlite).with("MEMORY__OPEN_COLLECTIONS", 8).start().await;
    let ann = server.user("ann");
    let project = ann.project("many").await;
    let mut contexts = Vec::new();
    for number in 0..40 {
        let name = format!("agent-{number}");
        ann.post(&format!("{project}/agents"), json!({"name": name})).await.expect(201);
        let context = format!("{project}/agents/{name}/context");
        let fact = entry(&format!("the number is {number}"), "tool_call", true, "2026-01-01T00:00:00Z");
        super::import(&ann, &context, json!([fact])).await;
        contexts.push(context);
    }
    for (number, context) in contexts.iter().enumerate() {
        let found = ann.post(&format!("{context}/search"), json!({"query": "number"})).await.expect(200);
        assert_eq!(found["results"][0]["text"], format!("the number is {number}"));
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let of_memory = maps.lines().filter(|line| line.contains("/memory/")).count();
    assert!(of_memory < 10 * 80, "{of_memory} maps for 8 open collections");
}
