//! What agents remember, over HTTP: on SQLite and PostgreSQL, in the embedded index and on a real
//! Qdrant server.

mod care;
mod engine;
mod files;
mod kills;
mod parts;
mod search;
mod upgrade;
mod work;

use crate::build;
use atelier_core::AgentId;
use atelier_memory::{CollectionKey, Index};
use atelier_testkit::{Backend, Builder, Server, User, eventually, qdrant_url};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The index that the server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Edge,
    Qdrant,
}

fn with_engine(backend: Backend, engine: Engine) -> Builder {
    match engine {
        Engine::Edge => build(backend),
        Engine::Qdrant => build(backend).with("QDRANT_URL", qdrant_url()),
    }
}

/// A server, a user, and one of the user's agents.
struct Fixture {
    server: Server,
    ann: User,
    project: String,
    /// `…/agents/coder/context`
    context: String,
}

async fn open(backend: Backend, engine: Engine) -> Fixture {
    Fixture::over(with_engine(backend, engine).start().await).await
}

impl Fixture {
    async fn over(server: Server) -> Self {
        let ann = server.user("ann");
        let project = ann.project("shop").await;
        let context = format!("{project}/agents/coder/context");
        Self { server, ann, project, context }
    }

    async fn import(&self, entries: Value) -> Value {
        import(&self.ann, &self.context, entries).await
    }

    async fn search(&self, body: Value) -> Vec<Value> {
        search(&self.ann, &self.context, body).await
    }

    async fn stats(&self) -> Value {
        self.ann.get(&format!("{}/stats", self.context)).await.expect(200)
    }
}

async fn import(user: &User, context: &str, entries: Value) -> Value {
    user.post(&format!("{context}/import"), json!({"interactions": entries})).await.expect(200)
}

/// The results of a search that the index answered. On a busy machine, opening the index may take a
/// moment.
async fn search(user: &User, context: &str, body: Value) -> Vec<Value> {
    eventually("the index answers", async || {
        let found = user.post(&format!("{context}/search"), body.clone()).await.expect(200);
        found["degraded"].is_null().then(|| found["results"].as_array().unwrap().clone())
    })
    .await
}

fn texts(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["text"].as_str().unwrap()).collect()
}

fn entry(text: &str, kind: &str, success: bool, timestamp: &str) -> Value {
    json!({"text": text, "interaction_type": kind, "success": success, "timestamp": timestamp})
}

/// Eight interactions of all types, one per day.
fn week() -> Value {
    json!([
        entry(
            "Deployed the payment service to staging",
            "task_execution",
            true,
            "2026-01-01T10:00:00Z"
        ),
        entry("The user prefers tabs over spaces", "user_message", true, "2026-01-02T10:00:00Z"),
        entry(
            "Parser tests failed: unexpected end of input",
            "tool_call",
            false,
            "2026-01-03T10:00:00Z"
        ),
        entry(
            "Развернули сервис платежей на тестовом сервере",
            "agent_response",
            true,
            "2026-01-04T10:00:00Z"
        ),
        entry("東京の天気を調べました", "agent_response", true, "2026-01-05T10:00:00Z"),
        entry(
            "Refactored the parser and its tests",
            "task_execution",
            true,
            "2026-01-06T10:00:00Z"
        ),
        entry(
            "Wrote documentation for the payment API",
            "task_execution",
            true,
            "2026-01-07T10:00:00Z"
        ),
        entry(
            "The parser deployment was rolled back",
            "task_execution",
            false,
            "2026-01-08T10:00:00Z"
        ),
    ])
}

/// The collection that the statistics name, as the key of the shared Qdrant.
pub(crate) async fn collection_key(user: &User, agent: &str) -> CollectionKey {
    collection_key_in(&shared_index(), user, agent).await
}

/// The collection that the statistics name, as the key of an index.
pub(crate) async fn collection_key_in(index: &Index, user: &User, agent: &str) -> CollectionKey {
    let id: AgentId = user.get(agent).await.expect(200)["id"].as_str().unwrap().parse().unwrap();
    let stats = user.get(&format!("{agent}/context/stats")).await.expect(200);
    let dimension = stats["dimension"].as_u64().unwrap() as usize;
    let place = Some(index.place(id, stats["embedder"].as_str().unwrap(), dimension));
    CollectionKey { agent: id, name: stats["collection"].as_str().unwrap().to_owned(), place }
}

/// The folders of an agent in the embedded index.
fn folders_of(server: &Server, agent: AgentId) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(server.data().join("memory")).unwrap().flatten();
    let ours =
        folders.filter(|entry| entry.file_name().to_string_lossy().starts_with(&agent.to_string()));
    ours.map(|entry| entry.path()).collect()
}

/// Direct access to the shared Qdrant, without the server.
pub(crate) fn shared_index() -> Index {
    Index::server(&qdrant_url(), None).unwrap()
}
