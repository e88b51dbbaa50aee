//! How files are downloaded.

use super::{
    ConversationSetup,
    Objects::{self, Disk, S3},
};
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use std::io::Read;

/// FS-09
#[rstest]
#[tokio::test]
async fn downloads_support_ranges_and_etags(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    let content: Vec<u8> = (0..9_000_000u32).map(|n| (n % 251) as u8).collect();
    let file = setup.upload("data.bin", content.clone()).await;
    let tag = format!("\"{}\"", file["checksum"].as_str().unwrap());
    let ask = async |headers: &[(&str, &str)]| {
        let request = setup.ann.request(Method::GET, &setup.file(&file));
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send().await.unwrap();
        let range =
            response.headers().get("content-range").map(|it| it.to_str().unwrap().to_owned());
        (response.status().as_u16(), range, response.bytes().await.unwrap())
    };
    let (status, range, body) = ask(&[("range", "bytes=8388600-8388619")]).await;
    assert_eq!((status, range.as_deref()), (206, Some("bytes 8388600-8388619/9000000")));
    assert_eq!(body, content[8_388_600..8_388_620]);
    let (status, _, body) = ask(&[("range", "bytes=-5"), ("if-range", &tag)]).await;
    assert_eq!((status, &body[..]), (206, &content[8_999_995..]));
    let (status, _, body) = ask(&[("range", "bytes=-5"), ("if-range", "\"other\"")]).await;
    assert_eq!((status, body.len()), (200, 9_000_000));
    let (status, range, _) = ask(&[("range", "bytes=9000000-")]).await;
    assert_eq!((status, range.as_deref()), (416, Some("bytes */9000000")));
    let (status, _, body) = ask(&[("if-none-match", &tag)]).await;
    assert_eq!((status, body.len()), (304, 0));
    let head = setup.ann.request(Method::HEAD, &setup.file(&file)).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-length"].to_str().unwrap()),
        (200, "9000000")
    );
}

/// A browser must save, not run, files that can contain scripts.
#[tokio::test]
async fn active_content_is_download_only() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    for (name, content, kind, inline) in [
        ("page.html", "<script>alert(1)</script>", "text/html", "attachment"),
        ("image.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", "attachment"),
        ("notes.txt", "<script>alert(1)</script>", "text/plain", "inline"),
        ("script.js", "alert(1)", "text/javascript", "attachment"),
    ] {
        let file = setup.upload(name, content).await;
        assert_eq!(file["mime_type"], kind);
        for (query, expected) in [("", "attachment"), ("?inline=true", inline)] {
            let (_, headers, _) =
                setup.ann.download(&format!("{}{query}", setup.file(&file))).await;
            let disposition = headers["content-disposition"].to_str().unwrap();
            assert!(disposition.starts_with(expected), "{name}{query}: {disposition}");
            assert_eq!(headers["x-content-type-options"], "nosniff");
            assert!(headers["content-security-policy"].to_str().unwrap().contains("sandbox"));
        }
    }
}

/// FS-09
#[tokio::test]
async fn text_content_type_names_its_encoding_if_it_is_known() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let half = "я".repeat(3000);
    for (name, content, kind) in [
        ("utf8.txt", half.as_bytes(), "text/plain; charset=utf-8"),
        ("latin1.txt", b"caf\xe9 au lait".as_slice(), "text/plain"),
        ("utf16.txt", b"\xff\xfea\0b\0".as_slice(), "text/plain"),
    ] {
        let file = setup.upload(name, content).await;
        let (_, headers, _) = setup.ann.download(&setup.file(&file)).await;
        assert_eq!(headers["content-type"], kind, "{name}");
    }
}

/// A download of lost content reports that it is gone.
#[rstest]
#[tokio::test]
async fn version_with_lost_content_cannot_be_restored(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let file = setup.upload("a.txt", "one").await;
    setup.upload("a.txt", "two").await;
    let folder =
        setup.server.data().join(format!("objects/workspaces/{}.blobs", setup.conversation()));
    let is_one =
        |path: &std::path::PathBuf| std::fs::read(path).is_ok_and(|content| content == b"one");
    let lost =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_one).unwrap();
    std::fs::remove_file(lost).unwrap();
    let restored =
        setup.ann.post(&format!("{}/restore", setup.file(&file)), json!({"version": 1})).await;
    assert_eq!(restored.problem(), (502, "content_lost"));
    assert_eq!(
        setup.ann.get(&format!("{}/versions/1", setup.file(&file))).await.problem(),
        (502, "content_lost")
    );
    assert_eq!(setup.get(&file).await, b"two");
}

/// FS-13
#[tokio::test]
async fn verified_download_of_damaged_content_is_cut_off() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    for size in [10, 20_000_000] {
        let file = setup.upload(&format!("{size}.bin"), vec![1; size]).await;
        let path = setup.file(&file);
        let (_, _, whole) = setup.ann.download(&format!("{path}?verify=true")).await;
        assert_eq!(whole.unwrap().len(), size);
        let folder =
            setup.server.data().join(format!("objects/workspaces/{}.blobs", setup.conversation()));
        let object = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let object = object.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
        let mut bytes = std::fs::read(&object).unwrap();
        bytes[size / 2] ^= 1;
        std::fs::write(&object, bytes).unwrap();
        let whole =
            match setup.ann.request(Method::GET, &format!("{path}?verify=true")).send().await {
                Ok(response) => response.bytes().await.is_ok(),
                Err(_) => false,
            };
        assert!(!whole, "{size}: the connection breaks");
        // Without `verify`, the damaged content is sent unchanged.
        let (_, _, body) = setup.ann.download(&path).await;
        assert_eq!(body.unwrap().len(), size);
    }
}

/// The archive is streamed, and its names are those of the files.
#[rstest]
#[tokio::test]
async fn archive_contains_every_file(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    let files = [("отчёт.txt", vec![1; 10]), ("a/b/c.bin", vec![2; 9_000_000]), ("empty", vec![])];
    for (name, content) in &files {
        setup.upload(name, content.clone()).await;
    }
    let (status, headers, body) = setup.ann.download(&format!("{}/archive.zip", setup.path)).await;
    assert_eq!(
        (status.as_u16(), headers["content-type"].to_str().unwrap()),
        (200, "application/zip")
    );
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(body.unwrap())).unwrap();
    assert_eq!(archive.len(), 3);
    for (name, content) in &files {
        let mut found = Vec::new();
        let mut entry = archive.by_name(name).unwrap();
        let written = entry.last_modified().unwrap();
        assert!(written.year() >= 2024 && written.is_valid(), "{written}");
        entry.read_to_end(&mut found).unwrap();
        assert!(found == *content, "{name}");
    }
}

/// Links exist if the object store can sign them.
#[tokio::test]
async fn presigned_links_lead_to_the_object_store() {
    let setup = ConversationSetup::new(Sqlite, S3).await;
    let file = setup.upload("a.html", "<script>linked</script>").await;
    let link = setup.ann.get(&format!("{}/url?seconds=60", setup.file(&file))).await.expect(200);
    let body = setup.server.http.get(link["url"].as_str().unwrap()).send().await.unwrap();
    // Whatever the file contains, no browser renders it.
    assert_eq!(body.headers()["content-type"], "application/octet-stream");
    assert_eq!(body.headers()["content-disposition"], "attachment");
    assert_eq!(
        (body.status().as_u16(), body.text().await.unwrap().as_str()),
        (200, "<script>linked</script>")
    );
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let file = setup.upload("a.txt", "linked").await;
    let none = setup.ann.get(&format!("{}/url", setup.file(&file))).await;
    assert_eq!(none.problem(), (409, "links_unavailable"));
}
