//! Questions of agents that nobody answered in time: asked again, the task goes on.

use super::Chat;
use crate::{
    connect::client::Machine,
    connect::terminal::{KEYS, Person},
};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, Server, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};

async fn impatient(backend: Backend, model: &ScriptedModel) -> Server {
    crate::build(backend).model(model).with("GATE__APPROVAL_MEDIUM", "1s").start().await
}

impl Chat {
    /// From now on questions wait until they are answered.
    async fn is_patient(&self) {
        self.set_settings(json!({"approvals": {"wait": "until_answered"}})).await;
    }

    /// Asks again about the call whose question ran out.
    async fn ask_again(&self) -> Value {
        let expired = eventually("a question ran out", async || {
            let list = self.get("approvals?status=expired").await;
            list["approvals"].as_array().unwrap().first().cloned()
        })
        .await;
        let approval = expired["approval_id"].as_str().unwrap();
        let path = format!("approvals/{approval}/ask-again");
        self.setup.post(&path, json!({})).await.expect(200)
    }
}

/// TL-02.5: a task that has ended without the call is opened again, and its agent learns of both.
#[rstest]
#[tokio::test]
async fn task_that_has_ended_goes_on(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|asked: &Asked| match asked.results().len() {
        0 => Reply::call("create_directory", json!({"path": "d"})),
        1 => Reply::text("Nobody answered, so I stopped."),
        _ => Reply::text("Made it."),
    })
    .await;
    let machine = Machine::new();
    let server = impatient(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let accepted = chat.send("make d", Some("coder")).await;
    let ended = chat.task_until(&accepted, "completed").await;
    assert_eq!(ended["result"], "Nobody answered, so I stopped.");
    chat.is_patient().await;
    let again = chat.ask_again().await;
    assert_eq!((&again["status"], &again["task_id"]), (&json!("pending_approval"), &ended["id"]));
    assert_eq!(chat.task(&accepted).await["status"], "parked");
    chat.setup.decide(&again, "approve", json!({})).await;
    let done = eventually("the task goes on", async || {
        let task = chat.task(&accepted).await;
        (task["status"] == "completed").then_some(task)
    })
    .await;
    assert_eq!(done["result"], "Made it.");
    assert!(machine.root().join("d").is_dir());
    let seen = model.seen();
    let results = seen[2].results();
    assert!(results[0].contains("Approval timeout"), "{}", results[0]);
    assert!(results[1].contains("\"success\":true"), "{}", results[1]);
    let answers: Vec<Value> =
        chat.messages().await.iter().map(|one| one["content"].clone()).collect();
    assert_eq!(answers, ["make d", "Nobody answered, so I stopped.", "Made it."]);
}

/// TL-02.5: a task that still waits for another call waits for both.
#[rstest]
#[tokio::test]
async fn task_that_waits_for_another_call_waits_for_both(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(|asked: &Asked| match asked.results().len() {
        0 => Reply::call("create_directory", json!({"path": "d"}))
            .and_call("delete_file", json!({"path": "old.txt"})),
        _ => Reply::text("Done."),
    })
    .await;
    let machine = Machine::new();
    machine.write("old.txt", "old\n");
    let server = impatient(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let accepted = chat.send("tidy up", Some("coder")).await;
    chat.task_until(&accepted, "parked").await;
    chat.pending(1).await;
    chat.is_patient().await;
    let again = chat.ask_again().await;
    let pending = chat.pending(2).await;
    assert_eq!(model.seen().len(), 1, "the agent waits");
    chat.setup.decide(&again, "approve", json!({})).await;
    chat.setup.until(&again, "completed").await;
    assert_eq!(chat.task(&accepted).await["status"], "parked");
    let delete = pending.iter().find(|call| call["tool_name"] == "delete_file").unwrap();
    chat.setup.decide(delete, "approve", json!({})).await;
    chat.task_until(&accepted, "completed").await;
    let seen = model.seen();
    assert_eq!((seen.len(), seen[1].results().len()), (2, 3));
    assert!(machine.root().join("d").is_dir() && !machine.root().join("old.txt").exists());
}

/// TL-02.5: in a session in the terminal, `/again` asks, and the agent goes on.
#[tokio::test]
async fn session_asks_again_after_a_coffee() {
    let machine = Machine::new();
    let server = crate::build(Sqlite).with("GATE__APPROVAL_MEDIUM", "2s").start().await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let mut command = machine.program(&["chat", "--no-connect", "--server", &server.url]);
    command.args(["--project", &chat.setup.name, "--agent", "writer"]);
    command.env("ATELIER_TOKEN", &chat.setup.user.token);
    command.current_dir(machine.root()).env("TERM", "xterm-256color");
    let mut ann = Person::starts(command);
    ann.sees("writer › ").await;
    ann.presses("/again\r");
    ann.sees("There is no conversation yet.").await;
    ann.presses("write notes.txt: one\r");
    ann.sees("[w] keep waiting").await;
    ann.sees("/again asks it again").await;
    ann.sees("completed; ").await;
    ann.sees("writer › ").await;
    assert!(!machine.root().join("notes.txt").exists());
    chat.is_patient().await;
    ann.presses("/again\r");
    let card = ann.sees(KEYS).await;
    assert!(card.contains("not before it is answered"), "{card}");
    ann.presses("y");
    ann.sees("completed; ").await;
    assert_eq!(machine.read("notes.txt").trim_end(), "one");
    ann.sees("writer › ").await;
    ann.presses("/again\r");
    ann.sees("No question of this conversation has expired.").await;
}
