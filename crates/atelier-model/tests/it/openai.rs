//! The requests and streams of each kind of provider.

use crate::{KEY, configured, impatient, model, question};
use atelier_model::{
    CallRequest, CallResult, Finish, JsonFormat, Message, ModelError, ProviderKind, Request,
    TimeoutPhase, ToolSchema, Usage,
};
use atelier_testkit::{Reply, ScriptedModel};
use serde_json::{Value, json};

fn conversation() -> Request {
    let call = |id: &str, arguments: &str| CallRequest {
        id: id.into(),
        name: "read_file".into(),
        arguments: arguments.into(),
    };
    let result = |id: &str, content: &str, is_error| CallResult {
        id: id.into(),
        content: content.into(),
        is_error,
    };
    Request {
        system: "Be brief.".into(),
        messages: vec![
            Message::User("read both".into()),
            Message::Assistant {
                text: "I will.".into(),
                calls: vec![call("a", "{\"path\":\"x\"}"), call("b", "{bad")],
            },
            Message::Results(vec![result("a", "the text", false), result("b", "not JSON", true)]),
        ],
        tools: [ToolSchema::new("read_file", "Read a file.", json!({"type": "object"}))].into(),
        temperature: Some(1.5),
        max_tokens: Some(100),
        format: None,
    }
}

async fn sent(kind: ProviderKind, request: &Request) -> atelier_testkit::Asked {
    let script = ScriptedModel::queue([Reply::text("done")]).await;
    model(kind, &script).await.ask(request, |_| {}).await.expect("an answer");
    script.seen().remove(0)
}

#[tokio::test]
async fn openai_receives_the_conversation_in_its_format() {
    let asked = sent(ProviderKind::OpenAi, &conversation()).await;
    assert_eq!(asked.path, "/v1/chat/completions");
    assert_eq!(asked.headers["authorization"], format!("Bearer {KEY}").as_str());
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "read_file", "arguments": arguments}});
    let expected = json!({
        "model": "some-model",
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": 1.5,
        "max_completion_tokens": 100,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "read both"},
            {"role": "assistant", "content": "I will.",
             "tool_calls": [call("a", "{\"path\":\"x\"}"), call("b", "{bad")]},
            {"role": "tool", "tool_call_id": "a", "content": "the text"},
            {"role": "tool", "tool_call_id": "b", "content": "not JSON"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "read_file", "description": "Read a file.", "parameters": {"type": "object"}}}],
    });
    assert_eq!(asked.body, expected);
}

#[tokio::test]
async fn compatible_endpoint_receives_max_tokens() {
    let asked = sent(ProviderKind::OpenAiCompatible, &conversation()).await;
    assert_eq!(
        (&asked.body["max_tokens"], &asked.body["max_completion_tokens"]),
        (&json!(100), &Value::Null)
    );
}

#[tokio::test]
async fn anthropic_receives_the_conversation_in_its_format() {
    let asked = sent(ProviderKind::Anthropic, &conversation()).await;
    assert_eq!(asked.path, "/v1/messages");
    assert_eq!(asked.headers["x-api-key"], KEY);
    assert_eq!(asked.headers["anthropic-version"], "2023-06-01");
    let expected = json!({
        "model": "some-model",
        "stream": true,
        "system": "Be brief.",
        "temperature": 1.0,
        "max_tokens": 100,
        "messages": [
            {"role": "user", "content": "read both"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I will."},
                {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "x"}},
                {"type": "tool_use", "id": "b", "name": "read_file", "input": {"malformed": "{bad"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "the \
                    text", "is_error": false},
                {"type": "tool_result", "tool_use_id": "b", "content": "not \
                    JSON", "is_error": true},
            ]},
        ],
        "tools": [{"name": "read_file", "description": "Read a \
            file.", "input_schema": {"type": "object"}}],
    });
    assert_eq!(asked.body, expected);
}

#[tokio::test]
async fn structured_output_is_requested_and_returned_as_text() {
    let schema = json!({"type": "object", "properties": {"tasks": {"type": "array"}}});
    let format = Some(JsonFormat { name: "plan".into(), schema: schema.clone() });
    let request = Request { format, ..question("plan this") };

    let script = ScriptedModel::queue([Reply::text("{\"tasks\": []}")]).await;
    let answer =
        model(ProviderKind::OpenAi, &script).await.ask(&request, |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "{\"tasks\": []}");
    let expected = json!({"type": "json_schema", "json_schema": {"name": "plan", "schema": schema, "strict": true}});
    assert_eq!(script.seen()[0].body["response_format"], expected);

    let script = ScriptedModel::queue([Reply::call("plan", json!({"tasks": []}))]).await;
    let answer = model(ProviderKind::Anthropic, &script)
        .await
        .ask(&request, |_| {})
        .await
        .expect("an answer");
    assert_eq!(
        (answer.text.as_str(), answer.calls, answer.finish),
        ("{\"tasks\":[]}", vec![], Finish::Stop)
    );
    assert_eq!(script.seen()[0].body["tool_choice"], json!({"type": "tool", "name": "plan"}));
}

#[tokio::test]
async fn incomplete_chunks_are_understood() {
    let chunks = [
        // No id, no index, no usage, null where a list could be, arguments in one piece.
        r#"{"choices":[{"delta":{"content":null,"tool_calls":[{"function":{"name":"grep","arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"id":"","function":{"name":"ls","arguments":"{\"a\":"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"1}"}}]}}],"usage":null}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"service_tier":"on_demand"}"#,
    ];
    let script = ScriptedModel::queue([Reply::raw(chunks)]).await;
    let answer =
        model(ProviderKind::OpenAiCompatible, &script).await.ask(&question("hi"), |_| {}).await;
    let answer = answer.expect("an answer");
    let call = |id: &str, name: &str, arguments: &str| CallRequest {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(answer.calls, [call("call_1", "grep", "{}"), call("call_2", "ls", "{\"a\":1}")]);
    let estimated = Usage { input_tokens: 1, output_tokens: 7 };
    assert_eq!((answer.finish, answer.usage), (Finish::Calls, estimated));
}

#[tokio::test]
async fn chunk_without_text_counts_as_the_first_token() {
    let thinking = r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#;
    let script = ScriptedModel::start(move |_| Reply::raw([thinking]).stall_after(1)).await;
    let error = configured(&impatient(), ProviderKind::OpenAiCompatible, &script)
        .await
        .ask(&question("hi"), |_| {})
        .await;
    let error = error.expect_err("it thinks for too long");
    assert!(matches!(error, ModelError::Timeout { phase: TimeoutPhase::NextToken, .. }), "{error}");
    // No text had arrived, so the request was retried.
    assert_eq!(script.seen().len(), 3);
}

#[tokio::test]
async fn error_inside_a_stream_is_reported() {
    let error_event = r#"{"error":{"message":"the upstream is gone","code":502}}"#;
    let words = r#"{"choices":[{"delta":{"content":"I "}}]}"#;
    let script = ScriptedModel::queue([Reply::raw([words, error_event])]).await;
    let error = model(ProviderKind::OpenAi, &script)
        .await
        .ask(&question("hi"), |_| {})
        .await
        .expect_err("an error");
    assert_eq!(error.to_string(), "scripted returned an error (502): the upstream is gone");

    let error_event =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let script = ScriptedModel::queue([Reply::raw([error_event]), Reply::text("better")]).await;
    let answer = model(ProviderKind::Anthropic, &script)
        .await
        .ask(&question("hi"), |_| {})
        .await
        .expect("an answer");
    assert_eq!(answer.text, "better");
}

fn piece(call: Value) -> String {
    json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}]})
        .to_string()
}

/// Some endpoints give all calls the same number, and some the same id.
#[tokio::test]
async fn calls_with_equal_numbers_or_ids_are_kept_apart() {
    let head = |id: &str, arguments: &str| {
        piece(
            json!({"index": 0, "id": id, "function": {"name": "read_file", "arguments": arguments}}),
        )
    };
    let rest = |arguments: &str| piece(json!({"index": 0, "function": {"arguments": arguments}}));
    let end =
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}).to_string();
    let script = ScriptedModel::queue([
        Reply::raw([
            head("a", "{\"path\""),
            rest(":\"x\"}"),
            head("b", ""),
            rest("{}"),
            end.clone(),
        ]),
        Reply::raw([
            piece(json!({"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}})),
            piece(json!({"index": 1, "id": "a", "function": {"name": "two", "arguments": "{}"}})),
            end,
        ]),
    ])
    .await;
    let model = model(ProviderKind::OpenAiCompatible, &script).await;
    let call = |id: &str, name: &str, arguments: &str| CallRequest {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let answer = model.ask(&question("go"), |_| {}).await.expect("an answer");
    assert_eq!(
        answer.calls,
        [call("a", "read_file", "{\"path\":\"x\"}"), call("b", "read_file", "{}")]
    );
    let answer = model.ask(&question("go"), |_| {}).await.expect("an answer");
    assert_eq!(answer.calls, [call("a", "one", "{}"), call("a_2", "two", "{}")]);
}

/// An answer is used even if its usage is malformed, and missing usage is estimated.
#[tokio::test]
async fn malformed_usage_does_not_spoil_an_answer() {
    let words =
        json!({"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]});
    for usage in
        [json!({"prompt_tokens": null}), json!(null), json!("many"), json!({"prompt_tokens": 7})]
    {
        let last = json!({"choices": null, "usage": usage}).to_string();
        let script = ScriptedModel::queue([Reply::raw([words.to_string(), last])]).await;
        let model = model(ProviderKind::OpenAiCompatible, &script).await;
        let answer = model.ask(&question("how are you?"), |_| {}).await.expect("an answer");
        let input = if usage["prompt_tokens"] == 7 { 7 } else { 4 };
        let usage = Usage { input_tokens: input, output_tokens: 2 };
        assert_eq!((answer.text.as_str(), answer.usage), ("hello", usage));
    }
}
