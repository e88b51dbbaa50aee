//! The floor of everything over HTTP: a server with the same libraries that only answers.
//!
//! It runs in its own process, so that it shares the cores with the generator as Atelier does.

use crate::process::{GREETING, Process};
use anyhow::Result;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use futures::stream;
use std::{
    convert::Infallible,
    io::Read,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{net::TcpListener, sync::mpsc};

/// The answers of the bare server, whatever the request is.
#[derive(Clone, clap::Args)]
pub(crate) struct Answers {
    #[arg(long)]
    pub(crate) status: u16,
    #[arg(long)]
    pub(crate) body: String,
    /// The event that a `PUT` sends to all followers of `/events`
    #[arg(long, default_value = "")]
    pub(crate) event: String,
}

impl Answers {
    /// Starts the bare server from this program.
    pub(crate) async fn serve(&self) -> Result<(Process, std::time::Duration)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bare-server", "--status", &self.status.to_string()]).args([
            "--body",
            &self.body,
            "--event",
            &self.event,
        ]);
        Process::start(command).await
    }
}

#[derive(Clone)]
struct Bare {
    status: StatusCode,
    body: Bytes,
    event: Bytes,
    followers: Arc<Mutex<Vec<mpsc::Sender<Bytes>>>>,
}

pub(crate) fn run(answers: Answers) -> Result<()> {
    let bare = Bare {
        status: StatusCode::from_u16(answers.status)?,
        body: answers.body.into(),
        event: answers.event.into(),
        followers: Arc::default(),
    };
    end_with_input();
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        greet(&listener.local_addr()?.to_string());
        let router = Router::new()
            .route("/events", get(follow))
            .fallback(any(answer).put(publish))
            .with_state(bare);
        use axum::serve::ListenerExt;
        axum::serve(listener.tap_io(|stream| drop(stream.set_nodelay(true))), router).await?;
        Ok(())
    })
}

/// Ends the process when its standard input ends, because then its parent is gone.
pub(crate) fn end_with_input() {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
}

#[expect(clippy::print_stdout, reason = "for the process that waits for it")]
pub(crate) fn greet(address: &str) {
    println!("{GREETING}http://{address}");
}

async fn answer(State(bare): State<Bare>, _: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (bare.status, headers, bare.body).into_response()
}

/// Waits for slow readers and loses no events, as Atelier does.
async fn publish(State(bare): State<Bare>, body: Bytes) -> Response {
    let followers = bare.followers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for follower in followers {
        // The follower may have disconnected.
        drop(follower.send(bare.event.clone()).await);
    }
    answer(State(bare), body).await
}

async fn follow(State(bare): State<Bare>) -> Response {
    let (sender, receiver) = mpsc::channel(4);
    bare.followers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    let events = stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(event), receiver))
    });
    let hello = stream::iter([Ok(Bytes::from_static(b": hello\n\n"))]);
    let body = Body::from_stream(futures::StreamExt::chain(hello, events));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}
