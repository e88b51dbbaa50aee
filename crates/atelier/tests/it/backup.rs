//! Backups: an installation is destroyed and brought back, also on the other database.

use crate::build;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, User, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::path::Path;

/// What a user keeps on a server: something of everything.
struct Belongings {
    ann: User,
    project: String,
    workspace: String,
}

impl Belongings {
    async fn new(server: &Server) -> Self {
        let ann = server.user("ann");
        let (project, workspace) = (ann.project("shop").await, ann.workspace().await);
        ann.upload(&workspace, "report.txt", "first").await.expect(201);
        ann.upload(&workspace, "report.txt", "second").await.expect(201);
        ann.upload(&workspace, "large.bin", vec![7; 9 << 20]).await.expect(201);
        let this = Self { ann, project, workspace };
        this.remember(&["The user prefers tabs", "Das Schöne bleibt"]).await;
        this
    }

    async fn remember(&self, texts: &[&str]) {
        let entry =
            |text| json!({"text": text, "interaction_type": "user_message", "success": true});
        let entries: Vec<Value> = texts.iter().map(entry).collect();
        let import = format!("{}/agents/coder/context/import", self.project);
        self.ann.post(&import, json!({ "interactions": entries })).await.expect(200);
    }

    /// Everything that a restored server must show again.
    async fn look(&self) -> Value {
        let get = async |path: &str| self.ann.get(path).await.expect(200);
        let files = get(&self.workspace).await["files"].take();
        let mut contents = Vec::new();
        for file in files.as_array().unwrap() {
            let path = format!("{}/files/{}", self.workspace, file["file_id"].as_str().unwrap());
            let (status, _, body) = self.ann.download(&path).await;
            assert_eq!(status, 200, "{path}");
            let versions = get(&format!("{path}/versions")).await;
            contents.push(json!([body.unwrap().len(), versions]));
        }
        json!({
            "projects": get("/my/projects").await,
            "agents": get(&format!("{}/agents", self.project)).await,
            "files": files,
            "contents": contents,
        })
    }
}

/// Removes everything that the server has kept.
async fn destroy(server: &mut Server, backend: Backend) {
    server.kill();
    if backend == Postgres {
        let mut sql = server.sql().await;
        sql.run("DROP SCHEMA public CASCADE").await;
        sql.run("CREATE SCHEMA public").await;
    }
    for entry in std::fs::read_dir(server.data()).unwrap() {
        let path = entry.unwrap().path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.unwrap();
    }
}

fn run(server: &Server, arguments: &[&str]) -> Result<String, String> {
    let output = server.command(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// UP-03.1: an installation that was destroyed comes back from a backup that was made while it ran.
#[rstest]
#[case(Sqlite, Sqlite, "backup.tar")]
#[case(Postgres, Postgres, "backup")]
#[case(Sqlite, Postgres, "backup")]
#[case(Postgres, Sqlite, "backup.tar")]
#[tokio::test]
async fn destroyed_installation_comes_back(
    #[case] from: Backend,
    #[case] to: Backend,
    #[case] name: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join(name);
    let mut old = build(from).start().await;
    let mut belongings = Belongings::new(&old).await;
    let before = belongings.look().await;
    let printed = run(&old, &["backup", shown(&backup)]).unwrap();
    assert!(printed.contains("undamaged"), "{printed}");
    let refusal = run(&old, &["backup", shown(&backup)]).unwrap_err();
    assert!(refusal.contains("already exists") || refusal.contains("not empty"), "{refusal}");
    // What is created after the backup is not in it.
    belongings.ann.project("later").await;
    let refusal = run(&old, &["restore", shown(&backup)]).unwrap_err();
    assert!(refusal.contains("stop"), "a server uses the database: {refusal}");
    run(&old, &["restore", "--check", shown(&backup)]).unwrap();

    destroy(&mut old, from).await;
    let mut server = if from == to { old } else { build(to).start().await };
    destroy(&mut server, to).await;
    run(&server, &["restore", shown(&backup)]).unwrap();
    let mut server = server.restart_killed().await;
    belongings.ann = belongings.ann.at(&server);
    assert_eq!(belongings.look().await, before);
    finds_tabs(&belongings).await;
    // New rows get new numbers, and are found as well.
    belongings.remember(&["Something new"]).await;

    // A database with data is never overwritten.
    server.terminate().await;
    let refusal = run(&server, &["restore", shown(&backup)]).unwrap_err();
    assert!(refusal.contains("not empty"), "{refusal}");
    let server = server.restart_killed().await;
    assert_eq!(
        belongings.ann.at(&server).get("/my/projects").await.expect(200),
        before["projects"]
    );
}

/// The index of memories is built again by itself.
async fn finds_tabs(belongings: &Belongings) {
    let search = format!("{}/agents/coder/context/search", belongings.project);
    eventually("memories are found", async || {
        let found = belongings.ann.post(&search, json!({"query": "tabs"})).await.expect(200);
        let first = found["results"][0]["text"].clone();
        (found["degraded"].is_null() && first == "The user prefers tabs").then_some(())
    })
    .await;
}

/// UP-03.1: a damaged or unfinished backup is refused, and nothing is changed.
#[tokio::test]
async fn damaged_backup_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let mut server = build(Sqlite).start().await;
    Belongings::new(&server).await;
    run(&server, &["backup", shown(&backup)]).unwrap();
    destroy(&mut server, Sqlite).await;

    let database = backup.join("atelier.db");
    let whole = std::fs::read(&database).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&database, damaged).unwrap();
    let refusal = run(&server, &["restore", shown(&backup)]).unwrap_err();
    assert!(refusal.contains("atelier.db is damaged"), "{refusal}");
    std::fs::write(&database, whole).unwrap();
    std::fs::rename(backup.join("manifest.json"), folder.path().join("manifest.json")).unwrap();
    let refusal = run(&server, &["restore", shown(&backup)]).unwrap_err();
    assert!(refusal.contains("was not finished"), "{refusal}");
    assert!(!server.data().join("atelier.db").exists() && !server.data().join("objects").exists());
}

/// UP-03.2: everything moves from SQLite to PostgreSQL, with files and memory.
#[tokio::test]
async fn installation_moves_to_postgres() {
    let mut old = build(Sqlite).start().await;
    let mut belongings = Belongings::new(&old).await;
    let before = belongings.look().await;
    let mut new = build(Postgres).start().await;
    destroy(&mut new, Postgres).await;
    let (source, target) = (format!("sqlite://{}", shown(old.data())), new.database().url());
    let objects = format!("file://{}/objects", shown(new.data()));
    let migrate = ["migrate", "--from", &source, "--to", &target, "--objects-to", &objects];
    let refusal = run(&old, &migrate).unwrap_err();
    assert!(refusal.contains("stop it"), "a server uses the database: {refusal}");
    old.terminate().await;
    let printed = run(&old, &migrate).unwrap();
    assert!(printed.contains("Every row was read back"), "{printed}");
    let refusal = run(&old, &migrate).unwrap_err();
    assert!(refusal.contains("not empty"), "{refusal}");
    for key in ["secret.key", "models.key"] {
        std::fs::copy(old.data().join(key), new.data().join(key)).unwrap();
    }
    let new = new.restart_killed().await;
    belongings.ann = belongings.ann.at(&new);
    assert_eq!(belongings.look().await, before);
    finds_tabs(&belongings).await;
}
