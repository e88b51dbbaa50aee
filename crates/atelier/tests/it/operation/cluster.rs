//! Three nodes under load, of which one is frozen, cut off, killed, restarted or lives in another
//! time; and the engines behind them.
//!
//! Writers send messages, each with a key of its own, and send a message again until it is
//! acknowledged. At the end, a reader that knows nothing of the server looks into the database.
//! Each test says in its first sentence what has to hold. A little is done in every run, more with
//! `make faults`, which also judges how many messages are acknowledged.

mod load;

use crate::{build, chat::Chat, connect::client::FixedProxy, start};
use atelier_testkit::{
    Backend::{Postgres, Sqlite},
    Bucket, Harm, Hostile, PostgresServer, Server, eventually,
};
use load::{Load, number, random, read_messages};
use rand::Rng;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

const POSTGRES_URL: &str = "ATELIER_DATABASE_URL";

/// What the other nodes have to acknowledge while one is lost, as a part of what they acknowledged
/// before. Only `make faults` judges it, because other tests slow the machine down.
const AVAILABLE: f64 = 0.8;
/// After this time the other nodes do not notice the lost one any more.
const NOTICED: Duration = Duration::from_secs(5);

/// Loses a node for a while: `strike` and `heal` it. The others go on acknowledging messages.
async fn lose_node(load: &Load, victim: usize, time: Duration, strike: impl Fn(), heal: impl Fn()) {
    let judged = std::env::var_os("ATELIER_TEST_AVAILABILITY").is_some();
    let others = || -> Vec<usize> {
        (0..load.nodes()).filter(|n| *n != victim).map(|n| load.acked(n)).collect()
    };
    if judged {
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let since = Instant::now();
    strike();
    // Whatever the speed of the machine is, each of the others acknowledges some.
    let at_first = others();
    eventually("the other nodes acknowledge messages", async || {
        others().iter().zip(&at_first).all(|(now, first)| *now >= first + 5).then_some(())
    })
    .await;
    tokio::time::sleep(time.saturating_sub(since.elapsed())).await;
    let until = Instant::now();
    heal();
    if judged && time > 2 * NOTICED {
        let before = load.rate(victim, since - Duration::from_secs(10), since);
        let during = load.rate(victim, since + NOTICED, until);
        eprintln!("others: {before:.1}/s before, {during:.1}/s while node {victim} is lost");
        assert!(during >= AVAILABLE * before, "{during:.1}/s are too few");
    }
    let back = load.acked(victim);
    eventually("the node acknowledges messages again", async || {
        (load.acked(victim) >= back + 5).then_some(())
    })
    .await;
}

/// OP-06.1: while one of three nodes is frozen, the others acknowledge at least 80 % of what they
/// did before, from 5 s on; every acknowledged message is stored once, no event number is missing,
/// and every task ends with an answer.
#[tokio::test]
async fn frozen_node_costs_the_others_little() {
    let mut random = random();
    let nodes = build(Postgres).start_nodes(3).await;
    let load = Load::start(&nodes).await;
    for _ in 0..number("ATELIER_TEST_FREEZES", 1) {
        let victim = random.random_range(0..3);
        let seconds = match number("ATELIER_TEST_FREEZE_SECONDS", 1) {
            1 => 1,
            longest => random.random_range(1..=longest as u64),
        };
        eprintln!("node {victim} is frozen for {seconds} s");
        let node = &nodes[victim];
        let time = Duration::from_secs(seconds);
        lose_node(&load, victim, time, || node.freeze(), || node.thaw()).await;
    }
    load.end_and_check(&nodes[0]).await;
}

/// OP-06.2: while one of three nodes is cut off from the database, the others acknowledge at least
/// 80 % of what they did before, from 5 s on. Nothing that was acknowledged is lost or doubled.
#[tokio::test]
async fn node_without_the_database_costs_the_others_little() {
    let mut random = random();
    let mut nodes = build(Postgres).start_nodes(2).await;
    let url = nodes[0].database().url();
    let (before, place) = url.split_once('@').unwrap();
    let (address, name) = place.split_once('/').unwrap();
    let proxy = Hostile::before_address(address).await;
    let url = format!("{before}@{}/{name}", proxy.address());
    nodes.push(nodes[0].second_node_with(POSTGRES_URL, &url).await);
    let load = Load::start(&nodes).await;
    for _ in 0..number("ATELIER_TEST_PARTITIONS", 1) {
        let longest = number("ATELIER_TEST_PARTITION_SECONDS", 1) as u64;
        let time = Duration::from_secs(random.random_range(1..=longest));
        let harm = if random.random_bool(0.5) { Harm::Silence } else { Harm::Reset };
        eprintln!("node 2 is cut off for {time:?}: {harm:?}");
        lose_node(&load, 2, time, || proxy.set(harm), || proxy.set(Harm::None)).await;
    }
    load.end_and_check(&nodes[0]).await;
}

/// OP-06.3: nodes that are killed under load lose and double nothing: every acknowledged message is
/// stored once, no event number is missing, and every task ends with an answer, by itself.
#[tokio::test]
async fn killed_nodes_lose_nothing() {
    let mut random = random();
    let mut nodes = build(Postgres).start_nodes(3).await;
    let mut proxies = Vec::new();
    for node in &nodes {
        proxies.push(FixedProxy::to(node).await);
    }
    let load = Load::through(&nodes, proxies.iter().map(|proxy| proxy.url.clone())).await;
    for _ in 0..number("ATELIER_TEST_KILLS", 2) {
        let victim = random.random_range(0..nodes.len());
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1000))).await;
        let mut node = nodes.remove(victim);
        node.kill();
        proxies[victim].block();
        nodes.insert(victim, node.restart_killed().await);
        proxies[victim].point_to(&nodes[victim]);
        load.acknowledges_more(victim).await;
    }
    load.end_and_check(&nodes[0]).await;
}

/// OP-06.4: a rolling restart under load loses nothing, and no task fails.
#[tokio::test]
async fn rolling_restart_loses_nothing() {
    let mut nodes = build(Postgres).start_nodes(3).await;
    let mut proxies = Vec::new();
    for node in &nodes {
        proxies.push(FixedProxy::to(node).await);
    }
    let load = Load::through(&nodes, proxies.iter().map(|proxy| proxy.url.clone())).await;
    for _ in 0..number("ATELIER_TEST_ROLLS", 1) {
        for n in 0..nodes.len() {
            let mut node = nodes.remove(n);
            assert!(node.terminate().await.success());
            proxies[n].block();
            nodes.insert(n, node.restart_killed().await);
            proxies[n].point_to(&nodes[n]);
            load.acknowledges_more(n).await;
        }
    }
    load.end_and_check(&nodes[0]).await;
}

/// A library that moves the clock of a process, made by the C compiler that Rust needs anyway.
fn clock_library(folder: &Path) -> std::path::PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    let code = r#"
        #define _GNU_SOURCE
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *time) {
            int failed = syscall(SYS_clock_gettime, clock, time);
            const char *shift = getenv("CLOCK_SHIFT");
            if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
                time->tv_sec += atol(shift);
            return failed;
        }
    "#;
    std::fs::write(&source, code).unwrap();
    #[expect(clippy::disallowed_methods, reason = "compiles a library for the test")]
    let mut compiler = std::process::Command::new("cc");
    let made = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    let made = made.expect("the C compiler `cc`");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library
}

/// OP-06.5: nodes whose clocks are an hour early and an hour late serve the same users, take no work
/// from each other, and lose and double nothing: leases follow the clock of the database.
#[tokio::test]
async fn clocks_an_hour_apart_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let library = clock_library(folder.path()).display().to_string();
    let first = build(Postgres).environment("LD_PRELOAD", library).start().await;
    let mut nodes = Vec::new();
    for shift in ["3600", "-3600"] {
        nodes.push(first.second_node_with("CLOCK_SHIFT", shift).await);
    }
    nodes.insert(0, first);
    // The clocks do differ.
    let mut dates = BTreeSet::new();
    for node in &nodes {
        let answer = node.http.get(format!("{}/health", node.url)).send().await.unwrap();
        dates.insert(answer.headers()["date"].to_str().unwrap()[17..19].to_owned());
    }
    assert_eq!(dates.len(), 3, "{dates:?}");
    let load = Load::start(&nodes).await;
    for n in 0..nodes.len() {
        load.acknowledges_more(n).await;
    }
    // The leases of all nodes are near the time of the database.
    let mut sql = nodes[0].sql().await;
    let near = "SELECT COUNT(*) FROM nodes WHERE lease_until BETWEEN
                clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'";
    assert_eq!(sql.count(near).await, 3);
    load.end_and_check(&nodes[0]).await;
}

/// OP-06.6: a PostgreSQL that is frozen, stopped and restarted under load loses and doubles nothing,
/// and the server goes on by itself.
#[tokio::test]
async fn postgres_that_comes_and_goes_loses_nothing() {
    let mut random = random();
    let mut postgres = PostgresServer::start().await;
    let server = build(Sqlite).with("DATABASE_URL", postgres.url()).start().await;
    let nodes = [server];
    let load = Load::start(&nodes).await;
    for _ in 0..number("ATELIER_TEST_OUTAGES", 1) {
        let longest = number("ATELIER_TEST_OUTAGE_SECONDS", 1) as u64;
        let time = Duration::from_secs(random.random_range(1..=longest));
        eprintln!("PostgreSQL is frozen, then down, for {time:?} each");
        postgres.freeze();
        tokio::time::sleep(time).await;
        postgres.thaw();
        load.acknowledges_more(0).await;
        postgres.stop();
        tokio::time::sleep(time).await;
        postgres.restart().await;
        load.acknowledges_more(0).await;
    }
    load.end_and_check_at(&postgres.url(), &nodes[0]).await;
}

/// OP-06.7: an object store that refuses, resets, is silent or slow loses no acknowledged upload.
/// Every acknowledged version is in the bucket with its checksum, and reads come back by themselves.
#[tokio::test]
async fn object_store_that_comes_and_goes_loses_no_upload() {
    let bucket = Bucket::new();
    let s3 = Hostile::before(&bucket.endpoint).await;
    let server = build(Postgres)
        .with("OBJECT_STORE", bucket.clone().through(s3.url()).url())
        .with("FILES__PREFIX", &bucket.prefix)
        .with("FILES__STORE_TIMEOUT", "2s")
        .start()
        .await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let mut kept = BTreeMap::new();
    let harms = [Harm::None, Harm::Unavailable, Harm::Reset, Harm::Silence, Harm::Slow];
    for round in 0..number("ATELIER_TEST_OUTAGES", 1) {
        for harm in harms {
            s3.set(harm);
            let name = format!("{round}-{harm:?}.txt");
            let content = format!("{name} {}", "x".repeat(1000));
            let answer = ann.upload(&workspace, &name, content.clone()).await;
            match answer.status.as_u16() {
                201 => drop(kept.insert(name, content)),
                503 => assert_eq!(answer.problem().1, "object_store_unavailable"),
                _ => panic!("{harm:?}: {} {}", answer.status, answer.body),
            }
            s3.set(Harm::None);
            eventually("uploads succeed again", async || {
                (ann.upload(&workspace, "probe.txt", "probe").await.status == 201).then_some(())
            })
            .await;
        }
    }
    assert!(kept.len() >= 2, "an object store that works or is slow takes uploads: {kept:?}");
    // The reader: rows from the database, content from the bucket itself.
    let mut sql = server.database().connect().await;
    let stored: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT f.file_path, b.object_key, b.file_size FROM conversation_files f
         JOIN file_blobs b ON b.conversation_id = f.conversation_id AND b.checksum = f.checksum",
    )
    .fetch_all(&mut sql)
    .await
    .unwrap();
    let stored: BTreeMap<String, (String, i64)> =
        stored.into_iter().map(|(path, key, size)| (path, (key, size))).collect();
    for (name, content) in &kept {
        let (key, size) = stored.get(name).unwrap_or_else(|| panic!("{name}: {stored:?}"));
        let object = bucket.read(key).await;
        assert_eq!(object.as_deref(), Some(content.as_bytes()), "{name}");
        assert_eq!(*size, content.len() as i64);
    }
}

/// OP-06.8: one user who floods the server does not keep others from being served. With `make
/// faults`, the 99th percentile of another user stays below twice what it was.
#[tokio::test]
async fn flood_of_one_user_delays_others_little() {
    let server = start(Sqlite).await;
    let (flooder, ann) = (server.user("flooder"), server.user("ann"));
    let (his, hers) = (flooder.project("flood").await, ann.project("shop").await);
    let rounds = number("ATELIER_TEST_FLOOD_REQUESTS", 20);
    let times = async || {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let since = Instant::now();
            ann.get(&hers).await.expect(200);
            times.push(since.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.sort();
        times[times.len() * 99 / 100]
    };
    let before = times().await;
    let flood = tokio::spawn(async move {
        let connections = (0..200).map(|_| async {
            loop {
                drop(flooder.request(reqwest::Method::GET, &his).send().await);
            }
        });
        futures::future::join_all(connections).await;
    });
    let during = times().await;
    flood.abort();
    eprintln!("99th percentile: {before:?} before, {during:?} during the flood");
    if std::env::var_os("ATELIER_TEST_AVAILABILITY").is_some() {
        let limit = 2 * before.max(Duration::from_millis(50));
        assert!(during <= limit, "{during:?} is more than {limit:?}");
    }
}

/// Messages that a server accepted are read by somebody who knows only the database.
#[tokio::test]
async fn reader_notices_a_lost_and_a_doubled_message() {
    let server: Server = start(Postgres).await;
    let chat = Chat::new(&server, "ann").await;
    chat.send("kept", Some("coder")).await;
    chat.send("doubled", Some("coder")).await;
    chat.send("doubled", Some("coder")).await;
    let stored = read_messages(&server.database().url()).await;
    assert_eq!(json!(stored), json!({"doubled": 2, "kept": 1}));
}
