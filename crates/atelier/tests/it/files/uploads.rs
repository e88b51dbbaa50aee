//! Uploads that are accepted, and uploads that are refused.

use super::{
    ConversationSetup,
    Objects::{self, Disk, S3},
    on,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    answer, file,
};
use reqwest::{Method, multipart::Form};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// FS-12: the size is checked before the path, and nothing is stored.
#[rstest]
#[tokio::test]
async fn too_large_files_and_escaping_paths_are_refused(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup =
        ConversationSetup::with(on(backend, objects).environment("MAX_UPLOAD_FILE_SIZE", 1000))
            .await;
    assert_eq!(setup.upload("just.bin", [0; 1000]).await["file_size"], 1000);
    let refused = setup.ann.upload(&setup.path, "over.bin", [0; 1001]).await;
    assert_eq!(refused.problem(), (413, "file_size_exceeded"));
    assert!(refused.body["detail"].as_str().unwrap().starts_with("FileSizeError"));
    let both = Form::new().text("path", "../x").part("file", file("x", [0; 1001]));
    assert_eq!(setup.ann.send_form(&setup.path, both).await.problem(), (413, "file_size_exceeded"));
    let leaving = Form::new().part("file", file("x", "1")).text("path", "../x");
    let refused = setup.ann.send_form(&setup.path, leaving).await;
    assert_eq!(refused.problem(), (403, "path_outside_workspace"));
    assert!(refused.body["detail"].as_str().unwrap().starts_with("PathTraversalError"));
    // If one of several files is invalid, none is saved.
    let mixed = Form::new().part("file", file("good", "1")).part("file", file("bad", [0; 1001]));
    assert_eq!(
        setup.ann.send_form(&setup.path, mixed).await.problem(),
        (413, "file_size_exceeded")
    );
    assert_eq!(setup.info().await["file_count"], 1);
    let mut sql = setup.server.sql().await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM file_blobs").await, 1);
}

/// Fields before a file are kept in memory, so their size is limited.
#[tokio::test]
async fn multipart_headers_are_limited() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let long = "a".repeat(1 << 18);
    for body in [format!("--B\r\nX-A: {long}"), long.clone(), format!("{long}\r\n--B\r\n")] {
        // The request announces more than it sends, and is answered before that.
        let head = format!(
            "POST {}/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: \
             10000000\r\n\
             content-type: multipart/form-data; boundary=B\r\n\r\n",
            setup.path, setup.ann.token
        );
        let address = setup.server.url.strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).contains("before its content begins") {
            assert_ne!(
                connection.read_buf(&mut answer).await.unwrap(),
                0,
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
        assert!(answer.starts_with(b"HTTP/1.1 422 "), "{}", String::from_utf8_lossy(&answer));
    }
    // The limit applies to headers, however large the files are.
    let head = |name: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n")
    };
    let form = format!("{}{long}\r\n{}{long}\r\n--B--\r\n", head("a.txt"), head("b.txt"));
    let request = setup.ann.request(Method::POST, &format!("{}/files", setup.path)).body(form);
    let saved =
        answer(request.header("content-type", "multipart/form-data; boundary=B")).await.expect(201);
    assert_eq!(saved["files"][1]["file_size"], long.len());
}

#[rstest]
#[tokio::test]
async fn one_request_can_upload_several_files(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let form = Form::new()
        .part("file", file("a.txt", "a"))
        .text("path", "docs")
        .part("file", file("sub/b.txt", "b"));
    let saved = setup.ann.send_form(&setup.path, form).await.expect(201);
    let paths: Vec<&Value> =
        saved["files"].as_array().unwrap().iter().map(|it| &it["file_path"]).collect();
    assert_eq!(paths, ["docs/a.txt", "docs/b.txt"]);
    let each = Form::new()
        .text("path", "x/1")
        .text("path", "x/2")
        .part("file", file("a", "1"))
        .part("file", file("b", "2"));
    let saved = setup.ann.send_form(&setup.path, each).await.expect(201);
    let paths: Vec<&Value> =
        saved["files"].as_array().unwrap().iter().map(|it| &it["file_path"]).collect();
    assert_eq!(paths, ["x/1", "x/2"]);
    assert_eq!(
        setup.ann.send_form(&setup.path, Form::new()).await.problem(),
        (400, "upload_broken")
    );
    for (form, code) in [
        (Form::new().text("path", "x"), "invalid_request"),
        (Form::new().part("file", file("a", "")).part("file", file("a", "")), "invalid_request"),
        (Form::new().part("file", file("a", "")).text("colour", "red"), "invalid_request"),
        (Form::new().part("file", file("", "")), "invalid_path"),
    ] {
        assert_eq!(setup.ann.send_form(&setup.path, form).await.problem(), (422, code));
    }
    // A path is either a file or a folder.
    for (name, status) in [("docs", 409), ("x/1/y", 409), ("y", 201)] {
        assert_eq!(setup.ann.upload(&setup.path, name, "").await.status, status, "{name}");
    }
    let json = setup.ann.post(&format!("{}/files", setup.path), json!({})).await;
    assert_eq!(json.problem(), (415, "unsupported_media_type"));
}

#[rstest]
#[tokio::test]
async fn upload_with_an_outdated_version_is_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let first = setup.upload("a.txt", "one").await;
    let tag = format!("\"{}\"", first["checksum"].as_str().unwrap());
    let send = async |name: &str, value: &str, content: &str| {
        let form = Form::new().part("file", file("a.txt", content.to_owned()));
        let request =
            setup.ann.request(Method::POST, &format!("{}/files", setup.path)).multipart(form);
        answer(request.header(name, value)).await
    };
    assert_eq!(send("if-none-match", "*", "new").await.problem(), (412, "precondition_failed"));
    assert_eq!(send("if-match", &tag, "two").await.expect(201)["files"][0]["version"], 2);
    assert_eq!(send("if-match", &tag, "three").await.problem(), (412, "precondition_failed"));
    let form = Form::new().part("file", file("none.txt", "x"));
    let request = setup.ann.request(Method::POST, &format!("{}/files", setup.path)).multipart(form);
    assert_eq!(
        answer(request.header("if-match", "*")).await.problem(),
        (412, "precondition_failed")
    );
    assert_eq!(setup.get(&first).await, b"two");
    for (method, path, body) in [
        (Method::DELETE, setup.file(&first), None),
        (Method::PATCH, setup.file(&first), Some(json!({"file_path": "b.txt"}))),
        (Method::POST, format!("{}/restore", setup.file(&first)), Some(json!({"version": 1}))),
    ] {
        let request = setup.ann.request(method, &path).header("if-match", &tag);
        let request = body.into_iter().fold(request, |request, body| request.json(&body));
        assert_eq!(answer(request).await.problem(), (412, "precondition_failed"), "{path}");
    }
}

/// This also works after the server was killed.
#[rstest]
#[tokio::test]
async fn interrupted_multipart_upload_can_be_resumed(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Disk, S3)] objects: Objects,
) {
    let setup = ConversationSetup::new(backend, objects).await;
    let content: Vec<u8> = (0..9_000_000u32).map(|n| (n * 7 % 253) as u8).collect();
    let parts: Vec<&[u8]> = content.chunks(3_500_000).collect();
    let new = json!({"path": "big.bin", "size": content.len()});
    let upload = setup.ann.post(&format!("{}/uploads", setup.path), new).await.expect(201);
    let path = format!("{}/uploads/{}", setup.path, upload["upload_id"].as_str().unwrap());
    let put = async |user: &atelier_testkit::User, number: usize, bytes: &[u8]| {
        let request =
            user.request(Method::PUT, &format!("{path}/parts/{number}")).body(bytes.to_vec());
        answer(request).await
    };
    put(&setup.ann, 3, parts[2]).await.expect(200);
    put(&setup.ann, 1, b"wrong, and sent again below").await.expect(200);
    put(&setup.ann, 1, parts[0]).await.expect(200);
    let early = setup.ann.post(&format!("{path}/complete"), json!(null)).await;
    assert_eq!(early.problem(), (409, "upload_incomplete"));

    let server = setup.server.restart().await;
    let ann = setup.ann.at(&server);
    let there = ann.get(&path).await.expect(200);
    let numbers: Vec<&Value> =
        there["parts"].as_array().unwrap().iter().map(|part| &part["number"]).collect();
    assert_eq!((numbers, &there["received"]), (vec![&json!(1), &json!(3)], &json!(5_500_000)));
    put(&ann, 2, parts[1]).await.expect(200);
    let more = put(&ann, 4, b"x").await;
    assert_eq!(more.problem(), (409, "upload_incomplete"));
    let file = ann.post(&format!("{path}/complete"), json!(null)).await.expect(201);
    assert_eq!(
        (&file["file_path"], &file["file_size"], &file["version"]),
        (&json!("big.bin"), &json!(content.len()), &json!(1))
    );
    let (_, _, body) =
        ann.download(&format!("{}/files/{}", setup.path, file["file_id"].as_str().unwrap())).await;
    assert!(body.unwrap() == content);
    assert_eq!(ann.get(&path).await.expect(200)["file_id"], file["file_id"]);
    let mut sql = server.sql().await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM upload_parts").await, 0);
    let too_large = json!({"path": "../x", "size": 200_000_000});
    let refused = ann.post(&format!("{}/uploads", setup.path), too_large).await;
    assert_eq!(refused.problem(), (413, "file_size_exceeded"));
}

/// All requests that complete the same upload get the same version.
#[rstest]
#[tokio::test]
async fn completed_upload_becomes_one_version(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let new = json!({"path": "a.txt", "size": 6, "original_name": "C:\\x\\mine.txt"});
    let upload = setup.ann.post(&format!("{}/uploads", setup.path), new).await.expect(201);
    let path = format!("{}/uploads/{}", setup.path, upload["upload_id"].as_str().unwrap());
    // Parts that arrive at the same time cannot exceed the announced size either.
    let puts = (1..=4).map(|number| {
        answer(
            setup.ann.request(Method::PUT, &format!("{path}/parts/{number}")).body(&b"sixsix"[..]),
        )
    });
    let taken =
        futures::future::join_all(puts).await.into_iter().filter(|put| put.status == 200).count();
    assert_eq!(taken, 1);
    let there = setup.ann.get(&path).await.expect(200);
    assert_eq!(there["received"], 6);
    let number = there["parts"][0]["number"].as_i64().unwrap();
    if number != 1 {
        answer(setup.ann.request(Method::PUT, &format!("{path}/parts/{number}")).body(""))
            .await
            .expect(200);
        answer(setup.ann.request(Method::PUT, &format!("{path}/parts/1")).body("sixsix"))
            .await
            .expect(200);
        for number in 2..=number {
            answer(setup.ann.request(Method::PUT, &format!("{path}/parts/{number}")).body(""))
                .await
                .expect(200);
        }
    }
    let complete = format!("{path}/complete");
    let completed = (0..6).map(|_| setup.ann.post(&complete, json!(null)));
    let mut answers: Vec<Value> =
        futures::future::join_all(completed).await.into_iter().map(|it| it.expect(201)).collect();
    answers.push(setup.ann.post(&complete, json!(null)).await.expect(201));
    for file in &answers {
        assert_eq!(file, &answers[0]);
    }
    assert_eq!(
        (&answers[0]["version"], &answers[0]["original_name"]),
        (&json!(1), &json!("mine.txt"))
    );
    let late =
        answer(setup.ann.request(Method::PUT, &format!("{path}/parts/1")).body("sixsix")).await;
    assert_eq!(late.problem(), (409, "upload_incomplete"));
    assert_eq!(setup.ann.delete(&path).await.status, 204);
    assert_eq!(setup.ann.get(&path).await.problem(), (404, "not_found"));
    assert_eq!(setup.get(&answers[0]).await, b"sixsix");
}

#[tokio::test]
async fn original_name_is_limited_like_other_names() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let long = "é".repeat(4000);
    for (sent, kept) in [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.txt", "y.txt"),
        (long.as_str(), &long[..254]),
        ("a/", "place.txt"),
    ] {
        let form = Form::new().part("file", file(sent, "x")).text("path", "place.txt");
        let saved = setup.ann.send_form(&setup.path, form).await.expect(201);
        assert_eq!(saved["files"][0]["original_name"], kept);
    }
}

#[tokio::test]
async fn upload_memory_is_independent_of_file_size() {
    let setup =
        ConversationSetup::with(on(Sqlite, S3).environment("MAX_UPLOAD_FILE_SIZE", 1u64 << 30))
            .await;
    setup.upload("small", "x").await;
    let before = setup.server.memory();
    let chunk = bytes::Bytes::from(vec![7u8; 1 << 20]);
    let body = futures::stream::iter((0..300).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
    let part =
        reqwest::multipart::Part::stream(reqwest::Body::wrap_stream(body)).file_name("large.bin");
    let sending = setup.ann.send_form(&setup.path, Form::new().part("file", part));
    let mut most = 0;
    let watching = async {
        loop {
            most = most.max(setup.server.memory());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let saved = tokio::select! {
        saved = sending => saved.expect(201),
        () = watching => unreachable!(),
    };
    assert_eq!(saved["files"][0]["file_size"], 300 << 20);
    assert!(most < before + (120 << 20), "{} MB more", (most - before) >> 20);
}
