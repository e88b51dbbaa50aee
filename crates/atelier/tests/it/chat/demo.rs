//! The very first run: no key, no network, only the program itself.

use super::Chat;
use crate::connect::client::Machine;
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::json;

/// TL-06.2 TL-06.3 TL-06.5: from a chat message to the changed file, with the demo model alone.
#[rstest]
#[tokio::test]
async fn demo_model_reads_writes_and_is_denied(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;

    let answer = chat.ask("read README.md", Some("coder")).await;
    let words = answer["content"].as_str().unwrap();
    assert!(words.contains("# Shop") && words.contains("demo"), "{words}");
    assert_eq!(answer["model"], "demo");

    let accepted = chat.send("write notes.txt: hello", Some("writer")).await;
    let asked = &chat.pending(1).await[0];
    assert!(asked["preview"]["diff"].as_str().unwrap().contains("+hello"), "{asked}");
    assert!(!machine.root().join("notes.txt").exists(), "not before it is approved");
    chat.setup.decide(asked, "approve", json!({})).await;
    chat.task_until(&accepted, "completed").await;
    assert_eq!(machine.read("notes.txt").trim_end(), "hello");

    let before = machine.files();
    let answer = chat.ask("run rm -rf /", Some("coder")).await;
    assert!(answer["content"].as_str().unwrap().contains("Command not allowed"), "{answer}");
    let task = chat.get(&format!("tasks/{}", answer["task_id"].as_str().unwrap())).await;
    let call = &task["calls"][0];
    assert_eq!(
        json!([call["status"], call["client_id"]]),
        json!(["denied", null]),
        "nothing reaches the client"
    );
    assert_eq!(machine.files(), before);

    // Without an agent, the message is planned first. The answer is the same.
    let answer = chat.ask("read README.md", None).await;
    assert!(answer["content"].as_str().unwrap().contains("# Shop"), "{answer}");
    assert!(answer["plan_id"].is_string());
}
