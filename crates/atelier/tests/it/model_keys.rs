//! Keys of model providers: set by admins of a tenant, and never shown.

use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, Server, User,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use uuid::Uuid;

const KEYS: &str = "/api/tenants/default/model-keys";
const KEY: &str = "sk-tenant-0123456789abcdef";

#[rstest]
#[tokio::test]
async fn admin_sets_replaces_and_removes_a_key(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let root = server.user_with("root", &["--role", "admin"]);
    let openai = format!("{KEYS}/openai");
    assert_eq!(root.get(&openai).await.problem(), (404, "not_found"));
    let empty = root.get(KEYS).await.expect(200);
    assert_eq!(
        empty,
        json!({"keys": [], "providers": ["anthropic", "ollama", "openai", "openrouter"]})
    );

    let put = root.put(&openai, json!({"key": KEY})).await.expect(200);
    assert_eq!((&put["provider"], &put["last_four"]), (&json!("openai"), &json!("cdef")));
    assert_eq!(root.get(&openai).await.expect(200), put);
    assert_eq!(root.get(KEYS).await.expect(200)["keys"], json!([put]));

    // The last characters of a short key would reveal too much of it.
    let short = root.put(&openai, json!({"key": "tiny-key"})).await.expect(200);
    assert_eq!((&short["provider"], &short["last_four"]), (&json!("openai"), &json!("")));

    assert_eq!(root.delete(&openai).await.status, 204);
    assert_eq!(root.delete(&openai).await.problem(), (404, "not_found"));
    assert_eq!(root.get(KEYS).await.expect(200), empty);
}

#[rstest]
#[tokio::test]
async fn only_admins_see_or_change_a_key(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let root = server.user_with("root", &["--role", "admin"]);
    let openai = format!("{KEYS}/openai");
    let put = root.put(&openai, json!({"key": KEY})).await.expect(200);
    for other in [
        server.user("ann"),
        server.program("root", "client", &Uuid::now_v7().to_string()),
        server.program("root", "agent", &Uuid::now_v7().to_string()),
        server.user_with("root", &["--tenant", "other", "--role", "admin"]),
    ] {
        for answer in [
            other.get(KEYS).await,
            other.get(&openai).await,
            other.put(&openai, json!({"key": "sk-mine"})).await,
            other.delete(&openai).await,
        ] {
            assert_eq!(answer.problem(), (404, "not_found"));
        }
    }
    assert_eq!(root.get(&openai).await.expect(200), put);
    // Two tenants have two keys.
    let other = server.user_with("boss", &["--tenant", "other", "--role", "admin"]);
    assert_eq!(
        other.get("/api/tenants/other/model-keys/openai").await.problem(),
        (404, "not_found")
    );
}

#[tokio::test]
async fn invalid_key_is_refused_without_repeating_it() {
    let server = start(Sqlite).await;
    let root = server.user_with("root", &["--role", "admin"]);
    assert_eq!(
        root.put(&format!("{KEYS}/nobody"), json!({"key": KEY})).await.problem(),
        (404, "not_found")
    );
    for bad in ["", "sk with spaces", "sk-\n-line", "sk-ключ", &"x".repeat(501)] {
        let answer = root.put(&format!("{KEYS}/openai"), json!({"key": bad})).await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{bad}");
        assert!(bad.is_empty() || !answer.body.to_string().contains(bad), "{}", answer.body);
    }
    assert_eq!(root.get(KEYS).await.expect(200)["keys"], json!([]));
}

/// Everything that the database stores about the keys, as raw bytes.
async fn stored(server: &Server) -> Vec<u8> {
    server.sql().await.bytes("SELECT sealed FROM model_providers").await
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[rstest]
#[tokio::test]
async fn key_appears_in_no_log_event_or_file(#[values(Sqlite, Postgres)] backend: Backend) {
    const SERVERS_OWN: &str = "sk-server-fedcba9876543210";
    let server = build(backend)
        .environment("OPENAI_API_KEY", SERVERS_OWN)
        .environment("LOG_LEVEL", "trace")
        .start()
        .await;
    let root = server.user_with("root", &["--role", "admin"]);
    let project = root.project("shop").await;
    let openai = format!("{KEYS}/openai");
    root.put(&openai, json!({"key": KEY})).await.expect(200);
    root.put(&openai, json!({"key": KEY, "extra": 1})).await.expect(422);
    root.put(&openai, json!({"kee": KEY})).await.expect(422);

    let mut events = root.events(&format!("{project}/events"), Some("0")).await;
    let reported = events.take(5).await;
    assert!(!reported.iter().any(|event| event.data.to_string().contains(KEY)));
    let sealed = stored(&server).await;
    assert!(!contains(&sealed, KEY) && !contains(&sealed, &KEY[..8]));

    let configuration = server.command(&["serve", "--print-config"]);
    let shown = [configuration.stdout, configuration.stderr].concat();
    assert!(contains(&shown, "key_env = \"OPENAI_API_KEY\"") && !contains(&shown, SERVERS_OWN));

    // The key is still there after a restart, and the logs of both runs do not contain it.
    let log = server.log();
    let server = server.restart().await;
    let again = root.at(&server).get(&openai).await.expect(200);
    assert_eq!(again["last_four"], "cdef");
    let log = log + &server.log();
    assert!(log.contains("stored a key or an address of a model provider"), "the log is there");
    let (mut files, mut folders) = (0, vec![server.data().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(path).unwrap();
            assert!(!contains(&bytes, KEY) && !contains(&bytes, SERVERS_OWN));
            files += 1;
        }
    }
    assert!(files >= 2);
    assert!(!log.contains(KEY) && !log.contains(SERVERS_OWN), "{log}");
    let mode = std::fs::metadata(server.data().join("models.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// What the coder of a new project answers, or why it cannot.
async fn asked(user: &User) -> (Value, String) {
    let project = user.project("shop").await;
    let session = user.post(&format!("{project}/chat/sessions/"), json!({})).await.expect(201);
    let path = format!("{project}/chat/{}/message", session["id"].as_str().unwrap());
    let printed = json!({"content": "hello", "target_agent": "coder"});
    let request = user.request(Method::POST, &path).header("prefer", "wait=20").json(&printed);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    // All events until the task has ended.
    let mut events = user.events(&format!("{project}/events"), Some("0")).await;
    let mut reported = String::new();
    loop {
        let event = events.next().await;
        reported.push_str(&event.data.to_string());
        if ["TASK_COMPLETED", "TASK_FAILED"].contains(&event.name.as_str()) {
            return (answer, reported);
        }
    }
}

#[rstest]
#[tokio::test]
async fn agents_of_a_tenant_use_its_own_key(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_| Reply::text("hello yourself")).await;
    let server = build(backend).model(&model).start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    root.put(&format!("{KEYS}/openai"), json!({"key": KEY})).await.expect(200);
    let (own, other) = (server.user("ann"), server.user_with("ann", &["--tenant", "other"]));
    for (user, key) in [(&own, KEY), (&other, "sk-scripted")] {
        let (answer, _) = asked(user).await;
        assert_eq!(answer["content"], "hello yourself", "{answer}");
        assert_eq!(
            model.seen().last().unwrap().headers["authorization"],
            format!("Bearer {key}").as_str()
        );
    }
    // After its deletion the key is no longer used.
    assert_eq!(root.delete(&format!("{KEYS}/openai")).await.status, 204);
    asked(&server.user("bob")).await;
    assert_eq!(model.seen().last().unwrap().headers["authorization"], "Bearer sk-scripted");
}

#[rstest]
#[tokio::test]
async fn key_that_the_provider_repeats_is_redacted(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values("info", "trace")] level: &str,
) {
    let refusal = || Reply::status(400).saying(format!("bad key {KEY}"));
    // The key is also hidden if the response is not a valid answer.
    let garbage = || Reply::raw([format!("{{\"error\": bad key Bearer {KEY}")]);
    let garbled = ScriptedModel::start(move |_| garbage()).await;
    let server = build(backend).environment("LOG_LEVEL", level).model(&garbled).start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    root.put(&format!("{KEYS}/openai"), json!({"key": KEY})).await.expect(200);
    let (answer, reported) = asked(&server.user("ann")).await;
    assert!(
        !reported.contains(KEY) && !answer.to_string().contains(KEY) && !server.log().contains(KEY)
    );

    let model = ScriptedModel::start(move |_| refusal()).await;
    let server = build(backend).model(&model).start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    root.put(&format!("{KEYS}/openai"), json!({"key": KEY})).await.expect(200);
    let (answer, reported) = asked(&server.user("ann")).await;
    assert!(reported.contains("refused the request (400): bad key [key]"), "{reported}");
    assert!(
        !reported.contains(KEY) && !answer.to_string().contains(KEY) && !server.log().contains(KEY)
    );
}
