use super::*;

fn result(id: &str, size: usize) -> Message {
    Message::Results(vec![CallResult { id: id.into(), content: "x".repeat(size), is_error: false }])
}

fn called(id: &str) -> Message {
    let call = CallRequest { id: id.into(), name: "read_file".into(), arguments: "{}".into() };
    Message::Assistant { text: String::new(), calls: vec![call] }
}

#[test]
fn the_oldest_results_go_first_and_the_last_stays() {
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
fn whole_turns_go_when_results_are_not_enough() {
    let said = |text: &str| Message::Assistant { text: text.into(), calls: Vec::new() };
    let mut request = Request {
        messages: vec![
            Message::User("a".repeat(6000)),
            said("one"),
            Message::User("b".into()),
            said("two"),
            Message::User("c".into()),
        ],
        ..Request::default()
    };
    fit(&mut request, 1024, 0);
    assert_eq!(request.messages, [Message::User("b".into()), said("two"), Message::User("c".into())]);
}

#[test]
fn what_fits_is_left_alone() {
    let mut request = Request { messages: vec![Message::User("a".into())], ..Request::default() };
    let before = request.clone();
    fit(&mut request, 128_000, 4096);
    assert_eq!(request, before);
}

#[test]
fn a_long_result_keeps_its_head_and_its_tail() {
    let text = format!("head{}tail", "é".repeat(MAX_RESULT));
    let short = shortened(&text);
    assert!(short.starts_with("head") && short.ends_with("tail") && short.contains("left out"));
    assert!(short.len() < MAX_RESULT + 100);
}
