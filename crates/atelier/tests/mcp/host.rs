//! A simple host for `atelier mcp`, on pipes or over HTTP like curl.

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};
use tempfile::TempDir;

enum Line {
    Pipes(ChildStdin, BufReader<ChildStdout>),
    Http(String),
}

/// The real program with its own workspace, and a secret file beside the workspace.
pub(crate) struct Host {
    line: Line,
    program: Child,
    base: TempDir,
    number: u64,
}

/// A tool's answer: its text, and whether it is an error.
pub(crate) type Answer = (String, bool);

pub(crate) fn ok(text: impl Into<String>) -> Answer {
    (text.into(), false)
}

pub(crate) fn error(text: impl Into<String>) -> Answer {
    (text.into(), true)
}

impl Host {
    /// One host for each transport.
    pub(crate) fn both() -> [Self; 2] {
        [Self::start(false), Self::start(true)]
    }

    pub(crate) fn start(over_http: bool) -> Self {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("ws")).unwrap();
        std::fs::create_dir(base.path().join("out")).unwrap();
        std::fs::write(base.path().join("out/secret.txt"), "SECRET-42").unwrap();
        #[expect(clippy::disallowed_methods, reason = "the program under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_atelier"));
        command.arg("mcp").arg(base.path().join("ws")).env_remove("LOG_LEVEL");
        if over_http {
            command.args(["--http", "127.0.0.1:0"]).stderr(Stdio::piped());
        } else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        }
        let mut program = command.spawn().unwrap();
        let line = if over_http {
            let mut greeting = String::new();
            BufReader::new(program.stderr.take().unwrap()).read_line(&mut greeting).unwrap();
            let (_, address) = greeting.trim().split_once("http://").expect("an address");
            Line::Http(address.trim_end_matches("/mcp").to_owned())
        } else {
            let output = BufReader::new(program.stdout.take().unwrap());
            Line::Pipes(program.stdin.take().unwrap(), output)
        };
        let mut host = Self { line, program, base, number: 0 };
        let hello = json!({ "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let greeted = host.request("initialize", hello);
        assert_eq!(greeted["result"]["protocolVersion"], "2024-11-05");
        host
    }

    /// A path below the workspace's root.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join("ws").join(name)
    }

    pub(crate) fn outside(&self) -> &Path {
        self.base.path()
    }

    pub(crate) fn has(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let message =
            json!({ "jsonrpc": "2.0", "id": self.number, "method": method, "params": params });
        let answer = self.raw(&message.to_string());
        assert_eq!(answer["id"], self.number);
        answer
    }

    /// Sends a raw message and reads the next one.
    pub(crate) fn raw(&mut self, message: &str) -> Value {
        match &mut self.line {
            Line::Pipes(input, output) => {
                writeln!(input, "{message}").unwrap();
                let mut line = String::new();
                output.read_line(&mut line).unwrap();
                serde_json::from_str(&line).unwrap()
            }
            Line::Http(address) => {
                let (_, body) = post(address, "/mcp", message);
                serde_json::from_str(&body).unwrap()
            }
        }
    }

    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Answer {
        let answer = self.request("tools/call", json!({ "name": name, "arguments": arguments }));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (text.to_owned(), result["isError"].as_bool().unwrap())
    }

    /// The address of a server on HTTP.
    pub(crate) fn address(&self) -> &str {
        match &self.line {
            Line::Http(address) => address,
            Line::Pipes(..) => panic!("it is on pipes"),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

/// Posts a message like curl: without a session, a handshake or a specific `Accept`. Returns the
/// status line and the body.
pub(crate) fn post(address: &str, path: &str, body: &str) -> (String, String) {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\nContent-Type: \
         application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    exchange(address, &(head + body))
}

pub(crate) fn exchange(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}
