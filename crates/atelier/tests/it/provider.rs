//! Tokens of a real identity provider, and the lifetime of our own tokens.

use crate::{
    browser::{Browser, sign_in},
    build,
    codes::code_of,
    start,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, User, answer, eventually,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use jsonwebtoken::{
    Algorithm, EncodingKey, Header,
    jwk::{Jwk, PublicKeyUse},
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use uuid::Uuid;

// Made with `openssl genpkey` for these tests; nothing else trusts them.
const RSA: &[u8] = include_bytes!("keys/rsa.pem");
const RSA_PUBLIC: &[u8] = include_bytes!("keys/rsa.pub.pem");
const P256: &[u8] = include_bytes!("keys/p256.pem");
const ED25519: &[u8] = include_bytes!("keys/ed25519.pem");

/// A key of the identity provider.
pub(crate) struct ProviderKey {
    kid: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl ProviderKey {
    pub(crate) fn rsa() -> Self {
        Self {
            kid: "rsa",
            algorithm: Algorithm::RS256,
            key: EncodingKey::from_rsa_pem(RSA).unwrap(),
        }
    }

    fn p256() -> Self {
        Self {
            kid: "p256",
            algorithm: Algorithm::ES256,
            key: EncodingKey::from_ec_pem(P256).unwrap(),
        }
    }

    fn ed25519() -> Self {
        Self {
            kid: "ed",
            algorithm: Algorithm::EdDSA,
            key: EncodingKey::from_ed_pem(ED25519).unwrap(),
        }
    }

    fn all() -> [Self; 3] {
        [Self::rsa(), Self::p256(), Self::ed25519()]
    }

    fn named(self, kid: &'static str) -> Self {
        Self { kid, ..self }
    }

    fn jwk(&self) -> Jwk {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.kid.into());
        jwk
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.into()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}

pub(crate) fn key_set(keys: &[ProviderKey]) -> String {
    json!({"keys": keys.iter().map(ProviderKey::jwk).collect::<Vec<_>>()}).to_string()
}

/// Tokens that use the public key as the secret of an HMAC, with the key's id and without.
pub(crate) fn signed_with_the_public_key(claims: &Value) -> [String; 2] {
    [Some("rsa".to_owned()), None].map(|kid| {
        let header = Header { kid, ..Header::new(Algorithm::HS256) };
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(RSA_PUBLIC)).unwrap()
    })
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The claims of a valid token.
pub(crate) fn claims(user: Uuid) -> Value {
    json!({
        "sub": user, "tenant": "default", "role": "user", "iss": "atelier", "aud": "atelier",
        "iat": now(), "exp": now() + 600, "jti": Uuid::now_v7(),
    })
}

/// A token from any parts.
pub(crate) fn assemble(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", encode(header), encode(claims), BASE64_URL_SAFE_NO_PAD.encode(signature))
}

async fn with_key_file(keys: &[ProviderKey]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set(keys)).unwrap();
    (build(Sqlite).with("AUTH__JWKS", file.display()).start().await, folder)
}

async fn refused(user: &User) {
    let answer = user.get("/auth/me").await;
    assert_eq!(answer.problem(), (401, "unauthorized"));
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
}

#[tokio::test]
async fn tokens_of_every_kind_of_provider_key_are_accepted() {
    let (server, _folder) = with_key_file(&ProviderKey::all()).await;
    for key in ProviderKey::all() {
        let user = Uuid::now_v7();
        let mut claims = claims(user);
        claims["tenant"] = json!("acme");
        let ann = server.bearer(key.sign(&claims));
        let me = ann.get("/auth/me").await.expect(200);
        assert_eq!(
            (&me["user_id"], &me["tenant"], &me["role"]),
            (&json!(user), &json!("acme"), &json!("user")),
            "{:?}",
            key.algorithm
        );
        ann.project("shop").await;
        // Only the provider can renew its tokens.
        assert_eq!(ann.post("/auth/refresh", json!({})).await.problem(), (403, "forbidden"));
    }
    // Our own tokens still work.
    server.user("bob").get("/auth/me").await.expect(200);
}

/// SI-01: this is how the console signs a user in at an identity provider. The server makes the
/// session, so that it outlives the provider's token, but not the day.
#[tokio::test]
async fn provider_code_signs_a_browser_in() {
    let (user, key) = (Uuid::now_v7(), ProviderKey::ed25519());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set(&[ProviderKey::ed25519()])).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let token = key.sign(&claims(user));
    let answered = token.clone();
    // A provider that knows one code and its user.
    let provider = tokio::spawn(async move {
        let mut asked = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 8192];
            let mut read = 0;
            while !String::from_utf8_lossy(&request[..read]).contains("client_id=console") {
                read += stream.read(&mut request[read..]).await.unwrap();
            }
            let text = String::from_utf8_lossy(&request[..read]).into_owned();
            let known = text.contains("code=right&")
                && text.contains(&format!("code_verifier={}", "v".repeat(43)));
            let (status, body) = match known {
                true => {
                    ("200 OK", json!({"id_token": answered, "token_type": "Bearer"}).to_string())
                }
                false => ("400 Bad Request", json!({"error": "invalid_grant"}).to_string()),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            asked.push(text);
        }
        asked
    });
    let server = build(Sqlite)
        .with("AUTH__LOCAL", "false")
        .with("AUTH__JWKS", file.display())
        .with("AUTH__SIGN_IN__AUTHORIZATION_ENDPOINT", "https://id.example/authorize")
        .with("AUTH__SIGN_IN__TOKEN_ENDPOINT", format!("{endpoint}/token"))
        .with("AUTH__SIGN_IN__CLIENT_ID", "console")
        .start()
        .await;
    let nobody = server.bearer("");
    assert_eq!(
        nobody.get("/auth/sign-in").await.expect(200),
        json!({
            "local": false,
            "provider": {
                "authorization_endpoint": "https://id.example/authorize", "client_id": "console", "scope": "openid",
            },
        })
    );
    let came = |code: &str| json!({"provider": {"code": code, "verifier": "v".repeat(43), "redirect_uri": "http://127.0.0.1/"}});
    assert_eq!(sign_in(&server, came("wrong")).await.problem(), (401, "unauthorized"));
    let browser = Browser::from(&server, sign_in(&server, came("right")).await);
    let me = browser.get("/auth/me").await.expect(200);
    assert_eq!(me["user_id"], json!(user));
    let ends =
        |answer: &Value| answer["expires_at"].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    let left = (ends(&me) - Utc::now()).num_minutes();
    assert!((11 * 60..=12 * 60).contains(&left), "{left}");
    // A renewal does not put the end off: the provider is asked again.
    let renewed = answer(browser.request(Method::PUT, "/auth/session")).await.expect(200);
    assert!((ends(&renewed) - ends(&me)).num_seconds() <= 1);
    // Nor does a link to another browser, and no program gets a token for it.
    let link = async || {
        let made = answer(browser.request(Method::POST, "/auth/links").json(&json!({}))).await;
        code_of(&made.expect(200))
    };
    let bearer = nobody.post("/auth/sign-in", json!({"code": link().await})).await;
    assert_eq!(bearer.problem(), (403, "forbidden"));
    let phone = sign_in(&server, json!({"code": link().await})).await;
    let phone = Browser::from(&server, phone).get("/auth/me").await.expect(200);
    assert_eq!(phone["user_id"], me["user_id"]);
    assert!((ends(&phone) - ends(&me)).num_seconds() <= 1);
    let asked = provider.await.unwrap();
    assert!(asked[1].starts_with("POST /token "), "{}", asked[1]);
    assert!(asked[1].contains("redirect_uri=http%3A%2F%2F127.0.0.1%2F"), "{}", asked[1]);

    let plain = start(Sqlite).await;
    let ways = plain.bearer("").get("/auth/sign-in").await.expect(200);
    assert_eq!(ways, json!({"local": true, "provider": null}));
    assert_eq!(sign_in(&plain, came("right")).await.problem(), (404, "not_found"));
}

/// The server then assumes the least privileges.
#[tokio::test]
async fn provider_token_may_lack_tenant_role_and_jti() {
    let (server, _folder) = with_key_file(&ProviderKey::all()).await;
    let (user, key) = (Uuid::now_v7(), ProviderKey::ed25519());
    let sparse =
        json!({"sub": user, "iss": "atelier", "aud": ["other", "atelier"], "exp": now() + 600});
    let ann = server.bearer(key.sign(&sparse));
    let me = ann.get("/auth/me").await.expect(200);
    assert_eq!((&me["tenant"], &me["role"]), (&json!("default"), &json!("user")));
    // Such a token can be revoked as well.
    assert_eq!(ann.post("/auth/revoke", json!({"token": ann.token})).await.status, 204);
    refused(&ann).await;
}

#[tokio::test]
async fn forged_provider_tokens_are_refused() {
    let keys = [ProviderKey::rsa(), ProviderKey::ed25519()];
    let (server, _folder) = with_key_file(&keys).await;
    let fine = claims(Uuid::now_v7());
    let changed = |name: &str, value: Value| {
        let mut claims = fine.clone();
        claims[name] = value;
        claims
    };
    server.bearer(keys[0].sign(&fine)).get("/auth/me").await.expect(200);

    let mut bad = vec![
        keys[0].sign(&changed("iss", json!("elsewhere"))),
        keys[0].sign(&changed("aud", json!("other"))),
        keys[0].sign(&changed("aud", json!(["other"]))),
        keys[0].sign(&changed("exp", json!(now() - 1))),
        keys[0].sign(&changed("nbf", json!(now() + 60))),
        keys[0].sign(&changed("sub", json!("ann"))),
        keys[0].sign(&changed("role", json!("emperor"))),
        keys[0].sign(&changed("tenant", json!("a/b"))),
        // A key that is not in the set, with the id of a key in the set and with an unknown id.
        ProviderKey::p256().named("rsa").sign(&fine),
        ProviderKey::p256().sign(&fine),
        // A key of the set with the id of another key.
        ProviderKey::ed25519().named("rsa").sign(&fine),
        // Without a key id, the token counts as one of ours.
        jsonwebtoken::encode(&Header::new(Algorithm::RS256), &fine, &keys[0].key).unwrap(),
        // The right key with an algorithm that it must not be used with.
        jsonwebtoken::encode(
            &Header { kid: Some("rsa".into()), ..Header::new(Algorithm::PS256) },
            &fine,
            &keys[0].key,
        )
        .unwrap(),
        assemble(&json!({"alg": "none", "kid": "rsa"}), &fine, b""),
        // A key that is embedded in the token.
        {
            let jwk = ProviderKey::p256().jwk();
            let header = Header { jwk: Some(jwk), ..Header::new(Algorithm::ES256) };
            jsonwebtoken::encode(&header, &fine, &ProviderKey::p256().key).unwrap()
        },
    ];
    bad.extend(signed_with_the_public_key(&fine));
    for token in bad {
        refused(&server.bearer(token)).await;
    }
}

/// A key set may contain keys that are not for signing tokens; no token can be verified with them.
#[tokio::test]
async fn keys_for_other_purposes_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let (rsa, p256) = (ProviderKey::rsa(), ProviderKey::p256());
    let mut encryption = rsa.jwk();
    encryption.common.public_key_use = Some(PublicKeyUse::Encryption);
    let secret =
        json!({"kty": "oct", "kid": "oct", "k": BASE64_URL_SAFE_NO_PAD.encode("a secret")});
    let future = json!({"kty": "AKP", "kid": "new", "alg": "ML-DSA-44", "pub": "AAAA"});
    let set = json!({"keys": [encryption, secret, future, p256.jwk()]});
    std::fs::write(&file, set.to_string()).unwrap();
    let server = build(Sqlite).with("AUTH__JWKS", file.display()).start().await;

    let claims = claims(Uuid::now_v7());
    server.bearer(p256.sign(&claims)).get("/auth/me").await.expect(200);
    refused(&server.bearer(rsa.sign(&claims))).await;
    let header = Header { kid: Some("oct".into()), ..Header::new(Algorithm::HS256) };
    let token =
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(b"a secret")).unwrap();
    refused(&server.bearer(token)).await;
}

/// The provider's endpoint. It answers every request with its current keys.
struct Provider {
    url: String,
    keys: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Provider {
    async fn start(keys: &[ProviderKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let (keys, asked) = (Arc::new(Mutex::new(key_set(keys))), Arc::new(AtomicUsize::new(0)));
        let provider = Self { url, keys: keys.clone(), asked: asked.clone() };
        // The task ends with the test's runtime.
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                asked.fetch_add(1, Ordering::SeqCst);
                let body = keys.lock().unwrap().clone();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: \
                     {length}\r\n\
                     connection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        provider
    }

    fn rotate(&self, keys: &[ProviderKey]) {
        *self.keys.lock().unwrap() = key_set(keys);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn rotated_key_is_fetched_when_it_is_first_used() {
    let provider = Provider::start(&[ProviderKey::rsa()]).await;
    let server = build(Sqlite)
        .with("AUTH__JWKS", &provider.url)
        .with("AUTH__JWKS_ISSUER", "https://login.example")
        .start()
        .await;
    let mut claims = claims(Uuid::now_v7());
    claims["iss"] = json!("https://login.example");
    let old = server.bearer(ProviderKey::rsa().sign(&claims));
    let new = server.bearer(ProviderKey::p256().sign(&claims));
    old.get("/auth/me").await.expect(200);
    assert_eq!(provider.asked(), 1, "known keys are not fetched for every request");

    provider.rotate(&[ProviderKey::p256()]);
    new.get("/auth/me").await.expect(200);
    assert_eq!(provider.asked(), 2);
    // That fetch has also removed the key that the provider withdrew.
    refused(&old).await;

    // Unknown key ids do not cause many requests to the provider.
    for _ in 0..20 {
        refused(&server.bearer(ProviderKey::ed25519().sign(&claims))).await;
    }
    assert_eq!(provider.asked(), 2);
    new.get("/auth/me").await.expect(200);

    // Each issuer has its own keys: our key is not valid for the provider's issuer, and the other
    // way round.
    claims["iss"] = json!("atelier");
    refused(&server.bearer(ProviderKey::p256().sign(&claims))).await;
    server.user("bob").get("/auth/me").await.expect(200);
}

#[tokio::test]
async fn local_tokens_can_be_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set(&[ProviderKey::ed25519()])).unwrap();
    let settings = build(Sqlite).with("AUTH__JWKS", file.display()).with("AUTH__LOCAL", "false");
    let server = settings.start().await;
    refused(&server.user("ann")).await;
    refused(&server.user_with("root", &["--role", "admin"])).await;
    let ann = ProviderKey::ed25519().sign(&claims(Uuid::now_v7()));
    server.bearer(ann).get("/auth/me").await.expect(200);
}

#[tokio::test]
async fn server_does_not_start_with_unusable_provider_keys() {
    let other = start(Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (config, keys, data) = (file("atelier.toml"), file("keys.json"), file("data"));
    std::fs::write(&config, format!("[auth]\njwks = {keys:?}\n")).unwrap();
    for content in [None, Some("<html>"), Some(r#"{"keys": []}"#)] {
        content.iter().for_each(|content| std::fs::write(&keys, content).unwrap());
        let serve = ["serve", "--config", &config, "--data", &data, "--listen", "127.0.0.1:0"];
        let output = other.command(&serve);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && message.contains("keys.json"),
            "{content:?}: {message}"
        );
    }
}

/// The code in the link that a first start prints.
fn sign_in_code(server: &Server) -> String {
    let greeting = server.greeting();
    let (_, rest) = greeting.split_once("#sign-in=").expect("a first start prints a link");
    rest.split_whitespace().next().unwrap().to_owned()
}

#[rstest]
#[tokio::test]
async fn sign_in_code_works_only_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (nobody, code) = (server.bearer(""), sign_in_code(&server));
    assert_eq!(
        nobody.post("/auth/sign-in", json!({"code": "guess"})).await.problem(),
        (401, "unauthorized")
    );
    let race = (0..20).map(|_| nobody.post("/auth/sign-in", json!({"code": code})));
    let (won, lost): (Vec<_>, Vec<_>) =
        futures::future::join_all(race).await.into_iter().partition(|answer| answer.status == 200);
    assert_eq!((won.len(), lost.len()), (1, 19));
    for answer in lost {
        assert_eq!(answer.problem(), (401, "unauthorized"));
    }
    let owner = server.bearer(won[0].body["token"].as_str().unwrap());
    let me = owner.get("/auth/me").await.expect(200);
    assert_eq!(me["expires_at"], expiry(&owner));
    assert_eq!(owner.get("/my/projects").await.expect(200)["total"], 1, "a project is waiting");
    assert!(!server.log().contains(&code), "the log does not tell how to sign in");
}

/// The `exp` claim in the format of `/auth/me`.
fn expiry(user: &User) -> Value {
    let at = chrono::DateTime::from_timestamp(user.claims()["exp"].as_i64().unwrap(), 0).unwrap();
    serde_json::to_value(at).unwrap()
}

#[rstest]
#[tokio::test]
async fn token_can_be_renewed_before_it_expires(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    for (role, ttl) in [("user", "1m"), ("client", "5m"), ("agent", "5m"), ("admin", "1h")] {
        let mut arguments = vec!["--role", role, "--tenant", "acme", "--ttl", ttl];
        if matches!(role, "client" | "agent") {
            arguments.extend(["--project", "00000000-0000-0000-0000-000000000001"]);
        }
        let ann = server.user_with("ann", &arguments);
        let fresh = ann.post("/auth/refresh", json!({})).await.expect(200);
        let fresh = server.bearer(fresh["token"].as_str().unwrap());
        let (was, is) = (ann.claims(), fresh.claims());
        for same in ["sub", "tenant", "role", "project", "iss", "aud"] {
            assert_eq!(is[same], was[same], "{same}");
        }
        assert_ne!(is["jti"], was["jti"]);
        // The new token lives as long as the first one, from now on, and has the time of the first
        // one.
        assert!(is["exp"].as_u64() >= was["exp"].as_u64());
        assert_eq!((&is["family"], &is["auth_time"]), (&was["jti"], &was["auth_time"]));
        // The old token is not revoked, because another window may still use it.
        assert_eq!(ann.get("/auth/me").await.expect(200)["role"], role);
        assert_eq!(fresh.get("/auth/me").await.expect(200)["expires_at"], expiry(&fresh));
    }
}

#[rstest]
#[tokio::test]
async fn revoked_token_is_refused_everywhere(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let (ann, again, bob) = (server.user("ann"), server.user("ann"), server.user("bob"));
    let revoke = |token: &str| json!({"token": token});
    // Users can revoke only their own tokens, and an invalid token belongs to nobody.
    for (who, token) in [(&bob, &ann.token), (&ann, &format!("{}x", ann.token))] {
        assert_eq!(who.post("/auth/revoke", revoke(token)).await.problem(), (404, "not_found"));
    }
    ann.get("/auth/me").await.expect(200);

    let renewed = ann.post("/auth/refresh", json!({})).await.expect(200);
    let renewed = server.bearer(renewed["token"].as_str().unwrap());
    assert_eq!(again.post("/auth/revoke", revoke(&ann.token)).await.status, 204);
    refused(&ann).await;
    // Tokens that were renewed from it are revoked too.
    refused(&renewed).await;
    assert_eq!(ann.post("/auth/refresh", json!({})).await.problem(), (401, "unauthorized"));
    again.get("/auth/me").await.expect(200);

    // The token is also refused at the very first request after a restart.
    let server = server.restart().await;
    refused(&ann.at(&server)).await;
    again.at(&server).get("/auth/me").await.expect(200);
}

#[rstest]
#[tokio::test]
async fn revoking_a_token_ends_its_streams(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let nodes = match backend {
        Sqlite => vec![],
        Postgres => vec![server.second_node().await],
    };
    let (ann, again) = (server.user("ann"), server.user("ann"));
    let project = ann.project("shop").await;
    let paths = ["/my/events".to_owned(), format!("{project}/events")];
    let mut streams = Vec::new();
    for node in nodes.iter().chain([&server]) {
        for path in &paths {
            let mut stream = ann.at(node).events(path, None).await;
            assert_eq!(stream.comment().await, "hello");
            streams.push(stream);
        }
    }
    let mut other = again.events(&paths[0], None).await;
    assert_eq!(other.comment().await, "hello");

    assert_eq!(again.post("/auth/revoke", json!({"token": ann.token})).await.status, 204);
    for mut stream in streams {
        while stream.try_next().await.is_some() {}
    }
    for node in &nodes {
        refused(&ann.at(node)).await;
    }
    // Another token of this user still works.
    again.put(&project, json!({"name": "market"})).await.expect(200);
    other.until("PROJECT_UPDATED").await;
}

/// The stream ends long before a heartbeat would notice.
#[rstest]
#[tokio::test]
async fn stream_ends_when_its_token_expires(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("SERVER__HEARTBEAT", "1h").start().await;
    let project = server.user("ann").project("shop").await;
    let ann = server.user_with("ann", &["--ttl", "2s"]);
    let paths = ["/my/events".to_owned(), format!("{project}/events")];
    let mut streams = Vec::new();
    for path in &paths {
        streams.push(ann.events(path, Some("0")).await);
    }
    for stream in &mut streams {
        while stream.try_next().await.is_some() {}
    }
    let late = now();
    let ends = ann.claims()["exp"].as_u64().unwrap();
    assert!((ends..ends + 5).contains(&late), "ended at {late}, the token at {ends}");
    refused(&ann).await;
    eventually("the streams are gone", async || {
        (server.metric("atelier_event_streams").await == 0.0).then_some(())
    })
    .await;
}
