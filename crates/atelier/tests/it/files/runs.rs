//! The folder on the server, and runs in it.

use super::{
    Desk,
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

impl Desk {
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
    let desk = Desk::new(backend, objects).await;
    for name in ["a.txt", "b.txt", "c/d.txt"] {
        desk.upload(name, name).await;
    }
    // Deletes the conversation's folder, then the folders of all conversations and their metadata.
    for cache in [desk.folder(), desk.folder().parent().unwrap().to_owned()] {
        fs::remove_dir_all(cache).unwrap();
        let report = desk.sync().await;
        assert_eq!((&report["fetched"], &report["unchanged"]), (&json!(3), &json!(0)));
    }
    assert_eq!(fs::read_to_string(desk.folder().join("c/d.txt")).unwrap(), "c/d.txt");
    fs::write(desk.folder().join("a.txt"), "A.txt").unwrap();
    fs::remove_file(desk.folder().join("b.txt")).unwrap();
    fs::write(desk.folder().join("nobody's.txt"), "left over").unwrap();
    let report = desk.sync().await;
    assert_eq!((&report["fetched"], &report["removed"]), (&json!(2), &json!(1)));
    for name in ["a.txt", "b.txt", "c/d.txt"] {
        assert_eq!(fs::read_to_string(desk.folder().join(name)).unwrap(), name);
    }
    assert_eq!(desk.sync().await["fetched"], 0);
    let files = desk.info().await["files"].clone();
    assert!(
        files
            .as_array()
            .unwrap()
            .iter()
            .all(|file| file["version"] == 1 && file["source"] == "user_upload")
    );
}

/// Objects of a deletion that could not be finished are removed by the next attempt.
#[rstest]
#[tokio::test]
async fn orphaned_objects_are_removed_after_their_grace_time(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let builder = on(backend, objects).with("FILES__GRACE", "5s").with("FILES__SWEEP", "500ms");
    let desk = Desk::with(builder.environment("ATELIER_CRASH_AT", "deleted")).await;
    let file = desk.upload("a.txt", "to be deleted").await;
    let died = desk.ann.request(reqwest::Method::DELETE, &desk.file(&file)).send().await;
    assert!(died.is_err());
    let Desk { server, ann, path } = desk;
    let server = server.restart_with("ATELIER_CRASH_AT", None).await;
    let desk = Desk { ann: ann.at(&server), server, path };
    assert_eq!(desk.ann.get(&desk.file(&file)).await.problem(), (404, "not_found"));
    eventually("the objects are removed", async || {
        let mut sql = desk.server.sql().await;
        let due = sql.count("SELECT COUNT(*) FROM object_removals").await
            + sql.count("SELECT COUNT(*) FROM stale_copies").await;
        (due == 0).then_some(())
    })
    .await;
    let again = desk.upload("a.txt", "to be deleted").await;
    assert_eq!(desk.get(&again).await, b"to be deleted");
}
