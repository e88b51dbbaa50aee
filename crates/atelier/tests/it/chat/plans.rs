//! The orchestrator: a message becomes tasks, tasks become an answer.

use super::{Chat, with_model};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

fn plan(tasks: Value) -> Reply {
    Reply::text(json!({"tasks": tasks}).to_string())
}

fn is_planner(asked: &Asked) -> bool {
    asked.body["response_format"].is_object()
}

fn is_answer(asked: &Asked) -> bool {
    asked.last("system").starts_with("You tell a person what came")
}

fn states(plan: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let tasks = plan["tasks"].as_array().unwrap().iter();
    tasks
        .filter(|task| task["kind"] == "work")
        .map(|task| (text(&task["key"]), text(&task["status"])))
        .collect()
}

/// WS-07.2 WS-07.3: tasks run side by side as their dependencies allow, each result is input to what builds on it,
/// and one answer is written; a message to one agent works in the same conversation.
#[rstest]
#[tokio::test]
async fn a_message_becomes_a_plan_and_an_answer(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "route", "description": "Add the route", "agent": "agent_coder", "depends_on": []},
            {"id": "docs", "description": "Describe the route", "agent": "agent_writer", "depends_on": []},
            {"id": "test", "description": "Test the route", "agent": "agent_coder", "depends_on": ["route", "docs"]},
        ])),
        "Add the route" => Reply::text("route added"),
        "Describe the route" => Reply::text("route described"),
        "Test the route" => Reply::text("route tested"),
        "just you" => Reply::text("only me"),
        _ if is_answer(asked) => Reply::text("All three are done."),
        other => Reply::text(format!("what? {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let answer = chat.ask("add a /health route and its test", None).await;
    assert_eq!(answer["content"], "All three are done.");
    let plan = chat.get(&format!("plans/{}", answer["plan_id"].as_str().unwrap())).await;
    assert_eq!(plan["status"], "completed");
    let done = |key: &str| (key.to_owned(), "completed".to_owned());
    let mut seen_states = states(&plan);
    seen_states.sort();
    assert_eq!(seen_states, [done("docs"), done("route"), done("test")]);
    let task = |key: &str| plan["tasks"].as_array().unwrap().iter().find(|task| task["key"] == key).unwrap();
    assert_eq!(task("test")["depends_on"], json!([task("route")["id"], task("docs")["id"]]));

    let seen = model.seen();
    let test = seen.iter().find(|asked| asked.last("user") == "Test the route").unwrap();
    let told = test.body["messages"].to_string();
    assert!(told.contains("route added") && told.contains("route described"), "{told}");
    assert!(told.contains("add a /health route and its test"), "{told}");
    let last = seen.iter().find(|asked| is_answer(asked)).unwrap().last("user");
    assert!(last.contains("route tested"), "{last}");

    assert_eq!(chat.ask("just you", Some("writer")).await["content"], "only me");
    assert_eq!(chat.ask("again please", None).await["content"], "All three are done.");
    let mut events = chat.desk.user.events(&format!("{}/events", chat.desk.project), Some("0")).await;
    let created = events.until("PLAN_CREATED").await;
    assert_eq!(created.data["tasks"].as_array().unwrap().len(), 3);
}

/// A plan that cannot be run is returned to the model once; then the agent that fits best gets the whole of it.
#[rstest]
#[tokio::test]
async fn a_plan_that_cannot_be_run_is_asked_for_again(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut refused = 0;
    let script = move |asked: &Asked| {
        if !is_planner(asked) {
            return Reply::text(format!("done: {}", asked.last("user")));
        }
        refused += 1;
        let task = |id: &str, on: &str| json!({"id": id, "description": "x", "agent": "agent_coder", "depends_on": [on]});
        match refused {
            1 => plan(json!([task("a", "b"), task("b", "a")])),
            2 => {
                plan(json!([{"id": "1", "description": "better", "agent": "agent_coder", "depends_on": []}]))
            }
            3 => Reply::text("I would rather not"),
            _ => plan(json!([{"id": "1", "description": "y", "agent": "agent_nobody", "depends_on": []}])),
        }
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    assert_eq!(chat.ask("go round in circles", None).await["content"], "done: better");
    assert!(model.seen()[1].last("user").contains("in a circle"));
    let answer = chat.ask("write the documentation", None).await;
    assert_eq!(answer["content"], "done: write the documentation");
    assert_eq!(answer["agent_name"], "agent_writer", "the one that fits best");
}

/// A failed task fails what depends on it and nothing else; it can be resumed, and the rest goes on from there.
#[rstest]
#[tokio::test]
async fn a_failed_task_fails_its_dependants_only(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut broken = true;
    let script = move |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "bad", "description": "Break", "agent": "agent_coder", "depends_on": []},
            {"id": "after", "description": "After", "agent": "agent_coder", "depends_on": ["bad"]},
            {"id": "good", "description": "Work", "agent": "agent_writer", "depends_on": []},
        ])),
        "Break" if std::mem::take(&mut broken) => Reply::status(400).saying("no"),
        _ if is_answer(asked) => Reply::text("Summed up."),
        other => Reply::text(format!("did {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let answer = chat.ask("do three things", None).await;
    assert_eq!(answer["content"], "Summed up.");
    let path = format!("plans/{}", answer["plan_id"].as_str().unwrap());
    let plan = chat.get(&path).await;
    let mut ended = states(&plan);
    ended.sort();
    let state = |key: &str, status: &str| (key.to_owned(), status.to_owned());
    assert_eq!(ended, [state("after", "failed"), state("bad", "failed"), state("good", "completed")]);
    let bad = plan["tasks"].as_array().unwrap().iter().find(|task| task["key"] == "bad").unwrap();
    chat.desk.post(&format!("tasks/{}/resume", bad["id"].as_str().unwrap()), json!(null)).await.expect(200);
    eventually("the plan is whole", async || {
        let plan = chat.get(&path).await;
        let whole = states(&plan).iter().all(|(_, status)| status == "completed");
        (whole && plan["status"] == "completed").then_some(())
    })
    .await;
}

/// Plans above the project's threshold wait for their owner, who may change them; a refused one never runs.
#[rstest]
#[tokio::test]
async fn a_large_plan_waits_for_approval(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "1", "description": "one", "agent": "agent_coder", "depends_on": []},
            {"id": "2", "description": "two", "agent": "agent_coder", "depends_on": ["1"]},
        ])),
        _ if is_answer(asked) => Reply::text("Summed up."),
        other => Reply::text(format!("did {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let settings = json!({"settings": {"planner": {"approve_above": 1}}});
    let put = chat.desk.user.request(Method::PUT, &chat.desk.project).json(&settings).send().await.unwrap();
    assert_eq!(put.status(), 200);
    let mut events = chat.desk.user.events(&format!("{}/events", chat.desk.project), None).await;

    let first = chat.said("do two things", None).await;
    let asked = events.until("PLAN_APPROVAL_REQUEST").await;
    assert_eq!(asked.data["plan"]["id"], first["plan_id"]);
    let path =
        |accepted: &Value, what: &str| format!("plans/{}/{what}", accepted["plan_id"].as_str().unwrap());
    assert_eq!(model.seen().len(), 1, "nothing runs before it is approved");
    let bad = json!({"tasks": [{"id": "1", "description": "x", "agent": "nobody", "depends_on": []}]});
    assert_eq!(chat.desk.post(&path(&first, "approve"), bad).await.problem(), (422, "invalid_request"));
    let edited =
        json!({"tasks": [{"id": "1", "description": "only this", "agent": "writer", "depends_on": []}]});
    chat.desk.post(&path(&first, "approve"), edited).await.expect(200);
    eventually("answered", async || {
        let messages = chat.messages().await;
        messages.iter().any(|message| message["content"] == "did only this").then_some(())
    })
    .await;
    assert_eq!(chat.desk.post(&path(&first, "approve"), json!({})).await.problem(), (409, "already_settled"));

    let second = chat.said("do two more", None).await;
    events.until("PLAN_APPROVAL_REQUEST").await;
    let waiting = chat.desk.user.get("/my/approvals").await.expect(200);
    assert_eq!(waiting["plans"].as_array().map(Vec::len), Some(1), "{waiting}");
    assert_eq!((&waiting["plans"][0]["id"], &waiting["total"]), (&second["plan_id"], &json!(0)));
    chat.desk.post(&path(&second, "reject"), json!({"reason": "too much"})).await.expect(200);
    let plan = chat.get(&format!("plans/{}", second["plan_id"].as_str().unwrap())).await;
    assert_eq!(plan["status"], "cancelled");
    assert!(states(&plan).iter().all(|(_, status)| status == "cancelled"), "{plan}");
    assert_eq!(chat.desk.user.get("/my/approvals").await.expect(200)["plans"], json!([]));

    // A refused plan does not come back piece by piece.
    let task = plan["tasks"][0]["id"].as_str().unwrap();
    let resumed = chat.desk.post(&format!("tasks/{task}/resume"), json!({})).await;
    assert_eq!(resumed.problem(), (409, "already_settled"));
    assert_eq!(chat.get(&format!("plans/{}", second["plan_id"].as_str().unwrap())).await, plan);
    assert!(!model.seen().iter().any(|asked| asked.last("user") == "one"));
}
