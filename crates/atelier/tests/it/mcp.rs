//! A project's tools and a conversation's files for MCP hosts. `scripts/test-mcp` tests the same
//! with third-party clients. Here it is plain HTTP, on both databases.

use crate::{
    build,
    connect::client::{Machine, ProjectSetup},
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

/// Calls a tool as a host without a session does. Returns the text, and whether it is an error.
async fn call(host: &User, mount: &str, tool: &str, arguments: Value) -> (String, bool) {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request =
        host.request(Method::POST, mount).header("accept", "application/json").json(&message);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let result = &answer["result"];
    (result["content"][0]["text"].as_str().expect("a text").to_owned(), result["isError"] == true)
}

/// TL-06.2 TL-06.3 TL-06.5 TL-07.1
#[rstest]
#[tokio::test]
async fn mcp_host_calls_tools_and_the_user_decides(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let machine = Machine::new();
    machine.write("notes.txt", "one\n");
    let _client = machine.connect(&setup, &server.url).await;
    let mount = setup.project.replace("/my/", "/mcp/");
    let host = server.program("ann", "agent", &setup.project);

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
            let list = setup.user.get(&format!("{}/approvals", setup.project)).await.expect(200);
            list["approvals"].get(0).cloned()
        })
        .await;
        assert_eq!(machine.read("notes.txt"), "one\n");
        setup.decide(&pending, how, body).await;
        let (printed, error) = asking.await.unwrap();
        assert_eq!(
            (error, printed.contains("not now")),
            (how == "reject", how == "reject"),
            "{printed}"
        );
        assert_eq!(machine.read("notes.txt"), expected);
    }
}

/// LY-12: a host tries in the layer, and the user decides what lands.
#[tokio::test]
async fn mcp_host_tries_in_a_layer_and_the_user_decides() {
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let machine = Machine::new();
    machine.write("notes.txt", "one\n");
    let _client = machine.connect(&setup, &server.url).await;
    let mount = setup.project.replace("/my/", "/mcp/");
    let host = server.program("ann", "agent", &setup.project);
    let script = json!({"script": "echo two | tee -a notes.txt"});
    let (ran, error) = call(&host, &mount, "shell", script).await;
    let ran: Value = serde_json::from_str(&ran).unwrap();
    assert_eq!((error, &ran["stdout"]), (false, &json!("two\n")), "{ran}");
    assert_eq!(machine.read("notes.txt"), "one\n");
    let (shown, _) = call(&host, &mount, "diff", json!({})).await;
    assert!(shown.contains("+two"), "{shown}");
    let landing = {
        let (host, mount) = (host.clone(), mount.clone());
        tokio::spawn(async move { call(&host, &mount, "land", json!({})).await })
    };
    let pending = eventually("a person is asked", async || {
        let list = setup.user.get(&format!("{}/approvals", setup.project)).await.expect(200);
        list["approvals"].get(0).cloned()
    })
    .await;
    setup.decide(&pending, "approve", json!({})).await;
    let (printed, error) = landing.await.unwrap();
    assert!(!error, "{printed}");
    assert_eq!(machine.read("notes.txt"), "one\ntwo\n");
}

/// The id of the project that a conversation's workspace belongs to.
pub(crate) async fn project_of(user: &User, workspace: &str) -> String {
    let path = workspace.replace("/workspace/", "/conversations/");
    user.get(&path).await.expect(200)["project_id"].as_str().unwrap().to_owned()
}

fn mount_of(workspace: &str) -> String {
    format!("/mcp/conversations/{}", workspace.rsplit('/').next().unwrap())
}

/// FS-03 FS-05 MC-01 MC-02: a host's write is a version like an agent's, and a user's upload is
/// visible immediately.
#[rstest]
#[tokio::test]
async fn mcp_host_works_on_the_files_of_a_conversation(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mount = mount_of(&workspace);
    let host = server.program("ann", "agent", &project_of(&ann, &workspace).await);
    ann.upload(&workspace, "data.csv", "1,2\n").await.expect(201);

    let read = call(&host, &mount, "read_file", json!({"path": "data.csv"})).await;
    assert_eq!(read, ("1,2\n".to_owned(), false));
    for (path, content) in [("data.csv", "3,4\n"), ("out/sum.txt", "7")] {
        let wrote =
            call(&host, &mount, "write_file", json!({"path": path, "content": content})).await;
        assert_eq!(wrote, (format!("Successfully wrote {} bytes to {path}", content.len()), false));
    }
    let info = ann.get(&workspace).await.expect(200);
    let mut files: Vec<Value> = info["files"].as_array().unwrap().clone();
    files.sort_by_key(|file| file["file_path"].as_str().unwrap().to_owned());
    let files: Vec<Value> = files
        .iter()
        .map(|file| json!([file["file_path"], file["source"], file["version"]]))
        .collect();
    assert_eq!(
        files,
        [json!(["data.csv", "ai_modified", 2]), json!(["out/sum.txt", "ai_created", 1])]
    );
    let found =
        call(&host, &mount, "search_files", json!({"path": ".", "pattern": "**/*.txt"})).await;
    assert!(!found.1 && found.0.contains("out/sum.txt"), "{}", found.0);

    let outside = call(&host, &mount, "read_file", json!({"path": "../../secret"})).await;
    assert!(outside.1 && outside.0.starts_with("Error: Access denied"), "{}", outside.0);
    let unknown = call(&host, &mount, "read_file", json!({"path": "none.txt"})).await;
    assert_eq!(unknown, ("Error: File not found: none.txt".to_owned(), true));
}

/// FS-03: calls of hosts in one conversation take turns.
#[rstest]
#[tokio::test]
async fn parallel_host_calls_lose_no_changes(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mount = mount_of(&workspace);
    let calls = (0..8).map(|number| {
        let write = json!({"path": format!("{number}.txt"), "content": "x"});
        call(&ann, &mount, "write_file", write)
    });
    for (printed, error) in futures::future::join_all(calls).await {
        assert!(!error, "{printed}");
    }
    let info = ann.get(&workspace).await.expect(200);
    let mut paths: Vec<&str> = info["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["file_path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    assert_eq!(paths, ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "5.txt", "6.txt", "7.txt"]);
}

/// FS-17: where the owner's rules want a question about changes, the person is asked.
#[rstest]
#[tokio::test]
async fn changes_of_hosts_are_asked_about_where_the_owner_wants_it(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend).with("WORK__OWN_FILES", "MEDIUM").start().await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mount = mount_of(&workspace);
    let project = format!("/my/projects/{}", project_of(&ann, &workspace).await);
    let setup = ProjectSetup { user: ann.clone(), project, name: "default".into() };
    ann.upload(&workspace, "a.txt", "one\n").await.expect(201);
    let host = server.program("ann", "agent", &setup.project);
    let read = call(&host, &mount, "read_file", json!({"path": "a.txt"})).await;
    assert_eq!(read, ("one\n".to_owned(), false));
    for (how, body, expected) in
        [("reject", json!({"reason": "not now"}), "one\n"), ("approve", json!({}), "two\n")]
    {
        let (asker, to) = (host.clone(), mount.clone());
        let write = json!({"path": "a.txt", "content": "two\n"});
        let asking = tokio::spawn(async move { call(&asker, &to, "write_file", write).await });
        let pending = eventually("a person is asked", async || {
            let list = ann.get(&format!("{}/approvals", setup.project)).await.expect(200);
            list["approvals"].get(0).cloned()
        })
        .await;
        assert!(
            pending["preview"]["diff"].as_str().is_some_and(|diff| diff.contains("+two")),
            "{pending}"
        );
        setup.decide(&pending, how, body).await;
        let (printed, error) = asking.await.unwrap();
        assert_eq!(
            (error, printed.contains("not now")),
            (how == "reject", how == "reject"),
            "{printed}"
        );
        let read = call(&host, &mount, "read_file", json!({"path": "a.txt"})).await;
        assert_eq!(read, (expected.to_owned(), false));
    }
    // A run changes files without being seen, so it is refused here.
    let (printed, error) = call(&host, &mount, "begin_run", json!({})).await;
    assert!(error && printed.contains("where people are asked"), "{printed}");
}

/// FS-06 FS-17: a host creates, changes, deletes and presents ordinary files, and reads back what
/// the person uploaded.
#[rstest]
#[tokio::test]
async fn hosts_work_on_ordinary_files(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mount = mount_of(&workspace);
    let host = server.program("ann", "agent", &project_of(&ann, &workspace).await);
    ann.upload(&workspace, "credentials.csv", "user,key\n").await.expect(201);
    let call = async |tool: &str, arguments: Value| call(&host, &mount, tool, arguments).await;
    let read = call("read_file", json!({"path": "credentials.csv"})).await;
    assert_eq!(read, ("user,key\n".to_owned(), false));
    let ordinary = ["Makefile", "package.json", "run.sh", "report.ipynb", ".gitignore", "update"];
    for path in ordinary {
        let (printed, error) = call("write_file", json!({"path": path, "content": "x"})).await;
        assert!(!error, "{printed}");
        let edits = json!([{"old_text": "x", "new_text": "y"}]);
        let (printed, error) = call("edit_file", json!({"path": path, "edits": edits})).await;
        assert!(!error, "{printed}");
        assert_eq!(call("read_file", json!({"path": path})).await, ("y".to_owned(), false));
    }
    let presented = call("present_files", json!({"paths": ["run.sh"]})).await;
    assert!(!presented.1 && presented.0.contains("run.sh"), "{}", presented.0);
    let (printed, error) = call("delete_file", json!({"path": "update"})).await;
    assert!(!error, "{printed}");
    let files = ann.get(&workspace).await.expect(200)["files"].as_array().unwrap().clone();
    assert_eq!(files.len(), ordinary.len(), "{files:?}");
    let shown = files.iter().find(|file| file["is_presented"] == true).unwrap();
    assert_eq!(shown["file_path"], "run.sh");
    // A deletion is undone by restoring.
    let deleted = ann.get(&format!("{workspace}?status=deleted")).await.expect(200);
    let file = &deleted["files"][0];
    assert_eq!((&deleted["file_count"], &file["file_path"]), (&json!(1), &json!("update")));
    let path = format!("{workspace}/files/{}", file["file_id"].as_str().unwrap());
    assert_eq!(ann.get(&path).await.problem(), (404, "not_found"));
    let restored = ann.post(&format!("{path}/restore"), json!({"version": 2})).await.expect(200);
    assert_eq!((&restored["version"], &restored["status"]), (&json!(3), &json!("active")));
    assert_eq!(call("read_file", json!({"path": "update"})).await, ("y".to_owned(), false));
    for (tool, arguments) in [
        ("write_file", json!({"path": "x.exe", "content": "MZ"})),
        ("write_file", json!({"path": "../x", "content": ""})),
        ("write_file", json!({"path": ".atelierignore", "content": ""})),
    ] {
        assert!(call(tool, arguments).await.1, "{tool}");
    }
}

/// FS-15: a host learns that the workspace is disabled, and nothing is written.
#[rstest]
#[tokio::test]
async fn disabled_workspace_is_closed_to_hosts(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    ann.upload(&workspace, "a.txt", "kept").await.expect(201);
    let mount = mount_of(&workspace);
    let conversation = workspace.replace("/workspace/", "/conversations/");
    ann.patch(&conversation, json!({"workspace_enabled": false})).await.expect(200);
    let off = ("Error: the workspace of this conversation is switched off".to_owned(), true);
    assert_eq!(call(&ann, &mount, "read_file", json!({"path": "a.txt"})).await, off);
    assert_eq!(
        call(&ann, &mount, "write_file", json!({"path": "a.txt", "content": "x"})).await,
        off
    );
    let info = ann.get(&workspace).await.expect(200);
    assert_eq!(
        json!([info["files"][0]["version"], info["files"].as_array().unwrap().len()]),
        json!([1, 1])
    );

    ann.patch(&conversation, json!({"workspace_enabled": true})).await.expect(200);
    let read = call(&ann, &mount, "read_file", json!({"path": "a.txt"})).await;
    assert_eq!(read, ("kept".to_owned(), false));
}

/// WS-09.1 TL-07.1
#[rstest]
#[tokio::test]
async fn only_hosts_of_the_owner_have_access(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values("projects", "conversations")] place: &str,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let (mount, project) = match place {
        "projects" => {
            let project = ann.project("shop").await;
            (project.replace("/my/", "/mcp/"), project)
        }
        _ => {
            let workspace = ann.workspace().await;
            (mount_of(&workspace), project_of(&ann, &workspace).await)
        }
    };
    let nobodys = format!("/mcp/{place}/{}", Uuid::now_v7());
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let status = async |user: &User, path: &str| -> StatusCode {
        user.request(Method::POST, path).json(&ping).send().await.unwrap().status()
    };
    for (user, expected) in [
        (&ann, 200),
        (&server.program("ann", "agent", &project), 200),
        (&server.program("ann", "client", &project), 403),
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

/// WS-11.3 WS-11.4: the rules of the server and of the project apply to hosts as they apply to
/// agents.
#[rstest]
#[tokio::test]
async fn rules_apply_to_hosts_in_a_conversation(#[values(Sqlite, Postgres)] backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("atelier.toml");
    let ledger = r#"
        [[policy.files]]
        id = "ledger"
        verdict = "deny"
        on = ["read", "write"]
        reason = "The books are closed."
        names = ["ledger.*"]
        examples = { match = ["ledger.csv"], other = ["report.csv"] }
    "#;
    std::fs::write(&config, ledger).unwrap();
    let server = build(backend).argument(format!("--config={}", config.display())).start().await;
    let ann = server.user("ann");
    let new = json!({"name": "sheets", "workspace": "conversation"});
    let project =
        ann.post("/my/projects", new).await.expect(201)["id"].as_str().unwrap().to_owned();
    let conversations = "/api/tenants/default/conversations";
    let conversation = ann.post(conversations, json!({"project_id": project})).await.expect(201);
    let workspace =
        format!("/api/tenants/default/workspace/{}", conversation["id"].as_str().unwrap());
    let mount = mount_of(&workspace);
    let files = ["ledger.csv", ".env", "run.sh", "plain.txt", ".atelierignore"];
    for name in files {
        // As an `.atelierignore`, this content is only a comment, so it hides nothing.
        ann.upload(&workspace, name, "# mine").await.expect(201);
    }
    let read = async |path: &str| call(&ann, &mount, "read_file", json!({"path": path})).await;
    let write = async |path: &str| {
        call(&ann, &mount, "write_file", json!({"path": path, "content": "theirs"})).await
    };
    let why = "The books are closed.";
    let (printed, error) = read("ledger.csv").await;
    assert!(
        error && printed.starts_with("Error: Access denied") && printed.ends_with(why),
        "{printed}"
    );
    let (printed, error) = call(&ann, &mount, "get_file_info", json!({"path": "ledger.csv"})).await;
    assert!(error && printed.ends_with(why), "{printed}");
    assert_eq!(read(".env").await, ("# mine".to_owned(), false));
    for path in ["ledger.csv", ".atelierignore", "x.exe"] {
        let (printed, error) = write(path).await;
        assert!(error && printed.starts_with("Error: Failed to write file"), "{path}: {printed}");
    }
    assert_eq!(read("plain.txt").await, ("# mine".to_owned(), false));
    assert!(!write("plain.txt").await.1);

    let policy = json!({"settings": {"policy": {"deny": ["write_file", "read_file"]}}});
    ann.put(&format!("/my/projects/{project}"), policy).await.expect(200);
    for (printed, error) in [write("plain.txt").await, read("plain.txt").await] {
        assert!(error && printed.contains("This project"), "{printed}");
    }
    let info = ann.get(&workspace).await.expect(200);
    for file in info["files"].as_array().unwrap() {
        let version = if file["file_path"] == "plain.txt" { 2 } else { 1 };
        assert_eq!(file["version"], version, "{file}");
    }
    assert_eq!(info["files"].as_array().unwrap().len(), files.len());
}

/// FS-03 FS-05 FS-18: a host works in the folder with tools of its own between `begin_run` and
/// `end_run`. What somebody changed there before becomes a version, or a copy beside a newer one.
#[rstest]
#[tokio::test]
async fn hosts_begin_and_end_runs(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mount = mount_of(&workspace);
    let host = server.program("ann", "agent", &project_of(&ann, &workspace).await);
    let call = async |tool: &str, arguments: Value| {
        let (said, error) = call(&host, &mount, tool, arguments).await;
        let answer: Value = serde_json::from_str(&said).unwrap_or_else(|_| json!(said));
        (answer, error)
    };
    for name in ["a.txt", "both.txt"] {
        ann.upload(&workspace, name, "one").await.expect(201);
    }
    ann.post(&format!("{workspace}/sync"), json!({})).await.expect(200);
    let folder = server.data().join("workspaces").join(workspace.rsplit('/').next().unwrap());
    std::fs::write(folder.join("outside.txt"), "made outside a run").unwrap();
    std::fs::write(folder.join("both.txt"), "changed outside a run").unwrap();
    ann.upload(&workspace, "both.txt", "uploaded").await.expect(201);

    let (run, error) = call("begin_run", json!({"lease_seconds": 60})).await;
    assert!(!error, "{run}");
    assert_eq!(run["workspace_path"], json!(folder));
    assert_eq!(std::fs::read_to_string(folder.join("both.txt")).unwrap(), "uploaded");
    std::fs::write(folder.join("a.txt"), "two").unwrap();
    std::fs::write(folder.join("made.txt"), "made").unwrap();
    let end = json!({"run_id": run["run_id"]});
    let (report, error) = call("end_run", end.clone()).await;
    assert!(!error, "{report}");
    assert_eq!(
        json!([report["created"], report["modified"], report["deleted"]]),
        json!([["made.txt"], ["a.txt"], []])
    );
    let (again, error) = call("end_run", end).await;
    assert!(error && again.as_str().is_some_and(|said| said.contains("no such run")), "{again}");
    let files = ann.get(&workspace).await.expect(200)["files"].clone();
    let shown = |file: &Value| json!([file["file_path"], file["version"], file["source"]]);
    assert_eq!(
        files.as_array().unwrap().iter().map(shown).collect::<Vec<_>>(),
        [
            json!(["a.txt", 2, "ai_modified"]),
            json!(["both.agent-copy.txt", 1, "ai_created"]),
            json!(["both.txt", 2, "user_upload"]),
            json!(["made.txt", 1, "ai_created"]),
            json!(["outside.txt", 1, "ai_created"]),
        ]
    );
    let (refused, error) = call("begin_run", json!({"seconds": 1})).await;
    assert!(error, "{refused}");
}

const ATTACKS: &str = include_str!("../../../atelier-core/tests/data/path_attacks.json");

/// MC-07: every attack of the corpus that is one by its text alone is refused.
#[tokio::test]
async fn path_attacks_on_the_mounts_are_refused() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let setup = ProjectSetup::new(ann.clone()).await;
    let machine = Machine::new();
    // The files that the corpus expects.
    ann.upload(&workspace, "notes.txt", "plain\n").await.expect(201);
    machine.write("notes.txt", "plain\n");
    let _client = machine.connect(&setup, &server.url).await;
    let mounts = [mount_of(&workspace), setup.project.replace("/my/", "/mcp/")];
    // A lone surrogate cannot be in a Rust string.
    let attacks: Value = serde_json::from_str(&ATTACKS.replace("\\ud800", "\\u202e")).unwrap();
    let mut tried = 0;
    for case in attacks.as_array().unwrap() {
        if case["expect"] != "deny" || case["class"] != "attack" || case["setup"] != json!([]) {
            continue;
        }
        let path = case["path"].as_str().unwrap();
        let path = path.replace("$OUT", "/somewhere/out").replace("$WS", "/somewhere/ws");
        let (tool, arguments) = match case["op"].as_str().unwrap() {
            "read" => ("read_file", json!({"path": path})),
            "write" => ("write_file", json!({"path": path, "content": "evil"})),
            "list" => ("list_directory", json!({"path": path})),
            "create_dir" => ("create_directory", json!({"path": path})),
            "info" => ("get_file_info", json!({"path": path})),
            "search" => ("search_files", json!({"path": path, "pattern": case["pattern"]})),
            _ => continue,
        };
        // Calls that change a user's machine need an approval, and nobody answers here.
        let looks = !matches!(tool, "write_file" | "create_directory");
        for mount in mounts.iter().take(if looks { 2 } else { 1 }) {
            let (printed, error) = call(&ann, mount, tool, arguments.clone()).await;
            assert!(error, "{}: {tool} {path:?} at {mount}: {printed}", case["id"]);
            assert!(!printed.contains("root:"), "{}: {printed}", case["id"]);
        }
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
    let info = ann.get(&workspace).await.expect(200);
    let files: Vec<Value> = info["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| json!([file["file_path"], file["version"]]))
        .collect();
    assert_eq!(files, [json!(["notes.txt", 1])], "nothing came of any of them");
}

/// A known method with wrong parameters is reported as such, and an invalid request is answered.
#[tokio::test]
async fn malformed_requests_to_the_mounts_are_answered() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let mount = mount_of(&ann.workspace().await);
    let post = async |body: &str| -> Value {
        let request = ann.request(Method::POST, &mount).header("content-type", "application/json");
        request.body(body.to_owned()).send().await.unwrap().json().await.unwrap()
    };
    for (body, code) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":[1]}}"#,
            -32602,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
    ] {
        assert_eq!(post(body).await["error"]["code"], code, "{body}");
    }
}
