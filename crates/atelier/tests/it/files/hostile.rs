//! An S3 server that refuses, resets, dribbles or corrupts: every request ends with a clear error
//! or a durable success.

use super::ConversationSetup;
use crate::build;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Bucket, Harm, Hostile, User, answer, file,
};
use reqwest::{Method, multipart::Form};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;

/// How long the object store may take to answer.
const STORE_TIMEOUT: &str = "2s";
/// With retries a request takes seconds; without a timeout it would take hours.
const PATIENCE: Duration = Duration::from_secs(90);

#[rstest]
#[tokio::test]
async fn failing_object_store_causes_only_clean_errors(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Harm::Unavailable, Harm::Reset, Harm::Dribble, Harm::Corrupt)] harm: Harm,
) {
    let bucket = Bucket::new();
    let proxy = Hostile::before(&bucket.endpoint).await;
    let bucket = bucket.through(proxy.url());
    let builder = build(backend)
        .with("OBJECT_STORE", bucket.url())
        .with("FILES__PREFIX", &bucket.prefix)
        .with("FILES__STORE_TIMEOUT", STORE_TIMEOUT);
    let setup = ConversationSetup::with(builder).await;
    let kept = setup.upload("kept.txt", "kept").await;
    let other = setup.server.user_with("eve", &["--tenant", "other"]);

    proxy.set(harm);
    let uploads = (0..4u8).map(|n| {
        let size = if n % 2 == 0 { 1000 } else { 9_000_000 };
        let form = Form::new().part("file", file(&format!("{n}.bin"), vec![n; size]));
        answer(setup.ann.request(Method::POST, &format!("{}/files", setup.path)).multipart(form))
    });
    let download =
        setup.ann.request(Method::GET, &format!("{}?verify=true", setup.file(&kept))).send();
    let all = async {
        tokio::join!(futures::future::join_all(uploads), download, unrelated_requests(&other))
    };
    let (answers, downloaded, ()) = tokio::time::timeout(PATIENCE, all).await.unwrap();
    let saved: Vec<Value> = answers
        .into_iter()
        .filter_map(|answer| match answer.status.as_u16() {
            201 => Some(answer.body["files"][0].clone()),
            _ => {
                assert_eq!(answer.problem(), (503, "object_store_unavailable"), "{harm:?}");
                None
            }
        })
        .collect();
    if let Ok(response) = downloaded
        && response.status() == 200
        && let Ok(bytes) = response.bytes().await
    {
        assert_eq!(bytes, "kept", "{harm:?}: whole and right, or not at all");
    }
    // A sync reports the damage, or fetches the right content.
    std::fs::remove_dir_all(setup.folder()).unwrap();
    let synced = setup.ann.post(&format!("{}/sync", setup.path), json!({})).await;
    match synced.status.as_u16() {
        200 => match std::fs::read(setup.folder().join("kept.txt")) {
            Ok(bytes) => assert_eq!(bytes, b"kept"),
            Err(_) => {
                let damaged = synced.body["damaged"].as_array().unwrap();
                assert!(damaged.contains(&json!("kept.txt")), "{harm:?}: {}", synced.body);
            }
        },
        502 | 503 => assert!(!setup.folder().join("kept.txt").exists(), "{harm:?}"),
        other => panic!("{harm:?}: {other} {}", synced.body),
    }

    proxy.set(Harm::None);
    assert_eq!(setup.get(&kept).await, b"kept");
    assert_eq!(setup.info().await["file_count"], 1 + saved.len());
    for file in &saved {
        let size = file["file_size"].as_u64().unwrap() as usize;
        let first = file["file_path"].as_str().unwrap().as_bytes()[0] - b'0';
        assert!(
            setup.get(file).await == vec![first; size],
            "{harm:?}: what was acknowledged is there"
        );
    }
    let again = setup.upload("again.txt", "again").await;
    assert_eq!(setup.get(&again).await, b"again");
    setup.ann.post(&format!("{}/sync", setup.path), json!({"wait_seconds": 10})).await.expect(200);
}

/// Requests of another tenant, which are answered while the object store is failing.
async fn unrelated_requests(user: &User) {
    for _ in 0..100 {
        user.get("/my/projects").await.expect(200);
    }
}
