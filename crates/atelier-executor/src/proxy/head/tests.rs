use super::*;

fn parse(head: &str) -> Result<Request<'_>, InvalidHead> {
    Request::parse(head.as_bytes())
}

fn sent_on(head: &str) -> String {
    let request = parse(head).unwrap();
    let Way::Plain { path, .. } = request.way else { panic!("a tunnel: {head}") };
    String::from_utf8(request.head_for_host(path)).unwrap()
}

#[test]
fn requests_are_written_anew_for_the_host() {
    for (head, wanted) in [
        (
            "GET http://A.Example./x?y=1 HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\
             Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n\r\n",
            "GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        ),
        (
            "POST http://a.example:8080 HTTP/1.1\r\nHost: a.example:8080\r\nX-Own: 1\r\n\
             Content-Length: 3\r\nConnection: keep-alive, x-own\r\nUpgrade: h2c\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.example:8080\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n",
        ),
        (
            "GET http://[::1]:81?q HTTP/1.0\r\n\r\n",
            "GET /?q HTTP/1.1\r\nHost: [::1]:81\r\nConnection: close\r\n\r\n",
        ),
    ] {
        assert_eq!(sent_on(head), wanted, "{head}");
    }
}

#[test]
fn tunnels_name_a_host_and_a_port() {
    let request = parse("CONNECT A.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    assert_eq!((request.host.as_str(), request.port), ("a.example", 443));
    assert_eq!(request.way, Way::Tunnel);
    let request = parse("CONNECT [2001:DB8::1]:22 HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!((request.host.as_str(), request.port), ("2001:db8::1", 22));
}

/// LY-34: what two programs could read differently is refused.
#[test]
fn ambiguous_requests_are_refused() {
    let get = "GET http://a.example/ HTTP/1.1\r\n";
    let post = "POST http://a.example/ HTTP/1.1\r\n";
    for (first, rest) in [
        // The host.
        (get, "Host: b.example\r\n"),
        (get, "Host: a.example:8080\r\n"),
        (get, "Host: a.example\r\nHost: a.example\r\n"),
        (get, "Host: a.example\r\nhost: b.example\r\n"),
        (get, "Host : b.example\r\n"),
        (get, "Host: a.example b.example\r\n"),
        ("CONNECT a.example:443 HTTP/1.1\r\n", "Host: b.example:443\r\n"),
        ("CONNECT a.example:443 HTTP/1.1\r\n", "Host: a.example:80\r\n"),
        ("CONNECT a.example HTTP/1.1\r\n", ""),
        ("CONNECT a.example:443 HTTP/1.1\r\n", "Content-Length: 5\r\n"),
        ("CONNECT a.example:443@b.example:443 HTTP/1.1\r\n", ""),
        ("GET http://a.example@b.example/ HTTP/1.1\r\n", ""),
        ("GET http://a.example:80:81/ HTTP/1.1\r\n", ""),
        ("GET http://a.example:0/ HTTP/1.1\r\n", ""),
        ("GET http://a.example:65536/ HTTP/1.1\r\n", ""),
        ("GET http://a.example:+80/ HTTP/1.1\r\n", ""),
        ("GET http://a.example%2eb.example/ HTTP/1.1\r\n", ""),
        ("GET http://a.example\\b.example/ HTTP/1.1\r\n", ""),
        ("GET http://a.example\tb/ HTTP/1.1\r\n", ""),
        ("GET http:///x HTTP/1.1\r\n", ""),
        ("GET http://[127.0.0.1]/ HTTP/1.1\r\n", ""),
        ("GET http://[::1%lo]/ HTTP/1.1\r\n", ""),
        ("GET http://a.example/#b HTTP/1.1\r\n", ""),
        ("GET https://a.example/ HTTP/1.1\r\n", ""),
        ("GET ftp://a.example/ HTTP/1.1\r\n", ""),
        ("GET / HTTP/1.1\r\n", "Host: a.example\r\n"),
        ("GET //a.example/ HTTP/1.1\r\n", "Host: a.example\r\n"),
        // The form.
        ("GET  http://a.example/ HTTP/1.1\r\n", ""),
        ("GET http://a.example/ x HTTP/1.1\r\n", ""),
        ("GET http://a.example/ HTTP/2.0\r\n", ""),
        ("GET http://a.example/\r\n", ""),
        ("G(T http://a.example/ HTTP/1.1\r\n", ""),
        (get, "X: 1\nHost: b.example\r\n"),
        (get, "X: 1\rHost: b.example\r\n"),
        (get, "X: 1\0\r\n"),
        (get, "X: 1\r\n folded: 2\r\n"),
        (get, "no colon\r\n"),
        (get, ": empty\r\n"),
        // The length of the body.
        (post, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        (post, "Content-Length: 5\r\nContent-Length: 5\r\n"),
        (post, "Content-Length: 5, 6\r\n"),
        (post, "Content-Length: +5\r\n"),
        (post, "Content-Length: -5\r\n"),
        (post, "Content-Length: 0x5\r\n"),
        (post, "Content-Length:\r\n"),
        (post, "Content-Length: 99999999999999999999999\r\n"),
        (post, "Transfer-Encoding: gzip, chunked\r\n"),
        (post, "Transfer-Encoding: identity\r\n"),
        (post, "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        (post, "Transfer-Encoding: xchunked\r\n"),
        (post, "Transfer-Encoding\t: chunked\r\n"),
        ("POST http://a.example/ HTTP/1.0\r\n", "Transfer-Encoding: chunked\r\n"),
        // Headers that the next program would not get.
        (post, "Content-Length: 5\r\nConnection: close, Content-Length\r\n"),
        (post, "Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n"),
        (get, "Connection: Host\r\n"),
        (get, "Proxy-Authorization: Basic a\r\nProxy-Authorization: Basic b\r\n"),
    ] {
        let head = format!("{first}{rest}\r\n");
        assert!(parse(&head).is_err(), "{head:?}");
    }
    let many = "X: 1\r\n".repeat(MOST_HEADERS + 1);
    assert!(parse(&format!("{get}{many}\r\n")).is_err());
    assert!(parse(get).is_err(), "the head does not end");
}

#[test]
fn answers_end_the_connection() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\nX: 1\r\n\r\n";
    let response = Response::parse(head).unwrap();
    let wanted = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: 1\r\nConnection: close\r\n\r\n";
    assert_eq!((response.status, response.length), (200, Some(5)));
    assert_eq!(String::from_utf8(response.head).unwrap(), wanted);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(Response::parse(chunked).unwrap().length, None);
    let early = Response::parse(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").unwrap();
    assert_eq!(early.head, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    assert!(Response::parse(b"SSH-2.0-x\r\n\r\n").is_none());
}
