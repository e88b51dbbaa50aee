//! How long a question waits, what lengthens it, and when it can be asked again.

use super::*;

fn waiting(wait: Option<ApprovalWait>, risk: Verdict) -> GatedCall {
    let mut call = GatedCall { risk_level: risk, ..call() };
    call.ask(QUESTION, distinct().with(ApprovalSettings { wait }), now());
    call
}

fn expires_at(call: &GatedCall) -> Option<DateTime<Utc>> {
    call.approval.as_ref().unwrap().expires_at
}

/// TL-02.2 TL-02.4
#[test]
fn a_project_says_how_long_its_questions_wait() {
    use ApprovalWait::{Seconds, UntilAnswered};
    for (wait, medium, high) in [
        (None, Some(300), Some(600)),
        (Some(Seconds(30)), Some(30), Some(30)),
        (Some(Seconds(7200)), Some(7200), Some(7200)),
        (Some(UntilAnswered), None, None),
    ] {
        for (risk, time) in [(Verdict::Medium, medium), (Verdict::High, high)] {
            let call = waiting(wait, risk);
            assert_eq!(expires_at(&call), time.map(later), "{wait:?} {risk:?}");
        }
    }
    let mut patient = waiting(Some(UntilAnswered), Verdict::High);
    for days in [1, 2, 30] {
        let at = later(days * 86_400);
        assert_eq!(patient.time_passed(at), []);
        assert_eq!(patient.deadline, Some(at + TimeDelta::days(1)), "it never counts as settled");
    }
    let at = later(31 * 86_400);
    patient.approve(QUESTION, PERSON, GrantScope::Once, distinct(), at).unwrap();
    assert_eq!(patient.status, CallStatus::Approved);
}

/// TL-02.4
#[test]
fn a_question_waits_longer_and_never_shorter() {
    for (time, at, expires, warns) in [
        (Some(120), 280, Some(400), Some(340)),
        (Some(20), 280, Some(300), Some(290)),
        (None, 280, None, Some(280 + 86_400)),
        (Some(10), 0, Some(300), Some(240)),
    ] {
        let mut call = asked(Verdict::Medium);
        call.time_passed(later(280));
        let time = time.map(TimeDelta::seconds);
        let events = call.keep_waiting(QUESTION, time, later(at)).unwrap();
        assert_eq!(expires_at(&call), expires.map(later), "{time:?} at {at}");
        assert_eq!(call.deadline, warns.map(later), "{time:?} at {at}");
        assert!(!call.approval.as_ref().unwrap().warned, "the person is reminded again");
        let extended = Event::ToolApprovalExtended {
            approval_id: QUESTION,
            tool_id: call.tool_id,
            session_id: None,
            expires_at: expires.map(later),
        };
        assert_eq!(events, [extended]);
    }
    // A question without an end keeps none, and one that has run out is not prolonged.
    let mut patient = waiting(Some(ApprovalWait::UntilAnswered), Verdict::Medium);
    patient.keep_waiting(QUESTION, Some(TimeDelta::seconds(60)), now()).unwrap();
    assert_eq!(expires_at(&patient), None);
    let mut late = asked(Verdict::Medium);
    let expired = Err(Refusal::Already(CallStatus::Expired));
    assert_eq!(late.keep_waiting(QUESTION, None, later(300)), expired);
    let other = ApprovalId(Uuid::from_u128(99));
    assert_eq!(late.keep_waiting(other, None, now()), Err(Refusal::AskedAnew));
}

/// TL-02.5
#[test]
fn only_a_question_that_ran_out_is_asked_again_and_once() {
    let large = json!({"path": "a.txt", "content": "é".repeat(100_000)});
    let mut expired = GatedCall { tool_params: large.clone(), ..asked(Verdict::Medium) };
    expired.preview = Some(CallPreview { base_checksum: None, diff: "+".repeat(100_000) });
    expired.time_passed(later(300));
    assert!(expired.has_run_out());
    assert_eq!(expired.tool_params, large, "it may be asked again, so it is kept whole");
    assert!(expired.preview.as_ref().unwrap().diff.len() < 2000, "its preview is made anew");
    let events = expired.note_asked_again(AGAIN).unwrap();
    assert_eq!((names(&events), expired.asked_again), (vec!["TOOL_CALL_UPDATED"], Some(AGAIN)));
    assert_eq!(expired.note_asked_again(AGAIN), Err(Refusal::AskedAnew));
    // A call that no machine took in time is no question, and an old record may lack parameters.
    let mut alone = call();
    alone.allow(timeouts(), now());
    alone.time_passed(later(60));
    let mut shortened = asked(Verdict::Medium);
    shortened.time_passed(later(300));
    shortened.tool_params = json!({SHORTENED: {"bytes": 9}});
    for mut call in [alone, shortened] {
        assert_eq!(call.note_asked_again(AGAIN), Err(Refusal::Already(CallStatus::Expired)));
        assert_eq!(call.asked_again, None);
    }
}

/// TL-02.6
#[test]
fn only_a_write_that_changes_nothing_needs_no_answer() {
    let checksum = || Some("c".to_owned());
    let higher = CallRating {
        verdict: Verdict::High,
        rule: "file.secret".into(),
        reason: "It holds secrets.".into(),
        network: false,
        class: CallClass::default(),
    };
    use CallStatus::{Completed, PendingApproval};
    for (tool, verdict, unchanged, base_checksum, rating, status) in [
        ("write_file", Verdict::Medium, true, checksum(), None, Completed),
        ("edit_file", Verdict::Medium, true, checksum(), None, Completed),
        ("write_file", Verdict::Medium, false, checksum(), None, PendingApproval),
        ("write_file", Verdict::Medium, true, None, None, PendingApproval),
        ("write_file", Verdict::High, true, checksum(), None, PendingApproval),
        ("write_file", Verdict::Medium, true, checksum(), Some(higher), PendingApproval),
        ("delete_file", Verdict::Medium, true, checksum(), None, PendingApproval),
        ("move_file", Verdict::Medium, true, checksum(), None, PendingApproval),
        ("land", Verdict::Medium, true, checksum(), None, PendingApproval),
        ("no_such_tool", Verdict::Medium, true, checksum(), None, PendingApproval),
    ] {
        let mut call = GatedCall {
            tool_name: tool.into(),
            tool_params: json!({"path": "a.txt"}),
            risk_level: verdict,
            ..call()
        };
        call.begin_preview(Some(CLIENT), timeouts(), now());
        let preview = CallPreview { base_checksum, diff: "No change".into() };
        let shown = Previewed { preview, rating, unchanged };
        let events = call.previewed(CLIENT, shown, QUESTION, timeouts(), now()).unwrap();
        assert_eq!(call.status, status, "{tool} {verdict:?} {unchanged}");
        if status == Completed {
            assert_eq!((names(&events), call.attempt), (vec!["TOOL_CALL_UPDATED"], 0));
            let result =
                json!({"success": true, "unchanged": true, "path": "a.txt", "checksum": "c"});
            assert_eq!((json!(call.result), call.approval), (result, None));
        }
    }
}
