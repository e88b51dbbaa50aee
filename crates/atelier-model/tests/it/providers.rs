//! Behaviour that all providers share: streaming, calls, timeouts, errors.

use crate::{KEY, config, configured, impatient, keys, model, models, provider, question};
use atelier_model::{
    Answer, CallRequest, Finish, ModelError, ModelsConfig, ProviderKind, TimeoutPhase, Usage,
};
use atelier_testkit::{Reply, ScriptedModel};
use rstest::rstest;
use serde_json::json;
use std::time::{Duration, Instant};

#[rstest]
#[tokio::test]
async fn text_is_streamed_as_it_arrives(
    #[values(ProviderKind::OpenAi, ProviderKind::OpenAiCompatible, ProviderKind::Anthropic)]
    kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::text("all is well").usage(7, 3)]).await;
    let mut streamed = Vec::new();
    let answer = model(kind, &script)
        .await
        .ask(&question("hi"), |word| streamed.push(word.to_owned()))
        .await;
    let expected = Answer {
        text: "all is well".into(),
        calls: vec![],
        usage: Usage { input_tokens: 7, output_tokens: 3 },
        finish: Finish::Stop,
    };
    assert_eq!(
        (answer, streamed),
        (Ok(expected), vec!["all ".into(), "is ".into(), "well".into()])
    );
}

#[rstest]
#[tokio::test]
async fn one_answer_can_hold_several_calls_and_bad_json_is_kept(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let reply = Reply::text("let me look")
        .and_call("read_file", json!({"path": "a long/name.txt"}))
        .and_raw_call("grep", "{\"pattern\": \"мир")
        .and_raw_call("list_directory", "");
    let script = ScriptedModel::queue([reply]).await;
    let answer = model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect("an answer");
    let calls: Vec<(&str, &str)> =
        answer.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    let expected = [
        ("read_file", "{\"path\":\"a long/name.txt\"}"),
        ("grep", "{\"pattern\": \"мир"),
        ("list_directory", ""),
    ];
    assert_eq!(calls, expected);
    assert_eq!((answer.text.as_str(), answer.finish), ("let me look", Finish::Calls));
    let ids: std::collections::HashSet<&str> =
        answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids.len(), 3);
}

#[rstest]
#[case(ProviderKind::OpenAi, "length", Finish::Length)]
#[case(ProviderKind::OpenAi, "content_filter", Finish::Filtered)]
#[case(ProviderKind::Anthropic, "max_tokens", Finish::Length)]
#[case(ProviderKind::Anthropic, "refusal", Finish::Filtered)]
#[tokio::test]
async fn finish_reason_is_translated(
    #[case] kind: ProviderKind,
    #[case] word: &'static str,
    #[case] finish: Finish,
) {
    let script = ScriptedModel::queue([Reply::text("I was about").finish(word)]).await;
    let answer = model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.finish, finish);
}

#[rstest]
#[tokio::test]
async fn rate_limited_request_is_retried_after_the_requested_wait(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script =
        ScriptedModel::queue([Reply::status(429).retry_after(1), Reply::text("now")]).await;
    let asked = Instant::now();
    let answer = model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "now");
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn long_retry_after_is_an_error_instead_of_a_wait() {
    let script = ScriptedModel::queue([Reply::status(429).retry_after(3600)]).await;
    let error = model(ProviderKind::OpenAi, &script)
        .await
        .ask(&question("hi"), |_| {})
        .await
        .expect_err("busy");
    assert!(matches!(error, ModelError::RateLimited { .. }) && error.retryable(), "{error:?}");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn persistent_error_is_returned_after_the_last_retry(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(500, 503, 529)] status: u16,
) {
    let script = ScriptedModel::start(move |_| Reply::status(status).saying("on fire")).await;
    let error =
        model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect_err("no answer");
    assert_eq!(error.to_string(), format!("scripted returned an error ({status}): on fire"));
    assert_eq!(script.seen().len(), 3);
}

#[rstest]
#[case(401, "", "scripted rejected its key: enter a valid one")]
#[case(402, "", "scripted has no credit left for this key: no")]
#[case(429, "insufficient_quota", "scripted has no credit left for this key: no")]
#[case(400, "context_length_exceeded", "the conversation is too long for scripted/some-model: no")]
#[case(404, "model_not_found", "scripted refused the request (404): no")]
#[tokio::test]
async fn refusal_is_not_retried(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[case] status: u16,
    #[case] code: &str,
    #[case] words: &str,
) {
    let script = ScriptedModel::queue([Reply::status(status).saying("no").code(code)]).await;
    let error =
        model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect_err("a refusal");
    assert_eq!((error.to_string().as_str(), error.retryable()), (words, false));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn key_in_an_error_message_is_redacted(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(400, 401, 500)] status: u16,
) {
    let script =
        ScriptedModel::start(move |_| Reply::status(status).saying(format!("bad key {KEY}!")))
            .await;
    let error =
        model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect_err("a refusal");
    assert!(!error.to_string().contains(KEY) && !format!("{error:?}").contains(KEY), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn silence_before_the_first_token_is_retried(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(Reply::silence(), Reply::text("never").stall_after(0))] silence: Reply,
) {
    let script = ScriptedModel::queue([silence, Reply::text("here")]).await;
    let answer = configured(&impatient(), kind, &script)
        .await
        .ask(&question("hi"), |_| {})
        .await
        .expect("an answer");
    assert_eq!(answer.text, "here");
}

#[rstest]
#[tokio::test]
async fn silence_in_the_middle_of_an_answer_is_an_error(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::text("one two three four").stall_after(5)]).await;
    let mut streamed = String::new();
    let error = configured(&impatient(), kind, &script)
        .await
        .ask(&question("hi"), |word| streamed.push_str(word))
        .await;
    let expected = ModelError::Timeout {
        provider: "scripted".into(),
        phase: TimeoutPhase::NextToken,
        after: crate::SHORT,
    };
    assert_eq!(error, Err(expected.clone()));
    assert_eq!(expected.to_string(), "scripted sent no more of its answer within 1s");
    assert!(streamed.starts_with("one "), "{streamed}");
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn connection_cut_before_the_first_token_is_retried(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script =
        ScriptedModel::queue([Reply::text("never").cut_after(0), Reply::text("here")]).await;
    let answer = model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "here");
}

#[rstest]
#[tokio::test]
async fn answer_cut_in_the_middle_is_an_error(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(4, 5)] pieces: usize,
) {
    let script = ScriptedModel::queue([Reply::text("one two three four").cut_after(pieces)]).await;
    let error = model(kind, &script).await.ask(&question("hi"), |_| {}).await;
    assert_eq!(error, Err(ModelError::Interrupted { provider: "scripted".into() }));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[case("{\"choices\":[{\"delta\":")]
#[case("<html>oops</html>")]
#[case("[]")]
#[tokio::test]
async fn malformed_answer_is_reported_as_such(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[case] garbage: &str,
) {
    let script = ScriptedModel::queue([Reply::raw([garbage])]).await;
    let error =
        model(kind, &script).await.ask(&question("hi"), |_| {}).await.expect_err("no answer");
    assert!(matches!(error, ModelError::Malformed { .. }) && !error.retryable(), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn cancelled_request_closes_the_connection(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(0, 4)] pieces: usize,
) {
    let script =
        ScriptedModel::queue([Reply::text("one two three four").stall_after(pieces)]).await;
    let model = model(kind, &script).await;
    let asking = tokio::spawn(async move { model.ask(&question("hi"), |_| {}).await });
    script.answering(1).await;
    asking.abort();
    // The timeouts are far longer than the patience of tests, so only the cancellation closes it.
    script.left(1).await;
}

#[rstest]
#[tokio::test]
async fn whole_answer_has_a_time_limit(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::start(|_| Reply::silence()).await;
    let config = ModelsConfig { timeout: Duration::from_millis(200), ..config() };
    let model = models(&config, &provider(kind, script.url()))
        .resolve("scripted/m", &keys())
        .await
        .expect("a model");
    let error = model.ask(&question("hi"), |_| {}).await.expect_err("too late");
    assert_eq!(error.to_string(), "scripted did not finish its answer within 200ms");
    script.left(1).await;
}

#[rstest]
#[tokio::test]
async fn unreachable_address_is_reported(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::queue([]).await;
    let model = model(kind, &script).await;
    // The address was free when it was given out, and is again.
    drop(script);
    let error = atelier_testkit::eventually("the server is gone", async || {
        let error = model.ask(&question("hi"), |_| {}).await.err()?;
        matches!(error, ModelError::Unreachable { .. }).then_some(error)
    })
    .await;
    assert!(
        error.to_string().starts_with("scripted cannot be reached: Connection refused"),
        "{error}"
    );
}

#[test]
fn stored_messages_can_be_read_again() {
    use atelier_model::{CallResult, Message};
    let call = CallRequest { id: "1".into(), name: "grep".into(), arguments: "{".into() };
    let result = CallResult { id: "1".into(), content: "bad JSON".into(), is_error: true };
    for message in [
        Message::User("hi".into()),
        Message::Assistant { text: String::new(), calls: vec![call] },
        Message::Results(vec![result]),
    ] {
        let kept = serde_json::to_string(&message).expect("JSON");
        assert_eq!(serde_json::from_str::<Message>(&kept).expect(&kept), message);
    }
}
