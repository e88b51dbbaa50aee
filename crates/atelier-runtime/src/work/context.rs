//! An agent's memory at work: what it recalls before a task, and its two tools for searching and
//! adding.

use super::{AgentServices, tools::SEARCH_CONTEXT};
use crate::{LoadedAgent, Result};
use atelier_core::{InteractionType, NewInteraction, Task, memory::shortened, task::StepResult};
use atelier_memory::{Query, RetrievedContext};
use atelier_store::TaskLease;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// How many tokens of a prompt memory may take.
const BUDGET: usize = 1500;
/// How many characters of one remembered text the model sees.
const MAX_HIT_TEXT: usize = 2000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
    #[serde(default = "five")]
    k: usize,
    #[serde(default)]
    types: Vec<InteractionType>,
    success: Option<bool>,
}

fn five() -> usize {
    5
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    text: String,
}

impl AgentServices {
    /// What the agent remembers about its task, for the prompt. Empty if nothing is related to it.
    pub(super) async fn recall(&self, agent: &LoadedAgent, task: &Task) -> RetrievedContext {
        let session = task.session_id.to_string();
        self.memory.retrieve_context(agent.owned(), &task.description, &session, BUDGET).await
    }

    /// Runs one of the two memory tools.
    pub(super) async fn use_context(
        &self,
        lease: &TaskLease,
        agent: &LoadedAgent,
        name: &str,
        params: Map<String, Value>,
    ) -> Result<StepResult> {
        let params = Value::Object(params);
        let refuse = |error: serde_json::Error| StepResult::error(error.to_string());
        Ok(match name {
            SEARCH_CONTEXT => match serde_json::from_value::<Search>(params) {
                Err(error) => refuse(error),
                Ok(asked) => {
                    let mut query = Query::new(asked.query, asked.k.clamp(1, 20));
                    query.filter.types = asked.types;
                    query.filter.success = asked.success;
                    let found = self.memory.search(agent.owned(), &query).await?;
                    let hits: Vec<Value> = found
                        .hits
                        .iter()
                        .map(|hit| {
                            json!({
                                "text": shortened(&hit.interaction.text, MAX_HIT_TEXT),
                                "interaction_type": hit.interaction.interaction_type,
                                "success": hit.interaction.success,
                                "timestamp": hit.interaction.timestamp,
                            })
                        })
                        .collect();
                    StepResult::new(json!({"results": hits}).to_string())
                }
            },
            _ => match serde_json::from_value::<Add>(params) {
                Err(error) => refuse(error),
                Ok(asked) => {
                    let secrets = self.store.secrets_shown_in(lease.task.session_id).await?;
                    let text = secrets.mask(&asked.text);
                    let note = NewInteraction::new(InteractionType::AgentResponse, text)
                        .of_task(lease.task.id)
                        .of_session(lease.task.session_id)
                        .with("note", true);
                    match note.validate() {
                        Err(invalid) => StepResult::error(invalid.to_string()),
                        Ok(()) => {
                            self.store.add_interactions(&lease.owned, agent.id, vec![note]).await?;
                            StepResult::new(json!({"remembered": true}).to_string())
                        }
                    }
                }
            },
        })
    }
}
