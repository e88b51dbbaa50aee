//! Access to files of others.

use super::{ConversationSetup, Objects::Disk};
use crate::openapi::{Operation, operations};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    User, answer, file,
};
use reqwest::multipart::Form;
use rstest::rstest;
use serde_json::json;
use uuid::Uuid;

/// FS-14: every file route is tried by users who do not own the file, with ids of others.
#[rstest]
#[tokio::test]
async fn files_of_others_look_like_unknown_files(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let kept = setup.upload("secret.txt", "secret").await;
    let new = json!({"path": "big.bin", "size": 5});
    let upload =
        setup.ann.post(&format!("{}/uploads", setup.path), new).await.expect(201)["upload_id"]
            .clone();
    let before = setup.info().await;
    let bob = setup.server.user("bob");
    let own = bob.workspace().await;
    let own = own.rsplit('/').next().unwrap();
    let others = [
        (&bob, "default"),
        (&setup.server.user_with("root", &["--role", "admin"]), "default"),
        (&setup.server.user_with("ann", &["--tenant", "other"]), "default"),
        (&setup.server.user_with("ann", &["--tenant", "other"]), "other"),
        // Ann herself, with the name of another tenant.
        (&setup.ann, "other"),
    ];
    let operations: Vec<Operation> = operations(&setup.server).await;
    let of_files = |it: &&Operation| {
        it.path.starts_with("/api/tenants/") && it.path.contains("{conversation}")
    };
    let mut tried = 0;
    for operation in operations.iter().filter(of_files) {
        let path = |tenant: &str, conversation: &str, known: bool| {
            operation.fill(|name| match (name, known) {
                ("tenant", _) => tenant.to_owned(),
                ("conversation", _) => conversation.to_owned(),
                ("file", true) => kept["file_id"].as_str().unwrap().to_owned(),
                ("upload", true) => upload.as_str().unwrap().to_owned(),
                ("number", _) => "1".to_owned(),
                (_, _) => Uuid::now_v7().to_string(),
            })
        };
        for (user, tenant) in &others {
            let unknown =
                ask(user, operation, &path(tenant, &Uuid::now_v7().to_string(), false)).await;
            assert_eq!(unknown.problem(), (404, "not_found"), "{}", operation.label());
            let theirs = ask(user, operation, &path(tenant, setup.conversation(), true)).await;
            assert_eq!(theirs, unknown, "{}", operation.label());
        }
        // A user's own conversation gives no access to files of others.
        if operation.path.contains("{file}") || operation.path.contains("{upload}") {
            let mixed = ask(&bob, operation, &path("default", own, true)).await;
            let unknown = ask(&bob, operation, &path("default", own, false)).await;
            assert_eq!(mixed, unknown, "{}", operation.label());
            assert_ne!(mixed.status.as_u16() / 100, 2, "{}", operation.label());
        }
        tried += 1;
    }
    assert!(tried >= 17, "{tried}");
    let elsewhere = bob.post("/api/tenants/other/conversations", json!({})).await;
    assert_eq!(elsewhere.problem(), (404, "not_found"));
    let project = setup.ann.get(&setup.tenant_path()).await.expect(200)["project_id"].clone();
    let in_hers =
        bob.post("/api/tenants/default/conversations", json!({"project_id": project})).await;
    assert_eq!(in_hers.problem(), (404, "not_found"));
    assert_eq!(bob.get("/api/tenants/default/conversations").await.expect(200)["total"], 1);
    assert_eq!(setup.info().await, before);
    assert_eq!(setup.get(&kept).await, b"secret");
}

/// The whole answer except its date. The body is valid, so that nothing else is wrong with the
/// request.
async fn ask(user: &User, operation: &Operation, path: &str) -> Answer {
    let request = user.request(operation.method.clone(), path);
    let request = match operation.path.rsplit('/').next() {
        Some("files") => request.multipart(Form::new().part("file", file("x.txt", "x"))),
        Some("restore") => request.json(&json!({"version": 1})),
        Some("uploads") => request.json(&json!({"path": "x", "size": 1})),
        _ if operation.takes_body => request.json(&json!({})),
        _ => request,
    };
    let mut answer = answer(request).await;
    answer.headers.remove("date");
    answer
}

/// Equal content of two conversations is not shared either.
#[rstest]
#[tokio::test]
async fn conversations_of_one_user_share_nothing(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let other = setup.ann.workspace().await;
    let one = setup.upload("a.txt", "same").await;
    let two = setup.ann.upload(&other, "a.txt", "same").await.expect(201)["files"][0].clone();
    assert_ne!(one["file_id"], two["file_id"]);
    let crossed = format!("{other}/files/{}", one["file_id"].as_str().unwrap());
    assert_eq!(setup.ann.get(&crossed).await.problem(), (404, "not_found"));
    assert_eq!(setup.ann.delete(&setup.file(&one)).await.status, 204);
    let (status, _, body) =
        setup.ann.download(&format!("{other}/files/{}", two["file_id"].as_str().unwrap())).await;
    assert_eq!((status.as_u16(), body.unwrap()), (200, b"same".to_vec()));
}
