//! The steps that a client takes when things go wrong on its side.

use super::*;
use serde_json::json;
use uuid::Uuid;

const CLIENT: ClientId = ClientId(Uuid::from_u128(1));
const STRANGER: ClientId = ClientId(Uuid::from_u128(2));

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

fn waits() -> Waits {
    let time = TimeDelta::seconds(60);
    Waits { medium: time, high: time, dispatch: time, result: time }
}

fn call() -> GatedCall {
    let (id, project) = (CallId(Uuid::from_u128(3)), ProjectId(Uuid::from_u128(4)));
    let judgement = Judgement::new(Verdict::Medium, "", "");
    GatedCall::new(id, project, "edit_file".into(), json!({}), &judgement, now())
}

fn claimed() -> GatedCall {
    let mut call = call();
    call.allow(waits(), now());
    call.dispatch(CLIENT, waits(), now()).unwrap();
    call.claim(CLIENT, 1, waits(), now()).unwrap();
    call
}

#[test]
fn a_preview_that_fails_ends_the_call() {
    let failure = CallFailure::new("edit_mismatch", "not found");
    let mut call = call();
    call.begin_preview(Some(CLIENT), waits(), now());
    assert_eq!(call.preview_failed(STRANGER, failure.clone(), now()), Err(Refusal::NotYours));
    call.preview_failed(CLIENT, failure.clone(), now()).unwrap();
    assert_eq!(
        (call.status, &call.error, call.approval_id),
        (CallStatus::Failed, &Some(failure.clone()), None)
    );
    let late = call.preview_failed(CLIENT, failure, now());
    assert_eq!(late, Err(Refusal::Already(CallStatus::Failed)));
}

#[test]
fn a_client_that_does_not_know_says_so() {
    let lost = json!({"success": false, "code": "unknown", "error": "lost"});
    let mut call = claimed();
    let events = call.finish(CLIENT, 1, lost.clone(), now()).unwrap();
    assert_eq!((call.status, events.len()), (CallStatus::Unknown, 2));
    assert_eq!(call.error, Some(CallFailure::new("unknown", "lost")));
    // Posted again, it changes nothing and tells nobody.
    assert_eq!(call.finish(CLIENT, 1, lost, now()), Ok(Vec::new()));
    // The truth, even late, is better than not knowing.
    call.finish(CLIENT, 1, json!({"success": true}), now()).unwrap();
    assert_eq!((call.status, &call.error), (CallStatus::Completed, &None));
}

#[test]
fn a_signal_tells_no_file_from_no_preview() {
    for (preview, base) in [
        (None, None),
        (Some(CallPreview { base_checksum: None, diff: String::new() }), Some(None)),
        (
            Some(CallPreview { base_checksum: Some("c".into()), diff: String::new() }),
            Some(Some("c".to_owned())),
        ),
    ] {
        let mut call = call();
        call.preview = preview;
        call.allow(waits(), now());
        let signal = call.dispatch(CLIENT, waits(), now()).unwrap().pop().unwrap();
        let read: Event = serde_json::from_str(&serde_json::to_string(&signal).unwrap()).unwrap();
        assert_eq!(read, signal);
        let Event::ToolExecutionSignal { base_checksum, .. } = read else { panic!("{read:?}") };
        assert_eq!(base_checksum, base);
    }
}
