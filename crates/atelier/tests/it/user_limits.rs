//! One user can neither fill nor starve the server: what is stored, open, followed and asked for
//! has limits per user.

use crate::{BINARY, build, start};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    Events, Server, User, answer, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use uuid::Uuid;

const MB: usize = 1_000_000;

#[track_caller]
fn refused(answer: &Answer, code: &str, retry_after: &str) {
    assert_eq!(answer.problem(), (429, code), "{}", answer.body);
    assert_eq!(answer.headers["retry-after"], retry_after);
}

async fn execute(user: &User, project: &str, tool: &str, params: Value) -> Answer {
    let body = json!({"tool_name": tool, "tool_params": params});
    user.post(&format!("{project}/tools/execute"), body).await
}

async fn stored(server: &Server) -> i64 {
    let query = "SELECT CAST(COALESCE(SUM(octet_length(record)), 0) AS BIGINT) FROM tool_calls";
    server.sql().await.count(query).await
}

/// The parameters of a call that did not run are stored only as far as it can be recognised by
/// them.
#[rstest]
#[tokio::test]
async fn large_calls_that_did_not_run_are_shortened_at_once(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend).with("GATE__APPROVAL_HIGH", "1s").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let agent = server.program("ann", "agent", &project);
    let client = Uuid::now_v7();
    let machine = json!({"client_id": client, "root": "/home/ann", "os": "linux", "isolation": {}});
    let write = |path: &str| json!({"path": path, "content": "x".repeat(200_000)});
    let path = |call: &Value| format!("{project}/tools/{}", call["tool_id"].as_str().unwrap());
    let show = async |call: &Value| ann.get(&path(call)).await.expect(200);
    // A person is asked about it, with a preview.
    let asked = async |name: &str| {
        // Its lease may have ended in the meantime.
        ann.post(&format!("{project}/clients"), machine.clone()).await.expect(200);
        let call = execute(&agent, &project, "write_file", write(name)).await.expect(200);
        let preview =
            json!({"client_id": client, "base_checksum": null, "diff": "+".repeat(200_000)});
        ann.post(&format!("{}/preview", path(&call)), preview).await.expect(200)
    };

    let denied = execute(&agent, &project, "write_file", write("../up.txt")).await.expect(200);
    assert_eq!(denied["status"], "denied");
    let expired = asked(".env").await;
    eventually("the call expires", async || {
        (show(&expired).await["status"] == "expired").then_some(())
    })
    .await;
    let cancelled = asked("b.txt").await;
    ann.post(&format!("{}/cancel", path(&cancelled)), json!(null)).await.expect(200);
    let rejected = asked("c.txt").await;
    // While a person decides, all of it is there.
    assert_eq!(show(&rejected).await["tool_params"], write("c.txt"));
    let approval =
        format!("{project}/approvals/{}/reject", rejected["approval_id"].as_str().unwrap());
    ann.post(&approval, json!({})).await.expect(200);

    for (call, name) in
        [(&denied, "../up.txt"), (&expired, ".env"), (&cancelled, "b.txt"), (&rejected, "c.txt")]
    {
        let call = show(call).await;
        let shortened = &call["tool_params"]["$shortened"];
        assert_eq!(call["tool_params"]["path"], name, "{call}");
        assert_eq!(shortened["bytes"], write(name).to_string().len(), "{call}");
        assert_eq!(shortened["sha256"].as_str().unwrap().len(), 64);
        assert_eq!(shortened["beginning"].as_str().unwrap().len(), 1024);
        assert!(call.to_string().len() < 6000, "{call}");
    }
    let stored = stored(&server).await;
    assert!(stored < 24_000, "{stored} bytes are stored of four calls");
}

#[rstest]
#[tokio::test]
async fn open_calls_have_a_limit(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend)
        .with("GATE__MAX_OPEN_CALLS", 6)
        .with("GATE__MAX_OPEN_CALLS_OF_TOKEN", 4)
        .start()
        .await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let (shop, blog) = (ann.project("shop").await, ann.project("blog").await);
    let agent = server.program("ann", "agent", &shop);
    let ask = async |who: &User, project: &str| {
        execute(who, project, "create_directory", json!({"path": "d"})).await
    };
    for _ in 0..4 {
        assert_eq!(ask(&agent, &shop).await.expect(200)["status"], "pending_approval");
    }
    // The token may not have more. Its owner may, in all projects together.
    refused(&ask(&agent, &shop).await, "too_many_open_calls", "10");
    ask(&ann, &shop).await.expect(200);
    let last = ask(&ann, &blog).await.expect(200);
    for project in [&shop, &blog] {
        refused(&ask(&ann, project).await, "too_many_open_calls", "10");
    }
    let limits = ann.get("/auth/limits").await.expect(200);
    assert_eq!(limits["open_calls"], json!({"limit": 6, "used": 6}));
    assert_eq!(limits["open_calls_of_agent_token"], 4);
    // Others do not notice, and a decision makes room.
    let theirs = bob.project("shop").await;
    ask(&bob, &theirs).await.expect(200);
    let reject = format!("{blog}/approvals/{}/reject", last["approval_id"].as_str().unwrap());
    ann.post(&reject, json!({})).await.expect(200);
    ask(&ann, &blog).await.expect(200);
    refused(&ask(&ann, &blog).await, "too_many_open_calls", "10");
}

#[rstest]
#[tokio::test]
async fn stored_calls_have_a_limit(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("GATE__MAX_STORED_BYTES", 5 * MB).start().await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let (shop, theirs) = (ann.project("shop").await, bob.project("shop").await);
    let agent = server.program("ann", "agent", &shop);
    let write = json!({"path": "a.txt", "content": "x".repeat(2 * MB)});
    for _ in 0..2 {
        execute(&agent, &shop, "write_file", write.clone()).await.expect(200);
    }
    refused(
        &execute(&agent, &shop, "write_file", write.clone()).await,
        "call_storage_full",
        "3600",
    );
    refused(&execute(&ann, &shop, "write_file", write.clone()).await, "call_storage_full", "3600");
    let used = &ann.get("/auth/limits").await.expect(200)["stored_call_bytes"];
    assert_eq!(used["limit"], 5 * MB);
    assert!(used["used"].as_u64().unwrap() > 4 * MB as u64, "{used}");
    execute(&bob, &theirs, "write_file", write).await.expect(200);
}

async fn follow(user: &User, path: &str) -> Result<Events, Answer> {
    let response = user.request(Method::GET, path).send().await.unwrap();
    if response.status() == 200 {
        let mut events = Events::new(response);
        assert_eq!(events.comment().await, "hello");
        return Ok(events);
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let body = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    Err(Answer { status, headers, body })
}

#[rstest]
#[tokio::test]
async fn streams_have_a_limit(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("SERVER__USER_STREAMS", 3).start().await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let project = ann.project("shop").await;
    let paths = ["/my/events".to_owned(), format!("{project}/events")];
    let mut open = Vec::new();
    for path in [&paths[0], &paths[1], &paths[0]] {
        open.push(follow(&ann, path).await.unwrap());
    }
    // A token of a program is the same user.
    for who in [&ann, &server.program("ann", "agent", &project)] {
        refused(&follow(who, &paths[1]).await.err().unwrap(), "too_many_streams", "10");
    }
    assert_eq!(
        ann.get("/auth/limits").await.expect(200)["streams"],
        json!({"limit": 3, "used": 3})
    );
    follow(&bob, "/my/events").await.unwrap();
    open.pop();
    eventually("a closed stream makes room", async || follow(&ann, &paths[0]).await.ok()).await;
}

/// A process that may open few files: one user follows as much as they can, and the others go on.
#[tokio::test]
async fn streams_of_one_user_leave_files_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("atelier");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -n 160\nexec {BINARY} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::build(&script, Sqlite).start().await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    ann.project("shop").await;
    let mut open = Vec::new();
    let full = loop {
        match follow(&ann, "/my/events").await {
            Ok(events) => open.push(events),
            Err(answer) => break answer,
        }
    };
    refused(&full, "too_many_streams", "10");
    assert_eq!(open.len(), 48);
    let project = bob.project("blog").await;
    let mut events = follow(&bob, "/my/events").await.unwrap();
    bob.put(&project, json!({"name": "diary"})).await.expect(200);
    events.until("PROJECT_UPDATED").await;
}

#[tokio::test]
async fn requests_have_a_limit() {
    let server = build(Sqlite).with("SERVER__USER_REQUESTS", 2).start().await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let project = ann.project("shop").await;
    let wait = |user: &User| {
        let body = json!({"tool_name": "create_directory", "tool_params": {"path": "d"}});
        let request = user.request(Method::POST, &format!("{project}/tools/execute"));
        let request = request.header("prefer", "wait=20").json(&body);
        tokio::spawn(async move {
            // The test's own look at it may be in the way.
            while answer(request.try_clone().unwrap()).await.status == 429 {}
        })
    };
    let waiting = [wait(&ann), wait(&ann)];
    eventually("both requests run", async || {
        let answer = ann.get("/auth/me").await;
        (answer.status == 429).then(|| refused(&answer, "too_many_requests", "1"))
    })
    .await;
    bob.get("/auth/me").await.expect(200);
    for request in waiting {
        request.abort();
    }
    eventually("there is room again", async || {
        (ann.get("/auth/me").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_have_a_rate() {
    let server = build(Sqlite).with("SERVER__USER_REQUESTS_PER_SECOND", 1).start().await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    // Faster than one a second, whatever the machine does.
    let limited = eventually("a request comes too early", async || {
        let (first, second) = tokio::join!(ann.get("/auth/me"), ann.get("/auth/me"));
        [first, second].into_iter().find(|answer| answer.status == 429)
    })
    .await;
    refused(&limited, "too_many_requests", "1");
    bob.get("/auth/me").await.expect(200);
    let server = start(Sqlite).await;
    let limits = server.user("ann").get("/auth/limits").await.expect(200);
    assert_eq!(limits["requests"], json!({"limit": 1000, "used": 1}));
    assert_eq!(limits["requests_per_second"], 64_000);
}
