//! The sign-in of a browser: a cookie that no script reads, and a key that no other page has.

use crate::{build, start};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    Events, Server, User, answer, http,
};
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use rstest::rstest;
use serde_json::{Value, json};

/// What a browser has after it has signed in.
#[derive(Clone)]
pub(crate) struct Browser {
    url: String,
    cookie: String,
    key: String,
}

/// A request of a page of this server, which has no session yet.
pub(crate) fn page(server: &Server, method: Method, path: &str) -> RequestBuilder {
    let request = http().request(method, format!("{}{path}", server.url));
    request.header("origin", &server.url).header("user-agent", "Mozilla/5.0 (X11; Linux)")
}

pub(crate) async fn sign_in(server: &Server, body: Value) -> Answer {
    answer(page(server, Method::POST, "/auth/session").json(&body)).await
}

fn set_cookie(headers: &HeaderMap) -> &str {
    headers["set-cookie"].to_str().unwrap()
}

impl Browser {
    pub(crate) fn from(server: &Server, answer: Answer) -> Self {
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = set_cookie(&answer.headers).split(';').next().unwrap().to_owned();
        let key = answer.body["key"].as_str().unwrap().to_owned();
        Self { url: server.url.clone(), cookie, key }
    }

    pub(crate) async fn of(server: &Server, user: &User) -> Self {
        Self::from(server, sign_in(server, json!({"token": user.token})).await)
    }

    pub(crate) fn at(&self, server: &Server) -> Self {
        Self { url: server.url.clone(), ..self.clone() }
    }

    /// A request as a browser sends it for a page of this server.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = http().request(method.clone(), format!("{}{path}", self.url));
        let request = request.header("cookie", &self.cookie).header("atelier-session", &self.key);
        let request = request.header("user-agent", "Mozilla/5.0 (X11; Linux)");
        if method == Method::GET { request } else { request.header("origin", &self.url) }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    /// The claims of the token in the cookie.
    pub(crate) fn claims(&self, server: &Server) -> Value {
        server.bearer(self.cookie.split_once('=').unwrap().1).claims()
    }

    pub(crate) async fn is_signed_in(&self) -> bool {
        let answer = self.get("/auth/me").await;
        if answer.status != 200 {
            assert_eq!(answer.problem(), (401, "unauthorized"));
        }
        answer.status == 200
    }

    async fn events(&self, path: &str) -> Events {
        let response = self.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let mut stream = Events::new(response);
        assert_eq!(stream.comment().await, "hello");
        stream
    }
}

fn second(cookie: &str) -> Option<i64> {
    let (_, rest) = cookie.split_once("Max-Age=")?;
    rest.split(';').next()?.parse().ok()
}

/// SI-01: on one node after the other, with restarts in between, until the user signs out.
#[rstest]
#[tokio::test]
async fn browser_stays_signed_in_until_it_signs_out(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, other) = (server.user("ann"), server.user("ann"));
    let answer_of = sign_in(&server, json!({"token": ann.token})).await;
    let cookie = set_cookie(&answer_of.headers).to_owned();
    assert!(cookie.starts_with("atelier-"), "{cookie}");
    assert!(cookie.contains("; Path=/; HttpOnly; SameSite=Strict; Max-Age="), "{cookie}");
    assert!(!cookie.contains("Secure") && !cookie.contains("Domain"), "{cookie}");
    assert!(answer_of.body.get("token").is_none(), "a script gets no token");
    let browser = Browser::from(&server, answer_of);
    assert!(!browser.cookie.contains(&browser.key), "the cookie does not tell the key");

    let me = browser.get("/auth/me").await.expect(200);
    assert_eq!(me["user_id"], ann.get("/auth/me").await.expect(200)["user_id"]);
    let created = browser.request(Method::POST, "/my/projects").json(&json!({"name": "shop"}));
    let project = answer(created).await.expect(201)["id"].as_str().unwrap().to_owned();
    let mut streams = vec![
        browser.events("/my/events").await,
        browser.events(&format!("/my/projects/{project}/events")).await,
    ];
    let listed = browser.get("/auth/sessions").await.expect(200);
    let current = listed["sessions"].as_array().unwrap().iter().find(|it| it["current"] == true);
    assert_eq!(current.unwrap()["kind"], "browser");

    let renewed = answer(browser.request(Method::PUT, "/auth/session")).await;
    assert_eq!(renewed.body["key"], browser.key, "other tabs go on with the same key");
    let fresh = Browser::from(&server, renewed);
    assert_ne!(fresh.cookie, browser.cookie);
    assert!(browser.is_signed_in().await && fresh.is_signed_in().await);

    let nodes = match backend {
        Sqlite => vec![],
        Postgres => vec![server.second_node().await],
    };
    for node in &nodes {
        assert!(fresh.at(node).is_signed_in().await);
    }
    let gone = answer(fresh.request(Method::DELETE, "/auth/session")).await;
    assert_eq!((gone.status.as_u16(), second(set_cookie(&gone.headers))), (204, Some(0)));
    for stream in &mut streams {
        while stream.try_next().await.is_some() {}
    }
    for node in nodes.iter().chain([&server]) {
        assert!(!browser.at(node).is_signed_in().await && !fresh.at(node).is_signed_in().await);
    }
    assert!(other.get("/auth/me").await.status == 200, "another session goes on");
    let server = server.restart().await;
    assert!(!fresh.at(&server).is_signed_in().await);
}

/// SI-01
#[rstest]
#[tokio::test]
async fn browser_stays_signed_in_over_a_restart_until_signed_out_everywhere(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let (ann, phone) = (server.user("ann"), server.user("ann"));
    let (browser, phone) = (Browser::of(&server, &ann).await, Browser::of(&server, &phone).await);
    let bob = Browser::of(&server, &server.user("bob")).await;
    let server = server.restart().await;
    let [browser, phone, bob] = [browser, phone, bob].map(|it| it.at(&server));
    assert!(browser.is_signed_in().await && phone.is_signed_in().await);
    let everywhere = browser.request(Method::POST, "/auth/sign-out-everywhere").json(&json!({}));
    assert_eq!(answer(everywhere).await.status, 204);
    assert!(!browser.is_signed_in().await && !phone.is_signed_in().await);
    assert!(bob.is_signed_in().await);
}

/// SI-02: a cookie is sent to every port of a host, and set by every port of it.
#[tokio::test]
async fn cookie_alone_and_key_alone_are_worth_nothing() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let (browser, mallory) =
        (Browser::of(&server, &ann).await, Browser::of(&server, &server.user("mallory")).await);
    let get = || http().get(format!("{}/auth/me", server.url));
    let token = browser.cookie.split_once('=').unwrap().1;
    let name = browser.cookie.split_once('=').unwrap().0;
    let refused = [
        get().header("cookie", &browser.cookie),
        get().header("atelier-session", &browser.key),
        get().header("cookie", &browser.cookie).header("atelier-session", &mallory.key),
        get().header("cookie", &browser.cookie).header("atelier-session", ""),
        // The token of the cookie is not one for programs, and the other way round.
        get().bearer_auth(token),
        get().header("cookie", format!("{name}={}", ann.token)).header("atelier-session", "x"),
        // A cookie that somebody set for another server.
        get().header("cookie", format!("other={token}")).header("atelier-session", &browser.key),
        // A token that is not valid is not replaced by the cookie.
        browser.request(Method::GET, "/auth/me").bearer_auth("x.y.z"),
    ];
    for request in refused {
        assert_eq!(answer(request).await.problem(), (401, "unauthorized"));
    }
    // Mallory's cookie, which another port has set, neither signs Ann in as Mallory nor out.
    for cookies in [
        format!("{}; {}", mallory.cookie, browser.cookie),
        format!("{}; a=b; {}", browser.cookie, mallory.cookie),
    ] {
        let both = get().header("cookie", cookies).header("atelier-session", &browser.key);
        let me = answer(both).await.expect(200);
        assert_eq!(me["user_id"], ann.claims()["sub"]);
    }
    // A script in the page cannot turn the cookie into a token that it could send elsewhere.
    let refresh = answer(browser.request(Method::POST, "/auth/refresh").json(&json!({}))).await;
    assert_eq!(refresh.problem(), (403, "forbidden"));
}

/// SI-02
#[tokio::test]
async fn pages_of_other_origins_cannot_use_the_sign_in_of_a_browser() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let browser = Browser::of(&server, &ann).await;
    let port = server.url.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    let foreign = [
        ("origin", "https://evil.example".to_owned()),
        ("origin", format!("http://127.0.0.1:{}", port - 1)),
        ("origin", format!("http://localhost:{port}")),
        ("origin", format!("http://127.0.0.1:{port}.evil.example")),
        ("origin", "null".to_owned()),
        ("sec-fetch-site", "same-site".to_owned()),
        ("sec-fetch-site", "cross-site".to_owned()),
        ("sec-fetch-site", "none".to_owned()),
        // A browser sends neither of the two with a change only if it is very old.
        ("accept", "*/*".to_owned()),
    ];
    let send = |method: Method, path: &str, (name, value): &(&str, String)| {
        let request = http().request(method, format!("{}{path}", server.url));
        let request = request.header("cookie", &browser.cookie).header(*name, value);
        request.header("atelier-session", &browser.key)
    };
    for header in &foreign {
        let create = send(Method::POST, "/my/projects", header).json(&json!({"name": "x"}));
        assert_eq!(answer(create).await.problem(), (403, "forbidden"), "{header:?}");
        let sign_out = send(Method::DELETE, "/auth/session", header);
        assert_eq!(answer(sign_out).await.problem(), (403, "forbidden"), "{header:?}");
        if header.0 != "accept" {
            let read = send(Method::GET, "/my/projects", header);
            assert_eq!(answer(read).await.problem(), (403, "forbidden"), "{header:?}");
        }
        // Nobody signs this browser in as somebody else.
        let login = http().post(format!("{}/auth/session", server.url));
        let login = login.header(header.0, &header.1).json(&json!({"token": ann.token}));
        let login = answer(login).await;
        assert_eq!(login.problem(), (403, "forbidden"), "{header:?}");
        assert!(!login.headers.contains_key("set-cookie"));
    }
    // Nor with a form, for which a browser asks no permission.
    let form = page(&server, Method::POST, "/auth/session").header("content-type", "text/plain");
    let form = answer(form.body(json!({"token": ann.token}).to_string())).await;
    assert_eq!(form.problem(), (415, "unsupported_media_type"));
    let own = send(Method::POST, "/my/projects", &("sec-fetch-site", "same-origin".into()));
    assert_eq!(answer(own.json(&json!({"name": "mine"}))).await.status, 201);
    assert_eq!(ann.get("/my/projects").await.expect(200)["total"], 1);
}

/// SI-02: nobody knows the key of a session before it begins, and no session is left behind.
#[rstest]
#[tokio::test]
async fn each_sign_in_is_a_new_session_and_ends_the_earlier_one(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let first = Browser::of(&server, &ann).await;
    let again = Browser::of(&server, &ann).await;
    assert!(first.key != again.key && first.cookie != again.cookie);
    assert!(again.is_signed_in().await, "the same token may sign in several browsers");

    let body = json!({"token": bob.token});
    let switched = answer(first.request(Method::POST, "/auth/session").json(&body)).await;
    let switched = Browser::from(&server, switched);
    assert_eq!(switched.get("/auth/me").await.expect(200)["user_id"], bob.claims()["sub"]);
    assert!(!first.is_signed_in().await);
    // A sign-in that fails changes nothing.
    let wrong = json!({"code": "guess"});
    let wrong = answer(switched.request(Method::POST, "/auth/session").json(&wrong)).await;
    assert_eq!(wrong.problem(), (401, "unauthorized"));
    assert!(switched.is_signed_in().await && !wrong.headers.contains_key("set-cookie"));
    // Signing in again with the token of the session goes on with it.
    let same = answer(switched.request(Method::POST, "/auth/session").json(&body)).await;
    assert!(Browser::from(&server, same).is_signed_in().await);
}

#[tokio::test]
async fn cookie_is_secure_and_for_this_host_only_with_tls() {
    let server = build(Sqlite).with("SERVER__PUBLIC_URL", "https://atelier.example/").start().await;
    let token = json!({"token": server.user("ann").token});
    // A proxy with TLS forwards the request under another name.
    let request = http().post(format!("{}/auth/session", server.url));
    let answer_of = answer(request.header("origin", "https://atelier.example").json(&token)).await;
    let cookie = set_cookie(&answer_of.headers).to_owned();
    assert!(cookie.starts_with("__Host-atelier-") && cookie.ends_with("; Secure"), "{cookie}");
    let mut browser = Browser::from(&server, answer_of);
    assert!(browser.is_signed_in().await);
    let put = |browser: &Browser, origin: &str| {
        let request = http().put(format!("{}/auth/session", browser.url));
        let request = request.header("cookie", &browser.cookie).header("origin", origin);
        request.header("atelier-session", &browser.key)
    };
    let renewed = answer(put(&browser, "https://atelier.example")).await;
    assert!(set_cookie(&renewed.headers).starts_with("__Host-atelier-"));
    browser = Browser::from(&server, renewed);
    for origin in ["http://atelier.example", "https://atelier.example:8443"] {
        assert_eq!(answer(put(&browser, origin)).await.status, 403, "{origin}");
    }
}

#[tokio::test]
async fn session_of_a_browser_lasts_as_long_as_what_began_it() {
    let server = build(Sqlite).with("AUTH__BROWSER_TTL", "10days").start().await;
    let day = 24 * 60 * 60;
    let short = server.user_with("ann", &["--ttl", "1h"]);
    let signed_in = sign_in(&server, json!({"token": short.token})).await;
    let seconds = second(set_cookie(&signed_in.headers)).unwrap();
    assert!((3500..=3600).contains(&seconds), "{seconds}");
    let browser = Browser::from(&server, signed_in);
    let renewed = answer(browser.request(Method::PUT, "/auth/session")).await;
    assert!(second(set_cookie(&renewed.headers)).unwrap() <= 3600);

    let (_, code) = server
        .greeting()
        .split_once("#sign-in=")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let code = code.split_whitespace().next().unwrap();
    let owner = sign_in(&server, json!({"code": code})).await;
    let seconds = second(set_cookie(&owner.headers)).unwrap();
    assert!((10 * day - 100..=10 * day).contains(&seconds), "{seconds}");
    assert_eq!(sign_in(&server, json!({"code": code})).await.problem(), (401, "unauthorized"));
    let owner = Browser::from(&server, owner);
    assert_eq!(owner.get("/auth/me").await.expect(200)["role"], "admin");

    // A program's token is for no browser.
    let project = owner.get("/my/projects").await.expect(200)["projects"][0]["id"].clone();
    let program = ["--role", "client", "--project", project.as_str().unwrap()];
    let program = server.user_with("owner", &program);
    let refused = sign_in(&server, json!({"token": program.token})).await;
    assert_eq!(refused.problem(), (403, "forbidden"));
    let ended = server.user("ann");
    assert_eq!(ended.post("/auth/revoke", json!({"token": ended.token})).await.status, 204);
    let refused = sign_in(&server, json!({"token": ended.token})).await;
    assert_eq!(refused.problem(), (401, "unauthorized"));
    // Ending the session of the token ends the browser's, too.
    assert_eq!(short.post("/auth/revoke", json!({"token": short.token})).await.status, 204);
    assert!(!browser.is_signed_in().await);
}
