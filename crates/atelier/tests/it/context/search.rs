//! Searching memory.

use super::{
    Engine, Engine::*, Fixture, entry, import, open, search, shared_index, texts, week, with_engine,
};
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::{Value, json};

/// CX-03.1 CX-02.1
#[rstest]
#[tokio::test]
async fn imported_interactions_are_found_immediately(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    assert_eq!(memory.import(week()).await, json!({"imported": 8, "skipped": 0, "indexed": true}));
    for (query, best) in [
        ("deploying payments", "Deployed the payment service to staging"),
        ("does this person like tabs?", "The user prefers tabs over spaces"),
        ("где сервис платежей", "Развернули сервис платежей на тестовом сервере"),
        ("東京の天気", "東京の天気を調べました"),
    ] {
        for mode in ["hybrid", "dense", "lexical"] {
            let found = memory.search(json!({"query": query, "mode": mode, "k": 3})).await;
            assert_eq!(texts(&found)[0], best, "{query} {mode}");
            assert!(found.len() <= 3);
        }
    }
    let best = memory.search(json!({"query": "payment service staging", "k": 1})).await[0].clone();
    assert_eq!(best["interaction_type"], "task_execution");
    assert_eq!(best["success"], true);
    assert_eq!(best["timestamp"], "2026-01-01T10:00:00Z");
    assert!(best["score"].as_f64().unwrap() > 0.0);
    let parts = &best["score_parts"];
    assert!(
        parts["dense"].as_f64().unwrap() > 0.0 && parts["lexical"].as_f64().unwrap() > 0.0,
        "{parts}"
    );
    let one = format!("{}/interactions/{}", memory.context, best["id"].as_str().unwrap());
    let shown = memory.ann.get(&one).await.expect(200);
    assert_eq!(shown["text"], best["text"]);
}

/// CX-03.2 CX-03.3 CX-03.4
#[rstest]
#[tokio::test]
async fn filters_apply_in_every_search_mode(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let mut entries = week();
    entries[2]["task_id"] = json!("t-1");
    entries[5]["task_id"] = json!("t-1");
    entries[5]["session_id"] = json!("s-1");
    memory.import(entries).await;
    let query = "parser payment deployment tests tabs";
    for mode in ["hybrid", "dense", "lexical"] {
        let find = async |filter: Value| {
            let mut body = json!({"query": query, "mode": mode, "k": 50});
            body.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
            memory.search(body).await
        };
        let failed = find(json!({"success": false})).await;
        assert_eq!(failed.len(), 2, "{mode}");
        assert!(failed.iter().all(|hit| hit["success"] == false));
        let kinds = find(json!({"types": ["tool_call", "user_message"]})).await;
        assert_eq!(kinds.len(), 2, "{mode}");
        let early =
            find(json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-03T10:00:00Z"})).await;
        assert_eq!(early.len(), 2, "{mode}");
        assert_eq!(find(json!({"task_id": "t-1"})).await.len(), 2, "{mode}");
        assert_eq!(find(json!({"task_id": "t-1", "session_id": "s-1"})).await.len(), 1, "{mode}");
        assert_eq!(
            find(json!({"types": ["task_execution"], "success": false})).await.len(),
            1,
            "{mode}"
        );
    }
}

/// CX-01.4 CX-08.1 CX-08.2 CX-08.3 WS-06.2
#[rstest]
#[tokio::test]
async fn memories_of_agents_and_users_are_isolated(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let (ann, bob) = (&memory.ann, memory.server.user("bob"));
    let (other, bobs) = (ann.project("blog").await, bob.project("shop").await);
    let long = "ж".repeat(100);
    let mut places = Vec::new();
    for (user, project) in [(ann, &memory.project), (ann, &other), (&bob, &bobs)] {
        for name in ["a", "2_a", "a b", &long] {
            user.post(&format!("{project}/agents"), json!({"name": name})).await.expect(201);
            places.push((user, project.clone(), name.to_owned()));
        }
    }
    let mut collections = Vec::new();
    for (number, (user, project, name)) in places.iter().enumerate() {
        let context = format!("{project}/agents/{}/context", escaped(name));
        let secret = format!("secret number {number}");
        import(
            user,
            &context,
            json!([entry(&secret, "user_message", true, "2026-01-01T00:00:00Z")]),
        )
        .await;
        collections
            .push(user.get(&format!("{context}/stats")).await.expect(200)["collection"].clone());
    }
    for (number, (user, project, name)) in places.iter().enumerate() {
        let context = format!("{project}/agents/{}/context", escaped(name));
        for mode in ["hybrid", "dense", "lexical"] {
            let found =
                search(user, &context, json!({"query": "secret number", "mode": mode, "k": 50}))
                    .await;
            assert_eq!(texts(&found), [format!("secret number {number}")], "{name} {mode}");
        }
    }
    let mut distinct = collections.clone();
    distinct.sort_by_key(|name| name.to_string());
    distinct.dedup();
    assert_eq!(distinct.len(), places.len(), "{collections:?}");
    let user = ann.claims()["sub"].as_str().unwrap().to_owned();
    let id = memory.project.rsplit('/').next().unwrap();
    assert_eq!(collections[0], json!(format!("user{user}_{id}_a_context")));
    if engine == Qdrant {
        let there = shared_index().collections().await.unwrap();
        // One shared collection holds them all, so no collection has the name of an agent's.
        assert!(there.contains(&"atelier_builtin-1_1536".to_owned()), "{there:?}");
        assert!(!collections.iter().any(|name| there.contains(&name.as_str().unwrap().to_owned())));
    }
}

fn escaped(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Recency, duplicates and a minimum score.
#[rstest]
#[tokio::test]
async fn search_options_change_the_results(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    let old = entry("Rotated the signing keys", "task_execution", true, "2020-01-01T00:00:00Z");
    let again = entry(
        "rotated the signing keys!",
        "task_execution",
        true,
        &chrono::Utc::now().to_rfc3339(),
    );
    let other = entry("Watered the plants", "task_execution", true, "2026-01-01T00:00:00Z");
    memory.import(json!([old, again, other])).await;
    let find = async |options: Value| {
        let mut body = json!({"query": "signing keys"});
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        memory.search(body).await
    };
    assert_eq!(find(json!({})).await.len(), 3);
    let recent = find(json!({"recency_days": 30})).await;
    assert_eq!(texts(&recent)[0], "rotated the signing keys!");
    assert!(recent[0]["score_parts"]["recency"].as_f64().unwrap() > 0.99);
    assert_eq!(find(json!({"unique": true})).await.len(), 2);
    let least = find(json!({})).await[1]["score"].as_f64().unwrap();
    assert_eq!(find(json!({"min_score": least})).await.len(), 2);
    // Signs count as part of a word unless they end a sentence. A query of signs alone finds
    // nothing.
    let languages = ["C++ is preferred", "C# is preferred", "c# is preferred!"];
    let entries = languages.map(|text| entry(text, "user_message", true, "2026-01-01T00:00:00Z"));
    memory.import(json!(entries)).await;
    let preferred =
        memory.search(json!({"query": "preferred", "unique": true, "mode": "lexical"})).await;
    assert_eq!(preferred.len(), 2, "{:?}", texts(&preferred));
    assert_eq!(memory.search(json!({"query": "🎉 !!!"})).await, Vec::<Value>::new());
}

/// An agent's token can search; a client's token is for running calls only.
#[rstest]
#[tokio::test]
async fn client_tokens_cannot_read_memories(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let id =
        memory.search(json!({"query": "tabs", "k": 1})).await[0]["id"].as_str().unwrap().to_owned();
    for (role, may_look) in [("client", false), ("agent", true), ("user", true)] {
        let machine = match role {
            "user" => memory.server.user("ann"),
            _ => memory.server.program("ann", role, &memory.project),
        };
        let get = async |path: &str| {
            machine.get(&format!("{}{path}", memory.context)).await.status.as_u16()
        };
        let look = if may_look { 200 } else { 403 };
        let found =
            machine.post(&format!("{}/search", memory.context), json!({"query": "tabs"})).await;
        assert_eq!(found.status, look, "{role} searches");
        assert_eq!(get("/stats").await, look, "{role} sees figures");
        assert_eq!(get(&format!("/interactions/{id}")).await, look, "{role} sees one");
        assert_eq!(get("/export").await, if role == "user" { 200 } else { 403 }, "{role} exports");
    }
}

#[rstest]
#[tokio::test]
async fn invalid_search_parameters_are_named(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    let search = format!("{}/search", memory.context);
    for (body, named) in [
        (json!({}), "query"),
        (json!({"query": " "}), "query"),
        (json!({"query": "x", "k": 0}), "k"),
        (json!({"query": "x", "k": 101}), "k"),
        (json!({"query": "x", "mode": "magic"}), "mode"),
        (json!({"query": "x", "types": ["dream"]}), "types"),
        (json!({"query": "x", "from": "yesterday"}), "from"),
        (json!({"query": "x", "recency_days": 0}), "recency_days"),
        (json!({"query": "x", "task_id": "a\u{0}b"}), "task_id"),
        (json!({"query": "x", "agent": "other"}), "agent"),
    ] {
        let answer = memory.ann.post(&search, body.clone()).await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{body}");
        assert!(answer.body["detail"].as_str().unwrap().contains(named), "{body}: {}", answer.body);
    }
    assert_eq!(memory.search(json!({"query": "anything"})).await, Vec::<Value>::new());
}

/// CX-03.5: searches are answered by the index, never by a slower fallback, and their latency is
/// measured. `make bench-search` fails if the 95th percentile is 50 ms or more.
#[rstest]
#[tokio::test]
async fn search_is_answered_by_the_index_and_its_latency_is_measured(
    #[values(Edge, Qdrant)] engine: Engine,
) {
    // The index may be slow on a busy machine. With a short patience the store would answer.
    let server = with_engine(Sqlite, engine).with("MEMORY__PATIENCE", "20s").start().await;
    let memory = Fixture::over(server).await;
    let entries: Vec<Value> = (0..400)
        .map(|n| {
            entry(
                &format!("note {n} on topic {}", n % 37),
                "tool_call",
                n % 5 > 0,
                "2026-01-01T00:00:00Z",
            )
        })
        .collect();
    memory.import(json!(entries)).await;
    let path = format!("{}/search", memory.context);
    for n in 0..37 {
        let body = json!({"query": format!("topic {n}"), "success": true, "k": 5});
        let found = memory.ann.post(&path, body).await.expect(200);
        assert_eq!(found["degraded"], Value::Null);
        let topic = format!("on topic {n}");
        let results = found["results"].as_array().unwrap();
        assert_eq!(results.len(), 5);
        assert!(texts(results).iter().all(|text| text.ends_with(&topic)), "{topic}: {results:?}");
    }
    for metric in ["atelier_memory_search_seconds_count", "atelier_memory_index_seconds_count"] {
        assert_eq!(memory.server.metric(metric).await, 37.0, "{metric}");
    }
}
