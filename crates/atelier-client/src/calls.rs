//! Running a call that was signed off: checked again, claimed, written down, run, and its result posted
//! until the server has it.

use crate::{
    backoff::Backoff,
    desk::Desk,
    error::{Error, Result},
    journal::{Journal, Key, Open, Step},
    local::{Local, failed},
    screen::{Screen, summary},
    signal::Signal,
};
use atelier_core::{
    CallId,
    gate::{CallStatus, GatedCall},
    policy::{call::ToolCall, verdict::Verdict},
};
use atelier_executor::{Cancel, ToolResult};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) struct Client {
    pub(crate) desk: Desk,
    pub(crate) local: Local,
    pub(crate) journal: Journal,
    pub(crate) screen: Arc<Screen>,
    /// Nothing above this runs here, whoever approved it.
    pub(crate) up_to: Verdict,
    /// How many commands run at a time; each may take minutes.
    pub(crate) slots: Semaphore,
    /// How many calls on files are under way: most of that time they wait for the server.
    pub(crate) under_way: Semaphore,
    /// How many of them have a file in their hands.
    pub(crate) hands: Semaphore,
    /// How many previews are made at a time: each may hold a file twice.
    pub(crate) looks: Semaphore,
    pub(crate) active: Mutex<HashMap<Key, Cancel>>,
    /// What an earlier run asked for and never began, as its journal says.
    pub(crate) unbegun: Mutex<Vec<Key>>,
    pub(crate) tasks: TaskTracker,
    /// Nothing new begins.
    pub(crate) stop: CancellationToken,
    /// Nothing is waited for any more.
    pub(crate) abandon: CancellationToken,
}

/// How many calls on files may be under way at once.
pub(crate) const UNDER_WAY: usize = 64;
const LARGE: usize = 1 << 20;

/// What came of asking whether a call is ours to run.
enum Claim {
    Ours,
    NotOurs,
    Interrupted,
}

impl Client {
    /// Begins with a call, unless it has begun already: now, or in an earlier run whose outcome is still to be told.
    pub(crate) fn take(self: &Arc<Self>, signal: Signal) {
        if self.journal.has_begun(signal.key()) {
            return;
        }
        let cancel = match Cancel::new() {
            Ok(cancel) => cancel,
            // It stays the server's to hand out again, or to give up.
            Err(error) => return self.screen.line(&format!("a call cannot be taken now: {error}")),
        };
        match self.active.lock().unwrap_or_else(PoisonError::into_inner).entry(signal.key()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(free) => drop(free.insert(cancel.clone())),
        }
        let client = self.clone();
        self.tasks.spawn(async move {
            let (key, what) = (signal.key(), summary(&signal.tool_name, &signal.tool_params));
            if let Err(error) = client.carry_out(signal, cancel).await {
                client.screen.line(&format!("{what}: {}", error.told()));
            }
            client.active.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        });
    }

    /// Claimed by an earlier run of ours that ended before it began.
    pub(crate) fn never_began(&self, call: &GatedCall) -> bool {
        let unbegun = self.unbegun.lock().unwrap_or_else(PoisonError::into_inner);
        unbegun.contains(&(call.tool_id, call.attempt))
    }

    /// What never began and is not ours to run any more need not be remembered.
    pub(crate) fn forget_settled(&self, dispatched: &[GatedCall]) -> Result<()> {
        let mut unbegun = self.unbegun.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |key: &Key| dispatched.iter().any(|call| (call.tool_id, call.attempt) == *key);
        let (open, settled): (Vec<Key>, Vec<Key>) = unbegun.drain(..).partition(open);
        *unbegun = open;
        settled.into_iter().try_for_each(|key| self.journal.note(key, Step::Done, false))
    }

    /// The person or the server does not want it any more.
    pub(crate) fn cancel(&self, id: CallId) {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.iter().filter(|((tool, _), _)| *tool == id).for_each(|(_, cancel)| cancel.cancel());
    }

    pub(crate) fn cancel_all(&self) {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(Cancel::cancel);
    }

    /// Ends what an earlier run left open: a result that nobody took is posted, and what was running then is
    /// reported as unknown. Nothing of it runs again.
    pub(crate) fn settle(self: &Arc<Self>, open: Open) -> Result<()> {
        for (key, step) in open {
            let result = match step {
                Step::Result { result } => result,
                Step::Running => {
                    let result = json!({
                        "success": false,
                        "code": "unknown",
                        "error": "the client was lost while it ran; it may have happened",
                    });
                    self.journal.note(key, Step::Result { result: result.clone() }, true)?;
                    result
                }
                Step::Claiming => {
                    self.unbegun.lock().unwrap_or_else(PoisonError::into_inner).push(key);
                    continue;
                }
                Step::Done => continue,
            };
            let code = result["code"].as_str().unwrap_or("success").to_owned();
            self.screen.line(&format!("an earlier call, {}: telling the server ({code})", key.0));
            let client = self.clone();
            self.tasks.spawn(async move {
                if let Err(error) = client.deliver(key, result).await {
                    client.screen.line(&format!("an earlier call, {}: {}", key.0, error.told()));
                }
            });
        }
        Ok(())
    }

    async fn carry_out(self: &Arc<Self>, signal: Signal, cancel: Cancel) -> Result<()> {
        let (key, what) = (signal.key(), summary(&signal.tool_name, &signal.tool_params));
        // A command is claimed when it can begin, and not before: nobody knows how long the others take.
        let is_command = signal.tool_name == "execute_command";
        let places = if is_command { &self.slots } else { &self.under_way };
        let place = tokio::select! {
            place = places.acquire() => place,
            () = self.stop.cancelled() => return Ok(()),
        };
        let checking = {
            let (client, signal) = (self.clone(), signal.clone());
            tokio::task::spawn_blocking(move || signal.check(&client.local, client.up_to)).await
        };
        let call = match checking.unwrap_or_else(|_| Err(failed("internal", "the check failed"))) {
            Ok(call) => call,
            Err(refusal) => {
                self.screen.line(&format!("{what}: refused here: {}", told(&refusal)));
                let result = json!(refusal);
                self.journal.note(key, Step::Result { result: result.clone() }, false)?;
                return self.deliver(key, result).await;
            }
        };
        // Written before the server is asked: an answer that gets lost leaves a trace here.
        self.journal.note(key, Step::Claiming, false)?;
        match self.claim(key).await? {
            Claim::Ours => {}
            Claim::NotOurs => {
                self.screen.line(&format!("{what}: not ours to run any more"));
                return self.journal.note(key, Step::Done, false);
            }
            // The journal keeps that it never began.
            Claim::Interrupted => return Ok(()),
        }
        let hand = if is_command { None } else { Some(self.hands.acquire().await) };
        self.screen.line(&format!("{what}: running ({})", signal.risk_level));
        let running = {
            let client = self.clone();
            tokio::task::spawn_blocking(move || client.run(&signal, &call, &cancel)).await
        };
        // A panic leaves `Running` in the journal, and the next start reports it as unknown.
        let (result, outcome) = running.map_err(|_| Error::BrokeOff)??;
        self.screen.line(&format!("{what}: {outcome}"));
        // The next may begin, unless this is so large that a few more would not fit into memory.
        let large = result["content"].as_str().is_some_and(|content| content.len() > LARGE);
        let held = (large || !is_command).then_some(place);
        let in_hand = large.then_some(hand);
        let delivered = self.deliver(key, result).await;
        drop((held, in_hand));
        delivered
    }

    /// Whether the call is ours to run. An earlier claim whose answer got lost is ours as well: what the journal shows to
    /// have begun does not get here.
    async fn claim(&self, key: Key) -> Result<Claim> {
        let mut asked_before = {
            let mut unbegun = self.unbegun.lock().unwrap_or_else(PoisonError::into_inner);
            let at = unbegun.iter().position(|known| *known == key);
            at.map(|at| unbegun.swap_remove(at)).is_some()
        };
        let mut backoff = Backoff::new();
        loop {
            match self.desk.claim(key.0, key.1).await {
                Ok(()) => return Ok(Claim::Ours),
                Err(error) if error.passes() => asked_before = true,
                Err(Error::Refused { status: 409, .. }) if asked_before => {
                    match self.desk.project.call(key.0).await {
                        Ok(call) => {
                            let ours = call.client_id == Some(self.desk.client) && call.attempt == key.1;
                            let ours = ours && call.claimed && call.status == CallStatus::Dispatched;
                            return Ok(if ours { Claim::Ours } else { Claim::NotOurs });
                        }
                        Err(error) if error.passes() => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(Error::Refused { status: 404 | 409, .. }) => return Ok(Claim::NotOurs),
                Err(error) => return Err(error),
            }
            if !backoff.wait(&self.stop).await {
                return Ok(Claim::Interrupted);
            }
        }
    }

    /// Runs it between two lines of the journal. Blocks.
    fn run(&self, signal: &Signal, call: &ToolCall, cancel: &Cancel) -> Result<(Value, String)> {
        let changes = signal.risk_level > Verdict::Low;
        self.journal.note(signal.key(), Step::Running, changes)?;
        let result = match cancel.is_cancelled() {
            true => failed("cancelled", "cancelled before it began"),
            false => self.local.tools().execute(call, &signal.approval(), cancel),
        };
        let value = json!(result);
        self.journal.note(signal.key(), Step::Result { result: value.clone() }, changes)?;
        Ok((value, told(&result)))
    }

    /// Posts a result until the server has it. What it will never take is not posted again.
    async fn deliver(&self, key: Key, mut result: Value) -> Result<()> {
        let mut backoff = Backoff::new();
        loop {
            match self.desk.result(key.0, key.1, &result).await {
                Ok(()) => return self.journal.note(key, Step::Done, false),
                Err(error) if error.passes() => {
                    // It stays in the journal, for the next start.
                    if !backoff.wait(&self.abandon).await {
                        return Ok(());
                    }
                }
                Err(Error::Refused { status: 413, detail, .. }) if result["code"] != "result_too_large" => {
                    result = json!(failed("result_too_large", format!("it ran, but: {detail}")));
                    self.journal.note(key, Step::Result { result: result.clone() }, true)?;
                }
                Err(error @ Error::Refused { .. }) => {
                    self.journal.note(key, Step::Done, false)?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The outcome in a few words.
fn told(result: &ToolResult) -> String {
    match &result.failure {
        None => "done".to_owned(),
        Some(failure) if failure.code == "stale" => {
            "the file has changed since it was shown; asking again".to_owned()
        }
        Some(failure) if failure.code == "approval_required" => {
            format!("{} That is more than what was approved; asking again", failure.detail)
        }
        Some(failure) => format!("{} ({})", failure.detail, failure.code),
    }
}
