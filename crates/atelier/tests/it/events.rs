//! The event stream: every change appears once and in order, whatever happens to the connection or
//! the server.

use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    SseEvent, User, eventually,
};
use rand::Rng;
use rstest::rstest;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

fn names(events: &[SseEvent]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

fn numbers(events: &[SseEvent]) -> Vec<u64> {
    events.iter().map(SseEvent::number).collect()
}

/// A page that has just been opened needs only the latest events.
#[rstest]
#[tokio::test]
async fn stream_can_begin_with_the_latest_events(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    ann.put(&project, json!({"name": "store"})).await.expect(200);

    let tail = ann.events(&format!("{project}/events?tail=2"), None).await.take(2).await;
    assert_eq!(names(&tail), ["WORKER_SPACE_READY", "PROJECT_UPDATED"]);
    assert_eq!(numbers(&tail), [6, 7]);
    // If fewer events exist than requested, all of them are sent, in this stream and in the stream
    // of all projects.
    let all = ann.events(&format!("{project}/events?tail=1000"), None).await.take(7).await;
    assert_eq!(numbers(&all), Vec::from_iter(1..=7));
    let mine = ann.events("/my/events?tail=1", None).await.next().await;
    assert_eq!(mine.name, "PROJECT_UPDATED");
    // `Last-Event-ID` takes precedence over `tail`.
    let on = ann.events(&format!("{project}/events?tail=1"), Some("3")).await.next().await;
    assert_eq!(on.number(), 4);
    assert_eq!(ann.get(&format!("{project}/events?tail=100001")).await.status, 422);
}

#[rstest]
#[tokio::test]
async fn every_change_is_an_event_in_order(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let renamed = ann.put(&project, json!({"name": "store"})).await.expect(200);
    let agent = ann.post(&format!("{project}/agents"), json!({"name": "x"})).await.expect(201);
    let changed = ann.put(&format!("{project}/agents/x"), json!({"name": "y"})).await.expect(200);
    assert_eq!(ann.delete(&format!("{project}/agents/y")).await.status, 204);

    let mut stream = ann.events(&format!("{project}/events?after=0"), None).await;
    let events = stream.take(10).await;
    assert_eq!(
        names(&events),
        [
            "PROJECT_CREATED",
            "AGENT_CREATED",
            "AGENT_CREATED",
            "AGENT_CREATED",
            "AGENT_CREATED",
            "WORKER_SPACE_READY",
            "PROJECT_UPDATED",
            "AGENT_CREATED",
            "AGENT_UPDATED",
            "AGENT_DELETED"
        ]
    );
    assert_eq!(numbers(&events), Vec::from_iter(1..=10));
    assert_eq!(events[6].data["project"], renamed);
    // Which model answers depends on the keys at the time of asking, so events do not tell.
    let stored = |agent: &Value| {
        let mut stored = agent.clone();
        let fields = stored.as_object_mut().unwrap();
        for asked in ["answered_by", "model_problem"] {
            assert!(fields.remove(asked).is_some(), "{asked} is missing: {agent}");
        }
        stored
    };
    assert_eq!(events[7].data["agent"], stored(&agent));
    assert_eq!(events[8].data["agent"], stored(&changed));
    assert_eq!(events[9].data["agent_id"], agent["id"]);
    for event in &events {
        assert_eq!(event.data["type"], event.name);
        assert_eq!(event.data["project_id"], project.rsplit('/').next().unwrap());
        assert!(event.data["created_at"].is_string());
    }

    // Followers of the project are notified of its deletion.
    assert_eq!(ann.delete(&project).await.status, 204);
    assert_eq!(stream.next().await.name, "PROJECT_DELETED");
}

#[rstest]
#[tokio::test]
async fn last_event_id_resumes_without_gap_or_duplicate(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let path = format!("{}/events", ann.project("shop").await);
    let first = ann.events(&path, Some("0")).await.take(3).await;
    let rest = ann.events(&path, Some(&first[2].id)).await.take(2).await;
    assert_eq!(numbers(&[first, rest].concat()), [1, 2, 3, 4, 5]);
    // The header takes precedence over the query, because a browser sends it when it reconnects.
    let both = ann.events(&format!("{path}?after=0"), Some("4")).await.next().await;
    assert_eq!(both.number(), 5);
}

/// Twenty readers disconnect at random and come back, a thousand times in all, while events are
/// written.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_disconnects_lose_and_repeat_nothing(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    const READERS: usize = 20;
    const VISITS: usize = 50;
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let path = format!("{project}/events");
    let (done, finished) = tokio::sync::watch::channel(false);
    let writer = tokio::spawn({
        let (ann, agent) = (ann.clone(), format!("{project}/agents/coder"));
        async move {
            let mut n = 0;
            while !*finished.borrow() {
                n += 1;
                ann.put(&agent, json!({"config": {"max_tokens": 1 + n % 1000}})).await.expect(200);
            }
        }
    });
    let readers = (0..READERS).map(|_| {
        let (ann, path) = (ann.clone(), path.clone());
        tokio::spawn(async move {
            let mut seen = 0;
            for _ in 0..VISITS {
                let mut stream = ann.events(&path, Some(&seen.to_string())).await;
                let want = rand::rng().random_range(1..8);
                for _ in 0..want {
                    let event = stream.next().await;
                    assert_eq!(event.number(), seen + 1, "no gap, no duplicate");
                    seen = event.number();
                }
                // Dropping the stream cuts the connection at a random point.
            }
            seen
        })
    });
    for reader in futures::future::join_all(readers).await {
        assert!(reader.unwrap() >= VISITS as u64);
    }
    done.send_replace(true);
    writer.await.unwrap();
}

/// Changes that were acknowledged before kill -9 are there afterwards, with their events.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_loses_nothing_that_was_acknowledged(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let mut acknowledged: BTreeSet<String> = BTreeSet::new();
    for round in 0..5 {
        let ann = ann.at(&server);
        let writers = (0..8).map(|w| {
            let (ann, agents) = (ann.clone(), format!("{project}/agents"));
            tokio::spawn(async move {
                let mut done = Vec::new();
                for n in 0.. {
                    let name = format!("r{round}w{w}n{n}");
                    // Not `post`, because a broken connection is expected here.
                    let request = ann.request("POST".parse().unwrap(), &agents);
                    match request.json(&json!({"name": name})).send().await {
                        Ok(answer) if answer.status() == 201 => done.push(name),
                        _ => return done,
                    }
                }
                unreachable!("it ends by being killed")
            })
        });
        let writers: Vec<_> = writers.collect();
        let some = rand::rng().random_range(5..60);
        let mut stream = ann.events(&format!("{project}/events"), None).await;
        stream.take(some).await;
        server.kill();
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        server = server.restart_killed().await;
    }
    let ann = ann.at(&server);
    let mut found = BTreeSet::new();
    while let page =
        ann.get(&format!("{project}/agents?limit=1000&offset={}", found.len())).await.expect(200)
        && let Some(agents) = page["agents"].as_array().filter(|agents| !agents.is_empty())
    {
        found.extend(agents.iter().map(|agent| agent["name"].as_str().unwrap().to_owned()));
    }
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert_eq!(lost, Vec::<&String>::new());
    assert!(
        acknowledged.len() > 20,
        "the test has to have written something: {}",
        acknowledged.len()
    );

    // The log has exactly one event for each, numbered without gaps.
    let mut stream = ann.events(&format!("{project}/events"), Some("0")).await;
    let mut created = BTreeSet::new();
    let mut expected = 1;
    while created.len() < found.len() {
        let event = stream.next().await;
        assert_eq!(event.number(), expected);
        expected += 1;
        if event.name == "AGENT_CREATED" {
            assert!(created.insert(event.data["agent"]["name"].as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(created, found);
}

#[rstest]
#[tokio::test]
async fn unknown_or_expired_event_id_gets_a_reset(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("EVENTS__KEEP_EVENTS", 3).start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let path = format!("{project}/events");
    for id in ["999", "-1", "nonsense", "1e3", "u1", "99999999999999999999999"] {
        let mut stream = ann.events(&path, Some(id)).await;
        let reset = stream.next().await;
        assert_eq!((reset.name.as_str(), reset.id.as_str()), ("STREAM_RESET", "6"), "{id}");
        assert_eq!(reset.data["snapshot"]["project"]["name"], "shop");
        assert_eq!(reset.data["snapshot"]["agents"].as_array().unwrap().len(), 4);
        assert_eq!(reset.data["snapshot"]["pending"], json!([]));
    }
    // After a restart, retention has removed all events but the last three.
    let server = server.restart().await;
    let ann = ann.at(&server);
    eventually("old events are swept", async || {
        let first = ann.events(&path, Some("1")).await.next().await;
        (first.name == "STREAM_RESET").then_some(())
    })
    .await;
    let kept = ann.events(&path, Some("0")).await.next().await;
    assert!(kept.number() >= 4, "0 replays what is kept: {}", kept.id);
    let mut stream = ann.events(&path, Some("1")).await;
    let reset = stream.next().await;
    let next = ann.put(&project, json!({"name": "store"})).await.expect(200);
    let event = stream.next().await;
    assert_eq!(event.number(), reset.number() + 1, "and goes on from there");
    assert_eq!(event.data["project"], next);
}

#[rstest]
#[tokio::test]
async fn one_stream_carries_the_events_of_all_projects(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let (ann, bob) = (server.user("ann"), server.user("bob"));
    bob.project("secret").await;
    let mut live = ann.events("/my/events", None).await;
    let projects = [ann.project("a").await, ann.project("b").await];
    let events = live.take(10).await;
    let of = |n: usize| projects[n].rsplit('/').next().unwrap();
    let reported: Vec<&Value> = events.iter().map(|event| &event.data["project_id"]).collect();
    assert_eq!(reported, [vec![of(0); 5], vec![of(1); 5]].concat());

    let mut resumed = ann.events("/my/events", Some(&events[6].id)).await;
    assert_eq!(resumed.take(3).await, events[7..]);
    let replayed = ann.events("/my/events?after=0", None).await.take(10).await;
    assert_eq!(replayed, events);
    // Ids of one stream are unknown to the other.
    assert_eq!(ann.events("/my/events", Some("3")).await.next().await.name, "STREAM_RESET");
    // The last event of a project is its deletion.
    assert_eq!(ann.delete(&projects[0]).await.status, 204);
    assert_eq!(live.until("PROJECT_DELETED").await.data["project_id"], of(0));
}

#[tokio::test]
async fn events_written_on_one_node_reach_readers_of_another_on_postgres() {
    let one = start(Postgres).await;
    let two = one.second_node().await;
    let ann = one.user("ann");
    let project = ann.project("shop").await;
    let agent = format!("{project}/agents/coder");
    let mut here = ann.events(&format!("{project}/events"), Some("0")).await;
    let mut there = ann.at(&two).events(&format!("{project}/events"), Some("0")).await;
    let mut mine = ann.at(&two).events("/my/events?after=0", None).await;
    // Both nodes write at the same time, and all readers see the same order.
    let write = async |user: &User, base: u32| {
        for n in 0..20 {
            user.put(&agent, json!({"config": {"max_tokens": base + n}})).await.expect(200);
        }
    };
    let other = ann.at(&two);
    tokio::join!(write(&ann, 100), write(&other, 200));
    // 5 events of the project, one or two of worker spaces, 40 of changes.
    let (a, b) = (here.take(46).await, there.take(46).await);
    assert_eq!(numbers(&a), Vec::from_iter(1..=46));
    assert_eq!(a, b);
    let data =
        |events: &[SseEvent]| events.iter().map(|event| event.data.clone()).collect::<Vec<_>>();
    assert_eq!(data(&mine.take(46).await), data(&a));
}

/// Two nodes change a project and its agents at the same time.
#[tokio::test]
async fn nodes_do_not_deadlock_on_postgres() {
    let one = start(Postgres).await;
    let two = one.second_node().await;
    let ann = one.user("ann");
    let project = ann.project("shop").await;
    let there = ann.at(&two);
    let changes = [(&ann, 0), (&there, 1), (&ann, 2), (&there, 3)].map(|(user, worker)| {
        let (user, project) = (user.clone(), project.clone());
        tokio::spawn(async move {
            for n in 0..15 {
                user.put(&project, json!({"settings": {"metadata": {"n": n, "by": worker}}}))
                    .await
                    .expect(200);
                let agent = format!("{project}/agents/coder");
                user.put(&agent, json!({"config": {"max_tokens": 1 + n}})).await.expect(200);
            }
        })
    });
    for change in changes {
        change.await.unwrap();
    }
}

#[rstest]
#[tokio::test]
async fn idle_stream_sends_heartbeats(#[values(Sqlite)] backend: Backend) {
    let server = build(backend).with("SERVER__HEARTBEAT", "50ms").start().await;
    let ann = server.user("ann");
    let mut stream = ann.events("/my/events", None).await;
    assert_eq!(stream.comment().await, "hello");
    assert_eq!(stream.comment().await, "alive");
    assert_eq!(stream.comment().await, "alive");
}

/// After the reader has reconnected, it has missed nothing.
#[rstest]
#[tokio::test]
async fn stalled_reader_is_disconnected(#[values(Sqlite)] backend: Backend) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = build(backend).with("SERVER__WRITE_TIMEOUT", "300ms").start().await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut idle = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {project}/events?after=0 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        ann.token
    );
    idle.write_all(request.as_bytes()).await.unwrap();
    eventually("the stream is open", async || {
        (server.metric("atelier_event_streams").await == 1.0).then_some(())
    })
    .await;
    // More than the socket buffers can hold.
    let prompt = "x".repeat(90_000);
    let mut written = 0;
    let mut open = 1.0;
    while open > 0.0 {
        let change = json!({"config": {"system_prompt": format!("{prompt}{written}")}});
        ann.put(&format!("{project}/agents/coder"), change).await.expect(200);
        written += 1;
        assert!(written < 1000, "the reader was never cut off");
        open = server.metric("atelier_event_streams").await;
    }
    // Data that was already sent can still be read. Then the connection ends.
    let mut rest = Vec::new();
    drop(
        tokio::time::timeout(Duration::from_secs(10), idle.read_to_end(&mut rest))
            .await
            .expect("an end"),
    );
    let text = String::from_utf8_lossy(&rest);
    let last = text.split("\n\n").filter(|block| block.contains("\ndata: ")).count();
    let resumed =
        ann.events(&format!("{project}/events"), Some(&last.to_string())).await.next().await;
    assert_eq!(resumed.number(), last as u64 + 1);
}
