//! Backups: the commands in docs/operating.md are run, and what they restore is compared.

use crate::{build, chat::Chat, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Database, Server, User,
};
use serde_json::Value;
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};
use tempfile::TempDir;

const DOCUMENT: &str = include_str!("../../../../../docs/operating.md");

/// The shell commands below a heading of the document, block by block.
fn commands(heading: &str) -> Vec<String> {
    let (_, section) = DOCUMENT.split_once(&format!("\n### {heading}\n")).unwrap();
    let section = section.split("\n### ").next().unwrap().split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

fn run(commands: &str, data: &Path, backup: &Path, database: Option<&str>) {
    let programs = std::env::var("ATELIER_TEST_POSTGRES_PROGRAMS").unwrap_or_default();
    let path = std::env::var("PATH").unwrap();
    #[expect(clippy::disallowed_methods, reason = "runs the commands of the document")]
    let mut shell = Command::new("sh");
    shell.args(["-euc", commands]).stdin(Stdio::null()).env("PATH", format!("{programs}:{path}"));
    shell.env("DATA", data).env("BACKUP", backup).env_remove("ATELIER_DATABASE_URL");
    let output = shell.envs(database.map(|url| ("ATELIER_DATABASE_URL", url))).output().unwrap();
    assert!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Everything that somebody would miss.
#[derive(Debug, PartialEq)]
struct Kept {
    messages: Vec<Value>,
    agents: Value,
    files: Value,
    contents: Vec<Vec<u8>>,
}

async fn read(chat: &Chat, workspace: &str, versions: &str) -> Kept {
    let user = &chat.setup.user;
    let mut contents = Vec::new();
    for version in [1, 2] {
        let (status, _, content) = user.download(&format!("{versions}/{version}")).await;
        assert_eq!(status, 200);
        contents.push(content.unwrap());
    }
    Kept {
        messages: chat.messages().await,
        agents: user.get(&format!("{}/agents", chat.setup.project)).await.expect(200),
        files: user.get(workspace).await.expect(200),
        contents,
    }
}

fn folder() -> TempDir {
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(private).tempdir().unwrap()
}

async fn back_up_and_restore(backend: Backend, heading: &str) {
    let [back_up, restore] = &commands(heading)[..] else { panic!("two blocks below {heading}") };
    let server = start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let ann: &User = &chat.setup.user;
    let answer = chat.ask("hello", Some("coder")).await;
    assert!(answer["content"].is_string());
    let workspace = ann.workspace().await;
    let file = ann.upload(&workspace, "notes.txt", "first").await.expect(201);
    ann.upload(&workspace, "notes.txt", vec![b'x'; 300_000]).await.expect(201);
    let file = file["files"][0]["file_id"].as_str().unwrap();
    let versions = format!("{workspace}/files/{file}/versions");
    let before = read(&chat, &workspace, &versions).await;

    let (backup, data) = (folder(), folder());
    let database = match backend {
        Sqlite => None,
        Postgres => Some((server.database().url(), Database::create().await)),
    };
    let (old, new) = match &database {
        None => (None, None),
        Some((old, new)) => (Some(old.clone()), Some(new.url())),
    };
    // The server runs meanwhile, and what comes later is not in the backup.
    run(back_up, server.data(), backup.path(), old.as_deref());
    ann.upload(&workspace, "later.txt", "later").await.expect(201);
    run(restore, data.path(), backup.path(), new.as_deref());
    drop(server);

    let builder = new.iter().fold(build(Sqlite), |builder, url| builder.with("DATABASE_URL", url));
    let restored: Server = builder.start_in(data).await;
    // The token is one from before.
    let chat = chat.at(&restored);
    assert_eq!(read(&chat, &workspace, &versions).await, before);
    let (status, health) = super::ready(&restored).await;
    assert_eq!(status, 200, "{health}");
    chat.ask("and now?", Some("coder")).await;
}

/// OP-05.1: what the documented commands back up of a running server with an embedded database is
/// restored by the documented commands: conversations, files with their versions, and tokens.
#[tokio::test]
async fn documented_backup_of_sqlite_is_restored() {
    back_up_and_restore(Sqlite, "With the embedded database").await;
}

/// OP-05.1: the same holds for a server on PostgreSQL.
#[tokio::test]
async fn documented_backup_of_postgres_is_restored() {
    back_up_and_restore(Postgres, "With PostgreSQL").await;
}
