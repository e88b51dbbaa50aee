//! Worker spaces: created once, kept while in use, and released without touching the user's files.

use crate::{
    build,
    connect::client::{Machine, ProjectSetup},
    context::{collection_key, shared_index},
    start,
};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    User, eventually, qdrant_url,
};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

async fn space(user: &User, project: &str) -> Value {
    user.get(&format!("{project}/worker-space")).await.expect(200)
}

/// A request that cannot continue while the agents are locked, and that is running when this
/// returns.
async fn begin_work(user: &User, project: &str) -> JoinHandle<Answer> {
    let (asker, agents) = (user.clone(), format!("{project}/agents"));
    let work = tokio::spawn(async move { asker.post(&agents, json!({"name": "late"})).await });
    eventually("the work is under way", async || {
        (space(user, project).await["active_tasks"] == 1).then_some(())
    })
    .await;
    work
}

/// WS-03.1 WS-13.1
#[rstest]
#[tokio::test]
async fn first_request_creates_the_worker_space(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    assert_eq!(
        server.metric("atelier_worker_spaces").await,
        0.0,
        "creating a project uses no space"
    );

    let mut events = ann.events(&format!("{project}/events"), Some("0")).await;
    let ready = events.until("WORKER_SPACE_READY").await;
    let id = project.rsplit('/').next().unwrap();
    let prefix = format!("user{}_{id}", ann.claims()["sub"].as_str().unwrap());
    assert_eq!(ready.data["user_prefix"], prefix);
    let space = space(&ann, &project).await;
    assert_eq!(space["user_prefix"], prefix);
    assert_eq!(
        space["agent_cache"],
        json!({"size": 0, "capacity": 256, "ttl_seconds": 300, "hits": 0, "misses": 0})
    );
    assert_eq!(server.metric("atelier_worker_spaces").await, 1.0);
}

/// WS-13.2: the cache, the tasks and the memory collections of a project are managed while it is in
/// use, and its worker space is not released.
#[rstest]
#[tokio::test]
async fn resources_are_managed_while_the_project_is_in_use(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend)
        .with("WORKER_SPACE__AGENT_TTL", "1s")
        .with("WORKER_SPACE__INACTIVITY", "5s")
        .with("QDRANT_URL", qdrant_url())
        .start()
        .await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let coder = format!("{project}/agents/coder");
    let first = space(&ann, &project).await;

    // Agents enter the cache when they are used and leave it after their TTL.
    ann.get(&coder).await.expect(200);
    let cache = space(&ann, &project).await["agent_cache"].clone();
    assert_eq!(json!([cache["size"], cache["misses"], cache["ttl_seconds"]]), json!([1, 1, 1]));
    eventually("the cached agent expires", async || {
        (space(&ann, &project).await["agent_cache"]["size"] == 0).then_some(())
    })
    .await;
    ann.get(&coder).await.expect(200);
    assert_eq!(space(&ann, &project).await["agent_cache"]["misses"], 2);

    // Tasks are counted while they run, and a running task keeps the space open: the space of
    // another project, which was used later, is released before it.
    let other = ann.project("blog").await;
    space(&ann, &other).await;
    let mut events = ann.events(&format!("{project}/events"), None).await;
    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let work = begin_work(&ann, &project).await;
    space(&ann, &other).await;
    assert_eq!(server.metric("atelier_worker_spaces").await, 2.0);
    eventually("the unused space is released", async || {
        (server.metric("atelier_worker_spaces").await == 1.0).then_some(())
    })
    .await;
    let used = space(&ann, &project).await;
    assert_eq!(json!([used["active_tasks"], used["created_at"]]), json!([1, first["created_at"]]));
    assert_eq!(server.metric("atelier_worker_space_initializations_total").await, 2.0);
    sql.release().await;
    work.await.unwrap().expect(201);
    assert_eq!(space(&ann, &project).await["active_tasks"], 0);
    assert_eq!(events.next().await.name, "AGENT_CREATED");

    // The agent that joined got its collection, and a collection that is lost is created again.
    let late = format!("{project}/agents/late");
    let (index, key) = (shared_index(), collection_key(&ann, &late).await);
    assert!(index.exists(&key).await.unwrap());
    index.drop(&key).await.unwrap();
    let note =
        json!({"interactions": [{"text": "rotated the keys", "interaction_type": "tool_call"}]});
    ann.post(&format!("{late}/context/import"), note).await.expect(200);
    eventually("the collection is created again", async || {
        matches!(index.count(&key).await, Ok(1)).then_some(())
    })
    .await;
}

/// WS-03.2
#[rstest]
#[tokio::test]
async fn second_request_reuses_the_worker_space(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let first = space(&ann, &project).await;
    for _ in 0..5 {
        ann.get(&project).await.expect(200);
    }
    assert_eq!(space(&ann, &project).await["created_at"], first["created_at"]);
    assert_eq!(server.metric("atelier_worker_space_initializations_total").await, 1.0);
}

/// WS-03.3
#[rstest]
#[tokio::test]
async fn parallel_first_requests_share_one_worker_space(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let asks = (0..50).map(|_| {
        let (ann, project) = (ann.clone(), project.clone());
        async move { ann.get(&project).await.expect(200) }
    });
    futures::future::join_all(asks).await;
    assert_eq!(server.metric("atelier_worker_space_initializations_total").await, 1.0);

    // The marker comes after everything that happened before it.
    ann.put(&project, json!({"name": "marker"})).await.expect(200);
    let mut events = ann.events(&format!("{project}/events"), Some("0")).await;
    let mut ready = 0;
    loop {
        match events.next().await.name.as_str() {
            "WORKER_SPACE_READY" => ready += 1,
            "PROJECT_UPDATED" => break,
            _ => {}
        }
    }
    assert_eq!(ready, 1);
}

/// WS-01.2
#[rstest]
#[tokio::test]
async fn several_worker_spaces_of_one_user_run_in_parallel(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let projects = [ann.project("a").await, ann.project("b").await, ann.project("c").await];
    let work = projects.iter().map(async |project| {
        for n in 0..10 {
            let prompt = json!({"config": {"system_prompt": format!("{project} {n}")}});
            ann.put(&format!("{project}/agents/coder"), prompt).await.expect(200);
        }
        let coder = ann.get(&format!("{project}/agents/coder")).await.expect(200);
        assert_eq!(coder["config"]["system_prompt"], format!("{project} 9"));
    });
    futures::future::join_all(work).await;
    let mut prefixes = Vec::new();
    for project in &projects {
        prefixes.push(space(&ann, project).await["user_prefix"].clone());
    }
    prefixes.sort_by_key(ToString::to_string);
    prefixes.dedup();
    assert_eq!(prefixes.len(), 3);
    assert_eq!(server.metric("atelier_worker_spaces").await, 3.0);
}

/// WS-04.1 WS-04.2: the row is changed directly in the database, and the server still returns the
/// cached agent.
#[rstest]
#[tokio::test]
async fn agent_comes_from_the_cache_until_its_ttl(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("WORKER_SPACE__AGENT_TTL", "1s").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let agent = format!("{project}/agents/coder");
    ann.get(&agent).await.expect(200);
    assert_eq!(space(&ann, &project).await["agent_cache"]["size"], 1);

    server
        .sql()
        .await
        .run("UPDATE agents SET name = 'behind_your_back' WHERE name = 'agent_coder'")
        .await;
    assert_eq!(ann.get(&agent).await.expect(200)["name"], "agent_coder", "no database read");
    let cache = space(&ann, &project).await["agent_cache"].clone();
    assert_eq!((&cache["hits"], &cache["misses"]), (&json!(1), &json!(1)));
    // After the TTL the agent is read again, and the old name is gone.
    eventually("the entry expires", async || (ann.get(&agent).await.status == 404).then_some(()))
        .await;
}

/// WS-04.3
#[rstest]
#[tokio::test]
async fn update_invalidates_the_cached_agent(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let agent = format!("{}/agents/coder", ann.project("shop").await);
    for n in 0..20 {
        ann.get(&agent).await.expect(200);
        ann.put(&agent, json!({"config": {"max_tokens": 100 + n}})).await.expect(200);
        assert_eq!(ann.get(&agent).await.expect(200)["config"]["max_tokens"], 100 + n);
    }
}

/// WS-04.3
#[tokio::test]
async fn update_invalidates_the_cached_agent_on_other_nodes_on_postgres() {
    let one = start(Postgres).await;
    let two = one.second_node().await;
    let ann = one.user("ann");
    let agent = format!("{}/agents/coder", ann.project("shop").await);
    let there = ann.at(&two);
    for n in 0..5 {
        there.get(&agent).await.expect(200);
        ann.put(&agent, json!({"config": {"max_tokens": 100 + n}})).await.expect(200);
        eventually("the other node sees it", async || {
            let seen = there.get(&agent).await.expect(200);
            (seen["config"]["max_tokens"] == 100 + n).then_some(())
        })
        .await;
    }
    ann.delete(&agent).await;
    eventually("it is gone there too", async || {
        (there.get(&agent).await.status == 404).then_some(())
    })
    .await;
}

/// WS-04.4
#[rstest]
#[tokio::test]
async fn deleted_agent_leaves_the_cache(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let agent = format!("{project}/agents/coder");
    ann.get(&agent).await.expect(200);
    assert_eq!(ann.delete(&agent).await.status, 204);
    assert_eq!(ann.get(&agent).await.problem(), (404, "not_found"));
    assert_eq!(space(&ann, &project).await["agent_cache"]["size"], 0);
    assert_eq!(server.metric("atelier_active_agents").await, 0.0);
}

/// WS-08.1 WS-13.3
#[rstest]
#[tokio::test]
async fn unused_worker_space_is_released(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("WORKER_SPACE__INACTIVITY", "300ms").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let before = ann.get(&format!("{project}/agents")).await.expect(200);
    let mut events = ann.events(&format!("{project}/events"), Some("0")).await;
    let closed = events.until("WORKER_SPACE_CLOSED").await;
    assert_eq!(closed.data["reason"], "inactive");
    assert_eq!(server.metric("atelier_worker_spaces").await, 0.0);
    assert_eq!(server.metric("atelier_agent_cache_entries").await, 0.0);
    // The next request creates a new worker space, and no stored data was lost.
    assert_eq!(ann.get(&format!("{project}/agents")).await.expect(200), before);
    events.until("WORKER_SPACE_READY").await;
}

/// WS-08.1
#[rstest]
#[tokio::test]
async fn ending_a_session_lets_running_work_finish(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut events = ann.events(&format!("{project}/events"), None).await;
    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let work = begin_work(&ann, &project).await;
    let end = tokio::spawn({
        let (ann, path) = (ann.clone(), format!("{project}/worker-space"));
        async move { ann.delete(&path).await }
    });
    eventually("the space is being released", async || {
        (server.metric("atelier_worker_spaces").await == 0.0).then_some(())
    })
    .await;
    sql.release().await;
    work.await.unwrap().expect(201);
    assert_eq!(end.await.unwrap().status, 204);
    assert_eq!(events.until("WORKER_SPACE_CLOSED").await.data["reason"], "session_ended");
    assert_eq!(ann.get(&format!("{project}/agents/late")).await.status, 200);
}

/// WS-08.1
#[rstest]
#[tokio::test]
async fn work_that_outlasts_the_grace_time_is_ended(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("WORKER_SPACE__GRACE", "100ms").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    ann.get(&project).await.expect(200);
    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let work = begin_work(&ann, &project).await;
    let end = tokio::spawn({
        let (ann, path) = (ann.clone(), format!("{project}/worker-space"));
        async move { ann.delete(&path).await }
    });
    assert_eq!(work.await.unwrap().problem(), (409, "worker_space_closed"));
    sql.release().await;
    assert_eq!(end.await.unwrap().status, 204);
}

/// WS-08.2
#[rstest]
#[tokio::test]
async fn reset_stops_everything_immediately(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut events = ann.events(&format!("{project}/events"), None).await;
    let before = space(&ann, &project).await;
    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let work = begin_work(&ann, &project).await;
    let reset = tokio::spawn({
        let (ann, path) = (ann.clone(), format!("{project}/worker-space/reset"));
        async move { ann.post(&path, Value::Null).await }
    });
    // The request ends immediately, although the lock that it waits for is still held.
    assert_eq!(work.await.unwrap().problem(), (409, "worker_space_closed"));
    sql.release().await;
    let after = reset.await.unwrap().expect(200);
    assert_ne!(after["created_at"], before["created_at"]);
    assert_eq!(events.until("WORKER_SPACE_CLOSED").await.data["reason"], "reset");
    events.until("WORKER_SPACE_READY").await;
    assert_eq!(ann.get(&project).await.status, 200);
}

/// WS-08.2
#[rstest]
#[tokio::test]
async fn only_the_owner_and_tenant_admins_can_reset(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let (reset, id) =
        (format!("{project}/worker-space/reset"), project.rsplit('/').next().unwrap());
    for (arguments, status) in [
        (&["--role", "admin"][..], 200),
        (&["--role", "user"], 404),
        (&["--role", "admin", "--tenant", "elsewhere"], 404),
        (&["--role", "client", "--project", id], 403),
        (&["--role", "agent", "--project", id], 403),
    ] {
        let other = server.user_with("other", arguments);
        assert_eq!(other.post(&reset, Value::Null).await.status, status, "{arguments:?}");
    }
}

/// WS-10.1
#[rstest]
#[tokio::test]
async fn metrics_count_agents_cache_and_waiting_tasks(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend).with("WORKER_SPACE__MAX_ACTIVE", 1).start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    for name in ["coder", "writer", "coder"] {
        ann.get(&format!("{project}/agents/{name}")).await.expect(200);
    }
    assert_eq!(server.metric("atelier_agent_cache_entries").await, 2.0);
    assert_eq!(server.metric("atelier_agent_cache_hits_total").await, 1.0);

    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let asks: Vec<_> = (0..3)
        .map(|n| {
            let (ann, agents) = (ann.clone(), format!("{project}/agents"));
            tokio::spawn(async move { ann.post(&agents, json!({"name": format!("n{n}")})).await })
        })
        .collect();
    eventually("one runs, two wait", async || {
        let running = server.metric("atelier_active_tasks").await == 1.0;
        (running && server.metric("atelier_waiting_requests").await == 2.0).then_some(())
    })
    .await;
    let report = space(&ann, &project).await;
    assert_eq!(
        json!([report["active_tasks"], report["waiting_requests"], report["queued_tasks"]]),
        json!([1, 2, 0])
    );
    sql.release().await;
    for ask in asks {
        ask.await.unwrap().expect(201);
    }
    let text = server.metrics().await;
    for name in [
        "atelier_http_requests_total",
        "atelier_http_request_seconds_bucket",
        "atelier_event_streams",
    ] {
        // A gauge appears with its first stream.
        assert!(text.contains(name) || name == "atelier_event_streams", "{name}");
    }
}

/// WS-10.2 WS-10.3: the worker space is degraded meanwhile.
#[rstest]
#[tokio::test]
async fn hung_task_raises_an_alert(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("WORKER_SPACE__HUNG_AFTER", "200ms").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut events = ann.events(&format!("{project}/events"), None).await;
    assert_eq!(space(&ann, &project).await["health"]["status"], "healthy");

    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let work = begin_work(&ann, &project).await;
    const ALERTS: &str = "atelier_worker_space_alerts_total{alert=\"hung_task\"}";
    eventually("the alert", async || (server.metric(ALERTS).await == 1.0).then_some(())).await;
    // The alert is counted before it is logged.
    eventually("the log has it", async || {
        server.log().contains("worker space alert").then_some(())
    })
    .await;
    // The lock that the test holds on SQLite keeps everybody from writing. The server sees it with
    // its next probe: for a moment it gives the result of the last one.
    let expected = if backend == Sqlite { "unhealthy" } else { "degraded" };
    let health = eventually("the health shows the hung task", async || {
        let health = space(&ann, &project).await["health"].clone();
        (health["status"] == expected).then_some(health)
    })
    .await;
    let tasks =
        health["parts"].as_array().unwrap().iter().find(|part| part["name"] == "tasks").unwrap();
    assert_eq!(
        tasks,
        &json!({"name": "tasks", "status": "degraded", "reason": "requests that hang: 1"})
    );

    sql.release().await;
    work.await.unwrap().expect(201);
    let alert = events.until("WORKER_SPACE_ALERT").await;
    assert_eq!(alert.data["alert"], "hung_task");
    eventually("the space is healthy again", async || {
        (space(&ann, &project).await["health"]["status"] == "healthy").then_some(())
    })
    .await;
}

/// WS-10.3
#[rstest]
#[tokio::test]
async fn cache_that_is_too_small_raises_an_alert(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend)
        .with("WORKER_SPACE__AGENT_CACHE", 2)
        .with("WORKER_SPACE__HUNG_AFTER", "400ms")
        .start()
        .await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut events = ann.events(&format!("{project}/events"), None).await;
    for name in ["coder", "writer", "analyzer", "researcher"] {
        ann.get(&format!("{project}/agents/{name}")).await.expect(200);
    }
    let alert = events.until("WORKER_SPACE_ALERT").await;
    assert_eq!(alert.data["alert"], "cache_overflow");
    let health = space(&ann, &project).await["health"].clone();
    assert_eq!(health["status"], "degraded");
    // With a cache that is too small, answers are slower but still right.
    assert_eq!(
        ann.get(&format!("{project}/agents/coder")).await.expect(200)["name"],
        "agent_coder"
    );
}

/// WS-10.2: it reports the problem and recovers.
#[tokio::test]
async fn worker_space_without_database_is_unhealthy_on_postgres() {
    let server = start(Postgres).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    space(&ann, &project).await;
    let mut sql = server.sql().await;
    sql.run("ALTER TABLE agents RENAME TO agents_away").await;
    assert_eq!(ann.get(&format!("{project}/agents")).await.problem(), (503, "store_unavailable"));
    sql.run("ALTER TABLE agents_away RENAME TO agents").await;
    ann.get(&format!("{project}/agents")).await.expect(200);
    sql.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'atelier'",
    )
    .await;
    eventually("it recovers", async || {
        let fine = ann.put(&project, json!({"name": "again"})).await.status == 200;
        (fine && space(&ann, &project).await["health"]["status"] == "healthy").then_some(())
    })
    .await;
}

/// WS-14.1: the machine owns the files, the server owns its resources, agents reach files only
/// through tools, and the gate mediates between them.
#[rstest]
#[tokio::test]
async fn server_machine_and_agent_keep_to_their_parts(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("notes.txt", "mine");
    let server = start(backend).await;
    let ann = server.user("ann");
    // A project that names the folder gives the server no access to it.
    let name = "shop".to_owned();
    let body = json!({"name": name, "settings": {"metadata": {"root": machine.root()}}});
    let id = ann.post("/my/projects", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let project = format!("/my/projects/{id}");
    let setup = ProjectSetup { user: ann.clone(), project: project.clone(), name };

    // The server cannot run a tool call itself: it waits for the machine.
    let read = setup.execute("read_file", json!({"path": "notes.txt"})).await;
    assert_eq!(json!([read["status"], read["client_id"]]), json!(["approved", null]));
    let mut client = machine.connect(&setup, &server.url).await;
    assert_eq!(setup.until(&read, "completed").await["result"]["content"], "mine");

    // An agent asks for a change, but cannot approve it.
    let agent = server.program("ann", "agent", &project);
    let params = json!({"path": "notes.txt", "content": "changed"});
    let call = json!({"tool_name": "write_file", "tool_params": params});
    let call = agent.post(&format!("{project}/tools/execute"), call).await.expect(200);
    let asked = setup.until(&call, "pending_approval").await;
    let approve = format!("{project}/approvals/{}/approve", asked["approval_id"].as_str().unwrap());
    assert_eq!(agent.post(&approve, json!({})).await.status, 403);
    assert_eq!(machine.read("notes.txt"), "mine");
    setup.decide(&asked, "approve", json!({})).await;
    setup.until(&call, "completed").await;
    assert_eq!(machine.read("notes.txt"), "changed");

    // The machine's token manages no server resources, and they outlive the machine.
    let token = server.program("ann", "client", &project);
    let agents = format!("{project}/agents");
    assert_eq!(token.post(&agents, json!({"name": "mole"})).await.status, 403);
    client.interrupt().await;
    assert_eq!(ann.get(&agents).await.expect(200)["total"], 4);

    // The files outlive everything that happens to the server's resources.
    let files = machine.files();
    ann.post(&format!("{project}/worker-space/reset"), Value::Null).await.expect(200);
    assert_eq!(ann.delete(&format!("{project}/worker-space")).await.status, 204);
    assert_eq!(ann.delete(&project).await.status, 204);
    let server = server.restart().await;
    assert_eq!(machine.files(), files);
    drop(server);
    assert_eq!(machine.files(), files);
}
