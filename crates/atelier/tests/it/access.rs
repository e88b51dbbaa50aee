//! Access control: every route of the API is tried by callers who are not the owner. The routes
//! come from the OpenAPI document of the running server, so that no new route is forgotten.

use crate::{
    build,
    openapi::{Operation, operations},
    provider::{ProviderKey, assemble, claims, key_set, now, signed_with_the_public_key},
    start,
};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    Server, SseEvent, User,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// Ids of resources that paths can contain.
#[derive(Clone)]
struct Things {
    project: String,
    agent: String,
    tenant: String,
}

impl Things {
    /// Ids that belong to nobody.
    fn unknown() -> Self {
        let id = || Uuid::now_v7().to_string();
        Self { project: id(), agent: id(), tenant: id() }
    }

    fn in_path(&self, operation: &Operation) -> String {
        operation.fill(|name| match name {
            "project" => self.project.clone(),
            "agent" => self.agent.clone(),
            "tenant" => self.tenant.clone(),
            "provider" => "openai".to_owned(),
            // Ids that belong to nobody, because creating these resources would create a worker
            // space. `gate.rs` tries ids of other users.
            "tool" | "approval" | "grant" | "client" | "session" | "task" | "plan"
            | "interaction" => Uuid::now_v7().to_string(),
            // `files.rs` tries ids of other users.
            "conversation" | "file" | "upload" | "run" => Uuid::now_v7().to_string(),
            // `sessions.rs` tries those that are somebody's.
            "sign_in" => Uuid::now_v7().to_string(),
            "number" => "1".into(),
            other => panic!(
                "{}: teach `Things` what {{{other}}} is, so that this route is tested for \
                 strangers",
                operation.label()
            ),
        })
    }
}

/// A project as its events describe it. Any other request for it would create its worker space.
struct Shop {
    path: String,
    things: Things,
    events: Vec<SseEvent>,
}

impl Shop {
    async fn make(owner: &User, name: &str) -> Self {
        let mut news = owner.events("/my/events", None).await;
        assert_eq!(news.comment().await, "hello");
        let path = owner.project(name).await;
        let events = news.take(5).await;
        let things = Things {
            project: path.rsplit('/').next().unwrap().to_owned(),
            agent: events[1].data["agent"]["id"].as_str().unwrap().to_owned(),
            tenant: owner.claims()["tenant"].as_str().unwrap().to_owned(),
        };
        Self { path, things, events }
    }

    /// Asserts that nothing has happened to the project since it was created, not even a worker
    /// space.
    async fn assert_untouched(&self, owner: &User) {
        // A reset closes a worker space if there is one, and sends an event.
        owner.post(&format!("{}/worker-space/reset", self.path), json!(null)).await.expect(200);
        let mut log = owner.events(&format!("{}/events", self.path), Some("0")).await;
        let log = log.take(self.events.len() + 1).await;
        let names: Vec<&str> = log.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(
            names,
            [&["PROJECT_CREATED"][..], &["AGENT_CREATED"; 4], &["WORKER_SPACE_READY"]].concat()
        );
        for (then, now) in self.events.iter().zip(&log) {
            assert_eq!(then.data, now.data);
        }
        let project = owner.get(&self.path).await.expect(200);
        assert_eq!(project, self.events[0].data["project"]);
        let agents = owner.get(&format!("{}/agents", self.path)).await.expect(200);
        let created: Vec<_> = self.events[1..].iter().map(in_lists).collect();
        assert_eq!(agents, json!({"agents": created, "total": 4}));
    }
}

/// An agent of an event as lists show it: without a key, the demo model answers.
fn in_lists(event: &SseEvent) -> Value {
    let mut agent = event.data["agent"].clone();
    agent["answered_by"] = json!("demo");
    agent["model_problem"] = Value::Null;
    agent
}

fn request(user: &User, operation: &Operation, path: &str) -> reqwest::RequestBuilder {
    let request = user.request(operation.method.clone(), path);
    if operation.takes_body { request.json(&json!({})) } else { request }
}

/// The whole answer except its date.
async fn ask(user: &User, operation: &Operation, path: &str) -> Answer {
    receive(request(user, operation, path)).await
}

async fn receive(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, mut headers) = (response.status(), response.headers().clone());
    headers.remove("date");
    // A stream that wrongly opens would never end.
    let body = if headers.get("content-type").is_some_and(|kind| kind == "text/event-stream") {
        Value::Null
    } else {
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default()
    };
    Answer { status, headers, body }
}

async fn with_ids(server: &Server) -> Vec<Operation> {
    // A tenant alone has no owner. `files.rs` tries tenants.
    // The names of model providers belong to nobody either. `models.rs` tries who may change what.
    let of_somebody = |operation: &Operation| {
        !operation.path.starts_with("/my/models")
            && operation.parameters.iter().any(|name| name != "tenant")
    };
    let operations: Vec<_> = operations(server).await.into_iter().filter(of_somebody).collect();
    assert!(operations.len() >= 12, "the document lists the routes of projects");
    operations
}

/// WS-01.1 WS-09.1 WS-09.3
#[rstest]
#[tokio::test]
async fn foreign_ids_and_unknown_ids_get_equal_answers(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let shop = Shop::make(&ann, "shop").await;
    let operations = with_ids(&server).await;

    let strangers = [
        server.user("bob"),
        server.user_with("ann", &["--tenant", "other"]),
        server.user_with("root", &["--tenant", "other", "--role", "admin"]),
    ];
    for stranger in &strangers {
        let own = Shop::make(stranger, "shop").await.things;
        for operation in &operations {
            let unknown = ask(stranger, operation, &Things::unknown().in_path(operation)).await;
            assert_eq!(unknown.problem(), (404, "not_found"), "{}", operation.label());
            let mut tries = vec![shop.things.clone()];
            if operation.path.contains("{agent}") {
                // A caller's own project gives no access to somebody else's agents.
                tries.push(Things { agent: shop.things.agent.clone(), ..own.clone() });
            }
            tries.push(Things {
                project: "no-id".into(),
                agent: "%00".into(),
                tenant: "%00".into(),
            });
            for things in tries {
                let path = things.in_path(operation);
                for path in [format!("{path}/"), path] {
                    assert_eq!(
                        ask(stranger, operation, &path).await,
                        unknown,
                        "{}",
                        operation.label()
                    );
                }
            }
        }
    }

    // An admin of the tenant may reset, reject and manage keys, and nothing else.
    let admin = server.user_with("root", &["--role", "admin"]);
    let for_admins = |it: &&Operation| {
        ["/reset", "/approvals/decide"].iter().any(|end| it.path.ends_with(end))
            || it.path.contains("/model-keys")
    };
    for operation in operations.iter().filter(|operation| !for_admins(operation)) {
        let answer = ask(&admin, operation, &shop.things.in_path(operation)).await;
        assert_eq!(answer.problem(), (404, "not_found"), "{}", operation.label());
    }

    shop.assert_untouched(&ann).await;

    // The same requests find something if the owner sends them. Deletions come last, and inner
    // resources are deleted before outer ones.
    let mut operations = operations;
    operations.sort_by_key(|it| (it.method == Method::DELETE, std::cmp::Reverse(it.path.len())));
    let made_up =
        |it: &&Operation| it.parameters.iter().any(|name| !["project", "agent"].contains(&&**name));
    for operation in operations.iter().filter(|it| !made_up(it)) {
        let status = ask(&ann, operation, &shop.things.in_path(operation)).await.status;
        assert!(status != 404 && !status.is_server_error(), "{}: {status}", operation.label());
    }
}

/// WS-01.1 WS-09.2 WS-09.3
#[rstest]
#[tokio::test]
async fn projects_of_one_user_share_nothing(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let (shop, blog) = (Shop::make(&ann, "shop").await, Shop::make(&ann, "blog").await);
    let mixed = Things { agent: shop.things.agent.clone(), ..blog.things.clone() };
    let mut tried = 0;
    for operation in with_ids(&server).await.iter().filter(|it| it.path.contains("{agent}")) {
        let unknown = Things { agent: Uuid::now_v7().to_string(), ..blog.things.clone() };
        let unknown = ask(&ann, operation, &unknown.in_path(operation)).await;
        assert_eq!(unknown.problem(), (404, "not_found"), "{}", operation.label());
        assert_eq!(
            ask(&ann, operation, &mixed.in_path(operation)).await,
            unknown,
            "{}",
            operation.label()
        );
        tried += 1;
    }
    assert!(tried >= 3);
    shop.assert_untouched(&ann).await;

    // Events of a project appear only in its own stream.
    let mut shop_events = ann.events(&format!("{}/events", shop.path), None).await;
    let mut blog_events = ann.events(&format!("{}/events", blog.path), None).await;
    ann.put(&format!("{}/agents/coder", blog.path), json!({"name": "blogger"})).await.expect(200);
    ann.put(&shop.path, json!({"name": "market"})).await.expect(200);
    ann.put(&blog.path, json!({"name": "diary"})).await.expect(200);
    let event = shop_events.next().await;
    assert_eq!(
        (event.name.as_str(), &event.data["project"]["name"]),
        ("PROJECT_UPDATED", &json!("market"))
    );
    let names = blog_events.take(2).await.into_iter().map(|event| event.name);
    assert_eq!(names.collect::<Vec<_>>(), ["AGENT_UPDATED", "PROJECT_UPDATED"]);
    // Each project has its own worker space and its own agents.
    let space = async |path: &str| {
        ann.get(&format!("{path}/worker-space")).await.expect(200)["user_prefix"].clone()
    };
    assert_ne!(space(&shop.path).await, space(&blog.path).await);
    assert_eq!(
        ann.get(&format!("{}/agents/blogger", shop.path)).await.problem(),
        (404, "not_found")
    );
}

/// WS-09.1 WS-09.3
#[rstest]
#[tokio::test]
async fn lists_and_streams_contain_only_own_resources(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let others = [server.user("bob"), server.user_with("ann", &["--tenant", "other"])];
    let before = Shop::make(&ann, "before").await;
    for other in &others {
        assert_eq!(
            other.get("/my/projects").await.expect(200),
            json!({"projects": [], "total": 0})
        );
        let mut live = other.events("/my/events", None).await;
        assert_eq!(live.comment().await, "hello");
        ann.put(&before.path, json!({"settings": {"metadata": {"secret": 1}}})).await.expect(200);
        let own = other.project("mine").await;
        let id = own.rsplit('/').next().unwrap();
        // All events that a user ever got begin with their own project.
        let mut all = other.events("/my/events", Some("0")).await;
        for stream in [&mut live, &mut all] {
            let first = stream.next().await;
            assert_eq!(
                (first.name.as_str(), &first.data["project"]["id"]),
                ("PROJECT_CREATED", &json!(id))
            );
        }
        // An id from somebody else's stream gives no access to that stream: the user gets a
        // snapshot of their own state.
        let mut lost = other.events("/my/events", Some("u999999")).await;
        let reset = lost.next().await;
        assert_eq!(reset.name, "STREAM_RESET");
        let projects = other.get("/my/projects").await.expect(200)["projects"].clone();
        assert_eq!(reset.data["snapshot"]["projects"], projects);
    }
}

/// WS-09.1
#[rstest]
#[tokio::test]
async fn agent_and_client_tokens_cannot_change_projects(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let shop = Shop::make(&ann, "shop").await;
    let mut tried = 0;
    for operation in operations(&server).await.iter().filter(|operation| operation.changes()) {
        for role in ["client", "agent"].into_iter().filter(|role| !operation.is_work_of(role)) {
            let machine = server.program("ann", role, &shop.path);
            let answer = ask(&machine, operation, &shop.things.in_path(operation)).await;
            assert_eq!(answer.problem(), (403, "forbidden"), "{} as {role}", operation.label());
            tried += 1;
        }
    }
    assert!(tried >= 16);
    let project = ann.get(&shop.path).await.expect(200);
    assert_eq!(project, shop.events[0].data["project"]);
    assert_eq!(
        ann.get("/my/projects").await.expect(200),
        json!({"projects": [project], "total": 1})
    );
    let agents = ann.get(&format!("{}/agents", shop.path)).await.expect(200);
    let created: Vec<_> = shop.events[1..].iter().map(in_lists).collect();
    assert_eq!(agents, json!({"agents": created, "total": 4}));
    // These tokens may read.
    let client = server.program("ann", "client", &shop.path);
    assert_eq!(client.get(&format!("{}/agents", shop.path)).await.expect(200), agents);
}

/// Invalid headers, each with a name for the failure message.
fn bad_headers(secret: &[u8], user: Uuid, revoked: &User) -> Vec<(&'static str, Option<String>)> {
    let key = EncodingKey::from_secret(secret);
    let sign = |claims: &Value| {
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
    };
    let fine = claims(user);
    let with = |name: &str, value: Value| {
        let mut claims = fine.clone();
        claims[name] = value;
        sign(&claims)
    };
    let without = |name: &str| {
        let mut claims = fine.clone();
        claims.as_object_mut().unwrap().remove(name);
        sign(&claims)
    };
    let header = |header: Header| jsonwebtoken::encode(&header, &fine, &key).unwrap();
    let hs256 = || Header::new(Algorithm::HS256);
    let good = sign(&fine);
    let [public_key_as_secret, the_same_without_kid] = signed_with_the_public_key(&fine);
    let other_key = EncodingKey::from_secret(b"another secret of a decent length");
    let (unsigned, _) = good.rsplit_once('.').unwrap();
    let tampered = {
        let parts: Vec<&str> = good.split('.').collect();
        let admin = assemble(&json!({}), &json!({"role": "admin"}), b"");
        format!("{}.{}.{}", parts[0], admin.split('.').nth(1).unwrap(), parts[2])
    };
    let tokens = [
        ("garbage", "garbage".to_owned()),
        ("three dots", "...".to_owned()),
        ("empty", String::new()),
        ("wrong key", jsonwebtoken::encode(&hs256(), &fine, &other_key).unwrap()),
        (
            "empty key",
            jsonwebtoken::encode(&hs256(), &fine, &EncodingKey::from_secret(b"")).unwrap(),
        ),
        ("wrong aud", with("aud", json!("other"))),
        ("wrong iss", with("iss", json!("other"))),
        ("expired", with("exp", json!(now() - 1))),
        ("expires now", with("exp", json!(now()))),
        ("exp is no number", with("exp", json!("never"))),
        ("not yet", with("nbf", json!(now() + 60))),
        ("no sub", without("sub")),
        ("no exp", without("exp")),
        ("no iss", without("iss")),
        ("no aud", without("aud")),
        ("no tenant", without("tenant")),
        ("no role", without("role")),
        ("no jti", without("jti")),
        ("sub is no id", with("sub", json!("ann"))),
        ("unknown role", with("role", json!("root"))),
        ("another tenant than the user's", with("tenant", json!("other"))),
        ("alg none", assemble(&json!({"alg": "none", "typ": "JWT"}), &fine, b"")),
        ("alg None", assemble(&json!({"alg": "None", "typ": "JWT"}), &fine, b"")),
        ("signature cut off", format!("{unsigned}.")),
        ("other claims", tampered),
        ("public key as secret", public_key_as_secret),
        ("public key as secret, no kid", the_same_without_kid),
        ("another HMAC", header(Header::new(Algorithm::HS512))),
        ("unknown kid", header(Header { kid: Some("nobody".into()), ..hs256() })),
        ("critical extension", header(Header { crit: Some(vec!["b64".into()]), ..hs256() })),
        ("revoked", revoked.token.clone()),
        ("too long", with("note", json!("x".repeat(9000)))),
        ("twice", format!("{good} {good}")),
    ];
    let mut headers = vec![
        ("no header", None),
        ("another scheme", Some(format!("Basic {good}"))),
        ("scheme alone", Some("Bearer".to_owned())),
        ("token alone", Some(good)),
    ];
    headers.extend(tokens.map(|(name, token)| (name, Some(format!("Bearer {token}")))));
    headers
}

/// WS-09.1
#[rstest]
#[tokio::test]
async fn invalid_tokens_are_refused_everywhere(#[values(Sqlite, Postgres)] backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, key_set(&[ProviderKey::rsa()])).unwrap();
    let server = build(backend).with("AUTH__JWKS", keys.display()).start().await;
    let ann = server.user("ann");
    let shop = Shop::make(&ann, "shop").await;
    let revoked = server.user("ann");
    assert_eq!(ann.post("/auth/revoke", json!({"token": revoked.token})).await.status, 204);

    let secret = std::fs::read(server.data().join("secret.key")).unwrap();
    let user: Uuid = ann.claims()["sub"].as_str().unwrap().parse().unwrap();
    let headers = bad_headers(&secret, user, &revoked);
    let nobody = server.bearer("");
    let secured: Vec<_> = operations(&server).await.into_iter().filter(|it| it.secured).collect();
    assert!(secured.len() >= 17 && secured.iter().filter(|it| it.streams).count() >= 2);
    for operation in &secured {
        let path = shop.things.in_path(operation);
        let refused = async |what: &str, request: reqwest::RequestBuilder| {
            let what = format!("{} with {what}", operation.label());
            let answer = receive(request).await;
            assert_eq!(answer.status, 401, "{what}");
            assert!(["unauthorized", "other_tenant"].contains(&answer.problem().1), "{what}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer", "{what}");
        };
        for (name, value) in &headers {
            let request = request(&nobody, operation, &path);
            let request =
                value.iter().fold(request, |request, value| request.header("authorization", value));
            refused(name, request).await;
        }
        // Tokens in the address would end up in logs and histories, so they are ignored.
        for query in ["token", "access_token", "authorization"] {
            let path = format!("{path}?{query}={}", ann.token);
            refused(query, request(&nobody, operation, &path)).await;
        }
        let cookie = format!("token={0}; access_token={0}", ann.token);
        refused("cookie", request(&nobody, operation, &path).header("cookie", cookie)).await;
    }
    shop.assert_untouched(&ann).await;
    // The tokens differ from a valid one only in the tested detail: without that change, the token
    // is accepted.
    let key = EncodingKey::from_secret(&secret);
    let right = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(user), &key).unwrap();
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let me = nobody
            .request(Method::GET, "/auth/me")
            .header("authorization", format!("{scheme} {right}"));
        assert_eq!(receive(me).await.expect(200)["user_id"], json!(user));
    }
}
