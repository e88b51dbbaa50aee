//! An agent's calls on the user's machine, from the model's request to the changed file and back.

use super::{Chat, with_model};
use crate::connect::client::Machine;
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel,
};
use rstest::rstest;
use serde_json::{Value, json};

/// Calls of one step are decided together; denials, rejections and malformed calls are returned to
/// the model.
#[rstest]
#[tokio::test]
async fn outcomes_of_calls_are_returned_to_the_model(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.results().len() {
        0 => Reply::call("read_file", json!({"path": "a.txt"}))
            .and_call("write_file", json!({"path": "b.txt", "content": "b"}))
            .and_call("write_file", json!({"path": "c.txt", "content": "c"}))
            .and_call("execute_command", json!({"command": "rm", "args": ["-rf", "/"]}))
            .and_call("fly", json!({}))
            .and_raw_call("read_file", "{\"path\": "),
        _ => Reply::text("Done what I could."),
    };
    let model = ScriptedModel::start(script).await;
    let machine = Machine::new();
    machine.write("a.txt", "alpha");
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;

    let accepted = chat.send("do it all", Some("coder")).await;
    let pending = chat.pending(2).await;
    chat.task_until(&accepted, "parked").await;
    for call in &pending {
        assert_eq!(
            (&call["task_id"], &call["session_id"]),
            (&accepted["task_id"], &json!(chat.session))
        );
    }
    let by_path =
        |path: &str| pending.iter().find(|call| call["tool_params"]["path"] == path).unwrap();
    chat.setup.decide(by_path("b.txt"), "approve", json!({})).await;
    chat.setup.decide(by_path("c.txt"), "reject", json!({"reason": "not that one"})).await;
    let task = chat.task_until(&accepted, "completed").await;
    assert_eq!(task["result"], "Done what I could.");
    assert_eq!(machine.read("b.txt"), "b");
    assert!(!machine.root().join("c.txt").exists());

    let seen = model.seen();
    assert_eq!(seen.len(), 2);
    let results = seen[1].results();
    for (n, words) in [
        (0, "alpha"),
        (1, "\"success\":true"),
        (2, "Rejected by the user: not that one"),
        (3, "Command not allowed"),
        (4, "There is no tool \\\"fly\\\""),
        (5, "The arguments are not JSON"),
    ] {
        let words = words.replace("\\\"", "\"");
        assert!(results[n].contains(&words), "{n}: {}", results[n]);
    }
    let journal = task["journal"].as_array().unwrap();
    assert_eq!(journal[0]["calls"].as_array().unwrap().len(), 6);
    assert_eq!(task["calls"].as_array().unwrap().len(), 4, "nonsense never gets to the gate");
}

/// Two agents change one file: the second is told that it has changed, and nothing is lost.
#[rstest]
#[tokio::test]
async fn change_by_another_agent_is_a_conflict(#[values(Sqlite, Postgres)] backend: Backend) {
    let script = |asked: &Asked| match asked.results().as_slice() {
        [] => Reply::call("read_file", json!({"path": "list.txt"})),
        [_] => Reply::call("write_file", json!({"path": "list.txt", "content": "one\nmine\n"})),
        [.., last] if last.contains("conflict") => Reply::text("It has changed; I leave it."),
        _ => Reply::text("Written."),
    };
    let model = ScriptedModel::start(script).await;
    let machine = Machine::new();
    machine.write("list.txt", "one\n");
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let first = chat.send("add to the list", Some("coder")).await;
    let second = chat.send("add to the list, too", Some("writer")).await;
    let pending = chat.pending(2).await;
    let of = |task: &Value| pending.iter().find(|call| call["task_id"] == task["task_id"]).unwrap();
    assert!(of(&first)["tool_params"]["if_checksum"].is_string(), "{}", of(&first));
    chat.setup.decide(of(&first), "approve", json!({})).await;
    assert_eq!(chat.task_until(&first, "completed").await["result"], "Written.");
    machine.write("list.txt", "one\nmine\nand more\n");
    chat.setup.decide(of(&second), "approve", json!({})).await;
    assert_eq!(
        chat.task_until(&second, "completed").await["result"],
        "It has changed; I leave it."
    );
    assert_eq!(machine.read("list.txt"), "one\nmine\nand more\n");
}

/// Cancelling a task stops its command, which would run for a minute, and withdraws its approvals.
#[rstest]
#[tokio::test]
async fn cancelling_a_task_stops_its_command(#[values(Sqlite, Postgres)] backend: Backend) {
    let call = |_: &Asked| {
        Reply::call("execute_command", json!({"command": "python3", "args": ["wait.py"]}))
    };
    let model = ScriptedModel::start(call).await;
    let machine = Machine::new();
    machine.write(
        "wait.py",
        "import os, time\nopen(os.path.expanduser('~/began'), 'w').close()\ntime.sleep(60)\n",
    );
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let accepted = chat.send("run it", Some("coder")).await;
    let cancel =
        |accepted: &Value| format!("tasks/{}/cancel", accepted["task_id"].as_str().unwrap());
    let asked = chat.pending(1).await;
    chat.setup.decide(&asked[0], "approve", json!({})).await;
    atelier_testkit::eventually("it runs", async || machine.in_commands_home("began")).await;
    let cancelled = chat.setup.post(&cancel(&accepted), json!(null)).await.expect(200);
    assert_eq!(cancelled["status"], "cancelled");
    atelier_testkit::eventually("the process is gone", async || {
        let running = std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
            let cwd = std::fs::read_link(process.path().join("cwd"));
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            cwd.is_ok_and(|cwd| cwd == machine.root())
                && line.windows(7).any(|word| word == b"wait.py")
        });
        (!running).then_some(())
    })
    .await;
    let again = chat.setup.post(&cancel(&accepted), json!(null)).await;
    assert_eq!(again.problem(), (409, "already_settled"));

    let waiting = chat.send("run it again", Some("coder")).await;
    chat.pending(1).await;
    chat.setup.post(&cancel(&waiting), json!(null)).await.expect(200);
    chat.pending(0).await;
}

/// The call is not made, and the model learns that its JSON was cut at max_tokens.
#[rstest]
#[tokio::test]
async fn call_cut_at_max_tokens_is_reported_to_the_model(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let script = |asked: &Asked| match asked.results().len() {
        0 => Reply::raw_call("write_file", "{\"path\": \"tale.txt\", \"content\": \"Once upo")
            .finish("length"),
        _ => Reply::text("I see."),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let path = format!("{}/agents/coder", chat.setup.project);
    chat.setup.user.put(&path, json!({"config": {"max_tokens": 64}})).await.expect(200);
    assert_eq!(chat.ask("tell a tale", Some("coder")).await["content"], "I see.");
    let seen = model.seen();
    let reported = seen[1].results()[0];
    assert!(
        reported.contains("max_tokens (64)") && reported.contains("smaller parts"),
        "{reported}"
    );
    assert!(!reported.contains("JSON"), "{reported}");
    chat.pending(0).await;
}
