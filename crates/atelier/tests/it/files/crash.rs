//! The server is killed: acknowledged files stay, and no file is incomplete.

use super::{
    ConversationSetup,
    Objects::{self, Disk, S3},
    on,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::{collections::HashMap, fs, time::Duration};

/// FS-08: the server is killed at each of the seven steps of an upload, for a small and for a
/// multipart file.
#[rstest]
#[tokio::test]
async fn killed_upload_leaves_nothing_incomplete(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let builder = on(backend, objects).with("FILES__GRACE", "5s").with("FILES__SWEEP", "500ms");
    let mut setup = ConversationSetup::with(builder).await;
    let kept = setup.upload("kept.txt", "acknowledged").await;
    let steps = ["size", "checksum", "object", "mime", "row", "copy", "cache"];
    for (number, step) in steps.into_iter().enumerate() {
        let large = number % 2 == 0;
        let content = vec![number as u8 + 1; if large { 9_000_000 } else { 900 }];
        setup = setup.restarted(Some(step)).await;
        let form = reqwest::multipart::Form::new()
            .part("file", atelier_testkit::file(step, content.clone()));
        let request = setup
            .ann
            .request(reqwest::Method::POST, &format!("{}/files", setup.path))
            .multipart(form);
        assert!(request.send().await.is_err(), "{step}: the server died before it answered");
        setup = setup.restarted(None).await;
        let recorded = ["row", "copy", "cache"].contains(&step);
        let info = setup.info().await;
        let found = info["files"].as_array().unwrap().iter().find(|file| file["file_path"] == step);
        assert_eq!(found.is_some(), recorded, "{step}");
        if let Some(file) = found {
            assert!(setup.get(file).await == content, "{step}: a row has its content");
        }
        assert_eq!(setup.get(&kept).await, b"acknowledged");
        // The next sync updates everything, and the sweep leaves no object without a row.
        let report = setup
            .ann
            .post(&format!("{}/sync", setup.path), json!({"wait_seconds": 30}))
            .await
            .expect(200);
        assert_eq!(report["conflicts"], json!([]), "{step}");
        assert_eq!(setup.cached(), setup.stored().await, "{step}");
        if objects == Disk && number == steps.len() - 1 {
            eventually("no object is left over", async || {
                let mut sql = setup.server.sql().await;
                let rows = sql.count("SELECT COUNT(*) FROM file_blobs").await;
                let folder = format!("objects/workspaces/{}.blobs", setup.conversation());
                let objects = fs::read_dir(setup.server.data().join(folder)).unwrap().count();
                (objects as i64 == rows).then_some(())
            })
            .await;
        }
    }
}

/// FS-03: the server is killed at random moments of a sync; the next sync converges, and no file is
/// ever truncated.
#[rstest]
#[tokio::test]
async fn sync_converges_after_a_killed_sync(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let kills = kills();
    let mut setup = ConversationSetup::with(on(backend, objects).with("FILES__LEASE", "1s")).await;
    // The work of an agent in a run that did not end, made by hand.
    let report = setup.ann.post(&format!("{}/sync", setup.path), json!({})).await.expect(200);
    assert_eq!(report["fetched"], 0);
    let count = 1000;
    let content = |n: usize| format!("file {n} ").repeat(100 + n % 50);
    for batch in 0..10 {
        let mut form = reqwest::multipart::Form::new().text("path", format!("d{batch}/"));
        for n in (0..count).filter(|n| n % 10 == batch) {
            form = form.part("file", atelier_testkit::file(&format!("{n}.txt"), content(n)));
        }
        setup.ann.send_form(&setup.path, form).await.expect(201);
    }
    let wanted: HashMap<String, String> =
        (0..count).map(|n| (format!("d{}/{n}.txt", n % 10), content(n))).collect();
    for kill in 0..kills {
        // All or some of the files in the folder are missing.
        for batch in 0..10 {
            if (kill + batch) % 3 != 0 {
                drop(fs::remove_dir_all(setup.folder().join(format!("d{batch}"))));
            }
        }
        let request = setup.ann.request(reqwest::Method::POST, &format!("{}/sync", setup.path));
        let syncing = tokio::spawn(request.json(&json!({"wait_seconds": 30})).send());
        tokio::time::sleep(Duration::from_millis((kill as u64 * 37) % 400)).await;
        setup.server.kill();
        drop(syncing.await.unwrap());
        for (path, found) in setup.cached() {
            assert_eq!(Some(&found), wanted.get(&path), "{path} is whole after kill {kill}");
        }
        setup = setup.restarted(None).await;
    }
    let report = setup
        .ann
        .post(&format!("{}/sync", setup.path), json!({"wait_seconds": 30}))
        .await
        .expect(200);
    assert_eq!(report["left_alone"], json!([]));
    assert!(setup.cached() == wanted);
    assert_eq!(setup.info().await["file_count"], count);
    // No effect of a kill was recorded as an agent's work.
    let changed = |file: &&Value| file["version"] != 1 || file["source"] != "user_upload";
    assert_eq!(setup.info().await["files"].as_array().unwrap().iter().filter(changed).count(), 0);
}

/// How many kills; `make judge` sets a hundred.
fn kills() -> usize {
    std::env::var("ATELIER_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

impl ConversationSetup {
    async fn restarted(self, crash_at: Option<&str>) -> Self {
        let ConversationSetup { server, ann, path } = self;
        let server = server.restart_with("ATELIER_CRASH_AT", crash_at).await;
        Self { ann: ann.at(&server), server, path }
    }

    /// The files in the folder, by path.
    fn cached(&self) -> HashMap<String, String> {
        let mut found = HashMap::new();
        let mut todo = vec![self.folder()];
        while let Some(folder) = todo.pop() {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else {
                    let name =
                        path.strip_prefix(self.folder()).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, String::from_utf8(fs::read(&path).unwrap()).unwrap());
                }
            }
        }
        found
    }

    /// The files that the API lists, by path.
    async fn stored(&self) -> HashMap<String, String> {
        let mut stored = HashMap::new();
        for file in self.info().await["files"].as_array().unwrap() {
            let content = String::from_utf8(self.get(file).await).unwrap();
            stored.insert(file["file_path"].as_str().unwrap().to_owned(), content);
        }
        stored
    }
}
