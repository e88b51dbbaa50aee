//! Invalid input is refused with a clear answer, is not read to its end, and leaves no trace.

use crate::{build, start};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    PATIENCE, Server, User,
};
use reqwest::{Method, header::HeaderMap};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Sends raw bytes as a JSON body.
async fn send(user: &User, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = user.request(method, path).header("content-type", "application/json").body(body);
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default();
    Answer { status, headers, body }
}

/// Everything that a user has: projects, their agents, and all events.
#[derive(Debug, PartialEq)]
struct State {
    projects: Value,
    agents: Vec<Value>,
    last_event: String,
}

impl State {
    async fn of(user: &User) -> Self {
        let projects = user.get("/my/projects").await.expect(200);
        let mut agents = Vec::new();
        for project in projects["projects"].as_array().unwrap() {
            let id = project["id"].as_str().unwrap();
            agents.push(user.get(&format!("/my/projects/{id}/agents")).await.expect(200));
        }
        // A cursor from the future is answered with the last event id.
        let mut stream = user.events("/my/events", Some("u999999999")).await;
        let last_event = stream.next().await.data["last_event_id"].as_str().unwrap().to_owned();
        Self { projects, agents, last_event }
    }
}

/// A user with a project whose worker space already exists.
async fn settled(server: &Server) -> (User, String) {
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    ann.get(&project).await.expect(200);
    (ann, project)
}

#[rstest]
#[tokio::test]
async fn bodies_that_are_not_json_are_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;
    let deep = 100_000;
    let bodies: [(&str, Vec<u8>); 12] = [
        ("nothing", vec![]),
        ("white space", b"  \n".to_vec()),
        ("cut off", br#"{"name": "x"#.to_vec()),
        ("trailing", br#"{"name": "x"} {}"#.to_vec()),
        ("trailing comma", br#"{"name": "x",}"#.to_vec()),
        ("single quotes", b"{'name': 'x'}".to_vec()),
        ("byte order mark", b"\xef\xbb\xbf{\"name\": \"x\"}".to_vec()),
        ("not UTF-8", b"{\"name\": \"\xff\xfe\"}".to_vec()),
        ("half a surrogate pair", br#"{"name": "\ud800"}"#.to_vec()),
        ("raw control character", b"{\"name\": \"a\0b\"}".to_vec()),
        ("number out of range", br#"{"name": "x", "settings": {"n": 1e999}}"#.to_vec()),
        ("NaN", br#"{"name": "x", "settings": {"n": NaN}}"#.to_vec()),
    ];
    let levels = [("[", "]"), (r#"{"a":"#, "}")].map(|(open, close)| {
        let nested = format!("{}1{}", open.repeat(deep), close.repeat(deep));
        format!(r#"{{"name": "x", "settings": {{"deep": {nested}}}}}"#).into_bytes()
    });
    let half = format!(r#"{{"name": "x", "settings": {}"#, "[".repeat(deep)).into_bytes();
    let levels = levels.into_iter().chain([half]).map(|body| ("100,000 levels", body));
    for (what, body) in bodies.into_iter().chain(levels) {
        for (method, path) in [(Method::POST, "/my/projects"), (Method::PUT, project.as_str())] {
            let answer = send(&ann, method, path, body.clone()).await;
            assert_eq!(answer.problem(), (400, "malformed_json"), "{what}: {}", answer.body);
        }
    }
    assert_eq!(State::of(&ann).await, before);
}

#[rstest]
#[tokio::test]
async fn wrong_values_are_refused_by_name(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let (agents, coder) = (format!("{project}/agents"), format!("{project}/agents/coder"));
    let before = State::of(&ann).await;

    // The kind of value that each field accepts. All other `values` are invalid for it.
    let fields = [("name", "string"), ("workspace", "kind"), ("settings", "object")];
    let config = [
        ("system_prompt", "string"),
        ("model", "string"),
        ("temperature", "number"),
        ("max_tokens", "number"),
        ("tools", "array"),
        ("concurrency_limit", "number"),
        ("max_vectors", "number"),
        ("metadata", "object"),
    ];
    let values = [
        ("string", json!("x")),
        ("number", json!(1)),
        ("fraction", json!(-0.5)),
        ("huge", json!(1e300)),
        ("boolean", json!(true)),
        ("array", json!([])),
        ("wrong items", json!([1])),
        ("object", json!({})),
    ];
    for (value_kind, value) in &values {
        for (field, kind) in fields.iter().filter(|(_, kind)| kind != value_kind) {
            let mut body = json!({"name": "new"});
            body[field] = value.clone();
            let answer = ann.post("/my/projects", body).await;
            let change = ann.put(&project, json!({ *field: value })).await;
            for answer in [answer, change] {
                assert_eq!(answer.problem(), (422, "invalid_request"), "{field} ({kind}): {value}");
                assert!(answer.body["detail"].as_str().unwrap().contains(field), "{}", answer.body);
            }
        }
        for (field, kind) in config.iter().filter(|(_, kind)| kind != value_kind) {
            let body = json!({"name": "new", "config": {*field: value}});
            for answer in [ann.post(&agents, body.clone()).await, ann.put(&coder, body).await] {
                assert_eq!(answer.problem(), (422, "invalid_request"), "{field} ({kind}): {value}");
                assert!(answer.body["detail"].as_str().unwrap().contains(field), "{}", answer.body);
            }
        }
    }
    // An array is not an object, even if it contains the same values.
    for body in [
        json!(null),
        json!([]),
        json!([null, null]),
        json!(["new", "client", {}]),
        json!("x"),
        json!(1),
    ] {
        let asks = [
            ann.post("/my/projects", body.clone()).await,
            ann.put(&project, body.clone()).await,
            ann.post(&agents, body.clone()).await,
            ann.put(&coder, body.clone()).await,
            ann.post(&agents, json!({"name": "new", "config": body})).await,
        ];
        for answer in asks {
            assert_eq!(answer.problem(), (422, "invalid_request"), "{body}");
        }
    }
    let nameless = ann.post(&agents, json!({"name": null})).await;
    assert_eq!(nameless.problem(), (422, "invalid_request"));
    assert_eq!(State::of(&ann).await, before);
}

#[rstest]
#[tokio::test]
async fn names_have_bounds(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let (agents, coder) = (format!("{project}/agents"), format!("{project}/agents/coder"));
    let before = State::of(&ann).await;
    let common = ["", " ", "\u{2003}", "a\0b", "\0", "a\nb", "\u{7f}", "\u{9b}31m"];
    for name in
        common.map(str::to_owned).into_iter().chain(["я".repeat(256), "x".repeat(1_000_000)])
    {
        let asks = [
            ann.post("/my/projects", json!({"name": name})).await,
            ann.put(&project, json!({"name": name})).await,
            ann.post(&agents, json!({"name": name})).await,
            ann.put(&coder, json!({"name": name})).await,
        ];
        for answer in asks {
            assert_eq!(answer.problem(), (422, "invalid_request"), "{:.20}", name.escape_debug());
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains("name") && detail.len() < 200, "{detail}");
        }
    }
    assert_eq!(State::of(&ann).await, before);

    // The longest names are accepted, counted in characters, on both databases.
    ann.post("/my/projects", json!({"name": "🦀".repeat(255)})).await.expect(201);
    ann.post(&agents, json!({"name": "я".repeat(100)})).await.expect(201);
    let too_long = ann.post(&agents, json!({"name": "я".repeat(101)})).await;
    assert_eq!(too_long.problem(), (422, "invalid_request"));
}

#[rstest]
#[tokio::test]
async fn unknown_fields_and_double_keys_are_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let (agents, coder) = (format!("{project}/agents"), format!("{project}/agents/coder"));
    let before = State::of(&ann).await;
    let cases = [
        (Method::POST, "/my/projects", r#"{"name": "new", "owner": "bob"}"#, "owner"),
        (Method::POST, "/my/projects", r#"{"name": "new", "user_id": "1"}"#, "user_id"),
        (Method::PUT, &project, r#"{"id": "1"}"#, "id"),
        (Method::POST, &agents, r#"{"name": "new", "status": "active"}"#, "status"),
        (Method::POST, &agents, r#"{"name": "new", "config": {"temprature": 1}}"#, "temprature"),
        (Method::PUT, &coder, r#"{"config": {"temprature": 1}}"#, "temprature"),
        (Method::POST, "/auth/sign-in", r#"{"code": "x", "role": "admin"}"#, "role"),
        (Method::POST, "/auth/revoke", r#"{"token": "x.y.z", "user": "bob"}"#, "user"),
        (Method::POST, "/my/projects", r#"{"name": "new", "name": "other"}"#, "name"),
        (Method::POST, "/my/projects", r#"{"name": "new", "n\u0061me": "other"}"#, "name"),
        (Method::POST, "/my/projects", r#"{"name": "new", "settings": {"a": 1, "a": 2}}"#, "\"a\""),
        (Method::PUT, &project, r#"{"settings": {"a": [{"b": 1, "b": 2}]}}"#, "\"b\""),
        (Method::PUT, &coder, r#"{"config": {"max_tokens": 1, "max_tokens": 2}}"#, "max_tokens"),
    ];
    for (method, path, body, named) in cases {
        let answer = send(&ann, method, path, body).await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{body}");
        assert!(answer.body["detail"].as_str().unwrap().contains(named), "{body}: {}", answer.body);
    }
    assert_eq!(State::of(&ann).await, before);
}

#[rstest]
#[tokio::test]
async fn only_json_is_taken(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;
    let kinds = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "json",
        "",
        "\u{ff}",
    ];
    for kind in kinds.map(Some).into_iter().chain([None]) {
        let request = ann.request(Method::PUT, &project).body(r#"{"name": "new"}"#);
        let request =
            kind.iter().fold(request, |request, kind| request.header("content-type", *kind));
        assert_eq!(request.send().await.unwrap().status(), 415, "{kind:?}");
    }
    assert_eq!(State::of(&ann).await, before);
    for kind in ["application/json; charset=utf-8", "Application/JSON"] {
        let request = ann.request(Method::PUT, &project).body("{}").header("content-type", kind);
        assert_eq!(request.send().await.unwrap().status(), 200, "{kind}");
    }
}

#[rstest]
#[tokio::test]
async fn queries_have_bounds(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;
    let long = "9".repeat(50_000);
    for path in ["/my/projects".to_owned(), format!("{project}/agents")] {
        for value in
            ["-1", "1.5", "1e3", "", "x", "%00", "%FF", "4294967296", "18446744073709551616", &long]
        {
            for name in ["limit", "offset"] {
                let answer = ann.get(&format!("{path}?{name}={value}")).await;
                assert_eq!(answer.problem(), (422, "invalid_request"), "{name}={value:.20}");
                assert!(answer.body["detail"].as_str().unwrap().len() < 500, "{}", answer.body);
            }
        }
        for query in
            ["limit=0", "limit=1001", "offset=1000000001", "limit=1&limit=2", "order=id", &long]
        {
            let answer = ann.get(&format!("{path}?{query}")).await;
            assert_eq!(answer.problem(), (422, "invalid_request"), "{query:.20}");
        }
        for query in ["limit=1000&offset=1000000000", "limit=1", "", "&"] {
            ann.get(&format!("{path}?{query}")).await.expect(200);
        }
    }
    // An event id is opaque. Every unknown id gets a fresh start, however odd it is.
    for after in [&long, "-1", "%00", "%FF", "u", "99999999999999999999"] {
        for path in ["/my/events".to_owned(), format!("{project}/events")] {
            let mut stream = ann.events(&format!("{path}?after={after}"), None).await;
            assert_eq!(stream.next().await.name, "STREAM_RESET", "{after:.20}");
        }
    }
    let unknown = ann.get("/my/events?from=1").await;
    assert_eq!(unknown.problem(), (422, "invalid_request"));
    assert_eq!(State::of(&ann).await, before);
}

/// What the server sends on a connection before it closes it.
async fn read_to_end(mut stream: impl AsyncRead + Unpin) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let reading = async {
        // The server may reset the connection after its answer, because it does not read the rest.
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            text.extend_from_slice(&buffer[..count]);
        }
    };
    timeout(PATIENCE, reading).await.expect("the server closes the connection");
    String::from_utf8_lossy(&text).into_owned()
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

fn head(user: &User, method: &str, path: &str, more: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: atelier\r\ncontent-type: application/json\r\n\
         authorization: Bearer {}\r\n{more}\r\n",
        user.token
    )
}

const MIB: u64 = 1024 * 1024;

#[rstest]
#[case::announced(true)]
#[case::in_chunks(false)]
#[tokio::test]
async fn a_gigabyte_is_refused_without_reading_it(
    #[case] announced: bool,
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;
    let memory = server.memory();
    for (method, path) in [("POST", "/my/projects"), ("PUT", project.as_str())] {
        let framing = if announced {
            "content-length: 1073741824\r\n"
        } else {
            "transfer-encoding: chunked\r\n"
        };
        let (reader, mut writer) = connect(&server).await.into_split();
        writer.write_all(head(&ann, method, path, framing).as_bytes()).await.unwrap();
        let writing = async {
            let zeros = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
            let mut sent = 0;
            while sent < 1024 * MIB && writer.write_all(&zeros).await.is_ok() {
                sent += zeros.len() as u64;
            }
            sent
        };
        let (answer, sent) = tokio::join!(read_to_end(reader), writing);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains(r#""code":"body_too_large""#), "{answer}");
        // At most the limit and what the socket buffers held.
        assert!(sent < 64 * MIB, "{sent} bytes were taken");
    }
    let grown = server.memory().saturating_sub(memory);
    assert!(grown < 16 * MIB, "grew by {grown} bytes");
    assert_eq!(State::of(&ann).await, before);
}

/// A body at the limit is accepted and a longer one is refused, with or without Content-Length.
#[tokio::test]
async fn body_limit_is_exact() {
    let server = build(Sqlite).with("SERVER__BODY_LIMIT", 1000).start().await;
    let ann = server.user("ann");
    let body = |name: &str, size: usize| format!("{:size$}", json!({"name": name}).to_string());
    for (name, chunked) in [("announced", false), ("chunked", true)] {
        let make = |body: String| {
            if chunked {
                let chunks = body.into_bytes().chunks(100).map(<[u8]>::to_vec).collect::<Vec<_>>();
                reqwest::Body::wrap_stream(futures::stream::iter(
                    chunks.into_iter().map(Ok::<_, std::io::Error>),
                ))
            } else {
                body.into()
            }
        };
        let over = send(&ann, Method::POST, "/my/projects", make(body(name, 1001))).await;
        assert_eq!(over.problem(), (413, "body_too_large"), "{name}");
        send(&ann, Method::POST, "/my/projects", make(body(name, 1000))).await.expect(201);
    }
}

/// The HTTP layer answers these requests before any route.
#[tokio::test]
async fn request_heads_are_limited() {
    let server = start(Sqlite).await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;
    let memory = server.memory();
    let many: String = (0..10_000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "x".repeat(4 * MIB as usize));
    let cases = [
        (head(&ann, "GET", &project, &many), "431"),
        (head(&ann, "GET", &project, &long), "431"),
        (head(&ann, "GET", &format!("{project}?{}", "x".repeat(100_000)), ""), "414"),
        (head(&ann, "GET", &project, "content-length: x\r\n"), "400"),
        (head(&ann, "GET", &project, "content-length: 1\r\ncontent-length: 2\r\n"), "400"),
        (head(&ann, "POST", &project, "transfer-encoding: chunked, identity\r\n"), "400"),
        (head(&ann, "GET", &project, "bad header\r\n"), "400"),
        ("\0\0\0\0 nonsense\r\n\r\n".to_owned(), "400"),
    ];
    for (request, status) in cases {
        let (reader, mut writer) = connect(&server).await.into_split();
        let writing = async { drop(writer.write_all(request.as_bytes()).await) };
        let (answer, ()) = tokio::join!(read_to_end(reader), writing);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{:.80}: {answer}", request);
    }
    let grown = server.memory().saturating_sub(memory);
    assert!(grown < 16 * MIB, "grew by {grown} bytes");
    assert_eq!(State::of(&ann).await, before);
}

/// A complete request is answered first, and other clients do not wait.
#[rstest]
#[tokio::test]
async fn slow_senders_are_disconnected(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("SERVER__REQUEST_TIMEOUT", "1s").start().await;
    let (ann, project) = settled(&server).await;
    let before = State::of(&ann).await;

    let slow_body = head(&ann, "PUT", &project, "content-length: 100\r\n") + r#"{"name": "#;
    let slow_chunks = head(&ann, "PUT", &project, "transfer-encoding: chunked\r\n") + "1\r\n{\r\n";
    let beginnings = [
        // The head never ends or never begins, or the preface of HTTP/2 never ends.
        ("GET /my/projects HTTP/1.1\r\nx-slow: ".to_owned(), None),
        (String::new(), None),
        ("PRI * HTTP/2.0\r\n".to_owned(), None),
        (slow_body, Some("request_timeout")),
        (slow_chunks, Some("request_timeout")),
    ];
    let dawdlers = beginnings.map(|(beginning, code)| {
        let server = &server;
        async move {
            let (reader, mut writer) = connect(server).await.into_split();
            let drip = !beginning.is_empty() && code.is_none();
            writer.write_all(beginning.as_bytes()).await.unwrap();
            // A single byte now and then must not keep the connection alive.
            let dripping = async {
                let mut pace = tokio::time::interval(Duration::from_millis(200));
                while drip && writer.write_all(b"x").await.is_ok() {
                    pace.tick().await;
                }
                std::future::pending::<()>().await;
            };
            let answer = tokio::select! {
                answer = read_to_end(reader) => answer,
                () = dripping => unreachable!(),
            };
            match code {
                Some(code) => {
                    assert!(
                        answer.starts_with("HTTP/1.1 408 ") && answer.contains(code),
                        "{answer}"
                    );
                }
                None => assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}"),
            }
        }
    });
    let meanwhile = async {
        for _ in 0..20 {
            ann.get(&project).await.expect(200);
        }
    };
    tokio::join!(futures::future::join_all(dawdlers), meanwhile);
    assert_eq!(State::of(&ann).await, before);
}

/// Every refusal is a problem with a code for programs.
#[tokio::test]
async fn all_problems_have_the_same_shape() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let nobody = server.bearer("");
    let answers = [
        ann.get("/nowhere").await,
        ann.delete("/my/projects").await,
        nobody.get("/my/projects").await,
        ann.post("/my/projects", json!({})).await,
        send(&ann, Method::POST, "/my/projects", "{").await,
        ann.get("/docs/nothing.js").await,
        ann.get("/assets/nothing.js").await,
    ];
    for answer in answers {
        let (status, code) = answer.problem();
        let body = answer.body.as_object().unwrap();
        let mut keys: Vec<&str> = body.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "detail", "status", "title", "type"]);
        assert_eq!(body["type"], format!("urn:atelier:problem:{code}"));
        assert!((400..500).contains(&status) && !body["detail"].as_str().unwrap().is_empty());
        assert_eq!(headers(&answer.headers), ("no-store", "nosniff"), "{code}");
    }
}

fn headers(headers: &HeaderMap) -> (&str, &str) {
    (
        headers["cache-control"].to_str().unwrap(),
        headers["x-content-type-options"].to_str().unwrap(),
    )
}
