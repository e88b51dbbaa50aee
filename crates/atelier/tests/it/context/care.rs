//! Clearing, pruning, statistics and limits of memories.

use super::{Engine, Engine::*, entry, import, open, texts, week, with_engine};
use crate::build;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

/// CX-04.5: searches find the corrected text only, and what is pinned is neither pruned nor deleted
/// when the memory is full.
#[rstest]
#[tokio::test]
async fn owner_corrects_and_pins_memories(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    memory.import(week()).await;
    let ann = &memory.ann;
    let tabs = memory.search(json!({"query": "tabs", "k": 1})).await[0].clone();
    let one = format!("{}/interactions/{}", memory.context, tabs["id"].as_str().unwrap());
    assert_eq!(tabs["pinned"], false);
    for text in ["The user prefers spaces", "The user prefers four spaces"] {
        let changed = ann.patch(&one, json!({"text": text})).await.expect(200);
        assert_eq!((&changed["text"], &changed["id"]), (&json!(text), &tabs["id"]));
    }
    let history = ann.get(&format!("{one}/history")).await.expect(200);
    let texts: Vec<&Value> =
        history["versions"].as_array().unwrap().iter().map(|version| &version["text"]).collect();
    assert_eq!(texts, ["The user prefers tabs over spaces", "The user prefers spaces"]);
    eventually("the index has the new text only", async || {
        let old = memory.search(json!({"query": "tabs", "mode": "lexical"})).await;
        let new = memory.search(json!({"query": "four spaces", "k": 1})).await;
        (old.is_empty() && new[0]["id"] == tabs["id"]).then_some(())
    })
    .await;

    assert_eq!(ann.patch(&one, json!({"pinned": true})).await.expect(200)["pinned"], true);
    let prune = format!("{}/prune", memory.context);
    for dry_run in [true, false] {
        let body = json!({"max_vectors": 0, "dry_run": dry_run});
        let pruned = ann.post(&prune, body).await.expect(200);
        assert_eq!((&pruned["deleted"], &pruned["remaining"]), (&json!(7), &json!(1)), "{pruned}");
    }
    assert_eq!(ann.get(&one).await.expect(200)["text"], "The user prefers four spaces");
    // An export keeps the pin, and an import brings it back.
    let file = ann.get(&format!("{}/export", memory.context)).await.expect(200);
    assert_eq!(file["interactions"][0]["pinned"], true);
    assert_eq!(ann.delete(&memory.context).await.expect(200)["deleted"], 1, "pins do not stop it");
    ann.post(&format!("{}/import", memory.context), file).await.expect(200);
    assert_eq!(ann.get(&one).await.expect(200)["pinned"], true);

    // A change of nothing is no error.
    let unchanged = ann.get(&one).await.expect(200);
    assert_eq!(ann.patch(&one, json!({})).await.expect(200), unchanged);
    for bad in [json!({"text": " "}), json!({"text": "x", "other": 1})] {
        assert!(ann.patch(&one, bad.clone()).await.status.is_client_error(), "{bad}");
    }
    let unknown = format!("{}/interactions/{}", memory.context, uuid::Uuid::now_v7());
    assert_eq!(ann.patch(&unknown, json!({"pinned": true})).await.status, 404);
    assert_eq!(memory.server.user("eve").patch(&one, json!({"pinned": true})).await.status, 404);
}

/// CX-04.1
#[rstest]
#[tokio::test]
async fn clearing_a_memory_deletes_everything(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    memory.import(week()).await;
    let other = format!("{}/agents/writer/context", memory.project);
    import(
        &memory.ann,
        &other,
        json!([entry("untouched", "tool_call", true, "2026-01-01T00:00:00Z")]),
    )
    .await;
    let mut news = memory.ann.events(&format!("{}/events", memory.project), None).await;
    assert_eq!(
        memory.ann.delete(&memory.context).await.expect(200),
        json!({"deleted": 8, "remaining": 0, "dry_run": false})
    );
    for mode in ["hybrid", "dense", "lexical"] {
        assert_eq!(
            memory.search(json!({"query": "payment parser", "mode": mode})).await,
            Vec::<Value>::new()
        );
    }
    let event = news.next().await;
    assert_eq!((event.name.as_str(), &event.data["removed"]), ("CONTEXT_PRUNED", &json!(8)));
    assert_eq!(event.data["reason"], "cleared");
    assert_eq!(memory.stats().await["total_vectors"], 0);
    let stats = memory.ann.get(&format!("{other}/stats")).await.expect(200);
    assert_eq!(stats["total_vectors"], 1);
    // Interactions that were deleted can be imported again.
    assert_eq!(memory.import(week()).await["imported"], 8);
    assert_eq!(
        texts(&memory.search(json!({"query": "tabs", "k": 1})).await),
        ["The user prefers tabs over spaces"]
    );
}

/// CX-04.2 CX-04.3 CX-04.4
#[rstest]
#[tokio::test]
async fn pruning_deletes_by_age_size_and_filter(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let prune =
        async |body: Value| memory.ann.post(&format!("{}/prune", memory.context), body).await;
    let days_ago = |days: i64| (chrono::Utc::now() - chrono::TimeDelta::days(days)).to_rfc3339();
    let entries: Vec<Value> = (0..10)
        .map(|n| {
            let kind = ["tool_call", "user_message"][n % 2];
            entry(&format!("thing number {n}"), kind, n % 5 != 0, &days_ago(90 - 10 * n as i64))
        })
        .collect();
    memory.import(json!(entries)).await;

    let dry = prune(json!({"days": 30, "dry_run": true})).await.expect(200);
    assert_eq!(dry, json!({"deleted": 7, "remaining": 3, "dry_run": true}));
    assert_eq!(memory.stats().await["total_vectors"], 10);

    let failed = prune(json!({"success": false})).await.expect(200);
    assert_eq!(failed, json!({"deleted": 2, "remaining": 8, "dry_run": false}));
    let old = prune(json!({"days": 75, "types": ["user_message"]})).await.expect(200);
    assert_eq!(old, json!({"deleted": 1, "remaining": 7, "dry_run": false}));
    // Interactions 2 and 4 are more than thirty days old. Of 2, 3, 4, 6, 7, 8 and 9, the newest
    // stay.
    let size = prune(json!({"max_vectors": 4})).await.expect(200);
    assert_eq!(size, json!({"deleted": 3, "remaining": 4, "dry_run": false}));
    let mut left = texts(&memory.search(json!({"query": "thing number", "k": 50})).await)
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, ["thing number 6", "thing number 7", "thing number 8", "thing number 9"]);
    let aged = prune(json!({"days": 15})).await.expect(200);
    assert_eq!(aged, json!({"deleted": 2, "remaining": 2, "dry_run": false}));
    let nothing = prune(json!({})).await.expect(200);
    assert_eq!(nothing, json!({"deleted": 0, "remaining": 2, "dry_run": false}));
    assert_eq!(prune(json!({"days": -1})).await.problem(), (422, "invalid_request"));
}

#[rstest]
#[tokio::test]
async fn single_interaction_can_be_deleted(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    memory.import(week()).await;
    let id =
        memory.search(json!({"query": "tabs", "k": 1})).await[0]["id"].as_str().unwrap().to_owned();
    let one = format!("{}/interactions/{id}", memory.context);
    // Another agent of the same project does not have this interaction.
    let elsewhere = one.replace("/coder/", "/writer/");
    assert_eq!(memory.ann.delete(&elsewhere).await.problem(), (404, "not_found"));
    assert_eq!(memory.ann.delete(&one).await.status, 204);
    assert_eq!(memory.ann.get(&one).await.problem(), (404, "not_found"));
    assert_eq!(memory.ann.delete(&one).await.problem(), (404, "not_found"));
    assert!(
        !texts(&memory.search(json!({"query": "tabs", "k": 50})).await)
            .contains(&"The user prefers tabs over spaces")
    );
}

/// CX-06.1 CX-06.2 CX-06.3 CX-06.4
#[rstest]
#[tokio::test]
async fn statistics_count_interactions(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let empty = memory.stats().await;
    assert_eq!(empty["total_vectors"], 0);
    assert_eq!(
        (&empty["oldest_interaction"], &empty["success_rate"]),
        (&Value::Null, &Value::Null)
    );
    memory.import(week()).await;
    let stats = memory.stats().await;
    assert_eq!(stats["total_vectors"], 8);
    assert_eq!(stats["max_vectors"], 1_000_000);
    assert!(stats["collection_size_mb"].as_f64().unwrap() > 0.0, "{stats}");
    assert_eq!(stats["oldest_interaction"], "2026-01-01T10:00:00Z");
    assert_eq!(stats["newest_interaction"], "2026-01-08T10:00:00Z");
    let types =
        json!({"task_execution": 4, "tool_call": 1, "user_message": 1, "agent_response": 2});
    assert_eq!(stats["by_type"], types);
    assert_eq!(stats["success_rate"], 75.0);
    assert_eq!((&stats["dimension"], &stats["waiting"]), (&json!(1536), &json!(0)));

    let ask =
        async |query: &str| memory.ann.get(&format!("{}/stats?{query}", memory.context)).await;
    let part = ask("from=2026-01-03T00:00:00Z&to=2026-01-04T23:59:59Z").await.expect(200);
    assert_eq!((&part["total_vectors"], &part["success_rate"]), (&json!(2), &json!(50.0)));
    let days = ask("bucket=day").await.expect(200)["periods"].as_array().unwrap().clone();
    assert_eq!(days.len(), 8);
    assert_eq!(
        (&days[2]["start"], &days[2]["success_rate"]),
        (&json!("2026-01-03T00:00:00Z"), &json!(0.0))
    );
    let weeks = ask("bucket=week").await.expect(200)["periods"].as_array().unwrap().clone();
    // 2026 began on a Thursday.
    let counts: Vec<_> =
        weeks.iter().map(|week| (week["start"].as_str().unwrap(), week["total"].clone())).collect();
    assert_eq!(counts, [("2025-12-29T00:00:00Z", json!(4)), ("2026-01-05T00:00:00Z", json!(4))]);
    assert_eq!(ask("bucket=year").await.problem(), (422, "invalid_request"));
}

/// CX-07.2 CX-07.3 CX-07.4
#[rstest]
#[tokio::test]
async fn full_memory_warns_once_and_deletes_its_oldest_interactions(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let agents = format!("{}/agents", memory.project);
    let small = json!({"name": "small", "config": {"max_vectors": 10}});
    assert_eq!(memory.ann.post(&agents, small).await.expect(201)["config"]["max_vectors"], 10);
    let context = format!("{agents}/small/context");
    let mut news = memory.ann.events(&format!("{}/events", memory.project), None).await;
    let add = async |from: usize, to: usize| {
        let entries: Vec<Value> = (from..to)
            .map(|n| {
                entry(
                    &format!("memory number {n}"),
                    "tool_call",
                    true,
                    &format!("2026-01-{:02}T00:00:00Z", n + 1),
                )
            })
            .collect();
        import(&memory.ann, &context, json!(entries)).await;
    };
    add(0, 7).await;
    add(7, 8).await;
    let warning = news.next().await;
    assert_eq!(warning.name, "CONTEXT_LIMIT_WARNING");
    assert_eq!(
        (&warning.data["total_vectors"], &warning.data["max_vectors"]),
        (&json!(8), &json!(10))
    );
    // The warning is sent once. The next event is the deletion.
    add(8, 9).await;
    add(9, 10).await;
    let pruned = news.next().await;
    assert_eq!((pruned.name.as_str(), &pruned.data["removed"]), ("CONTEXT_PRUNED", &json!(2)));
    assert_eq!(pruned.data["reason"], "limit");
    let stats = memory.ann.get(&format!("{context}/stats")).await.expect(200);
    assert_eq!(
        (&stats["total_vectors"], &stats["oldest_interaction"]),
        (&json!(8), &json!("2026-01-03T00:00:00Z"))
    );
}

/// CX-07.3
#[rstest]
#[tokio::test]
async fn small_memory_keeps_the_newest_even_without_an_index(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let mut qdrant = atelier_testkit::Qdrant::start().await;
    let server = build(backend).with("QDRANT_URL", qdrant.url()).start().await;
    let memory = super::Fixture::over(server).await;
    let agents = format!("{}/agents", memory.project);
    for (name, most) in [("one", 1), ("five", 5)] {
        let agent = json!({"name": name, "config": {"max_vectors": most}});
        memory.ann.post(&agents, agent).await.expect(201);
    }
    qdrant.kill();
    for (name, left, oldest) in
        [("one", 1, "2026-01-08T10:00:00Z"), ("five", 4, "2026-01-05T10:00:00Z")]
    {
        let context = format!("{agents}/{name}/context");
        import(&memory.ann, &context, week()).await;
        let stats = eventually("the oldest go", async || {
            let stats = memory.ann.get(&format!("{context}/stats")).await.expect(200);
            (stats["total_vectors"] != 8).then_some(stats)
        })
        .await;
        assert_eq!(
            (&stats["total_vectors"], &stats["oldest_interaction"]),
            (&json!(left), &json!(oldest))
        );
    }
}

/// CX-07.1: the periodic check finds the memories of all agents of all users that have become too
/// large without a write, because their limit was lowered. It runs every 24 hours by default.
#[rstest]
#[tokio::test]
async fn periodic_check_prunes_the_memories_of_all_agents(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let mut server = with_engine(backend, Edge).start().await;
    let mut agents = Vec::new();
    for (user, project) in [("ann", "shop"), ("ann", "blog"), ("bob", "shop")] {
        let user = server.user(user);
        let project = user.project(project).await;
        for agent in ["coder", "writer"] {
            let agent = format!("{project}/agents/{agent}");
            import(&user, &format!("{agent}/context"), week()).await;
            agents.push((user.clone(), project.clone(), agent));
        }
    }
    // After a graceful stop everything is indexed, so only the periodic check examines these
    // agents.
    assert!(server.terminate().await.success());
    server.set("ATELIER_MEMORY__SWEEP", "200ms");
    let server = server.restart_killed().await;
    for (user, ..) in &mut agents {
        *user = user.at(&server);
    }
    for (user, _, agent) in &agents[1..] {
        user.put(agent, json!({"config": {"max_vectors": 5}})).await.expect(200);
    }
    for (user, project, agent) in &agents[1..] {
        let mut events = user.events(&format!("{project}/events"), Some("0")).await;
        let id = user.get(agent).await.expect(200)["id"].clone();
        let pruned = loop {
            let event = events.until("CONTEXT_PRUNED").await;
            if event.data["agent_id"] == id {
                break event.data;
            }
        };
        assert_eq!(json!([pruned["removed"], pruned["reason"]]), json!([4, "limit"]));
        let stats = user.get(&format!("{agent}/context/stats")).await.expect(200);
        assert_eq!(stats["total_vectors"], 4, "{agent}");
    }
    let (user, _, agent) = &agents[0];
    let stats = user.get(&format!("{agent}/context/stats")).await.expect(200);
    assert_eq!(stats["total_vectors"], 8, "a memory within its limit is left alone");

    let shown = crate::print_config(&[]);
    let memory = shown.split("[memory]").nth(1).unwrap();
    assert!(memory.lines().any(|line| line == "sweep = \"1day\""), "{memory}");
}
