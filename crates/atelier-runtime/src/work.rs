//! Agents at work. A node leases a task from its queue, asks the model, and hands the model's calls
//! to the gate; then the task waits or ends. Between two steps nothing of a task is kept in memory:
//! its journal has what the next step needs, so that any node can continue it.

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
pub use settings::{DefaultBudgets, PlannerSettings, ProjectSettings, WorkSettings};
pub use tools::check_tools;

use crate::{Budgets, Gate, ModelKeys, OwnFiles, Result, Spaces, TrackedRequest};
use atelier_core::{
    Budget, Message, NodeId, Task, TaskFailure, TaskFailureCode, TaskKind,
    task::{Step, TaskLimits},
};
use atelier_memory::Memory;
use atelier_model::{Answer, Model, ModelError, Request, Usage, tokens};
use atelier_store::{AbandonedUsage, Error as StoreError, Owned, Store, TaskAnswer, TaskLease};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes.
const NO_TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A task that this node runs now: its lease, the token that interrupts it, and the node that is to
/// lease the next tasks when this one ends (`None` if this node has no capacity).
#[derive(Clone, Copy)]
pub(crate) struct Job<'j> {
    lease: &'j TaskLease,
    interrupt: &'j CancellationToken,
    next: Option<NodeId>,
    /// Shows that the space is in use, and reports a task that hangs.
    request: &'j TrackedRequest,
}

/// Why a model has no answer.
pub(crate) enum NoAnswer {
    Failed(TaskFailure),
    /// Somebody has ended the task, or the server stops. Only the model call is interrupted and
    /// never a write, because the tasks that the write has leased in exchange would be lost.
    Interrupted,
}

impl From<TaskFailure> for NoAnswer {
    fn from(failure: TaskFailure) -> Self {
        NoAnswer::Failed(failure)
    }
}

/// The services that agents use.
pub struct AgentServices {
    pub store: Store,
    pub spaces: Spaces,
    pub gate: Gate,
    pub memory: Memory,
    pub keys: ModelKeys,
    pub own_files: OwnFiles,
    pub budgets: Budgets,
    pub settings: WorkSettings,
}

impl AgentServices {
    /// Works on a task until it ends or has to wait. Returns the tasks that were leased for the
    /// node in exchange.
    pub(crate) async fn work(
        &self,
        lease: &TaskLease,
        interrupt: &CancellationToken,
        next: Option<NodeId>,
    ) -> Result<Vec<TaskLease>> {
        let owned = &lease.owned;
        let what = format!("task {}", lease.task.id);
        let (space, request) = self.spaces.begin(owned.owner, owned.project, &what).await?;
        let job = Job { lease, interrupt, next, request: &request };
        match lease.task.kind {
            TaskKind::Work => self.work_as_agent(job, &space).await,
            TaskKind::Plan => self.make_plan(job).await,
            TaskKind::Answer => self.write_answer(job).await,
        }
    }

    /// Warns about budgets that the last step of a task has nearly used up. Without this, the next
    /// task would be the one to find out.
    pub(crate) async fn warn_of_budgets(&self, owned: &Owned) -> Result<()> {
        let project = self.store.project(owned).await?;
        // Settings that are not valid have failed the task.
        let settings = ProjectSettings::of(&project.settings).unwrap_or_default();
        self.budgets.exceeded(owned, settings.budget).await.map(drop)
    }

    /// The messages up to the one that started the task. File ids among its attachments are
    /// replaced by paths, because an agent's tools only know paths.
    async fn history(&self, owned: &Owned, task: &Task) -> Result<Vec<Message>> {
        let most = self.settings.history.into();
        let mut history =
            self.store.messages_until(owned, task.session_id, task.message_id, most).await?;
        for message in history.iter_mut().filter(|message| message.id == task.message_id) {
            for attached in &mut message.attachments {
                let Ok(id) = attached.parse() else { continue };
                let (conversation, _) = self.store.conversation(owned, task.session_id).await?;
                match self.store.file(&conversation, id).await {
                    Ok(file) => *attached = file.file_path.to_string(),
                    // The file was deleted, or the attachment is a path that looks like an id.
                    Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(history)
    }

    /// The model with this name. The owner's and the tenant's own keys come before the
    /// server's.
    async fn model(&self, lease: &TaskLease, name: &str) -> Result<Model, TaskFailure> {
        let access = self.keys.of(&lease.owned.tenant, Some(lease.owned.owner)).await;
        let access = access.map_err(|error| {
            TaskFailure::new(TaskFailureCode::ModelKeysUnreadable, error.to_string())
        })?;
        self.keys.models().resolve(name, &access).await.map_err(failure)
    }

    /// Asks the model within the time that is left, sends its text to everybody who follows the
    /// conversation, and counts what it used.
    async fn ask(
        &self,
        job: Job<'_>,
        task: &mut Task,
        model: &Model,
        request: &Request,
        time: Option<Duration>,
    ) -> Result<(Answer, Step), NoAnswer> {
        let began = Instant::now();
        job.request.progress(time.unwrap_or(NO_TIME_LIMIT));
        let deltas = self.store.delta_sender(&job.lease.owned, task.session_id, task.id);
        let received_tokens = AtomicU64::new(0);
        let asking = model.ask(request, |text| {
            received_tokens.fetch_add(tokens(text), Ordering::Relaxed);
            deltas.send(text);
        });
        let answer = tokio::select! {
            biased;
            () = job.interrupt.cancelled() => Err(NoAnswer::Interrupted),
            answer = asking => answer.map_err(|error| failure(error).into()),
            () = tokio::time::sleep(time.unwrap_or(NO_TIME_LIMIT)) => {
                let detail = "the time for this task ran out while the model was answering";
                Err(TaskFailure::new(TaskFailureCode::LimitReached, detail).into())
            }
        };
        let spent = began.elapsed();
        deltas.finish().await;
        let ran_ms = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        task.ran_ms += ran_ms;
        metrics::histogram!("atelier_model_seconds").record(spent.as_secs_f64());
        let answer = match (answer, received_tokens.into_inner()) {
            (Ok(answer), _) => answer,
            (Err(why), output_tokens) => {
                let (usage, cost) = match output_tokens {
                    0 => Default::default(),
                    // The answer ended early, but the provider charges for the part that arrived.
                    _ => {
                        count(task, model, &Usage { input_tokens: request.tokens(), output_tokens })
                    }
                };
                let is_interrupted = matches!(why, NoAnswer::Interrupted);
                if is_interrupted || output_tokens > 0 {
                    let (model, cost) = (model.name().to_owned(), cost.unwrap_or(0.0));
                    let used = AbandonedUsage { model, ran_ms, usage, cost };
                    self.count_given_up(job.lease, used).await;
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

    /// Counts what a model call has used that gave no whole answer, and so no step. A task that was
    /// cancelled was already written; without this, cancelling and resuming would get around its
    /// limits.
    async fn count_given_up(&self, lease: &TaskLease, used: AbandonedUsage) {
        match self.store.count_abandoned_usage(lease, used).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, task = %lease.task.id, "cannot count the usage of an \
                    interrupted model call");
            }
        }
    }
}

/// What a task may use: limits for the task, and budgets for its plan and its project.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    limits: TaskLimits,
    /// The budget of its plan, in US dollars.
    plan_budget: Option<f64>,
    /// The budget of its project.
    project_budget: Budget,
}

impl Allowance {
    /// The limits of the server and the project together.
    fn of(server: &WorkSettings, project: &ProjectSettings) -> Self {
        Self {
            limits: server.limits.and(project.limits),
            plan_budget: project.planner.budget,
            project_budget: project.budget,
        }
    }
}

impl AgentServices {
    /// The limit or budget that keeps a task from asking its model again, if one is reached.
    /// Checked before every step, because other tasks spend the same budgets at the same time.
    async fn limit_reached(
        &self,
        owned: &Owned,
        task: &Task,
        allowance: &Allowance,
    ) -> Result<Option<TaskFailure>> {
        if let Some(reached) = allowance.limits.reached(task) {
            return Ok(Some(reached));
        }
        if let Some(exceeded) = self.budgets.exceeded(owned, allowance.project_budget).await? {
            return Ok(Some(exceeded));
        }
        let (Some(budget), Some(plan)) = (allowance.plan_budget, task.plan_id) else {
            return Ok(None);
        };
        let (_, tasks) = self.store.plan(owned, plan).await?;
        let others = tasks.iter().filter(|other| other.id != task.id).map(|other| other.cost);
        let spent = others.sum::<f64>() + task.cost;
        let over = spent > 0.0 && spent >= budget;
        Ok(over.then(|| {
            let detail = format!("the plan's budget of ${budget} is spent (${spent:.4})");
            TaskFailure::new(TaskFailureCode::LimitReached, detail)
        }))
    }
}

impl Job<'_> {
    /// Ends the task with its outcome.
    async fn finish(
        self,
        services: &AgentServices,
        task: Task,
        step: Option<Step>,
        outcome: Result<TaskAnswer, TaskFailure>,
    ) -> Result<Vec<TaskLease>> {
        Ok(services.store.finish(self.lease, task, step, outcome, self.next).await?)
    }

    /// Ends the task because there is no answer. An interrupted task is handled by the code that
    /// interrupted it.
    async fn no_answer(
        self,
        services: &AgentServices,
        task: Task,
        why: NoAnswer,
    ) -> Result<Vec<TaskLease>> {
        match why {
            NoAnswer::Failed(why) => self.finish(services, task, None, Err(why)).await,
            NoAnswer::Interrupted => Ok(Vec::new()),
        }
    }
}

/// Adds the model's usage to a task.
fn count(task: &mut Task, model: &Model, used: &Usage) -> (atelier_core::Usage, Option<f64>) {
    let usage =
        atelier_core::Usage { input_tokens: used.input_tokens, output_tokens: used.output_tokens };
    let cost = model.cost(used);
    task.usage += usage;
    task.cost += cost.unwrap_or(0.0);
    (usage, cost)
}

fn failure(error: ModelError) -> TaskFailure {
    let code = match &error {
        ModelError::Config(_) => TaskFailureCode::InvalidModelConfig,
        ModelError::UnknownProvider { .. } => TaskFailureCode::UnknownModelProvider,
        ModelError::NoKey { .. } => TaskFailureCode::NoModelKey,
        ModelError::KeyUnreadable { .. } | ModelError::AddressChanged { .. } => {
            TaskFailureCode::ModelKeyUnreadable
        }
        ModelError::NoModels { .. } => TaskFailureCode::InvalidModelConfig,
        ModelError::KeyRefused { .. } => TaskFailureCode::ModelKeyRefused,
        ModelError::QuotaExceeded { .. } => TaskFailureCode::ModelQuotaSpent,
        ModelError::ContextExceeded { .. } => TaskFailureCode::ModelContextExceeded,
        ModelError::Refused { .. } => TaskFailureCode::ModelRefused,
        ModelError::RateLimited { .. } => TaskFailureCode::ModelRateLimited,
        ModelError::Unavailable { .. } => TaskFailureCode::ModelUnavailable,
        ModelError::Unreachable { .. } => TaskFailureCode::ModelUnreachable,
        ModelError::Timeout { .. } => TaskFailureCode::ModelTimeout,
        ModelError::Interrupted { .. } => TaskFailureCode::ModelStreamCut,
        ModelError::Malformed { .. } => TaskFailureCode::ModelMalformedAnswer,
    };
    TaskFailure::new(code, error.to_string())
}
