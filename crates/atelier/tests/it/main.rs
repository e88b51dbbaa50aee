//! The promises of `docs/scenarios.md`, shown by the real program. They are one test binary,
//! because linking several would take long.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod backup;
mod between_nodes;
mod chat;
mod check;
mod connect;
mod context;
mod embeddings;
mod encodings;
mod events;
mod files;
mod gate;
mod limits;
mod mcp;
mod model_keys;
mod models;
mod nodes;
mod openapi;
mod operation;
mod program;
mod projects;
mod provider;
mod role_tokens;
mod sessions;
mod usage;
mod user_limits;
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

/// The configuration that the server would use, with these environment variables.
fn print_config(environment: &[(&str, &str)]) -> String {
    let output = run_print_config(environment);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the server says when it refuses a configuration with these environment variables.
fn refused_config(environment: &[(&str, &str)]) -> String {
    let output = run_print_config(environment);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "starts the program under test")]
fn run_print_config(environment: &[(&str, &str)]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(BINARY);
    command.args(["serve", "--print-config"]).current_dir(folder.path());
    command.envs(environment.iter().copied()).output().unwrap()
}

/// The folder with the weights of MiniLM, as packages have them.
#[expect(clippy::disallowed_methods, reason = "gets what the test needs; it is no tool call")]
fn minilm() -> std::path::PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/minilm");
    let output = std::process::Command::new(script).arg("--int8").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// A caller with a role token of this user, for one project.
fn role_token(server: &Server, user: &str, role: &str, project: &str) -> User {
    server.user_with(user, &["--role", role, "--project", project])
}

/// Creates a conversation of the project at this path.
async fn conversation(user: &User, project: &str) -> Uuid {
    let body = json!({"project_id": project.rsplit('/').next()});
    let made = user.post("/api/tenants/default/conversations", body).await.expect(201);
    made["id"].as_str().unwrap().parse().unwrap()
}
