//! The folder on the server, and runs in it.

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
use std::fs;

impl ConversationSetup {
    async fn sync(&self) -> Value {
        self.ann.post(&format!("{}/sync", self.path), json!({"wait_seconds": 10})).await.expect(200)
    }
}

/// FS-01 FS-03
#[rstest]
#[tokio::test]
async fn sync_repairs_the_cache(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    for name in ["a.txt", "b.txt", "c/d.txt"] {
        setup.upload(name, name).await;
    }
    // Deletes the conversation's folder, then the folders of all conversations and their metadata.
    for cache in [setup.folder(), setup.folder().parent().unwrap().to_owned()] {
        fs::remove_dir_all(cache).unwrap();
        let report = setup.sync().await;
        assert_eq!((&report["fetched"], &report["unchanged"]), (&json!(3), &json!(0)));
    }
    assert_eq!(fs::read_to_string(setup.folder().join("c/d.txt")).unwrap(), "c/d.txt");
    // An outdated copy is replaced, a lost file fetched, and a copy too many removed.
    fs::write(setup.folder().join("a.txt"), "b.txt").unwrap();
    fs::remove_file(setup.folder().join("b.txt")).unwrap();
    fs::write(setup.folder().join("nobody's.txt"), "c/d.txt").unwrap();
    let report = setup.sync().await;
    assert_eq!((&report["fetched"], &report["removed"]), (&json!(2), &json!(1)));
    for name in ["a.txt", "b.txt", "c/d.txt"] {
        assert_eq!(fs::read_to_string(setup.folder().join(name)).unwrap(), name);
    }
    assert_eq!(setup.sync().await["fetched"], 0);
    let files = setup.info().await["files"].clone();
    assert!(
        files
            .as_array()
            .unwrap()
            .iter()
            .all(|file| file["version"] == 1 && file["source"] == "user_upload")
    );
}

/// FS-03 FS-18: what somebody changes in the folder outside a run is not lost at the next sync. It
/// becomes a version, or a copy beside a version that is newer.
#[rstest]
#[tokio::test]
async fn changes_outside_a_run_become_versions(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    for name in ["changed.txt", "both.txt", "kept.txt"] {
        setup.upload(name, "one").await;
    }
    setup.sync().await;
    fs::write(setup.folder().join("changed.txt"), "outside").unwrap();
    fs::write(setup.folder().join("new.txt"), "created outside").unwrap();
    fs::write(setup.folder().join("both.txt"), "outside, too").unwrap();
    setup.upload("both.txt", "uploaded").await;
    let report = setup.sync().await;
    assert_eq!(
        json!([report["created"], report["modified"], report["conflicts"]]),
        json!([
            ["new.txt"],
            ["changed.txt"],
            [{"path": "both.txt", "kept_as": "both.agent-copy.txt"}]
        ]),
        "{report}"
    );
    let files = setup.info().await["files"].clone();
    let found: Vec<Value> = files
        .as_array()
        .unwrap()
        .iter()
        .map(|file| json!([file["file_path"], file["version"], file["source"]]))
        .collect();
    assert_eq!(
        found,
        [
            json!(["both.agent-copy.txt", 1, "ai_created"]),
            json!(["both.txt", 2, "user_upload"]),
            json!(["changed.txt", 2, "ai_modified"]),
            json!(["kept.txt", 1, "user_upload"]),
            json!(["new.txt", 1, "ai_created"]),
        ]
    );
    for (name, content) in [
        ("both.txt", "uploaded"),
        ("both.agent-copy.txt", "outside, too"),
        ("new.txt", "created outside"),
    ] {
        assert_eq!(fs::read_to_string(setup.folder().join(name)).unwrap(), content);
    }
    let report = setup.sync().await;
    assert_eq!((&report["unchanged"], &report["fetched"]), (&json!(5), &json!(0)));
}

/// FS-03 FS-05 FS-18: a program outside the server begins a run, works in the folder and ends the
/// run. Nobody else works there meanwhile.
#[rstest]
#[tokio::test]
async fn outside_program_works_in_a_run(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    for name in ["a.txt", "b.txt"] {
        setup.upload(name, "one").await;
    }
    let runs = format!("{}/runs", setup.path);
    let run = setup.ann.post(&runs, json!({"lease_seconds": 60})).await.expect(201);
    let folder = std::path::PathBuf::from(run["workspace_path"].as_str().unwrap());
    assert_eq!((&folder, &run["lease_seconds"]), (&setup.folder(), &json!(60)));
    assert_eq!(
        setup.ann.post(&runs, json!({})).await.problem(),
        (409, "conversation_locked"),
        "one run at a time"
    );
    fs::write(folder.join("a.txt"), "two").unwrap();
    fs::write(folder.join("made.txt"), "made").unwrap();
    fs::remove_file(folder.join("b.txt")).unwrap();
    let this = format!("{runs}/{}", run["run_id"].as_str().unwrap());
    setup.ann.post(&format!("{this}/renew"), json!({"lease_seconds": 120})).await.expect(204);
    let report = setup.ann.post(&format!("{this}/end"), json!(null)).await.expect(200);
    assert_eq!(
        json!([report["created"], report["modified"], report["deleted"]]),
        json!([["made.txt"], ["a.txt"], ["b.txt"]])
    );
    assert_eq!(
        setup.ann.post(&format!("{this}/end"), json!(null)).await.problem(),
        (404, "not_found")
    );
    let files = setup.info().await["files"].clone();
    let found: Vec<Value> = files
        .as_array()
        .unwrap()
        .iter()
        .map(|file| json!([file["file_path"], file["version"], file["source"]]))
        .collect();
    assert_eq!(found, [json!(["a.txt", 2, "ai_modified"]), json!(["made.txt", 1, "ai_created"])]);
    // A run that nobody ends is ended by the server, and its changes are stored.
    let run = setup.ann.post(&runs, json!({"lease_seconds": 1})).await.expect(201);
    fs::write(folder.join("late.txt"), "late").unwrap();
    eventually("the server ends the run", async || {
        let files = setup.info().await["files"].clone();
        files.as_array().unwrap().iter().any(|file| file["file_path"] == "late.txt").then_some(())
    })
    .await;
    let this = format!("{runs}/{}", run["run_id"].as_str().unwrap());
    eventually("the run is gone", async || {
        let ended = setup.ann.post(&format!("{this}/end"), json!(null)).await;
        (ended.problem() == (404, "not_found")).then_some(())
    })
    .await;
    for bad in [json!({"lease_seconds": 0}), json!({"wait_seconds": 31})] {
        assert_eq!(setup.ann.post(&runs, bad).await.problem(), (422, "invalid_request"));
    }
}

/// Objects of a deletion that could not be finished are removed by the next attempt.
#[rstest]
#[tokio::test]
async fn orphaned_objects_are_removed_after_their_grace_time(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let builder = on(backend, objects).with("FILES__GRACE", "5s").with("FILES__SWEEP", "500ms");
    let setup = ConversationSetup::with(builder.environment("ATELIER_CRASH_AT", "deleted")).await;
    let file = setup.upload("a.txt", "to be deleted").await;
    let died = setup.ann.request(reqwest::Method::DELETE, &setup.file(&file)).send().await;
    assert!(died.is_err());
    let ConversationSetup { server, ann, path } = setup;
    let server = server.restart_with("ATELIER_CRASH_AT", None).await;
    let setup = ConversationSetup { ann: ann.at(&server), server, path };
    assert_eq!(setup.ann.get(&setup.file(&file)).await.problem(), (404, "not_found"));
    eventually("the objects are removed", async || {
        let mut sql = setup.server.sql().await;
        let due = sql.count("SELECT COUNT(*) FROM object_removals").await
            + sql.count("SELECT COUNT(*) FROM stale_copies").await;
        (due == 0).then_some(())
    })
    .await;
    let again = setup.upload("a.txt", "to be deleted").await;
    assert_eq!(setup.get(&again).await, b"to be deleted");
}
