//! Interactions that agents remember without being told to: their messages, their finished tasks
//! and their settled tool calls. They are written in the transaction of what they report.

use crate::{Owned, pending::PendingRows};
use atelier_core::{
    AgentId, InteractionType, Message, MessageRole, NewInteraction, Task, TaskKind, TaskStatus,
    gate::{CallStatus, GatedCall},
    memory::shortened,
};

/// How many characters of a text are remembered: the output of a tool can be megabytes long.
const MAX_TEXT: usize = 4000;
/// How many characters of a call's parameters are remembered. `shortened` keeps the beginning and
/// the end.
const MAX_PARAMS: usize = 1000;

/// Remembers a message to or from an agent. A message for the planner belongs to no agent.
pub(crate) fn remember_message(rows: &mut PendingRows, owned: &Owned, message: &Message) {
    let Some(agent) = message.agent_id else { return };
    let kind = match message.role {
        MessageRole::User => InteractionType::UserMessage,
        MessageRole::Assistant => InteractionType::AgentResponse,
    };
    let mut interaction = NewInteraction::new(kind, shortened(&message.content, MAX_TEXT))
        .of_session(message.session_id)
        .with("message_id", message.id.to_string());
    interaction.task_id = message.task_id.map(|id| id.to_string());
    remember(rows, owned, agent, interaction);
}

/// Remembers a task that has ended.
pub(crate) fn remember_task(rows: &mut PendingRows, owned: &Owned, task: &Task) {
    let (Some(agent), TaskKind::Work) = (task.agent_id, task.kind) else { return };
    let outcome = match (&task.result, &task.error) {
        (Some(result), _) => result.as_str(),
        (None, Some(error)) => error.detail.as_str(),
        (None, None) => "",
    };
    let text = format!("Task: {}\nOutcome: {outcome}", shortened(&task.description, MAX_TEXT / 2));
    let mut interaction =
        NewInteraction::new(InteractionType::TaskExecution, shortened(&text, MAX_TEXT))
            .of_task(task.id)
            .of_session(task.session_id)
            .with("status", task.status.as_str())
            .with("steps", task.steps);
    if task.status != TaskStatus::Completed {
        interaction = interaction.failed(
            task.error.as_ref().map_or(task.status.as_str(), |error| error.detail.as_str()),
        );
    }
    remember(rows, owned, agent, interaction);
}

/// Remembers a tool call that is settled.
pub(crate) fn remember_call(rows: &mut PendingRows, owned: &Owned, call: &GatedCall) {
    let Some(agent) = call.agent_id else { return };
    let outcome = match (&call.result, &call.error) {
        (_, Some(error)) => error.detail.clone(),
        (Some(result), None) => shortened(&result.to_string(), MAX_TEXT),
        (None, None) => call.status.as_str().to_owned(),
    };
    let params = shortened(&call.tool_params.to_string(), MAX_PARAMS);
    let mut interaction = NewInteraction::new(
        InteractionType::ToolCall,
        format!("{} {params}\n→ {outcome}", call.tool_name),
    )
    .with("tool_id", call.tool_id.to_string())
    .with("tool_name", call.tool_name.clone())
    .with("status", call.status.as_str());
    interaction.task_id = call.task_id.map(|id| id.to_string());
    interaction.session_id = call.session_id.map(|id| id.to_string());
    if call.status != CallStatus::Completed {
        interaction = interaction.failed(
            call.error.as_ref().map_or(call.status.as_str(), |error| error.detail.as_str()),
        );
    }
    remember(rows, owned, agent, interaction);
}

fn remember(rows: &mut PendingRows, owned: &Owned, agent: AgentId, interaction: NewInteraction) {
    if !interaction.text.trim().is_empty() {
        rows.remember(owned, agent, interaction);
    }
}
