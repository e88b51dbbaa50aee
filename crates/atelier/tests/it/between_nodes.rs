//! What travels between nodes: the words of a model and news of changes, by PostgreSQL or by Redis.

use crate::{
    build,
    chat::Chat,
    operation::{part, ready},
    refused_config,
};
use atelier_testkit::{
    Backend::Postgres, Events, Harm, Hostile, Reply, ScriptedModel, Server, eventually,
    redis_address,
};
use rstest::rstest;
use serde_json::json;
use sqlx::PgConnection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use uuid::Uuid;

/// Two nodes and, if wanted, a proxy between them and the real Redis.
async fn two_nodes(by_redis: bool, model: &ScriptedModel) -> (Vec<Server>, Hostile) {
    let redis = Hostile::before_address(&redis_address()).await;
    let mut nodes = build(Postgres).model(model);
    if by_redis {
        nodes = nodes.with("REDIS_URL", format!("redis://{}", redis.address()));
    }
    (nodes.start_nodes(2).await, redis)
}

/// Waits until both nodes say this of the notifications between nodes.
async fn notifications_are(nodes: &[Server], status: &str) {
    for node in nodes {
        eventually(&format!("notifications are {status}"), async || {
            let (code, health) = ready(node).await;
            assert_eq!(code, 200, "{health}");
            (part(&health, "notifications")["status"] == status).then_some(())
        })
        .await;
    }
}

/// Reads a stream up to the end of a task, and returns the words that came before it.
async fn words_of_task(events: &mut Events) -> String {
    let mut words = String::new();
    loop {
        let event = events.next().await;
        match event.name.as_str() {
            "MESSAGE_DELTA" => words.push_str(event.data["text"].as_str().unwrap()),
            "TASK_COMPLETED" => return words,
            _ => {}
        }
    }
}

/// UP-04.1: a task runs at one node, and readers at every node see the words of its model in their
/// order, before the message is complete. This is so with PostgreSQL alone and with Redis.
#[rstest]
#[tokio::test]
async fn words_reach_readers_at_other_nodes(#[values(false, true)] by_redis: bool) {
    const TEXT: &str = "one two three four five six seven eight nine ten";
    let model = ScriptedModel::start(|_| Reply::text(TEXT)).await;
    let (nodes, _redis) = two_nodes(by_redis, &model).await;
    if by_redis {
        notifications_are(&nodes, "healthy").await;
    }
    let chat = Chat::new(&nodes[0], "ann").await;
    let mut streams = Vec::new();
    for node in &nodes {
        let mut events = chat.at(node).setup.user.events(&chat.events_path(), None).await;
        assert_eq!(events.comment().await, "hello");
        streams.push(events);
    }
    // A node learns of the others by its heartbeat, and sends words from then on.
    eventually("the words of a task reach both nodes", async || {
        chat.send("count", Some("coder")).await;
        let words = [words_of_task(&mut streams[0]).await, words_of_task(&mut streams[1]).await];
        for words in &words {
            assert!(words.is_empty() || words == TEXT, "{words:?}");
        }
        words.iter().all(|words| words == TEXT).then_some(())
    })
    .await;
}

/// UP-04.2: Redis may be silent, cut off or away for a while. News of changes reaches other nodes
/// all the time, health says what is wrong, and Redis is used again when it is back.
#[rstest]
#[tokio::test]
async fn redis_may_come_and_go(#[values(Harm::Silence, Harm::Reset)] harm: Harm) {
    let model = ScriptedModel::start(|_| Reply::text("done")).await;
    let (nodes, redis) = two_nodes(true, &model).await;
    notifications_are(&nodes, "healthy").await;
    let chat = Chat::new(&nodes[0], "ann").await;
    let mut there = chat.at(&nodes[1]).setup.user.events(&chat.events_path(), None).await;
    assert_eq!(there.comment().await, "hello");
    for round in 0..2 {
        redis.set(harm);
        // The first message may be sent to Redis before anybody knows that it is silent.
        for message in 0..3 {
            chat.send(&format!("{round}.{message}"), Some("coder")).await;
            there.until("TASK_COMPLETED").await;
        }
        notifications_are(&nodes, "degraded").await;
        chat.send("without Redis", Some("coder")).await;
        there.until("TASK_COMPLETED").await;
        redis.set(Harm::None);
        notifications_are(&nodes, "healthy").await;
        chat.send("with Redis", Some("coder")).await;
        there.until("TASK_COMPLETED").await;
    }
    assert_eq!(chat.messages().await.len(), 2 * 2 * 5, "a message and an answer each time");
}

/// What can be sent to the nodes on the channel of a database: by anybody who may publish in Redis.
struct Channel {
    /// The connection to Redis and the name of the channel; `None` if PostgreSQL carries messages.
    redis: Option<(TcpStream, String)>,
    database: PgConnection,
}

impl Channel {
    async fn of(server: &Server, by_redis: bool) -> Self {
        let mut database = server.database().connect().await;
        let redis = match by_redis {
            false => None,
            true => {
                let set_up =
                    "SELECT CAST(EXTRACT(EPOCH FROM MIN(installed_on)) * 1000000 AS BIGINT)
                              FROM _sqlx_migrations";
                let set_up: i64 =
                    sqlx::query_scalar(set_up).fetch_one(&mut database).await.unwrap();
                let redis = TcpStream::connect(redis_address()).await.unwrap();
                Some((redis, format!("atelier:{set_up}")))
            }
        };
        Self { redis, database }
    }

    /// Sends a message in the name of another node.
    async fn send(&mut self, line: &[u8]) {
        let mut message = format!("{}\n", Uuid::now_v7()).into_bytes();
        message.extend_from_slice(line);
        let Some((redis, channel)) = &mut self.redis else {
            let text = String::from_utf8_lossy(&message).into_owned();
            let notify = sqlx::query("SELECT pg_notify('atelier_words', $1)").bind(text);
            notify.execute(&mut self.database).await.unwrap();
            return;
        };
        redis.write_all(b"*3\r\n").await.unwrap();
        for part in [&b"PUBLISH"[..], channel.as_bytes(), &message] {
            redis.write_all(format!("${}\r\n", part.len()).as_bytes()).await.unwrap();
            redis.write_all(part).await.unwrap();
            redis.write_all(b"\r\n").await.unwrap();
        }
        let mut answer = [0; 64];
        assert!(redis.read(&mut answer).await.unwrap() > 0);
        assert_eq!(answer[0], b':', "the message is published");
    }
}

/// UP-04.4: whoever may send on the channel of the nodes can add words of a model to a stream, and
/// no other event. What is no text does not disturb the nodes.
#[rstest]
#[tokio::test]
async fn forged_messages_put_no_events_into_streams(#[values(false, true)] by_redis: bool) {
    let model = ScriptedModel::start(|_| Reply::text("done")).await;
    let (nodes, _redis) = two_nodes(by_redis, &model).await;
    if by_redis {
        notifications_are(&nodes, "healthy").await;
    }
    let chat = Chat::new(&nodes[0], "ann").await;
    let mut events = chat.setup.user.events(&chat.events_path(), None).await;
    assert_eq!(events.comment().await, "hello");
    let owner = chat.setup.user.claims()["sub"].as_str().unwrap().to_owned();
    let project = chat.setup.project.rsplit('/').next().unwrap();
    let session = chat.session.as_str();
    let line = |name: &str, data: &str| {
        format!("words {owner} {project} {session} {name} {data}").into_bytes()
    };
    let task = Uuid::now_v7();
    let words = |project: &str, text: &str| {
        format!(
            r#"{{"type":"MESSAGE_DELTA","project_id":"{project}","session_id":"{session}",
               "task_id":"{task}","text":"{text}"}}"#
        )
        .replace('\n', " ")
    };
    let deleted = format!(
        r#"{{"type":"CONVERSATION_DELETED","project_id":"{project}",
           "created_at":"2026-11-19T20:30:00Z","session_id":"{session}"}}"#
    )
    .replace('\n', " ");
    let mut channel = Channel::of(&nodes[0], by_redis).await;
    let elsewhere = Uuid::now_v7().to_string();
    for forged in [
        line("CONVERSATION_DELETED", &deleted),
        line("MESSAGE_DELTA", &deleted),
        line("MESSAGE_DELTA\rid:\u{a0}7", &words(&elsewhere, "elsewhere")),
        line("MESSAGE_DELTA", "{}\rdata: {}"),
        b"words \xff\xfe".to_vec(),
    ] {
        channel.send(&forged).await;
    }
    channel.send(&line("CONVERSATION_DELETED", &words(project, "last\\r\\n"))).await;
    let event = events.next().await;
    assert_eq!((event.name.as_str(), event.id.as_str()), ("MESSAGE_DELTA", ""));
    let expected = json!({
        "type": "MESSAGE_DELTA", "project_id": project, "session_id": session,
        "task_id": task, "text": "last\r\n",
    });
    assert_eq!(event.data, expected);
    if by_redis {
        let (_, health) = ready(&nodes[0]).await;
        assert_eq!(part(&health, "notifications")["status"], "healthy");
    }
}

/// UP-05.1: a node that is told to stop says so to balancers first. It still answers what reaches
/// it, leaves new tasks to the other nodes, and ends at once when it is told a second time.
#[tokio::test]
async fn stopping_node_hands_over_before_it_ends() {
    let model = ScriptedModel::start(|_| Reply::text("done")).await;
    let drain = build(Postgres).model(&model).with("SERVER__DRAIN", "10m");
    let mut nodes = drain.start_nodes(2).await;
    let chat = Chat::new(&nodes[0], "ann").await;
    chat.ask("before", Some("coder")).await;
    nodes[0].signal("-TERM");
    eventually("the stopping node is not ready", async || {
        let (code, health) = ready(&nodes[0]).await;
        (code == 503).then(|| assert_eq!(part(&health, "node")["reason"], "this node is stopping"))
    })
    .await;
    assert_eq!(ready(&nodes[1]).await.0, 200, "the other node takes requests");
    let answers = async |node: &Server| node.metric("atelier_model_seconds_count").await;
    let before = [answers(&nodes[0]).await, answers(&nodes[1]).await];
    for message in 0..3 {
        chat.ask(&format!("{message}"), Some("coder")).await;
    }
    let after = [answers(&nodes[0]).await, answers(&nodes[1]).await];
    assert_eq!(after, [before[0], before[1] + 3.0], "the other node ran the tasks");
    let status = nodes[0].terminate().await;
    assert_eq!(status.code(), Some(1), "a second signal ends the node at once");
}

/// UP-04.3: an address that is no Redis, and Redis without PostgreSQL, are refused at the start
/// with what to do.
#[test]
fn settings_of_redis_are_checked() {
    let postgres = ("ATELIER_DATABASE_URL", "postgres://localhost/atelier");
    let http = refused_config(&[postgres, ("ATELIER_REDIS_URL", "http://localhost:6379")]);
    assert!(http.contains("redis_url must start with redis:// or rediss://"), "{http}");
    let alone = refused_config(&[("ATELIER_REDIS_URL", "redis://localhost:6379")]);
    assert!(alone.contains("set database_url, or leave redis_url out"), "{alone}");
}
