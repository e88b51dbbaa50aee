//! Serves one connection of a script: a tunnel, or one request over plain HTTP.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::body::pass_body;
use super::destination::Destinations;
use super::head::{Framing, Request, Response, Way};
use super::record::Connection;
use super::relay::{Direction, Input, Meter, close, first_failure, tunnel, write};
use super::serving::ConnectionSlot;

const MOST_HEAD: usize = 32 << 10;
const MOST_RESPONSE_HEAD: usize = 128 << 10;

/// Serves a connection, and records it.
pub(super) fn serve(slot: &ConnectionSlot, script: &TcpStream) {
    let shared = &slot.shared;
    let mut input = Input::new(script);
    let head = match input.until(b"\r\n\r\n", MOST_HEAD, shared.limits.head) {
        Ok(Some(head)) => head,
        Ok(None) => return,
        Err(_) if slot.script_has_ended() => return,
        Err(error) => {
            let (status, why) = match error.kind() {
                io::ErrorKind::TimedOut => ("408 Request Timeout", "The request took too long."),
                io::ErrorKind::FileTooLarge => {
                    ("431 Request Header Fields Too Large", "The request's head is too long.")
                }
                _ => ("400 Bad Request", "The request's head does not end."),
            };
            return refuse(slot, script, status, &Connection::refused("", 0, why.to_owned()));
        }
    };
    let request = match Request::parse(&head) {
        Ok(request) => request,
        Err(why) => {
            let refused = Connection::refused("", 0, why.to_owned());
            return refuse(slot, script, "400 Bad Request", &refused);
        }
    };
    let (host, port) = (request.host.as_str(), request.port);
    if !knows_password(&shared.credentials, request.password) {
        let why = "Only the script that was approved may use this proxy: its password is in \
                   HTTP_PROXY.";
        let refused = Connection::refused(host, port, why.to_owned());
        return refuse(slot, script, "407 Proxy Authentication Required", &refused);
    }
    let checked = match shared.destinations.check(host, port) {
        Ok(checked) => checked,
        Err(why) => {
            let refused = Connection::refused(host, port, why);
            return refuse(slot, script, "403 Forbidden", &refused);
        }
    };
    let meter = Meter::new(shared);
    let done = connect_and_pass(slot, &request, input, script, &checked, &meter);
    let why = done.err().and_then(|error| in_words(&error, slot.script_has_ended()));
    shared.record.write(&Connection {
        host: request.host.clone(),
        port,
        allowed: true,
        sent: meter.sent.load(Ordering::Relaxed),
        received: meter.received.load(Ordering::Relaxed),
        why,
        count: None,
    });
}

fn connect_and_pass(
    slot: &ConnectionSlot,
    request: &Request<'_>,
    mut input: Input<'_>,
    script: &TcpStream,
    checked: &[std::net::SocketAddr],
    meter: &Meter<'_>,
) -> io::Result<()> {
    let limits = &slot.shared.limits;
    let connected = Destinations::connect(checked, limits.connect).and_then(|host| {
        slot.add(&host)?;
        Ok(host)
    });
    let host = match connected {
        Ok(host) => host,
        Err(error) => {
            let words = format!("{} does not answer: {error}", request.host);
            answer(script, "502 Bad Gateway", &words);
            return Err(error);
        }
    };
    // Small messages, such as those of a handshake, must not wait for more.
    host.set_nodelay(true)?;
    script.set_nodelay(true)?;
    let (path, body) = match request.way {
        Way::Tunnel => {
            (&mut &*script).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
            return tunnel(input, &host, meter);
        }
        Way::Plain { path, body } => (path, body),
    };
    write(&host, &request.head_for_host(path), Direction::Sent, meter)?;
    if request.expects_continue && body != Framing::Length(0) {
        (&mut &*script).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let is_head = request.method == "HEAD";
    std::thread::scope(|scope| {
        let down = scope.spawn(|| {
            let passed = pass_response(&host, script, is_head, limits.idle, meter);
            // There is one request for each connection, so its answer ends it.
            script.shutdown(Shutdown::Write).ok();
            host.shutdown(Shutdown::Both).ok();
            script.shutdown(Shutdown::Read).ok();
            passed
        });
        let up = pass_body(&mut input, &host, body, limits.idle, meter);
        if up.is_err() {
            close([&host, script]);
        }
        let down = down.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        // A host may answer before it has read the whole request.
        match &down {
            Ok(()) => Ok(()),
            Err(_) => first_failure(up, down),
        }
    })
}

/// Passes on the answer of a host.
fn pass_response(
    host: &TcpStream,
    script: &TcpStream,
    is_head: bool,
    time: Duration,
    meter: &Meter<'_>,
) -> io::Result<()> {
    let mut input = Input::new(host);
    let response = loop {
        let head = input.until(b"\r\n\r\n", MOST_RESPONSE_HEAD, time);
        let response = match head.map(|head| head.as_deref().and_then(Response::parse)) {
            Ok(Some(response)) if response.status != 101 => response,
            Ok(_) => {
                answer(script, "502 Bad Gateway", "The host's answer is not HTTP.");
                return Err(io::ErrorKind::InvalidData.into());
            }
            Err(error) => {
                answer(script, "502 Bad Gateway", "The host did not answer.");
                return Err(error);
            }
        };
        write(script, &response.head, Direction::Received, meter)?;
        // An answer with a number below 200 is followed by the real one.
        if response.status >= 200 {
            break response;
        }
    };
    let length = match response.status {
        204 | 304 => 0,
        _ if is_head => 0,
        _ => response.length.unwrap_or(u64::MAX),
    };
    input.copy(script, length, Direction::Received, meter).map(drop)
}

/// Compares in constant time, so that the time does not reveal where the difference is.
fn knows_password(credentials: &str, given: Option<&[u8]>) -> bool {
    let given = given.and_then(|given| {
        let (scheme, value) = given.split_at_checked(6)?;
        scheme.eq_ignore_ascii_case(b"basic ").then(|| value.trim_ascii())
    });
    given.is_some_and(|given| {
        given.len() == credentials.len()
            && given.iter().zip(credentials.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    })
}

fn refuse(slot: &ConnectionSlot, script: &TcpStream, status: &str, refused: &Connection) {
    slot.shared.record.write(refused);
    let why = refused.why.as_deref().unwrap_or_default();
    let hosts = slot.shared.destinations.in_words();
    answer(script, status, &format!("Atelier: {why} This script may connect to: {hosts}."));
}

/// Answers in slot of a host, and ends the connection. It then reads for a moment what the script
/// still sends, because otherwise the script might not see the answer.
fn answer(mut script: &TcpStream, status: &str, words: &str) {
    let ask = match status.starts_with("407") {
        true => "Proxy-Authenticate: Basic realm=\"atelier\"\r\n",
        false => "",
    };
    let length = words.len() + 1;
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: \
         {length}\r\nConnection: close\r\n{ask}\r\n{words}\n"
    );
    let told = script.set_write_timeout(Some(Duration::from_secs(1)));
    if told.and_then(|()| script.write_all(text.as_bytes())).is_err() {
        return;
    }
    script.shutdown(Shutdown::Write).ok();
    if script.set_read_timeout(Some(Duration::from_millis(200))).is_err() {
        return;
    }
    let mut rest = [0; 4 << 10];
    for _ in 0..256 {
        if !matches!(script.read(&mut rest), Ok(1..)) {
            return;
        }
    }
}

/// Why a connection ended early. If it ended with the script, no reason is given.
fn in_words(error: &io::Error, with_script: bool) -> Option<String> {
    let words = match error.kind() {
        io::ErrorKind::QuotaExceeded => {
            "It was ended because the script has moved as many bytes as it may.".to_owned()
        }
        io::ErrorKind::TimedOut => "It was ended because it was silent for too long.".to_owned(),
        io::ErrorKind::InvalidData => {
            "It was ended because the script did not send plain HTTP.".to_owned()
        }
        _ if with_script => return None,
        _ => format!("It failed: {error}."),
    };
    Some(words)
}
