//! The index: unavailable for a while, shared by nodes, and without leftovers.

use super::{Engine, Engine::*, entry, open, texts, week};
use crate::build;
use atelier_memory::Index;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    PATIENCE, Qdrant as OwnQdrant, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

/// WS-05.3 WS-04.4 WS-13.3
#[rstest]
#[tokio::test]
async fn deleted_agents_and_projects_leave_nothing_in_the_index(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let agents = format!("{}/agents", memory.project);
    let mut keys = Vec::new();
    for name in ["agent_coder", "agent_writer"] {
        super::import(&memory.ann, &format!("{agents}/{name}/context"), week()).await;
        keys.push(super::collection_key(&memory.ann, &format!("{agents}/{name}")).await);
    }
    let there = async |number: usize| match engine {
        Edge => !super::folders_of(&memory.server, keys[number].agent).is_empty(),
        Qdrant => super::shared_index().exists(&keys[number]).await.unwrap(),
    };
    assert!(there(0).await && there(1).await);
    memory.ann.delete(&format!("{agents}/coder")).await.expect(204);
    eventually("the agent's collection is gone", async || (!there(0).await).then_some(())).await;
    assert!(there(1).await);
    // The name is free immediately, and the new agent has nothing of the old agent's memory.
    memory.ann.post(&agents, json!({"name": "agent_coder"})).await.expect(201);
    assert_eq!(memory.stats().await["total_vectors"], 0);
    assert_eq!(memory.search(json!({"query": "tabs"})).await, Vec::<Value>::new());
    memory.ann.delete(&memory.project).await.expect(204);
    eventually("all of the project's collections are gone", async || {
        (!there(1).await).then_some(())
    })
    .await;
    let mut sql = memory.server.sql().await;
    for table in [
        "interactions",
        "interaction_vectors",
        "interaction_terms",
        "memory_outbox",
        "memory_collections",
    ] {
        eventually(table, async || {
            // The first start creates another project, whose agents have collections too.
            let ours = match table {
                "memory_collections" => {
                    sql.count("SELECT COUNT(*) FROM memory_collections WHERE total > 0").await
                }
                "interactions" => sql.count("SELECT COUNT(*) FROM interactions").await,
                "interaction_vectors" => {
                    sql.count("SELECT COUNT(*) FROM interaction_vectors").await
                }
                "interaction_terms" => sql.count("SELECT COUNT(*) FROM interaction_terms").await,
                _ => sql.count("SELECT COUNT(*) FROM memory_outbox").await,
            };
            (ours == 0).then_some(())
        })
        .await;
    }
}

/// WS-10.2: the worker space is degraded, and searches go by words and say so; afterwards the index
/// catches up.
#[rstest]
#[tokio::test]
async fn memory_works_while_the_index_is_unreachable(#[values(Sqlite, Postgres)] backend: Backend) {
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
    eventually("the space is degraded", async || (health().await == "degraded").then_some(()))
        .await;
    let search = async |query: &str| {
        let path = format!("{}/search", memory.context);
        memory.ann.post(&path, json!({"query": query})).await.expect(200)
    };
    let found = search("user tabs").await;
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].is_string());
    assert_eq!(memory.stats().await["collection_size_mb"], Value::Null, "unknown is not nothing");
    // Every word of a long query counts, in every alphabet.
    let names: Vec<String> = (0..70).map(|n| format!("identifier_{n}")).collect();
    let found_late = search(&format!("{} платежей", names.join(" "))).await;
    assert_eq!(found_late["results"][0]["text"], "Развернули сервис платежей на тестовом сервере");
    // Interactions that are written now wait for the index, but their writers do not wait. Deleted
    // interactions are not found.
    let wombat = entry("A wombat was here", "tool_call", true, "2026-02-01T00:00:00Z");
    // A request may take longer than this, so the answer shows that the import does not wait.
    let imported = tokio::time::timeout(PATIENCE, memory.import(json!([wombat]))).await.unwrap();
    assert_eq!(imported, json!({"imported": 1, "skipped": 0, "indexed": false}));
    assert_eq!(search("wombat").await["results"][0]["text"], "A wombat was here");
    let forgotten = found["results"][0]["id"].as_str().unwrap();
    let delete = format!("{}/interactions/{forgotten}", memory.context);
    memory.ann.delete(&delete).await.expect(204);
    assert!(
        !texts(search("user tabs").await["results"].as_array().unwrap())
            .contains(&"The user prefers tabs over spaces")
    );
    qdrant.restart().await;
    eventually("the space is healthy", async || (health().await == "healthy").then_some(())).await;
    let found = memory.search(json!({"query": "wombat"})).await;
    assert_eq!(found[0]["text"], "A wombat was here");
    let key = super::collection_key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    let index = Index::server(&qdrant.url(), None).unwrap();
    eventually("the engine has what the store has", async || {
        (index.count(&key).await.ok()? == 8).then_some(())
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn lost_collection_is_rebuilt_by_the_next_search(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let memory = open(backend, Qdrant).await;
    memory.import(week()).await;
    let key = super::collection_key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    let index = super::shared_index();
    index.drop(&key).await.unwrap();
    let body = json!({"query": "tabs", "k": 1});
    let found =
        memory.ann.post(&format!("{}/search", memory.context), body.clone()).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].is_string(), "{found}");
    eventually("it is whole again", async || (index.count(&key).await.ok()? == 8).then_some(()))
        .await;
    assert_eq!(memory.search(body).await[0]["text"], "The user prefers tabs over spaces");
}

/// WS-05.3: the index that had the agent's collection is no longer this server's.
#[rstest]
#[tokio::test]
async fn agent_in_another_index_leaves_no_interactions(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let memory = open(backend, Qdrant).await;
    memory.import(week()).await;
    let server = memory.server.restart_with("ATELIER_QDRANT_URL", None).await;
    let ann = memory.ann.at(&server);
    // By words, or by the index that it is rebuilt in.
    let found =
        ann.post(&format!("{}/search", memory.context), json!({"query": "tabs"})).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
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

/// An index that accepts connections but never answers does not delay the creation of a project.
#[tokio::test]
async fn index_that_hangs_does_not_block_requests() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let server = build(Sqlite).with("QDRANT_URL", url).start().await;
    let ann = server.user("ann");
    tokio::time::timeout(PATIENCE, ann.project("shop")).await.unwrap();
}

/// Several nodes write, one indexes, and all of them find everything.
#[tokio::test]
async fn nodes_share_a_memory() {
    let memory = open(Postgres, Qdrant).await;
    let second = memory.server.second_node().await;
    let there = memory.ann.at(&second);
    let mut writes = Vec::new();
    for turn in 0..10 {
        for user in [&memory.ann, &there] {
            let text = format!("fact {turn} by {}", writes.len());
            let entries =
                json!({"interactions": [entry(&text, "tool_call", true, "2026-01-01T00:00:00Z")]});
            let (user, path) = (user.clone(), format!("{}/import", memory.context));
            writes.push(tokio::spawn(async move { user.post(&path, entries).await.expect(200) }));
        }
    }
    for write in writes {
        assert_eq!(write.await.unwrap()["indexed"], true);
    }
    let key = super::collection_key(&memory.ann, &format!("{}/agents/coder", memory.project)).await;
    assert_eq!(super::shared_index().count(&key).await.unwrap(), 20);
    for user in [&memory.ann, &there] {
        let found = super::search(user, &memory.context, json!({"query": "fact", "k": 50})).await;
        assert_eq!(found.len(), 20);
    }
    // Interactions that one node deletes are not found by the other.
    memory.ann.delete(&memory.context).await.expect(200);
    assert_eq!(
        super::search(&there, &memory.context, json!({"query": "fact"})).await,
        Vec::<Value>::new()
    );
    eventually("the engine forgets, too", async || {
        (super::shared_index().count(&key).await.unwrap() == 0).then_some(())
    })
    .await;
}

/// A memory moves from the embedded index to a Qdrant server by itself.
#[rstest]
#[tokio::test]
async fn memory_moves_to_another_index(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let mut server = memory.server;
    server.terminate().await;
    let server =
        server.restart_with("ATELIER_QDRANT_URL", Some(&atelier_testkit::qdrant_url())).await;
    let ann = memory.ann.at(&server);
    let search = format!("{}/search", memory.context);
    let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
    assert_eq!(
        found["results"][0]["text"], "The user prefers tabs over spaces",
        "by words, until it is there"
    );
    eventually("the server has it", async || {
        let found = ann.post(&search, json!({"query": "tabs", "k": 1})).await.expect(200);
        (found["degraded"].is_null() && found["results"][0].is_object()).then_some(())
    })
    .await;
}

/// Eight of forty collections may be open at a time. All memories are found, and memory maps stay
/// few.
#[tokio::test]
async fn more_agents_than_open_collections_are_all_found() {
    let server = build(Sqlite).with("MEMORY__OPEN_COLLECTIONS", 8).start().await;
    let ann = server.user("ann");
    let project = ann.project("many").await;
    let mut contexts = Vec::new();
    for number in 0..40 {
        let name = format!("agent-{number}");
        ann.post(&format!("{project}/agents"), json!({"name": name})).await.expect(201);
        let context = format!("{project}/agents/{name}/context");
        let fact =
            entry(&format!("the number is {number}"), "tool_call", true, "2026-01-01T00:00:00Z");
        super::import(&ann, &context, json!([fact])).await;
        contexts.push(context);
    }
    for (number, context) in contexts.iter().enumerate() {
        let found =
            ann.post(&format!("{context}/search"), json!({"query": "number"})).await.expect(200);
        assert_eq!(found["results"][0]["text"], format!("the number is {number}"));
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let of_memory = maps.lines().filter(|line| line.contains("/memory/")).count();
    assert!(of_memory < 10 * 80, "{of_memory} maps for 8 open collections");
}
