//! The promises MC-01 to MC-11 of `docs/scenarios.md`, shown by the real program on both
//! transports. `scripts/test-mcp` shows them again with the official clients, and much more.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod host;

use host::{Host, error, exchange, ok, post};
use serde_json::json;
use std::os::unix::fs::{PermissionsExt, symlink};

const DENIED: &str = "Error: Access denied. Path must be within /workspace";

/// MC-01
#[test]
fn files_are_read_whole_or_by_their_first_and_last_lines() {
    for mut host in Host::both() {
        host.has("a.log", "one\ntwo\nthree\n");
        host.has("dir/x", "");
        std::fs::write(host.path("binary"), [0xff, 0xfe]).unwrap();
        for (arguments, answer) in [
            (json!({ "path": "a.log" }), ok("one\ntwo\nthree\n")),
            (json!({ "path": "/workspace/a.log", "head": 1 }), ok("one\n")),
            (json!({ "path": "a.log", "tail": 2.0 }), ok("two\nthree\n")),
            (json!({ "path": "a.log", "head": 1e18 }), ok("one\ntwo\nthree\n")),
            (json!({ "path": "no" }), error("Error: File not found: no")),
            (json!({ "path": "dir" }), error("Error: Not a file: dir")),
            (json!({ "path": "binary" }), error("Error: File contains invalid UTF-8 encoding")),
            (
                json!({ "path": "a.log", "head": 1, "tail": 1 }),
                error("Error: Cannot specify both 'head' and 'tail' parameters"),
            ),
        ] {
            assert_eq!(host.tool("read_file", arguments.clone()), answer, "{arguments}");
        }
    }
}

/// MC-02
#[test]
fn files_are_replaced_whole_and_keep_their_mode() {
    for mut host in Host::both() {
        let mode =
            |host: &Host, name| host.path(name).metadata().unwrap().permissions().mode() & 0o777;
        let wrote = host.tool("write_file", json!({ "path": "a/b/c.txt", "content": "héllo" }));
        assert_eq!(wrote, ok("Successfully wrote 6 bytes to a/b/c.txt"));
        assert_eq!(std::fs::read_to_string(host.path("a/b/c.txt")).unwrap(), "héllo");
        assert_eq!((mode(&host, "a/b/c.txt"), mode(&host, "a/b")), (0o644, 0o755));
        std::fs::set_permissions(host.path("a/b/c.txt"), std::fs::Permissions::from_mode(0o750))
            .unwrap();
        host.tool("write_file", json!({ "path": "a/b/c.txt", "content": "" }));
        assert_eq!(std::fs::read_to_string(host.path("a/b/c.txt")).unwrap(), "");
        assert_eq!(mode(&host, "a/b/c.txt"), 0o750);
        let answer = host.tool("write_file", json!({ "path": "a/b/c.txt/d", "content": "" }));
        assert_eq!(answer, error("Error: Failed to create parent directory - Not a directory"));
        let answer = host.tool("write_file", json!({ "path": "a", "content": "" }));
        assert_eq!(answer, error("Error: Failed to write file - Not a regular file"));
        let left: Vec<_> =
            std::fs::read_dir(host.path("a/b")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["c.txt"], "no temporary file stays behind");
    }
}

/// MC-03 MC-04
#[test]
fn directories_are_listed_and_created() {
    for mut host in Host::both() {
        host.has("b.txt", "");
        host.has(".hidden", "");
        let made = host.tool("create_directory", json!({ "path": "a/deep" }));
        assert_eq!(made, ok("Successfully created directory a/deep"));
        let again = host.tool("create_directory", json!({ "path": "a/deep" }));
        assert_eq!(again, ok("Directory already exists: a/deep"));
        let file = host.tool("create_directory", json!({ "path": "b.txt" }));
        assert_eq!(file, error("Error: Path exists but is not a directory: b.txt"));
        for (path, answer) in [
            (".", ok("Contents of .:\n\n[DIR] a\n[FILE] .hidden\n[FILE] b.txt")),
            ("a/deep", ok("Directory is empty: a/deep")),
            ("no", error("Error: Directory not found: no")),
            ("b.txt", error("Error: Not a directory: b.txt")),
        ] {
            assert_eq!(host.tool("list_directory", json!({ "path": path })), answer);
        }
    }
}

/// MC-05
#[test]
fn files_and_directories_are_described() {
    for mut host in Host::both() {
        host.has("d/f", &"x".repeat(1260));
        let (text, failed) = host.tool("get_file_info", json!({ "path": "d/f" }));
        let names = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect()
        };
        assert!(
            !failed && text.starts_with("Path: d/f\nType: file\nSize: 1.23 KB\nPermissions: 644\n"),
            "{text}"
        );
        let common = ["Owner UID", "Owner GID", "Created", "Modified", "Accessed"];
        assert_eq!(names(&text)[4..], common);
        assert!(text.ends_with(" UTC"));
        let (text, _) = host.tool("get_file_info", json!({ "path": "d" }));
        assert!(text.starts_with("Path: d\nType: directory\nPermissions: 755\n"), "{text}");
        assert_eq!(names(&text)[3..8], common);
        assert!(text.ends_with("\nEntries: 1"), "{text}");
        let answer = host.tool("get_file_info", json!({ "path": "no" }));
        assert_eq!(answer, error("Error: Path not found: no"));
    }
}

/// MC-06
#[test]
fn search_finds_files_by_glob() {
    for mut host in Host::both() {
        for name in ["x.json", "a/y.json", "a/b/z.json", "a/.z.json", "c/y.txt"] {
            host.has(name, "");
        }
        let mut search = |pattern: &str, limit: u64| {
            host.tool(
                "search_files",
                json!({ "path": ".", "pattern": pattern, "max_results": limit }),
            )
            .0
        };
        let three = "[FILE] a/b/z.json\n[FILE] a/y.json\n[FILE] x.json";
        assert_eq!(
            search("**/*.json", 0),
            format!("Found 3 match(es) for '**/*.json':\n\n{three}")
        );
        assert_eq!(
            search("**/*.json", 3),
            format!("Found 3 match(es) for '**/*.json':\n\n{three}")
        );
        assert_eq!(
            search("**/*.json", 1),
            "Found 1 match(es) for '**/*.json' (limited to 1):\n\n[FILE] a/b/z.json"
        );
        assert_eq!(
            search("{a,c}/[xyz].*", 0),
            "Found 2 match(es) for '{a,c}/[xyz].*':\n\n[FILE] a/y.json\n[FILE] c/y.txt"
        );
        assert_eq!(search("?", 0), "Found 2 match(es) for '?':\n\n[DIR] a\n[DIR] c");
        assert_eq!(search("*.md", 0), "No matches found for pattern '*.md' in .");
        assert!(search("../*", 0).starts_with("Error: Search failed - "));
        assert!(search(&"{a,b}".repeat(24), 0).starts_with("Error: Search failed - "));
    }
}

/// MC-07
#[test]
fn no_path_or_link_leaves_the_workspace() {
    for mut host in Host::both() {
        symlink(host.outside().join("out"), host.path("link")).unwrap();
        symlink(host.outside().join("out/secret.txt"), host.path("leak")).unwrap();
        for path in [
            "../out/secret.txt",
            "/etc/passwd",
            "link/secret.txt",
            "leak",
            "a/../../out/secret.txt",
        ] {
            for tool in ["read_file", "get_file_info"] {
                assert_eq!(
                    host.tool(tool, json!({ "path": path })),
                    error(DENIED),
                    "{tool} {path}"
                );
            }
            let answer = host.tool("write_file", json!({ "path": path, "content": "x" }));
            assert_eq!(answer, error(DENIED), "write_file {path}");
        }
        for path in ["..", "link", "/"] {
            assert_eq!(host.tool("list_directory", json!({ "path": path })), error(DENIED));
            assert_eq!(
                host.tool("search_files", json!({ "path": path, "pattern": "*" })),
                error(DENIED)
            );
        }
        assert_eq!(host.tool("create_directory", json!({ "path": "link/d" })), error(DENIED));
        assert_eq!(std::fs::read_dir(host.outside().join("out")).unwrap().count(), 1);
        assert_eq!(
            std::fs::read_to_string(host.outside().join("out/secret.txt")).unwrap(),
            "SECRET-42"
        );
    }
}

/// MC-08
#[test]
fn every_request_is_answered_with_its_own_id() {
    for mut host in Host::both() {
        let listed = host.request("tools/list", json!({}));
        assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(6));
        let lone = r#"{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"\ud800"}}}"#;
        assert_eq!(host.raw(lone)["id"], 77);
        let unknown = host.request("tools/call", json!({ "name": "rm" }));
        assert_eq!(unknown["error"]["code"], -32602);
        assert_eq!(host.request("no/such", json!({}))["error"]["code"], -32601);
        assert_eq!(host.raw("not json")["error"]["code"], -32700);
    }
    let host = Host::start(true);
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(post(host.address(), "/mcp", ping).0, "HTTP/1.1 200 OK");
    let foreign = format!(
        "POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{ping}",
        ping.len()
    );
    assert_eq!(exchange(host.address(), &foreign).0, "HTTP/1.1 403 Forbidden");
}

/// MC-09
#[test]
fn health_reports_service_and_version() {
    let host = Host::start(true);
    let (status, body) =
        exchange(host.address(), "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let health: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(health, json!({ "status": "ok", "service": "workspace-tool", "version": "1.0.0" }));
}

/// MC-11
#[test]
fn readers_see_one_whole_version_while_others_write() {
    let host = Host::start(true);
    let address = host.address();
    let versions = ["a", "b", "c"].map(|letter| letter.repeat(100_000));
    host.has("shared", &versions[0]);
    let call = |tool: &str, arguments: serde_json::Value| {
        let params = json!({ "name": tool, "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
    };
    std::thread::scope(|scope| {
        for version in &versions {
            scope.spawn(move || {
                for _ in 0..30 {
                    let arguments = json!({ "path": "shared", "content": version });
                    let (status, body) = post(address, "/mcp", &call("write_file", arguments));
                    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
                    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
                    let text = answer["result"]["content"][0]["text"].as_str();
                    assert_eq!(text, Some("Successfully wrote 100000 bytes to shared"), "{answer}");
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let (_, body) =
                        post(address, "/mcp", &call("read_file", json!({ "path": "shared" })));
                    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
                    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
                    assert!(versions.iter().any(|version| version == text));
                }
            });
        }
    });
}
