//! What is asked of a model and what it answers, whoever the provider is.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    pub system: String,
    /// Oldest first. Calls are followed by their results before anybody else speaks.
    pub messages: Vec<Message>,
    pub tools: Arc<[ToolSchema]>,
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    /// The answer has to be JSON of this shape.
    pub format: Option<JsonFormat>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "role", content = "content")]
pub enum Message {
    User(String),
    Assistant { text: String, calls: Vec<CallRequest> },
    Results(Vec<CallResult>),
}

/// A tool the model wants called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRequest {
    pub id: String,
    pub name: String,
    /// As the model wrote it: meant to be a JSON object, and not always one.
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The id of the call this answers.
    pub id: String,
    pub content: String,
    pub is_error: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    description: String,
    parameters: Value,
    tokens: u64,
}

impl ToolSchema {
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        let (name, description) = (name.into(), description.into());
        // Once: it is asked for before every step.
        let tokens = tokens(&parameters.to_string()) + tokens(&description);
        Self { name, description, parameters, tokens }
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// JSON Schema of the arguments.
    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// About how many tokens it has.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// Structured output. OpenAI takes a schema only when every property of every object is required and
/// `additionalProperties` is false.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonFormat {
    pub name: String,
    pub schema: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub text: String,
    pub calls: Vec<CallRequest>,
    pub usage: Usage,
    pub finish: Finish,
}

/// A rule of thumb where no tokenizer is at hand: errs on the side of more.
pub const BYTES_PER_TOKEN: usize = 3;

/// About how many tokens a text has.
pub fn tokens(text: &str) -> u64 {
    text.len().div_ceil(BYTES_PER_TOKEN) as u64
}

impl Message {
    /// About how many tokens it has.
    pub fn tokens(&self) -> u64 {
        match self {
            Message::User(text) => tokens(text),
            Message::Assistant { text, calls } => {
                tokens(text) + calls.iter().map(|call| tokens(&call.arguments) + 16).sum::<u64>()
            }
            Message::Results(results) => results.iter().map(|result| tokens(&result.content) + 8).sum(),
        }
    }
}

impl Request {
    /// About how many tokens it has.
    pub fn tokens(&self) -> u64 {
        tokens(&self.system)
            + self.tools.iter().map(ToolSchema::tokens).sum::<u64>()
            + self.messages.iter().map(Message::tokens).sum::<u64>()
    }
}

impl Answer {
    /// Some endpoints count nothing. Limits hold all the same, so what is missing is estimated.
    pub(crate) fn counted(mut self, request: &Request) -> Self {
        if self.usage.input_tokens == 0 {
            self.usage.input_tokens = request.tokens();
        }
        if self.usage.output_tokens == 0 {
            let calls = self.calls.iter().map(|call| tokens(&call.name) + tokens(&call.arguments));
            self.usage.output_tokens = tokens(&self.text) + calls.sum::<u64>();
        }
        self
    }
}

/// Tokens, as the provider counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    /// It ran into `max_tokens`: text and arguments may end in the middle.
    Length,
    /// It waits for the results of its calls.
    Calls,
    /// The provider held an answer back, or the model refused to give one.
    Filtered,
}
