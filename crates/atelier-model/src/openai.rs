//! OpenAI's chat completions API, which many other providers implement too.
//!
//! `async-openai` provides the types, the address and the stream. Timeouts, retries and the meaning
//! of errors are handled here, because the library's retries ignore `Retry-After` and do not know
//! what was already shown.

use crate::{
    Finish, Message, ModelError, Request,
    answer_builder::AnswerBuilder,
    endpoint::{Endpoint, ProviderError, Timeouts},
    listing::{self, Entry, ListedModel},
};
use async_openai::{
    Client,
    config::Config,
    error::OpenAIError,
    middleware::HttpRequestFactory,
    types::chat::{
        ChatCompletionMessageToolCall, ChatCompletionMessageToolCalls,
        ChatCompletionRequestAssistantMessage, ChatCompletionRequestMessage,
        ChatCompletionRequestSystemMessage, ChatCompletionRequestToolMessage,
        ChatCompletionRequestUserMessage, ChatCompletionStreamOptions, ChatCompletionTool,
        ChatCompletionTools, CreateChatCompletionRequest, FunctionCall, FunctionObject,
        ResponseFormat, ResponseFormatJsonSchema,
    },
};
use futures::StreamExt;
use reqwest::{
    StatusCode,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::Instant;

#[derive(Clone)]
pub struct OpenAi {
    endpoint: Arc<Endpoint>,
    client: Client<Address>,
    /// OpenAI itself calls the limit `max_completion_tokens`; other providers still use
    /// `max_tokens`.
    newest: bool,
}

impl std::fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.endpoint.fmt(f)
    }
}

/// The address that requests go to. The library's own configuration would also read environment
/// variables.
#[derive(Clone)]
struct Address {
    base_url: String,
    key: SecretString,
}

impl Config for Address {
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !self.key.expose_secret().is_empty()
            && let Ok(mut value) =
                HeaderValue::from_str(&format!("Bearer {}", self.key.expose_secret()))
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url)
    }

    fn query(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    fn api_base(&self) -> &str {
        &self.base_url
    }

    fn api_key(&self) -> &SecretString {
        &self.key
    }
}

impl OpenAi {
    pub(crate) fn new(endpoint: Endpoint, newest: bool) -> Self {
        let endpoint = Arc::new(endpoint);
        let address = Address {
            base_url: endpoint.base_url.clone(),
            key: endpoint.key.clone().unwrap_or_else(|| SecretString::from(String::new())),
        };
        let sender = endpoint.clone();
        let send = tower::service_fn(move |request: HttpRequestFactory| {
            let endpoint = sender.clone();
            async move {
                let request = request.build().await?;
                endpoint.send(request).await.map_err(|error| OpenAIError::Boxed(Box::new(error)))
            }
        });
        let client = Client::build(endpoint.http.clone(), address).with_http_service(send);
        Self { endpoint, client, newest }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        Self::new(Endpoint { timeouts, ..Endpoint::clone(&self.endpoint) }, self.newest)
    }

    pub(crate) async fn ask_once(
        &self,
        request: &Request,
        answer: &mut AnswerBuilder<'_>,
    ) -> Result<(), ModelError> {
        let asked = Instant::now();
        let chat = self.client.chat();
        let opening = chat.create_stream_byot::<_, Chunk>(self.body(request));
        let mut stream = self
            .endpoint
            .with_timeout(asked, true, opening)
            .await?
            .map_err(|error| self.error(error))?;
        // A reasoning model sends chunks without text while it thinks.
        let mut alive = false;
        while let Some(chunk) = self.endpoint.with_timeout(asked, !alive, stream.next()).await? {
            alive = true;
            self.apply_chunk(chunk.map_err(|error| self.error(error))?, answer)?;
        }
        if answer.finish.is_none() {
            return Err(self.endpoint.interrupted());
        }
        Ok(())
    }

    fn apply_chunk(&self, chunk: Chunk, answer: &mut AnswerBuilder<'_>) -> Result<(), ModelError> {
        if let Some(provider_error) = chunk.error {
            return Err(self.endpoint.refused(StatusCode::BAD_GATEWAY, provider_error, None));
        }
        if let Some(tokens) = chunk.usage["prompt_tokens"].as_u64() {
            answer.usage.input_tokens = tokens;
        }
        if let Some(tokens) = chunk.usage["completion_tokens"].as_u64() {
            answer.usage.output_tokens = tokens;
        }
        // Only one choice is requested.
        let Some(choice) = chunk.choices.into_iter().flatten().next() else {
            return Ok(());
        };
        let delta = choice.delta.unwrap_or_default();
        answer.push_text(delta.content.as_deref().unwrap_or(""))?;
        if let Some(refusal) = &delta.refusal {
            answer.push_text(refusal)?;
            answer.finish = Some(Finish::Filtered);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            let function = call.function.unwrap_or_default();
            answer.push_call(
                call.index,
                call.id.as_deref(),
                function.name.as_deref(),
                function.arguments.as_deref().unwrap_or(""),
            )?;
        }
        if let Some(reason) = choice.finish_reason {
            // A refusal arrives as text, and the finish reason is then an ordinary stop.
            answer.finish.get_or_insert(match reason.as_str() {
                "length" => Finish::Length,
                "tool_calls" | "function_call" => Finish::Calls,
                "content_filter" => Finish::Filtered,
                _ => Finish::Stop,
            });
        }
        Ok(())
    }

    fn error(&self, error: OpenAIError) -> ModelError {
        match error {
            OpenAIError::Boxed(error) => match error.downcast::<ModelError>() {
                Ok(ours) => *ours,
                Err(other) => self.endpoint.malformed(other.to_string()),
            },
            OpenAIError::Reqwest(error) => self.endpoint.unreachable(error),
            OpenAIError::StreamError(_) => self.endpoint.interrupted(),
            OpenAIError::JSONDeserialize(error, _) => self.endpoint.malformed(error.to_string()),
            other => self.endpoint.malformed(other.to_string()),
        }
    }

    fn body(&self, request: &Request) -> CreateChatCompletionRequest {
        let system = (!request.system.is_empty()).then(|| {
            ChatCompletionRequestMessage::System(ChatCompletionRequestSystemMessage {
                content: request.system.as_str().into(),
                ..Default::default()
            })
        });
        let tool = |tool: &crate::ToolSchema| {
            ChatCompletionTools::Function(ChatCompletionTool {
                function: FunctionObject {
                    name: tool.name.clone(),
                    description: Some(tool.description().to_owned()),
                    parameters: Some(tool.parameters().clone()),
                    strict: None,
                },
            })
        };
        let format = |format: &crate::JsonFormat| ResponseFormat::JsonSchema {
            json_schema: ResponseFormatJsonSchema {
                description: None,
                name: format.name.clone(),
                schema: format.schema.clone(),
                strict: Some(true),
            },
        };
        let mut body = CreateChatCompletionRequest {
            model: self.endpoint.model.clone(),
            messages: system
                .into_iter()
                .chain(request.messages.iter().flat_map(messages))
                .collect(),
            stream: Some(true),
            stream_options: Some(ChatCompletionStreamOptions {
                include_usage: Some(true),
                include_obfuscation: None,
            }),
            temperature: request.temperature.filter(|_| !self.endpoint.info.fixed_temperature),
            tools: (!request.tools.is_empty()).then(|| request.tools.iter().map(tool).collect()),
            response_format: request.format.as_ref().map(format),
            ..Default::default()
        };
        if self.newest {
            body.max_completion_tokens = request.max_tokens;
        } else {
            #[expect(
                deprecated,
                reason = "deprecated by OpenAI; compatible endpoints know no other name"
            )]
            {
                body.max_tokens = request.max_tokens;
            }
        }
        body
    }
}

/// The models that the endpoint lists.
pub(crate) async fn list(endpoint: &Endpoint) -> Result<Vec<ListedModel>, ModelError> {
    #[derive(Deserialize)]
    struct Page {
        data: Vec<Entry>,
    }
    let mut request = endpoint.http.get(format!("{}/models", endpoint.base_url));
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key.expose_secret());
    }
    let request = request.build().map_err(|error| endpoint.unreachable(error))?;
    let page: Page = listing::get(endpoint, request).await?;
    Ok(page.data.into_iter().map(ListedModel::from).collect())
}

fn messages(message: &Message) -> Vec<ChatCompletionRequestMessage> {
    match message {
        Message::User(text) => {
            vec![ChatCompletionRequestMessage::User(ChatCompletionRequestUserMessage {
                content: text.as_str().into(),
                ..Default::default()
            })]
        }
        Message::Assistant { text, calls } => {
            let call = |call: &crate::CallRequest| {
                ChatCompletionMessageToolCalls::Function(ChatCompletionMessageToolCall {
                    id: call.id.clone(),
                    function: FunctionCall {
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    },
                })
            };
            vec![ChatCompletionRequestMessage::Assistant(ChatCompletionRequestAssistantMessage {
                content: (!text.is_empty()).then(|| text.as_str().into()),
                tool_calls: (!calls.is_empty()).then(|| calls.iter().map(call).collect()),
                ..Default::default()
            })]
        }
        Message::Results(results) => results
            .iter()
            .map(|result| {
                ChatCompletionRequestMessage::Tool(ChatCompletionRequestToolMessage {
                    content: result.content.as_str().into(),
                    tool_call_id: result.id.clone(),
                })
            })
            .collect(),
    }
}

/// A piece of an answer. The library's own type requires fields and values that compatible
/// endpoints leave out or replace.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    /// Left untyped, because an answer is used even if its usage is malformed.
    #[serde(default)]
    usage: Value,
    /// Some endpoints report an error inside the stream, after a successful status.
    error: Option<ProviderError>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Deserialize)]
struct CallPiece {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Default, Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}
