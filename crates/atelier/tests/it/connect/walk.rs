//! Reading, writing, running and refusing: what a user and an agent do every day.

use super::client::{Machine, ProjectSetup};
use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// WS-11.1 WS-11.2 WS-12.1 TL-06.2: the folder exists without the server; a read runs there without
/// approval, and its content comes back.
#[rstest]
#[tokio::test]
async fn agent_reads_a_file(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    machine.write("src/main.js", "let a = 1\n");
    let before = machine.files();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    // The call is requested before a client is connected, so it waits for one.
    let early = setup.execute("read_file", json!({"path": "README.md"})).await;
    assert_eq!(early["status"], "approved");
    let mut client = machine.connect(&setup, &server.url).await;
    let read = setup.until(&early, "completed").await;
    assert_eq!(
        (&read["result"]["content"], &read["result"]["size"]),
        (&json!("# Shop\n"), &json!(7))
    );

    let absolute = machine.root().join("src/main.js");
    let call = setup.execute("tool_read_file", json!({"path": absolute})).await;
    assert_eq!(setup.until(&call, "completed").await["result"]["content"], "let a = 1\n");
    let call = setup.execute("grep", json!({"pattern": "let", "path": "."})).await;
    assert_eq!(setup.until(&call, "completed").await["result"]["count"], 1);
    let call = setup.execute("execute_command", json!({"command": "ls", "args": ["src"]})).await;
    assert_eq!(setup.until(&call, "completed").await["result"]["stdout"], "main.js\n");
    let call = setup.execute("read_file", json!({"path": "no.txt"})).await;
    assert_eq!(setup.until(&call, "failed").await["error"]["code"], "not_found");

    let reported = client.output();
    for words in
        [machine.root().to_str().unwrap(), &setup.name, &server.url, "Sandbox", "Toolchains"]
    {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    let known = &setup.clients().await[0];
    assert_eq!(known["root"], json!(machine.root()));
    assert!(known["isolation"]["words"].is_string(), "{known}");
    client.interrupt().await;
    assert_eq!(setup.clients().await, Vec::<Value>::new());
    assert_eq!(machine.files(), before, "nothing but approved calls writes into the folder");
    // The folder is still there without the server.
    drop(server);
    assert_eq!(machine.read("README.md"), "# Shop\n");
}

/// TL-06.3 WS-12.1: the user sees the difference and approves it, exactly those bytes are written,
/// and nothing else changes.
#[rstest]
#[tokio::test]
async fn agent_changes_a_file_after_approval(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("a.txt", "one\ntwo\nthree\n");
    machine.write("b.txt", "untouched\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let write = |content: &str| json!({"path": "a.txt", "content": content});

    let call = setup.execute("write_file", write("one\n2\nthree\n")).await;
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(
        asked["preview"]["diff"],
        "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    );
    assert_eq!(machine.read("a.txt"), "one\ntwo\nthree\n", "not before it is approved");
    setup.decide(&asked, "approve", json!({})).await;
    let done = setup.until(&call, "completed").await;
    assert_eq!(machine.read("a.txt"), "one\n2\nthree\n");
    assert_eq!(done["result"]["replaced_checksum"], asked["preview"]["base_checksum"]);

    let call = setup.execute("write_file", write("never\n")).await;
    let asked = setup.until(&call, "pending_approval").await;
    setup.decide(&asked, "reject", json!({"reason": "no"})).await;
    assert_eq!(setup.show(&call).await["status"], "rejected");

    setup
        .approved(
            "edit_file",
            json!({"path": "a.txt", "edits": [{"old_text": "2", "new_text": "zwei"}]}),
        )
        .await;
    eventually("edited", async || (machine.read("a.txt") == "one\nzwei\nthree\n").then_some(()))
        .await;
    let new = json!({"path": "new/c.txt", "content": "c", "create_dirs": true});
    let call = setup.approved("write_file", new).await;
    assert_eq!(call["preview"]["base_checksum"], Value::Null);
    setup.until(&call, "completed").await;
    let files: Vec<String> = machine
        .files()
        .keys()
        .map(|path| path.strip_prefix(machine.root()).unwrap().display().to_string())
        .collect();
    assert_eq!(files, ["a.txt", "b.txt", "new", "new/c.txt"]);
    assert_eq!(
        (machine.read("new/c.txt"), machine.read("b.txt")),
        ("c".to_owned(), "untouched\n".to_owned())
    );
}

/// Events stay small: the client fetches large parameters by a link.
#[rstest]
#[tokio::test]
async fn large_file_is_linked_in_the_event_and_written_whole(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let content = "0123456789abcdef\n".repeat(60_000);
    let call = setup.approved("write_file", json!({"path": "big.txt", "content": content})).await;
    setup.until(&call, "completed").await;
    assert_eq!(machine.read("big.txt"), content);
    let mut events = setup.user.events(&format!("{}/events", setup.project), Some("0")).await;
    let signal = events.until("TOOL_EXECUTION_SIGNAL").await;
    let link = signal.data["tool_params"]["$link"].as_str().expect("a link");
    assert_eq!(setup.user.get(link).await.expect(200)["tool_params"]["content"], content);
}

/// TL-06.3: the approved content is what is written. A file that has changed meanwhile is shown and
/// asked about again.
#[rstest]
#[tokio::test]
async fn change_of_a_file_after_approval_is_asked_about_again(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    for (path, meanwhile) in [("a.txt", "older\n"), ("fresh.txt", "sudden\n")] {
        let call = setup.execute("write_file", json!({"path": path, "content": "new\n"})).await;
        let first = setup.until(&call, "pending_approval").await;
        machine.write(path, meanwhile);
        setup.decide(&first, "approve", json!({})).await;
        let second = eventually("asked again", async || {
            let now = setup.show(&call).await;
            let again =
                now["status"] == "pending_approval" && now["approval_id"] != first["approval_id"];
            again.then_some(now)
        })
        .await;
        assert_eq!(machine.read(path), meanwhile);
        let removed = format!("-{meanwhile}");
        assert!(second["preview"]["diff"].as_str().unwrap().contains(&removed), "{second}");
        setup.decide(&second, "approve", json!({})).await;
        setup.until(&call, "completed").await;
        assert_eq!(machine.read(path), "new\n");
    }
    client.prints("asking again").await;
}

#[rstest]
#[tokio::test]
async fn change_that_cannot_be_made_fails_without_a_question(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    std::os::unix::fs::symlink("a.txt", machine.root().join("link.txt")).unwrap();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let edit = json!({"path": "a.txt", "edits": [{"old_text": "absent", "new_text": "x"}]});
    for (tool, params, code) in [
        ("edit_file", edit, "edit_mismatch"),
        ("write_file", json!({"path": "link.txt", "content": "x"}), "link_refused"),
    ] {
        let call = setup.execute(tool, params).await;
        let failed = setup.until(&call, "failed").await;
        assert_eq!(
            (&failed["error"]["code"], &failed["approval_id"]),
            (&json!(code), &Value::Null),
            "{failed}"
        );
    }
    assert_eq!(machine.read("a.txt"), "old\n");
}

/// TL-06.1: the machine's rules have the last word, even after the server's approval.
#[rstest]
#[tokio::test]
async fn machine_refuses_by_its_own_rules(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("a.txt", "a\n");
    machine.write("secret.txt", "s\n");
    std::fs::write(machine.root().join("../outside.txt"), "OUTSIDE").unwrap();
    std::os::unix::fs::symlink("../outside.txt", machine.root().join("door.txt")).unwrap();
    machine.rules(
        "[policy]\ndeny = [\"create_directory\", \"write_file\"]\nat_least = { grep = \"medium\" }\n",
    );
    let before = machine.files();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    // The owner approved the call, and the machine still refuses it.
    let call = setup.approved("create_directory", json!({"path": "d"})).await;
    assert_eq!(setup.until(&call, "failed").await["error"]["code"], "command_not_allowed");
    // The call is LOW on the server and higher here. Nobody approved it, so the user is asked.
    let call = setup.execute("grep", json!({"pattern": "s", "path": "."})).await;
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(
        (&asked["risk_level"], &asked["reason"]),
        (&json!("MEDIUM"), &json!("This machine rates grep as MEDIUM."))
    );
    setup.decide(&asked, "approve", json!({})).await;
    setup.until(&call, "completed").await;
    // The path is harmless as text, but leads out of the folder on this machine.
    let call = setup.execute("read_file", json!({"path": "door.txt"})).await;
    let refused = setup.until(&call, "failed").await;
    assert_eq!(refused["error"]["code"], "path_outside_workspace");
    assert!(!refused.to_string().contains("OUTSIDE"), "{refused}");
    // The call is refused before anybody is asked.
    let call = setup.execute("write_file", json!({"path": "a.txt", "content": "x"})).await;
    assert_eq!(setup.until(&call, "failed").await["approval_id"], Value::Null);
    client.prints("refused by this machine").await;
    assert_eq!(machine.files(), before);
}

/// TL-06.5 WS-11.3 WS-11.4
#[rstest]
#[tokio::test]
async fn denied_call_never_reaches_the_machine(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("src/a.txt", "a\n");
    let before = machine.files();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    for (tool, params) in [
        ("execute_command", json!({"command": "rm", "args": ["-rf", "/"]})),
        ("execute_command", json!({"command": "sh", "args": ["-c", "id"]})),
        ("read_file", json!({"path": "/etc/passwd"})),
        ("read_file", json!({"path": server.data().join("secret.key")})),
        ("delete_file", json!({"path": "src/"})),
        ("move_file", json!({"source": ".", "destination": "elsewhere"})),
    ] {
        let call = setup.execute(tool, params).await;
        assert_eq!(call["status"], "denied", "{call}");
        let rm = call["tool_params"]["command"] == "rm";
        assert!(
            !rm || call["error"]["detail"].as_str().unwrap().starts_with("Command not allowed"),
            "{call}"
        );
    }
    // Only the file system shows that this is a top-level directory, so the machine denies the
    // call, and nobody is asked.
    let call =
        setup.execute("move_file", json!({"source": "src", "destination": "elsewhere"})).await;
    assert_eq!(setup.until(&call, "failed").await["approval_id"], Value::Null);
    let call = setup.execute("list_directory", json!({"path": "."})).await;
    setup.until(&call, "completed").await;
    assert!(!client.output().contains("rm -rf"), "{}", client.output());
    assert_eq!(machine.files(), before);
}

/// WS-12.2 WS-12.3: a stranger cannot tell whether the project or the folder exists.
#[rstest]
#[tokio::test]
async fn stranger_reaches_neither_project_nor_folder(#[values(Sqlite, Postgres)] backend: Backend) {
    let (anns, bobs) = (Machine::new(), Machine::new());
    anns.write("a.txt", "ann's\n");
    bobs.write("a.txt", "bob's\n");
    let server = start(backend).await;
    let ann = ProjectSetup::new(server.user("ann")).await;
    let mut bob = ProjectSetup::new(server.user("bob")).await;
    let _ann = anns.connect(&ann, &server.url).await;
    let _bob = bobs.connect(&bob, &server.url).await;
    let call = ann.execute("read_file", json!({"path": "a.txt"})).await;
    assert_eq!(ann.until(&call, "completed").await["result"]["content"], "ann's\n");
    let call = bob.execute("read_file", json!({"path": "a.txt"})).await;
    assert_eq!(bob.until(&call, "completed").await["result"]["content"], "bob's\n");
    let foreign = bob.execute("read_file", json!({"path": anns.root().join("a.txt")})).await;
    assert_eq!(foreign["error"]["code"], "path_outside_workspace");
    assert!(!foreign["error"].to_string().contains(anns.root().to_str().unwrap()), "{foreign}");

    let body = json!({"tool_name": "read_file", "tool_params": {"path": "a.txt"}});
    let theirs = bob.user.post(&format!("{}/tools/execute", ann.project), body).await;
    assert_eq!(theirs.problem(), (404, "not_found"));
    bob.name = ann.project.rsplit('/').next().unwrap().to_owned();
    let mut stranger = super::client::ConnectProcess::start(bobs.command(&bob, &server.url, &[]));
    assert!(!stranger.ended().await.success());
    stranger.prints("you have no project").await;
}

/// `--yes-low-only` runs LOW calls and refuses all others.
#[tokio::test]
async fn yes_low_only_refuses_everything_but_low() {
    let machine = Machine::new();
    machine.write("a.txt", "a\n");
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect_with(&setup, &server.url, &["--yes-low-only"]).await;
    let call = setup.execute("read_file", json!({"path": "a.txt"})).await;
    setup.until(&call, "completed").await;
    let call = setup.execute("write_file", json!({"path": "a.txt", "content": "b"})).await;
    assert_eq!(setup.until(&call, "failed").await["error"]["code"], "low_only");
    let call = setup.approved("create_directory", json!({"path": "d"})).await;
    assert_eq!(setup.until(&call, "failed").await["error"]["code"], "low_only");
    assert_eq!(machine.files().len(), 1);
}

/// The machine ends the command and reports it.
#[rstest]
#[tokio::test]
async fn running_command_can_be_cancelled(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write(
        "wait.py",
        "import os, time\nopen(os.path.expanduser('~/began'), 'w').close()\ntime.sleep(100)\n",
    );
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    let call =
        setup.approved("execute_command", json!({"command": "python3", "args": ["wait.py"]})).await;
    eventually("it runs", async || machine.in_commands_home("began")).await;
    let path = format!("tools/{}/cancel", call["tool_id"].as_str().unwrap());
    assert_eq!(setup.post(&path, json!({})).await.expect(200)["status"], "unknown");
    client.prints("Cancelled (cancelled)").await;
    assert_eq!(setup.until(&call, "cancelled").await["error"]["code"], "cancelled");
}

/// TL-06.1 TL-07.1: the link looks harmless to the server; the machine sees that it leads to a
/// secret file, and the user is asked.
#[rstest]
#[tokio::test]
async fn link_to_a_secret_file_is_asked_about(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write(".env", "TOKEN=1\n");
    std::os::unix::fs::symlink(".env", machine.root().join("notes.txt")).unwrap();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let call = setup.execute("read_file", json!({"path": "notes.txt"})).await;
    assert_eq!(call["risk_level"], "LOW");
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(asked["risk_level"], "HIGH");
    setup.decide(&asked, "approve", json!({})).await;
    assert_eq!(setup.until(&call, "completed").await["result"]["content"], "TOKEN=1\n");
}

/// TL-06.1: a command that the server allows runs only on machines whose owner accepts it.
#[rstest]
#[tokio::test]
async fn server_rule_loosens_only_what_the_machine_accepts(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    let server = build(backend)
        .with("POLICY__ALLOW", r#"["curl"]"#)
        .with("POLICY__NARROW__DENY", r#"["npm"]"#)
        .start()
        .await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let version = json!({"command": "curl", "args": ["--version"]});
    {
        let client = machine.connect(&setup, &server.url).await;
        client.prints("accept = [\"curl\"] in client.toml").await;
        let call = setup.approved("execute_command", version.clone()).await;
        let failed = setup.until(&call, "failed").await;
        assert_eq!(failed["error"]["code"], "command_not_allowed");
        let detail = failed["error"]["detail"].as_str().unwrap();
        assert!(detail.contains("accept = [\"curl\"] in client.toml"), "{detail}");
    }
    machine.rules("accept = [\"curl\"]");
    let client = machine.connect(&setup, &server.url).await;
    client.prints("the server's own rules for curl apply (you accepted them)").await;
    let call = setup.approved("execute_command", version).await;
    let ended = eventually("it ran", async || {
        let now = setup.show(&call).await;
        (now["completed_at"] != Value::Null).then_some(now)
    })
    .await;
    // The command ran, unless this machine has no curl.
    assert!(
        ["command_not_found", ""].contains(&ended["error"]["code"].as_str().unwrap_or("")),
        "{ended}"
    );
    let npm =
        setup.execute("execute_command", json!({"command": "npm", "args": ["install"]})).await;
    assert_eq!(npm["error"]["detail"], "Command not allowed: This server does not allow npm.");
}

/// TL-06.1: another machine of the user showed something else than the call would do, and the
/// user approved it. The machine that gets the call computes what it would change itself, and asks
/// again.
#[rstest]
#[tokio::test]
async fn machine_does_not_run_what_was_not_shown(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("a.txt", "one\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let liar = uuid::Uuid::now_v7();
    let register = json!({"client_id": liar, "root": "/elsewhere", "os": "linux", "isolation": {}});
    setup.post("clients", register).await.expect(200);
    let call = setup.execute("write_file", json!({"path": "a.txt", "content": "evil\n"})).await;
    let base: String = Sha256::digest("one\n").iter().map(|byte| format!("{byte:02x}")).collect();
    let preview = json!({"client_id": liar, "base_checksum": base, "diff": "-one\n+harmless\n"});
    let asked =
        setup.post(&format!("tools/{}/preview", call["tool_id"].as_str().unwrap()), preview).await;
    let asked = asked.expect(200);
    setup.user.delete(&format!("{}/clients/{liar}", setup.project)).await.expect(204);
    setup.decide(&asked, "approve", json!({})).await;
    let _client = machine.connect(&setup, &server.url).await;
    let again = eventually("asked again", async || {
        let now = setup.show(&call).await;
        (now["status"] == "pending_approval").then_some(now)
    })
    .await;
    assert_eq!(machine.read("a.txt"), "one\n");
    assert_eq!(again["preview"]["diff"], "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+evil\n");
    assert_eq!(again["preview"]["base_checksum"], json!(base), "the base alone did not tell");
    setup.decide(&again, "approve", json!({})).await;
    setup.until(&call, "completed").await;
    assert_eq!(machine.read("a.txt"), "evil\n");
}

/// TL-06.3: whoever decides about a deletion or a move sees what is there now, under the names that
/// the tool has for its parameters.
#[rstest]
#[tokio::test]
async fn deletion_and_move_show_what_is_there(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("src/a.txt", "one\ntwo\n");
    machine.write("src/.env", "KEY=SECRET-42");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let call = setup.execute("move_file", json!({"from": "src/a.txt", "to": "./src//b.txt"})).await;
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(asked["tool_params"], json!({"source": "src/a.txt", "destination": "src/b.txt"}));
    assert_eq!(
        asked["preview"]["diff"],
        "Moves src/a.txt: a text file of 8 bytes, 2 lines\n\
         to src/b.txt. Nothing is there, so nothing is overwritten.\n"
    );
    setup.decide(&asked, "approve", json!({})).await;
    setup.until(&call, "completed").await;
    assert_eq!(machine.read("src/b.txt"), "one\ntwo\n");

    let call = setup.execute("delete_file", json!({"path": "src/b.txt"})).await;
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(
        asked["preview"]["diff"],
        "Deletes src/b.txt: a text file of 8 bytes, 2 lines\n--- a/src/b.txt\n+++ /dev/null\n\
         @@ -1,2 +0,0 @@\n-one\n-two\n"
    );
    // What is deleted is what was shown.
    machine.write("src/b.txt", "three\n");
    setup.decide(&asked, "approve", json!({})).await;
    let again = eventually("asked again", async || {
        let now = setup.show(&call).await;
        let anew = now["approval_id"] != asked["approval_id"];
        (anew && now["status"] == "pending_approval").then_some(now)
    })
    .await;
    assert!(again["preview"]["diff"].as_str().unwrap().ends_with("-three\n"), "{again}");
    assert_eq!(machine.read("src/b.txt"), "three\n");
    setup.decide(&again, "approve", json!({})).await;
    setup.until(&call, "completed").await;

    let call = setup.execute("delete_file", json!({"path": "src/.env"})).await;
    let asked = setup.until(&call, "pending_approval").await;
    assert_eq!(
        asked["preview"]["diff"],
        "Deletes src/.env: a file of 13 bytes whose content is not shown\n"
    );
}
