//! What agents remember by themselves: what was said to them and by them, the tasks they worked on, the tools they
//! called. Each is written down in the transaction of what it tells about.

use crate::{Owned, Tx};
use atelier_core::{
    AgentId, InteractionType, Message, MessageRole, NewInteraction, Task, TaskKind, TaskStatus,
    gate::{CallStatus, GatedCall},
    memory::shortened,
};

/// How much of a text is remembered, in characters: what a tool has put out can be megabytes.
const ENOUGH: usize = 4000;
/// Of a tool's parameters: the content of a file is remembered by its beginning and end.
const ENOUGH_PARAMS: usize = 1000;

/// An agent's part of the conversation. What is for nobody in particular is the project's, not an agent's.
pub(crate) fn message(tx: &mut Tx, owned: &Owned, message: &Message) {
    let Some(agent) = message.agent_id else { return };
    let kind = match message.role {
        MessageRole::User => InteractionType::UserMessage,
        MessageRole::Assistant => InteractionType::AgentResponse,
    };
    let mut memo = NewInteraction::new(kind, shortened(&message.content, ENOUGH))
        .of_session(message.session_id)
        .with("message_id", message.id.to_string());
    memo.task_id = message.task_id.map(|id| id.to_string());
    remember(tx, owned, agent, memo);
}

/// A task that has come to its end.
pub(crate) fn task(tx: &mut Tx, owned: &Owned, task: &Task) {
    let (Some(agent), TaskKind::Work) = (task.agent_id, task.kind) else { return };
    let outcome = match (&task.result, &task.error) {
        (Some(result), _) => result.as_str(),
        (None, Some(error)) => error.detail.as_str(),
        (None, None) => "",
    };
    let text = format!("Task: {}\nOutcome: {outcome}", shortened(&task.description, ENOUGH / 2));
    let mut memo = NewInteraction::new(InteractionType::TaskExecution, shortened(&text, ENOUGH))
        .of_task(task.id)
        .of_session(task.session_id)
        .with("status", task.status.as_str())
        .with("steps", task.steps);
    if task.status != TaskStatus::Completed {
        memo = memo.failed(task.error.as_ref().map_or(task.status.as_str(), |error| error.detail.as_str()));
    }
    remember(tx, owned, agent, memo);
}

/// A tool call that is settled, whichever way.
pub(crate) fn call(tx: &mut Tx, owned: &Owned, call: &GatedCall) {
    let Some(agent) = call.agent_id else { return };
    let outcome = match (&call.result, &call.error) {
        (_, Some(error)) => error.detail.clone(),
        (Some(result), None) => shortened(&result.to_string(), ENOUGH),
        (None, None) => call.status.as_str().to_owned(),
    };
    let params = shortened(&call.tool_params.to_string(), ENOUGH_PARAMS);
    let mut memo =
        NewInteraction::new(InteractionType::ToolCall, format!("{} {params}\n→ {outcome}", call.tool_name))
            .with("tool_id", call.tool_id.to_string())
            .with("tool_name", call.tool_name.clone())
            .with("status", call.status.as_str());
    memo.task_id = call.task_id.map(|id| id.to_string());
    memo.session_id = call.session_id.map(|id| id.to_string());
    if call.status != CallStatus::Completed {
        memo = memo.failed(call.error.as_ref().map_or(call.status.as_str(), |error| error.detail.as_str()));
    }
    remember(tx, owned, agent, memo);
}

fn remember(tx: &mut Tx, owned: &Owned, agent: AgentId, memo: NewInteraction) {
    if !memo.text.trim().is_empty() {
        tx.keep_memo(owned, agent, memo);
    }
}
