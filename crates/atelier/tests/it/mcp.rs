//! A project's tools for MCP hosts. `scripts/test-mcp` shows the same with clients nobody here wrote; here it is
//! plain HTTP, on both databases.

use crate::{
    connect::client::{Desk, Machine},
    start,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    User, eventually,
};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// Asks for a tool as a host without a session does; gives the text, and whether it is an error.
async fn call(host: &User, mount: &str, tool: &str, arguments: Value) -> (String, bool) {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = host.request(Method::POST, mount).header("accept", "application/json").json(&message);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let result = &answer["result"];
    (result["content"][0]["text"].as_str().expect("a text").to_owned(), result["isError"] == true)
}

/// TL-06.2 TL-06.3 TL-06.5 TL-07.1
#[rstest]
#[tokio::test]
async fn a_host_asks_and_a_person_decides(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let desk = Desk::new(server.user("ann")).await;
    let machine = Machine::new();
    machine.write("notes.txt", "one\n");
    let _client = machine.connect(&desk, &server.url).await;
    let mount = desk.project.replace("/my/", "/mcp/");
    let host = server.user_with("ann", &["--role", "agent"]);

    let read = call(&host, &mount, "read_file", json!({"path": "notes.txt"})).await;
    assert_eq!(read, ("one\n".to_owned(), false));
    let (denied, error) = call(&host, &mount, "execute_command", json!({"command": "rm"})).await;
    assert!(error && denied.starts_with("Error: Command not allowed"), "{denied}");

    for (how, body, expected) in
        [("reject", json!({"reason": "not now"}), "one\n"), ("approve", json!({}), "two\n")]
    {
        let write = json!({"path": "notes.txt", "content": "two\n"});
        let (host, to) = (host.clone(), mount.clone());
        let asking = tokio::spawn(async move { call(&host, &to, "write_file", write).await });
        let pending = eventually("a person is asked", async || {
            let list = desk.user.get(&format!("{}/approvals", desk.project)).await.expect(200);
            list["approvals"].get(0).cloned()
        })
        .await;
        assert_eq!(machine.read("notes.txt"), "one\n");
        desk.decide(&pending, how, body).await;
        let (said, error) = asking.await.unwrap();
        assert_eq!((error, said.contains("not now")), (how == "reject", how == "reject"), "{said}");
        assert_eq!(machine.read("notes.txt"), expected);
    }
}

/// WS-09.1 TL-07.1
#[rstest]
#[tokio::test]
async fn only_the_owners_hosts_come_in(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let mount = ann.project("shop").await.replace("/my/", "/mcp/");
    let nobodys = format!("/mcp/projects/{}", Uuid::now_v7());
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let status = async |user: &User, path: &str| -> StatusCode {
        user.request(Method::POST, path).json(&ping).send().await.unwrap().status()
    };
    for (user, expected) in [
        (&ann, 200),
        (&server.user_with("ann", &["--role", "agent"]), 200),
        (&server.user_with("ann", &["--role", "client"]), 403),
        (&server.user("bob"), 404),
        (&server.user_with("ann", &["--tenant", "other"]), 404),
        (&server.user_with("root", &["--role", "admin"]), 404),
        (&server.bearer(""), 401),
        (&server.bearer("garbage"), 401),
    ] {
        assert_eq!(status(user, &mount).await, expected);
        let unknown = if expected == 200 { 404 } else { expected };
        assert_eq!(status(user, &nobodys).await, unknown);
    }
}
