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
