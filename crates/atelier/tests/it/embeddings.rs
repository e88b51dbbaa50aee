//! An embedding service like OpenAI's, on loopback. The same text always gets the same vector.

use serde_json::{Value, json};
use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[derive(Default)]
struct Seen {
    asked: Vec<Value>,
    key: String,
}

pub(crate) struct Service {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Seen>>,
    failing: Arc<AtomicBool>,
    delay: Arc<Mutex<Duration>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Service {
    pub(crate) async fn start(dimension: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, failing) =
            (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let delay = Arc::new(Mutex::new(Duration::ZERO));
        let (their_seen, their_failing) = (seen.clone(), failing.clone());
        let their_delay = delay.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, failing) = (their_seen.clone(), their_failing.clone());
                let delay = *their_delay.lock().unwrap();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    answer(stream, dimension, &seen, &failing).await
                });
            }
        });
        Self { address, seen, failing, delay, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn fail(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
    }

    /// Lets every answer take this long.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    pub(crate) fn asked(&self) -> Vec<Value> {
        self.seen.lock().unwrap().asked.clone()
    }

    pub(crate) fn key(&self) -> String {
        self.seen.lock().unwrap().key.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers one request and closes the connection.
async fn answer(
    mut stream: TcpStream,
    dimension: usize,
    seen: &Mutex<Seen>,
    failing: &AtomicBool,
) -> Option<()> {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let field = |name: &str| {
                head.lines().find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
                })
            };
            let length: usize =
                field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            seen.lock().unwrap().key = field("authorization").unwrap_or_default();
            break (end + 4, length);
        }
    };
    while bytes.len() < head + length {
        stream.read_buf(&mut bytes).await.ok()?;
    }
    let asked: Value = serde_json::from_slice(&bytes[head..head + length]).ok()?;
    let (status, body) = if failing.load(Ordering::SeqCst) {
        ("503 Service Unavailable", json!({"error": {"message": "overloaded"}}))
    } else {
        let texts = asked["input"].as_array().cloned().unwrap_or_default();
        let data: Vec<Value> = texts
            .iter()
            .enumerate()
            .map(|(index, text)| json!({"index": index, "embedding": vector(text.as_str().unwrap(), dimension)}))
            .collect();
        ("200 OK", json!({"object": "list", "data": data}))
    };
    seen.lock().unwrap().asked.push(asked);
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: \
         close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

fn vector(text: &str, dimension: usize) -> Vec<f32> {
    let number = |place: usize| {
        let mut hasher = DefaultHasher::new();
        (text, place).hash(&mut hasher);
        (hasher.finish() % 2001) as f32 / 1000.0 - 1.0
    };
    (0..dimension).map(number).collect()
}
