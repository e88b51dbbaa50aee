//! Projects and their agents.

use crate::start;
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::{Value, json};

/// WS-02.1
#[rstest]
#[tokio::test]
async fn a_new_project_has_the_four_starter_agents(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let list = ann.get(&format!("{project}/agents/")).await.expect(200);
    let summary: Vec<Value> = list["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| {
            let config = &a["config"];
            json!([
                a["name"],
                config["metadata"]["role"],
                config["model"],
                config["temperature"],
                config["max_tokens"]
            ])
        })
        .collect();
    assert_eq!(
        summary,
        [
            json!(["agent_coder", "developer", "gpt-4", 0.3, 4096]),
            json!(["agent_analyzer", "analyst", "gpt-4", 0.5, 2048]),
            json!(["agent_writer", "writer", "gpt-4", 0.7, 2048]),
            json!(["agent_researcher", "researcher", "gpt-4", 0.6, 3096]),
        ]
    );
    assert_eq!(list["total"], 4);
}
