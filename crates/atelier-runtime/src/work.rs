//! Agents at work: a task is taken from its queue, the model is asked, its calls go to the gate, and the task
//! waits or ends. Nothing of a task lives in memory between two steps: what the next one needs is in its
//! journal, so that any server can take it.

mod agent;
mod bus;
mod context;
mod own_files;
mod planner;
mod prompt;
mod settings;
mod waiters;

pub use bus::{Bus, QueueReport};
pub use settings::{PlannerSettings, ProjectSettings, WorkSettings};

use crate::{Gate, ModelKeys, Result, Spaces};
use atelier_core::NodeId;
use atelier_core::{Task, TaskFailure, TaskKind, task::Step};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_model::{Answer, Model, ModelError, Models, Request};
use atelier_store::{Claim, Spoken, Store};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// A task in hand: the right to run it, what interrupts it, and for whom the next is taken.
#[derive(Clone, Copy)]
pub(crate) struct Job<'j> {
    claim: &'j Claim,
    interrupt: &'j CancellationToken,
    next: Option<NodeId>,
}

/// Why a model has no answer.
pub(crate) enum NoAnswer {
    Failed(TaskFailure),
    /// Somebody has ended the task, or the server stops. Only the asking is given up, never a write that is under
    /// way: what it took from the queue in exchange would be lost.
    Interrupted,
}

impl From<TaskFailure> for NoAnswer {
    fn from(failure: TaskFailure) -> Self {
        NoAnswer::Failed(failure)
    }
}

/// What agents work with.
pub struct Shop {
    pub store: Store,
    pub spaces: Spaces,
    pub gate: Gate,
    pub memory: Memory,
    pub models: Models,
    pub keys: ModelKeys,
    pub files: Files,
    pub settings: WorkSettings,
}

impl Shop {
    /// Takes one step with a task, or as many as need nobody else. Returns what it took from the queue for the
    /// node in exchange.
    pub(crate) async fn work(
        &self,
        claim: &Claim,
        interrupt: &CancellationToken,
        next: Option<NodeId>,
    ) -> Result<Vec<Claim>> {
        let job = Job { claim, interrupt, next };
        match claim.task.kind {
            TaskKind::Work => self.work_as_agent(job).await,
            TaskKind::Plan => self.make_plan(job).await,
            TaskKind::Answer => self.write_answer(job).await,
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
        job: Job<'_>,
        task: &mut Task,
        model: &Model,
        request: &Request,
        time: Option<Duration>,
    ) -> Result<(Answer, Step), NoAnswer> {
        let began = Instant::now();
        let whisper = self.store.whisper(&job.claim.owned, task.session_id, task.id);
        let asking = model.ask(request, |text| whisper.say(text));
        let answer = tokio::select! {
            biased;
            () = job.interrupt.cancelled() => return Err(NoAnswer::Interrupted),
            answer = asking => answer.map_err(failure),
            () = tokio::time::sleep(time.unwrap_or(FOR_EVER)) => {
                let words = "the time for this task ran out while the model was answering";
                Err(TaskFailure::new("limit_reached", words))
            }
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

impl Job<'_> {
    /// Ends the task with what came of it.
    async fn finish(
        self,
        shop: &Shop,
        task: Task,
        step: Option<Step>,
        outcome: Result<Spoken, TaskFailure>,
    ) -> Result<Vec<Claim>> {
        Ok(shop.store.finish(self.claim, task, step, outcome, self.next).await?)
    }

    /// Ends the task for want of an answer, or leaves it to whoever interrupted it.
    async fn no_answer(self, shop: &Shop, task: Task, why: NoAnswer) -> Result<Vec<Claim>> {
        match why {
            NoAnswer::Failed(why) => self.finish(shop, task, None, Err(why)).await,
            NoAnswer::Interrupted => Ok(Vec::new()),
        }
    }
}

fn failure(error: ModelError) -> TaskFailure {
    TaskFailure::new(error.code(), error.to_string())
}
