//! Tests of which transitions each state of a call allows, and of how long a call stays in it.

use super::*;

/// TL-03.1: each transition is for one state only, and is refused in others with the state that
/// won.
#[test]
fn every_transition_is_for_one_state_only() {
    use CallStatus::*;
    let failure = || CallFailure::new(FailureCode::Internal, "x");
    let preview = || CallPreview { base_checksum: None, diff: "+x".into() };
    let rating = || CallRating {
        verdict: Verdict::High,
        rule: "r".into(),
        reason: "why".into(),
        network: false,
        class: CallClass::default(),
    };
    type Try = Box<dyn Fn(&mut GatedCall) -> Result<(), Refusal>>;
    let transitions: Vec<(&str, CallStatus, Try)> = vec![
        (
            "approve",
            PendingApproval,
            Box::new(|c| {
                c.approve(QUESTION, PERSON, GrantScope::Once, timeouts(), now()).map(drop)
            }),
        ),
        (
            "reject",
            PendingApproval,
            Box::new(|c| c.reject(QUESTION, PERSON, None, now()).map(drop)),
        ),
        (
            "keep_waiting",
            PendingApproval,
            Box::new(|c| c.keep_waiting(QUESTION, None, now()).map(drop)),
        ),
        ("ask_again", Expired, Box::new(|c| c.note_asked_again(AGAIN).map(drop))),
        (
            "previewed",
            Previewing,
            Box::new(move |c| {
                c.previewed(CLIENT, shown(preview(), None), QUESTION, timeouts(), now()).map(drop)
            }),
        ),
        (
            "preview_failed",
            Previewing,
            Box::new(move |c| c.preview_failed(CLIENT, failure(), now()).map(drop)),
        ),
        ("dispatch", Approved, Box::new(|c| c.dispatch(CLIENT, timeouts(), now()).map(drop))),
        ("claim", Dispatched, Box::new(|c| c.claim(CLIENT, 1, timeouts(), now()).map(drop))),
        ("stale", Dispatched, Box::new(|c| c.stale(CLIENT, 1, timeouts(), now()).map(drop))),
        (
            "rerate",
            Dispatched,
            Box::new(move |c| {
                c.rerate((CLIENT, 1), rating(), |_| None, QUESTION, timeouts(), now()).map(drop)
            }),
        ),
    ];
    let calls = in_every_state();
    let mut seen: Vec<CallStatus> = calls.iter().map(|call| call.status).collect();
    seen.dedup();
    assert_eq!(seen.len(), 11, "{seen:?}");
    for call in calls {
        let status = call.status;
        let settled = ![Previewing, PendingApproval, Approved, Dispatched].contains(&status);
        assert_eq!(
            (status.is_settled(), call.completed_at.is_some()),
            (settled, settled),
            "{status:?}"
        );
        assert_eq!(call.deadline.is_none(), settled, "{status:?}");
        for (name, fits, transition) in &transitions {
            let mut tried = call.clone();
            let outcome = transition(&mut tried);
            match *fits == status {
                true => assert_eq!(outcome, Ok(()), "{name} in {status:?}"),
                false => {
                    assert_eq!(outcome, Err(Refusal::Already(status)), "{name} in {status:?}");
                    assert_eq!(
                        tried, call,
                        "a refused transition changes nothing: {name} in {status:?}"
                    );
                }
            }
        }
        let cancelled = call.clone().cancel(now());
        assert_eq!(cancelled.is_ok(), !settled, "cancel in {status:?}");
        assert_eq!(
            call.clone().time_passed(later(-1)),
            [],
            "nothing before the deadline: {status:?}"
        );
        // A settled call stays settled, however late it is.
        assert_eq!(call.clone().time_passed(later(1_000_000)).is_empty(), settled, "{status:?}");
    }
}

#[test]
fn only_the_machine_that_was_asked_may_answer() {
    let dispatched = in_every_state().remove(3);
    for (client, attempt) in [(STRANGER, 1), (CLIENT, 2)] {
        let mut call = dispatched.clone();
        let rating = CallRating {
            verdict: Verdict::High,
            rule: "r".into(),
            reason: "why".into(),
            network: true,
            class: CallClass::default(),
        };
        assert_eq!(call.claim(client, attempt, timeouts(), now()), Err(Refusal::NotYours));
        assert_eq!(call.finish(client, attempt, succeeded(), now()), Err(Refusal::NotYours));
        assert_eq!(call.stale(client, attempt, timeouts(), now()), Err(Refusal::NotYours));
        let again = call.rerate((client, attempt), rating, |_| None, QUESTION, timeouts(), now());
        assert_eq!(again, Err(Refusal::NotYours));
        assert_eq!(call, dispatched);
    }
    let preview = CallPreview { base_checksum: None, diff: String::new() };
    let mut previewing = in_every_state().remove(0);
    let outcome = previewing.previewed(STRANGER, shown(preview, None), QUESTION, timeouts(), now());
    assert_eq!((outcome, previewing.status), (Err(Refusal::NotYours), CallStatus::Previewing));
}

#[test]
fn an_attempt_is_claimed_once() {
    let mut call = claimed();
    assert_eq!(call.claim(CLIENT, 1, timeouts(), now()), Err(Refusal::NotYours));
    let other = call.finish(CLIENT, 1, succeeded(), now());
    assert_eq!(names(&other.unwrap()), ["TOOL_CALL_UPDATED", "TOOL_RESULT_ACK"]);
    let more = ToolOutcome::succeeded(Map::from_iter([("more".into(), 1.into())]));
    let differs = call.finish(CLIENT, 1, more, now());
    assert_eq!(differs, Err(Refusal::OtherResult));
    let failure = ToolOutcome::failed(FailureCode::Failed, "x");
    let failed = call.finish(CLIENT, 1, failure, now());
    assert_eq!(failed, Err(Refusal::OtherResult));
}

/// TL-02.2: how long a call waits in each state, to the second.
#[test]
fn each_timeout_has_its_own_length() {
    for (risk, time) in [(Verdict::Medium, 300), (Verdict::High, 600)] {
        let mut call = asked(risk);
        let approval = call.approval.clone().unwrap();
        assert_eq!((approval.expires_at, call.approval_id), (Some(later(time)), Some(QUESTION)));
        assert_eq!(call.deadline, Some(later(time - 60)), "a warning a minute before");
        assert_eq!(call.time_passed(later(time - 61)), []);
        assert_eq!(names(&call.time_passed(later(time - 60))), ["TOOL_APPROVAL_WARNING"]);
        assert!(call.approval.as_ref().unwrap().warned);
        assert_eq!(call.time_passed(later(time - 1)), [], "it warns once");
        let mut late = call.clone();
        assert_eq!(names(&call.time_passed(later(time))), ["TOOL_CALL_UPDATED"]);
        assert_eq!(
            call.error,
            Some(CallFailure::new(FailureCode::ApprovalTimeout, "Approval timeout"))
        );
        assert_eq!(call.approval.as_ref().unwrap().status, ApprovalStatus::Expired);
        // The expiry has not been stored yet, but the time is up.
        let expired = Err(Refusal::Already(CallStatus::Expired));
        assert_eq!(
            late.approve(QUESTION, PERSON, GrantScope::Once, distinct(), later(time)),
            expired
        );
        assert_eq!(late.reject(QUESTION, PERSON, None, later(time)), expired);
        assert_eq!(late.cancel(later(time)), expired);
        assert!(late.clone().cancel(later(time - 1)).is_ok());
        assert!(
            late.approve(QUESTION, PERSON, GrantScope::Once, distinct(), later(time - 1)).is_ok()
        );
        assert_eq!(late.deadline, Some(later(time - 1 + 120)), "now it waits for a machine");
    }
    // A short timeout warns halfway.
    let mut call = call();
    call.ask(QUESTION, GateTimeouts { medium: Some(TimeDelta::seconds(10)), ..distinct() }, now());
    assert_eq!(call.deadline, Some(later(5)));

    let mut call = self::call();
    call.timeout = Some(30);
    call.begin_preview(None, distinct(), now());
    assert_eq!(call.deadline, Some(later(120)));
    call.allow(distinct(), now());
    let mut alone = call.clone();
    alone.time_passed(later(120));
    assert_eq!(
        (alone.status, alone.error.unwrap().code.as_str()),
        (CallStatus::Expired, "no_client")
    );
    call.dispatch(CLIENT, distinct(), later(10)).unwrap();
    assert_eq!((call.deadline, call.attempt, call.claimed), (Some(later(130)), 1, false));
    let mut unclaimed = call.clone();
    unclaimed.time_passed(later(130));
    assert_eq!(
        (unclaimed.status, unclaimed.error.unwrap().code.as_str()),
        (CallStatus::Expired, "not_begun")
    );
    call.claim(CLIENT, 1, distinct(), later(20)).unwrap();
    assert_eq!(call.deadline, Some(later(20 + 60 + 30)), "its own timeout, and some for the way");
    call.time_passed(later(110));
    assert_eq!(
        (call.status, call.error.unwrap().code.as_str()),
        (CallStatus::Unknown, "client_lost")
    );
}
