//! The replies of a scripted model, and their form on the wire.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// One reply of a script. `Reply::text("hi")` is a complete one; the other methods add failures.
#[derive(Debug, Clone)]
pub struct Reply {
    kind: Kind,
    end: End,
    finish: Option<&'static str>,
    usage: (u64, u64),
}

#[derive(Debug, Clone)]
enum Kind {
    Answer { text: String, calls: Vec<(String, String)> },
    Raw(Vec<String>),
    Refusal { status: u16, retry_after: Option<String>, message: String, code: Option<String> },
    Silence,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Whole,
    CutAfter(usize),
    StallAfter(usize),
}

impl Reply {
    fn new(kind: Kind) -> Self {
        Self { kind, end: End::Whole, finish: None, usage: (10, 5) }
    }

    /// A text, streamed word by word.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Kind::Answer { text: text.into(), calls: Vec::new() })
    }

    /// A call of one tool.
    pub fn call(tool: &str, arguments: Value) -> Self {
        Self::raw_call(tool, &arguments.to_string())
    }

    /// A call whose arguments are this text, JSON or not.
    pub fn raw_call(tool: &str, arguments: &str) -> Self {
        Self::text("").and_raw_call(tool, arguments)
    }

    /// One more call in the same answer, to be run in parallel.
    #[must_use]
    pub fn and_call(self, tool: &str, arguments: Value) -> Self {
        self.and_raw_call(tool, &arguments.to_string())
    }

    #[must_use]
    pub fn and_raw_call(mut self, tool: &str, arguments: &str) -> Self {
        let Kind::Answer { calls, .. } = &mut self.kind else {
            panic!("calls belong to an answer")
        };
        calls.push((tool.to_owned(), arguments.to_owned()));
        self
    }

    /// These pieces of `data:`, whatever they are, and then the end of the response.
    pub fn raw<T: Into<String>>(data: impl IntoIterator<Item = T>) -> Self {
        let events = data.into_iter().map(|data| format!("data: {}\n\n", data.into()));
        Self::new(Kind::Raw(events.collect()))
    }

    /// A status without a stream, such as 429 or 500.
    pub fn status(status: u16) -> Self {
        let message = "refused by the script".to_owned();
        Self::new(Kind::Refusal { status, retry_after: None, message, code: None })
    }

    /// The `Retry-After` header of an error.
    #[must_use]
    pub fn retry_after(mut self, value: impl ToString) -> Self {
        let Kind::Refusal { retry_after, .. } = &mut self.kind else {
            panic!("only a refusal has one")
        };
        *retry_after = Some(value.to_string());
        self
    }

    /// The message of an error.
    #[must_use]
    pub fn saying(mut self, words: impl Into<String>) -> Self {
        let Kind::Refusal { message, .. } = &mut self.kind else {
            panic!("only a refusal has words")
        };
        *message = words.into();
        self
    }

    /// The `code` of an error.
    #[must_use]
    pub fn code(mut self, word: &str) -> Self {
        let Kind::Refusal { code, .. } = &mut self.kind else {
            panic!("only a refusal has a code")
        };
        *code = Some(word.to_owned());
        self
    }

    /// Accepts the request and never answers it.
    pub fn silence() -> Self {
        Self::new(Kind::Silence)
    }

    /// Sends the given number of pieces and then nothing, with the connection open.
    #[must_use]
    pub fn stall_after(mut self, pieces: usize) -> Self {
        self.end = End::StallAfter(pieces);
        self
    }

    /// Sends the given number of pieces and closes the connection.
    #[must_use]
    pub fn cut_after(mut self, pieces: usize) -> Self {
        self.end = End::CutAfter(pieces);
        self
    }

    /// The finish reason, in the provider's own word.
    #[must_use]
    pub fn finish(mut self, reason: &'static str) -> Self {
        self.finish = Some(reason);
        self
    }

    #[must_use]
    pub fn usage(mut self, input: u64, output: u64) -> Self {
        self.usage = (input, output);
        self
    }

    pub(super) fn refusal(&self) -> Option<Response> {
        let Kind::Refusal { status, retry_after, message, code } = &self.kind else { return None };
        let body = json!({"error": {"message": message, "type": "error", "code": code}});
        let mut response =
            (StatusCode::from_u16(*status).unwrap(), body.to_string()).into_response();
        if let Some(value) = retry_after {
            response.headers_mut().insert("retry-after", value.parse().unwrap());
        }
        Some(response)
    }

    pub(super) fn is_silent(&self) -> bool {
        matches!(self.kind, Kind::Silence)
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self.end, End::Whole)
    }

    pub(super) fn stalls(&self) -> bool {
        matches!(self.end, End::StallAfter(_))
    }

    /// The events of the stream, up to the point where it stalls or is cut.
    pub(super) fn pieces(&self, anthropic: bool) -> Vec<String> {
        let mut pieces = match &self.kind {
            Kind::Answer { text, calls } if anthropic => self.anthropic(text, calls),
            Kind::Answer { text, calls } => self.openai(text, calls),
            Kind::Raw(pieces) => pieces.clone(),
            Kind::Refusal { .. } | Kind::Silence => Vec::new(),
        };
        match self.end {
            End::Whole => {}
            End::CutAfter(count) | End::StallAfter(count) => pieces.truncate(count),
        }
        pieces
    }

    fn openai(&self, text: &str, calls: &[(String, String)]) -> Vec<String> {
        let chunk = |delta: Value, finish: Option<&str>| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            json!({
                "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
                "choices": [choice],
            })
        };
        let mut events: Vec<Value> = Vec::new();
        events.extend(words(text).map(|word| chunk(json!({"content": word}), None)));
        for (at, (tool, arguments)) in calls.iter().enumerate() {
            let head = json!({"index": at, "id": format!("call_{at}"), "type": "function",
                "function": {"name": tool, "arguments": ""}});
            events.push(chunk(json!({"tool_calls": [head]}), None));
            for part in parts(arguments) {
                let piece = json!({"index": at, "function": {"arguments": part}});
                events.push(chunk(json!({"tool_calls": [piece]}), None));
            }
        }
        let usual = if calls.is_empty() { "stop" } else { "tool_calls" };
        events.push(chunk(json!({}), Some(self.finish.unwrap_or(usual))));
        let (input, output) = self.usage;
        let mut last = chunk(json!({}), None);
        last["choices"] = json!([]);
        last["usage"] = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
        events.push(last);
        let done = ["data: [DONE]\n\n".to_owned()];
        events.iter().map(|event| format!("data: {event}\n\n")).chain(done).collect()
    }

    fn anthropic(&self, text: &str, calls: &[(String, String)]) -> Vec<String> {
        let (input, output) = self.usage;
        let mut events = vec![
            json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "scripted",
                "usage": {"input_tokens": input, "output_tokens": 1},
            }}),
            json!({"type": "ping"}),
        ];
        let mut block = |begin: Value, deltas: Vec<Value>| {
            let index =
                events.iter().filter(|event| event["type"] == "content_block_start").count();
            events.push(
                json!({"type": "content_block_start", "index": index, "content_block": begin}),
            );
            let delta =
                |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
            events.extend(deltas.into_iter().map(delta));
            events.push(json!({"type": "content_block_stop", "index": index}));
        };
        if !text.is_empty() {
            let deltas =
                words(text).map(|word| json!({"type": "text_delta", "text": word})).collect();
            block(json!({"type": "text", "text": ""}), deltas);
        }
        for (at, (tool, arguments)) in calls.iter().enumerate() {
            let piece = |part| json!({"type": "input_json_delta", "partial_json": part});
            let begin =
                json!({"type": "tool_use", "id": format!("toolu_{at}"), "name": tool, "input": {}});
            block(begin, parts(arguments).map(piece).collect());
        }
        let usual = if calls.is_empty() { "end_turn" } else { "tool_use" };
        let delta = json!({"stop_reason": self.finish.unwrap_or(usual), "stop_sequence": null});
        events.push(
            json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}),
        );
        events.push(json!({"type": "message_stop"}));
        let event = |event: &Value| {
            format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
        };
        events.iter().map(event).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ').filter(|word| !word.is_empty())
}

/// Arguments arrive in pieces of any length.
fn parts(text: &str) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    let parts: Vec<String> = characters.chunks(7).map(|part| part.iter().collect()).collect();
    parts.into_iter()
}
