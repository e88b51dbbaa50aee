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
    asked.last("system").starts_with("You tell the user what came")
}

fn states(plan: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let tasks = plan["tasks"].as_array().unwrap().iter();
    tasks
        .filter(|task| task["kind"] == "work")
        .map(|task| (text(&task["key"]), text(&task["status"])))
        .collect()
}

/// WS-07.2 WS-07.3: tasks run in parallel as their dependencies allow, results are passed to
/// dependent tasks, and one answer is written; a direct message works in the same conversation.
#[rstest]
#[tokio::test]
async fn message_becomes_a_plan_and_an_answer(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "route", "description": "Add the \
                route", "agent": "agent_coder", "depends_on": []},
            {"id": "docs", "description": "Describe the \
                route", "agent": "agent_writer", "depends_on": []},
            {"id": "test", "description": "Test the \
                route", "agent": "agent_coder", "depends_on": ["route", "docs"]},
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
    let task = |key: &str| {
        plan["tasks"].as_array().unwrap().iter().find(|task| task["key"] == key).unwrap()
    };
    assert_eq!(task("test")["depends_on"], json!([task("route")["id"], task("docs")["id"]]));

    let seen = model.seen();
    let test = seen.iter().find(|asked| asked.last("user") == "Test the route").unwrap();
    let reported = test.body["messages"].to_string();
    assert!(reported.contains("route added") && reported.contains("route described"), "{reported}");
    assert!(reported.contains("add a /health route and its test"), "{reported}");
    let last = seen.iter().find(|asked| is_answer(asked)).unwrap().last("user");
    assert!(last.contains("route tested"), "{last}");

    assert_eq!(chat.ask("just you", Some("writer")).await["content"], "only me");
    assert_eq!(chat.ask("again please", None).await["content"], "All three are done.");
    let mut events =
        chat.setup.user.events(&format!("{}/events", chat.setup.project), Some("0")).await;
    let created = events.until("PLAN_CREATED").await;
    assert_eq!(created.data["tasks"].as_array().unwrap().len(), 3);
}

/// An invalid plan is returned to the model once; then the agent that fits best gets the whole
/// request.
#[rstest]
#[tokio::test]
async fn invalid_plan_is_requested_again(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut refused = 0;
    let script = move |asked: &Asked| {
        if !is_planner(asked) {
            return Reply::text(format!("done: {}", asked.last("user")));
        }
        refused += 1;
        let task = |id: &str, on: &str| json!({"id": id, "description": "x", "agent": "agent_coder", "depends_on": [on]});
        match refused {
            1 => plan(json!([task("a", "b"), task("b", "a")])),
            2 => plan(
                json!([{"id": "1", "description": "better", "agent": "agent_coder", "depends_on": []}]),
            ),
            3 => Reply::text("I would rather not"),
            _ => plan(
                json!([{"id": "1", "description": "y", "agent": "agent_nobody", "depends_on": []}]),
            ),
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

/// The failed task can be resumed, and its dependants then go on.
#[rstest]
#[tokio::test]
async fn failed_task_fails_only_its_dependants(#[values(Sqlite, Postgres)] backend: Backend) {
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
    assert_eq!(
        ended,
        [state("after", "failed"), state("bad", "failed"), state("good", "completed")]
    );
    let bad = plan["tasks"].as_array().unwrap().iter().find(|task| task["key"] == "bad").unwrap();
    chat.setup
        .post(&format!("tasks/{}/resume", bad["id"].as_str().unwrap()), json!(null))
        .await
        .expect(200);
    eventually("the plan is whole", async || {
        let plan = chat.get(&path).await;
        let whole = states(&plan).iter().all(|(_, status)| status == "completed");
        (whole && plan["status"] == "completed").then_some(())
    })
    .await;
}

/// The owner can change a plan that is above the project's threshold; a rejected plan never runs.
#[rstest]
#[tokio::test]
async fn large_plan_waits_for_approval(#[values(Sqlite, Postgres)] backend: Backend) {
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
    let put = chat
        .setup
        .user
        .request(Method::PUT, &chat.setup.project)
        .json(&settings)
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 200);
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;

    let first = chat.send("do two things", None).await;
    let asked = events.until("PLAN_APPROVAL_REQUEST").await;
    assert_eq!(asked.data["plan"]["id"], first["plan_id"]);
    let path = |accepted: &Value, what: &str| {
        format!("plans/{}/{what}", accepted["plan_id"].as_str().unwrap())
    };
    assert_eq!(model.seen().len(), 1, "nothing runs before it is approved");
    let bad =
        json!({"tasks": [{"id": "1", "description": "x", "agent": "nobody", "depends_on": []}]});
    assert_eq!(
        chat.setup.post(&path(&first, "approve"), bad).await.problem(),
        (422, "invalid_request")
    );
    let edited = json!({"tasks": [{"id": "1", "description": "only \
        this", "agent": "writer", "depends_on": []}]});
    chat.setup.post(&path(&first, "approve"), edited).await.expect(200);
    eventually("answered", async || {
        let messages = chat.messages().await;
        messages.iter().any(|message| message["content"] == "did only this").then_some(())
    })
    .await;
    assert_eq!(
        chat.setup.post(&path(&first, "approve"), json!({})).await.problem(),
        (409, "already_settled")
    );

    let second = chat.send("do two more", None).await;
    events.until("PLAN_APPROVAL_REQUEST").await;
    let waiting = chat.setup.user.get("/my/approvals").await.expect(200);
    assert_eq!(waiting["plans"].as_array().map(Vec::len), Some(1), "{waiting}");
    assert_eq!((&waiting["plans"][0]["id"], &waiting["total"]), (&second["plan_id"], &json!(0)));
    chat.setup.post(&path(&second, "reject"), json!({"reason": "too much"})).await.expect(200);
    let plan = chat.get(&format!("plans/{}", second["plan_id"].as_str().unwrap())).await;
    assert_eq!(plan["status"], "cancelled");
    assert!(states(&plan).iter().all(|(_, status)| status == "cancelled"), "{plan}");
    assert_eq!(chat.setup.user.get("/my/approvals").await.expect(200)["plans"], json!([]));

    // The tasks of a rejected plan cannot be resumed one by one.
    let task =
        plan["tasks"].as_array().unwrap().iter().find(|task| task["kind"] == "work").unwrap();
    let task = task["id"].as_str().unwrap();
    let resumed = chat.setup.post(&format!("tasks/{task}/resume"), json!({})).await;
    assert_eq!(resumed.problem(), (409, "plan_not_approved"));
    assert_eq!(chat.get(&format!("plans/{}", second["plan_id"].as_str().unwrap())).await, plan);
    assert!(!model.seen().iter().any(|asked| asked.last("user") == "one"));
}

fn task_of<'p>(plan: &'p Value, key: &str) -> &'p str {
    let tasks = plan["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["key"] == key).unwrap()["id"].as_str().unwrap()
}

/// This holds whatever happens to one of its tasks, and a task of a rejected plan cannot be
/// resumed.
#[rstest]
#[tokio::test]
async fn no_task_runs_before_its_plan_is_approved(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "1", "description": "one", "agent": "agent_coder", "depends_on": []},
            {"id": "2", "description": "two", "agent": "agent_writer", "depends_on": []},
            {"id": "3", "description": "three", "agent": "agent_analyzer", "depends_on": []},
            {"id": "4", "description": "four", "agent": "agent_analyzer", "depends_on": ["1"]},
        ])),
        _ if is_answer(asked) => Reply::text("Summed up."),
        other => Reply::text(format!("did {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    chat.set_settings(json!({"planner": {"approve_above": 1}})).await;
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;
    let waiting = async |events: &mut atelier_testkit::Events| {
        let accepted = chat.send("do it all", None).await;
        events.until("PLAN_APPROVAL_REQUEST").await;
        format!("plans/{}", accepted["plan_id"].as_str().unwrap())
    };

    let first = waiting(&mut events).await;
    let before = chat.get(&first).await;
    let cancel = format!("tasks/{}/cancel", task_of(&before, "1"));
    chat.setup.post(&cancel, json!(null)).await.expect(200);
    chat.setup.user.delete(&format!("{}/agents/writer", chat.setup.project)).await.expect(204);
    let now = chat.get(&first).await;
    assert_eq!(now["status"], "pending_approval");
    let mut ended = states(&now);
    ended.sort();
    let state = |key: &str, status: &str| (key.to_owned(), status.to_owned());
    let expected = [
        state("1", "cancelled"),
        state("2", "failed"),
        state("3", "waiting"),
        state("4", "failed"),
    ];
    assert_eq!(ended, expected);
    chat.setup.post(&format!("{first}/approve"), json!({})).await.expect(200);
    eventually("what is left of it is done", async || {
        (chat.get(&first).await["status"] == "completed").then_some(())
    })
    .await;
    let ran = |model: &ScriptedModel| -> Vec<String> {
        let seen = model.seen();
        let work = seen.iter().filter(|asked| !is_planner(asked) && !is_answer(asked));
        work.map(|asked| asked.last("user").to_owned()).collect()
    };
    assert_eq!(ran(&model), ["three"]);

    // After a reset the plan is still not approved.
    let writer = json!({"name": "agent_writer"});
    chat.setup.post("agents", writer).await.expect(201);
    let second = waiting(&mut events).await;
    let space = format!("{}/worker-space/reset", chat.setup.project);
    chat.setup.user.post(&space, json!(null)).await.expect(200);
    let ended = chat.get(&second).await;
    assert_eq!(ended["status"], "failed");
    let resume = format!("tasks/{}/resume", task_of(&ended, "1"));
    assert_eq!(chat.setup.post(&resume, json!(null)).await.problem(), (409, "plan_not_approved"));
    assert_eq!(ran(&model), ["three"]);
}

/// The answer gives the reason, also when all tasks are cancelled.
#[rstest]
#[tokio::test]
async fn waiting_request_is_answered_when_its_plan_is_cancelled(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let script = |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "1", "description": "one", "agent": "agent_coder", "depends_on": []},
            {"id": "2", "description": "two", "agent": "agent_coder", "depends_on": ["1"]},
        ])),
        _ => Reply::silence(),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let newest = async |status: &str| {
        eventually(status, async || {
            let list = chat.get("plans").await;
            let plan = list["plans"].as_array().unwrap().first()?.clone();
            (plan["status"] == status).then(|| format!("plans/{}", plan["id"].as_str().unwrap()))
        })
        .await
    };
    let (answer, ()) = tokio::join!(chat.ask("do two things", None), async {
        model.answering(1).await;
        let path = newest("running").await;
        chat.setup.post(&format!("{path}/cancel"), json!(null)).await.expect(200);
    });
    assert_eq!(answer["content"], "I stopped: the plan was cancelled.");

    chat.set_settings(json!({"planner": {"approve_above": 1}})).await;
    let (answer, ()) = tokio::join!(chat.ask("do two more", None), async {
        let path = newest("pending_approval").await;
        chat.setup.post(&format!("{path}/reject"), json!({"reason": "too much"})).await.expect(200);
    });
    assert_eq!(answer["content"], "I stopped: the plan was rejected: too much.");

    let path = format!("{}/chat/{}/message", chat.setup.project, chat.session);
    let request = chat.setup.user.request(Method::POST, &path).header("Prefer", "wait=30");
    let saying = request.json(&json!({"content": "stay", "target_agent": "writer"})).send();
    let (answer, ()) = tokio::join!(saying, async {
        model.answering(1).await;
        chat.setup.user.delete(&chat.setup.project).await.expect(204);
    });
    assert_eq!(answer.unwrap().status(), 404);
}

/// A dependency that failed has to be resumed first.
#[rstest]
#[tokio::test]
async fn resumed_task_waits_for_its_dependencies(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut stays = 2;
    let script = move |asked: &Asked| match asked.last("user") {
        _ if is_planner(asked) => plan(json!([
            {"id": "1", "description": "one", "agent": "agent_coder", "depends_on": []},
            {"id": "2", "description": "two", "agent": "agent_writer", "depends_on": ["1"]},
        ])),
        "one" if stays > 0 => {
            stays -= 1;
            Reply::silence()
        }
        _ if is_answer(asked) => Reply::text("Summed up."),
        other => Reply::text(format!("did {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let mut server = with_model(backend, &model).await;
    let mut chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("do two things", None).await;
    let path = format!("plans/{}", accepted["plan_id"].as_str().unwrap());
    model.answering(1).await;
    chat.setup.post(&format!("{path}/cancel"), json!(null)).await.expect(200);
    let ended = chat.get(&path).await;
    let resume = |key: &str| format!("tasks/{}/resume", task_of(&ended, key));
    assert_eq!(
        chat.setup.post(&resume("2"), json!(null)).await.problem(),
        (409, "dependency_unfinished")
    );

    assert_eq!(chat.setup.post(&resume("1"), json!(null)).await.expect(200)["status"], "queued");
    model.answering(1).await;
    assert_eq!(chat.setup.post(&resume("2"), json!(null)).await.expect(200)["status"], "waiting");
    // The next server continues the task.
    assert!(server.terminate().await.success());
    let server = server.restart_killed().await;
    chat.setup.user = chat.setup.user.at(&server);
    eventually("the plan is whole", async || {
        let plan = chat.get(&path).await;
        let whole = states(&plan).iter().all(|(_, status)| status == "completed");
        (whole && plan["status"] == "completed").then_some(())
    })
    .await;
    let done: Vec<String> =
        model.seen().iter().map(|asked| asked.last("user").to_owned()).collect();
    let place = |words: &str| done.iter().rposition(|said| said == words).unwrap();
    assert!(place("one") < place("two"), "{done:?}");
}

/// This includes tasks that run at the same time; planner and answer are limited, too.
#[rstest]
#[tokio::test]
async fn tasks_of_a_plan_share_one_budget(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.last("user") {
        "be quick" => Reply::silence(),
        _ if is_planner(asked) => {
            let task = |n: i32| {
                json!({"id": n.to_string(), "description": format!("job \
                {n}"), "agent": "agent_coder", "depends_on": []})
            };
            plan((1..7).map(task).collect())
        }
        _ if is_answer(asked) => Reply::text("Summed up."),
        _ => Reply::call("no_such_tool", json!({})).usage(10, 0),
    };
    let model = ScriptedModel::start(script).await;
    let server = super::priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    chat.set_settings(json!({"planner": {"budget": 0.2}})).await;
    let path = format!("{}/agents/coder", chat.setup.project);
    chat.setup.user.put(&path, json!({"config": {"concurrency_limit": 6}})).await.expect(200);
    let accepted = chat.send("do six things", None).await;
    let plan_path = format!("plans/{}", accepted["plan_id"].as_str().unwrap());
    let ended = eventually("the plan has ended", async || {
        let plan = chat.get(&plan_path).await;
        (plan["status"] == "failed").then_some(plan)
    })
    .await;
    let spent: f64 =
        ended["tasks"].as_array().unwrap().iter().map(|task| task["cost"].as_f64().unwrap()).sum();
    // Each task may have had one step in progress when the budget was used up.
    assert!(spent < 0.2 + 6.0 * 0.02, "{spent}");
    let why = ended["error"]["detail"].as_str().unwrap();
    assert!(why.contains("the plan's budget of $0.2 is spent"), "{why}");

    chat.set_settings(json!({"limits": {"max_seconds": 1}})).await;
    let answer = chat.ask("be quick", None).await;
    assert!(
        answer["content"].as_str().unwrap().contains("the time for this task ran out"),
        "{answer}"
    );
}

/// Requests may follow other words, and several results are summarised.
#[rstest]
#[tokio::test]
async fn demo_model_plans_and_summarises(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = crate::start(backend).await;
    let chat = Chat::on_own_files(&server, "ann").await;
    let answer = chat.ask("I have a question, write a.txt: hello", Some("coder")).await;
    let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
    assert_eq!(task["status"], "completed", "{task}");
    let answer = chat.ask("Nice weather today! Read a.txt and then list files", None).await;
    let plan = chat.get(&format!("plans/{}", answer["plan_id"].as_str().unwrap())).await;
    assert_eq!(plan["status"], "completed", "{plan}");
    assert_eq!(states(&plan).len(), 2, "{plan}");
    assert!(answer["content"].as_str().unwrap().contains("hello"), "{answer}");
}
