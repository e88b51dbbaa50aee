//! git on the user's machine, with credentials that the user lends to it.

use super::client::{Machine, ProjectSetup, request_head};
use crate::start;
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::{io::AsyncWriteExt, net::TcpListener};

/// A server that refuses every request. Returns its address and the `Authorization` headers that it
/// received.
async fn guarded() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let seen = shown.clone();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let request = request_head(&mut connection).await;
            let authorised =
                request.lines().filter_map(|line| line.strip_prefix("Authorization: "));
            seen.lock().unwrap().extend(authorised.map(str::to_owned));
            let refused = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"shop\"\r\n\
                           content-length: 0\r\nconnection: close\r\n\r\n";
            drop(connection.write_all(refused.as_bytes()).await);
        }
    });
    (address, shown)
}

/// TL-04.1: git sends the owner's credentials only to hosts that they are configured for.
#[rstest]
#[tokio::test]
async fn git_uses_credentials_only_where_the_owner_allows_it(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(true, false)] lent: bool,
) {
    let (address, shown) = guarded().await;
    let machine = Machine::new();
    let kept = format!("http://ann:secret@{address}\nhttp://ann:other@elsewhere.example\n");
    std::fs::write(machine.home().join(".git-credentials"), kept).unwrap();
    std::fs::write(machine.home().join(".gitconfig"), "[credential]\n\thelper = store\n").unwrap();
    if lent {
        machine.rules("[git]\ncredentials = \"~/.git-credentials\"\n");
    }
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect(&setup, &server.url).await;
    assert_eq!(
        client.output().contains("may use"),
        lent,
        "the person is told: {}",
        client.output()
    );

    let look =
        json!({"command": "git", "args": ["ls-remote", format!("http://{address}/shop.git")]});
    let call = setup.approved("execute_command", look).await;
    assert_eq!(call["network"], true);
    let done = setup.until(&call, "failed").await;
    assert_eq!(done["error"]["code"], "command_failed", "nobody is let in: {done}");
    // ann:secret
    let expected: &[&str] = if lent { &["Basic YW5uOnNlY3JldA=="] } else { &[] };
    assert_eq!(*shown.lock().unwrap(), expected);
    assert!(!done.to_string().contains("secret"), "{done}");
}
