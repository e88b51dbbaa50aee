//! Projects and their agents.

use crate::start;
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::{Value, json};

/// WS-02.1
#[rstest]
#[tokio::test]
async fn a_new_project_has_the_four_starter_agents(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let list = ann.get(&format!("{project}/agents/")).await.expect(200);
    let summary: Vec<Value> = list["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| {
            let config = &a["config"];
            json!([
                a["name"],
                config["metadata"]["role"],
                config["model"],
                config["temperature"],
                config["max_tokens"]
            ])
        })
        .collect();
    assert_eq!(
        summary,
        [
            json!(["agent_coder", "developer", "gpt-4", 0.3, 4096]),
            json!(["agent_analyzer", "analyst", "gpt-4", 0.5, 2048]),
            json!(["agent_writer", "writer", "gpt-4", 0.7, 2048]),
            json!(["agent_researcher", "researcher", "gpt-4", 0.6, 3096]),
        ]
    );
    assert_eq!(list["total"], 4);
}

/// WS-02.3
#[rstest]
#[tokio::test]
async fn an_agent_of_ones_own_joins_the_existing_space(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let space = ann.get(&format!("{project}/worker-space")).await.expect(200);

    let new =
        json!({"name": "reviewer", "config": {"temperature": 0, "metadata": {"role": "critic"}}});
    let agent = ann.post(&format!("{project}/agents/"), new).await.expect(201);
    assert_eq!(
        agent["config"],
        json!({
            "system_prompt": "You are a helpful assistant.",
            "model": "gpt-4",
            "temperature": 0.0,
            "max_tokens": 2048,
            "tools": [],
            "concurrency_limit": 3,
            "max_vectors": 1_000_000,
            "limits": {"max_steps": null, "max_tokens": null, "max_cost": null, "max_seconds": null},
            "metadata": {"role": "critic"},
        })
    );
    assert_eq!(ann.get(&format!("{project}/agents/reviewer")).await.expect(200), agent);
    let after = ann.get(&format!("{project}/worker-space")).await.expect(200);
    assert_eq!(after["created_at"], space["created_at"], "the same worker space");
}

#[rstest]
#[tokio::test]
async fn a_project_lives_from_create_to_delete(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let body = json!({"name": "shop", "workspace": "conversation", "settings": {"metadata": [1, "\u{0}"]}});
    let made = ann.post("/my/projects/", body).await.expect(201);
    let path = format!("/my/projects/{}", made["id"].as_str().unwrap());
    assert_eq!(made["settings"], json!({"metadata": [1, "\u{0}"]}));
    assert_eq!(ann.get(&path).await.expect(200), made);

    let renamed = ann.put(&format!("{path}/"), json!({"name": "магазин"})).await.expect(200);
    assert_eq!(
        (&renamed["name"], &renamed["workspace"]),
        (&json!("магазин"), &json!("conversation"))
    );
    assert_eq!(renamed["settings"], made["settings"], "what was not named stays");
    assert_eq!(ann.get(&path).await.expect(200), renamed);

    assert_eq!(ann.delete(&path).await.status, 204);
    assert_eq!(ann.get(&path).await.problem(), (404, "not_found"));
    assert_eq!(ann.delete(&path).await.problem(), (404, "not_found"));
    assert_eq!(ann.get("/my/projects").await.expect(200), json!({"projects": [], "total": 0}));
    // The name of the deleted project is free again.
    ann.post("/my/projects/", json!({"name": "магазин"})).await.expect(201);
}

#[rstest]
#[tokio::test]
async fn names_are_unique_for_their_owner_only(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let project = ann.project("shop").await;
    assert_eq!(
        ann.post("/my/projects", json!({"name": "shop"})).await.problem(),
        (409, "name_taken")
    );
    bob.project("shop").await;

    let agents = format!("{project}/agents");
    assert_eq!(
        ann.post(&agents, json!({"name": "agent_coder"})).await.problem(),
        (409, "name_taken")
    );
    let other = ann.project("other").await;
    assert_eq!(ann.put(&other, json!({"name": "shop"})).await.problem(), (409, "name_taken"));
    // A refused write leaves nothing behind and does not undo other writes.
    assert_eq!(ann.get(&agents).await.expect(200)["total"], 4);
}

/// Many requests at once share commits. The refused ones must not affect the others.
#[rstest]
#[tokio::test]
async fn one_of_many_equal_names_wins(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let asks = (0..40).map(|n| {
        let ann = ann.clone();
        async move {
            ann.post("/my/projects", json!({"name": format!("p{}", n % 10)})).await.status.as_u16()
        }
    });
    let mut statuses = futures::future::join_all(asks).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![201; 10], vec![409; 30]].concat());
    assert_eq!(ann.get("/my/projects").await.expect(200)["total"], 10);
}

#[rstest]
#[tokio::test]
async fn lists_come_in_pages(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    for n in 0..5 {
        ann.project(&format!("p{n}")).await;
    }
    let page = ann.get("/my/projects/?limit=2&offset=1").await.expect(200);
    let names: Vec<_> =
        page["projects"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!((json!(names), &page["total"]), (json!(["p1", "p2"]), &json!(5)));
    for bad in ["limit=0", "limit=1001", "limit=-1", "limit=x", "offset=-1", "page=2"] {
        assert_eq!(
            ann.get(&format!("/my/projects?{bad}")).await.problem(),
            (422, "invalid_request"),
            "{bad}"
        );
    }
}

#[rstest]
#[tokio::test]
async fn an_agent_is_found_by_id_name_and_short_name(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let coder = ann.get(&format!("{project}/agents/agent_coder")).await.expect(200);
    let id = coder["id"].as_str().unwrap();
    assert_eq!(ann.get(&format!("{project}/agents/{id}")).await.expect(200), coder);
    assert_eq!(ann.get(&format!("{project}/agents/coder")).await.expect(200), coder);

    // An agent with exactly this name takes precedence.
    let own = ann.post(&format!("{project}/agents"), json!({"name": "coder"})).await.expect(201);
    assert_eq!(ann.get(&format!("{project}/agents/coder")).await.expect(200), own);
    assert_eq!(ann.get(&format!("{project}/agents/nobody")).await.problem(), (404, "not_found"));
    assert_eq!(ann.get(&format!("{project}/agents/%00")).await.problem(), (404, "not_found"));
}

/// A refused change leaves the agent unchanged.
#[rstest]
#[tokio::test]
async fn settings_out_of_range_are_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let agent = format!("{}/agents/coder", ann.project("shop").await);
    let before = ann.get(&agent).await.expect(200);
    for bad in [
        json!({"temperature": 2.5}),
        json!({"temperature": "warm"}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": 128_001}),
        json!({"concurrency_limit": 11}),
        json!({"max_vectors": 0}),
        json!({"tools": ["a b"]}),
        json!({"colour": "red"}),
    ] {
        let answer = ann.put(&agent, json!({"config": bad})).await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{bad}");
    }
    assert_eq!(
        ann.put(&agent, json!({"name": "x".repeat(101)})).await.problem(),
        (422, "invalid_request")
    );
    assert_eq!(ann.get(&agent).await.expect(200), before);

    let changed = ann.put(&agent, json!({"config": {"temperature": 0.9}})).await.expect(200);
    assert_eq!(changed["config"]["temperature"], 0.9);
    assert_eq!(changed["config"]["max_tokens"], 4096, "what was not named stays");
}
