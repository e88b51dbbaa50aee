//! The promises of `spec/scenarios.md`, shown by the real program. One binary: linking is what costs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod chat;
mod check;
mod connect;
mod context;
mod embeddings;
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

use atelier_testkit::{Backend, Builder, Server, User};
use serde_json::json;
use uuid::Uuid;

const BINARY: &str = env!("CARGO_BIN_EXE_atelier");

fn build(backend: Backend) -> Builder {
    Server::build(BINARY, backend)
}

async fn start(backend: Backend) -> Server {
    build(backend).start().await
}

/// A new conversation of the project at this path.
async fn conversation(user: &User, project: &str) -> Uuid {
    let body = json!({"project_id": project.rsplit('/').next()});
    let made = user.post("/api/tenants/default/conversations", body).await.expect(201);
    made["id"].as_str().unwrap().parse().unwrap()
}
