//! What commands print, seen while they run.

use super::client::{Machine, ProjectSetup};
use crate::{build, chat::Chat, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Events, SseEvent, User, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// Prints a line, waits for the file `go`, and prints another.
const SCRIPT: &str = "echo begun; until [ -e go ]; do sleep 0.05; done; echo ended";
const PROGRAM: &str = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nprint('ended')\n";

async fn output_of(events: &mut Events, call: &Value) -> SseEvent {
    loop {
        let event = events.until("TOOL_OUTPUT").await;
        if event.data["tool_id"] == call["tool_id"] {
            return event;
        }
    }
}

/// LO-01: what a script or a command prints reaches those who follow the conversation while it runs.
/// The result is whole, and nothing of the output is stored as an event.
#[rstest]
#[tokio::test]
async fn output_is_seen_while_a_command_runs(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("wait.py", PROGRAM);
    let server = start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let setup = chat.setup.clone();
    let _client = machine.connect(&setup, &server.url).await;
    let mut events = setup.user.events(&chat.events_path(), None).await;
    assert_eq!(events.comment().await, "hello");
    let execute = async |tool: &str, params: Value| {
        let call = json!({"tool_name": tool, "tool_params": params, "session_id": chat.session()});
        setup.post("tools/execute", call).await.expect(200)
    };

    let shell = execute("shell", json!({"script": SCRIPT})).await;
    let output = output_of(&mut events, &shell).await;
    assert_eq!((&output.data["text"], &*output.id), (&json!("begun\n"), ""));
    assert_eq!(setup.show(&shell).await["status"], "dispatched", "it still runs");
    let go = execute("shell", json!({"script": "touch go"})).await;
    setup.until(&go, "completed").await;
    let done = setup.until(&shell, "completed").await;
    assert_eq!(done["result"]["stdout"], "begun\nended\n");

    let params = json!({"command": "python3", "args": ["wait.py"]});
    let command = execute("execute_command", params).await;
    setup.decide(&setup.until(&command, "pending_approval").await, "approve", json!({})).await;
    assert_eq!(output_of(&mut events, &command).await.data["text"], "begun\n");
    machine.write("go", "");
    let done = setup.until(&command, "completed").await;
    assert_eq!(done["result"]["stdout"], "begun\nended\n");

    // Nothing is replayed: whoever comes later reads the result.
    let mut later = setup.user.events(&chat.events_path(), Some("0")).await;
    loop {
        let event = later.next().await;
        assert_ne!(event.name, "TOOL_OUTPUT");
        if event.name == "TOOL_CALL_UPDATED"
            && event.data["tool_id"] == command["tool_id"]
            && event.data["status"] == "completed"
        {
            break;
        }
    }
}

/// A machine that a test plays.
struct Played {
    setup: ProjectSetup,
    client: Uuid,
    events: Events,
}

impl Played {
    async fn new(user: User) -> Self {
        let setup = ProjectSetup::new(user).await;
        let client = Uuid::now_v7();
        let body =
            json!({"client_id": client, "root": "/srv/shop", "os": "linux", "isolation": {}});
        setup.post("clients", body).await.expect(200);
        let events = setup.user.events(&format!("{}/events", setup.project), None).await;
        Self { setup, client, events }
    }

    async fn running(&mut self, tool: &str, params: Value) -> Value {
        let mut call = self.setup.execute(tool, params).await;
        if call["status"] == "pending_approval" {
            self.setup.decide(&call, "approve", json!({})).await;
            call = self.setup.until(&call, "dispatched").await;
        }
        self.post(&call, "claim", json!({})).await.expect(200);
        call
    }

    async fn post(&self, call: &Value, what: &str, more: Value) -> atelier_testkit::Answer {
        let mut body = json!({"client_id": self.client, "attempt": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let id = call["tool_id"].as_str().unwrap();
        self.setup.post(&format!("tools/{id}/{what}"), body).await
    }

    async fn prints(&self, call: &Value, text: &str) -> atelier_testkit::Answer {
        self.post(call, "output", json!({"text": text})).await
    }
}

/// LO-02: only the machine that runs a call can show its output, keys in it are masked, and a call
/// that may show secrets shows nothing.
#[rstest]
#[tokio::test]
async fn output_is_bounded_masked_and_withheld(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut played = Played::new(server.user("ann")).await;
    let list = json!({"command": "ls", "args": []});
    let call = played.running("execute_command", list).await;
    let secret = json!({"command": "cat", "args": [".env"]});
    let hidden = played.running("execute_command", secret).await;
    assert_eq!(played.prints(&hidden, "PASSWORD=hunter2\n").await.status, 204);
    let token = ["ghp", "_0123456789abcdefghijABCDEFGHIJ012345"].concat();
    assert_eq!(played.prints(&call, &format!("{token}\n")).await.status, 204);
    let shown = played.events.until("TOOL_OUTPUT").await;
    assert_eq!(shown.data["tool_id"], call["tool_id"], "nothing of the secret call came before");
    let text = shown.data["text"].as_str().unwrap();
    assert!(text.starts_with("[masked: ") && !text.contains("0123"), "{text}");
    assert_eq!((&shown.data["session_id"], &*shown.id), (&Value::Null, ""));

    let large = "x".repeat(40_000);
    assert_eq!(played.prints(&call, &large).await.problem(), (422, "invalid_request"));
    let other = json!({"text": "x\n", "attempt": 2});
    assert_eq!(played.post(&call, "output", other).await.problem(), (409, "not_your_call"));
    let eve = server.user("eve");
    let path =
        format!("{}/tools/{}/output", played.setup.project, call["tool_id"].as_str().unwrap());
    let body = json!({"client_id": played.client, "attempt": 1, "text": "x\n"});
    assert_eq!(eve.post(&path, body).await.problem(), (404, "not_found"));
    played.post(&call, "result", json!({"result": {"success": true}})).await.expect(200);
    assert_eq!(played.prints(&call, "late\n").await.problem(), (409, "already_settled"));
}

/// LO-03: readers at every node see the output, whichever node the machine talks to.
#[rstest]
#[tokio::test]
async fn output_reaches_readers_at_other_nodes() {
    let nodes = build(Postgres).start_nodes(2).await;
    let mut played = Played::new(nodes[0].user("ann")).await;
    let there = played.setup.user.at(&nodes[1]);
    let mut events = there.events(&format!("{}/events", played.setup.project), None).await;
    assert_eq!(events.comment().await, "hello");
    let call = played.running("execute_command", json!({"command": "ls", "args": []})).await;
    // Every byte of this has to be escaped, so it is cut into several messages.
    let text = "\u{1}".repeat(5000);
    // A node learns of the others by its heartbeat, and sends output from then on.
    eventually("output reaches the other node", async || {
        played.prints(&call, "probe\n").await;
        let mark = json!({"tool_name": "no_such_tool", "tool_params": {}});
        played.setup.post("tools/execute", mark).await.expect(200);
        (events.next().await.name == "TOOL_OUTPUT").then_some(())
    })
    .await;
    played.prints(&call, &text).await;
    let mut seen = String::new();
    while seen.len() < text.len() {
        let piece = events.until("TOOL_OUTPUT").await.data["text"].as_str().unwrap().to_owned();
        seen.push_str(piece.strip_prefix("probe\n").unwrap_or(&piece));
    }
    assert_eq!(seen, text);
}

/// LO-04: an MCP host that asks for progress gets the output as it comes.
#[tokio::test]
async fn mcp_host_gets_output_as_progress() {
    let machine = Machine::new();
    machine.write("wait.py", PROGRAM);
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let host = server.program("ann", "agent", &setup.project);
    let params = json!({
        "name": "execute_command",
        "arguments": {"command": "python3", "args": ["wait.py"]},
        "_meta": {"progressToken": "p"},
    });
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mount = setup.project.replace("/my/", "/mcp/");
    let accept = "application/json, text/event-stream";
    let request = host.request(Method::POST, &mount).header("accept", accept).json(&message);
    let sending = tokio::spawn(async move { request.send().await.unwrap() });
    let pending = eventually("a person is asked", async || {
        let list = setup.user.get(&format!("{}/approvals", setup.project)).await.expect(200);
        list["approvals"].get(0).cloned()
    })
    .await;
    setup.decide(&pending, "approve", json!({})).await;
    let mut answer = sending.await.unwrap();
    let mut stream = String::new();
    while !stream.contains("\"begun\"") {
        let chunk = answer.chunk().await.unwrap().expect("the stream goes on");
        stream.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(stream.contains("notifications/progress"), "{stream}");
    assert_eq!(setup.show(&pending).await["status"], "dispatched", "it still runs");
    machine.write("go", "");
    while let Some(chunk) = answer.chunk().await.unwrap() {
        stream.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(stream.contains("begun\\\\nended"), "{stream}");
}
