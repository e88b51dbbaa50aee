//! Sign-in sessions end when they are ended: whichever of their tokens is used to end them, on
//! every node.

use crate::{provider::claims, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Server, User, eventually,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// Makes tokens of one family as the server would have made them at other times.
struct Family {
    key: EncodingKey,
    user: Uuid,
    id: Uuid,
    began: u64,
}

impl Family {
    fn of(server: &Server, user: &User) -> Self {
        let secret = std::fs::read(server.data().join("secret.key")).unwrap();
        let user = user.claims()["sub"].as_str().unwrap().parse().unwrap();
        let now = claims(user)["iat"].as_u64().unwrap();
        Self { key: EncodingKey::from_secret(&secret), user, id: Uuid::now_v7(), began: now - 3600 }
    }

    fn token(&self, jti: Uuid, ends_in: i64) -> String {
        let mut claims = claims(self.user);
        let now = claims["iat"].as_i64().unwrap();
        (claims["jti"], claims["family"], claims["auth_time"]) =
            (json!(jti), json!(self.id), json!(self.began));
        (claims["iat"], claims["exp"]) = (json!(self.began), json!(now + ends_in));
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &self.key).unwrap()
    }
}

async fn is_accepted(user: &User) -> bool {
    let answer = user.get("/auth/me").await;
    match answer.status.as_u16() {
        200 => true,
        _ => {
            assert_eq!(answer.problem(), (401, "unauthorized"));
            false
        }
    }
}

/// The session's first token has expired. Its owner renewed it, and so did a thief.
#[rstest]
#[case::by_its_expired_first_token(0)]
#[case::by_the_owners_renewed_token(1)]
#[case::by_the_thiefs_own_token(2)]
#[tokio::test]
async fn ending_any_token_of_a_session_ends_all_of_them(
    #[case] which: usize,
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let family = Family::of(&server, &ann);
    let tokens = [
        family.token(family.id, -60),
        family.token(Uuid::now_v7(), 600),
        family.token(Uuid::now_v7(), 600),
    ];
    let [first, own, thief] = tokens.clone().map(|token| server.bearer(token));
    assert!(!is_accepted(&first).await);
    assert!(is_accepted(&own).await && is_accepted(&thief).await);
    let renewed = thief.post("/auth/refresh", json!({})).await.expect(200);
    let renewed = server.bearer(renewed["token"].as_str().unwrap());

    let revoke = json!({"token": tokens[which]});
    // Only its owner can, and doing it twice is no mistake.
    let stranger = server.user("bob").post("/auth/revoke", revoke.clone()).await;
    assert_eq!(stranger.problem(), (404, "not_found"));
    for _ in 0..2 {
        assert_eq!(ann.post("/auth/revoke", revoke.clone()).await.status, 204);
    }
    for token in [&own, &thief, &renewed] {
        assert!(!is_accepted(token).await);
    }
    assert!(is_accepted(&ann).await);
    // It stays so: the session row is gone, and a restart changes nothing.
    let server = server.restart().await;
    assert!(!is_accepted(&thief.at(&server)).await && !is_accepted(&renewed.at(&server)).await);
    assert!(is_accepted(&ann.at(&server)).await);
}

#[rstest]
#[tokio::test]
async fn signing_out_everywhere_ends_every_session(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let nodes = match backend {
        Sqlite => vec![],
        Postgres => vec![server.second_node().await],
    };
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    let project = ann.project("shop").await;
    let renewed = ann.post("/auth/refresh", json!({})).await.expect(200);
    // Two of them were never used; all of them end.
    let tokens = [
        ann.clone(),
        server.bearer(renewed["token"].as_str().unwrap()),
        server.program("ann", "agent", &project),
        server.program("ann", "client", &project),
    ];
    let mut streams = Vec::new();
    for node in nodes.iter().chain([&server]) {
        for token in &tokens {
            let mut stream = token.at(node).events(&format!("{project}/events"), None).await;
            assert_eq!(stream.comment().await, "hello");
            streams.push(stream);
        }
    }
    let unused = server.user("ann");
    for program in &tokens[2..] {
        let refused = program.post("/auth/sign-out-everywhere", json!({})).await;
        assert_eq!(refused.problem(), (403, "forbidden"));
    }
    assert_eq!(ann.post("/auth/sign-out-everywhere", json!({})).await.status, 204);
    for mut stream in streams {
        while stream.try_next().await.is_some() {}
    }
    for node in nodes.iter().chain([&server]) {
        for token in tokens.iter().chain([&unused]) {
            assert!(!is_accepted(&token.at(node)).await);
        }
        assert!(is_accepted(&bob.at(node)).await);
    }
    // Signing in again works at once, and shows only itself.
    let again = server.user("ann");
    let sessions = again.get("/auth/sessions").await.expect(200);
    assert_eq!(json!([sessions["total"], sessions["sessions"][0]["current"]]), json!([1, true]));
    let server = server.restart().await;
    assert!(!is_accepted(&unused.at(&server)).await && is_accepted(&again.at(&server)).await);
}

/// `user` as a program that names itself.
async fn use_as(user: &User, agent: &str) {
    let request = user.request(reqwest::Method::GET, "/auth/me").header("user-agent", agent);
    assert_eq!(request.send().await.unwrap().status(), 200);
}

#[rstest]
#[tokio::test]
async fn sessions_are_listed_and_can_be_ended(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    use_as(&ann, "Mozilla/5.0 (X11; Linux)").await;
    let project = ann.project("shop").await;
    let session = crate::conversation(&ann, &project).await.to_string();
    let id = project.rsplit('/').next().unwrap();
    let cli = server.user("ann");
    use_as(&cli, "atelier-chat/1.0").await;
    let client = server.program("ann", "client", &project);
    use_as(&client, "atelier-connect/1.0").await;
    let agent = server
        .user_with("ann", &["--role", "agent", "--project", "shop", "--conversation", &session]);
    use_as(&agent, "my-editor/2").await;
    use_as(&server.user("bob"), "Mozilla/5.0").await;

    let listed = ann.get("/auth/sessions").await.expect(200);
    let shown = |listed: &Value| -> Vec<Value> {
        let sessions = listed["sessions"].as_array().unwrap().iter();
        sessions
            .map(|it| {
                json!([
                    it["id"],
                    it["kind"],
                    it["project_id"],
                    it["conversation_id"],
                    it["user_agent"],
                    it["current"]
                ])
            })
            .collect()
    };
    let jti = |user: &User| user.claims()["jti"].clone();
    assert_eq!(
        shown(&listed),
        [
            json!([jti(&agent), "agent", id, session, "my-editor/2", false]),
            json!([jti(&client), "client", id, null, "atelier-connect/1.0", false]),
            json!([jti(&cli), "cli", null, null, "atelier-chat/1.0", false]),
            json!([jti(&ann), "browser", null, null, "Mozilla/5.0 (X11; Linux)", true]),
        ]
    );
    assert_eq!(agent.get("/auth/sessions").await.problem(), (403, "forbidden"));

    // Somebody else's session is not there, and one's own ends with its streams.
    let path = |user: &User| format!("/auth/sessions/{}", jti(user).as_str().unwrap());
    assert_eq!(server.user("bob").delete(&path(&ann)).await.problem(), (404, "not_found"));
    let mut stream = client.events(&format!("{project}/events"), None).await;
    assert_eq!(ann.delete(&path(&client)).await.status, 204);
    while stream.try_next().await.is_some() {}
    assert!(!is_accepted(&client).await);
    assert_eq!(ann.delete(&path(&client)).await.problem(), (404, "not_found"));

    // The command line shows and ends the same sign-in sessions.
    let printed = |arguments: &[&str]| {
        let output = server
            .command(&[arguments, &["--server", &server.url, "--token", &cli.token]].concat());
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (ok, list) = printed(&["sessions"]);
    assert!(ok && list.lines().count() == 3 && list.contains("(this one)"), "{list}");
    assert!(printed(&["sessions", "--end", jti(&agent).as_str().unwrap()]).0);
    assert!(!is_accepted(&agent).await);
    assert!(printed(&["logout", "--everywhere"]).0);
    assert!(!is_accepted(&cli).await && !is_accepted(&ann).await);
}

/// A use is stored, but not with every request.
#[rstest]
#[tokio::test]
async fn requests_do_not_each_write_the_last_use(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let last =
        async || ann.get("/auth/sessions").await.expect(200)["sessions"][0]["last_used_at"].clone();
    let first = last().await;
    for _ in 0..20 {
        ann.get("/my/projects").await.expect(200);
    }
    assert_eq!(last().await, first);
    // After a restart nothing is remembered of it, so the next request stores it again.
    let server = server.restart().await;
    let ann = ann.at(&server);
    eventually("the next use is stored", async || {
        let sessions = ann.get("/auth/sessions").await.expect(200);
        (sessions["sessions"][0]["last_used_at"] != first).then_some(())
    })
    .await;
}
