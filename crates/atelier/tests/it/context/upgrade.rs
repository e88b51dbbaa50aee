//! Memories of an older version that hold secrets are cleaned after an upgrade.

use super::{Engine, Engine::*, collection_key_in, entry, open, shared_index};
use atelier_core::{Interaction, InteractionType};
use atelier_memory::{CollectionKey, Embedder, Index, IndexQuery, Point, lexical_document};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, eventually,
};
use rstest::rstest;
use serde_json::json;
use std::path::Path;

/// What an older version has remembered of a file of secrets.
const OLD: &str = "read_file {\"path\":\".env\"}\n→ {\"content\":\"GREETING=zanzibar\"}";

fn index(engine: Engine, server: &Server) -> Index {
    match engine {
        Edge => Index::embedded(&server.data().join("memory"), 4).unwrap(),
        Qdrant => shared_index(),
    }
}

/// Puts the old text into the index, as the older version did.
async fn index_old_text(index: &Index, key: &CollectionKey, id: &str) {
    let vector = Embedder::Builtin.embed_texts(vec![OLD.into()]).await.unwrap().remove(0);
    let interaction = Interaction {
        pinned: false,
        id: id.parse().unwrap(),
        text: OLD.into(),
        interaction_type: InteractionType::ToolCall,
        success: true,
        error_details: None,
        timestamp: "2026-01-01T10:00:00Z".parse().unwrap(),
        task_id: None,
        session_id: None,
        metadata: Default::default(),
    };
    let point = Point { interaction, vector, words: lexical_document(OLD) };
    index.apply(key, vec![point], Vec::new()).await.unwrap();
    index.flush(key).await.unwrap();
    assert_eq!(matches(index, key).await, 1);
    index.close().await;
}

/// How many points of the index have the word of the secret file.
async fn matches(index: &Index, key: &CollectionKey) -> usize {
    let words = Some(atelier_memory::lexical_query("zanzibar"));
    let ask = IndexQuery { vector: None, words, filter: Default::default(), limit: 10 };
    index.search(key, ask).await.unwrap().lexical.len()
}

/// Whether a file below the folder has the word of the secret file in it.
fn is_on_disk(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().flatten().any(|entry| match entry.path() {
        path if path.is_dir() => is_on_disk(&path),
        path => std::fs::read(path).unwrap().windows(8).any(|bytes| bytes == b"zanzibar"),
    })
}

#[rstest]
#[tokio::test]
async fn secrets_that_an_older_version_remembered_are_removed_at_an_upgrade(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let mut memory = open(backend, engine).await;
    memory
        .import(json!([
            entry("the parser works", "task_execution", true, "2026-01-01T09:00:00Z"),
            entry("to be replaced", "tool_call", true, "2026-01-01T10:00:00Z"),
        ]))
        .await;
    let id = memory.search(json!({"query": "replaced", "k": 1})).await[0]["id"].clone();
    let agent = memory.context.trim_end_matches("/context");
    let key = collection_key_in(&index(engine, &memory.server), &memory.ann, agent).await;
    memory.server.terminate().await;

    let mut sql = memory.server.sql().await;
    sql.run(
        "UPDATE interactions SET text = 'read_file {\"path\":\".env\"}
→ {\"content\":\"GREETING=zanzibar\"}' WHERE type = 'tool_call'",
    )
    .await;
    sql.run("DELETE FROM memory_cleanup").await;
    drop(sql);
    index_old_text(&index(engine, &memory.server), &key, id.as_str().unwrap()).await;
    if engine == Edge {
        assert!(is_on_disk(&memory.server.data().join("memory")));
    }

    let server = memory.server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let mut sql = server.sql().await;
    eventually("the memory is clean", async || {
        let dirty = sql.count("SELECT COUNT(*) FROM interactions WHERE text LIKE '%zanzibar%'");
        (dirty.await == 0).then_some(())
    })
    .await;
    let search = async |query: &str| {
        let body = json!({"query": query, "mode": "lexical"});
        super::search(&ann, &memory.context, body).await
    };
    eventually("the collection is rebuilt", async || {
        (search("env").await.len() == 1 && search("parser").await.len() == 1).then_some(())
    })
    .await;
    assert_eq!(search("zanzibar").await, Vec::<serde_json::Value>::new());
    let kept = search("env").await[0]["text"].as_str().unwrap().to_owned();
    assert!(kept.starts_with("read_file {\"path\":\".env\"}\n→ [not remembered"), "{kept}");
    let export = ann.get(&format!("{}/export", memory.context)).await.expect(200);
    assert!(!export.to_string().contains("zanzibar"), "{export}");

    // Nothing is left in the index, and in the embedded one not even in its files.
    let mut server = server;
    server.terminate().await;
    assert_eq!(matches(&index(engine, &server), &key).await, 0);
    if engine == Edge {
        assert!(!is_on_disk(&server.data().join("memory")));
    }
}
