//! Requests that are sent again after their answer was lost, and tasks that go on by themselves.

use crate::{build, chat::Chat};
use atelier_testkit::{
    Answer, Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, User, answer, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

async fn keyed(user: &User, path: &str, key: &str, body: Value) -> Answer {
    let request = user.request(Method::POST, path).header("Idempotency-Key", key);
    answer(request.json(&body)).await
}

/// OP-04.1: a message with a key is stored once, however often it is sent, on whatever node, at the
/// same time, and after a restart. Another body under the same key is refused.
#[rstest]
#[tokio::test]
async fn message_with_a_key_is_sent_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut server = crate::start(backend).await;
    let mut chat = Chat::new(&server, "ann").await;
    let path = chat.message_path();
    let body = json!({"content": "hello", "target_agent": "coder"});
    let send = |chat: &Chat| {
        let (user, path, body) = (chat.setup.user.clone(), path.clone(), body.clone());
        async move { keyed(&user, &path, "k-1", body).await.expect(202) }
    };
    let same: Vec<Value> = futures::future::join_all((0..16).map(|_| send(&chat))).await;
    assert!(same.iter().all(|answer| *answer == same[0]), "{same:?}");
    // The order of the fields does not matter.
    let request = chat.setup.user.request(Method::POST, &path).header("Idempotency-Key", "k-1");
    let turned = r#"{"target_agent": "coder", "content": "hello"}"#;
    let turned = request.header("content-type", "application/json").body(turned);
    assert_eq!(answer(turned).await.expect(202), same[0]);

    let other = json!({"content": "another", "target_agent": "coder"});
    let refused = keyed(&chat.setup.user, &path, "k-1", other.clone()).await;
    assert_eq!(refused.problem(), (422, "idempotency_key_reused"));
    let second = keyed(&chat.setup.user, &path, "k-2", other).await.expect(202);
    assert_ne!(second, same[0]);

    server = server.restart().await;
    chat = chat.at(&server);
    assert_eq!(send(&chat).await, same[0]);
    if backend == Postgres {
        let node = server.second_node().await;
        assert_eq!(send(&chat.at(&node)).await, same[0]);
    }
    let sent = chat.messages().await;
    let sent = sent.iter().filter(|message| message["role"] == "user");
    assert_eq!(sent.map(|message| &message["content"]).collect::<Vec<_>>(), ["hello", "another"]);
    // The request that waits gets the agent's answer to the first message.
    let request = chat.setup.user.request(Method::POST, &path).header("Prefer", "wait=20");
    let waited = answer(request.header("Idempotency-Key", "k-1").json(&body)).await.expect(200);
    assert_eq!(waited["task_id"], same[0]["task_id"]);
}

/// OP-04.1: a request that was refused used no key, and keys are texts of a sensible length.
#[rstest]
#[tokio::test]
async fn refused_request_uses_no_key(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let (user, path) = (&chat.setup.user, chat.message_path());
    let unknown = json!({"content": "hello", "target_agent": "nobody"});
    assert_eq!(keyed(user, &path, "k", unknown).await.status, 404);
    let known = json!({"content": "hello", "target_agent": "coder"});
    keyed(user, &path, "k", known.clone()).await.expect(202);
    for key in ["", "two words", &"k".repeat(256)] {
        let refused = keyed(user, &path, key, known.clone()).await;
        assert_eq!(refused.problem(), (422, "invalid_request"), "{key}");
    }
}

/// OP-04.2: a tool call with a key is requested once. Callers do not share keys.
#[rstest]
#[tokio::test]
async fn call_with_a_key_is_requested_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let (user, path) = (&chat.setup.user, format!("{}/tools/execute", chat.setup.project));
    let body = json!({"tool_name": "read_file", "tool_params": {"path": "notes.txt"}});
    let same: Vec<Value> = futures::future::join_all(
        (0..16).map(|_| async { keyed(user, &path, "k", body.clone()).await.expect(200) }),
    )
    .await;
    assert!(same.iter().all(|call| call["tool_id"] == same[0]["tool_id"]), "{same:?}");
    let other = json!({"tool_name": "read_file", "tool_params": {"path": "other.txt"}});
    let refused = keyed(user, &path, "k", other.clone()).await;
    assert_eq!(refused.problem(), (422, "idempotency_key_reused"));
    // A key that a call has used is refused for a message as well.
    let message = json!({"content": "hello", "target_agent": "coder"});
    let refused = keyed(user, &chat.message_path(), "k", message).await;
    assert_eq!(refused.problem(), (422, "idempotency_key_reused"));

    let agents = [(); 2].map(|()| server.program("ann", "agent", &chat.setup.project));
    let mut calls = vec![same[0]["tool_id"].clone()];
    for agent in &agents {
        let call = keyed(agent, &path, "k", other.clone()).await.expect(200);
        assert_eq!(keyed(agent, &path, "k", other.clone()).await.expect(200), call);
        calls.push(call["tool_id"].clone());
    }
    let list = user.get(&format!("{}/tools", chat.setup.project)).await.expect(200);
    assert_eq!(list["total"], 3, "{list}");
    // Keys of a deleted project are deleted with it.
    assert_eq!(user.delete(&chat.setup.project).await.status, 204);
    assert_eq!(server.sql().await.count("SELECT COUNT(*) FROM request_keys").await, 0);
}

/// Does not answer the first `times` requests.
fn hangs(times: usize) -> impl FnMut(&Asked) -> Reply + Send + 'static {
    let mut left = times;
    move |_: &Asked| match left {
        0 => Reply::text("here I am"),
        _ => {
            left -= 1;
            Reply::silence()
        }
    }
}

/// OP-04.3: a task whose node was killed while it waited for its model goes on by itself.
#[rstest]
#[tokio::test]
async fn task_goes_on_after_its_node_was_killed(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(hangs(1)).await;
    let server = build(backend).model(&model).start().await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("hello", Some("coder")).await;
    model.answering(1).await;
    let server = server.restart().await;
    let chat = chat.at(&server);
    assert_eq!(chat.task_until(&accepted, "completed").await["result"], "here I am");
    let resumed = "atelier_interrupted_tasks_total{outcome=\"resumed\"}";
    assert_eq!(server.metric(resumed).await, 1.0);
}

/// OP-04.3: with the setting off, the task fails as interrupted and can be resumed.
#[rstest]
#[tokio::test]
async fn task_fails_if_it_may_not_go_on(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(hangs(1)).await;
    let builder = build(backend).model(&model).with("WORK__RESUME_INTERRUPTED", false);
    let server = builder.start().await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("hello", Some("coder")).await;
    model.answering(1).await;
    let server = server.restart().await;
    let chat = chat.at(&server);
    let failed = chat.task_until(&accepted, "failed").await;
    assert_eq!(failed["error"]["code"], "interrupted");
    let path = format!("tasks/{}/resume", accepted["task_id"].as_str().unwrap());
    chat.setup.post(&path, json!(null)).await.expect(200);
    eventually("it is done", async || {
        (chat.messages().await.last()?["content"] == "here I am").then_some(())
    })
    .await;
}

/// OP-04.3: a task that ends its node every time does not go on for ever.
#[tokio::test]
async fn task_goes_on_three_times_at_most() {
    let model = ScriptedModel::start(hangs(100)).await;
    let mut server = build(Sqlite).model(&model).start().await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("hello", Some("coder")).await;
    for round in 1..=4 {
        model.answering(1).await;
        server = server.restart().await;
        model.left(round).await;
        let chat = chat.at(&server);
        if round == 4 {
            let failed = chat.task_until(&accepted, "failed").await;
            assert_eq!(failed["error"]["code"], "interrupted");
        }
    }
}
