//! Agents at work: a task is taken from its queue, the model is asked, its calls go to the gate, and the task
//! waits or ends. Nothing of a task lives in memory between two steps: what the next one needs is in its
//! journal, so that any server can take it.

mod agent;
mod bus;
mod context;
mod planner;
mod prompt;
mod settings;
mod waiters;

pub use bus::{Bus, QueueReport};
pub use settings::{PlannerSettings, ProjectSettings, WorkSettings};

use crate::{Gate, ModelKeys, Result, Spaces};
use atelier_core::NodeId;
use atelier_core::{Task, TaskFailure, TaskKind, task::Step};
use atelier_memory::Memory;
use atelier_model::{Answer, Model, ModelError, Models, Request};
use atelier_store::{Claim, Store};
use std::time::{Duration, Instant};

/// What a step works with.
pub(crate) struct Shop {
    pub(crate) store: Store,
    pub(crate) spaces: Spaces,
    pub(crate) gate: Gate,
    pub(crate) memory: Memory,
    pub(crate) models: Models,
    pub(crate) keys: ModelKeys,
    pub(crate) settings: WorkSettings,
}

impl Shop {
    /// Takes one step with a task, or as many as need nobody else. Returns what it took from the queue for the
    /// node in exchange.
    pub(crate) async fn work(&self, claim: &Claim, next: Option<NodeId>) -> Result<Vec<Claim>> {
        match claim.task.kind {
            TaskKind::Work => self.work_as_agent(claim, next).await,
            TaskKind::Plan => self.make_plan(claim, next).await,
            TaskKind::Answer => self.write_answer(claim, next).await,
        }
    }

    /// The model that is meant, with the tenant's own keys where it has brought some.
    async fn model(&self, claim: &Claim, name: &str) -> Result<Model, TaskFailure> {
        let keys = self.keys.of(&claim.owned.tenant).await;
        let keys = keys.map_err(|error| TaskFailure::new("model_keys_unreadable", error.to_string()))?;
        self.models.resolve(name, &keys).map_err(failure)
    }

    /// Asks the model within the time that is left, lets those who follow the conversation hear it speak, and
    /// counts what it cost.
    async fn ask(
        &self,
        claim: &Claim,
        task: &mut Task,
        model: &Model,
        request: &Request,
        time: Option<Duration>,
    ) -> Result<(Answer, Step), TaskFailure> {
        let began = Instant::now();
        let whisper = self.store.whisper(&claim.owned, task.session_id, task.id);
        let asking = model.ask(request, |text| whisper.say(text));
        let answer = match time {
            None => asking.await.map_err(failure),
            Some(time) => match tokio::time::timeout(time, asking).await {
                Ok(answer) => answer.map_err(failure),
                Err(_) => Err(TaskFailure::new(
                    "limit_reached",
                    "the time for this task ran out while the model was answering",
                )),
            },
        };
        let spent = began.elapsed();
        task.ran_ms += u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        metrics::histogram!("atelier_model_seconds").record(spent.as_secs_f64());
        let answer = answer?;
        let usage = atelier_core::Usage {
            input_tokens: answer.usage.input_tokens,
            output_tokens: answer.usage.output_tokens,
        };
        let cost = model.cost(&answer.usage);
        task.steps += 1;
        task.usage += usage;
        task.cost += cost.unwrap_or(0.0);
        let step = Step {
            text: answer.text.clone(),
            calls: Vec::new(),
            model: model.name().to_owned(),
            usage,
            cost,
        };
        Ok((answer, step))
    }
}

fn failure(error: ModelError) -> TaskFailure {
    TaskFailure::new(error.code(), error.to_string())
}
