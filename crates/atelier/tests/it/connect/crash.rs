//! Clients and servers that are killed, networks that fail, and machines that take over: a call
//! runs at most once, and an outcome that cannot be known is reported as unknown.

use super::client::{ConnectProcess, FixedProxy, Machine, ProjectSetup};
use crate::start;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    User, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

/// Writes a line to `ran` in the home of commands, and then waits for the file `go` there.
const SCRIPT: &str = "import os, time\nos.chdir(os.path.expanduser('~'))\n\
    with open('ran', 'a') as f: f.write('x\\n')\n\
    while not os.path.exists('go'): time.sleep(0.01)\nprint('ready')\n";

fn run_script() -> Value {
    json!({"command": "python3", "args": ["wait.py"]})
}

fn waiting_machine() -> Machine {
    let machine = Machine::new();
    machine.write("wait.py", SCRIPT);
    machine
}

async fn runs(machine: &Machine) {
    let ran = async || machine.in_commands_home("ran").filter(|lines| lines == "x\n");
    eventually("it runs", ran).await;
}

/// TL-06.3: the client is killed while a command runs: its outcome is unknown, and it is not run
/// again.
#[rstest]
#[tokio::test]
async fn call_of_a_lost_client_is_unknown_and_not_repeated(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = waiting_machine();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut client = machine.connect(&setup, &server.url).await;
    let call = setup.approved("execute_command", run_script()).await;
    runs(&machine).await;
    client.kill();
    machine.write_in_commands_home("go");
    let again = machine.connect(&setup, &server.url).await;
    let unknown = setup.until(&call, "unknown").await;
    assert_eq!(
        unknown["error"],
        json!({
            "code": "unknown",
            "detail": "the client stopped while the call was running; the call may have had an \
                effect"
        })
    );
    // The client continues with the next call and keeps its identity.
    let next = setup.execute("read_file", json!({"path": "wait.py"})).await;
    let next = setup.until(&next, "completed").await;
    assert_eq!(
        (&next["result"]["content"], &next["client_id"]),
        (&json!(SCRIPT), &unknown["client_id"])
    );
    assert_eq!(machine.in_commands_home("ran").as_deref(), Some("x\n"));
    assert_eq!(setup.clients().await.len(), 1);
    drop(again);
}

/// A result that the server never received is posted again; the call is not run again.
#[rstest]
#[tokio::test]
async fn result_is_posted_by_the_next_run_of_the_client(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = waiting_machine();
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let proxy = FixedProxy::to(&server).await;
    let mut client = machine.connect(&setup, &proxy.url).await;
    let call = setup.approved("execute_command", run_script()).await;
    runs(&machine).await;
    proxy.block();
    machine.write_in_commands_home("go");
    client.prints("wait.py: done").await;
    client.kill();
    assert_eq!(setup.show(&call).await["status"], "dispatched");
    proxy.point_to(&server);
    let _again = machine.connect(&setup, &proxy.url).await;
    assert_eq!(setup.until(&call, "completed").await["result"]["stdout"], "ready\n");
    assert_eq!(machine.in_commands_home("ran").as_deref(), Some("x\n"));
}

/// The server is killed under a connected client.
#[rstest]
#[tokio::test]
async fn client_reconnects_to_a_restarted_server(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = waiting_machine();
    machine.write("a.txt", "old\n");
    let mut server = start(backend).await;
    let mut setup = ProjectSetup::new(server.user("ann")).await;
    let proxy = FixedProxy::to(&server).await;
    let client = machine.connect(&setup, &proxy.url).await;
    let write = setup.execute("write_file", json!({"path": "a.txt", "content": "new\n"})).await;
    let write = setup.until(&write, "pending_approval").await;
    let running = setup.approved("execute_command", run_script()).await;
    runs(&machine).await;
    server.kill();
    // The command ends while no server is running.
    machine.write_in_commands_home("go");
    client.prints("wait.py: done").await;
    server = server.restart_killed().await;
    proxy.point_to(&server);
    setup.user = setup.user.at(&server);
    assert_eq!(setup.until(&running, "completed").await["result"]["stdout"], "ready\n");
    setup.decide(&write, "approve", json!({})).await;
    setup.until(&write, "completed").await;
    assert_eq!(
        (machine.read("a.txt"), machine.in_commands_home("ran")),
        ("new\n".to_owned(), Some("x\n".to_owned()))
    );
    client.prints("connected again").await;
    // The client also reconnects if the network fails for a moment.
    proxy.cut();
    let read = setup.execute("read_file", json!({"path": "a.txt"})).await;
    assert_eq!(setup.until(&read, "completed").await["result"]["content"], "new\n");
}

/// One machine serves the project, and another takes over when it leaves or is lost.
#[rstest]
#[tokio::test]
async fn another_machine_takes_over(#[values(Sqlite, Postgres)] backend: Backend) {
    let (first, second) = (Machine::new(), Machine::new());
    first.write("who", "first");
    second.write("who", "second");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let who = async || {
        let call = setup.execute("read_file", json!({"path": "who"})).await;
        setup.until(&call, "completed").await["result"]["content"].clone()
    };
    let mut holder = first.connect(&setup, &server.url).await;
    let mut standby = second.connect(&setup, &server.url).await;
    holder.prints("this machine runs the calls").await;
    standby.prints("this one is on standby").await;
    assert_eq!((who().await, setup.clients().await.len()), (json!("first"), 2));
    holder.interrupt().await;
    standby.prints("this machine runs the calls").await;
    assert_eq!((who().await, setup.clients().await.len()), (json!("second"), 1));
    // This time the machine does not say that it leaves, so its lease has to expire first.
    let mut holder = first.connect(&setup, &server.url).await;
    assert_eq!(who().await, "second");
    standby.kill();
    let call = setup.execute("read_file", json!({"path": "who"})).await;
    assert_eq!(setup.show(&call).await["status"], "dispatched");
    server.sql().await.run("UPDATE clients SET lease_until = connected_at").await;
    assert_eq!(setup.until(&call, "completed").await["result"]["content"], "first");
    holder.interrupt().await;
}

/// A second client with the same identity could run a call twice.
#[tokio::test]
async fn folder_is_served_by_one_client_at_a_time() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let mut second = ConnectProcess::start(machine.command(&setup, &server.url, &[]));
    assert!(!second.ended().await.success());
    second.prints("another `atelier connect` already serves this folder").await;
}

/// The server does not know the cursor, for example after a restore from a backup: the client
/// starts over and asks for its calls.
#[rstest]
#[tokio::test]
async fn client_recovers_from_an_unknown_stream_cursor(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("a.txt", "a\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut client = machine.connect(&setup, &server.url).await;
    let read = setup.execute("read_file", json!({"path": "a.txt"})).await;
    setup.until(&read, "completed").await;
    client.interrupt().await;
    let folder =
        std::fs::read_dir(machine.home().join(".local/state/atelier/clients")).unwrap().next();
    let cursor = folder.unwrap().unwrap().path().join("cursor");
    assert!(std::fs::read_to_string(&cursor).unwrap().trim().parse::<u64>().unwrap() > 0);
    std::fs::write(&cursor, "99999999\n").unwrap();
    let write = setup.execute("write_file", json!({"path": "a.txt", "content": "b\n"})).await;
    assert_eq!(write["status"], "previewing");
    let _client = machine.connect(&setup, &server.url).await;
    setup.until(&write, "pending_approval").await;
    let read = setup.execute("read_file", json!({"path": "a.txt"})).await;
    setup.until(&read, "completed").await;
    let found =
        async || std::fs::read_to_string(&cursor).ok().filter(|place| place != "99999999\n");
    eventually("a new place", found).await;
}

/// The client uses the token that `atelier login` stored.
#[rstest]
#[tokio::test]
async fn stored_token_is_renewed_before_it_expires(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("a.txt", "a\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let short = server.user_with("ann", &["--ttl", "8s"]).token;
    let login = ["login", "--server", &server.url, "--token", &short];
    assert!(machine.program(&login).status().unwrap().success());
    let mut command = machine.command(&setup, &server.url, &[]);
    command.env_remove("ATELIER_TOKEN");
    let client = ConnectProcess::start(command);
    // The stream ends with the token that it was opened with, and continues with the new one.
    client.prints("connected again").await;
    let read = setup.execute("read_file", json!({"path": "a.txt"})).await;
    setup.until(&read, "completed").await;
    let stored =
        std::fs::read_to_string(machine.home().join(".config/atelier/credentials.json")).unwrap();
    assert!(stored.contains(&server.url) && !stored.contains(&short), "{stored}");
}

/// How many kills: a few in every run, more with `make judge`.
fn kills() -> usize {
    std::env::var("ATELIER_TEST_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

/// Commands that leave a mark each time they run. One permission covers them all.
struct Counted {
    machine: Machine,
    setup: ProjectSetup,
    session: Uuid,
}

impl Counted {
    /// Starts a client that is connected to `url`.
    async fn new(user: User, url: &str) -> (Self, ConnectProcess) {
        let machine = Machine::new();
        machine.write("count.py", "import sys\nwith open(sys.argv[1], 'a') as f: f.write('x')\n");
        let setup = ProjectSetup::new(user).await;
        let session = crate::conversation(&setup.user, &setup.project).await;
        let counted = Self { machine, setup, session };
        let client = counted.machine.connect(&counted.setup, url).await;
        let first = counted.ask("first").await.unwrap();
        counted.setup.decide(&first, "approve", json!({"scope": "class"})).await;
        counted.setup.until(&first, "completed").await;
        (counted, client)
    }

    /// Requests a call. Returns it if the server accepted it.
    async fn ask(&self, name: &str) -> Option<Value> {
        let params = json!({"command": "python3", "args": ["count.py", name]});
        let body = json!({"tool_name": "execute_command", "tool_params": params, "session_id": self.session});
        let path = format!("{}/tools/execute", self.setup.project);
        let answer = self
            .setup
            .user
            .request("POST".parse().unwrap(), &path)
            .json(&body)
            .send()
            .await
            .ok()?;
        assert_eq!(answer.status(), 200);
        answer.json().await.ok()
    }

    async fn settled(&self, call: &Value) -> Value {
        eventually("it is settled", async || {
            let call = self.setup.show(call).await;
            call["completed_at"].is_string().then_some(call)
        })
        .await
    }

    fn runs(&self, name: &str) -> usize {
        std::fs::read_to_string(self.machine.root().join(name)).unwrap_or_default().len()
    }
}

/// The client is killed at random points: a completed call ran once, and no call stays open.
#[rstest]
#[tokio::test]
async fn no_call_runs_twice_when_the_client_is_killed(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let (counted, mut client) = Counted::new(server.user("ann"), &server.url).await;
    let mut calls = Vec::new();
    for round in 0..kills() {
        for n in 0..4 {
            let name = format!("n{round}-{n}");
            calls.push((counted.ask(&name).await.unwrap(), name));
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..250))).await;
        client.kill();
        client = counted.machine.connect(&counted.setup, &server.url).await;
    }
    for (call, name) in &calls {
        let settled = counted.settled(call).await;
        match settled["status"].as_str().unwrap() {
            "completed" => assert_eq!(counted.runs(name), 1, "{settled}"),
            "unknown" => assert!(counted.runs(name) <= 1, "{settled}"),
            other => panic!("{other}: {settled}"),
        }
    }
}

/// The server is killed at random points: every accepted call runs once and has its result; other
/// calls ran at most once.
#[rstest]
#[tokio::test]
async fn accepted_calls_survive_a_killed_server(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut server = start(backend).await;
    let proxy = FixedProxy::to(&server).await;
    let (mut counted, _client) = Counted::new(server.user("ann"), &proxy.url).await;
    let (mut taken, mut asked) = (Vec::new(), 0);
    for _ in 0..kills() {
        let asking = async {
            loop {
                let name = format!("n{asked}");
                asked += 1;
                let Some(call) = counted.ask(&name).await else { break };
                taken.push((call, name));
            }
        };
        let killing = async {
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
            server.kill();
        };
        tokio::join!(asking, killing);
        server = server.restart_killed().await;
        proxy.point_to(&server);
        counted.setup.user = counted.setup.user.at(&server);
    }
    for (call, name) in &taken {
        let settled = counted.settled(call).await;
        assert_eq!((&settled["status"], counted.runs(name)), (&json!("completed"), 1), "{settled}");
    }
    for n in 0..asked {
        assert!(counted.runs(&format!("n{n}")) <= 1);
    }
}
