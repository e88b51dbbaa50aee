//! Tests the proxy with real servers and scripts: which requests pass, which are refused, and how
//! connections are recorded.

use std::io::{Read, Write};
use std::iter::empty;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use super::record::{Connection, Record, connections};
use super::{Destinations, Entrance, ProxyLimits, Serving};

/// A proxy, and the end of the pipe that stands for its script.
struct Proxy {
    folder: TempDir,
    address: String,
    credentials: String,
    serving: Serving,
    script: OwnedFd,
}

impl Proxy {
    fn new(hosts: &[&str]) -> Self {
        Self::resolving(hosts, ProxyLimits::default(), |_| Ok(vec![[127, 0, 0, 1].into()]))
    }

    fn resolving(
        hosts: &[&str],
        limits: ProxyLimits,
        resolve: impl Fn(&str) -> std::io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Self {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let entrance = Entrance::new(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let url = entrance.url();
        let (user, address) = url["http://".len()..].split_once('@').unwrap();
        let (credentials, address) = (STANDARD.encode(user), address.to_owned());
        let destinations = Destinations::resolved_by(&hosts, Box::new(resolve));
        let record = Record::begin(folder.path()).unwrap();
        let (ends, script) = rustix::pipe::pipe().unwrap();
        let serving = Serving::begin(entrance, destinations, limits, record, ends).unwrap();
        Self { folder, address, credentials, serving, script }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }

    /// Sends a request with the password, and returns the whole answer.
    fn ask(&self, first: &str, rest: &str) -> String {
        let password = format!("Proxy-Authorization: Basic {}\r\n", self.credentials);
        self.send(&format!("{first}\r\n{password}{rest}"))
    }

    fn send(&self, bytes: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        all(&mut stream)
    }

    /// Opens a tunnel. Returns it with the first line of the answer.
    fn tunnel(&self, to: &str) -> (TcpStream, String) {
        let mut stream = self.connect();
        let password = format!("Proxy-Authorization: Basic {}", self.credentials);
        write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{password}\r\n\r\n").unwrap();
        let answer = head(&mut stream);
        (stream, answer.lines().next().unwrap_or_default().to_owned())
    }

    /// Ends the script, and returns what was written down.
    fn end(self) -> Vec<Connection> {
        drop(self.script);
        self.serving.finish();
        connections(self.folder.path()).unwrap().unwrap()
    }
}

/// Everything until the other side ends. A side that ends with an error has ended, too.
fn all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn head(stream: &mut TcpStream) -> String {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

/// A server that reads so many bytes after each head, answers, and tells what it got.
fn server(
    mut lengths: impl Iterator<Item = usize> + Send + 'static,
    answer: &'static str,
) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut got = head(&mut stream).into_bytes();
            let mut body = vec![0; lengths.next().unwrap_or(0)];
            if stream.read_exact(&mut body).is_ok() {
                got.extend(body);
            }
            stream.write_all(answer.as_bytes()).ok();
            stream.shutdown(Shutdown::Write).ok();
            got.extend(all(&mut stream).into_bytes());
            if tell.send(String::from_utf8(got).unwrap()).is_err() {
                return;
            }
        }
    });
    (port, told)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const LOOPBACK: &str = "127.0.0.1";

fn allowed(host: &str, port: u16, sent: u64, received: u64) -> Connection {
    let (host, why, count) = (host.to_owned(), None, None);
    Connection { host, port, allowed: true, sent, received, why, count }
}

/// LY-31
#[test]
fn approved_hosts_are_reached_by_http_and_connect() {
    let (port, got) = server(empty(), OK);
    let proxy = Proxy::new(&["packages.example", LOOPBACK]);
    let answer = proxy.ask(
        &format!("GET http://packages.example:{port}/x HTTP/1.1"),
        &format!("Host: packages.example:{port}\r\n\r\n"),
    );
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
    let plain = got.recv().unwrap();
    let wanted =
        format!("GET /x HTTP/1.1\r\nHost: packages.example:{port}\r\nConnection: close\r\n\r\n");
    assert_eq!(plain, wanted);
    // A tunnel passes any bytes, in both directions, and the end of each.
    let (mut tunnel, opened) = proxy.tunnel(&format!("packages.example:{port}"));
    assert_eq!(opened, "HTTP/1.1 200 Connection established");
    tunnel.write_all(b"any\x16bytes\r\n\r\n").unwrap();
    tunnel.shutdown(Shutdown::Write).unwrap();
    assert_eq!(all(&mut tunnel), OK);
    assert_eq!(got.recv().unwrap(), "any\x16bytes\r\n\r\n");
    let ok = OK.len() as u64;
    // A connection is written down when it has ended, so either one may be the first.
    let mut connections = proxy.end();
    connections.sort_by_key(|connection| connection.sent);
    assert_eq!(
        connections,
        [
            allowed("packages.example", port, 13, ok),
            // The answer that the script got also has the line `Connection: close`.
            allowed("packages.example", port, wanted.len() as u64, ok + 19),
        ]
    );
}

/// LY-32
#[test]
fn other_hosts_are_refused_and_written_down() {
    let (port, got) = server(empty(), OK);
    let proxy = Proxy::new(&["packages.example", "2001:db8::1"]);
    let refusals = [
        format!("http://evil.example:{port}/"),
        format!("http://packages.example.evil.example:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://127.0.0.1:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://0:{port}/"),
        format!("http://169.254.169.254:{port}/latest/meta-data"),
        // The name was approved, but it leads to this machine.
        format!("http://packages.example:{port}/"),
    ];
    for url in &refusals {
        let answer = proxy.ask(&format!("GET {url} HTTP/1.1"), "\r\n");
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{url}: {answer}");
        let to = url["http://".len()..].split('/').next().unwrap();
        let (_, opened) = proxy.tunnel(to);
        assert_eq!(opened, "HTTP/1.1 403 Forbidden", "{to}");
    }
    let connections = proxy.end();
    assert_eq!(connections.len(), 2 * refusals.len());
    assert!(connections.iter().all(|it| !it.allowed && it.why.is_some() && it.sent == 0));
    assert_eq!((connections[0].host.as_str(), connections[0].port), ("evil.example", port));
    let why = connections.last().unwrap().why.clone().unwrap();
    assert!(why.contains("leads to 127.0.0.1, which belongs to this machine"), "{why}");
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-32: a name is looked up once, and the connection goes to the address that was checked.
#[test]
fn names_that_change_their_address_lead_nowhere() {
    let looked_up = Arc::new(AtomicUsize::new(0));
    let (port, got) = server(empty(), OK);
    let count = Arc::clone(&looked_up);
    // First the address that was approved, then another one of this machine.
    let resolve = move |_: &str| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(vec![[127, 0, 0, 1].into()]),
        _ => Ok(vec![[127, 0, 0, 2].into()]),
    };
    let proxy = Proxy::resolving(&["packages.example", LOOPBACK], ProxyLimits::default(), resolve);
    let get = format!("GET http://packages.example:{port}/ HTTP/1.1");
    assert!(proxy.ask(&get, "\r\n").starts_with("HTTP/1.1 200"));
    got.recv().unwrap();
    assert_eq!(looked_up.load(Ordering::SeqCst), 1);
    let answer = proxy.ask(&get, "\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("127.0.0.2"), "{answer}");
    drop(proxy.end());
    // One address of this machine among others is enough to refuse.
    let mixed = |_: &str| Ok(vec![[203, 0, 113, 9].into(), [10, 0, 0, 1].into()]);
    let proxy = Proxy::resolving(&["packages.example"], ProxyLimits::default(), mixed);
    let answer = proxy.ask(&get, "\r\n");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("10.0.0.1"), "{answer}");
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-32: names that are local by themselves were asked about as such.
#[test]
fn local_names_lead_to_local_addresses_where_they_were_approved() {
    let (port, got) = server(empty(), OK);
    let proxy = Proxy::new(&["db.internal"]);
    let get = |host: &str| format!("GET http://{host}:{port}/ HTTP/1.1");
    assert!(proxy.ask(&get("db.internal"), "\r\n").starts_with("HTTP/1.1 200"));
    got.recv().unwrap();
    assert!(proxy.ask(&get("localhost"), "\r\n").starts_with("HTTP/1.1 403"));
    assert!(proxy.ask(&get("127.0.0.1"), "\r\n").starts_with("HTTP/1.1 403"));
}

/// LY-32: what a host answers does not widen what was approved.
#[test]
fn redirects_are_asked_about_like_everything_else() {
    let answer = "HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\n\r\n";
    let (port, got) = server(empty(), answer);
    let proxy = Proxy::new(&["packages.example", LOOPBACK]);
    let get = |url: &str| proxy.ask(&format!("GET {url} HTTP/1.1"), "\r\n");
    let first = get(&format!("http://packages.example:{port}/"));
    assert!(first.contains("Location: http://evil.example/"), "{first}");
    got.recv().unwrap();
    assert!(get("http://evil.example/").starts_with("HTTP/1.1 403"));
}

/// LY-33
#[test]
fn other_scripts_of_the_layer_do_not_get_through() {
    let (port, got) = server(empty(), OK);
    let proxy = Proxy::new(&["localhost"]);
    let wrong = STANDARD.encode("atelier:wrong");
    for password in [
        String::new(),
        format!("Proxy-Authorization: Basic {wrong}\r\n"),
        format!("Proxy-Authorization: Bearer {}\r\n", proxy.credentials),
        format!("Authorization: Basic {}\r\n", proxy.credentials),
    ] {
        for first in [format!("GET http://localhost:{port}/"), format!("CONNECT localhost:{port}")]
        {
            let answer = proxy.send(&format!("{first} HTTP/1.1\r\n{password}\r\n"));
            assert!(answer.starts_with("HTTP/1.1 407 "), "{password}: {answer}");
        }
    }
    let connections = proxy.end();
    assert!(connections.len() == 8 && connections.iter().all(|it| !it.allowed));
    assert!(got.try_recv().is_err(), "nothing has arrived");
}

/// LY-34: a second request in the body, or behind it, does not arrive as one.
#[test]
fn nothing_is_smuggled_behind_a_request() {
    let hidden = "GET http://x.internal/ HTTP/1.1\r\nHost: x.internal\r\n\r\n";
    let (port, got) = server([0, 2, 0, 5, 12].into_iter(), OK);
    let proxy = Proxy::new(&["db.internal"]);
    let post = format!("POST http://db.internal:{port}/ HTTP/1.1");
    for (rest, body) in [
        (format!("Content-Length: 0\r\n\r\n{hidden}"), ""),
        (format!("Content-Length: 2\r\n\r\nab{hidden}"), "ab"),
        (format!("\r\n{hidden}"), ""),
        (format!("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"), "0\r\n\r\n"),
        (
            format!("Transfer-Encoding: chunked\r\n\r\n002\r\nab\r\n0\r\nHost: x\r\n\r\n{hidden}"),
            "2\r\nab\r\n0\r\n\r\n",
        ),
    ] {
        proxy.ask(&post, &rest);
        let arrived = got.recv().unwrap();
        let (head, arrived_body) = arrived.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Host: db.internal:{port}\r\n")), "{rest}: {head}");
        assert_eq!(arrived_body, body, "{rest}");
    }
    // A chunk that is not written plainly ends the connection, before the next one is passed on.
    for size in ["2;x=1", "+2", " 2", "0x2", "2 ", "", "-1", "11111111111111111"] {
        let body = format!("Transfer-Encoding: chunked\r\n\r\n{size}\r\nab\r\n0\r\n\r\n{hidden}");
        proxy.ask(&post, &body);
        let arrived = got.recv().unwrap();
        assert!(arrived.ends_with("Connection: close\r\n\r\n"), "{size}: {arrived}");
    }
    // A request that two programs could read differently does not arrive at all.
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert!(proxy.ask(&post, both).starts_with("HTTP/1.1 400"));
    let other = proxy.ask(&post, "Host: x.internal\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 400"), "{other}");
    let connect = format!("CONNECT db.internal:{port} HTTP/1.1");
    let other = proxy.ask(&connect, "Host: x.internal\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 400"), "{other}");
    drop(proxy.end());
    assert!(got.try_recv().is_err(), "nothing else has arrived");
}

/// LY-35: whoever is slow on either side is cut off, and others go on.
#[test]
fn slow_peers_are_cut_off() {
    let short = Duration::from_millis(50);
    let limits = ProxyLimits { head: short, idle: short, ..ProxyLimits::default() };
    let local = |_: &str| Ok(vec![[127, 0, 0, 1].into()]);
    let proxy = Proxy::resolving(&["db.internal"], limits, local);
    // A script that does not say what it wants.
    let mut slow = proxy.connect();
    slow.write_all(b"GET http://db.internal/ HTT").unwrap();
    assert!(all(&mut slow).starts_with("HTTP/1.1 408 "));
    // A host that accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let answer = proxy.ask(&format!("GET http://db.internal:{port}/ HTTP/1.1"), "\r\n");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let (mut tunnel, _) = proxy.tunnel(&format!("db.internal:{port}"));
    assert_eq!(all(&mut tunnel), "");
    let connections = proxy.end();
    let whys: Vec<_> = connections.iter().map(|it| it.why.clone().unwrap_or_default()).collect();
    let silent = "It was ended because it was silent for too long.";
    assert_eq!(whys, ["The request took too long.", silent, silent]);
}

/// LY-35
#[test]
fn connections_and_bytes_are_limited() {
    let (port, got) = server(empty(), OK);
    let local = |_: &str| Ok(vec![[127, 0, 0, 1].into()]);
    let limits = ProxyLimits { in_all: 3, at_once: 1, bytes: 400, ..ProxyLimits::default() };
    let proxy = Proxy::resolving(&["db.internal"], limits, local);
    let get = format!("GET http://db.internal:{port}/ HTTP/1.1");
    // The second connection waits until the first has ended.
    let (mut first, opened) = proxy.tunnel(&format!("db.internal:{port}"));
    assert_eq!(opened, "HTTP/1.1 200 Connection established");
    let mut second = proxy.connect();
    let password = format!("Proxy-Authorization: Basic {}", proxy.credentials);
    write!(second, "{get}\r\n{password}\r\n\r\n").unwrap();
    first.write_all(b"x\r\n\r\n").unwrap();
    first.shutdown(Shutdown::Write).unwrap();
    assert_eq!(all(&mut first), OK);
    let answer = all(&mut second);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    got.recv().unwrap();
    got.recv().unwrap();
    // The third has too many bytes, and the fourth is one too many. The host of the third does not
    // answer, because its answer could end the connection before the limit does.
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = host.local_addr().unwrap().port();
    let post = format!("POST http://db.internal:{silent}/ HTTP/1.1");
    proxy.ask(&post, &format!("Content-Length: 1000\r\n\r\n{}", "x".repeat(1000)));
    let arrived = all(&mut host.accept().unwrap().0);
    assert!(arrived.len() < 400, "{arrived}");
    assert_eq!(proxy.ask(&get, "\r\n"), "");
    let connections = proxy.end();
    let whys: Vec<_> = connections.iter().map(|it| it.why.clone().unwrap_or_default()).collect();
    assert_eq!(whys[..2], ["", ""]);
    assert!(whys[2].contains("as many bytes as it may"), "{whys:?}");
    assert_eq!(whys[3..], ["A script makes at most 3 connections."]);
}

/// LY-33: nothing goes on when the script has ended.
#[test]
fn connections_end_with_the_script() {
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let proxy = Proxy::new(&["db.internal"]);
    let (mut tunnel, _) = proxy.tunnel(&format!("db.internal:{port}"));
    let (mut other_side, _) = host.accept().unwrap();
    tunnel.write_all(b"abc").unwrap();
    let mut got = [0; 3];
    other_side.read_exact(&mut got).unwrap();
    let address = proxy.address.clone();
    assert_eq!(proxy.end(), [allowed("db.internal", port, 3, 0)]);
    assert_eq!((all(&mut tunnel), all(&mut other_side)), (String::new(), String::new()));
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}
