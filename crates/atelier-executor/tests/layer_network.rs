//! Scripts with `network`: approved hosts are reached through the proxy, nothing else is, and every
//! connection is in the result. The servers are on the loopback device of this machine, which is
//! outside of the layer's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use atelier_executor::{LayerOptions, Layers};
use common::Fixture;
use serde_json::{Value, json};

/// A web server on this machine that says hello, and tells which requests it got.
fn host() -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            lines.find(String::is_empty);
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
            (&stream).write_all(answer.as_bytes()).ok();
            if tell.send(request).is_err() {
                return;
            }
        }
    });
    (port, told)
}

fn shell(f: &Fixture, script: &str, network: &[&str]) -> Value {
    f.call("shell", json!({ "script": script, "network": network, "timeout": 60 })).to_value()
}

/// The connections of a result: host, port, and whether it was allowed.
fn connections(answer: &Value) -> Vec<(String, u64, bool)> {
    let one = |it: &Value| {
        let host = it["host"].as_str().unwrap().to_owned();
        (host, it["port"].as_u64().unwrap(), it["allowed"] == json!(true))
    };
    answer["connections"].as_array().unwrap().iter().map(one).collect()
}

/// LY-31
#[test]
fn programs_reach_approved_hosts() {
    let f = Fixture::new();
    let (port, got) = host();
    let url = format!("http://localhost:{port}");
    for (script, request) in [
        (format!("curl -sS {url}/plain"), "GET /plain HTTP/1.1"),
        (format!("curl -sS -p {url}/tunnel"), "GET /tunnel HTTP/1.1"),
        (format!("wget -qO- {url}/wget"), "GET /wget HTTP/1.1"),
        (
            format!(
                "python3 -c 'import urllib.request as r; \
                 print(r.urlopen(\"{url}/py\").read().decode(), end=\"\")'"
            ),
            "GET /py HTTP/1.1",
        ),
    ] {
        let answer = shell(&f, &script, &["localhost"]);
        assert_eq!(answer["stdout"], json!("hello\n"), "{script}: {answer:#}");
        assert_eq!(got.recv().unwrap(), request);
        assert_eq!(connections(&answer), [("localhost".to_owned(), u64::from(port), true)]);
        assert!(answer["connections"][0]["received"].as_u64().unwrap() > 40, "{answer:#}");
    }
    // The next script does not inherit it.
    let answer = shell(&f, &format!("curl -sS -m 5 {url}/; env | grep -ci proxy"), &[]);
    assert_eq!((&answer["stdout"], answer.get("connections")), (&json!("0\n"), None));
    assert!(got.try_recv().is_err(), "nothing else has arrived");
}

/// LY-32
#[test]
fn scripts_do_not_get_past_the_proxy() {
    let f = Fixture::new();
    let (port, got) = host();
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let machine = machine.trim();
    let all = ["--noproxy '*'", "--noproxy ''"];
    for host in
        ["localhost", "127.0.0.1", "[::1]", machine, "0.0.0.0", "127.0.0.2", "[::ffff:7f00:1]"]
    {
        for how in all {
            let script = format!(
                "curl -gsSf -m 5 {how} http://{host}:{port}/; curl -gsSf -p -m 5 {how} http://{host}:{port}/"
            );
            let answer = shell(&f, &script, &["packages.example"]);
            assert_eq!(answer["stdout"], json!(""), "{script}: {answer:#}");
            assert_ne!(answer["exit_code"], json!(0), "{script}: {answer:#}");
        }
    }
    // No route, no name server, no socket of another kind leads out.
    let answer = shell(
        &f,
        "python3 -c '
import socket
for family, kind, to in (
    (socket.AF_INET, socket.SOCK_STREAM, (\"192.0.2.1\", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, (\"192.0.2.1\", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, (\"2001:db8::1\", 80)),
    (socket.AF_UNIX, socket.SOCK_STREAM, \"/run/docker.sock\"),
    (socket.AF_UNIX, socket.SOCK_DGRAM, \"/dev/log\"),
    (40, socket.SOCK_STREAM, (2, 80)),
):
    try:
        socket.socket(family, kind).connect(to)
        print(\"connected\", family, kind)
    except OSError: pass
try: print(socket.getaddrinfo(\"packages.example\", 80))
except OSError: pass'
cat /proc/net/route | wc -l; ls /sys/class/net 2>/dev/null",
        &["packages.example"],
    );
    let printed = answer["stdout"].as_str().unwrap();
    assert!(!printed.contains("connected") && !printed.contains("packages"), "{answer:#}");
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-32: what was refused is in the result, in words that say what may be reached.
#[test]
fn refusals_are_in_the_result() {
    let f = Fixture::new();
    let (port, got) = host();
    let script = format!("curl -sS http://evil.example:{port}/; curl -sS -p http://10.0.0.1:81/");
    let answer = shell(&f, &script, &["localhost"]);
    let printed = answer["stdout"].as_str().unwrap();
    assert!(printed.contains("evil.example is not among the hosts"), "{answer:#}");
    assert!(printed.contains("This script may connect to: localhost."), "{answer:#}");
    assert_eq!(
        connections(&answer),
        [("evil.example".to_owned(), u64::from(port), false), ("10.0.0.1".to_owned(), 81, false)]
    );
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-33: a job that was not approved for the hosts does not use the proxy of a script that was,
/// and what a script leaves behind is of no use to the next one.
#[test]
fn other_scripts_of_the_layer_do_not_use_its_proxy() {
    let f = Fixture::new();
    let (port, got) = host();
    let ports = "python3 -c '
import socket
def asks(port):
    s = socket.socket(); s.settimeout(5)
    try: s.connect((\"127.0.0.1\", port))
    except OSError: return
    s.sendall(b\"GET http://localhost:PORT/job HTTP/1.1\\r\\n\\r\\n\")
    print(s.recv(12).decode(), flush=True)
while True:
    for line in open(\"/proc/net/tcp\").readlines()[1:]:
        words = line.split()
        if words[3] == \"0A\": asks(int(words[1].split(\":\")[1], 16))'"
        .replace("PORT", &port.to_string());
    let job = f.call("shell", json!({ "script": ports, "background": true })).to_value();
    assert_eq!(job["success"], json!(true), "{job:#}");
    let id = job["job_id"].clone();
    // The approved script waits until the job was refused.
    let script = "env | grep ^http_proxy= > /tmp/left; for i in $(seq 200); do \
        test -e seen && break; sleep 0.05; done; true";
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| shell(&f, script, &["localhost"]));
        while !asked.is_finished() {
            let output = f.call("job_output", json!({ "job_id": id })).to_value();
            if output["stdout"].as_str().is_some_and(|it| it.contains("HTTP/1.1 407")) {
                break;
            }
        }
        shell(&f, "touch seen", &[]);
        asked.join().unwrap()
    });
    assert!(connections(&answer).contains(&("localhost".to_owned(), u64::from(port), false)));
    assert!(connections(&answer).iter().all(|(_, _, allowed)| !allowed), "{answer:#}");
    f.call("job_stop", json!({ "job_id": id }));
    let script = format!(". /tmp/left; export http_proxy; curl -sS -m 5 http://a.example:{port}/");
    let answer = shell(&f, &script, &[]);
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!(""), &json!(7)), "{answer:#}");
    let answer = shell(&f, &script, &["localhost"]);
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!(""), &json!(7)), "{answer:#}");
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-36: a server of the layer is still its localhost, and a job has the network until it ends.
#[test]
fn jobs_reach_their_hosts_and_the_layer_keeps_its_localhost() {
    let f = Fixture::new();
    let (port, got) = host();
    let script = format!(
        "python3 -m http.server 8125 --bind 127.0.0.1 >/dev/null 2>&1 & for i in $(seq 100); do \
         curl -sf localhost:8125/notes.txt && break; sleep 0.1; done; curl -sS {machine}:{port}/",
        machine = "http://127.0.0.1"
    );
    let answer = shell(&f, &script, &["127.0.0.1"]);
    assert_eq!(answer["stdout"], json!("notes\nhello\n"), "{answer:#}");
    got.recv().unwrap();
    let script = format!("curl -sS http://localhost:{port}/job");
    let params = json!({ "script": script, "background": true, "network": ["localhost"] });
    let job = f.call("shell", params.clone()).to_value();
    assert_eq!(got.recv().unwrap(), "GET /job HTTP/1.1");
    let output = json!({ "job_id": job["job_id"] });
    let ended = loop {
        let state = f.call("job_output", output.clone()).to_value();
        if state["running"] == json!(false) && state["connections"] != json!([]) {
            break state;
        }
    };
    assert_eq!(ended["stdout"], json!("hello\n"), "{ended:#}");
    assert_eq!(connections(&ended), [("localhost".to_owned(), u64::from(port), true)]);
    // The proxy is in this process, so what outlives it has no network.
    let mut f = Fixture::new();
    let options = LayerOptions { detached: true, ..LayerOptions::default() };
    f.layers = Layers::open(&f.base().join("state"), &f.ws, options).unwrap();
    let refused = f.call("shell", params).to_value();
    assert_eq!(
        (&refused["success"], &refused["code"]),
        (&json!(false), &json!("command_not_allowed"))
    );
    assert!(refused["error"].as_str().unwrap().contains("has no network"), "{refused:#}");
}
