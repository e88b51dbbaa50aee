//! The four basic tools over HTTP and through a connected machine: their results and their limits.

use super::client::{ConnectProcess, Machine, ProjectSetup};
use crate::build;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Builder, Server,
};
use rstest::rstest;
use serde_json::{Value, json};

const MIB: u64 = 1024 * 1024;

/// A server, a project and a machine that is connected to it.
struct Connected {
    machine: Machine,
    setup: ProjectSetup,
    _server: Server,
    _client: ConnectProcess,
}

impl Connected {
    async fn new(backend: Backend) -> Self {
        Self::with(build(backend)).await
    }

    async fn with(server: Builder) -> Self {
        let machine = Machine::new();
        let server = server.start().await;
        let setup = ProjectSetup::new(server.user("ann")).await;
        let mut command = machine.command(&setup, &server.url, &[]);
        command.env("SHOP_SECRET", "of the machine's owner");
        let client = ConnectProcess::start(command);
        client.prints("  connected\n").await;
        Self { machine, setup, _server: server, _client: client }
    }

    /// The result of a call that runs without approval.
    async fn run(&self, tool: &str, params: Value) -> Value {
        let call = self.setup.execute(tool, params).await;
        assert_eq!(call["requires_approval"], false, "{call}");
        self.setup.until(&call, "completed").await["result"].clone()
    }

    /// The call after it failed on the machine.
    async fn fails(&self, tool: &str, params: Value) -> Value {
        let call = self.setup.execute(tool, params).await;
        self.setup.until(&call, "failed").await
    }

    /// The call after it was approved and ended in this state.
    async fn approved(&self, tool: &str, params: Value, status: &str) -> Value {
        let call = self.setup.approved(tool, params).await;
        self.setup.until(&call, status).await
    }

    /// Asserts that the server denies a call, so that it never reaches the machine.
    async fn denied(&self, tool: &str, params: Value, code: &str) {
        let call = self.setup.execute(tool, params).await;
        let answer = (&call["status"], &call["error"]["code"]);
        assert_eq!(answer, (&json!("denied"), &json!(code)), "{call}");
    }

    /// Creates a file of this size that takes no space on disk.
    fn sparse_file(&self, name: &str, size: u64) {
        std::fs::File::create(self.machine.root().join(name)).unwrap().set_len(size).unwrap();
    }
}

/// TL-01.1: content, encoding and size; 100 MB; binary files are refused except PDFs and images.
#[rstest]
#[tokio::test]
async fn read_file_returns_text_and_images_and_refuses_the_rest(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let shop = Connected::new(backend).await;
    shop.machine.write("notes.txt", "grün\n");
    let read = shop.run("read_file", json!({"path": "notes.txt"})).await;
    assert_eq!(
        json!([read["path"], read["content"], read["encoding"], read["size"]]),
        json!(["notes.txt", "grün\n", "utf-8", 6])
    );

    for (name, bytes, base64) in [
        ("logo.png", &b"\x89PNG\r\n\x1a\n"[..], "iVBORw0KGgo="),
        ("paper.pdf", b"%PDF-1.7", "JVBERi0xLjc="),
    ] {
        std::fs::write(shop.machine.root().join(name), bytes).unwrap();
        let read = shop.run("read_file", json!({"path": name})).await;
        assert_eq!(
            json!([read["content"], read["encoding"], read["size"]]),
            json!([base64, "base64", 8])
        );
    }

    std::fs::write(shop.machine.root().join("program.dat"), b"\x7fELF\0").unwrap();
    shop.sparse_file("large.txt", 100 * MIB + 1);
    for (name, code) in [("program.dat", "binary_file"), ("large.txt", "file_size_exceeded")] {
        let failed = shop.fails("read_file", json!({"path": name})).await;
        assert_eq!(failed["error"]["code"], code, "{failed}");
    }
}

/// TL-01.2: mode write or append and the new size; no programs; approval always.
#[rstest]
#[tokio::test]
async fn write_file_replaces_or_appends_after_approval(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let shop = Connected::new(backend).await;
    for (mode, content, size, text) in [
        ("write", "one\n", 4, "one\n"),
        ("append", "two\n", 8, "one\ntwo\n"),
        ("write", "3", 1, "3"),
    ] {
        let params = json!({"path": "a.txt", "content": content, "mode": mode});
        let call = shop.approved("write_file", params, "completed").await;
        assert_eq!(
            json!([call["risk_level"], call["requires_approval"], call["result"]["size"]]),
            json!(["MEDIUM", true, size])
        );
        assert_eq!(shop.machine.read("a.txt"), text);
    }

    for name in ["setup.exe", "data.bin", "lib.so", "lib.SO.1", "lib.dll", "lib.dylib"] {
        let params = json!({"path": name, "content": "x"});
        shop.denied("write_file", params, "write_not_allowed").await;
    }

    assert_eq!(shop.machine.files().len(), 1, "refused writes leave nothing behind");
}

/// TL-01.2: the limit is 100 MB by default (`docs/reference/limits.md`). It is small here, because
/// no request body may be that large.
#[rstest]
#[tokio::test]
async fn write_file_keeps_to_its_size_limit(#[values(Sqlite, Postgres)] backend: Backend) {
    let limit = 1000;
    let server = build(backend).with("POLICY__LIMITS__WRITE_BYTES", limit);
    let shop = Connected::with(server).await;
    let params = json!({"path": "a.txt", "content": "x".repeat(limit + 1)});
    shop.denied("write_file", params, "file_size_exceeded").await;
    let params = json!({"path": "a.txt", "content": "x".repeat(limit)});
    shop.approved("write_file", params, "completed").await;
    assert_eq!(shop.machine.read("a.txt").len(), limit);
}

/// TL-01.3: output, exit code and time; a timeout of 30 s, or 300 s for slow commands; 1 MB of output;
/// a clean environment; only allowed commands.
#[rstest]
#[tokio::test]
async fn execute_command_reports_its_outcome_within_its_limits(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let shop = Connected::new(backend).await;
    shop.machine.write("notes.txt", "one\n");
    let command = |command: &str, args: &[&str]| json!({"command": command, "args": args});
    let ran = shop.run("execute_command", command("cat", &["notes.txt"])).await;
    assert_eq!(
        json!([ran["stdout"], ran["stderr"], ran["exit_code"], ran["truncated"]]),
        json!(["one\n", "", 0, false])
    );
    assert!(ran["execution_time"].as_f64().is_some_and(|seconds| seconds > 0.0), "{ran}");

    // Without a timeout of its own, a call gets one by its command.
    for (params, timeout) in
        [(command("cat", &["notes.txt"]), 30), (command("npm", &["install"]), 300)]
    {
        let call = shop.setup.execute("execute_command", params).await;
        assert_eq!(call["timeout"], timeout, "{call}");
    }

    let failed = shop.fails("execute_command", command("ls", &["missing"])).await;
    assert_eq!(
        json!([failed["error"]["code"], failed["result"]["exit_code"], failed["result"]["stdout"]]),
        json!(["command_failed", 2, ""])
    );
    let stderr = failed["result"]["stderr"].as_str().unwrap();
    assert!(stderr.contains("missing"), "{stderr}");

    shop.machine.write("large.txt", &"0123456789abcde\n".repeat(128 * 1024));
    let ran = shop.run("execute_command", command("cat", &["large.txt"])).await;
    let kept = ran["stdout"].as_str().unwrap().len() as u64;
    assert_eq!(json!([ran["truncated"], ran["stdout_bytes"]]), json!([true, 2 * MIB]));
    assert!(kept <= MIB && kept > MIB / 2, "{kept} bytes of output");

    // `tail -f` never ends by itself. A longer timeout than 300 s is refused.
    let follow =
        |timeout: u32| json!({"command": "tail", "args": ["-f", "notes.txt"], "timeout": timeout});
    let ended = shop.approved("execute_command", follow(1), "failed").await;
    assert_eq!(
        json!([ended["error"]["code"], ended["result"]["exit_code"], ended["result"]["stdout"]]),
        json!(["command_timeout", null, "one\n"])
    );
    shop.denied("execute_command", follow(301), "timeout_exceeded").await;
    shop.denied("execute_command", command("rm", &["-rf", "/"]), "command_not_allowed").await;
    shop.denied("execute_command", command("nc", &["-l", "1"]), "command_not_allowed").await;

    shop.machine.write("environment.py", "import os\nprint(sorted(os.environ))\n");
    let params = command("python3", &["environment.py"]);
    let ran = shop.approved("execute_command", params, "completed").await["result"].clone();
    let names = ran["stdout"].as_str().unwrap();
    assert!(names.contains("'PATH'"), "{names}");
    assert!(!names.contains("SHOP_SECRET") && !names.contains("ATELIER_TOKEN"), "{names}");
}

/// TL-01.4: recursive, by pattern, 1000 entries with the total count; hidden entries only if named.
#[rstest]
#[tokio::test]
async fn list_directory_counts_all_and_returns_a_thousand(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let shop = Connected::new(backend).await;
    for path in ["a.txt", "b.md", ".hidden.txt", "src/c.txt", "src/.d/e.txt"] {
        shop.machine.write(path, "");
    }
    let list = async |params: Value| {
        let listed = shop.run("list_directory", params).await;
        let files = listed["files"].as_array().unwrap();
        let paths: Vec<Value> = files.iter().map(|file| file["path"].clone()).collect();
        json!([paths, listed["total_count"], listed["limited"]])
    };
    assert_eq!(list(json!({"path": "."})).await, json!([["a.txt", "b.md", "src"], 3, false]));
    assert_eq!(
        list(json!({"path": ".", "recursive": true})).await,
        json!([["a.txt", "b.md", "src", "src/c.txt"], 4, false])
    );
    assert_eq!(
        list(json!({"path": ".", "recursive": true, "pattern": "*.txt"})).await,
        json!([["a.txt", "src/c.txt"], 2, false])
    );
    assert_eq!(
        list(json!({"path": ".", "pattern": ".*"})).await,
        json!([[".hidden.txt"], 1, false])
    );

    for number in 0..1005 {
        shop.machine.write(&format!("many/{number:04}"), "");
    }
    let listed = shop.run("list_directory", json!({"path": "many"})).await;
    assert_eq!(listed["files"].as_array().unwrap().len(), 1000);
    assert_eq!(json!([listed["total_count"], listed["limited"]]), json!([1005, true]));
}
