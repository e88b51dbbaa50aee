//! Disks that are full, and that have space again.

use super::{part, ready};
use crate::build;
use atelier_testkit::{
    Backend::{Postgres, Sqlite},
    Bucket, Server, eventually,
};
use serde_json::json;
use std::{fs::File, io::Write};

const MEGABYTES: u32 = 24;

/// Fills the disk of the server's data folder to the last byte.
fn fill(server: &Server) {
    let mut file = File::create(server.mounted_data().join("filler")).unwrap();
    for size in [1 << 20, 4096, 1] {
        let piece = vec![b'x'; size];
        while let Ok(1..) = file.write(&piece) {}
    }
}

fn free(server: &Server) {
    std::fs::remove_file(server.mounted_data().join("filler")).unwrap();
}

async fn is_unhealthy(server: &Server) {
    eventually("the disk is full", async || {
        let (status, health) = ready(server).await;
        let disk = part(&health, "disk");
        let full = json!({
            "name": "disk", "status": "unhealthy", "reason": "disk full: nothing can be stored"
        });
        (status == 503 && *disk == full).then_some(())
    })
    .await;
}

async fn recovers(server: &Server) {
    eventually("the server is ready again", async || (ready(server).await.0 == 200).then_some(()))
        .await;
}

/// OP-03.1: on a full disk, the default server refuses writes and uploads with 507, says so in its
/// health, serves reads, and goes on without a restart when there is space again. Nothing that was
/// acknowledged is lost.
#[tokio::test]
async fn default_server_survives_a_full_disk() {
    let mut server = build(Sqlite).on_small_disk(MEGABYTES).start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let workspace = ann.workspace().await;
    let kept = ann.upload(&workspace, "kept.txt", "kept").await.expect(201);
    let kept = format!("{workspace}/files/{}", kept["files"][0]["file_id"].as_str().unwrap());
    for round in 0..3 {
        fill(&server);
        is_unhealthy(&server).await;
        // The database may have a little space left in its files.
        let refused = eventually("a write is refused", async || {
            let body = json!({"name": format!("shop {}", uuid::Uuid::now_v7())});
            let answer = ann.post("/my/projects", body).await;
            (answer.status != 201).then_some(answer)
        })
        .await;
        assert_eq!(refused.problem(), (507, "disk_full"), "{}", refused.body);
        assert!(refused.headers.contains_key("retry-after"));
        let refused = ann.upload(&workspace, "more.txt", vec![b'y'; 200_000]).await;
        assert_eq!(refused.problem(), (507, "disk_full"), "{}", refused.body);
        let refused = ann.upload(&workspace, "large.bin", vec![b'y'; 9 << 20]).await;
        assert_eq!(refused.problem(), (507, "disk_full"), "{}", refused.body);
        ann.get(&project).await.expect(200);
        assert_eq!(ann.download(&kept).await.2.unwrap(), b"kept");

        free(&server);
        recovers(&server).await;
        ann.project(&format!("after {round}")).await;
        ann.upload(&workspace, &format!("after {round}.txt"), "more").await.expect(201);
    }
    assert_eq!(ann.download(&kept).await.2.unwrap(), b"kept");
    assert!(server.terminate().await.success(), "the process was never restarted");
}

/// OP-03.2: a node on PostgreSQL whose own disk is full refuses uploads with 507 and accepts
/// everything else.
#[tokio::test]
async fn node_on_postgres_survives_a_full_disk() {
    let server = build(Postgres).on_small_disk(MEGABYTES).start().await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    fill(&server);
    is_unhealthy(&server).await;
    for size in [10, 9 << 20] {
        let refused = ann.upload(&workspace, "more.bin", vec![b'y'; size]).await;
        assert_eq!(refused.problem(), (507, "disk_full"), "{}", refused.body);
    }
    ann.project("shop").await;
    free(&server);
    recovers(&server).await;
    ann.upload(&workspace, "more.bin", "more").await.expect(201);
}

/// OP-03.2: with files in S3, a full disk of the node only keeps files from being cached.
#[tokio::test]
async fn full_cache_refuses_no_upload() {
    let bucket = Bucket::new();
    let server = build(Postgres)
        .with("OBJECT_STORE", bucket.url())
        .with("FILES__PREFIX", &bucket.prefix)
        .on_small_disk(MEGABYTES)
        .start()
        .await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    fill(&server);
    for size in [10, 9 << 20] {
        let content = vec![b'y'; size];
        let saved = ann.upload(&workspace, "more.bin", content.clone()).await.expect(201);
        let path = format!("{workspace}/files/{}", saved["files"][0]["file_id"].as_str().unwrap());
        assert!(ann.download(&path).await.2.unwrap() == content, "{size} bytes are there");
    }
    eventually("the full disk shows in health", async || {
        let (status, health) = ready(&server).await;
        (status == 200 && part(&health, "disk")["status"] == "degraded").then_some(())
    })
    .await;
}
