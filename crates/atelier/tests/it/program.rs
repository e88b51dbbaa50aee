//! The program as its operator uses it: start, stop, configuration, diagnosis.

use crate::{BINARY, build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// A new data folder, one command, a link, and a project with four agents.
#[rstest]
#[tokio::test]
async fn first_start_prints_a_sign_in_link(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let greeting = server.greeting();
    let (_, code) = greeting.split_once("/#sign-in=").expect("a link");
    let code = code.split_whitespace().next().unwrap();
    assert!(!server.log().contains(code), "what signs in is not in the log");

    let nobody = server.bearer("");
    let token = nobody.post("/auth/sign-in", json!({"code": code})).await.expect(200);
    let owner = server.bearer(token["token"].as_str().unwrap());
    let me = owner.get("/auth/me").await.expect(200);
    assert_eq!((&me["tenant"], &me["role"]), (&json!("default"), &json!("admin")));
    assert_eq!(
        me["user_id"],
        server.user("owner").claims()["sub"],
        "the same person as by `atelier token`"
    );
    let projects = owner.get("/my/projects").await.expect(200);
    assert_eq!(projects["total"], 1);
    let id = projects["projects"][0]["id"].as_str().unwrap();
    assert_eq!(owner.get(&format!("/my/projects/{id}/agents")).await.expect(200)["total"], 4);

    let again = nobody.post("/auth/sign-in", json!({"code": code})).await;
    assert_eq!(again.problem(), (401, "unauthorized"), "once means once");
    let server = server.restart().await;
    assert!(!server.greeting().contains("sign-in"), "and only on the first start");

    // The printed command works in any terminal and gives the same rights.
    let greeting = server.greeting();
    let printed = greeting.lines().find(|line| line.contains(" token --user ")).expect("a command");
    #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", printed]).env_clear().output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{printed}");
    let back = server.bearer(String::from_utf8(output.stdout).unwrap().trim());
    let again = back.get("/auth/me").await.expect(200);
    assert_eq!((&again["user_id"], &again["role"]), (&me["user_id"], &me["role"]));
}

/// A token from the wrong data folder would be refused by every server.
#[test]
fn token_command_reports_that_it_created_a_secret() {
    let home = tempfile::tempdir().unwrap();
    let token = || {
        let arguments = ["token", "--user", "ann", "--data", "fresh"];
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        let output = command.args(arguments).current_dir(home.path()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(token().contains("there was no secret in"));
    assert_eq!(token(), "", "the second one is of known data");
}

#[rstest]
#[tokio::test]
async fn server_finishes_requests_before_it_stops(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut stream = ann.events(&format!("{project}/events"), Some("0")).await;
    stream.until("WORKER_SPACE_READY").await;
    let work = (0..20).map(|n| {
        let (ann, agents) = (ann.clone(), format!("{project}/agents"));
        tokio::spawn(async move {
            let request = ann.request("POST".parse().unwrap(), &agents);
            request
                .json(&json!({"name": format!("n{n}")}))
                .send()
                .await
                .map(|answer| answer.status().as_u16())
        })
    });
    let work: Vec<_> = work.collect();
    stream.until("AGENT_CREATED").await;
    let status = server.terminate().await;
    assert!(status.success(), "{status}");
    assert!(server.log().contains("SIGTERM"));
    assert_eq!(stream_end(&mut stream).await, None, "streams end instead of hanging");
    let mut acknowledged = 0;
    for ask in work {
        // Refused connections are allowed, but no acknowledged request may be lost.
        if let Ok(status) = ask.await.unwrap() {
            assert_eq!(status, 201);
            acknowledged += 1;
        }
    }
    let server = server.restart_killed().await;
    let total = ann.at(&server).get(&format!("{project}/agents")).await.expect(200)["total"]
        .as_u64()
        .unwrap();
    assert!(total >= 4 + acknowledged, "{total} of {acknowledged}");
}

async fn stream_end(stream: &mut atelier_testkit::Events) -> Option<()> {
    while stream.try_next().await.is_some() {}
    None
}

#[tokio::test]
async fn data_folder_and_secret_are_private() {
    let server = start(Sqlite).await;
    let mode = |path: &str| {
        std::fs::metadata(server.data().join(path)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("secret.key"), 0o600);
}

/// On all addresses the printed link has a real one, and without TLS there is a warning.
#[tokio::test]
async fn public_address_without_tls_is_warned_about() {
    const WARNING: &str = "without TLS";
    let local = start(Sqlite).await;
    assert!(!local.greeting().contains(WARNING), "{}", local.greeting());
    for all in ["0.0.0.0:0", "[::]:0"] {
        let server = build(Sqlite).with("LISTEN", all).start().await;
        let greeting = server.greeting();
        let bound = all.trim_end_matches('0');
        assert!(greeting.contains(&format!("the server listens on {bound}")), "{greeting}");
        assert!(greeting.contains(WARNING) && greeting.contains("--tls-cert"), "{greeting}");
        let link = greeting.split_whitespace().find(|word| word.contains("#sign-in=")).unwrap();
        assert!(!link.contains("0.0.0.0") && !link.contains("[::]"), "{link}");
        // It leads to the server.
        let page = server.http.get(link).send().await.unwrap();
        assert_eq!(page.status(), 200);
        server.user("ann").get("/auth/me").await.expect(200);
    }
    // Behind a proxy with TLS, people use the proxy's address.
    let proxied = build(Sqlite)
        .with("LISTEN", "0.0.0.0:0")
        .with("SERVER__PUBLIC_URL", "https://atelier.example/");
    let greeting = proxied.start().await.greeting();
    assert!(!greeting.contains(WARNING), "{greeting}");
    assert!(greeting.contains("https://atelier.example/#sign-in="), "{greeting}");
}

#[tokio::test]
async fn two_servers_do_not_share_an_embedded_database() {
    let server = start(Sqlite).await;
    let second = server.command(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success());
    let printed_text = String::from_utf8_lossy(&second.stderr);
    assert!(printed_text.contains("another Atelier server is using"), "{printed_text}");
}

#[tokio::test]
async fn token_command_needs_no_server_and_keeps_user_ids() {
    const PROJECT: &str = "0198c6f0-0000-7000-8000-000000000001";
    let mut server = start(Sqlite).await;
    let (one, other) =
        (server.user("ann").claims(), server.user_with("ann", &["--tenant", "acme"]).claims());
    server.kill();
    let again = server
        .user_with("ann", &["--role", "client", "--project", PROJECT, "--ttl", "1h"])
        .claims();
    assert_eq!(one["sub"], again["sub"]);
    assert_ne!(one["sub"], other["sub"]);
    assert_ne!(one["jti"], again["jti"]);
    assert_eq!((&again["role"], &other["tenant"]), (&json!("client"), &json!("acme")));
    assert_eq!(again["exp"].as_i64().unwrap() - again["iat"].as_i64().unwrap(), 3600);

    for (arguments, printed_text) in [
        (&["--role", "king"][..], "user, admin, client or agent"),
        (&["--role", "agent"], "is for one project: name it with --project"),
        (&["--role", "client"], "is for one project: name it with --project"),
        (&["--project", PROJECT], "--project is for the roles client and agent"),
        (&["--role", "agent", "--project", "nothing"], "ann has no project \"nothing\""),
        (
            &["--role", "client", "--project", PROJECT, "--conversation", PROJECT],
            "is for the role agent",
        ),
    ] {
        let wrong = server.command(&[&["token", "--user", "ann"], arguments].concat());
        assert!(!wrong.status.success() && wrong.stdout.is_empty(), "{arguments:?}");
        let error = String::from_utf8_lossy(&wrong.stderr);
        assert!(error.contains(printed_text), "{arguments:?}: {error}");
    }
}

/// Nodes get their shared keys from one folder, such as a mounted secret that they cannot write.
#[tokio::test]
async fn nodes_share_the_keys_of_one_folder() {
    let keys = tempfile::tempdir().unwrap();
    for name in ["secret.key", "models.key"] {
        std::fs::write(keys.path().join(name), [7; 32]).unwrap();
    }
    let node = || build(Sqlite).with("KEYS", keys.path().display()).start();
    let (first, second) = (node().await, node().await);
    let ann = first.user("ann");
    assert_eq!(second.bearer(&ann.token).get("/auth/limits").await.status, 200);
    for name in ["secret.key", "models.key"] {
        assert!(!first.data().join(name).exists(), "{name} is in the folder of the keys only");
    }
    let mode = std::fs::Permissions::from_mode(0o440);
    std::fs::set_permissions(keys.path().join("secret.key"), mode).unwrap();
    let examined = first.command(&["doctor"]);
    assert!(!String::from_utf8_lossy(&examined.stdout).contains("other users can read"));
}

/// Flags override the environment, which overrides the file, which overrides defaults; secrets are
/// masked.
#[tokio::test]
async fn configuration_is_layered() {
    let server = start(Sqlite).await;
    let file = server.data().join("atelier.toml");
    let written = "listen = \"127.0.0.1:1\"\n[events]\nkeep_days = 7\nkeep_events = 70\n\
                   [[starter_pack]]\nname = \"agent_solo\"\n";
    std::fs::write(&file, written).unwrap();
    let print = |environment: &[(&str, &str)], flags: &[&str]| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        command.args(["serve", "--print-config"]).args(flags).current_dir(server.data());
        command.env_remove("ATELIER_DATA").envs(environment.iter().copied());
        let output = command.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (_, shown, _) = print(
        &[
            ("ATELIER_EVENTS__KEEP_DAYS", "5"),
            ("ATELIER_DATABASE_URL", "postgres://me:hunter2@db/x"),
            ("ATELIER_TOKEN", "t"),
        ],
        &["--listen", "127.0.0.1:2"],
    );
    for line in [
        "listen = \"127.0.0.1:2\"",
        "keep_days = 5",
        "keep_events = 70",
        "name = \"agent_solo\"",
        "inactivity = \"30m\"",
    ] {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
    assert!(!shown.contains("hunter2") && shown.contains("postgres://…@db/x"), "{shown}");

    for (environment, word) in [
        (("ATELIER_EVENTS__KEEP_DAYS", "many"), "keep_days"),
        (("ATELIER_EVENTS__KEEP_WEEKS", "1"), "keep_weeks"),
        (("ATELIER_DATABASE_URL", "mysql://x"), "postgres://"),
    ] {
        let (success, _, printed_text) = print(&[environment], &[]);
        assert!(
            !success && printed_text.to_lowercase().contains(word),
            "{environment:?}: {printed_text}"
        );
    }
}

#[tokio::test]
async fn starter_agents_come_from_the_configuration() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        config.path(),
        "[[starter_pack]]\nname = \"solo\"\nconfig = { max_tokens = 7 }\n",
    )
    .unwrap();
    let server = build(Sqlite).with("CONFIG", config.path().display()).start().await;
    let ann = server.user("ann");
    let agents = ann.get(&format!("{}/agents", ann.project("shop").await)).await.expect(200);
    assert_eq!(agents["total"], 1);
    assert_eq!(
        (&agents["agents"][0]["name"], &agents["agents"][0]["config"]["max_tokens"]),
        (&json!("solo"), &json!(7))
    );
}

#[rstest]
#[tokio::test]
async fn doctor_reports_a_healthy_installation(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let output = server.command(&["doctor"]);
    let printed_text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed_text}");
    assert!(printed_text.contains("✓ database: answers, schema"), "{printed_text}");
}

#[tokio::test]
async fn doctor_reports_problems() {
    let server = start(Sqlite).await;
    let data = tempfile::tempdir().unwrap();
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = data.path().join("broken.toml");
    let place = data.path().to_str().unwrap();
    let doctor = |settings: &str| {
        std::fs::write(&config, settings).unwrap();
        let output =
            server.command(&["doctor", "--config", config.to_str().unwrap(), "--data", place]);
        assert!(!output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let printed_text = doctor(
        "database_url = \"postgres://nobody@127.0.0.1:1/none\"\n[auth]\njwks = \"/nowhere.json\"\n",
    );
    for word in [
        "✗ data folder: other users can read",
        "chmod 700",
        "✗ database: cannot open",
        "✗ identity provider",
    ] {
        assert!(printed_text.contains(word), "{word} in\n{printed_text}");
    }
    std::fs::write(data.path().join("atelier.db"), "not a database ".repeat(100)).unwrap();
    let printed_text = doctor("");
    assert!(printed_text.contains("✗ database:"), "{printed_text}");
}

#[tokio::test]
async fn login_checks_and_stores_a_token() {
    let server = start(Sqlite).await;
    let home = tempfile::tempdir().unwrap();
    let login = |token: &str| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        command.args(["login", "--server", &server.url]).env("ATELIER_TOKEN", token);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").output().unwrap()
    };
    let path = home.path().join(".config/atelier/credentials.json");
    assert!(!login("a.b.c").status.success());
    assert!(!path.exists(), "a bad token is not stored");

    let ann = server.user("ann");
    let output = login(&ann.token);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stderr).contains(&ann.token));
    let stored: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(stored["servers"][&server.url], ann.token);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    // A sign-in link works as well.
    let greeting = server.greeting();
    let link = greeting.split_whitespace().find(|word| word.contains("#sign-in=")).unwrap();
    assert!(login(link).status.success());
}

#[rstest]
#[tokio::test]
async fn health_and_ready_need_no_token(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let nobody = server.bearer("");
    let health = nobody.get("/health").await.expect(200);
    assert_eq!((&health["status"], &health["service"]), (&json!("ok"), &json!("atelier")));
    let kind = if backend == Sqlite { "sqlite" } else { "postgres" };
    let ready = nobody.get("/ready").await.expect(200);
    assert_eq!(ready["status"], "healthy", "{ready}");
    assert_eq!(
        ready["parts"][0],
        json!({"name": "store", "status": "healthy", "reason": format!("{kind} answers")})
    );
}

#[tokio::test]
async fn page_allows_no_inline_script_and_no_other_server() {
    let server = start(Sqlite).await;
    let page = server.http.get(&server.url).send().await.unwrap();
    assert_eq!(page.status(), 200);
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    let directives = policy.split("; ").map(|directive| directive.split_once(' ').unwrap());
    let directives: Vec<(&str, &str)> = directives.collect();
    assert!(directives.contains(&("default-src", "'none'")), "{policy}");
    assert!(directives.contains(&("script-src", "'self'")), "{policy}");
    let own = ["'none'", "'self'", "data:", "blob:"];
    let sources = directives.iter().flat_map(|(_, sources)| sources.split(' '));
    let other: Vec<&str> = sources.filter(|source| !own.contains(source)).collect();
    assert!(other.is_empty(), "{policy}");
}

#[tokio::test]
async fn server_supports_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = build(Sqlite)
        .argument("--tls-cert")
        .argument(cert.to_str().unwrap())
        .argument("--tls-key")
        .argument(key.to_str().unwrap())
        .start()
        .await;
    let address: std::net::SocketAddr =
        server.url.strip_prefix("https://").expect("https").parse().unwrap();
    let https = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap()])
        .resolve("localhost", address)
        .build()
        .unwrap();
    let url = format!("https://localhost:{}", address.port());
    let health = https.get(format!("{url}/health")).send().await.unwrap();
    assert_eq!(health.status(), 200);
    // Streams work over TLS as well.
    let ann = server.user("ann");
    let stream =
        https.get(format!("{url}/my/events")).bearer_auth(&ann.token).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    // A client without TLS gets no answer.
    assert!(server.http.get(format!("http://{address}/health")).send().await.is_err());
    // A certificate without a key is refused at the start.
    let half =
        server.command(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert.to_str().unwrap()]);
    assert!(!half.status.success());
}

#[tokio::test]
async fn metrics_can_have_a_separate_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server =
        build(Sqlite).with("SERVER__METRICS_LISTEN", format!("127.0.0.1:{port}")).start().await;
    assert_eq!(server.bearer("").get("/metrics").await.problem(), (404, "not_found"));
    let there = server.http.get(format!("http://127.0.0.1:{port}/metrics")).send().await.unwrap();
    assert!(there.text().await.unwrap().contains("atelier_worker_spaces"));
}

#[tokio::test]
async fn traces_are_sent_over_otlp() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let mut server = build(Sqlite).with("TELEMETRY__OTLP_ENDPOINT", endpoint).start().await;
    server.user("ann").get("/my/projects").await.expect(200);
    let received = tokio::spawn(async move {
        let (mut peer, _) = collector.accept().await.unwrap();
        let mut bytes = Vec::new();
        // Long enough to contain the attributes of the span.
        while !contains(&bytes, b"/my/projects") {
            assert_ne!(
                peer.read_buf(&mut bytes).await.unwrap(),
                0,
                "{}",
                String::from_utf8_lossy(&bytes)
            );
        }
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        bytes
    });
    // A graceful stop sends the remaining traces.
    let (bytes, _) = tokio::join!(received, server.terminate());
    assert!(bytes.unwrap().starts_with(b"POST /v1/traces HTTP/1.1"));
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

#[tokio::test]
async fn logs_are_json_at_the_configured_level() {
    let server = start(Sqlite).await;
    eventually("a line of the log", async || server.log().lines().next().map(str::to_owned)).await;
    for line in server.log().lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let server = start(Sqlite).await;
    let refused = |name: &str, value: &str| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(server.data().join("other"));
        command.env(name, value).current_dir(server.data());
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{name}={value}");
        String::from_utf8(output.stderr).unwrap()
    };
    for (name, value, word) in [
        ("LOG_LEVEL", "verbose", "LOG_LEVEL=verbose"),
        ("ATELIER_SERVER__HEARTBEAT", "0s", "server.heartbeat"),
        ("ATELIER_WORKER_SPACE__MAX_ACTIVE", "0", "worker_space.max_active"),
        ("ATELIER_DATABASE_URL", "postgres://nobody@127.0.0.1:1/none", "refused"),
    ] {
        let printed_text = refused(name, value);
        assert!(printed_text.contains(word), "{name}={value}: {printed_text}");
    }
}

#[tokio::test]
async fn database_file_is_private() {
    let server = start(Sqlite).await;
    for entry in std::fs::read_dir(server.data()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{:?} {mode:o}", entry.file_name());
    }
}

#[tokio::test]
async fn unknown_methods_create_no_metrics() {
    let server = start(Sqlite).await;
    for n in 0..50 {
        let method = reqwest::Method::from_bytes(format!("X{n}").as_bytes()).unwrap();
        server.http.request(method, format!("{}/health", server.url)).send().await.unwrap();
    }
    let text = server.metrics().await;
    assert!(text.contains("method=\"other\"") && !text.contains("X49"), "{text}");
}

/// DY-07: the mistakes that newcomers make are answered with what to do.
#[tokio::test(flavor = "multi_thread")]
async fn common_mistakes_are_answered_with_the_fix() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    ann.project("garden").await;
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], token: &str| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        command.args(arguments).env("ATELIER_TOKEN", token).env("HOME", home.path());
        command.env_remove("XDG_CONFIG_HOME").env("XDG_DATA_HOME", home.path().join("data"));
        let output = tokio::task::block_in_place(|| command.output().unwrap());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let token = ann.token.as_str();
    let address = server.url.strip_prefix("http://").unwrap();

    // An address of this machine needs no scheme, and a login is remembered.
    let (signed_in, _, printed_text) = run(&["login", "--server", address], token);
    assert!(signed_in, "{printed_text}");
    let (listed, projects, printed_text) = run(&["projects", "--json"], "");
    assert!(listed, "{printed_text}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&projects).unwrap()[0]["name"], "garden");
    for list in ["agents", "conversations", "approvals", "tasks"] {
        let (listed, entries, printed_text) = run(&[list, "--json"], "");
        assert!(listed && entries.starts_with('['), "{list}: {printed_text}");
    }
    let (_, agents, _) = run(&["agents"], "");
    assert!(agents.contains("agent_coder") && agents.contains("demo"), "{agents}");

    let other = start(Sqlite).await;
    let stranger = other.user("ann");
    for (arguments, token, words) in [
        (&["projects", "--server", "atelier.example:7420"][..], token, "write https://atelier"),
        (&["agents", "--project", "gardn"], token, "did you mean garden?"),
        (&["projects", "--server", "127.0.0.1:9"], token, "no server answers there; start one"),
        (&["projects"], &stranger.token, "run `atelier login`"),
        (&["serve", "--listen", "24488"], token, "write 127.0.0.1:24488"),
    ] {
        let (done, _, printed_text) = run(arguments, token);
        assert!(!done && printed_text.contains(words), "{arguments:?}: {printed_text}");
        assert_eq!(
            printed_text.lines().filter(|line| line.starts_with("atelier: ")).count(),
            1,
            "{printed_text}"
        );
    }
    // The server says why it refuses a token that was made for another data folder.
    let refused = server.bearer(&stranger.token).get("/auth/me").await;
    assert!(refused.body["detail"].as_str().unwrap().contains("another data folder"));
}
