//! The agent bus of this node: leases tasks from their queues and runs them.
//!
//! The queues are in the store. A wakeup says that a queue may have something to run. A check every
//! second finds what a lost wakeup would have reported, interrupts tasks that were cancelled on
//! another node, and fails tasks whose node died. The check only reads: what it has to write, tasks
//! of their own write, because the writes of one owner may have to wait and the other owners must
//! not wait with them.

use super::{AgentServices, ProjectSettings, completion::CompletionSignals};
use crate::{Error, Result};
use atelier_core::{
    AgentId, ConversationId, Message, NodeId, Plan, PlanId, Task, TaskFailure, TaskFailureCode,
    TaskId, TaskStatus,
    gate::{Decider, Refusal},
};
use atelier_store::{
    AcceptedMessage, Error as StoreError, LostTaskOutcome, MessageIds, Owned, QueueState,
    StoppedTask, Store, TaskLease, UserMessage, Wakeup,
};
use chrono::{DateTime, TimeDelta, Utc};
use futures::{FutureExt, TryStreamExt, stream};
use metrics::{counter, gauge};
use serde::Serialize;
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use utoipa::ToSchema;
use uuid::Uuid;

/// How often the bus checks all queues and its own tasks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How many calls of stopped tasks are cancelled at the same time.
const CONCURRENT_CANCELS: usize = 64;

/// The agent bus of this node.
#[derive(Clone)]
pub struct Bus(Arc<Inner>);

struct Inner {
    /// For requests and checks. The services have a patient one, because a task that cannot write
    /// for a moment should wait and not fail.
    store: Store,
    services: AgentServices,
    /// One for each running task. At times a few more tasks are leased than there are slots; they
    /// wait for one.
    slots: Semaphore,
    running: Mutex<HashMap<TaskId, RunningTask>>,
    /// Queues that are being polled, and whether another wakeup for them has arrived since.
    polling: Mutex<HashMap<Uuid, bool>>,
    /// Whether tasks were left in a queue because this node had no capacity.
    left_work_behind: AtomicBool,
    /// Tasks that are being recovered after their run broke off.
    recovering: Mutex<HashSet<TaskId>>,
    completions: CompletionSignals,
    tracker: TaskTracker,
    /// Whether this node takes no more tasks, because it is about to stop.
    draining: AtomicBool,
    stop: CancellationToken,
}

/// An agent's queue, as its owner sees it.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueReport {
    #[schema(value_type = Option<Uuid>)]
    pub agent_id: Option<AgentId>,
    /// Null for the project's own queue, which holds plans and answers.
    pub agent_name: Option<String>,
    pub queue_size: i64,
    pub active: i64,
    /// Tasks that wait for a person or a machine.
    pub parked: i64,
    pub limit: u32,
    pub oldest_wait_seconds: Option<f64>,
}

/// A task that this node runs. It may be ended and leased again before the first execution has
/// returned, so the fence tells the two apart.
struct RunningTask {
    fence: i64,
    cancel: CancellationToken,
}

impl Bus {
    pub fn new(mut services: AgentServices) -> Self {
        let store = services.store.clone();
        services.store = store.patient();
        Self(Arc::new(Inner {
            store,
            slots: Semaphore::new(services.settings.max_running),
            services,
            running: Mutex::default(),
            polling: Mutex::default(),
            left_work_behind: AtomicBool::new(false),
            recovering: Mutex::default(),
            completions: CompletionSignals::default(),
            tracker: TaskTracker::new(),
            draining: AtomicBool::new(false),
            stop: CancellationToken::new(),
        }))
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn running(&self) -> MutexGuard<'_, HashMap<TaskId, RunningTask>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recovering(&self) -> MutexGuard<'_, HashSet<TaskId>> {
        self.0.recovering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node, if it can run more tasks.
    fn node_with_capacity(&self) -> Option<NodeId> {
        let has_capacity = !self.0.stop.is_cancelled()
            && !self.0.draining.load(Ordering::Relaxed)
            && self.running().len() < self.0.services.settings.max_running;
        if !has_capacity {
            self.0.left_work_behind.store(true, Ordering::Relaxed);
        }
        has_capacity.then_some(self.store().node())
    }

    /// Accepts a message and starts the work that it asks for.
    pub async fn send_message(
        &self,
        owned: &Owned,
        mut message: UserMessage,
    ) -> Result<MessageIds> {
        message.max_queue = self.0.services.settings.max_queue.into();
        let (bus, owned) = (self.clone(), owned.clone());
        // Spawned, because leased tasks have to run even if the caller goes away now.
        let sending = self.0.tracker.spawn(async move {
            let AcceptedMessage { ids, is_new, leases } =
                bus.store().post_message(&owned, message, bus.node_with_capacity()).await?;
            counter!("atelier_messages_total").increment(is_new.into());
            bus.spawn(leases);
            Ok(ids)
        });
        sending.await.unwrap_or(Err(Error::Store(StoreError::Closed)))
    }

    /// Waits for the answer to a task or a plan. `None` if there is none after `time`, or if the
    /// work ended without one.
    pub async fn wait(&self, owned: &Owned, work: Uuid, time: Duration) -> Result<Option<Message>> {
        let completion = self.0.completions.subscribe(work);
        let answered = async {
            loop {
                let (settled, answer) = self.store().work_answer(owned, work).await?;
                if settled || answer.is_some() {
                    return Ok(answer);
                }
                drop(tokio::time::timeout(CHECK_INTERVAL, completion.notified()).await);
            }
        };
        tokio::time::timeout(time, answered).await.unwrap_or(Ok(None))
    }

    /// Cancels a task with its model call and its tool calls.
    pub async fn cancel_task(&self, owned: &Owned, by: &Decider, id: TaskId) -> Result<Task> {
        let why = TaskFailure::new(TaskFailureCode::Cancelled, "it was cancelled");
        let (task, stopped) = self.store().stop_task(owned, id, TaskStatus::Cancelled, why).await?;
        self.interrupt_and_cancel_calls(owned, by, vec![stopped]).await?;
        Ok(task)
    }

    /// Deletes an agent and cancels all its tasks.
    pub async fn delete_agent(&self, owned: &Owned, by: &Decider, id: AgentId) -> Result<()> {
        let stopped = self.store().delete_agent(owned, id).await?;
        self.interrupt_and_cancel_calls(owned, by, stopped).await
    }

    /// Interrupts the model calls and cancels the tool calls of tasks that were stopped.
    async fn interrupt_and_cancel_calls(
        &self,
        owned: &Owned,
        by: &Decider,
        stopped: Vec<StoppedTask>,
    ) -> Result<()> {
        stopped.iter().for_each(|stopped| self.interrupt(stopped.task));
        let calls = stopped.into_iter().flat_map(|stopped| stopped.calls);
        // Many at the same time, because concurrent writes share a commit.
        stream::iter(calls.map(Ok))
            .try_for_each_concurrent(CONCURRENT_CANCELS, async |call| {
                match self.0.services.gate.cancel(owned, by.clone(), call).await {
                    Ok(_)
                    | Err(
                        Error::Refused(Refusal::Already(_)) | Error::Store(StoreError::NotFound),
                    ) => Ok(()),
                    Err(error) => Err(error),
                }
            })
            .await
    }

    pub async fn resume_task(&self, owned: &Owned, id: TaskId) -> Result<Task> {
        Ok(self.store().resume_task(owned, id, self.0.services.settings.max_queue.into()).await?)
    }

    pub async fn approve_plan(
        &self,
        owned: &Owned,
        id: PlanId,
        tasks: Option<Vec<atelier_core::plan::ProposedTask>>,
    ) -> Result<Plan> {
        let assigned = match tasks {
            None => None,
            Some(tasks) => {
                // A plan that is not the user's own is reported first.
                self.store().plan(owned, id).await?;
                let (agents, _) = self.store().agents(owned, 1000, 0).await?;
                let settings = ProjectSettings::of(&self.store().project(owned).await?.settings)?;
                let assigned = super::planner::assign(tasks, &agents, settings.planner.max_tasks);
                Some(assigned.map_err(|why| atelier_core::Invalid::new("tasks", why))?)
            }
        };
        Ok(self.store().approve_plan(owned, id, assigned).await?)
    }

    pub async fn cancel_plan(
        &self,
        owned: &Owned,
        by: &Decider,
        id: PlanId,
        why: TaskFailure,
    ) -> Result<Plan> {
        let (plan, stopped) = self.store().cancel_plan(owned, id, why).await?;
        self.interrupt_and_cancel_calls(owned, by, stopped).await?;
        Ok(plan)
    }

    /// Cancels all open tasks of a project, or of one of its conversations.
    pub async fn stop_all(
        &self,
        owned: &Owned,
        session: Option<ConversationId>,
        by: &Decider,
        why: &TaskFailure,
    ) -> Result<()> {
        let stopped = self.store().stop_tasks(owned, session, false, why.clone()).await?;
        self.interrupt_and_cancel_calls(owned, by, stopped).await
    }

    /// Cancels the tasks of a project: waiting ones immediately, running ones if they have not
    /// ended after `grace`.
    pub async fn stop_gracefully(
        &self,
        owned: &Owned,
        by: &Decider,
        why: &TaskFailure,
        grace: Duration,
    ) -> Result<()> {
        let end = tokio::time::Instant::now() + grace;
        loop {
            let stopped = self.store().stop_tasks(owned, None, true, why.clone()).await?;
            self.interrupt_and_cancel_calls(owned, by, stopped).await?;
            let Some(id) = self.store().running_task(owned).await? else { return Ok(()) };
            let completion = self.0.completions.subscribe(id.0);
            // A task that is parked causes no wakeup, so check again soon.
            let soon = (tokio::time::Instant::now() + CHECK_INTERVAL / 4).min(end);
            if tokio::time::timeout_at(soon, completion.notified()).await.is_err() && soon == end {
                return self.stop_all(owned, None, by, why).await;
            }
        }
    }

    /// The queues of a project: one for each agent, and the project's own.
    pub async fn queues(&self, owned: &Owned) -> Result<Vec<QueueReport>> {
        let (agents, _) = self.store().agents(owned, 1000, 0).await?;
        let states: HashMap<Uuid, QueueState> =
            self.store().queues(owned).await?.into_iter().collect();
        let now = Utc::now();
        let report = |queue: Uuid, agent: Option<(AgentId, String)>, limit: u32| {
            let state = states.get(&queue).cloned().unwrap_or_default();
            let waited =
                |since: DateTime<Utc>| (now - since).num_milliseconds().max(0) as f64 / 1000.0;
            let (agent_id, agent_name) = agent.unzip();
            QueueReport {
                agent_id,
                agent_name,
                queue_size: state.queued,
                active: state.active,
                parked: state.parked,
                limit,
                oldest_wait_seconds: state.oldest.map(waited),
            }
        };
        let mut queues: Vec<QueueReport> = agents
            .iter()
            .map(|agent| {
                let who = Some((agent.id, agent.name.to_string()));
                report(agent.id.0, who, agent.config.concurrency_limit)
            })
            .collect();
        queues.push(report(owned.project.0, None, atelier_store::PROJECT_LIMIT));
        Ok(queues)
    }

    fn interrupt(&self, id: TaskId) {
        if let Some(run) = self.running().get(&id) {
            run.cancel.cancel();
        }
    }

    /// Runs leased tasks in the background.
    fn spawn(&self, leases: Vec<TaskLease>) {
        for lease in leases {
            // Also cancelled when the server stops.
            let cancel = self.0.stop.child_token();
            self.running()
                .insert(lease.task.id, RunningTask { fence: lease.fence, cancel: cancel.clone() });
            let bus = self.clone();
            self.0.tracker.spawn(async move { bus.run(lease, cancel).await });
        }
    }

    async fn run(self, lease: TaskLease, cancel: CancellationToken) {
        let id = lease.task.id;
        let work = async {
            let slot = tokio::select! {
                slot = self.0.slots.acquire() => slot,
                // The task is returned to its queue below.
                () = cancel.cancelled() => return Ok(Vec::new()),
            };
            let done = self.0.services.work(&lease, &cancel, self.node_with_capacity()).await;
            drop(slot);
            done
        };
        let done = AssertUnwindSafe(work).catch_unwind().await;
        // The next tasks are leased already. They start before this task is returned to its queue,
        // because that write can take seconds on a busy disk, and `check_tasks` would meanwhile
        // take the leased tasks for crashed ones.
        let done = done.map(|done| done.map(|leases| self.spawn(leases)));
        if cancel.is_cancelled() {
            self.return_to_queue(&lease).await;
        }
        if let Entry::Occupied(run) = self.running().entry(id)
            && run.get().fence == lease.fence
        {
            run.remove();
        }
        match done {
            Ok(Ok(()) | Err(Error::Store(StoreError::TaskLost | StoreError::NotFound))) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, task = %id, "a task failed with an internal error");
                let resume = matches!(&error, Error::Store(error) if error.trouble().is_some());
                self.recover_crashed_task(id, resume).await;
            }
            Err(_) => {
                tracing::error!(task = %id, "a task panicked");
                self.recover_crashed_task(id, false).await;
            }
        }
        match self.0.services.warn_of_budgets(&lease.owned).await {
            Ok(()) | Err(Error::Store(StoreError::NotFound)) => {}
            Err(error) => tracing::warn!(%error, task = %id, "cannot check budgets"),
        }
        if self.0.left_work_behind.swap(false, Ordering::Relaxed) {
            self.poll_waiting_queues().await;
        }
    }

    /// Recovers a task whose run broke off. If that was the database's fault, it may go on.
    async fn recover_crashed_task(&self, id: TaskId, resume: bool) {
        let resume = resume && self.0.services.settings.resume_interrupted;
        match self.store().recover_orphaned_task(id, resume).await {
            Ok(outcome) => count_interruption(id, outcome),
            // The periodic check finds tasks that this node holds but does not run, and tries
            // again.
            Err(error) => tracing::warn!(%error, task = %id, "cannot recover a task"),
        }
    }

    /// Returns an interrupted task to its queue, because nothing of the step was done. Does nothing
    /// if the task was cancelled or finished in the meantime. After a server stops, another one
    /// continues its tasks.
    async fn return_to_queue(&self, lease: &TaskLease) {
        match self.store().release_task(lease).await {
            // The task has ended in the meantime.
            Ok(()) | Err(StoreError::TaskLost) => {}
            Err(error) => {
                tracing::warn!(%error, task = %lease.task.id, "cannot return a task to its queue");
            }
        }
    }

    /// Leases and runs tasks of a queue. Only one poll of a queue runs at a time.
    fn poll_queue(&self, queue: Uuid) {
        let mut polling = self.0.polling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(again) = polling.get_mut(&queue) {
            *again = true;
            return;
        }
        polling.insert(queue, false);
        drop(polling);
        let bus = self.clone();
        self.0.tracker.spawn(async move {
            loop {
                if let Err(error) = bus.take_from(queue).await {
                    tracing::warn!(%error, "cannot lease tasks from a queue");
                }
                let mut polling = bus.0.polling.lock().unwrap_or_else(PoisonError::into_inner);
                match polling.get_mut(&queue) {
                    Some(again) if *again => *again = false,
                    _ => {
                        polling.remove(&queue);
                        return;
                    }
                }
            }
        });
    }

    async fn take_from(&self, queue: Uuid) -> Result<()> {
        let Some(owned) = self.store().queue_owner(queue).await? else { return Ok(()) };
        let Some(node) = self.node_with_capacity() else { return Ok(()) };
        let leases = self.store().lease_tasks(&owned, queue, node).await?;
        self.spawn(leases);
        Ok(())
    }

    async fn poll_waiting_queues(&self) {
        match self.store().waiting_queues().await {
            Ok(queues) => {
                gauge!("atelier_bus_queued_tasks")
                    .set(queues.iter().map(|(_, count)| *count as f64).sum::<f64>());
                queues.into_iter().for_each(|(queue, _)| self.poll_queue(queue));
            }
            Err(error) => tracing::warn!(%error, "cannot find out which queues have tasks"),
        }
    }

    /// Follows wakeups and checks regularly until `stop`; then returns running tasks to their
    /// queues.
    pub async fn run_background(&self, stop: CancellationToken) {
        let mut suspected = HashSet::new();
        let mut wakeups = self.store().wakeups().subscribe();
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                wakeup = wakeups.next() => match wakeup {
                    Some(Wakeup::Queue(_, queue)) => self.poll_queue(queue),
                    Some(Wakeup::Work(work)) => {
                        self.0.completions.wake(work);
                        self.interrupt_if_lost(TaskId(work)).await;
                    }
                    Some(Wakeup::Everything) => {
                        self.0.completions.wake_all();
                        self.poll_waiting_queues().await;
                    }
                    Some(_) => {}
                    None => break,
                },
                _ = ticks.tick() => {
                    if let Err(error) = self.check_tasks(&mut suspected).await {
                        tracing::warn!(%error, "the agent bus cannot check its tasks");
                    }
                }
            }
        }
        self.shut_down().await;
    }

    /// Leaves new tasks to other nodes. Running tasks go on until this node stops.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    async fn shut_down(&self) {
        self.0.stop.cancel();
        self.0.tracker.close();
        self.0.tracker.wait().await;
    }

    /// Removes tasks that were kept long enough. Returns how many it removed.
    pub async fn sweep(&self, now: DateTime<Utc>) -> Result<u64> {
        let days = TimeDelta::try_days(self.0.services.settings.keep_days.into());
        // A time too long to compute means that nothing is removed.
        let before = days.and_then(|days| now.checked_sub_signed(days));
        Ok(self.store().sweep_tasks(before.unwrap_or(DateTime::UNIX_EPOCH)).await?)
    }

    /// Interrupts a task that another node has ended.
    async fn interrupt_if_lost(&self, id: TaskId) {
        if self.running().contains_key(&id) && matches!(self.store().runs_task(id).await, Ok(false))
        {
            self.interrupt(id);
        }
    }

    async fn check_tasks(&self, suspected: &mut HashSet<TaskId>) -> Result<()> {
        // Looking for work comes first: nothing else may delay it.
        self.poll_waiting_queues().await;
        for lost in self.store().lost_tasks().await? {
            let (bus, id) = (self.clone(), lost.id);
            self.recover_in_background(id, async move {
                let resume = bus.0.services.settings.resume_interrupted;
                match bus.store().recover_lost_task(lost, resume).await {
                    Ok(outcome) => count_interruption(id, outcome),
                    Err(StoreError::NotFound) => {}
                    Err(error) => {
                        tracing::warn!(%error, task = %id, "cannot recover a task of a dead node");
                    }
                }
            });
        }
        let running: HashSet<TaskId> = self.running().keys().copied().collect();
        let held: HashSet<TaskId> = self.store().leased_tasks().await?.into_iter().collect();
        for &id in running.difference(&held) {
            self.interrupt_if_lost(id).await;
        }
        for id in orphans(&held, &running, suspected) {
            if !self.running().contains_key(&id) {
                let bus = self.clone();
                // The database did not answer when the task should have been recovered.
                self.recover_in_background(
                    id,
                    async move { bus.recover_crashed_task(id, true).await },
                );
            }
        }
        gauge!("atelier_running_tasks").set(running.len() as f64);
        Ok(())
    }

    /// Recovers a task without waiting for it. The next check tries again if that fails.
    fn recover_in_background(
        &self,
        id: TaskId,
        recover: impl Future<Output = ()> + Send + 'static,
    ) {
        if !self.recovering().insert(id) {
            return;
        }
        let bus = self.clone();
        self.0.tracker.spawn(async move {
            recover.await;
            bus.recovering().remove(&id);
        });
    }
}

/// Logs and counts what became of a task whose run broke off.
fn count_interruption(task: TaskId, outcome: LostTaskOutcome) {
    let outcome = match outcome {
        LostTaskOutcome::Resumed => {
            tracing::info!(%task, "an interrupted task goes on");
            "resumed"
        }
        LostTaskOutcome::Failed => {
            tracing::warn!(%task, "marked an interrupted task as failed");
            "failed"
        }
        LostTaskOutcome::Recovered => return,
    };
    counter!("atelier_interrupted_tasks_total", "outcome" => outcome).increment(1);
}

/// Tasks that this node has leased but does not run, in two checks in a row. A task that fails only
/// one check may have been leased a moment ago. `suspected` holds what failed the previous check.
fn orphans(
    leased: &HashSet<TaskId>,
    running: &HashSet<TaskId>,
    suspected: &mut HashSet<TaskId>,
) -> Vec<TaskId> {
    let idle: HashSet<TaskId> = leased.difference(running).copied().collect();
    let found = idle.intersection(suspected).copied().collect();
    *suspected = idle;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(numbers: impl IntoIterator<Item = u128>) -> HashSet<TaskId> {
        numbers.into_iter().map(|number| TaskId(Uuid::from_u128(number))).collect()
    }

    #[test]
    fn leased_task_that_does_not_run_in_two_checks_is_an_orphan() {
        let mut suspected = HashSet::new();
        assert_eq!(orphans(&tasks([1, 2]), &tasks([1]), &mut suspected), []);
        let second = orphans(&tasks([1, 2]), &tasks([1]), &mut suspected);
        assert_eq!(second, [TaskId(Uuid::from_u128(2))]);
    }

    #[test]
    fn task_that_is_leased_again_between_two_checks_is_no_orphan() {
        let mut suspected = HashSet::new();
        assert_eq!(orphans(&tasks([1]), &tasks([1]), &mut suspected), []);
        // The task parked, was leased again and is about to start.
        assert_eq!(orphans(&tasks([1]), &tasks([]), &mut suspected), []);
        assert_eq!(orphans(&tasks([1]), &tasks([1]), &mut suspected), []);
    }
}
