//! Agents at work: a task is taken from its queue, the model is asked, its calls go to the gate, and the task
//! waits or ends. Nothing of a task lives in memory between two steps: what the next one needs is in its
//! journal, so that any server can take it.

mod agent;
mod bus;
mod completion;
mod context;
mod known_checksums;
mod own_files;
mod planner;
mod prompt;
mod settings;
mod tools;

pub use bus::{Bus, QueueReport};
pub use settings::{PlannerSettings, ProjectSettings, WorkSettings};

use crate::{Gate, ModelKeys, Result, Spaces};
use atelier_core::{
    Message, NodeId, Task, TaskFailure, TaskKind,
    task::{Limits, Step},
};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_model::{Answer, Model, ModelError, Models, Request, Usage, tokens};
use atelier_store::{AbandonedUsage, Error as StoreError, Owned, Store, TaskAnswer, TaskLease};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes.
const NO_TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A task in hand: the right to run it, what interrupts it, and for whom the next is taken.
#[derive(Clone, Copy)]
pub(crate) struct Job<'j> {
    claim: &'j TaskLease,
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
pub struct AgentServices {
    pub store: Store,
    pub spaces: Spaces,
    pub gate: Gate,
    pub memory: Memory,
    pub models: Models,
    pub keys: ModelKeys,
    pub files: Files,
    pub settings: WorkSettings,
}

impl AgentServices {
    /// Takes one step with a task, or as many as need nobody else. Returns what it took from the queue for the
    /// node in exchange.
    pub(crate) async fn work(
        &self,
        claim: &TaskLease,
        interrupt: &CancellationToken,
        next: Option<NodeId>,
    ) -> Result<Vec<TaskLease>> {
        let job = Job { claim, interrupt, next };
        match claim.task.kind {
            TaskKind::Work => self.work_as_agent(job).await,
            TaskKind::Plan => self.make_plan(job).await,
            TaskKind::Answer => self.write_answer(job).await,
        }
    }

    /// What was said up to the message that asked for the task. What is attached to that by id is named by its path, the
    /// only name that an agent's tools know.
    async fn history(&self, owned: &Owned, task: &Task) -> Result<Vec<Message>> {
        let most = self.settings.history.into();
        let mut history = self.store.messages_until(owned, task.session_id, task.message_id, most).await?;
        for said in history.iter_mut().filter(|said| said.id == task.message_id) {
            for attached in &mut said.attachments {
                let Ok(id) = attached.parse() else { continue };
                match self.store.file(task.session_id, id).await {
                    Ok(file) => *attached = file.file_path.to_string(),
                    // It was deleted since, or is a path that looks like an id.
                    Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(history)
    }

    /// The model that is meant, with the tenant's own keys where it has brought some.
    async fn model(&self, claim: &TaskLease, name: &str) -> Result<Model, TaskFailure> {
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
        let whisper = self.store.delta_sender(&job.claim.owned, task.session_id, task.id);
        let heard = AtomicU64::new(0);
        let asking = model.ask(request, |text| {
            heard.fetch_add(tokens(text), Ordering::Relaxed);
            whisper.send(text);
        });
        let answer = tokio::select! {
            biased;
            () = job.interrupt.cancelled() => Err(NoAnswer::Interrupted),
            answer = asking => answer.map_err(|error| failure(error).into()),
            () = tokio::time::sleep(time.unwrap_or(NO_TIME_LIMIT)) => {
                let words = "the time for this task ran out while the model was answering";
                Err(TaskFailure::new("limit_reached", words).into())
            }
        };
        let spent = began.elapsed();
        let ran_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        task.ran_ms += ran_ms;
        metrics::histogram!("atelier_model_seconds").record(spent.as_secs_f64());
        let answer = match (answer, heard.into_inner()) {
            (Ok(answer), _) => answer,
            (Err(why), output_tokens) => {
                let (usage, cost) = match output_tokens {
                    0 => Default::default(),
                    // It broke off in the middle: what was said so far is paid for.
                    _ => count(task, model, &Usage { input_tokens: request.tokens(), output_tokens }),
                };
                if let NoAnswer::Interrupted = why {
                    let used = AbandonedUsage { ran_ms, usage, cost: cost.unwrap_or(0.0) };
                    self.count_given_up(job.claim, used).await;
                }
                return Err(why);
            }
        };
        task.steps += 1;
        let (usage, cost) = count(task, model, &answer.usage);
        let step = Step {
            text: answer.text.clone(),
            calls: Vec::new(),
            model: model.name().to_owned(),
            usage,
            cost,
        };
        Ok((answer, step))
    }

    /// Whoever ended the task has written it already, without what its last call has used; counted all the same, so that
    /// cancelling and resuming does not get around its limits.
    async fn count_given_up(&self, claim: &TaskLease, used: AbandonedUsage) {
        match self.store.count_abandoned_usage(claim, used).await {
            // It is deleted, and its limits with it.
            Ok(()) | Err(StoreError::NotFound) => {}
            Err(error) => {
                tracing::warn!(%error, task = %claim.task.id, "cannot count a call that was given up");
            }
        }
    }
}

/// What a task may use up: itself, and its plan as a whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    limits: Limits,
    budget: Option<f64>,
}

impl Allowance {
    /// Of the server and the project.
    fn of(server: &WorkSettings, project: &ProjectSettings) -> Self {
        Self { limits: server.limits.and(project.limits), budget: project.planner.budget }
    }
}

impl AgentServices {
    /// What keeps a task from asking its model once more, if anything does. Looked at before every step: the other
    /// tasks of a plan spend the same budget at the same time.
    async fn limit_reached(
        &self,
        owned: &Owned,
        task: &Task,
        allowance: &Allowance,
    ) -> Result<Option<TaskFailure>> {
        if let Some(reached) = allowance.limits.reached(task) {
            return Ok(Some(reached));
        }
        let (Some(budget), Some(plan)) = (allowance.budget, task.plan_id) else { return Ok(None) };
        let (_, tasks) = self.store.plan(owned, plan).await?;
        let others = tasks.iter().filter(|other| other.id != task.id).map(|other| other.cost);
        let spent = others.sum::<f64>() + task.cost;
        let over = spent > 0.0 && spent >= budget;
        Ok(over.then(|| {
            let words = format!("the plan's budget of ${budget} is spent (${spent:.4})");
            TaskFailure::new("limit_reached", words)
        }))
    }
}

impl Job<'_> {
    /// Ends the task with what came of it.
    async fn finish(
        self,
        services: &AgentServices,
        task: Task,
        step: Option<Step>,
        outcome: Result<TaskAnswer, TaskFailure>,
    ) -> Result<Vec<TaskLease>> {
        Ok(services.store.finish(self.claim, task, step, outcome, self.next).await?)
    }

    /// Ends the task for want of an answer, or leaves it to whoever interrupted it.
    async fn no_answer(self, services: &AgentServices, task: Task, why: NoAnswer) -> Result<Vec<TaskLease>> {
        match why {
            NoAnswer::Failed(why) => self.finish(services, task, None, Err(why)).await,
            NoAnswer::Interrupted => Ok(Vec::new()),
        }
    }
}

/// Adds to a task what the model has used.
fn count(task: &mut Task, model: &Model, used: &Usage) -> (atelier_core::Usage, Option<f64>) {
    let usage = atelier_core::Usage { input_tokens: used.input_tokens, output_tokens: used.output_tokens };
    let cost = model.cost(used);
    task.usage += usage;
    task.cost += cost.unwrap_or(0.0);
    (usage, cost)
}

fn failure(error: ModelError) -> TaskFailure {
    TaskFailure::new(error.code(), error.to_string())
}
