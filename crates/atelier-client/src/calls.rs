//! Running a dispatched call: check it again, claim it, record it in the journal, run it, and send
//! its outcome until the server has it.

use crate::{
    backoff::Backoff,
    dispatched_call::DispatchedCall,
    error::{Error, Result},
    journal::{CallStage, Journal, Key, OpenCalls},
    local_workspace::LocalWorkspace,
    machine_api::MachineApi,
    screen::{Screen, summary},
};
use atelier_core::{
    CallId, ConversationId, FailureCode,
    gate::{CallStatus, GatedCall, ToolOutcome},
    policy::{call::ToolCall, verdict::Verdict},
    tools::{ToolDef, ToolTable},
};
use atelier_executor::Cancel;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What runs the calls of one project on this machine.
pub(crate) struct CallRunner {
    pub(crate) machine: MachineApi,
    pub(crate) local: LocalWorkspace,
    pub(crate) journal: Journal,
    pub(crate) screen: Arc<Screen>,
    /// Calls above this risk do not run here, even if they are approved.
    pub(crate) up_to: Verdict,
    /// How many commands run at the same time. Each may take minutes.
    pub(crate) command_slots: Semaphore,
    /// How many file calls are in progress. Most of the time they wait for the server.
    pub(crate) file_call_slots: Semaphore,
    /// How many file calls hold a file in memory.
    pub(crate) open_file_slots: Semaphore,
    /// How many previews are computed at the same time. Each may hold a file in memory twice.
    pub(crate) preview_slots: Semaphore,
    pub(crate) active: Mutex<HashMap<Key, Cancel>>,
    /// Calls that an earlier process claimed and never started, according to the journal.
    pub(crate) never_started: Mutex<Vec<Key>>,
    pub(crate) tasks: TaskTracker,
    /// No new call starts after this.
    pub(crate) stop: CancellationToken,
    /// Nobody waits for deliveries after this.
    pub(crate) give_up: CancellationToken,
}

/// How many file calls may be in progress at once.
pub(crate) const MAX_FILE_CALLS: usize = 64;
/// An outcome with more content than this keeps its slots until it is delivered.
const LARGE: usize = 1 << 20;

/// The server's answer to a claim.
enum ClaimAnswer {
    Granted,
    Refused,
    Interrupted,
}

impl CallRunner {
    /// Starts a call, unless this or an earlier process has started it already.
    pub(crate) fn start(self: &Arc<Self>, call: DispatchedCall) {
        if self.journal.has_begun(call.key()) {
            return;
        }
        let cancel = match Cancel::new() {
            Ok(cancel) => cancel,
            // The server sends the call again, or lets it expire.
            Err(error) => return self.screen.line(&format!("cannot start a call: {error}")),
        };
        match self.active.lock().unwrap_or_else(PoisonError::into_inner).entry(call.key()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(free) => drop(free.insert(cancel.clone())),
        }
        let client = self.clone();
        self.tasks.spawn(async move {
            let (key, what) = (call.key(), summary(&call.tool_name, &call.tool_params));
            if let Err(error) = client.process(call, cancel).await {
                client.screen.line(&format!("{what}: {}", error.full_message()));
            }
            client.active.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        });
    }

    /// Whether an earlier process claimed the call and ended before it started it.
    pub(crate) fn was_never_started(&self, call: &GatedCall) -> bool {
        let never_started = self.never_started.lock().unwrap_or_else(PoisonError::into_inner);
        never_started.contains(&(call.tool_id, call.attempt))
    }

    /// Forgets calls that were never started and that the server no longer expects from this
    /// machine.
    pub(crate) fn forget_settled_calls(&self, dispatched: &[GatedCall]) -> Result<()> {
        let mut never_started = self.never_started.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |key: &Key| dispatched.iter().any(|call| (call.tool_id, call.attempt) == *key);
        let (open, settled): (Vec<Key>, Vec<Key>) = never_started.drain(..).partition(open);
        *never_started = open;
        settled.into_iter().try_for_each(|key| self.journal.record(key, CallStage::Done, false))
    }

    /// Cancels a call that is no longer wanted.
    pub(crate) fn cancel(&self, id: CallId) {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.iter().filter(|((tool, _), _)| *tool == id).for_each(|(_, cancel)| cancel.cancel());
    }

    /// Removes the layer of a deleted conversation in the background.
    pub(crate) fn end_layer(self: &Arc<Self>, session: ConversationId) {
        let client = self.clone();
        self.tasks.spawn_blocking(move || {
            if let Err(error) = client.local.end_layer(&session.to_string()) {
                let words = format!("the layer of conversation {session} stays: {error}");
                client.screen.line(&words);
            }
        });
    }

    pub(crate) fn cancel_all(&self) {
        self.active
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .for_each(Cancel::cancel);
    }

    /// Finishes the calls that an earlier process left open: sends outcomes that were not
    /// delivered, and reports calls that were running as unknown. Nothing runs again.
    pub(crate) fn finish_earlier_calls(self: &Arc<Self>, open: OpenCalls) -> Result<()> {
        for (key, stage) in open {
            let outcome = match stage {
                CallStage::Result { result } => result,
                CallStage::Running => {
                    let detail = "the client stopped while the call was running; the call may \
                        have had an effect";
                    let outcome = ToolOutcome::failed(FailureCode::Unknown, detail);
                    self.journal.record(
                        key,
                        CallStage::Result { result: outcome.clone() },
                        true,
                    )?;
                    outcome
                }
                CallStage::Claiming => {
                    self.never_started.lock().unwrap_or_else(PoisonError::into_inner).push(key);
                    continue;
                }
                CallStage::Done => continue,
            };
            let failure = outcome.failure.as_ref();
            let code = failure.map_or("success", |failure| failure.code.as_str());
            self.screen.line(&format!("earlier call {}: sending its outcome ({code})", key.0));
            let client = self.clone();
            self.tasks.spawn(async move {
                if let Err(error) = client.deliver(key, outcome).await {
                    client.screen.line(&format!(
                        "earlier call {}: {}",
                        key.0,
                        error.full_message()
                    ));
                }
            });
        }
        Ok(())
    }

    async fn process(self: &Arc<Self>, call: DispatchedCall, cancel: Cancel) -> Result<()> {
        let (key, what) = (call.key(), summary(&call.tool_name, &call.tool_params));
        // A command is claimed only when it can start, because nobody knows how long the others
        // take.
        let is_command =
            ToolTable::builtin().get(&call.tool_name).is_some_and(ToolDef::runs_commands);
        let slots = if is_command { &self.command_slots } else { &self.file_call_slots };
        let slot = tokio::select! {
            slot = slots.acquire() => slot,
            () = self.stop.cancelled() => return Ok(()),
        };
        let checked = match self.check(&call).await {
            Ok(checked) => checked,
            Err(refusal) => {
                self.screen
                    .line(&format!("{what}: refused by this machine: {}", outcome_text(&refusal)));
                self.journal.record(key, CallStage::Result { result: refusal.clone() }, false)?;
                return self.deliver(key, refusal).await;
            }
        };
        // Recorded before the claim is sent, so that a lost answer leaves a trace here.
        self.journal.record(key, CallStage::Claiming, false)?;
        match self.claim(key).await? {
            ClaimAnswer::Granted => {}
            ClaimAnswer::Refused => {
                self.screen.line(&format!(
                    "{what}: not run, because another machine runs it or it was settled"
                ));
                return self.journal.record(key, CallStage::Done, false);
            }
            // The journal still says that the call was never started.
            ClaimAnswer::Interrupted => return Ok(()),
        }
        let file_slot = if is_command { None } else { Some(self.open_file_slots.acquire().await) };
        self.screen.line(&format!("{what}: running ({})", call.risk_level));
        let output = if is_command { self.send_output(&call, &cancel) } else { None };
        let running = {
            let client = self.clone();
            tokio::task::spawn_blocking(move || client.run(&call, &checked, &cancel)).await
        };
        if let Some(output) = output {
            output.abort();
        }
        // A panic leaves `Running` in the journal, and the next start reports the outcome as
        // unknown.
        let (outcome, text) = running.map_err(|_| Error::Panicked)??;
        self.screen.line(&format!("{what}: {text}"));
        // The next call may start now, unless a few outcomes of this size would not fit into
        // memory.
        let is_large = outcome.content().is_some_and(|content| content.len() > LARGE);
        let held_slot = (is_large || !is_command).then_some(slot);
        let held_file_slot = is_large.then_some(file_slot);
        let delivered = self.deliver(key, outcome).await;
        drop((held_slot, held_file_slot));
        delivered
    }

    async fn check(self: &Arc<Self>, call: &DispatchedCall) -> Result<ToolCall, ToolOutcome> {
        let (client, call) = (self.clone(), call.clone());
        let checking = tokio::task::spawn_blocking(move || {
            let origin = call.origin(client.machine.client);
            call.check(&client.local, &origin, client.up_to)
        });
        checking.await.unwrap_or_else(|_| {
            Err(ToolOutcome::failed(FailureCode::Internal, "the check of the call failed"))
        })
    }

    /// Claims a call. If the answer to an earlier claim was lost, that claim counts: a call that
    /// the journal shows as started does not get here.
    async fn claim(&self, key: Key) -> Result<ClaimAnswer> {
        let mut claimed_before = {
            let mut never_started =
                self.never_started.lock().unwrap_or_else(PoisonError::into_inner);
            let at = never_started.iter().position(|known| *known == key);
            at.map(|at| never_started.swap_remove(at)).is_some()
        };
        let mut backoff = Backoff::new();
        loop {
            match self.machine.claim(key.0, key.1).await {
                Ok(()) => return Ok(ClaimAnswer::Granted),
                Err(error) if error.allows_another_report() => claimed_before = true,
                Err(error) if error.status() == Some(409) && claimed_before => {
                    match self.machine.project.call(key.0).await {
                        Ok(call) if self.has_claimed(&call, key.1) => {
                            return Ok(ClaimAnswer::Granted);
                        }
                        Ok(_) => return Ok(ClaimAnswer::Refused),
                        Err(error) if error.allows_another_report() => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(error) if matches!(error.status(), Some(404 | 409)) => {
                    return Ok(ClaimAnswer::Refused);
                }
                Err(error) => return Err(error),
            }
            if !backoff.wait(&self.stop).await {
                return Ok(ClaimAnswer::Interrupted);
            }
        }
    }

    fn has_claimed(&self, call: &GatedCall, attempt: u32) -> bool {
        call.client_id == Some(self.machine.client)
            && call.attempt == attempt
            && call.claimed
            && call.status == CallStatus::Dispatched
    }

    /// Runs the call, and records its start and its outcome in the journal. Blocks.
    fn run(
        &self,
        call: &DispatchedCall,
        checked: &ToolCall,
        cancel: &Cancel,
    ) -> Result<(ToolOutcome, String)> {
        let changes = call.risk_level > Verdict::Low;
        self.journal.record(call.key(), CallStage::Running, changes)?;
        let outcome = match cancel.is_cancelled() {
            true => ToolOutcome::failed(
                FailureCode::Cancelled,
                "the call was cancelled before it started",
            ),
            false => {
                let origin = call.origin(self.machine.client);
                self.local.tools_for(&origin).execute(checked, &call.approval(), cancel)
            }
        };
        self.journal.record(call.key(), CallStage::Result { result: outcome.clone() }, changes)?;
        let text = outcome_text(&outcome);
        Ok((outcome, text))
    }

    /// Sends an outcome until the server has it or the call is gone. If the server does not accept
    /// the content, it gets a short outcome instead, once.
    async fn deliver(&self, key: Key, mut outcome: ToolOutcome) -> Result<()> {
        let (mut backoff, mut is_shortened, mut has_warned) = (Backoff::new(), false, false);
        loop {
            let error = match self.machine.send_outcome(key.0, key.1, &outcome).await {
                Ok(()) => return self.journal.record(key, CallStage::Done, false),
                Err(error) => error,
            };
            let retries = error.allows_another_report();
            match error {
                Error::Refused(problem)
                    if matches!(problem.status, 400 | 413 | 422) && !is_shortened =>
                {
                    is_shortened = true;
                    let detail = format!(
                        "the call ran, but its result was not accepted: {}",
                        problem.detail
                    );
                    outcome = ToolOutcome::failed(FailureCode::ResultTooLarge, detail);
                    self.journal.record(
                        key,
                        CallStage::Result { result: outcome.clone() },
                        true,
                    )?;
                    continue;
                }
                error @ Error::Refused(_)
                    if !retries && matches!(error.status(), Some(404 | 409)) =>
                {
                    self.journal.record(key, CallStage::Done, false)?;
                    return Err(error);
                }
                error if !retries && !has_warned => {
                    has_warned = true;
                    let why = error.full_message();
                    self.screen.line(&format!("an outcome is not accepted, trying again: {why}"));
                }
                _ => {}
            }
            // The outcome stays in the journal for the next start.
            if !backoff.wait(&self.give_up).await {
                return Ok(());
            }
        }
    }
}

/// The outcome in a few words.
fn outcome_text(result: &ToolOutcome) -> String {
    match &result.failure {
        None => "done".to_owned(),
        Some(failure) if failure.code == FailureCode::Stale => {
            "the file has changed since the preview; asking again".to_owned()
        }
        Some(failure) if failure.code == FailureCode::ApprovalRequired => {
            format!("{} This is more than what was approved; asking again", failure.detail)
        }
        Some(failure) => format!("{} ({})", failure.detail, failure.code),
    }
}
