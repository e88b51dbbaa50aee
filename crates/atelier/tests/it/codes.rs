//! One-time codes: links that sign another browser in, and commands that connect a machine.

use crate::{
    browser::{Browser, page, sign_in},
    build,
    connect::client::{ConnectProcess, Machine},
    start,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, User, answer,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

/// The code of the first link in an answer.
pub(crate) fn code_of(link: &Value) -> String {
    let url = link["links"][0]["url"].as_str().unwrap();
    url.split_once("/#sign-in=").unwrap().1.to_owned()
}

async fn new_link(user: &User) -> Value {
    user.post("/auth/links", json!({})).await.expect(200)
}

async fn is_refused(server: &Server, code: &str) -> bool {
    let refused = sign_in(server, json!({"code": code})).await;
    refused.status == 401 && refused.problem() == (401, "unauthorized")
}

/// SI-03: it works once, on any node, and is worth as much as the session that made it.
#[rstest]
#[tokio::test]
async fn link_signs_another_browser_in_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let node = match backend {
        Sqlite => None,
        Postgres => Some(server.second_node().await),
    };
    let ann = server.user("ann");
    let laptop = Browser::of(&server, &ann).await;
    let made = answer(laptop.request(Method::POST, "/auth/links").json(&json!({}))).await;
    let made = made.expect(200);
    let (link, code) = (&made["links"][0], code_of(&made));
    assert_eq!(link["url"], format!("{}/#sign-in={code}", server.url));
    let rows: Vec<&str> =
        link["qr"].as_array().unwrap().iter().map(|row| row.as_str().unwrap()).collect();
    assert!(rows.len() >= 21 && rows.iter().all(|row| row.len() == rows.len()), "{rows:?}");
    assert!(
        rows[0].starts_with("1111111") && rows.concat().bytes().all(|b| matches!(b, b'0' | b'1'))
    );

    let phone = sign_in(node.as_ref().unwrap_or(&server), json!({"code": code})).await;
    let phone = Browser::from(&server, phone);
    let me = phone.get("/auth/me").await.expect(200);
    assert_eq!((&me["user_id"], &me["role"]), (&ann.claims()["sub"], &json!("user")));
    assert!(is_refused(&server, &code).await, "it works once");
    assert!(!server.log().contains(&code));

    // Each browser signs out for itself. No chain of links outlives the first sign-in by more than
    // a single session could.
    let (first, second) = (laptop.claims(&server), phone.claims(&server));
    assert_ne!(first["family"], second["family"]);
    assert_eq!(first["auth_time"], second["auth_time"]);
    assert_eq!(answer(phone.request(Method::DELETE, "/auth/session")).await.status, 204);
    assert!(laptop.is_signed_in().await && !phone.is_signed_in().await);
}

/// SI-03
#[rstest]
#[tokio::test]
async fn link_ends_with_the_session_that_made_it(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, other) = (server.user("ann"), server.user("ann"));
    // A newer link replaces the one before, and links of others stay.
    let bobs = code_of(&new_link(&server.user("bob")).await);
    let [older, newer] = [new_link(&ann).await, new_link(&ann).await].map(|link| code_of(&link));
    assert!(is_refused(&server, &older).await);
    assert_eq!(ann.post("/auth/revoke", json!({"token": ann.token})).await.status, 204);
    assert!(is_refused(&server, &newer).await);
    let last = code_of(&new_link(&other).await);
    assert_eq!(other.post("/auth/sign-out-everywhere", json!({})).await.status, 204);
    assert!(is_refused(&server, &last).await);
    Browser::from(&server, sign_in(&server, json!({"code": bobs})).await);

    // Programs make no links, and no page of another origin does.
    let cleo = server.user("cleo");
    let project = cleo.project("shop").await;
    let program = server.program("cleo", "client", &project);
    for path in ["/auth/links".to_owned(), format!("{project}/machine-codes")] {
        assert_eq!(program.post(&path, json!({})).await.problem(), (403, "forbidden"));
    }
}

/// SI-03: in the terminal, with the addresses under which others reach the server.
#[tokio::test]
async fn command_prints_a_link_for_another_machine() {
    let server = build(Sqlite).with("LISTEN", "0.0.0.0:0").start().await;
    let ann = server.user("ann");
    let run = |more: &[&str]| {
        let arguments = [&["link", "--server", &server.url, "--token", &ann.token], more].concat();
        let output = server.command(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Only people get a picture; a program gets a link on each line.
    let printed = run(&[]);
    for line in printed.lines() {
        assert!(line.starts_with("http://") && line.contains("/#sign-in="), "{printed}");
        assert!(!line.contains("0.0.0.0"), "{printed}");
    }
    let url = printed.lines().next().unwrap();
    assert_eq!(server.http.get(url).send().await.unwrap().status(), 200);
    let link: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let (address, code) =
        link["links"][0]["url"].as_str().unwrap().split_once("/#sign-in=").unwrap();
    assert!(link["links"][0]["qr"].as_array().unwrap().len() >= 21);
    // A browser that has opened this address is signed in there.
    let request = server.http.post(format!("{address}/auth/session")).header("origin", address);
    assert_eq!(answer(request.json(&json!({"code": code}))).await.status, 200);
    let proxied =
        build(Sqlite).with("SERVER__PUBLIC_URL", "https://atelier.example/").start().await;
    let link = new_link(&proxied.user("ann")).await;
    assert_eq!(link["links"].as_array().unwrap().len(), 1);
    let url = link["links"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("https://atelier.example/#sign-in="), "{url}");
}

async fn machine_code(user: &User, project: &str) -> String {
    let made = user.post(&format!("{project}/machine-codes"), json!({})).await.expect(200);
    made["code"].as_str().unwrap().to_owned()
}

/// SI-04: the code is for one machine of one project, and for nothing else.
#[rstest]
#[tokio::test]
async fn code_gives_a_machine_its_token_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let (shop, other) = (ann.project("shop").await, ann.project("other").await);
    let refused = bob.post(&format!("{shop}/machine-codes"), json!({})).await;
    assert_eq!(refused.problem(), (404, "not_found"));
    let code = machine_code(&ann, &shop).await;
    let others = machine_code(&ann, &other).await;
    // It signs nobody in, and a link connects no machine; neither is used up by trying.
    let exchange = async |code: &str| {
        let body = json!({"code": code});
        answer(page(&server, Method::POST, "/auth/machine").json(&body)).await
    };
    assert!(is_refused(&server, &code).await);
    let link = code_of(&new_link(&ann).await);
    assert_eq!(exchange(&link).await.problem(), (401, "unauthorized"));
    let got = exchange(&code).await.expect(200);
    assert_eq!(got["project_name"], "shop");
    let machine = server.bearer(got["token"]["token"].as_str().unwrap());
    let me = machine.get("/auth/me").await.expect(200);
    assert_eq!((&me["role"], &me["project_id"]), (&json!("client"), &got["project_id"]));
    assert_eq!(machine.get(&other).await.problem(), (404, "not_found"));
    assert_eq!(exchange(&code).await.problem(), (401, "unauthorized"));
    Browser::from(&server, sign_in(&server, json!({"code": link})).await);

    // The machine is in the list of sessions, and ends there. Signing out ends what waits.
    let sessions = ann.get("/auth/sessions").await.expect(200);
    let sessions = sessions["sessions"].as_array().unwrap();
    let listed = sessions.iter().find(|it| it["kind"] == "client").unwrap();
    let path = format!("/auth/sessions/{}", listed["id"].as_str().unwrap());
    assert_eq!(ann.delete(&path).await.status, 204);
    assert_eq!(machine.get("/auth/me").await.problem(), (401, "unauthorized"));
    assert_eq!(ann.post("/auth/revoke", json!({"token": ann.token})).await.status, 204);
    assert_eq!(exchange(&others).await.problem(), (401, "unauthorized"));
}

/// SI-04: the command that the console shows, and the next start without a code.
#[tokio::test]
async fn machine_connects_by_a_code_and_again_without_one() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let shop = ann.project("shop").await;
    let code = machine_code(&ann, &shop).await;
    let machine = Machine::new();
    let root = machine.root().display().to_string();
    let connect = |more: &[&str]| {
        ConnectProcess::start(
            machine.program(&[&["connect", &root, "--server", &server.url], more].concat()),
        )
    };
    // An unusable folder does not use the code up.
    let nowhere = ["connect", "/nowhere", "--server", &server.url, "--code", &code];
    let mut nowhere = ConnectProcess::start(machine.program(&nowhere));
    nowhere.ended().await;
    let mut first = connect(&["--code", &code]);
    first.prints("  connected\n").await;
    assert!(first.output().contains("\"shop\""), "{}", first.output());
    first.kill();
    let mut again = connect(&["--project", "shop"]);
    again.prints("  connected\n").await;
    again.kill();
    let mut used = connect(&["--code", &code]);
    used.prints("the code is unknown, used or expired").await;
    used.ended().await;
    let stored = machine.home().join(".config/atelier/credentials.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&stored.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

/// SI-04
#[tokio::test]
async fn wrong_codes_of_one_address_are_limited() {
    let server = start(Sqlite).await;
    let link = code_of(&new_link(&server.user("ann")).await);
    for round in 0..60 {
        let path = ["/auth/machine", "/auth/sign-in"][round % 2];
        let wrong =
            page(&server, Method::POST, path).json(&json!({"code": format!("guess{round}")}));
        assert_eq!(answer(wrong).await.problem(), (401, "unauthorized"));
    }
    let limited = sign_in(&server, json!({"code": link})).await;
    assert_eq!(limited.problem(), (429, "too_many_requests"));
    assert!(limited.headers.contains_key("retry-after"));
    // Everything else goes on.
    Browser::of(&server, &server.user("bob")).await;
}
