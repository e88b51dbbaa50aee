//! Nodes with other keys than the rest, and machines that meet one.

use crate::{
    BINARY, build,
    connect::client::{FixedProxy, Machine, ProjectSetup},
    start,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Writes a line to `ran` in the home of commands, and then waits for the file `go` there.
const SCRIPT: &str = "import os, time\nos.chdir(os.path.expanduser('~'))\n\
    with open('ran', 'a') as f: f.write('x\\n')\n\
    while not os.path.exists('go'): time.sleep(0.01)\nprint('ready')\n";

fn serve(server: &Server, data: &Path, arguments: &[&str]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ATELIER_")) {
        command.env_remove(name);
    }
    command.env("ATELIER_DATABASE_URL", server.database().url()).stdin(Stdio::null());
    command
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// OP-01.1: a node whose keys differ from those of the other nodes refuses to start, and says what
/// to do. The other nodes go on. With their keys, it starts.
#[tokio::test]
async fn node_with_other_keys_refuses_to_join() {
    let server = start(Postgres).await;
    let ann = server.user("ann");
    let folder = tempfile::tempdir().unwrap();
    for round in ["made by itself", "kept"] {
        let why = refused(&serve(&server, folder.path(), &[]).output().unwrap());
        assert!(
            why.contains("has another secret.key and models.key than the other nodes"),
            "{round}: {why}"
        );
        assert!(why.contains("copy secret.key and models.key from another node"), "{why}");
    }
    ann.get("/my/projects/").await.expect(200);
    let mut sql = server.sql().await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM nodes").await, 1, "it did not register");

    // Only one of the keys is wrong.
    std::fs::copy(server.data().join("secret.key"), folder.path().join("secret.key")).unwrap();
    let why = refused(&serve(&server, folder.path(), &[]).output().unwrap());
    assert!(why.contains("has another models.key than the other nodes"), "{why}");

    let shared = build(Sqlite)
        .with("DATABASE_URL", server.database().url())
        .with("KEYS", server.data().display())
        .start()
        .await;
    ann.at(&shared).get("/my/projects/").await.expect(200);
}

/// OP-01.1: keys that are lost can be replaced on purpose. A node with the old keys says that it is
/// not healthy.
#[tokio::test]
async fn lost_keys_are_replaced_on_purpose() {
    let server = start(Postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let mut other = serve(&server, folder.path(), &["--new-keys"]);
    let mut other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the old node is not ready", async || {
        let (status, health) = super::ready(&server).await;
        let keys = super::part(&health, "keys");
        (status == 503 && keys["status"] == "unhealthy").then(|| {
            assert_eq!(
                keys["reason"],
                "this node has another secret.key and models.key than the other nodes"
            );
        })
    })
    .await;
    other.kill().unwrap();
    other.wait().unwrap();
}

/// OP-01.1: an embedded database has one node, whose keys may be removed to end all tokens.
#[tokio::test]
async fn embedded_server_takes_new_keys_and_says_so() {
    let mut server = start(Sqlite).await;
    let ann = server.user("ann");
    server.kill();
    std::fs::remove_file(server.data().join("secret.key")).unwrap();
    let server = server.restart_killed().await;
    assert_eq!(ann.at(&server).get("/my/projects/").await.problem(), (401, "unauthorized"));
    server.user("ann").get("/my/projects/").await.expect(200);
    assert!(server.log().contains("secret.key is new"), "{}", server.log());
    assert_eq!(super::ready(&server).await.0, 200);
}

fn run_script() -> Value {
    json!({"command": "python3", "args": ["wait.py"]})
}

/// A call that runs on a machine, and is waiting for the file `go`.
async fn running(machine: &Machine, setup: &ProjectSetup) -> Value {
    let call = setup.approved("execute_command", run_script()).await;
    eventually("it runs", async || machine.in_commands_home("ran").filter(|it| it == "x\n")).await;
    call
}

/// OP-01.2: a result is posted until it is acknowledged, although a node with other keys refuses the
/// token in between. A call that is dispatched meanwhile is run, too.
#[rstest]
#[tokio::test]
async fn node_with_other_keys_loses_no_result(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("wait.py", SCRIPT);
    machine.write("notes.txt", "kept");
    let (server, wrong) = (start(backend).await, start(Sqlite).await);
    let setup = ProjectSetup::new(server.user("ann")).await;
    let proxy = FixedProxy::to(&server).await;
    let client = machine.connect(&setup, &proxy.url).await;
    let call = running(&machine, &setup).await;
    proxy.point_to(&wrong);
    proxy.cut();
    client.prints("the server does not accept the token; reconnecting").await;
    machine.write_in_commands_home("go");
    client.prints("wait.py: done").await;
    let read = setup.execute("read_file", json!({"path": "notes.txt"})).await;
    proxy.point_to(&server);
    proxy.cut();
    assert_eq!(setup.until(&call, "completed").await["result"]["stdout"], "ready\n");
    assert_eq!(setup.until(&read, "completed").await["result"]["content"], "kept");
    assert_eq!(machine.in_commands_home("ran").as_deref(), Some("x\n"));
}

/// OP-01.3: a machine with several addresses leaves a node that is frozen, and what it ran
/// meanwhile is acknowledged by the next node.
#[tokio::test]
async fn machine_leaves_a_frozen_node() {
    let machine = Machine::new();
    machine.write("wait.py", SCRIPT);
    let nodes = build(Postgres).start_nodes(2).await;
    let mut setup = ProjectSetup::new(nodes[0].user("ann")).await;
    let mut command = machine.command(&setup, &nodes[0].url, &[]);
    command.args(["--server", &nodes[1].url]);
    let client = crate::connect::client::ConnectProcess::start(command);
    client.prints(&format!("connected to {}", nodes[0].url)).await;
    let call = running(&machine, &setup).await;
    nodes[0].freeze();
    machine.write_in_commands_home("go");
    client.prints(&format!("connected again to {}", nodes[1].url)).await;
    setup.user = setup.user.at(&nodes[1]);
    assert_eq!(setup.until(&call, "completed").await["result"]["stdout"], "ready\n");
    assert_eq!(machine.in_commands_home("ran").as_deref(), Some("x\n"));
    nodes[0].thaw();
}

/// OP-01.3: an address where nobody answers does not keep a machine from connecting.
#[tokio::test]
async fn machine_connects_to_the_address_that_answers() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut command = machine.command(&setup, "http://127.0.0.1:9", &[]);
    command.args(["--server", &server.url]);
    let client = crate::connect::client::ConnectProcess::start(command);
    client.prints(&format!("connected to {}", server.url)).await;
}
