//! What agents remember of their own work, and how they use it.

use super::{Engine, Engine::*, entry, import, open, shared_index, week, with_engine};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

/// WS-02.2 WS-06.1 WS-06.3 WS-13.1 CX-01.1 CX-01.2 CX-01.3
#[rstest]
#[tokio::test]
async fn agents_have_collections_from_the_first_request(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let index = shared_index();
    let agents = format!("{}/agents", memory.project);
    memory.ann.post(&agents, json!({"name": "fifth"})).await.expect(201);
    for name in ["agent_coder", "agent_analyzer", "agent_writer", "agent_researcher", "fifth"] {
        let key = super::collection_key(&memory.ann, &format!("{agents}/{name}")).await;
        assert!(key.name.ends_with(&format!("_{name}_context")), "{}", key.name);
        if engine == Qdrant {
            assert!(index.exists(&key).await.unwrap(), "{name}");
            let fields = index.indexed_fields(&key).await.unwrap();
            for field in ["task_id", "timestamp", "success", "interaction_type"] {
                assert!(fields.contains(&field.to_owned()), "{fields:?}");
            }
        }
        import(&memory.ann, &format!("{agents}/{name}/context"), week()).await;
        let stats = memory.ann.get(&format!("{agents}/{name}/context/stats")).await.expect(200);
        assert_eq!((&stats["dimension"], &stats["total_vectors"]), (&json!(1536), &json!(8)));
    }
    if engine == Qdrant {
        // A collection is deleted without the server. The next worker space notices and rebuilds it
        // from the database.
        let key = super::collection_key(&memory.ann, &format!("{agents}/fifth")).await;
        index.drop(&key).await.unwrap();
        memory
            .ann
            .post(&format!("{}/worker-space/reset", memory.project), json!(null))
            .await
            .expect(200);
        eventually("the collection is whole again", async || {
            (index.count(&key).await.ok()? == 8).then_some(())
        })
        .await;
    }
}

/// CX-02.1 CX-02.2 CX-02.3 CX-02.7
#[rstest]
#[tokio::test]
async fn messages_tasks_and_calls_are_remembered(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let (ann, project) = (&memory.ann, &memory.project);
    let session = ann.post(&format!("{project}/chat/sessions"), json!({})).await.expect(201);
    let say = format!("{project}/chat/{}/message", session["id"].as_str().unwrap());
    let accepted = ann
        .post(&say, json!({"content": "Please remember the word quokka", "target_agent": "coder"}))
        .await;
    let task = accepted.body["task_id"].clone();
    let remembered = async |kind: &str, task: &Value| {
        eventually(kind, async || {
            let export =
                ann.get(&format!("{}/export?types={kind}", memory.context)).await.expect(200);
            let all = export["interactions"].as_array().unwrap().clone();
            all.into_iter().find(|interaction| interaction["task_id"] == *task)
        })
        .await
    };
    let done = remembered("task_execution", &task).await;
    assert_eq!((&done["success"], &done["error_details"]), (&json!(true), &Value::Null));
    assert_eq!(done["session_id"], session["id"]);
    let text = done["text"].as_str().unwrap();
    assert!(text.starts_with("Task: Please remember the word quokka\nOutcome: "), "{text}");
    // The exchange is remembered once: neither the question nor the answer is there again.
    let export = ann.get(&format!("{}/export", memory.context)).await.expect(200);
    assert_eq!(export["total_interactions"], 1, "{export}");
    eventually("it can be found", async || {
        let found = memory.search(json!({"query": "quokka", "types": ["task_execution"]})).await;
        (!found.is_empty()).then_some(())
    })
    .await;

    // A failed task is remembered with its reason.
    let agent = json!({"name": "broken", "config": {"model": "anthropic/without-a-key"}});
    ann.post(&format!("{project}/agents"), agent).await.expect(201);
    ann.post(&say, json!({"content": "This will fail", "target_agent": "broken"}))
        .await
        .expect(202);
    let broken = format!("{project}/agents/broken/context");
    let failed = eventually("the failure is remembered", async || {
        let export = ann.get(&format!("{broken}/export?types=task_execution")).await.expect(200);
        export["interactions"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(failed["success"], false);
    assert!(!failed["error_details"].as_str().unwrap().is_empty());

    // A call that the gate denies is remembered by the agent that asked for it.
    let agent = ann.get(&format!("{project}/agents/coder")).await.expect(200)["id"].clone();
    let call = json!({"tool_name": "execute_command", "tool_params": {"command": "rm -rf \
        /"}, "agent_id": agent});
    assert_eq!(ann.post(&format!("{project}/tools/execute"), call).await.body["status"], "denied");
    let export = ann.get(&format!("{}/export?types=tool_call", memory.context)).await.expect(200);
    let call = &export["interactions"][0];
    assert_eq!(call["success"], false);
    let text = call["text"].as_str().unwrap();
    assert!(text.starts_with("execute_command rm -rf /\n→ Command not allowed"), "{text}");
}

/// CX-03.8: an event reports which memories were retrieved, and for which task.
#[rstest]
#[tokio::test]
async fn relevant_memories_are_in_the_prompt(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let best = memory.search(json!({"query": "parser deployment", "k": 1})).await[0]["id"].clone();
    let (ann, project) = (&memory.ann, &memory.project);
    let mut news = ann.events(&format!("{project}/events"), None).await;
    let session = ann.post(&format!("{project}/chat/sessions"), json!({})).await.expect(201);
    let say = format!("{project}/chat/{}/message", session["id"].as_str().unwrap());
    let message =
        json!({"content": "What became of the parser deployment?", "target_agent": "coder"});
    let accepted = ann.post(&say, message).await.expect(202);
    let recalled = loop {
        let event = news.next().await;
        if event.name == "CONTEXT_RETRIEVED" {
            break event.data;
        }
    };
    assert_eq!(recalled["query"], "What became of the parser deployment?");
    let ids = recalled["interactions"].as_array().unwrap();
    assert!(ids.contains(&best), "{ids:?}");
    assert_eq!(recalled["degraded"], false);
    assert_eq!(recalled["task_id"], accepted["task_id"]);
    // Unrelated interactions are left out, and so is the question itself.
    for id in ids {
        let one = format!("{}/interactions/{}", memory.context, id.as_str().unwrap());
        let text = ann.get(&one).await.expect(200)["text"].as_str().unwrap().to_lowercase();
        assert!(text.contains("parser") || text.contains("deploy"), "{text}");
        assert!(!text.contains("what became"), "{text}");
    }

    // The next task of the conversation has this one in its prompt, and is not reminded of it. A
    // task of another conversation is; and every task knows what is pinned.
    let export = format!("{}/export?types=task_execution", memory.context);
    let exchange = eventually("the exchange is remembered", async || {
        let all = ann.get(&export).await.expect(200)["interactions"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["task_id"] == accepted["task_id"])
    })
    .await;
    let tabs = memory.search(json!({"query": "tabs", "k": 1})).await[0]["id"].clone();
    let one = format!("{}/interactions/{}", memory.context, tabs.as_str().unwrap());
    ann.patch(&one, json!({"pinned": true})).await.expect(200);
    let other = ann.post(&format!("{project}/chat/sessions"), json!({})).await.expect(201);
    let elsewhere = format!("{project}/chat/{}/message", other["id"].as_str().unwrap());
    for (place, is_recalled) in [(&say, false), (&elsewhere, true)] {
        let message = json!({"content": "Tell me again what became of the parser deployment",
            "target_agent": "coder"});
        let task = ann.post(place, message).await.expect(202)["task_id"].clone();
        let recalled = loop {
            let event = news.next().await;
            if event.name == "CONTEXT_RETRIEVED" && event.data["task_id"] == task {
                break event.data["interactions"].as_array().unwrap().clone();
            }
        };
        assert_eq!(recalled.contains(&exchange["id"]), is_recalled, "{recalled:?}");
        assert_eq!(recalled[0], tabs, "what is pinned comes first");
    }
}

/// CX-02.4: in batches; while the service is unreachable, interactions wait and are found by their
/// words.
#[rstest]
#[tokio::test]
async fn embeddings_come_from_an_openai_compatible_service(#[values(Edge, Qdrant)] engine: Engine) {
    let service = crate::embeddings::Service::start(1536).await;
    let server = with_engine(Sqlite, engine)
        .with("MEMORY__EMBEDDER__KIND", "openai")
        .with("MEMORY__EMBEDDER__BASE_URL", service.url())
        .with("MEMORY__EMBEDDER__API_KEY", "sk-test")
        .start()
        .await;
    let memory = super::Fixture::over(server).await;
    memory.import(week()).await;
    assert_eq!(memory.stats().await["embedder"], "openai-text-embedding-3-small-1536");
    let asked = service.asked();
    assert_eq!(asked[0]["model"], "text-embedding-3-small");
    assert_eq!(asked[0]["input"].as_array().unwrap().len(), 8, "one request for all");
    assert_eq!(service.key(), "Bearer sk-test");
    // The service returns the same vector for the same text.
    let found = memory
        .search(json!({"query": "The user prefers tabs over spaces", "mode": "dense", "k": 1}))
        .await;
    assert_eq!(found[0]["text"], "The user prefers tabs over spaces");
    assert!(found[0]["score"].as_f64().unwrap() > 0.99);

    service.fail(true);
    let body = json!({"query": "tabs", "k": 1});
    let found = memory.ann.post(&format!("{}/search", memory.context), body).await.expect(200);
    assert_eq!(found["results"][0]["text"], "The user prefers tabs over spaces");
    assert!(found["degraded"].as_str().unwrap().contains("embedding"), "{found}");

    // New interactions have no vector yet, and are found by their words in every mode.
    let zebra = entry("A zebra crossing in Paris", "user_message", true, "2026-02-01T00:00:00Z");
    assert_eq!(
        memory.import(json!([zebra])).await,
        json!({"imported": 1, "skipped": 0, "indexed": false})
    );
    let find = async |query: &str, mode: &str| {
        let body =
            json!({"query": query, "mode": mode, "k": 1, "types": ["user_message", "tool_call"]});
        memory.ann.post(&format!("{}/search", memory.context), body).await.expect(200)
    };
    for mode in ["hybrid", "lexical", "dense"] {
        let found = find("zebra crossings", mode).await;
        assert_eq!(found["results"][0]["text"], "A zebra crossing in Paris", "{mode} {found}");
        assert_eq!(found["degraded"].is_null(), mode == "lexical", "{mode} {found}");
    }
    // The same holds for many interactions, and searches say how many are missing.
    let many: Vec<Value> = (0..150)
        .map(|n| entry(&format!("walrus number {n}"), "tool_call", true, "2026-02-02T00:00:00Z"))
        .collect();
    assert_eq!(memory.import(json!(many)).await["indexed"], false);
    for mode in ["hybrid", "lexical", "dense"] {
        let found = find("walrus number 77", mode).await;
        assert_eq!(found["results"][0]["text"], "walrus number 77", "{mode} {found}");
        assert!(found["degraded"].as_str().unwrap().contains("151 interactions"), "{mode} {found}");
    }
    service.fail(false);
    let found = eventually("the index has caught up", async || {
        let found = find("walrus number 77", "dense").await;
        found["degraded"].is_null().then_some(found)
    })
    .await;
    assert_eq!(found["results"][0]["text"], "walrus number 77");
    assert!(found["results"][0]["score"].as_f64().unwrap() > 0.99);

    // During a rebuild nothing is missing, and searches say that it is in progress.
    service.fail(true);
    memory.ann.post(&format!("{}/reindex", memory.context), json!(null)).await.expect(202);
    let found = find("walrus number 5", "hybrid").await;
    assert_eq!(found["results"][0]["text"], "walrus number 5");
    assert!(found["degraded"].is_string(), "{found}");
}

/// Two embedders may have the same dimension: an import uses vectors of the server's own embedder
/// and recomputes the others.
#[rstest]
#[tokio::test]
async fn vectors_of_two_embedders_are_never_mixed(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let file = memory
        .ann
        .get(&format!("{}/export?include_embeddings=true", memory.context))
        .await
        .expect(200);
    assert_eq!(file["interactions"][0]["embedder"], "builtin-1");
    let heirs = |name: &str| format!("{}/agents/{name}/context", memory.project);
    memory.ann.post(&format!("{}/import", heirs("writer")), file.clone()).await.expect(200);

    let service = crate::embeddings::Service::start(1536).await;
    let mut server = memory.server;
    server.terminate().await;
    server.set("ATELIER_MEMORY__EMBEDDER__KIND", "openai");
    server.set("ATELIER_MEMORY__EMBEDDER__BASE_URL", &service.url());
    let server = server.restart_killed().await;
    let ann = memory.ann.at(&server);
    let is_found = async |context: &str| {
        let body = json!({"query": "The user prefers tabs over spaces", "mode": "dense", "k": 1});
        let found = super::search(&ann, context, body).await;
        assert_eq!(found[0]["text"], "The user prefers tabs over spaces", "{context}");
        assert!(found[0]["score"].as_f64().unwrap() > 0.99, "{context}: {}", found[0]);
    };
    // These vectors were imported before, and are computed again now.
    ann.post(&format!("{}/reindex", heirs("writer")), json!(null)).await.expect(202);
    is_found(&heirs("writer")).await;
    // These are imported now: vectors of the other embedder, and vectors without an embedder.
    let mut nameless = file.clone();
    for entry in nameless["interactions"].as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().remove("embedder");
    }
    for (heir, file) in [("analyzer", file), ("researcher", nameless)] {
        let taken = ann.post(&format!("{}/import", heirs(heir)), file).await.expect(200);
        assert_eq!(taken["indexed"], true);
        is_found(&heirs(heir)).await;
    }
    // Vectors of the server's own embedder are used unchanged: only queries are embedded.
    let file =
        ann.get(&format!("{}/export?include_embeddings=true", heirs("analyzer"))).await.expect(200);
    ann.post(&format!("{}/agents", memory.project), json!({"name": "late"})).await.expect(201);
    let before = service.asked().len();
    ann.post(&format!("{}/import", heirs("late")), file).await.expect(200);
    assert_eq!(service.asked().len(), before);
    is_found(&heirs("late")).await;
}
