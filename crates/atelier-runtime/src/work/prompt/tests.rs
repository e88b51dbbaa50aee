use super::*;

fn result(id: &str, size: usize) -> Message {
    Message::Results(vec![CallResult { id: id.into(), content: "x".repeat(size), is_error: false }])
}

fn called(id: &str) -> Message {
    let call = CallRequest { id: id.into(), name: "read_file".into(), arguments: "{}".into() };
    Message::Assistant { text: String::new(), calls: vec![call] }
}

#[test]
fn oldest_results_are_left_out_first() {
    let mut request = Request {
        messages: vec![
            Message::User("do it".into()),
            called("1"),
            result("1", 9000),
            called("2"),
            result("2", 3000),
        ],
        ..Request::default()
    };
    fit(&mut request, 2000, 0);
    let Message::Results(first) = &request.messages[2] else { panic!("results") };
    assert_eq!(first[0].content, LEFT_OUT);
    assert_eq!(request.messages[4], result("2", 3000));
}

#[test]
fn turns_are_left_out_if_results_are_not_enough() {
    let assistant = |text: &str| Message::Assistant { text: text.into(), calls: Vec::new() };
    let mut request = Request {
        messages: vec![
            Message::User("a".repeat(6000)),
            assistant("one"),
            Message::User("b".into()),
            assistant("two"),
            Message::User("c".into()),
        ],
        ..Request::default()
    };
    fit(&mut request, 1024, 0);
    assert_eq!(
        request.messages,
        [Message::User("b".into()), assistant("two"), Message::User("c".into())]
    );
}

#[test]
fn request_that_fits_is_unchanged() {
    let mut request = Request { messages: vec![Message::User("a".into())], ..Request::default() };
    let before = request.clone();
    fit(&mut request, 128_000, 4096);
    assert_eq!(request, before);
}

#[test]
fn long_result_keeps_its_beginning_and_end() {
    let text = format!("head{}tail", "é".repeat(MAX_RESULT));
    let short = shortened(&text);
    assert!(short.starts_with("head") && short.ends_with("tail") && short.contains("left out"));
    assert!(short.len() < MAX_RESULT + 100);
}

fn total(request: &Request) -> usize {
    request.messages.iter().map(size).sum()
}

#[test]
fn oldest_steps_of_a_single_turn_are_left_out() {
    let step = |n: usize| {
        let arguments = format!("{{\"n\": {n}, \"content\": \"{}\"}}", "x".repeat(900));
        let call = CallRequest { id: n.to_string(), name: "write_file".into(), arguments };
        [Message::Assistant { text: String::new(), calls: vec![call] }, result(&n.to_string(), 90)]
    };
    let steps = (0..12).flat_map(step);
    let messages = [Message::User("do it".into())].into_iter().chain(steps).collect();
    let mut request = Request { messages, ..Request::default() };
    fit(&mut request, 1500, 0);
    assert!(total(&request) <= 1500, "{}", total(&request));
    let Message::User(asked) = &request.messages[0] else { panic!("the person") };
    assert!(asked.starts_with("do it") && asked.contains("left out"), "{asked}");
    assert_eq!(request.messages[request.messages.len() - 2..], step(11));
    // Every call still has its result, and every result its call.
    assert!(request.messages[1..].chunks(2).all(|pair| matches!(
        pair,
        [Message::Assistant { calls, .. }, Message::Results(results)] if calls[0].id == results[0].id
    )));
}

#[test]
fn too_large_message_is_shortened() {
    let mut request = Request {
        messages: vec![Message::User("u".repeat(60_000)), called("1"), result("1", 70_000)],
        ..Request::default()
    };
    fit(&mut request, 8192, 4096);
    assert!(total(&request) <= 4200, "{}", total(&request));
    let Message::Results(results) = &request.messages[2] else { panic!("results") };
    assert!(results[0].content.contains("bytes left out"));
}
