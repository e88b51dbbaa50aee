//! Requests to a model and its answers, independent of the provider.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    pub system: String,
    /// Oldest first. A message with calls is followed by their results.
    pub messages: Vec<Message>,
    pub tools: Arc<[ToolSchema]>,
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    /// If set, the answer has to be JSON that matches this schema.
    pub format: Option<JsonFormat>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "role", content = "content")]
pub enum Message {
    User(String),
    Assistant { text: String, calls: Vec<CallRequest> },
    Results(Vec<CallResult>),
}

/// A tool call that the model asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRequest {
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them. They should be a JSON object, but may be anything.
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The id of the call that this is the result of.
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
        // Counted once, because it is needed before every step.
        let tokens = tokens(&parameters.to_string()) + tokens(&description);
        Self { name, description, parameters, tokens }
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// The JSON schema of the arguments.
    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// The estimated number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// Structured output. OpenAI accepts a schema only if it requires every property of every object
/// and sets `additionalProperties` to false.
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

/// A rule of thumb that rather overestimates the number of tokens.
pub const BYTES_PER_TOKEN: usize = 3;

/// The estimated number of tokens in a text.
pub fn tokens(text: &str) -> u64 {
    text.len().div_ceil(BYTES_PER_TOKEN) as u64
}

impl Message {
    /// The estimated number of tokens.
    pub fn tokens(&self) -> u64 {
        match self {
            Message::User(text) => tokens(text),
            Message::Assistant { text, calls } => {
                tokens(text) + calls.iter().map(|call| tokens(&call.arguments) + 16).sum::<u64>()
            }
            Message::Results(results) => {
                results.iter().map(|result| tokens(&result.content) + 8).sum()
            }
        }
    }
}

impl Request {
    /// The estimated number of tokens.
    pub fn tokens(&self) -> u64 {
        tokens(&self.system)
            + self.tools.iter().map(ToolSchema::tokens).sum::<u64>()
            + self.messages.iter().map(Message::tokens).sum::<u64>()
    }
}

impl Answer {
    /// Estimates the usage that the endpoint did not report, so that limits hold with any endpoint.
    pub(crate) fn with_estimated_usage(mut self, request: &Request) -> Self {
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

/// The number of tokens that the provider counted.
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
    /// The answer reached `max_tokens`, so text and arguments may be incomplete.
    Length,
    /// The model waits for the results of its calls.
    Calls,
    /// The provider filtered the answer, or the model refused to give one.
    Filtered,
}
