//! What is the same for every provider: streaming, calls, patience, refusals.

use crate::{KEY, config, keys, model, models, provider, question};
use atelier_model::{Answer, CallRequest, Finish, ModelError, ModelsConfig, ProviderKind, Usage, Wait};
use atelier_testkit::{Reply, ScriptedModel};
use rstest::rstest;
use serde_json::json;
use std::time::{Duration, Instant};

#[rstest]
#[tokio::test]
async fn words_are_heard_as_they_come(
    #[values(ProviderKind::OpenAi, ProviderKind::OpenAiCompatible, ProviderKind::Anthropic)]
    kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::text("all is well").usage(7, 3)]).await;
    let mut heard = Vec::new();
    let answer = model(kind, &script).ask(&question("hi"), |word| heard.push(word.to_owned())).await;
    let expected = Answer {
        text: "all is well".into(),
        calls: vec![],
        usage: Usage { input_tokens: 7, output_tokens: 3 },
        finish: Finish::Stop,
    };
    assert_eq!((answer, heard), (Ok(expected), vec!["all ".into(), "is ".into(), "well".into()]));
}

#[rstest]
#[tokio::test]
async fn several_calls_come_in_one_answer_and_bad_json_as_it_is(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let reply = Reply::text("let me look")
        .and_call("read_file", json!({"path": "a long/name.txt"}))
        .and_raw_call("grep", "{\"pattern\": \"мир")
        .and_raw_call("list_directory", "");
    let script = ScriptedModel::queue([reply]).await;
    let answer = model(kind, &script).ask(&question("hi"), |_| {}).await.expect("an answer");
    let calls: Vec<(&str, &str)> =
        answer.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    let expected = [
        ("read_file", "{\"path\":\"a long/name.txt\"}"),
        ("grep", "{\"pattern\": \"мир"),
        ("list_directory", ""),
    ];
    assert_eq!(calls, expected);
    assert_eq!((answer.text.as_str(), answer.finish), ("let me look", Finish::Calls));
    let ids: std::collections::HashSet<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids.len(), 3);
}

#[rstest]
#[case(ProviderKind::OpenAi, "length", Finish::Length)]
#[case(ProviderKind::OpenAi, "content_filter", Finish::Filtered)]
#[case(ProviderKind::Anthropic, "max_tokens", Finish::Length)]
#[case(ProviderKind::Anthropic, "refusal", Finish::Filtered)]
#[tokio::test]
async fn the_reason_for_the_end_is_told(
    #[case] kind: ProviderKind,
    #[case] word: &'static str,
    #[case] finish: Finish,
) {
    let script = ScriptedModel::queue([Reply::text("I was about").finish(word)]).await;
    let answer = model(kind, &script).ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.finish, finish);
}

#[rstest]
#[tokio::test]
async fn a_busy_provider_is_asked_again_when_it_said(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::status(429).retry_after(1), Reply::text("now")]).await;
    let asked = Instant::now();
    let answer = model(kind, &script).ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "now");
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_provider_that_wants_to_be_left_alone_for_long_is() {
    let script = ScriptedModel::queue([Reply::status(429).retry_after(3600)]).await;
    let error = model(ProviderKind::OpenAi, &script).ask(&question("hi"), |_| {}).await.expect_err("busy");
    assert_eq!((error.code(), error.retryable()), ("model_rate_limited", true));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn trouble_that_does_not_pass_is_told_after_the_last_try(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(500, 503, 529)] status: u16,
) {
    let script = ScriptedModel::start(move |_| Reply::status(status).saying("on fire")).await;
    let error = model(kind, &script).ask(&question("hi"), |_| {}).await.expect_err("no answer");
    assert_eq!(error.to_string(), format!("provider scripted is in trouble ({status}): on fire"));
    assert_eq!(script.seen().len(), 3);
}

#[rstest]
#[case(401, "", "provider scripted does not take its key: put in a valid one")]
#[case(402, "", "provider scripted has no more credit for this key: no")]
#[case(429, "insufficient_quota", "provider scripted has no more credit for this key: no")]
#[case(400, "context_length_exceeded", "the conversation is too long for scripted/some-model: no")]
#[case(404, "model_not_found", "provider scripted refused the request (404): no")]
#[tokio::test]
async fn a_refusal_is_told_at_once(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[case] status: u16,
    #[case] code: &str,
    #[case] words: &str,
) {
    let script = ScriptedModel::queue([Reply::status(status).saying("no").code(code)]).await;
    let error = model(kind, &script).ask(&question("hi"), |_| {}).await.expect_err("a refusal");
    assert_eq!((error.to_string().as_str(), error.retryable()), (words, false));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_key_that_the_provider_repeats_is_not_passed_on(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(400, 401, 500)] status: u16,
) {
    let script = ScriptedModel::start(move |_| Reply::status(status).saying(format!("bad key {KEY}!"))).await;
    let error = model(kind, &script).ask(&question("hi"), |_| {}).await.expect_err("a refusal");
    assert!(!error.to_string().contains(KEY) && !format!("{error:?}").contains(KEY), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn silence_before_the_first_word_is_met_by_asking_again(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(Reply::silence(), Reply::text("never").stall_after(0))] silence: Reply,
) {
    let script = ScriptedModel::queue([silence, Reply::text("here")]).await;
    let answer = model(kind, &script).ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "here");
}

#[rstest]
#[tokio::test]
async fn silence_in_the_middle_is_an_error(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::text("one two three four").stall_after(5)]).await;
    let mut heard = String::new();
    let error = model(kind, &script).ask(&question("hi"), |word| heard.push_str(word)).await;
    let expected = ModelError::Timeout {
        provider: "scripted".into(),
        wait: Wait::NextToken,
        after: Duration::from_millis(500),
    };
    assert_eq!(error, Err(expected.clone()));
    assert_eq!(expected.to_string(), "provider scripted stopped in the middle of an answer, for 500ms");
    assert!(heard.starts_with("one "), "{heard}");
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_connection_cut_before_the_first_word_is_made_again(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::queue([Reply::text("never").cut_after(0), Reply::text("here")]).await;
    let answer = model(kind, &script).ask(&question("hi"), |_| {}).await.expect("an answer");
    assert_eq!(answer.text, "here");
}

#[rstest]
#[tokio::test]
async fn an_answer_cut_in_the_middle_is_an_error_and_not_an_answer(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(4, 5)] pieces: usize,
) {
    let script = ScriptedModel::queue([Reply::text("one two three four").cut_after(pieces)]).await;
    let error = model(kind, &script).ask(&question("hi"), |_| {}).await;
    assert_eq!(error, Err(ModelError::Cut { provider: "scripted".into() }));
    assert_eq!(script.seen().len(), 1);
}

#[rstest]
#[case("{\"choices\":[{\"delta\":")]
#[case("<html>oops</html>")]
#[case("[]")]
#[tokio::test]
async fn what_is_no_answer_is_told_as_such(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[case] garbage: &str,
) {
    let script = ScriptedModel::queue([Reply::raw([garbage])]).await;
    let error = model(kind, &script).ask(&question("hi"), |_| {}).await.expect_err("no answer");
    assert_eq!((error.code(), error.retryable()), ("model_malformed_answer", false));
}

#[rstest]
#[tokio::test]
async fn who_stops_listening_hangs_up(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
    #[values(0, 4)] pieces: usize,
) {
    let script = ScriptedModel::queue([Reply::text("one two three four").stall_after(pieces)]).await;
    let model = model(kind, &script);
    let asking = tokio::spawn(async move { model.ask(&question("hi"), |_| {}).await });
    script.answering(1).await;
    asking.abort();
    let hung_up = Instant::now();
    script.left(1).await;
    assert!(hung_up.elapsed() < Duration::from_millis(400), "{:?}", hung_up.elapsed());
}

#[rstest]
#[tokio::test]
async fn the_whole_answer_has_its_time(
    #[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind,
) {
    let script = ScriptedModel::start(|_| Reply::silence()).await;
    let config = ModelsConfig { timeout: Duration::from_millis(200), ..config() };
    let model =
        models(&config, &provider(kind, script.url())).resolve("scripted/m", &keys()).expect("a model");
    let error = model.ask(&question("hi"), |_| {}).await.expect_err("too late");
    assert_eq!(error.to_string(), "provider scripted did not finish its answer, for 200ms");
    script.left(1).await;
}

#[rstest]
#[tokio::test]
async fn nobody_at_the_address(#[values(ProviderKind::OpenAi, ProviderKind::Anthropic)] kind: ProviderKind) {
    let script = ScriptedModel::queue([]).await;
    let model = model(kind, &script);
    // The address was free when it was given out, and is again.
    drop(script);
    let error = atelier_testkit::eventually("the server is gone", async || {
        let error = model.ask(&question("hi"), |_| {}).await.err()?;
        (error.code() == "model_unreachable").then_some(error)
    })
    .await;
    assert!(
        error.to_string().starts_with("provider scripted cannot be reached: Connection refused"),
        "{error}"
    );
}

#[test]
fn what_the_loop_keeps_can_be_read_again() {
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
