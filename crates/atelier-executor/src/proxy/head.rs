//! Reads the heads of requests and responses.
//!
//! A request is refused if two programs could read it differently, because that is how requests are
//! smuggled past a proxy. The head that is passed on is written anew from the parsed request.

use std::net::IpAddr;

/// The most header lines of a request.
const MOST_HEADERS: usize = 100;

/// Why a request is refused.
pub(super) type InvalidHead = &'static str;

/// Headers about the connection between script and proxy, which are not passed on.
const OWN: [&str; 10] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "host",
    "http2-settings",
];
/// Headers that a `Connection` header must not remove from a request.
const NEEDED: [&str; 4] = ["host", "content-length", "transfer-encoding", "proxy-authorization"];

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) way: Way<'a>,
    /// The value of `Proxy-Authorization`.
    pub(super) password: Option<&'a [u8]>,
    pub(super) expects_continue: bool,
    headers: Vec<Header<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way<'a> {
    /// CONNECT: bytes in both directions, which the proxy does not interpret.
    Tunnel,
    /// One request over plain HTTP.
    Plain { path: &'a str, body: Framing },
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

#[derive(Debug, PartialEq, Eq)]
struct Header<'a> {
    name: &'a str,
    value: &'a [u8],
}

impl Header<'_> {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

impl<'a> Request<'a> {
    /// Reads a head that ends with its empty line.
    pub(super) fn parse(head: &'a [u8]) -> Result<Self, InvalidHead> {
        let mut lines = lines(head)?;
        let first =
            std::str::from_utf8(lines.remove(0)).map_err(|_| "The request is not ASCII.")?;
        let headers = headers(&lines)?;
        let mut words = first.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("The first line is not `METHOD target HTTP/1.1`.");
        };
        if !is_token(method.as_bytes()) || !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("The first line has characters that do not belong there.");
        }
        let old = match version {
            "HTTP/1.1" => false,
            "HTTP/1.0" => true,
            _ => return Err("Only HTTP/1.1 and HTTP/1.0 are understood."),
        };
        let framing = framing(&headers, old)?;
        let (host, port, way) = match method {
            "CONNECT" if framing.is_some() => return Err("CONNECT has no body."),
            "CONNECT" => {
                let (host, port) = authority(target)?;
                (host, port.ok_or("CONNECT needs a port.")?, Way::Tunnel)
            }
            _ => {
                let (host, port, path) = absolute(target)?;
                (host, port, Way::Plain { path, body: framing.unwrap_or(Framing::Length(0)) })
            }
        };
        agrees(&headers, &host, port, &way)?;
        for listed in all(&headers, "connection").flat_map(|it| it.split(|b| *b == b',')) {
            let listed = listed.trim_ascii();
            if NEEDED.iter().any(|name| listed.eq_ignore_ascii_case(name.as_bytes())) {
                return Err("The header Connection names a header that is needed.");
            }
        }
        let passwords: Vec<&[u8]> = all(&headers, "proxy-authorization").collect();
        let password = match passwords[..] {
            [] => None,
            [password] => Some(password),
            _ => return Err("The header Proxy-Authorization appears twice."),
        };
        let expects_continue =
            all(&headers, "expect").any(|it| it.eq_ignore_ascii_case(b"100-continue"));
        Ok(Self { method, host, port, way, password, expects_continue, headers })
    }

    /// The head that the host gets, for a request over plain HTTP.
    pub(super) fn head_for_host(&self, path: &str) -> Vec<u8> {
        let listed: Vec<&[u8]> = all(&self.headers, "connection")
            .flat_map(|it| it.split(|b| *b == b','))
            .map(<[u8]>::trim_ascii)
            .collect();
        let host = match (self.host.contains(':'), self.port) {
            (true, 80) => format!("[{}]", self.host),
            (true, port) => format!("[{}]:{port}", self.host),
            (false, 80) => self.host.clone(),
            (false, port) => format!("{}:{port}", self.host),
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head =
            format!("{} {slash}{path} HTTP/1.1\r\nHost: {host}\r\n", self.method).into_bytes();
        for header in &self.headers {
            let name = header.name.as_bytes();
            let ends_here = OWN.iter().any(|own| header.is(own))
                || listed.iter().any(|listed| listed.eq_ignore_ascii_case(name));
            if !ends_here {
                head.extend([name, b": ", header.value, b"\r\n"].concat());
            }
        }
        head.extend(b"Connection: close\r\n\r\n");
        head
    }
}

/// The lines of a head, without the empty one at its end. Only CRLF ends a line.
fn lines(head: &[u8]) -> Result<Vec<&[u8]>, InvalidHead> {
    let head = head.strip_suffix(b"\r\n\r\n").ok_or("The head does not end.")?;
    let mut lines = Vec::new();
    for (index, line) in head.split(|b| *b == b'\n').enumerate() {
        if index > MOST_HEADERS {
            return Err("There are too many headers.");
        }
        lines.push(line);
    }
    let last = lines.len() - 1;
    for (index, line) in lines.iter_mut().enumerate() {
        if index < last {
            *line = line.strip_suffix(b"\r").ok_or("A line does not end with CR LF.")?;
        }
        if line.iter().any(|b| (*b < 0x20 && *b != b'\t') || *b == 0x7f) {
            return Err("The head has control characters.");
        }
    }
    Ok(lines)
}

fn headers<'a>(lines: &[&'a [u8]]) -> Result<Vec<Header<'a>>, InvalidHead> {
    let header = |line: &&'a [u8]| {
        let colon = line.iter().position(|b| *b == b':').ok_or("A header has no colon.")?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        match std::str::from_utf8(name) {
            Ok(text) if is_token(name) => Ok(Header { name: text, value }),
            _ => Err("A header's name has characters that do not belong there."),
        }
    };
    lines.iter().map(header).collect()
}

fn all<'a, 'h>(headers: &'h [Header<'a>], name: &'h str) -> impl Iterator<Item = &'a [u8]> + 'h {
    headers.iter().filter(move |header| header.is(name)).map(|header| header.value)
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// How long the body is; `None` if no header says so.
fn framing(headers: &[Header<'_>], old: bool) -> Result<Option<Framing>, InvalidHead> {
    let lengths: Vec<&[u8]> = all(headers, "content-length").collect();
    let codings: Vec<&[u8]> = all(headers, "transfer-encoding").collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(None),
        ([length], []) => {
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(length).ok().filter(|_| digits);
            let length = length.and_then(|text| text.parse().ok());
            length.map(|n| Some(Framing::Length(n))).ok_or("Content-Length is not a number.")
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !old => {
            Ok(Some(Framing::Chunked))
        }
        ([], _) => Err("Only `Transfer-Encoding: chunked` is understood."),
        _ => Err("The length of the body is given twice."),
    }
}

/// `host:port` or `[address]:port`, the host in lower case.
fn authority(text: &str) -> Result<(String, Option<u16>), InvalidHead> {
    const WRONG: InvalidHead = "The host is not written as host:port.";
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(WRONG)?;
            let address: IpAddr = address.parse().map_err(|_| WRONG)?;
            if !address.is_ipv6() {
                return Err(WRONG);
            }
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or(WRONG)?),
            };
            (address.to_string(), port)
        }
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            let host = host.strip_suffix('.').unwrap_or(host);
            let known = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
            if host.is_empty() || host.len() > 253 || !host.bytes().all(known) {
                return Err(WRONG);
            }
            (host.to_ascii_lowercase(), port)
        }
    };
    let port = port.map(|port| {
        let digits = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
        port.parse::<u16>().ok().filter(|port| digits && *port != 0).ok_or(WRONG)
    });
    Ok((host, port.transpose()?))
}

/// The host, port and path of `http://host:port/path`.
fn absolute(target: &str) -> Result<(String, u16, &str), InvalidHead> {
    let scheme = target.get(..7).filter(|it| it.eq_ignore_ascii_case("http://"));
    let rest = scheme.map(|_| &target[7..]).ok_or(
        "A request to this proxy names a whole http:// address; other schemes need CONNECT.",
    )?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, port) = authority(&rest[..end])?;
    let path = &rest[end..];
    match path.contains('#') {
        true => Err("An address in a request has no fragment."),
        false => Ok((host, port.unwrap_or(80), path)),
    }
}

/// Checks that the header `Host` names the host that the request goes to. A server with several
/// hosts at one address chooses by this header.
fn agrees(headers: &[Header<'_>], host: &str, port: u16, way: &Way<'_>) -> Result<(), InvalidHead> {
    let mut named = all(headers, "host");
    let Some(value) = named.next() else { return Ok(()) };
    if named.next().is_some() {
        return Err("The header Host appears twice.");
    }
    let value = std::str::from_utf8(value).map_err(|_| "The header Host is not ASCII.")?;
    let (same, its_port) = authority(value)?;
    let usual = match way {
        // A client that leaves the port out means the port of the tunnel.
        Way::Tunnel => port,
        Way::Plain { .. } => 80,
    };
    match same == host && its_port.unwrap_or(usual) == port {
        true => Ok(()),
        false => Err("The header Host names another host than the request."),
    }
}

/// The head of a response: its status, and the head that the script gets.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) head: Vec<u8>,
    /// How long the body says it is, if it says so plainly.
    pub(super) length: Option<u64>,
}

impl Response {
    /// Reads the head of a response. The answer of a host can only harm the script that asked for
    /// it, so this looks only for the headers that the proxy has to change.
    pub(super) fn parse(head: &[u8]) -> Option<Self> {
        let mut lines =
            head.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = lines.next()?;
        let status = first.strip_prefix(b"HTTP/1.")?.get(2..5)?;
        let status = std::str::from_utf8(status).ok()?.parse().ok()?;
        let mut out = [first, b"\r\n"].concat();
        let (mut lengths, mut coded) = (Vec::new(), false);
        for line in lines.filter(|line| !line.is_empty()) {
            let name = line.split(|b| *b == b':').next()?.trim_ascii().to_ascii_lowercase();
            match &name[..] {
                b"connection" | b"proxy-connection" | b"keep-alive" | b"proxy-authenticate" => {
                    continue;
                }
                b"content-length" => lengths.push(line.get(name.len() + 1..)?.trim_ascii()),
                b"transfer-encoding" => coded = true,
                _ => {}
            }
            out.extend([line, b"\r\n"].concat());
        }
        if status >= 200 {
            out.extend(b"Connection: close\r\n");
        }
        out.extend(b"\r\n");
        let length = match (&lengths[..], coded) {
            ([length], false) => std::str::from_utf8(length).ok()?.parse().ok(),
            _ => None,
        };
        Some(Self { status, head: out, length })
    }
}

#[cfg(test)]
mod tests;
