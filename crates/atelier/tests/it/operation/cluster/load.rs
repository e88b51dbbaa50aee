//! Writers that send messages to nodes until they are acknowledged, and the reader that checks what
//! became of them.

use crate::chat::Chat;
use atelier_testkit::{PATIENCE, Server, eventually};
use rand::{SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// How much a test does: a little in every run, more with `make faults`.
pub(super) fn number(name: &str, few: usize) -> usize {
    std::env::var(name).map_or(few, |number| number.parse().unwrap())
}

/// Random numbers from a seed that is printed, and that `ATELIER_TEST_SEED` sets.
pub(super) fn random() -> StdRng {
    let seed = std::env::var("ATELIER_TEST_SEED")
        .map_or_else(|_| rand::random(), |it| it.parse().unwrap());
    eprintln!("ATELIER_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// A message that was acknowledged: by which node, and when.
struct Acked {
    node: usize,
    time: Instant,
    content: String,
}

/// Writers at each node.
pub(super) struct Load {
    nodes: usize,
    acked: Arc<Mutex<Vec<Acked>>>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

/// How many writers each node has. Each has a user of its own.
const WRITERS: usize = 2;
/// How long a writer waits between two messages.
const PAUSE: Duration = Duration::from_millis(40);
/// How long a writer waits for an answer before it sends its message again.
const TIMEOUT: Duration = Duration::from_secs(6);

impl Load {
    pub(super) async fn start(nodes: &[Server]) -> Self {
        Self::through(nodes, nodes.iter().map(|node| node.url.clone())).await
    }

    /// Writers that reach the nodes at other addresses.
    pub(super) async fn through(nodes: &[Server], urls: impl Iterator<Item = String>) -> Self {
        let (acked, stop) = (Arc::<Mutex<Vec<Acked>>>::default(), Arc::<AtomicBool>::default());
        let mut writers = Vec::new();
        for (node, url) in urls.enumerate() {
            for writer in 0..WRITERS {
                let chat = Chat::new(&nodes[node], &format!("writer-{node}-{writer}")).await;
                let (acked, stop) = (acked.clone(), stop.clone());
                let (user, path) = (chat.setup.user.at_address(&url), chat.message_path());
                writers.push(tokio::spawn(async move {
                    for n in 0.. {
                        let content = format!("{node}-{writer}-{n}");
                        loop {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            let body = json!({"content": content, "target_agent": "coder"});
                            let request = user.request(Method::POST, &path).timeout(TIMEOUT);
                            let request = request.header("Idempotency-Key", &content).json(&body);
                            let sent = request.send().await;
                            tokio::time::sleep(PAUSE).await;
                            if sent.is_ok_and(|answer| answer.status() == 202) {
                                break;
                            }
                        }
                        let time = Instant::now();
                        acked.lock().unwrap().push(Acked { node, time, content });
                    }
                }));
            }
        }
        let load = Self { nodes: nodes.len(), acked, stop, writers };
        for node in 0..load.nodes {
            load.acknowledges_more(node).await;
        }
        load
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many messages a node has acknowledged so far.
    pub(super) fn acked(&self, node: usize) -> usize {
        self.acked.lock().unwrap().iter().filter(|acked| acked.node == node).count()
    }

    /// How many messages all other nodes acknowledged in a second.
    pub(super) fn rate(&self, except: usize, from: Instant, to: Instant) -> f64 {
        let acked = self.acked.lock().unwrap();
        let during = acked.iter().filter(|acked| acked.node != except);
        let during = during.filter(|acked| (from..to).contains(&acked.time)).count();
        during as f64 / (to - from).as_secs_f64()
    }

    /// Waits until a node has acknowledged more messages than it has now.
    pub(super) async fn acknowledges_more(&self, node: usize) {
        let before = self.acked(node);
        eventually("the node acknowledges more messages", async || {
            (self.acked(node) >= before + 5).then_some(())
        })
        .await;
    }

    /// Ends the load and checks what is in the database of the server.
    pub(super) async fn end_and_check(self, server: &Server) {
        let url = server.database().url();
        self.end_and_check_at(&url, server).await;
    }

    pub(super) async fn end_and_check_at(self, url: &str, server: &Server) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.unwrap();
        }
        let mut sql = PgConnection::connect(url).await.unwrap();
        let mut count = async |query: &'static str| -> i64 {
            sqlx::query_scalar(query).fetch_one(&mut sql).await.unwrap()
        };
        // Agents may have much to do still.
        let since = Instant::now();
        while count("SELECT COUNT(*) FROM tasks WHERE status <> 'completed'").await > 0 {
            let failed = count("SELECT COUNT(*) FROM tasks WHERE status = 'failed'").await;
            assert_eq!(failed, 0, "every task ends with an answer\n{}", server.log());
            assert!(since.elapsed() < 6 * PATIENCE, "tasks do not end\n{}", server.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for numbers in [
            "SELECT COUNT(*) FROM (SELECT COUNT(*) AS events, MAX(seq) AS last FROM events
             GROUP BY project_id) AS numbers WHERE events <> last",
            "SELECT COUNT(*) FROM (SELECT COUNT(*) AS events, MAX(user_seq) AS last FROM events
             GROUP BY user_id) AS numbers WHERE events <> last",
        ] {
            assert_eq!(count(numbers).await, 0, "no event number is missing");
        }
        let stored = read_messages(url).await;
        let acked = self.acked.lock().unwrap();
        eprintln!("{} messages were acknowledged, {} are stored", acked.len(), stored.len());
        for Acked { content, .. } in acked.iter() {
            assert_eq!(stored.get(content), Some(&1), "{content} was acknowledged once");
        }
        let doubled: Vec<_> = stored.iter().filter(|(_, times)| **times > 1).collect();
        assert!(doubled.is_empty(), "{doubled:?}");
        // A writer may have given up its last message without an answer.
        assert!(stored.len() <= acked.len() + self.nodes * WRITERS, "messages that nobody sent");
    }
}

/// The messages of all users, and how often each is in the database.
pub(super) async fn read_messages(url: &str) -> BTreeMap<String, usize> {
    let mut sql = PgConnection::connect(url).await.unwrap();
    let records: Vec<String> =
        sqlx::query_scalar("SELECT record FROM messages").fetch_all(&mut sql).await.unwrap();
    let mut stored = BTreeMap::new();
    for record in records {
        let message: Value = serde_json::from_str(&record).unwrap();
        if message["role"] == "user" {
            *stored.entry(message["content"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    stored
}
