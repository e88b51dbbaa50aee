//! Anthropic's Messages API.
//!
//! Written by hand: Anthropic publishes no Rust library, and the others are either abandoned or
//! hide the response, whose status, headers and pauses decide what happens next. One request and
//! six kinds of event are all that is needed.

use crate::{
    Finish, Message, ModelError, Request,
    answer_builder::AnswerBuilder,
    endpoint::{Endpoint, ProviderError, Timeouts},
    listing::{self, Entry, ListedModel},
};
use eventsource_stream::{EventStreamError, Eventsource as _};
use futures::StreamExt;
use reqwest::{RequestBuilder, StatusCode, header::HeaderValue};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;

/// The revision of the API that this code implements.
const VERSION: &str = "2023-06-01";
/// The API requires a limit; this one is used if the caller sets none.
const USUAL_MAX_TOKENS: u32 = 4096;

#[derive(Debug, Clone)]
pub struct Anthropic {
    endpoint: Arc<Endpoint>,
}

impl Anthropic {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint: Arc::new(endpoint) }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        Self::new(Endpoint { timeouts, ..Endpoint::clone(&self.endpoint) })
    }

    pub(crate) async fn ask_once(
        &self,
        request: &Request,
        answer: &mut AnswerBuilder<'_>,
    ) -> Result<(), ModelError> {
        let asked = Instant::now();
        let endpoint = &self.endpoint;
        let response =
            endpoint.with_timeout(asked, true, endpoint.send(self.request(request)?)).await??;
        let mut events = std::pin::pin!(response.bytes_stream().eventsource());
        let mut alive = false;
        while let Some(event) = endpoint.with_timeout(asked, !alive, events.next()).await? {
            alive = true;
            let event = event.map_err(|error| match error {
                EventStreamError::Transport(_) => endpoint.interrupted(),
                EventStreamError::Utf8(error) => endpoint.malformed(error.to_string()),
                EventStreamError::Parser(error) => endpoint.malformed(error.to_string()),
            })?;
            let event = serde_json::from_str(&event.data)
                .map_err(|error| endpoint.malformed(error.to_string()))?;
            if self.apply_event(event, request.format.is_some(), answer)? {
                return Ok(());
            }
        }
        Err(endpoint.interrupted())
    }

    /// Applies one event. Returns `true` when the answer is complete.
    fn apply_event(
        &self,
        event: Event,
        formatted: bool,
        answer: &mut AnswerBuilder<'_>,
    ) -> Result<bool, ModelError> {
        match event {
            Event::MessageStart { message } => {
                answer.usage.input_tokens = input_tokens(&message.usage);
            }
            Event::ContentBlockStart { index, content_block: Block::ToolUse { id, name } }
                if !formatted =>
            {
                answer.push_call(Some(index), Some(&id), Some(&name), "")?;
            }
            Event::ContentBlockDelta { delta: Delta::Text { text }, .. } => {
                answer.push_text(&text)?;
            }
            // Structured output is requested as a tool that has to be called: its input is the
            // answer.
            Event::ContentBlockDelta { delta: Delta::Input { partial_json }, .. } if formatted => {
                answer.push_text(&partial_json)?;
            }
            Event::ContentBlockDelta { index, delta: Delta::Input { partial_json } } => {
                answer.push_call(Some(index), None, None, &partial_json)?;
            }
            Event::MessageDelta { delta, usage } => {
                answer.usage.output_tokens = usage["output_tokens"].as_u64().unwrap_or(0);
                if let Some(reason) = delta.stop_reason {
                    answer.finish = Some(match reason.as_str() {
                        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
                        "tool_use" if !formatted => Finish::Calls,
                        "refusal" => Finish::Filtered,
                        _ => Finish::Stop,
                    });
                }
            }
            Event::Error { error } => return Err(self.provider_error(error)),
            Event::MessageStop => return Ok(true),
            Event::ContentBlockStart { .. } | Event::ContentBlockDelta { .. } | Event::Other => {}
        }
        Ok(false)
    }

    /// Translates an error event, which has a kind where a response has a status.
    fn provider_error(&self, error: StreamError) -> ModelError {
        let status = match error.kind.as_str() {
            "overloaded_error" | "api_error" | "timeout_error" => StatusCode::SERVICE_UNAVAILABLE,
            "rate_limit_error" => StatusCode::TOO_MANY_REQUESTS,
            "authentication_error" => StatusCode::UNAUTHORIZED,
            _ => StatusCode::BAD_REQUEST,
        };
        self.endpoint.refused(status, ProviderError { message: error.message, code: None }, None)
    }

    fn request(&self, request: &Request) -> Result<reqwest::Request, ModelError> {
        let endpoint = &self.endpoint;
        let builder = endpoint.http.post(format!("{}/messages", endpoint.base_url));
        signed(endpoint, builder.json(&self.body(request)))
    }

    fn body(&self, request: &Request) -> Value {
        let mut body = json!({
            "model": self.endpoint.model,
            "max_tokens": request.max_tokens.unwrap_or(USUAL_MAX_TOKENS),
            "stream": true,
            "messages": request.messages.iter().map(message).collect::<Vec<_>>(),
        });
        if !request.system.is_empty() {
            body["system"] = request.system.as_str().into();
        }
        if let Some(temperature) =
            request.temperature.filter(|_| !self.endpoint.info.fixed_temperature)
        {
            // Anthropic's scale ends at 1, OpenAI's at 2.
            body["temperature"] = temperature.min(1.0).into();
        }
        if let Some(format) = &request.format {
            let description = "Give your answer by calling this.";
            body["tools"] = json!([{"name": format.name, "description": description, "input_schema": format.schema}]);
            body["tool_choice"] = json!({"type": "tool", "name": format.name});
        } else if !request.tools.is_empty() {
            let tool = |tool: &crate::ToolSchema| {
                json!({
                    "name": tool.name,
                    "description": tool.description(),
                    "input_schema": tool.parameters(),
                })
            };
            body["tools"] = request.tools.iter().map(tool).collect();
        }
        body
    }
}

/// The request with the headers that every request needs.
fn signed(endpoint: &Endpoint, builder: RequestBuilder) -> Result<reqwest::Request, ModelError> {
    let mut builder = builder.header("anthropic-version", VERSION);
    if let Some(key) = &endpoint.key {
        let mut value = HeaderValue::from_str(key.expose_secret())
            .map_err(|_| ModelError::KeyRefused { provider: endpoint.provider.clone() })?;
        value.set_sensitive(true);
        builder = builder.header("x-api-key", value);
    }
    builder.build().map_err(|error| endpoint.unreachable(error))
}

/// The models that the key may use. The first page is the newest thousand.
pub(crate) async fn list(endpoint: &Endpoint) -> Result<Vec<ListedModel>, ModelError> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<Entry>,
    }
    let builder = endpoint.http.get(format!("{}/models?limit=1000", endpoint.base_url));
    let page: Page = listing::get(endpoint, signed(endpoint, builder)?).await?;
    Ok(page.data.into_iter().map(ListedModel::from).collect())
}

fn message(message: &Message) -> Value {
    match message {
        Message::User(text) => json!({"role": "user", "content": text}),
        Message::Assistant { text, calls } => {
            let words = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
            let call = |call: &crate::CallRequest| {
                // The API accepts only objects. The result of the call tells the model what was
                // wrong.
                let input: Value = serde_json::from_str(&call.arguments)
                    .ok()
                    .filter(Value::is_object)
                    .unwrap_or_else(|| json!({"malformed": call.arguments}));
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
            };
            let content: Vec<Value> = words.into_iter().chain(calls.iter().map(call)).collect();
            json!({"role": "assistant", "content": content})
        }
        Message::Results(results) => {
            let result = |result: &crate::CallResult| {
                json!({
                    "type": "tool_result",
                    "tool_use_id": result.id,
                    "content": result.content,
                    "is_error": result.is_error,
                })
            };
            json!({"role": "user", "content": results.iter().map(result).collect::<Vec<_>>()})
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Start,
    },
    ContentBlockStart {
        index: u64,
        content_block: Block,
    },
    ContentBlockDelta {
        index: u64,
        delta: Delta,
    },
    MessageDelta {
        delta: Stop,
        #[serde(default)]
        usage: Value,
    },
    MessageStop,
    Error {
        error: StreamError,
    },
    /// `ping`, the end of a block, and events that are unknown today.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Start {
    /// Left untyped, because an answer is used even if its usage is malformed.
    #[serde(default)]
    usage: Value,
}

/// All input tokens. `input_tokens` itself leaves out those that were read from a cache.
fn input_tokens(usage: &Value) -> u64 {
    let parts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    parts.iter().filter_map(|part| usage[part].as_u64()).fold(0, u64::saturating_add)
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Stop {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct StreamError {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    message: String,
}
