//! Interactions that agents remember without being told to: their messages, their finished tasks
//! and their settled tool calls. They are written in the transaction of what they report.
//! `atelier_core::remembered` decides what is remembered of each.

use crate::{Owned, pending::PendingRows};
use atelier_core::{
    Message, Task,
    gate::GatedCall,
    remembered::{self, KnownSecrets, Remembered},
};

/// Remembers a message to or from an agent, without the secrets that it quotes.
pub(crate) fn remember_message(
    rows: &mut PendingRows,
    owned: &Owned,
    message: &Message,
    secrets: &KnownSecrets,
) {
    remember(rows, owned, remembered::of_message(message, secrets));
}

/// Remembers a task that has ended, without the secrets that its answer quotes.
pub(crate) fn remember_task(
    rows: &mut PendingRows,
    owned: &Owned,
    task: &Task,
    secrets: &KnownSecrets,
) {
    remember(rows, owned, remembered::of_task(task, secrets));
}

/// Remembers a tool call that is settled. If its result may hold secrets, it is recorded that the
/// conversation has seen them.
pub(crate) fn remember_call(rows: &mut PendingRows, owned: &Owned, call: &GatedCall) {
    if let Some(session) = call.session_id
        && call.result.is_some()
        && remembered::is_withheld(call)
    {
        rows.withheld_calls.push((call.tool_id, session));
    }
    remember(rows, owned, remembered::of_call(call));
}

fn remember(rows: &mut PendingRows, owned: &Owned, remembered: Remembered) {
    if let Some((agent, interaction)) = remembered {
        rows.remember(owned, agent, interaction);
    }
}
