//! npm packages from a test registry.

use super::client::{Machine, ProjectSetup, request_head};
use crate::{chat::Chat, start};
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpListener};

/// Serves one package, `express`, as the npm registry does. Returns its address.
async fn registry() -> String {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("package");
    std::fs::create_dir(&package).unwrap();
    let about = json!({"name": "express", "version": "5.1.0", "main": "index.js"});
    std::fs::write(package.join("package.json"), about.to_string()).unwrap();
    std::fs::write(package.join("index.js"), "module.exports = () => 'fast'\n").unwrap();
    #[expect(clippy::disallowed_methods, reason = "packs the test's own data")]
    let packed = std::process::Command::new("tar")
        .args(["-cz", "-C", folder.path().to_str().unwrap(), "package"])
        .output()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let tarball = format!("{url}express/-/express-5.1.0.tgz");
    let version = json!({"name": "express", "version": "5.1.0", "dist": {"tarball": tarball}});
    let document = json!({
        "name": "express", "dist-tags": {"latest": "5.1.0"}, "versions": {"5.1.0": version},
    });
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let request = request_head(&mut connection).await;
            let (status, body) = match request.split(' ').nth(1) {
                Some("/express") => ("200 OK", document.to_string().into_bytes()),
                Some(path) if path.ends_with(".tgz") => ("200 OK", packed.stdout.clone()),
                _ => ("404 Not Found", b"{}".to_vec()),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: \
                 {length}\r\nconnection: close\r\n\r\n"
            );
            drop(connection.write_all(&[head.as_bytes(), &body].concat()).await);
        }
    });
    url
}

/// A machine with a package of its own that uses the test registry.
async fn shop() -> Machine {
    let machine = Machine::new();
    machine.write("package.json", "{\"name\": \"shop\", \"version\": \"1.0.0\"}\n");
    machine.rules(&format!("[environment]\nnpm_config_registry = \"{}\"\n", registry().await));
    machine
}

/// TL-06.4: MEDIUM, approved with the network shown, and the output comes back.
#[rstest]
#[tokio::test]
async fn agent_installs_a_package(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = shop().await;
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    let install = json!({"command": "npm", "args": ["install", "express"]});
    let call = setup.approved("execute_command", install).await;
    assert_eq!((&call["risk_level"], &call["network"]), (&json!("MEDIUM"), &json!(true)));
    let done = setup.until(&call, "completed").await;
    let result = &done["result"];
    assert!(result["stdout"].as_str().unwrap().contains("added 1 package"), "{result}");
    assert_eq!((&result["exit_code"], result["stderr"].is_string()), (&json!(0), true), "{result}");
    assert!(machine.read("node_modules/express/package.json").contains("5.1.0"));
    assert!(machine.read("package.json").contains("express"));
}

/// TL-06.4: the whole way from a chat message to the output of npm.
#[rstest]
#[tokio::test]
async fn message_leads_to_an_installed_package(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = shop().await;
    let server = start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let accepted = chat.send("run npm install express", Some("coder")).await;
    let asked = &chat.pending(1).await[0];
    let shown =
        json!([asked["tool_params"]["command"], asked["tool_params"]["args"], asked["network"]]);
    assert_eq!(shown, json!(["npm", ["install", "express"], true]));
    assert!(!machine.root().join("node_modules").exists(), "not before it is approved");
    chat.setup.decide(asked, "approve", json!({})).await;
    let task = chat.task_until(&accepted, "completed").await;
    assert!(task["result"].as_str().unwrap().contains("added 1 package"), "{task}");
    assert!(machine.read("node_modules/express/package.json").contains("5.1.0"));
}
