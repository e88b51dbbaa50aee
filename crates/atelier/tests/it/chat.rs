//! Agents at work: messages, tasks and their results.

mod asked_again;
mod bus;
mod crash;
mod demo;
mod kills;
mod own_files;
mod plans;
mod secrets;
mod terminal;
mod tools;

use crate::connect::client::ProjectSetup;
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, Server, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

/// A project with a conversation.
#[derive(Clone)]
pub(crate) struct Chat {
    pub(crate) setup: ProjectSetup,
    session: String,
}

impl Chat {
    pub(crate) async fn new(server: &Server, name: &str) -> Self {
        Self::of(ProjectSetup::new(server.user(name)).await).await
    }

    pub(crate) async fn of(setup: ProjectSetup) -> Self {
        let session = setup.post("chat/sessions/", json!({})).await.expect(201);
        Self { session: session["id"].as_str().unwrap().to_owned(), setup }
    }

    /// A conversation in a project whose agents work on the conversation's own files.
    async fn on_own_files(server: &Server, name: &str) -> Self {
        let user = server.user(name);
        let new = json!({"name": "sheets", "workspace": "conversation"});
        let project = user.post("/my/projects", new).await.expect(201);
        let project = format!("/my/projects/{}", project["id"].as_str().unwrap());
        Self::of(ProjectSetup { user, project, name: "sheets".into() }).await
    }

    /// This conversation, with requests to another server.
    pub(crate) fn at(&self, server: &Server) -> Self {
        let setup = ProjectSetup { user: self.setup.user.at(server), ..self.setup.clone() };
        Self { setup, session: self.session.clone() }
    }

    /// Where the events of the conversation are.
    pub(crate) fn events_path(&self) -> String {
        format!("{}/chat/{}/events", self.setup.project, self.session)
    }

    /// Where messages are sent to.
    pub(crate) fn message_path(&self) -> String {
        format!("{}/chat/{}/message", self.setup.project, self.session)
    }

    pub(crate) async fn post_message(&self, content: &str, agent: Option<&str>) -> Answer {
        let body = json!({"content": content, "target_agent": agent});
        self.setup.post(&format!("chat/{}/message/", self.session), body).await
    }

    pub(crate) async fn send(&self, content: &str, agent: Option<&str>) -> Value {
        self.post_message(content, agent).await.expect(202)
    }

    /// Sends a message and waits for the answer.
    pub(crate) async fn ask(&self, content: &str, agent: Option<&str>) -> Value {
        let path = format!("{}/chat/{}/message", self.setup.project, self.session);
        let request = self.setup.user.request(Method::POST, &path).header("Prefer", "wait=30");
        let answer =
            request.json(&json!({"content": content, "target_agent": agent})).send().await.unwrap();
        assert_eq!(answer.status(), 200, "an answer in time");
        answer.json().await.unwrap()
    }

    /// Changes the project's settings.
    pub(crate) async fn set_settings(&self, settings: Value) {
        self.setup.user.put(&self.setup.project, json!({"settings": settings})).await.expect(200);
    }

    async fn get(&self, rest: &str) -> Value {
        self.setup.user.get(&format!("{}/{rest}", self.setup.project)).await.expect(200)
    }

    pub(crate) async fn messages(&self) -> Vec<Value> {
        let list = self.get(&format!("chat/sessions/{}/messages/", self.session)).await;
        list["messages"].as_array().unwrap().clone()
    }

    async fn task(&self, accepted: &Value) -> Value {
        self.get(&format!("tasks/{}", accepted["task_id"].as_str().unwrap())).await
    }

    pub(crate) async fn task_until(&self, accepted: &Value, status: &str) -> Value {
        eventually(&format!("the task is {status}"), async || {
            let task = self.task(accepted).await;
            let ended =
                ["completed", "failed", "cancelled"].iter().any(|end| task["status"] == *end);
            assert!(!ended || task["status"] == status, "waited for {status}: {task}");
            (task["status"] == status).then_some(task)
        })
        .await
    }

    /// Waits until this many calls wait for a decision, and returns them.
    pub(crate) async fn pending(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} calls are pending"), async || {
            let list = self.get("approvals?status=pending").await;
            let calls = list["approvals"].as_array().unwrap().clone();
            (calls.len() == count).then_some(calls)
        })
        .await
    }
}

async fn with_model(backend: Backend, model: &ScriptedModel) -> Server {
    crate::build(backend).model(model).start().await
}

/// WS-07.1 WS-05.1 WS-05.2: the message goes into the agent's queue, its model answers, and every
/// step is an event.
#[rstest]
#[tokio::test]
async fn direct_message_is_answered_by_its_agent(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::queue([
        Reply::text("Hello Ann, how are you?").usage(100, 7),
        Reply::text("You said: first"),
    ])
    .await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let mut events = chat
        .setup
        .user
        .events(&format!("{}/chat/{}/events", chat.setup.project, chat.session), None)
        .await;
    assert_eq!(events.comment().await, "hello");

    let accepted = chat.send("first", Some("coder")).await;
    assert_eq!(accepted["plan_id"], Value::Null);
    let mut reported = Vec::new();
    let mut words = String::new();
    loop {
        let event = events.next().await;
        if event.name == "MESSAGE_DELTA" {
            assert!(
                event.id.is_empty() || reported.last().is_some(),
                "deltas have no id of their own"
            );
            assert_eq!(event.data["task_id"], accepted["task_id"]);
            assert!(
                !reported.iter().any(|name| name == "TASK_COMPLETED"),
                "words come before the message"
            );
            words.push_str(event.data["text"].as_str().unwrap());
            continue;
        }
        reported.push(event.name.clone());
        if event.name == "TASK_COMPLETED" {
            break;
        }
    }
    assert_eq!(words, "Hello Ann, how are you?");
    assert_eq!(
        reported,
        [
            "MESSAGE_CREATED",
            "TASK_QUEUED",
            "TASK_STARTED",
            "USAGE",
            "MESSAGE_CREATED",
            "TASK_COMPLETED"
        ]
    );
    let messages = chat.messages().await;
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0]["id"], accepted["message_id"]);
    assert_eq!((&messages[0]["role"], &messages[0]["content"]), (&json!("user"), &json!("first")));
    let answer = &messages[1];
    assert_eq!(
        json!([
            answer["role"],
            answer["content"],
            answer["agent_name"],
            answer["model"],
            answer["usage"],
            answer["task_id"]
        ]),
        json!(["assistant", "Hello Ann, how are you?", "agent_coder", "openai/gpt-4o",
               {"input_tokens": 100, "output_tokens": 7}, accepted["task_id"]])
    );
    let task = chat.task(&accepted).await;
    assert_eq!(
        json!([task["status"], task["steps"], task["result"], task["agent_name"]]),
        json!(["completed", 1, "Hello Ann, how are you?", "agent_coder"])
    );

    // The second message comes with the history of the conversation.
    let answer = chat.ask("and second", Some("agent_coder")).await;
    assert_eq!(answer["content"], "You said: first");
    let seen = model.seen();
    let asked = &seen[1].body["messages"];
    assert_eq!(asked[1]["content"], "first");
    assert_eq!(asked[2]["content"], "Hello Ann, how are you?");
    assert_eq!(seen[1].last("user"), "and second");
    assert!(
        seen[0].body["tools"].as_array().unwrap().len() >= 11,
        "the agent is told of its tools"
    );
    assert!(seen[0].last("system").starts_with("You are a software developer."));
}

/// Strangers cannot tell whether the conversation exists.
#[rstest]
#[tokio::test]
async fn invalid_messages_are_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    for bad in ["", "  \n", "a\0b", &"x".repeat(300_000)] {
        assert_eq!(
            chat.post_message(bad, Some("coder")).await.status.as_u16() / 100,
            4,
            "{:.20}",
            bad
        );
    }
    let nobody = chat.post_message("hi", Some("nobody")).await;
    assert_eq!(nobody.problem(), (404, "not_found"));
    assert_eq!(nobody.body["detail"], r#"the project has no agent "nobody""#);
    let nowhere = format!("chat/{}/message", uuid::Uuid::now_v7());
    assert_eq!(
        chat.setup.post(&nowhere, json!({"content": "hi"})).await.problem(),
        (404, "not_found")
    );
    let unknown = chat
        .setup
        .post(&format!("chat/{}/message", chat.session), json!({"content": "a", "to": 1}))
        .await;
    assert_eq!(unknown.problem(), (422, "invalid_request"));
    assert_eq!(chat.messages().await, Vec::<Value>::new());

    let bob = server.user("bob");
    let theirs = format!("{}/chat/{}/message", chat.setup.project, chat.session);
    assert_eq!(bob.post(&theirs, json!({"content": "hi"})).await.problem(), (404, "not_found"));
    // The conversation is not visible in another project of the same user.
    let other = chat.setup.user.project("other").await;
    let path = format!("{other}/chat/{}/message", chat.session);
    assert_eq!(
        chat.setup.user.post(&path, json!({"content": "hi"})).await.problem(),
        (404, "not_found")
    );

    // An archived conversation keeps its messages and accepts no new ones.
    let session = format!("{}/chat/sessions/{}", chat.setup.project, chat.session);
    let archived =
        chat.setup.user.request(Method::PATCH, &session).json(&json!({"status": "archived"}));
    assert_eq!(archived.send().await.unwrap().status(), 200);
    assert_eq!(
        chat.post_message("hi", Some("coder")).await.problem(),
        (409, "conversation_archived")
    );
    chat.setup.user.delete(&session).await.expect(204);
    assert_eq!(chat.setup.user.get(&session).await.problem(), (404, "not_found"));
}

#[rstest]
#[tokio::test]
async fn model_error_is_reported_in_the_conversation(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let mind = json!({"config": {"model": "openai/gpt-4o"}});
    let path = format!("{}/agents/coder", chat.setup.project);
    chat.setup.user.put(&path, mind).await.expect(200);
    let answer = chat.ask("hi", Some("coder")).await;
    let words = "no key for provider openai: set OPENAI_API_KEY or pick the demo model";
    assert!(answer["content"].as_str().unwrap().contains(words), "{answer}");
    let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
    assert_eq!(json!([task["status"], task["error"]["code"]]), json!(["failed", "no_model_key"]));
}

/// The error names the budget. The strictest budget of server, project and agent counts.
#[rstest]
#[tokio::test]
async fn exhausted_budget_ends_the_task(#[values(Sqlite, Postgres)] backend: Backend) {
    let endless = |_: &atelier_testkit::Asked| Reply::call("no_such_tool", json!({})).usage(10, 5);
    let model = ScriptedModel::start(endless).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let path = format!("{}/agents/coder", chat.setup.project);
    for (limits, words, steps) in [
        (json!({"max_steps": 3}), "the limit of 3 steps is reached", 3),
        (json!({"max_tokens": 20}), "the limit of 20 tokens is reached (30 used)", 2),
    ] {
        chat.setup.user.put(&path, json!({"config": {"limits": limits}})).await.expect(200);
        let answer = chat.ask("go", Some("coder")).await;
        assert!(answer["content"].as_str().unwrap().contains(words), "{answer}");
        let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
        assert_eq!(json!([task["steps"], task["error"]["code"]]), json!([steps, "limit_reached"]));
    }
    chat.setup.user.put(&path, json!({"config": {"limits": {}}})).await.expect(200);
    let project = chat.setup.user.request(Method::PUT, &chat.setup.project);
    let strict =
        project.json(&json!({"settings": {"limits": {"max_steps": 1}}})).send().await.unwrap();
    assert_eq!(strict.status(), 200);
    let answer = chat.ask("go", Some("coder")).await;
    assert!(answer["content"].as_str().unwrap().contains("the limit of 1 steps"), "{answer}");
    let bad = chat.setup.user.request(Method::PUT, &chat.setup.project);
    let bad = bad.json(&json!({"settings": {"limits": {"max_steps": 0}}})).send().await.unwrap();
    assert_eq!(bad.status(), 422);
}

#[rstest]
#[tokio::test]
async fn budget_holds_for_endpoints_that_report_no_usage(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let endless = |_: &atelier_testkit::Asked| Reply::call("no_such_tool", json!({})).usage(0, 0);
    let model = ScriptedModel::start(endless).await;
    let server = priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let path = format!("{}/agents/coder", chat.setup.project);
    for limits in [json!({"max_tokens": 40}), json!({"max_cost": 0.001})] {
        chat.setup.user.put(&path, json!({"config": {"limits": limits}})).await.expect(200);
        let answer = chat.ask("go", Some("coder")).await;
        let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
        assert_eq!(json!([task["steps"], task["error"]["code"]]), json!([1, "limit_reached"]));
        assert!(task["usage"]["input_tokens"].as_u64().unwrap() > 100, "{task}");
        chat.setup.user.put(&path, json!({"config": {"limits": {}}})).await.expect(200);
    }
}

/// A server on which a thousand tokens cost a dollar.
pub(crate) async fn priced(backend: Backend, model: &ScriptedModel) -> Server {
    let price = |way: &str| format!("PROVIDERS__OPENAI__MODELS__GPT-4O__{way}_PRICE");
    let server = crate::build(backend).model(model);
    server.with(&price("INPUT"), 1000.0).with(&price("OUTPUT"), 1000.0).start().await
}

/// After the second empty answer the task fails and says why.
#[rstest]
#[tokio::test]
async fn empty_answer_is_retried_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let printed = ["", "here I am", "", " "].map(Reply::text);
    let model = ScriptedModel::queue(printed).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    assert_eq!(chat.ask("hello?", Some("coder")).await["content"], "here I am");
    let answer = chat.ask("and now?", Some("coder")).await;
    assert!(
        answer["content"].as_str().unwrap().contains("the model returned an empty answer"),
        "{answer}"
    );
    let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
    assert_eq!(
        json!([task["status"], task["error"]["code"]]),
        json!(["failed", "model_said_nothing"])
    );
}

/// The model is told about the calls that were not made, and a task that waits for many calls can
/// be cancelled.
#[rstest]
#[tokio::test]
async fn calls_per_step_are_limited(#[values(Sqlite, Postgres)] backend: Backend) {
    let many = |asked: &atelier_testkit::Asked| match asked.results().len() {
        0 => (1..200).fold(Reply::call("create_directory", json!({"path": "d0"})), |reply, n| {
            reply.and_call("create_directory", json!({"path": format!("d{n}")}))
        }),
        _ => Reply::text("done"),
    };
    let model = ScriptedModel::start(many).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("make them", Some("coder")).await;
    let task = chat.task_until(&accepted, "parked").await;
    assert_eq!(task["calls"].as_array().unwrap().len(), 128);
    let calls = task["journal"][0]["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 129);
    let reported = calls[128]["result"]["content"].as_str().unwrap();
    assert!(reported.contains("this one and the 71 after it were not made"), "{reported}");
    let path = format!("tasks/{}/cancel", accepted["task_id"].as_str().unwrap());
    chat.setup.post(&path, json!(null)).await.expect(200);
    chat.pending(0).await;
}

/// Tasks can be listed by every existing state, and only by those.
#[tokio::test]
async fn tasks_are_listed_by_their_state() {
    let server = crate::start(Sqlite).await;
    let chat = Chat::new(&server, "ann").await;
    chat.ask("hello", Some("coder")).await;
    assert_eq!(chat.get("tasks?status=completed").await["total"], 1);
    assert_eq!(chat.get("tasks?status=failed").await["total"], 0);
    let bogus = chat.setup.user.get(&format!("{}/tasks?status=bogus", chat.setup.project)).await;
    assert_eq!(bogus.problem(), (422, "invalid_request"));
}
