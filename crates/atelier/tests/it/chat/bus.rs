//! The agent bus: queues, limits, cancellation, and what ends with an agent or a session.

use super::{Chat, with_model};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, eventually,
};
use futures::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;

async fn queue(chat: &Chat, agent: &str) -> Value {
    let bus = chat.get("bus").await;
    bus["queues"]
        .as_array()
        .unwrap()
        .iter()
        .find(|queue| queue["agent_name"] == agent)
        .unwrap()
        .clone()
}

/// Sets how many tasks the coder may run at once. Returns the coder's path.
async fn limit_coder(chat: &Chat, limit: u32) -> String {
    let path = format!("{}/agents/coder", chat.setup.project);
    chat.setup.user.put(&path, json!({"config": {"concurrency_limit": limit}})).await.expect(200);
    path
}

/// WS-05.1 WS-05.2 WS-05.3: no more tasks of an agent run than its limit, the others wait in order,
/// and one too many is refused; deleting the agent ends all of them.
#[rstest]
#[tokio::test]
async fn queue_keeps_its_limits_and_ends_with_its_agent(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let server = crate::build(backend).model(&model).with("WORK__MAX_QUEUE", 4).start().await;
    let chat = Chat::new(&server, "ann").await;
    let path = limit_coder(&chat, 2).await;
    let mut accepted = Vec::new();
    for n in 0..6 {
        accepted.push(chat.send(&format!("job {n}"), Some("coder")).await);
        if n == 1 {
            model.answering(2).await;
        }
    }
    let refused = chat.post_message("one too many", Some("coder")).await;
    assert_eq!(refused.problem(), (429, "queue_full"));
    assert!(refused.headers.contains_key("retry-after"));
    let state = queue(&chat, "agent_coder").await;
    assert_eq!(json!([state["queue_size"], state["active"], state["limit"]]), json!([4, 2, 2]));
    assert!(state["oldest_wait_seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(chat.post_message("somebody else is free", Some("writer")).await.status, 202);

    // Tasks start in the order in which they arrived, and a free slot is used by the next task.
    chat.setup
        .post(&format!("tasks/{}/cancel", accepted[0]["task_id"].as_str().unwrap()), json!(null))
        .await
        .expect(200);
    model.left(1).await;
    chat.task_until(&accepted[2], "running").await;
    // The task's model was asked, in addition to those of the other coder and the writer. Otherwise
    // no request could be cancelled below.
    model.answering(3).await;
    assert_eq!(chat.task(&accepted[3]).await["status"], "queued");
    let asked: Vec<String> =
        model.seen().iter().map(|asked| asked.last("user").to_owned()).collect();
    assert!(!asked.contains(&"job 3".to_owned()), "{asked:?}");

    chat.setup.user.delete(&path).await.expect(204);
    for one in &accepted[1..] {
        assert_eq!(chat.task(one).await["error"]["code"], "agent_deleted");
    }
    model.left(3).await;
    let answers = chat.messages().await;
    let reported = answers
        .iter()
        .filter(|message| message["content"].as_str().unwrap().contains("was deleted"));
    assert_eq!(reported.count(), 5, "every waiter is answered");
    let resume = format!("tasks/{}/resume", accepted[1]["task_id"].as_str().unwrap());
    assert_eq!(chat.setup.post(&resume, json!(null)).await.problem(), (409, "agent_deleted"));
}

/// Cancelling a task stops its model call, which would go on for a minute.
#[rstest]
#[tokio::test]
async fn cancelling_a_task_stops_its_model_call(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::text("a b c d e").stall_after(3)).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("talk", Some("coder")).await;
    model.answering(1).await;
    let path = format!("tasks/{}/cancel", accepted["task_id"].as_str().unwrap());
    assert_eq!(chat.setup.post(&path, json!(null)).await.expect(200)["status"], "cancelled");
    model.left(1).await;
    assert_eq!(chat.task(&accepted).await["error"]["code"], "cancelled");
}

/// Budgets count this usage when the task is resumed.
#[rstest]
#[tokio::test]
async fn usage_of_a_cancelled_model_call_is_counted(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::text("a b c d e").stall_after(3)).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let path = format!("{}/agents/coder", chat.setup.project);
    chat.setup.user.put(&path, json!({"config": {"limits": {"max_tokens": 1}}})).await.expect(200);
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;
    let accepted = chat.send("talk", Some("coder")).await;
    while events.next().await.name != "MESSAGE_DELTA" {}
    let task = format!("tasks/{}", accepted["task_id"].as_str().unwrap());
    chat.setup.post(&format!("{task}/cancel"), json!(null)).await.expect(200);
    let cancelled = eventually("it is counted", async || {
        let task = chat.task(&accepted).await;
        (task["usage"]["output_tokens"].as_u64() > Some(0)).then_some(task)
    })
    .await;
    assert_eq!(cancelled["status"], "cancelled");
    assert!(cancelled["ran_ms"].as_u64() > Some(0), "{cancelled}");
    chat.setup.post(&format!("{task}/resume"), json!(null)).await.expect(200);
    let failed = chat.task_until(&accepted, "failed").await;
    assert_eq!(failed["error"]["code"], "limit_reached");
    assert_eq!(model.seen().len(), 1, "no model was asked any more");

    let session = format!("{}/chat/sessions/{}", chat.setup.project, chat.session);
    let archived =
        chat.setup.user.request(Method::PATCH, &session).json(&json!({"status": "archived"}));
    assert_eq!(archived.send().await.unwrap().status(), 200);
    let resumed = chat.setup.post(&format!("{task}/resume"), json!(null)).await;
    assert_eq!(resumed.problem(), (409, "conversation_archived"), "nothing more happens there");
}

/// WS-08.1 WS-08.2: ending a session gives running tasks time to finish and fails waiting ones; a
/// reset ends everything immediately.
#[rstest]
#[tokio::test]
async fn ending_a_session_has_a_grace_time_and_a_reset_has_none(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let slow = |asked: &Asked| match asked.last("user") {
        "stay" => Reply::silence(),
        _ => Reply::call("execute_command", json!({"command": "make", "args": ["all"]})),
    };
    let model = ScriptedModel::start(slow).await;
    let server =
        crate::build(backend).model(&model).with("WORKER_SPACE__GRACE", "1s").start().await;
    let mut chat = Chat::new(&server, "ann").await;
    let space = format!("{}/worker-space", chat.setup.project);

    let running = chat.send("stay", Some("coder")).await;
    let parked = chat.send("make it", Some("writer")).await;
    model.answering(1).await;
    chat.pending(1).await;
    chat.setup.user.delete(&space).await.expect(204);
    for ended in [&running, &parked] {
        let task = chat.task(ended).await;
        assert_eq!(
            json!([task["status"], task["error"]["code"]]),
            json!(["failed", "session_ended"])
        );
    }
    chat.pending(0).await;
    model.left(1).await;

    // A reset does not wait for the grace time, which is now longer than any test.
    let server = server.restart_with("ATELIER_WORKER_SPACE__GRACE", Some("1h")).await;
    chat.setup.user = chat.setup.user.at(&server);
    let running = chat.send("stay", Some("coder")).await;
    model.answering(1).await;
    chat.setup.user.post(&format!("{space}/reset"), json!(null)).await.expect(200);
    assert_eq!(chat.task(&running).await["error"]["code"], "worker_space_reset");
    model.left(2).await;
    // The worker space accepts messages again immediately.
    chat.send("make it", Some("writer")).await;
    chat.pending(1).await;
}

/// The limit of an agent holds across servers, and one server can cancel a task that another runs.
#[tokio::test]
async fn two_servers_share_a_queue() {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let one = with_model(Postgres, &model).await;
    let two = one.second_node().await;
    let chat = Chat::new(&one, "ann").await;
    let there = chat.setup.user.at(&two);
    let mut accepted = Vec::new();
    for n in 0..8 {
        let user = if n % 2 == 0 { &chat.setup.user } else { &there };
        let path = format!("{}/chat/{}/message", chat.setup.project, chat.session);
        let body = json!({"content": format!("job {n}"), "target_agent": "coder"});
        accepted.push(user.post(&path, body).await.expect(202));
    }
    model.answering(3).await;
    let state = queue(&chat, "agent_coder").await;
    assert_eq!(json!([state["queue_size"], state["active"]]), json!([5, 3]));
    // Either server can cancel the task, whichever of them runs it.
    for (n, user) in [(0, &there), (1, &chat.setup.user)] {
        let path = format!(
            "{}/tasks/{}/cancel",
            chat.setup.project,
            accepted[n]["task_id"].as_str().unwrap()
        );
        user.post(&path, json!(null)).await.expect(200);
    }
    model.left(2).await;
    eventually("the next two run", async || {
        let state = queue(&chat, "agent_coder").await;
        (json!([state["queue_size"], state["active"]]) == json!([3, 3])).then_some(())
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn calls_of_a_deleted_agent_do_not_run(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| {
        Reply::call("write_file", json!({"path": "p", "content": "x"}))
    })
    .await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("write it", Some("coder")).await;
    chat.task_until(&accepted, "parked").await;
    let call = chat.task(&accepted).await["calls"][0].clone();
    chat.setup.user.delete(&format!("{}/agents/coder", chat.setup.project)).await.expect(204);
    assert_eq!(chat.task(&accepted).await["error"]["code"], "agent_deleted");
    assert_eq!(chat.setup.show(&call).await["status"], "cancelled");
}

/// WS-08.2: neither a queued task nor the answer of a plan starts while a reset ends the others.
#[rstest]
#[tokio::test]
async fn reset_starts_no_new_work(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if asked.body["response_format"].is_object() => Reply::text(
            json!({"tasks": [
                {"id": "1", "description": "quick", "agent": "agent_writer", "depends_on": []},
                {"id": "2", "description": "slow", "agent": "agent_writer", "depends_on": ["1"]},
            ]})
            .to_string(),
        ),
        "quick" => Reply::text("done"),
        _ => Reply::silence(),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    limit_coder(&chat, 1).await;
    let mut queued = Vec::new();
    for n in 0..20 {
        queued.push(chat.send(&format!("job {n}"), Some("coder")).await);
    }
    let planned = chat.send("quick, then slow", None).await;
    eventually("the second task of the plan is asked for", async || {
        model.seen().iter().any(|asked| asked.last("user") == "slow").then_some(())
    })
    .await;
    model.answering(2).await;
    let asked = model.seen().len();
    chat.setup
        .user
        .post(&format!("{}/worker-space/reset", chat.setup.project), json!(null))
        .await
        .expect(200);
    for (n, one) in queued.iter().enumerate() {
        let task = chat.task(one).await;
        assert_eq!(task["error"]["code"], "worker_space_reset");
        assert_eq!(task["started_at"].is_null(), n > 0, "{task}");
    }
    let plan = chat.get(&format!("plans/{}", planned["plan_id"].as_str().unwrap())).await;
    assert_eq!(
        json!([plan["status"], plan["error"]["code"]]),
        json!(["failed", "worker_space_reset"])
    );
    assert!(
        !plan["tasks"].as_array().unwrap().iter().any(|task| task["kind"] == "answer"),
        "{plan}"
    );
    model.left(2).await;
    assert_eq!(model.seen().len(), asked, "no model was asked any more");
}

#[rstest]
#[tokio::test]
async fn task_with_higher_priority_runs_first(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    limit_coder(&chat, 1).await;
    let say = async |content: &str, priority: i32| {
        let body = json!({"content": content, "target_agent": "coder", "priority": priority});
        chat.setup.post(&format!("chat/{}/message", chat.session), body).await
    };
    let first = say("first", 0).await.expect(202);
    model.answering(1).await;
    let second = say("second", 0).await.expect(202);
    let urgent = say("urgent", 10).await.expect(202);
    assert_eq!(say("too urgent", 101).await.problem(), (422, "invalid_request"));
    let cancel = format!("tasks/{}/cancel", first["task_id"].as_str().unwrap());
    chat.setup.post(&cancel, json!(null)).await.expect(200);
    chat.task_until(&urgent, "running").await;
    assert_eq!(chat.task(&second).await["status"], "queued");
}

/// Messages that arrive together are written together, and no more of their tasks run than allowed.
#[rstest]
#[tokio::test]
async fn burst_of_messages_keeps_to_the_limit(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let server = crate::build(backend).model(&model).with("WORK__MAX_QUEUE", 20).start().await;
    let chat = Chat::new(&server, "ann").await;
    limit_coder(&chat, 3).await;
    let burst = (0..40).map(async |n| chat.post_message(&format!("job {n}"), Some("coder")).await);
    let (accepted, refused): (Vec<_>, Vec<_>) =
        join_all(burst).await.into_iter().partition(|answer| answer.status == 202);
    assert_eq!((accepted.len(), refused.len()), (23, 17));
    assert!(refused.iter().all(|answer| answer.problem() == (429, "queue_full")));
    model.answering(3).await;
    let state = queue(&chat, "agent_coder").await;
    assert_eq!(json!([state["queue_size"], state["active"]]), json!([20, 3]));

    // The running tasks end together, and the same number of waiting tasks starts.
    let tasks = chat.get("tasks?status=running").await["tasks"].as_array().unwrap().clone();
    let cancels = tasks.iter().map(async |task| {
        chat.setup
            .post(&format!("tasks/{}/cancel", task["id"].as_str().unwrap()), json!(null))
            .await
            .expect(200)
    });
    join_all(cancels).await;
    eventually("three others run", async || {
        let state = queue(&chat, "agent_coder").await;
        assert!(state["active"].as_u64().unwrap() <= 3, "{state}");
        (json!([state["queue_size"], state["active"]]) == json!([17, 3])).then_some(())
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn message_is_processed_even_if_its_sender_disconnects(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(|_: &Asked| Reply::text("done")).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    for n in 0..60 {
        let patience = Duration::from_micros(n * 150);
        drop(tokio::time::timeout(patience, chat.post_message("a job", Some("coder"))).await);
    }
    // The last message gets the last place in the queue.
    let last = chat.send("the last job", Some("coder")).await;
    chat.task_until(&last, "completed").await;
    eventually("everything is done", async || {
        let tasks = chat.get("tasks?limit=100").await["tasks"].as_array().unwrap().clone();
        assert!(tasks.iter().all(|task| task["status"] != "failed"), "{tasks:?}");
        tasks.iter().all(|task| task["status"] == "completed").then_some(())
    })
    .await;
}

/// WS-10.1: the figures count the tasks of agents, and the agents that are at work.
#[rstest]
#[tokio::test]
async fn figures_count_the_tasks_of_agents(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    limit_coder(&chat, 1).await;
    for agent in ["coder", "coder", "coder", "writer"] {
        chat.send("work", Some(agent)).await;
    }
    model.answering(2).await;
    eventually("the metrics have it", async || {
        let agents = server.metric("atelier_active_agents").await == 2.0;
        (agents && server.metric("atelier_queued_tasks").await == 2.0).then_some(())
    })
    .await;
    let report = chat.get("worker-space").await;
    assert_eq!(json!([report["queued_tasks"], report["active_agents"]]), json!([2, 2]));
}

/// WS-10.2: a model that takes its time does not hang, and an agent's task that makes no progress
/// beyond its own limit does.
#[rstest]
#[tokio::test]
async fn only_a_task_without_progress_hangs(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.results().len() {
        0 if asked.last("user").contains("wait") => Reply::silence(),
        0 => Reply::call("write_file", json!({"path": "a.txt", "content": "x"})),
        _ => Reply::text("done"),
    };
    let model = ScriptedModel::start(script).await;
    let builder = crate::build(backend).model(&model);
    let server = builder.with("WORKER_SPACE__HUNG_AFTER", "500ms").start().await;
    let chat = Chat::on_own_files(&server, "ann").await;
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;
    let patient = chat.send("wait for the model", Some("coder")).await;
    model.answering(1).await;
    // Somebody works in the conversation's folder, so the agent's write cannot begin.
    let runs = format!("/api/tenants/default/workspace/{}/runs", chat.session);
    let run = chat.setup.user.post(&runs, json!({})).await.expect(201);
    let stuck = chat.send("write it", Some("writer")).await;
    let task = |accepted: &Value| accepted["task_id"].as_str().unwrap().to_owned();
    loop {
        let alert = events.until("WORKER_SPACE_ALERT").await;
        assert_eq!(alert.data["alert"], "hung_task");
        // On a busy machine, other requests may hang as well.
        let detail = alert.data["detail"].as_str().unwrap().to_owned();
        assert!(!detail.contains(&task(&patient)), "the model may take its time: {detail}");
        if detail.contains(&task(&stuck)) {
            break;
        }
    }
    let end = format!("{runs}/{}/end", run["run_id"].as_str().unwrap());
    chat.setup.user.post(&end, json!(null)).await.expect(200);
    chat.task_until(&stuck, "completed").await;
}
