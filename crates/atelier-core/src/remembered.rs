//! Decides what agents remember of messages, tasks and tool calls.
//!
//! A memory comes back in other conversations, is found by other tokens and goes to an embedding
//! service. So the content of secret files is not remembered, however it was read: the memory says
//! only that the file was read. In everything else, values that look like keys are masked, and so
//! are quotes of an agent from a secret file that was read in its conversation.
//!
//! Everything is remembered once, in words that people and models can read. A task includes the
//! request and the outcome, so the messages that began and ended it are not remembered as well.

mod quotes;
mod readable;

pub use quotes::KnownSecrets;

use crate::{
    AgentId, Interaction, InteractionType, Message, MessageRole, NewInteraction, Task, TaskKind,
    TaskStatus,
    gate::{CallStatus, GatedCall},
    mask::{masked, masked_excerpt, masked_json},
    memory::shortened,
    policy::Policy,
    task::{Step, StepResult},
};
use serde_json::{Map, Value};

/// How many characters of a text are remembered: the output of a tool can be megabytes long.
const MAX_TEXT: usize = 4000;
/// How many characters of a call's parameters are remembered.
const MAX_PARAMS: usize = 1000;
/// How many characters a text in the metadata can have. All metadata together have no more.
const MAX_METADATA: usize = 64 * 1024;
/// Stands in a memory for the result of a withheld call.
pub const WITHHELD: &str = "[not remembered: the call may have shown secrets]";
/// Parameters that hold the content of a file. All other parameters describe the call.
const CONTENT: [&str; 6] = ["content", "edits", "old_text", "new_text", "old_string", "new_string"];

/// A memory and the agent whose memory it is.
pub type Remembered = Option<(AgentId, NewInteraction)>;

/// The memory of a message to or from an agent; `None` for a message to the planner, which belongs
/// to no agent, and for a message that a task is remembered for.
pub fn of_message(message: &Message, secrets: &KnownSecrets) -> Remembered {
    let agent = message.agent_id?;
    if message.task_id.is_some() {
        return None;
    }
    let kind = match message.role {
        MessageRole::User => InteractionType::UserMessage,
        MessageRole::Assistant => InteractionType::AgentResponse,
    };
    let interaction =
        NewInteraction::new(kind, masked_excerpt(&secrets.mask(&message.content), MAX_TEXT))
            .of_session(message.session_id)
            .with("message_id", message.id.to_string());
    unless_empty(agent, interaction)
}

/// The memory of a task that has ended.
pub fn of_task(task: &Task, secrets: &KnownSecrets) -> Remembered {
    let (Some(agent), TaskKind::Work) = (task.agent_id, task.kind) else { return None };
    let outcome = match (&task.result, &task.error) {
        (Some(result), _) => result.as_str(),
        (None, Some(error)) => error.detail.as_str(),
        (None, None) => "",
    };
    let description = masked_excerpt(&secrets.mask(&task.description), MAX_TEXT / 2);
    let outcome = masked_excerpt(&secrets.mask(outcome), MAX_TEXT);
    let text = shortened(&format!("Task: {description}\nOutcome: {outcome}"), MAX_TEXT);
    let mut interaction = NewInteraction::new(InteractionType::TaskExecution, text)
        .of_task(task.id)
        .of_session(task.session_id)
        .with("message_id", task.message_id.to_string())
        .with("status", task.status.as_str())
        .with("steps", task.steps);
    if task.status != TaskStatus::Completed {
        let why = task.error.as_ref().map_or(task.status.as_str(), |error| error.detail.as_str());
        interaction = interaction.failed(&secrets.mask(why));
    }
    unless_empty(agent, interaction)
}

/// The memory of a tool call that is settled.
pub fn of_call(call: &GatedCall) -> Remembered {
    let agent = call.agent_id?;
    let withheld = is_withheld(call);
    let ran = call.result.is_some();
    let outcome = match (&call.result, &call.error) {
        (Some(_), Some(error)) if withheld => format!("{} {WITHHELD}", error.code.as_str()),
        (Some(_), None) if withheld => format!("{} {WITHHELD}", call.status.as_str()),
        (_, Some(error)) => masked_excerpt(&error.detail, MAX_TEXT),
        (Some(result), None) => {
            shortened(&readable::result(&masked_json(&result.to_value(), MAX_TEXT)), MAX_TEXT)
        }
        (None, None) => call.status.as_str().to_owned(),
    };
    // The content of a file follows the outcome, so that the part before the arrow only describes
    // the call.
    let content = match withheld {
        true => String::new(),
        false => readable::content(&masked_json(&call.tool_params, MAX_PARAMS)),
    };
    let params = masked_json(&without_content(&call.tool_params), MAX_PARAMS);
    let params = shortened(&readable::parameters(&params), MAX_PARAMS);
    let text = format!("{} {params}\n→ {outcome}{content}", call.tool_name);
    let mut interaction = NewInteraction::new(InteractionType::ToolCall, text)
        .of_call(call.tool_id)
        .with("tool_name", call.tool_name.clone())
        .with("status", call.status.as_str());
    interaction.task_id = call.task_id.map(|id| id.to_string());
    interaction.session_id = call.session_id.map(|id| id.to_string());
    if call.status != CallStatus::Completed {
        let why = match &call.error {
            Some(error) if withheld && ran => error.code.as_str(),
            Some(error) => error.detail.as_str(),
            None => call.status.as_str(),
        };
        interaction = interaction.failed(why);
    }
    unless_empty(agent, interaction)
}

fn unless_empty(agent: AgentId, interaction: NewInteraction) -> Remembered {
    (!interaction.text.trim().is_empty()).then_some((agent, interaction))
}

/// Whether the content that a call read or wrote is left out because it may hold secrets: by one of
/// the rules that rated the call, or by a path in its parameters.
pub fn is_withheld(call: &GatedCall) -> bool {
    let policy = Policy::builtin();
    let mut rules = call.class.findings.iter().chain([&call.rule]);
    rules.any(|rule| policy.is_about_secrets(rule)) || names_secrets(policy, &call.tool_params)
}

/// The calls of a step on the conversation's own files that may have shown secrets: their
/// parameters and results. Files of every kind can be read there, but secrets are not remembered.
fn withheld_calls(step: &Step) -> impl Iterator<Item = (Value, &StepResult)> {
    let own = step.calls.iter().filter(|call| call.tool_id.is_none());
    own.filter_map(|call| {
        let params = serde_json::from_str(&call.arguments).ok()?;
        Some((params, call.result.as_ref()?))
    })
    .filter(|(params, result)| {
        names_secrets(Policy::builtin(), params) || shows_secrets(&result.content)
    })
}

/// Whether a result shows parts of secret files, as a search in many files can.
fn shows_secrets(result: &str) -> bool {
    fn has_secret_path(value: &Value) -> bool {
        match value {
            Value::Array(items) => items.iter().any(has_secret_path),
            Value::Object(fields) => fields.iter().any(|(name, value)| match value {
                Value::String(path) => name == "path" && Policy::builtin().is_secret_file(path),
                value => has_secret_path(value),
            }),
            _ => false,
        }
    }
    serde_json::from_str(result).is_ok_and(|result: Value| has_secret_path(&result))
}

/// Whether a step has results that are not remembered, because they may hold secrets.
pub fn has_withheld_calls(step: &Step) -> bool {
    withheld_calls(step).next().is_some()
}

/// Whether a parameter other than the content of a file names a secret file.
fn names_secrets(policy: &Policy, params: &Value) -> bool {
    match params {
        Value::String(text) => names_secret_file(policy, text),
        Value::Array(items) => items.iter().any(|item| names_secrets(policy, item)),
        Value::Object(fields) => {
            let described = fields.iter().filter(|(name, _)| !CONTENT.contains(&name.as_str()));
            described.into_iter().any(|(_, value)| names_secrets(policy, value))
        }
        _ => false,
    }
}

/// Whether a text, such as an argument or a script, contains the path of a secret file.
fn names_secret_file(policy: &Policy, text: &str) -> bool {
    // `HEAD:.env`, `--file=.env` and `open('.env')` also name the file.
    let ends = |c: char| c.is_whitespace() || "\"'`=:,;()[]{}<>|&@".contains(c);
    policy.is_secret_file(text) || text.split(ends).any(|part| policy.is_secret_file(part))
}

fn without_content(params: &Value) -> Value {
    let Value::Object(fields) = params else { return Value::Object(Map::new()) };
    let kept = fields.iter().filter(|(name, _)| !CONTENT.contains(&name.as_str()));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// A memory in which values that look like keys are masked. Everything that is added to a memory
/// passes through here.
pub fn without_secrets(mut new: NewInteraction) -> NewInteraction {
    // An import may bring what an older version has stored.
    let text = match new.interaction_type {
        InteractionType::ToolCall => cleaned_call(&new.text, None),
        _ => new.text.clone(),
    };
    let text = masked(&text);
    if text != new.text {
        new.text = text.into_owned();
        // The vector was computed from the text with the secret.
        (new.embedding, new.embedder) = (None, None);
    }
    new.error_details = new.error_details.map(|details| masked(&details).into_owned());
    new.metadata = masked_metadata(&new.metadata);
    new
}

fn masked_metadata(metadata: &Map<String, Value>) -> Map<String, Value> {
    match masked_json(&Value::Object(metadata.clone()), MAX_METADATA) {
        Value::Object(masked) => masked,
        _ => Map::new(),
    }
}

/// A memory that an older version stored, as this version would store it. `call` is the tool call
/// that the memory is about, if it still exists.
pub fn cleaned(
    stored: &Interaction,
    call: Option<&GatedCall>,
    secrets: &KnownSecrets,
) -> Interaction {
    let mut clean = stored.clone();
    if stored.interaction_type == InteractionType::ToolCall {
        clean.text = cleaned_call(&stored.text, call);
        if clean.text != stored.text && clean.text.contains(WITHHELD) {
            clean.error_details = stored.error_details.as_ref().map(|_| WITHHELD.to_owned());
        }
    }
    clean.text = masked(&secrets.mask(&clean.text)).into_owned();
    clean.error_details =
        clean.error_details.map(|details| masked(&secrets.mask(&details)).into_owned());
    clean.metadata = masked_metadata(&clean.metadata);
    clean
}

/// The text of a remembered call, `tool {parameters}\n→ outcome`, without the outcome if this version
/// would withhold it.
fn cleaned_call(text: &str, call: Option<&GatedCall>) -> String {
    let policy = Policy::builtin();
    if text.contains(WITHHELD) {
        return text.to_owned();
    }
    // The parameters are JSON, in which a line break is escaped, unless they were shortened.
    let (head, outcome) = text.split_once("\n→ ").unwrap_or((text, ""));
    let (tool, params) = head.split_once(' ').unwrap_or((head, ""));
    let params: Option<Value> = serde_json::from_str(params).ok();
    let withheld = call.is_some_and(is_withheld)
        || match &params {
            Some(params) => names_secrets(policy, params),
            // Shortened parameters cannot be told apart from the content in them.
            None => names_secret_file(policy, head),
        };
    if withheld {
        let params =
            params.as_ref().map_or_else(String::new, |params| without_content(params).to_string());
        return format!("{tool} {params}\n→ {WITHHELD}");
    }
    let mask = |text: &str| match serde_json::from_str::<Value>(text) {
        Ok(value) => masked_json(&value, MAX_TEXT).to_string(),
        Err(_) => masked(text).into_owned(),
    };
    match params {
        Some(params) => format!("{tool} {}\n→ {}", masked_json(&params, MAX_PARAMS), mask(outcome)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
