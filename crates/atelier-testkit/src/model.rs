//! A model with scripted answers: a real HTTP server that speaks OpenAI's chat completions at
//! `…/chat/completions`, Anthropic's messages at `…/messages`, and lists its models at `…/models` and,
//! as Ollama does, at `/api/tags`.

mod reply;

pub use reply::Reply;

use crate::PATIENCE;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
    serve::ListenerExt,
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

type Script = Box<dyn FnMut(&Asked) -> Reply + Send>;

/// The running server. It ends when this is dropped.
pub struct ScriptedModel {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    seen: Option<Mutex<Vec<Asked>>>,
    /// The models that it lists; `None` if it has no list.
    listed: Mutex<Option<Vec<String>>>,
    /// How many answers are in progress, and how many were cancelled by the client before their
    /// end.
    open: watch::Sender<usize>,
    left: watch::Sender<usize>,
}

/// A request, as the server saw it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Asked {
    /// The text of the newest message with this role, or an empty text.
    pub fn last(&self, role: &str) -> &str {
        let messages = self.body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let newest = messages.iter().rev().find(|message| message["role"] == role);
        newest.and_then(|message| message["content"].as_str()).unwrap_or("")
    }

    /// Results of tools after the user's last message, in OpenAI's form.
    pub fn results(&self) -> Vec<&str> {
        let messages = self.body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let since = messages.iter().rposition(|message| message["role"] == "user").unwrap_or(0);
        let tools = messages[since..].iter().filter(|message| message["role"] == "tool");
        tools.filter_map(|message| message["content"].as_str()).collect()
    }
}

impl ScriptedModel {
    /// Answers every request with the reply of `script`.
    pub async fn start(script: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        Self::serve(Box::new(script), true).await
    }

    /// Answers with these replies, one after the other. Further requests get an error that says so.
    pub async fn queue(replies: impl IntoIterator<Item = Reply>) -> Self {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        let next = move |_: &Asked| {
            replies.pop_front().unwrap_or_else(|| Reply::status(400).saying("the script has ended"))
        };
        Self::start(next).await
    }

    /// Does not record requests, for benchmarks that send a million of them.
    pub async fn forgetful(script: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        Self::serve(Box::new(script), false).await
    }

    async fn serve(script: Script, remembers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            seen: remembers.then(Mutex::default),
            listed: Mutex::default(),
            open: watch::Sender::new(0),
            left: watch::Sender::new(0),
        });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let listener = listener.tap_io(|connection| connection.set_nodelay(true).unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shared, serving }
    }

    /// Lists these models from now on. Without this, there is no list.
    pub fn list(&self, models: &[&str]) {
        let models = models.iter().map(|&model| model.to_owned()).collect();
        *self.shared.listed.lock().unwrap() = Some(models);
    }

    /// The value for `base_url` of a provider.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Every request so far, oldest first.
    pub fn seen(&self) -> Vec<Asked> {
        self.shared.seen.as_ref().expect("it remembers").lock().unwrap().clone()
    }

    /// Waits until `count` answers are in progress at the same time.
    pub async fn answering(&self, count: usize) {
        wait(&self.shared.open, "answers are under way", |open| open >= count).await;
    }

    /// Waits until `count` answers in total were cancelled before their end, because the client
    /// disconnected.
    pub async fn left(&self, count: usize) {
        wait(&self.shared.left, "listeners hung up", |left| left >= count).await;
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn wait(watched: &watch::Sender<usize>, what: &str, enough: impl Fn(usize) -> bool) {
    let mut watched = watched.subscribe();
    let waiting = watched.wait_for(|count| enough(*count));
    let found = tokio::time::timeout(PATIENCE, waiting).await;
    found.unwrap_or_else(|_| panic!("never happened: {what}")).unwrap();
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method == Method::GET {
        return list(&shared, parts.uri.path());
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let asked = Asked {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap(),
    };
    let reply = (shared.script.lock().unwrap())(&asked);
    let anthropic = asked.path.ends_with("/messages");
    if let Some(seen) = &shared.seen {
        seen.lock().unwrap().push(asked);
    }
    match reply.refusal() {
        Some(refusal) => refusal.into_response(),
        None => stream_of(&shared, reply, anthropic).await,
    }
}

/// The list of models, in the forms of OpenAI and Anthropic, or of Ollama.
fn list(shared: &Shared, path: &str) -> Response {
    let listed = shared.listed.lock().unwrap();
    let Some(models) = listed.as_ref() else { return StatusCode::NOT_FOUND.into_response() };
    let list = if path == "/api/tags" {
        let tag = |name: &String| json!({"name": name, "model": name, "size": 1});
        json!({"models": models.iter().map(tag).collect::<Vec<_>>()})
    } else {
        let entry = |name: &String| json!({"id": name, "object": "model", "type": "model"});
        json!({"data": models.iter().map(entry).collect::<Vec<_>>(), "has_more": false})
    };
    axum::Json(list).into_response()
}

async fn stream_of(shared: &Arc<Shared>, reply: Reply, anthropic: bool) -> Response {
    let mut listening = Listening::new(shared.clone());
    if reply.is_silent() {
        return std::future::pending().await;
    }
    let stream_type = [("content-type", "text/event-stream")];
    if reply.is_whole() {
        // Sent in one piece, as fast as possible, because the benchmark measures the caller.
        listening.ended();
        return (stream_type, reply.pieces(anthropic).concat()).into_response();
    }
    let stalls = reply.stalls();
    let pieces = reply.pieces(anthropic).into_iter().map(|piece| Ok(Bytes::from(piece)));
    let end = async move {
        if stalls {
            std::future::pending::<()>().await;
        }
        // An error makes the server drop the connection with all unsent data, so the data is sent
        // first.
        tokio::task::yield_now().await;
        Err(io::Error::other("cut by the script"))
    };
    let body = stream::iter(pieces).chain(stream::once(end)).boxed();
    (stream_type, Body::from_stream(Watched { body, listening })).into_response()
}

/// A body that reports when it is dropped before its end.
struct Watched {
    body: Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>,
    listening: Listening,
}

impl Stream for Watched {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.body.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.listening.ended();
        }
        next
    }
}

struct Listening {
    shared: Arc<Shared>,
    ended: bool,
}

impl Listening {
    fn new(shared: Arc<Shared>) -> Self {
        shared.open.send_modify(|open| *open += 1);
        Self { shared, ended: false }
    }

    fn ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.open.send_modify(|open| *open -= 1);
        if !self.ended {
            self.shared.left.send_modify(|left| *left += 1);
        }
    }
}
