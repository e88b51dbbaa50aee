//! Trying in a layer and landing: scripts run without a question, and people decide about what they
//! have changed.

use super::client::{Machine, ProjectSetup};
use crate::{chat::Chat, start};
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::{Value, json};

/// A conversation whose calls are made directly.
struct Conversation {
    setup: ProjectSetup,
    session: String,
}

impl Conversation {
    async fn of(setup: &ProjectSetup) -> Self {
        let session = setup.post("chat/sessions/", json!({})).await.expect(201);
        Self { setup: setup.clone(), session: session["id"].as_str().unwrap().to_owned() }
    }

    async fn execute(&self, tool: &str, params: Value) -> Value {
        let call = json!({"tool_name": tool, "tool_params": params, "session_id": self.session});
        self.setup.post("tools/execute", call).await.expect(200)
    }

    /// Makes a call about which nobody is asked, and returns its result.
    async fn run(&self, tool: &str, params: Value) -> Value {
        let call = self.execute(tool, params).await;
        let done = self.setup.until(&call, "completed").await;
        assert_eq!((&done["risk_level"], &done["approval"]), (&json!("LOW"), &Value::Null));
        done["result"].clone()
    }

    async fn shell(&self, script: &str) -> Value {
        self.run("shell", json!({"script": script})).await
    }

    /// Makes a call that a person is asked about, and returns it as they see it.
    async fn asked(&self, tool: &str, params: Value) -> Value {
        let call = self.execute(tool, params).await;
        self.setup.until(&call, "pending_approval").await
    }

    async fn approved(&self, asked: &Value, scope: &str) -> Value {
        self.setup.decide(asked, "approve", json!({"scope": scope})).await;
        self.setup.until(asked, "completed").await["result"].clone()
    }

    /// The paths that differ between the layer and the folder, each with how.
    async fn changes(&self) -> Vec<(String, String)> {
        let listed = self.run("changes", json!({})).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let files = listed["files"].as_array().unwrap();
        files.iter().map(|file| (text(&file["path"]), text(&file["change"]))).collect()
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(path, how)| ((*path).to_owned(), (*how).to_owned())).collect()
}

/// LY-01 LY-02 LY-03: scripts change nothing but the layer; the landing is asked about once, with
/// the whole difference; and it can be undone.
#[rstest]
#[tokio::test]
async fn tried_changes_land_after_one_question_and_can_be_undone(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("src/a.txt", "one\ntwo\n");
    machine.write("src/b.txt", "two\n");
    let before = machine.files();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;

    let ran = talk
        .shell("grep -rl two src | sort | tee list.txt | xargs sed -i s/two/2/; wc -l < list.txt")
        .await;
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(0), &json!("2\n")), "{ran}");
    assert_eq!((&ran["changes"]["added"], &ran["changes"]["changed"]), (&json!(1), &json!(2)));
    assert_eq!(machine.files(), before, "the folder stays as it is");
    // The layer is kept between calls, and the file tools see the folder.
    assert_eq!(talk.shell("cat src/b.txt; rm list.txt").await["stdout"], "2\n");
    let read = talk.run("read_file", json!({"path": "src/b.txt"})).await;
    assert_eq!(read["content"], "two\n");
    let listed = pairs(&[("src/a.txt", "changed"), ("src/b.txt", "changed")]);
    assert_eq!(talk.changes().await, listed);

    let asked = talk.asked("land", json!({})).await;
    assert_eq!((&asked["risk_level"], &asked["tool_name"]), (&json!("MEDIUM"), &json!("land")));
    let diff = asked["preview"]["diff"].as_str().unwrap();
    let whole = "diff --git a/src/a.txt b/src/a.txt\n--- a/src/a.txt\n+++ b/src/a.txt\n\
        @@ -1,2 +1,2 @@\n one\n-two\n+2\ndiff --git a/src/b.txt b/src/b.txt\n--- a/src/b.txt\n\
        +++ b/src/b.txt\n@@ -1,1 +1,1 @@\n-two\n+2\n";
    assert_eq!(diff, whole);
    assert_eq!(machine.files(), before, "not before it is approved");
    let landed = talk.approved(&asked, "once").await;
    assert_eq!(landed["landed"].as_array().unwrap().len(), 2, "{landed}");
    assert_eq!(
        (machine.read("src/a.txt"), machine.read("src/b.txt")),
        ("one\n2\n".into(), "2\n".into())
    );
    assert_eq!(talk.changes().await, []);

    let asked = talk.asked("undo", json!({})).await;
    assert!(asked["preview"]["diff"].as_str().unwrap().contains("-2\n+two\n"), "{asked}");
    talk.approved(&asked, "once").await;
    assert_eq!(machine.files(), before);
}

/// LY-04: what a person rejects does not land, and stays in the layer until it is discarded.
#[tokio::test]
async fn rejected_landing_changes_nothing() {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    let before = machine.files();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    talk.shell("echo new > a.txt; echo more > b.txt").await;
    let asked = talk.asked("land", json!({"paths": ["a.txt"]})).await;
    assert!(!asked["preview"]["diff"].as_str().unwrap().contains("b.txt"), "{asked}");
    setup.decide(&asked, "reject", json!({"reason": "no"})).await;
    assert_eq!(setup.until(&asked, "rejected").await["error"]["code"], "approval_rejected");
    assert_eq!(machine.files(), before);
    assert_eq!(talk.changes().await, pairs(&[("a.txt", "changed"), ("b.txt", "added")]));
    talk.run("discard", json!({"paths": ["b.txt"]})).await;
    assert_eq!(talk.changes().await, pairs(&[("a.txt", "changed")]));
    talk.run("discard", json!({})).await;
    assert_eq!(talk.changes().await, []);
    assert_eq!(machine.files(), before);
}

/// LY-05: nothing that a person changes meanwhile is overwritten, and nothing lands that was not
/// shown.
#[tokio::test]
async fn what_changed_meanwhile_is_shown_and_not_overwritten() {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    machine.write("b.txt", "old\n");
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;

    // The person changes a file before the landing is asked for: that is a conflict.
    talk.shell("echo ours > a.txt").await;
    machine.write("a.txt", "theirs\n");
    let listed = talk.run("changes", json!({})).await;
    assert_eq!(listed["files"][0]["conflict"], true, "{listed}");
    let call = talk.execute("land", json!({})).await;
    let failed = setup.until(&call, "failed").await;
    assert_eq!(failed["error"]["code"], "conflict", "{failed}");
    assert_eq!(machine.read("a.txt"), "theirs\n");
    talk.run("discard", json!({})).await;

    // The layer changes between the question and the answer: the person is asked about what is
    // there now.
    talk.shell("echo shown > b.txt").await;
    let asked = talk.asked("land", json!({})).await;
    talk.shell("echo sneaked > b.txt").await;
    setup.decide(&asked, "approve", json!({})).await;
    let again = atelier_testkit::eventually("asked again", async || {
        let now = setup.show(&asked).await;
        let anew = now["approval_id"] != asked["approval_id"];
        (anew && now["status"] == "pending_approval").then_some(now)
    })
    .await;
    assert_eq!(machine.read("b.txt"), "old\n");
    assert!(again["preview"]["diff"].as_str().unwrap().contains("+sneaked"), "{again}");
    talk.approved(&again, "once").await;
    assert_eq!(machine.read("b.txt"), "sneaked\n");
}

/// LY-48: when a machine connects, its owner is told of layers that nobody uses, before they are
/// dropped.
#[rstest]
#[tokio::test]
async fn owner_is_told_before_a_layer_is_dropped(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.rules("[layers]\nkeep_days = 20\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    talk.shell("echo x > tried.txt").await;
    drop(client);
    let age = |name: &str, days: u64| {
        let workspaces = machine.home().join(".local/state/atelier/workspaces");
        let workspace = std::fs::read_dir(workspaces).unwrap().next().unwrap().unwrap().path();
        let layer = std::fs::read_dir(workspace.join("layers")).unwrap().next().unwrap().unwrap();
        let file = std::fs::File::options().write(true).open(layer.path().join(name)).unwrap();
        let time = std::time::Duration::from_secs(days * 24 * 3600);
        file.set_modified(std::time::SystemTime::now() - time).unwrap();
    };
    age("clock", 15);
    let client = machine.connect(&setup, &server.url).await;
    let whose = format!("the layer of conversation {}", talk.session);
    client.prints(&format!("{whose} has changes that did not land")).await;
    drop(client);
    age("clock", 25);
    age("told", 8);
    let client = machine.connect(&setup, &server.url).await;
    client.prints(&format!("{whose} was dropped")).await;
    assert_eq!(talk.changes().await, pairs(&[]));
    drop(client);
}

/// LY-06: each conversation has a layer of its own.
#[tokio::test]
async fn conversations_do_not_see_each_others_layers() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let (one, other) = (Conversation::of(&setup).await, Conversation::of(&setup).await);
    one.shell("echo secret plan > plan.txt").await;
    assert_eq!(other.shell("ls").await["stdout"], "");
    assert_eq!(other.changes().await, []);
    assert_eq!(one.changes().await, pairs(&[("plan.txt", "added")]));
}

/// LY-07: server, project and machine say whether the shell is free, and the strictest holds.
#[tokio::test]
async fn shell_can_be_asked_about_or_switched_off() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    let settle = async |policy: Value| {
        setup.user.put(&setup.project, json!({"settings": {"policy": policy}})).await
    };
    settle(json!({"shell": "sometimes"})).await.expect(422);
    settle(json!({"shell": "ask"})).await.expect(200);
    let asked = talk.asked("shell", json!({"script": "echo hi"})).await;
    assert_eq!((&asked["risk_level"], &asked["rule"]), (&json!("MEDIUM"), &json!("shell ask")));
    assert_eq!(talk.approved(&asked, "once").await["stdout"], "hi\n");
    settle(json!({"shell": "off"})).await.expect(200);
    let denied = talk.execute("shell", json!({"script": "echo hi"})).await;
    assert_eq!(
        (&denied["status"], &denied["error"]["code"]),
        (&json!("denied"), &json!("command_not_allowed"))
    );
    // A project cannot loosen what the machine's owner has said.
    drop(client);
    machine.rules("[policy]\nshell = \"off\"\n");
    settle(json!({"shell": "free"})).await.expect(200);
    let _client = machine.connect(&setup, &server.url).await;
    let call = talk.execute("shell", json!({"script": "echo hi"})).await;
    let refused = setup.until(&call, "failed").await;
    assert_eq!(refused["error"]["code"], "command_not_allowed", "{refused}");
}

/// LY-08: a landing is as risky as its riskiest file. A permission holds for the folders that it was
/// given for, and HIGH is always asked about.
#[tokio::test]
async fn permission_to_land_holds_for_its_folders() {
    let machine = Machine::new();
    machine.write("src/a.txt", "a\n");
    machine.write("docs/b.txt", "b\n");
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    talk.shell("echo 1 > src/a.txt").await;
    let asked = talk.asked("land", json!({})).await;
    assert_eq!(asked["class"]["findings"], json!(["land", "land src/**"]));
    talk.approved(&asked, "class").await;

    talk.shell("echo 2 > src/a.txt; echo new > src/new.txt").await;
    let call = talk.execute("land", json!({})).await;
    let done = setup.until(&call, "completed").await;
    assert!(done["approval"].is_null() && done["grant_id"].is_string(), "{done}");
    assert_eq!(
        (machine.read("src/a.txt"), machine.read("src/new.txt")),
        ("2\n".into(), "new\n".into())
    );

    talk.shell("echo 3 > docs/b.txt").await;
    let asked = talk.asked("land", json!({})).await;
    setup.decide(&asked, "reject", json!({})).await;
    talk.run("discard", json!({})).await;
    talk.shell("rm src/a.txt").await;
    let asked = talk.asked("land", json!({})).await;
    assert_eq!((&asked["risk_level"], &asked["rule"]), (&json!("HIGH"), &json!("land deletes")));
    talk.approved(&asked, "class").await;
    assert!(!machine.root().join("src/a.txt").exists());
    talk.shell("rm src/new.txt").await;
    let asked = talk.asked("land", json!({})).await;
    assert_eq!(asked["risk_level"], "HIGH", "no permission covers it");
    assert_eq!(machine.read("src/new.txt"), "new\n");
}

/// LY-09: the demo model runs tests and renames in all files, with one question.
#[tokio::test]
async fn demo_model_tries_and_lands() {
    let machine = Machine::new();
    machine.write("run_tests.sh", "grep -q price shop.txt && echo 1 passed\n");
    machine.write("shop.txt", "the price is high\n");
    machine.write("lib/more.txt", "price price\n");
    let server = start(Sqlite).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let answer = chat.ask("run the tests", Some("coder")).await;
    assert!(answer["content"].as_str().unwrap().contains("1 passed"), "{answer}");

    let accepted = chat.send("rename price to cost in all files", Some("coder")).await;
    let asked = &chat.pending(1).await[0];
    assert_eq!(asked["tool_name"], "land");
    assert_eq!(machine.read("shop.txt"), "the price is high\n");
    chat.setup.decide(asked, "approve", json!({})).await;
    chat.task_until(&accepted, "completed").await;
    assert_eq!(
        (machine.read("shop.txt"), machine.read("lib/more.txt")),
        ("the cost is high\n".into(), "cost cost\n".into())
    );
}

/// LY-10: a command line for the old tool is split if it is one simple command; otherwise the
/// refusal names the shell.
#[tokio::test]
async fn command_lines_are_split_or_pointed_to_the_shell() {
    let machine = Machine::new();
    machine.write("a b.txt", "one\ntwo\n");
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    let ran = talk.run("execute_command", json!({"command": "sed -n 2p 'a b.txt'"})).await;
    assert_eq!(ran["stdout"], "two\n");
    for line in ["cat x | wc", "frobnicate --all", "./run.sh now"] {
        let denied = talk.execute("execute_command", json!({"command": line})).await;
        assert_eq!(denied["status"], "denied", "{line}");
        assert!(denied["error"]["detail"].as_str().unwrap().contains("`shell`"), "{denied}");
    }
}

/// LY-37: hosts are asked about, a permission holds for a conversation and its hosts, and the result
/// of the call says which connections were made.
#[tokio::test]
async fn hosts_of_a_script_are_asked_about_and_its_connections_recorded() {
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        while let Ok((mut stream, _)) = host.accept() {
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").ok();
            }
        }
    });
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    let shell = |script: &str, hosts: &[&str]| json!({"script": script, "network": hosts});

    let asked = talk.asked("shell", shell("true", &["b.example", "A.example"])).await;
    assert_eq!((&asked["risk_level"], &asked["network"]), (&json!("MEDIUM"), &json!(true)));
    assert_eq!(asked["class"]["destinations"], json!(["a.example", "b.example"]));
    assert_eq!(talk.approved(&asked, "class").await["connections"], json!([]));
    let call = talk.execute("shell", shell("echo again", &["a.example"])).await;
    let done = setup.until(&call, "completed").await;
    assert!(done["approval"].is_null() && done["grant_id"].is_string(), "{done}");
    // The permission is for these hosts, in this conversation.
    let asked = talk.asked("shell", shell("true", &["a.example", "c.example"])).await;
    setup.decide(&asked, "reject", json!({})).await;
    let other = Conversation::of(&setup).await;
    let asked = other.asked("shell", shell("true", &["a.example"])).await;
    setup.decide(&asked, "reject", json!({})).await;

    let script = format!("curl -sS http://localhost:{port}/; curl -s http://x.example:{port}/");
    let asked = talk.asked("shell", shell(&script, &["localhost"])).await;
    assert_eq!(asked["risk_level"], "HIGH");
    assert_eq!(asked["rule"], "shell network.local");
    let result = talk.approved(&asked, "once").await;
    assert!(result["stdout"].as_str().unwrap().starts_with("hello"), "{result}");
    let connections = result["connections"].as_array().unwrap();
    let brief = |it: &Value| (it["host"].clone(), it["port"].clone(), it["allowed"].clone());
    let wanted = [("localhost", true), ("x.example", false)]
        .map(|(host, allowed)| (json!(host), json!(port), json!(allowed)));
    assert_eq!(connections.iter().map(brief).collect::<Vec<_>>(), wanted, "{result}");
}

/// LY-43: a program that names a conversation works in a layer of its own, so nothing of it lands
/// with the owner's changes, and it reaches nothing of theirs.
#[tokio::test]
async fn program_has_a_layer_and_jobs_of_its_own() {
    let machine = Machine::new();
    machine.write("src/a.txt", "a\n");
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let talk = Conversation::of(&setup).await;
    let guest = || {
        let user = server.program("ann", "agent", &setup.project);
        Conversation {
            setup: ProjectSetup { user, ..setup.clone() },
            session: talk.session.clone(),
        }
    };
    let (guest, other) = (guest(), guest());

    talk.shell("echo 1 > src/a.txt").await;
    let asked = talk.asked("land", json!({})).await;
    talk.approved(&asked, "class").await;
    talk.shell("echo mine > src/mine.txt").await;
    let script = json!({"script": "echo private; sleep 600", "background": true});
    let call = talk.execute("shell", script).await;
    let job = setup.until(&call, "completed").await["result"]["job_id"].clone();

    // The owner's layer and jobs are not there for the program, and neither are their calls.
    assert_eq!(guest.shell("ls src").await["stdout"], "a.txt\n");
    assert_eq!(guest.changes().await, []);
    assert_eq!(guest.run("jobs", json!({})).await["jobs"], json!([]));
    for tool in ["job_output", "job_stop"] {
        let call = guest.execute(tool, json!({"job_id": job})).await;
        guest.setup.until(&call, "failed").await;
    }
    guest.run("discard", json!({})).await;
    let seen = guest.setup.show(&call).await;
    assert_eq!((&seen["tool_params"], &seen["result"]), (&json!({}), &Value::Null), "{seen}");
    assert_eq!(talk.changes().await, pairs(&[("src/mine.txt", "added")]));
    let jobs = talk.run("jobs", json!({})).await;
    assert_eq!((&jobs["jobs"][0]["job_id"], &jobs["jobs"][0]["running"]), (&job, &json!(true)));

    // What the program tries does not land with what the owner lands, and not without a question.
    guest.shell("echo evil > src/evil.txt").await;
    let call = talk.execute("land", json!({})).await;
    let landed = setup.until(&call, "completed").await;
    assert!(landed["grant_id"].is_string(), "{landed}");
    assert_eq!(machine.read("src/mine.txt"), "mine\n");
    assert!(!machine.root().join("src/evil.txt").exists());
    assert_eq!(guest.changes().await, pairs(&[("src/evil.txt", "added")]));
    assert_eq!(other.changes().await, []);
    let asked = guest.asked("land", json!({})).await;
    let asked = setup.show(&asked).await;
    assert!(asked["preview"]["diff"].as_str().unwrap().contains("+evil"), "{asked}");
    assert_eq!(talk.approved(&asked, "once").await["landed"][0]["path"], "src/evil.txt");
    talk.run("job_stop", json!({"job_id": job})).await;
}
