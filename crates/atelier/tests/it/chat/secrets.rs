//! What was read of a secret file with an approval stays in its conversation.

use super::Chat;
use crate::{connect::client::Machine, embeddings::Service};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

const WORD: &str = "zanzibar-and-back";
const PASSWORD: &str = "hunter2hunter2";

/// How a call reads a file of secrets.
#[derive(Debug, Clone, Copy)]
enum ReadBy {
    ReadFile,
    Command,
    Grep,
}

impl ReadBy {
    fn call(self) -> Reply {
        match self {
            ReadBy::ReadFile => Reply::call("read_file", json!({"path": ".env"})),
            ReadBy::Command => {
                Reply::call("execute_command", json!({"command": "cat", "args": [".env"]}))
            }
            ReadBy::Grep => Reply::call("grep", json!({"pattern": ".", "path": ".env"})),
        }
    }
}

/// The agent reads the file, makes a note of it and quotes it in its answer.
fn script(by: ReadBy) -> impl FnMut(&Asked) -> Reply + Send + 'static {
    move |asked: &Asked| {
        let quote = format!("The greeting is {WORD}, the password is {PASSWORD}.");
        if asked.last("user").contains("again") {
            return Reply::text("I do not know what it held.");
        }
        match asked.results().len() {
            0 => by.call(),
            1 => Reply::call("add_context", json!({"text": quote})),
            _ => Reply::text(quote),
        }
    }
}

fn assert_no_secret(what: &str, text: &str) {
    for secret in [WORD, PASSWORD] {
        assert!(!text.contains(secret), "{what} has {secret}: {text}");
    }
}

/// The memory says that the file was read. Its content is in no memory, in no prompt of another
/// conversation, in no search, at no embedding service, in no log and in no export.
#[rstest]
#[tokio::test]
async fn content_of_a_secret_file_does_not_leave_its_conversation(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(ReadBy::ReadFile, ReadBy::Command, ReadBy::Grep)] by: ReadBy,
) {
    let (model, embedder) = (ScriptedModel::start(script(by)).await, Service::start(1536).await);
    let machine = Machine::new();
    machine.write(".env", &format!("GREETING={WORD}\nDB_PASSWORD={PASSWORD}\n"));
    let server = crate::build(backend)
        .model(&model)
        .with("MEMORY__EMBEDDER__KIND", "openai")
        .with("MEMORY__EMBEDDER__BASE_URL", embedder.url())
        .environment("LOG_LEVEL", "debug")
        .start()
        .await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;

    let accepted = chat.send("look at the settings file", Some("coder")).await;
    let pending = chat.pending(1).await;
    assert_eq!(pending[0]["risk_level"], "HIGH");
    chat.setup.decide(&pending[0], "approve", json!({})).await;
    let task = chat.task_until(&accepted, "completed").await;
    // In the conversation in which the person approved the reading, the agent knows what it read.
    assert!(model.seen()[1].results()[0].contains(WORD));
    assert!(task["result"].as_str().unwrap().contains(PASSWORD));

    let context = format!("{}/agents/coder/context", chat.setup.project);
    let export = eventually("everything is remembered and embedded", async || {
        let export = chat.setup.user.get(&format!("{context}/export")).await.expect(200);
        let kinds = export["interactions"].as_array().unwrap();
        let has = |kind: &str| kinds.iter().any(|one| one["interaction_type"] == kind);
        let all = ["tool_call", "task_execution", "agent_response"];
        let embedded = Value::Array(embedder.asked()).to_string();
        let done = all.into_iter().all(has) && embedded.contains("Task: look at");
        done.then_some(export)
    })
    .await;
    assert_no_secret("the export", &export.to_string());
    let all = export["interactions"].as_array().unwrap();
    let call = all.iter().find(|one| one["interaction_type"] == "tool_call").unwrap();
    let text = call["text"].as_str().unwrap();
    assert!(text.contains(".env") && text.contains("completed [not remembered"), "{text}");
    assert_eq!(call["success"], true);
    assert!(all.iter().any(|one| one["metadata"]["note"] == true), "the note is there, masked");

    let project = chat.setup.project.rsplit('/').next().unwrap().to_owned();
    let agent = crate::role_token(&server, "ann", "agent", &project);
    for query in ["greeting", "password", ".env", WORD, PASSWORD] {
        for mode in ["hybrid", "lexical"] {
            let body = json!({"query": query, "mode": mode, "k": 20});
            let found = agent.post(&format!("{context}/search"), body).await.expect(200);
            assert_no_secret("a search", &found["results"].to_string());
        }
    }

    let again = Chat::of(chat.setup).await;
    let answer = again.ask("what was in the .env settings file? again", Some("coder")).await;
    assert_eq!(answer["content"], "I do not know what it held.");
    let prompt = model.seen().last().unwrap().body.to_string();
    assert!(prompt.contains("not remembered"), "the memory is recalled: {prompt}");
    assert_no_secret("the prompt of a new conversation", &prompt);

    // The words that were searched for are the person's own; only what was remembered is checked.
    let remembered: Vec<Value> = embedder.asked().into_iter().filter(is_remembered).collect();
    assert_no_secret("the embedding service", &Value::Array(remembered).to_string());
    let log = server.log();
    assert!(log.contains("\"level\":\"DEBUG\""), "the log is detailed");
    assert_no_secret("the log", &log);
}

/// Whether a request to the embedding service is more than one of the searches above.
fn is_remembered(asked: &Value) -> bool {
    let searches = [json!([WORD]), json!([PASSWORD])];
    !searches.contains(&asked["input"])
}

/// In a conversation's own files nobody is asked about a file of secrets, and still nothing of it is
/// remembered.
#[rstest]
#[tokio::test]
async fn secrets_in_own_files_are_not_remembered(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(ReadBy::ReadFile, ReadBy::Grep)] by: ReadBy,
) {
    let model = ScriptedModel::start(script(by)).await;
    let server = crate::build(backend).model(&model).start().await;
    let chat = Chat::on_own_files(&server, "ann").await;
    let path = format!("/api/tenants/default/workspace/{}", chat.session);
    let content = format!("GREETING={WORD}\nDB_PASSWORD={PASSWORD}\n");
    chat.setup.user.upload(&path, ".env", content).await.expect(201);
    let accepted = chat.send("look at the settings file", Some("coder")).await;
    let task = chat.task_until(&accepted, "completed").await;
    assert!(model.seen()[1].results()[0].contains(WORD));
    assert!(task["result"].as_str().unwrap().contains(PASSWORD));
    let context = format!("{}/agents/coder/context", chat.setup.project);
    let export = eventually("the task is remembered", async || {
        let export = chat.setup.user.get(&format!("{context}/export")).await.expect(200);
        let all = export["interactions"].as_array().unwrap();
        all.iter().any(|one| one["interaction_type"] == "task_execution").then_some(export)
    })
    .await;
    assert_no_secret("the export", &export.to_string());
}
