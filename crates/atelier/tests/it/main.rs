//! The promises of `spec/scenarios.md`, shown by the real program. One binary: linking is what costs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod chat;
mod check;
mod connect;
mod events;
mod files;
mod gate;
mod limits;
mod mcp;
mod model_keys;
mod openapi;
mod program;
mod projects;
mod provider;
mod worker_space;

use atelier_testkit::{Backend, Builder, Server};

const BINARY: &str = env!("CARGO_BIN_EXE_atelier");

fn build(backend: Backend) -> Builder {
    Server::build(BINARY, backend)
}

async fn start(backend: Backend) -> Server {
    build(backend).start().await
}
