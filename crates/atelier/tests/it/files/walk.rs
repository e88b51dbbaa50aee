//! The life of a file: upload, list, download, restore, delete.

use super::{
    ConversationSetup,
    Objects::{self, Disk, S3},
};
use crate::build;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Bucket, eventually, file,
};
use reqwest::multipart::Form;
use rstest::rstest;
use serde_json::json;

/// FS-04 FS-07 FS-08 FS-09 FS-10
#[rstest]
#[tokio::test]
async fn file_is_uploaded_changed_and_deleted(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    let empty = setup.info().await;
    assert_eq!(empty["workspace_enabled"], true);
    assert_eq!((&empty["workspace_path"], &empty["file_count"]), (&json!(null), &json!(0)));
    let project = setup.ann.get(&setup.tenant_path()).await.expect(200)["project_id"].clone();
    let mut events =
        setup.ann.events(&format!("/my/projects/{}/events", project.as_str().unwrap()), None).await;
    assert_eq!(events.comment().await, "hello");

    let form = reqwest::multipart::Form::new()
        .part("file", atelier_testkit::file("Отчёт.txt", "hello"))
        .text("path", "documents/report.txt")
        .text("description", "what I wrote");
    let file = setup.ann.send_form(&setup.path, form).await.expect(201)["files"][0].clone();
    let ids = (file["file_id"].clone(), file["created_at"].clone(), file["updated_at"].clone());
    assert_eq!(
        file,
        json!({
            "file_id": ids.0, "conversation_id": setup.conversation(), "file_path": "documents/report.txt",
            "original_name": "Отчёт.txt", "description": "what I \
                wrote", "file_size": 5, "mime_type": "text/plain",
            "version": 1, "source": "user_upload", "is_presented": false,
            "checksum": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "status": "active",
            "created_by": setup.ann.claims()["sub"], "created_at": ids.1, "updated_at": ids.2,
        })
    );
    let reported = events.until("FILES_CHANGED").await;
    assert_eq!(
        reported.data["changes"],
        json!([{"change": "created", "file_id": ids.0, "file_path": "documents/report.txt", "version": 1,
                "source": "user_upload"}])
    );
    assert_eq!(
        std::fs::read_to_string(setup.folder().join("documents/report.txt")).unwrap(),
        "hello"
    );

    let info = setup.info().await;
    assert_eq!(
        (&info["file_count"], &info["total_size"], &info["files"][0]),
        (&json!(1), &json!(5), &file)
    );
    let place = info["workspace_path"].as_str().unwrap();
    assert!(place.ends_with(&format!("{}/", setup.conversation())), "{place}");
    assert!(
        setup.ann.get(&setup.tenant_path()).await.expect(200)["workspace_created_at"].is_string()
    );

    let (status, headers, body) = setup.ann.download(&setup.file(&file)).await;
    assert_eq!((status.as_u16(), body.unwrap()), (200, b"hello".to_vec()));
    assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(headers["etag"], format!("\"{}\"", file["checksum"].as_str().unwrap()));
    assert_eq!(
        headers["content-disposition"],
        "attachment; filename=\"report.txt\"; filename*=UTF-8''report.txt"
    );

    // Uploads the next version, and restores the first one.
    let form = reqwest::multipart::Form::new()
        .part("file", atelier_testkit::file("report.txt", "hello, world"))
        .text("path", "documents/report.txt");
    let second = setup.ann.send_form(&setup.path, form).await.expect(201)["files"][0].clone();
    assert_eq!((&second["version"], &second["file_id"]), (&json!(2), &ids.0));
    assert_eq!(second["description"], "what I wrote");
    let versions = setup.ann.get(&format!("{}/versions", setup.file(&file))).await.expect(200);
    assert_eq!(versions["total"], 2);
    assert_eq!(versions["versions"][1]["checksum"], file["checksum"]);
    let (_, _, old) = setup.ann.download(&format!("{}/versions/1", setup.file(&file))).await;
    assert_eq!(old.unwrap(), b"hello");
    let (_, headers, diff) =
        setup.ann.download(&format!("{}/diff?from=1&to=2", setup.file(&file))).await;
    assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
    let diff = String::from_utf8(diff.unwrap()).unwrap();
    assert!(diff.contains("\n-hello\n") && diff.contains("\n+hello, world\n"), "{diff}");
    let restored = setup
        .ann
        .post(&format!("{}/restore", setup.file(&file)), json!({"version": 1}))
        .await
        .expect(200);
    assert_eq!((&restored["version"], &restored["checksum"]), (&json!(3), &file["checksum"]));
    assert_eq!(setup.get(&file).await, b"hello");

    let current = setup
        .ann
        .post(&format!("{}/restore", setup.file(&file)), json!({"version": 3}))
        .await
        .expect(200);
    assert_eq!(current["version"], 3, "it is that already");
    let beyond =
        setup.ann.get(&format!("{}/diff?to=-9223372036854775808", setup.file(&file))).await;
    assert_eq!(beyond.problem(), (404, "not_found"));
    assert_eq!(
        setup.ann.patch(&setup.file(&file), json!({})).await.expect(200),
        current,
        "nothing was changed"
    );

    // Changes the name and the presented mark.
    let change = json!({"file_path": "final.txt", "is_presented": true, "description": "done"});
    let changed = setup.ann.patch(&setup.file(&file), change).await.expect(200);
    assert_eq!(
        (
            &changed["file_path"],
            &changed["is_presented"],
            &changed["description"],
            &changed["version"]
        ),
        (&json!("final.txt"), &json!(true), &json!("done"), &json!(3))
    );

    assert_eq!(setup.ann.delete(&setup.file(&file)).await.status, 204);
    assert_eq!(setup.ann.get(&setup.file(&file)).await.problem(), (404, "not_found"));
    assert_eq!(setup.ann.delete(&setup.file(&file)).await.problem(), (404, "not_found"));
    assert_eq!(setup.info().await["file_count"], 0);
    assert!(!setup.folder().join("final.txt").exists());
    let changes: Vec<String> = {
        let mut kinds = Vec::new();
        while kinds.last().map(String::as_str) != Some("deleted") {
            let reported = events.until("FILES_CHANGED").await;
            kinds.push(reported.data["changes"][0]["change"].as_str().unwrap().to_owned());
        }
        kinds
    };
    assert_eq!(changes, ["updated", "updated", "renamed", "deleted"]);
    let mut sql = setup.server.sql().await;
    assert_eq!(
        sql.count("SELECT COUNT(*) FROM conversation_files WHERE status = 'deleted'").await,
        1
    );
    assert_eq!(sql.count("SELECT COUNT(*) FROM file_blobs").await, 0);
}

/// FS-04 FS-08 FS-09
#[rstest]
#[tokio::test]
async fn renaming_updates_the_type_and_descriptions_can_be_removed(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    let form = reqwest::multipart::Form::new()
        .part("file", atelier_testkit::file("download", "a,b\n1,2\n"))
        .text("path", "table.csv")
        .text("description", "numbers");
    let file = setup.ann.send_form(&setup.path, form).await.expect(201)["files"][0].clone();
    assert_eq!(
        (&file["original_name"], &file["mime_type"]),
        (&json!("download"), &json!("text/csv"))
    );
    let photo = setup.upload("photo.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec()).await;

    let renamed =
        setup.ann.patch(&setup.file(&file), json!({"file_path": "notes.md"})).await.expect(200);
    assert_eq!(renamed["mime_type"], "text/markdown");
    assert_eq!(renamed["description"], "numbers");
    let (_, headers, _) = setup.ann.download(&setup.file(&file)).await;
    assert_eq!(headers["content-type"], "text/markdown; charset=utf-8");
    let renamed =
        setup.ann.patch(&setup.file(&photo), json!({"file_path": "photo.txt"})).await.expect(200);
    assert_eq!(renamed["mime_type"], "image/png", "the content knows better");

    let taken = setup.ann.patch(&setup.file(&file), json!({"file_path": "photo.txt"})).await;
    assert_eq!(taken.problem(), (409, "path_taken"));
    assert_eq!(taken.body["detail"], "there is a file at photo.txt already");
    let described =
        setup.ann.patch(&setup.file(&file), json!({"description": null})).await.expect(200);
    assert_eq!(
        (&described["description"], &described["file_path"]),
        (&json!(null), &json!("notes.md"))
    );
}

/// FS-02: `{bucket}/{prefix}{conversation_id}/{file_path}` and
/// `{WORKSPACE_TEMP_DIR}/{conversation_id}/{file_path}` hold the content of the newest version.
#[rstest]
#[tokio::test]
async fn object_store_and_cache_hold_a_readable_copy(#[values(Disk, S3)] objects: Objects) {
    let cache = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bucket = Bucket::new();
    let prefix = format!("{}spaces/", bucket.prefix);
    let url = match objects {
        Disk => format!("file://{}", folder.path().display()),
        S3 => bucket.url(),
    };
    let builder = build(Sqlite)
        .with("OBJECT_STORE", url)
        .environment("S3_WORKSPACE_PREFIX", &prefix)
        .environment("WORKSPACE_TEMP_DIR", cache.path().display());
    let setup = ConversationSetup::with(builder).await;
    let object = format!("{prefix}{}/docs/a.txt", setup.conversation());
    let cached = cache.path().join(setup.conversation()).join("docs/a.txt");
    let copies = async || {
        let stored = match objects {
            Disk => std::fs::read(folder.path().join(&object)).ok(),
            S3 => bucket.read(&object).await,
        };
        (stored, std::fs::read(&cached).ok())
    };

    let upload = async |content: &str| {
        let form = Form::new().part("file", file("a.txt", content)).text("path", "docs/a.txt");
        setup.ann.send_form(&setup.path, form).await.expect(201)["files"][0].clone()
    };
    let uploaded = upload("one").await;
    let both = |content: &str| (Some(content.into()), Some(content.into()));
    assert_eq!(copies().await, both("one"));
    let prefix = format!("{prefix}{}/", setup.conversation());
    assert_eq!(setup.info().await["workspace_path"], prefix);
    upload("two").await;
    assert_eq!(copies().await, both("two"));
    assert_eq!(setup.ann.delete(&setup.file(&uploaded)).await.status, 204);
    assert_eq!(copies().await, (None, None));
}

/// FS-16 FS-20: content of an archived conversation that a rule of the object store deleted is
/// reported as expired.
#[rstest]
#[tokio::test]
async fn content_of_archived_conversations_may_expire(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let file = setup.upload("a.txt", "short-lived").await;
    setup.ann.patch(&setup.tenant_path(), json!({"status": "archived"})).await.expect(200);
    let objects = setup.server.data().join("objects/workspaces");
    let archived = objects.join(format!("archived/{}.blobs", setup.conversation()));
    eventually("the content has moved, and its copy is gone", async || {
        let copy = objects.join(setup.conversation()).join("a.txt");
        (archived.is_dir() && !copy.exists()).then_some(())
    })
    .await;
    assert_eq!(setup.get(&file).await, b"short-lived");
    for content in std::fs::read_dir(&archived).unwrap() {
        std::fs::remove_file(content.unwrap().path()).unwrap();
    }
    assert_eq!(setup.ann.get(&setup.file(&file)).await.problem(), (410, "content_expired"));
    assert_eq!(setup.info().await["file_count"], 1, "the file is still listed");
}

/// FS-15 FS-16
#[rstest]
#[tokio::test]
async fn workspace_can_be_disabled_and_archived_conversations_keep_files(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let file = setup.upload("a.txt", "kept").await;
    let archived =
        setup.ann.patch(&setup.tenant_path(), json!({"status": "archived"})).await.expect(200);
    assert_eq!(archived["status"], "archived");
    assert_eq!(setup.get(&file).await, b"kept");

    let off = setup
        .ann
        .patch(&setup.tenant_path(), json!({"workspace_enabled": false}))
        .await
        .expect(200);
    assert_eq!(off["workspace_enabled"], false);
    let refused = setup.ann.upload(&setup.path, "b.txt", "x").await;
    assert_eq!(refused.problem(), (403, "workspace_disabled"));
    assert_eq!(
        setup.ann.post(&format!("{}/sync", setup.path), json!({})).await.problem(),
        (403, "workspace_disabled")
    );
    assert_eq!(setup.info().await["workspace_enabled"], false);
    assert_eq!(setup.get(&file).await, b"kept");

    let path = "/api/tenants/default/conversations";
    let created = setup
        .ann
        .post(path, json!({"title": "no files", "workspace_enabled": false}))
        .await
        .expect(201);
    assert_eq!(
        (&created["title"], &created["workspace_enabled"]),
        (&json!("no files"), &json!(false))
    );
    assert_eq!(setup.ann.get(path).await.expect(200)["total"], 2);
    for (status, id) in [("archived", &archived["id"]), ("active", &created["id"])] {
        let list = setup.ann.get(&format!("{path}?status={status}")).await.expect(200);
        assert_eq!((&list["total"], &list["conversations"][0]["id"]), (&json!(1), id));
    }
    assert_eq!(setup.ann.get(&format!("{path}?status=gone")).await.status, 422);
    // Both conversations are in the project that was created for them.
    let project = setup.ann.get(&setup.tenant_path()).await.expect(200)["project_id"].clone();
    assert_eq!(created["project_id"], project);
    let project =
        setup.ann.get(&format!("/my/projects/{}", project.as_str().unwrap())).await.expect(200);
    assert_eq!(
        (&project["name"], &project["workspace"]),
        (&json!("default"), &json!("conversation"))
    );
}
