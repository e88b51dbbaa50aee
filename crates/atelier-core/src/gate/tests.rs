//! Tests of every transition of a call, also when it comes too late or from the wrong machine.

mod questions;
mod states;

use super::{brief::MAX_IN_EVENT, *};
use crate::event::Event;
use serde_json::{Map, json};
use uuid::Uuid;

const CLIENT: ClientId = ClientId(Uuid::from_u128(1));
const STRANGER: ClientId = ClientId(Uuid::from_u128(2));

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

fn timeouts() -> GateTimeouts {
    let time = TimeDelta::seconds(60);
    GateTimeouts { medium: Some(time), high: Some(time), dispatch: time, result: time }
}

fn call() -> GatedCall {
    let (id, project) = (CallId(Uuid::from_u128(3)), ProjectId(Uuid::from_u128(4)));
    let judgement = Judgement::new(Verdict::Medium, "", "");
    GatedCall::new(id, project, "edit_file".into(), json!({}), &judgement, now())
}

/// What a machine reports about a call that changes something.
fn shown(preview: CallPreview, rating: Option<CallRating>) -> Previewed {
    Previewed { preview, rating, unchanged: false }
}

fn succeeded() -> ToolOutcome {
    ToolOutcome::succeeded(Map::new())
}

fn claimed() -> GatedCall {
    let mut call = call();
    call.allow(timeouts(), now());
    call.dispatch(CLIENT, timeouts(), now()).unwrap();
    call.claim(CLIENT, 1, timeouts(), now()).unwrap();
    call
}

#[test]
fn a_class_is_described_in_words() {
    for (rule, words) in [
        ("git.commit", "every “git commit”"),
        ("write_file file.script", "every “write_file” on files of the kind “script”"),
        ("git.push --force", "every “git push” that is asked about because of “--force”"),
    ] {
        let class = CallClass::of(rule);
        let report_text = GatedCall { rule: rule.to_owned(), class, ..call() }.class_in_words();
        assert_eq!(report_text, format!("{words}, in this project and this session"));
    }
}

#[test]
fn a_preview_that_fails_ends_the_call() {
    let failure = CallFailure::new(FailureCode::EditMismatch, "not found");
    let mut call = call();
    call.begin_preview(Some(CLIENT), timeouts(), now());
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
fn a_lost_call_is_unknown_until_a_late_outcome_comes() {
    let lost = ToolOutcome::failed(FailureCode::Unknown, "lost");
    let mut call = claimed();
    let events = call.finish(CLIENT, 1, lost.clone(), now()).unwrap();
    assert_eq!((call.status, events.len()), (CallStatus::Unknown, 2));
    assert_eq!(call.error, Some(CallFailure::new(FailureCode::Unknown, "lost")));
    // An outcome that is reported twice changes nothing and publishes nothing.
    assert_eq!(call.finish(CLIENT, 1, lost, now()), Ok(Vec::new()));
    // A different outcome is refused …
    let done = succeeded();
    assert_eq!(call.finish(CLIENT, 1, done.clone(), now()), Err(Refusal::OtherResult));
    // … unless the machine was given up too early and has not reported yet.
    let mut late = claimed();
    late.time_passed(later(10_000));
    assert_eq!(late.status, CallStatus::Unknown);
    late.finish(CLIENT, 1, done, now()).unwrap();
    assert_eq!((late.status, &late.error), (CallStatus::Completed, &None));
}

#[test]
fn a_signal_distinguishes_no_file_from_no_preview() {
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
        call.allow(timeouts(), now());
        let signal = call.dispatch(CLIENT, timeouts(), now()).unwrap().pop().unwrap();
        let read: Event = serde_json::from_str(&serde_json::to_string(&signal).unwrap()).unwrap();
        assert_eq!(read, signal);
        let Event::ToolExecutionSignal { base_checksum, .. } = read else { panic!("{read:?}") };
        assert_eq!(base_checksum, base);
    }
}

const PERSON: UserId = UserId(Uuid::from_u128(5));
const QUESTION: ApprovalId = ApprovalId(Uuid::from_u128(6));
const AGAIN: CallId = CallId(Uuid::from_u128(7));

/// Timeouts that all differ.
fn distinct() -> GateTimeouts {
    let seconds = TimeDelta::seconds;
    GateTimeouts {
        medium: Some(seconds(300)),
        high: Some(seconds(600)),
        dispatch: seconds(120),
        result: seconds(60),
    }
}

fn later(seconds: i64) -> DateTime<Utc> {
    now() + TimeDelta::seconds(seconds)
}

fn asked(risk: Verdict) -> GatedCall {
    let mut call = call();
    call.risk_level = risk;
    call.ask(QUESTION, distinct(), now());
    call
}

/// A call in each state.
fn in_every_state() -> Vec<GatedCall> {
    let failure = || CallFailure::new(FailureCode::Internal, "x");
    let mut previewing = call();
    previewing.begin_preview(Some(CLIENT), timeouts(), now());
    let mut approved = call();
    approved.allow(timeouts(), now());
    let mut dispatched = approved.clone();
    dispatched.dispatch(CLIENT, timeouts(), now()).unwrap();
    let settled = |outcome: ToolOutcome| {
        let mut call = claimed();
        call.finish(CLIENT, 1, outcome, now()).unwrap();
        call
    };
    let mut denied = call();
    denied.deny(failure(), now());
    let mut rejected = asked(Verdict::Medium);
    rejected.reject(QUESTION, PERSON, None, now()).unwrap();
    let mut expired = asked(Verdict::Medium);
    expired.time_passed(later(300));
    let mut cancelled = asked(Verdict::Medium);
    cancelled.cancel(now()).unwrap();
    vec![
        previewing,
        asked(Verdict::Medium),
        approved,
        dispatched,
        settled(succeeded()),
        settled(ToolOutcome::failed(FailureCode::CommandFailed, "x")),
        settled(ToolOutcome::failed(FailureCode::Unknown, "x")),
        denied,
        rejected,
        expired,
        cancelled,
    ]
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

#[test]
fn a_call_cancelled_while_it_ran_is_unknown() {
    let mut call = claimed();
    call.cancel(now()).unwrap();
    assert_eq!(call.status, CallStatus::Unknown);
    let mut call = in_every_state().remove(3);
    call.cancel(now()).unwrap();
    assert_eq!(
        (call.status, call.error.unwrap().code.as_str()),
        (CallStatus::Cancelled, "cancelled")
    );
    let mut pending = asked(Verdict::Medium);
    pending.cancel(now()).unwrap();
    let approval = pending.approval.unwrap();
    assert_eq!((approval.status, approval.decided_at), (ApprovalStatus::Cancelled, Some(now())));
}

#[test]
fn decisions_are_recorded_in_the_approval() {
    let mut call = asked(Verdict::High);
    let events = call.approve(QUESTION, PERSON, GrantScope::Class, timeouts(), now()).unwrap();
    let approval = call.approval.clone().unwrap();
    assert_eq!((names(&events), call.status), (vec!["TOOL_CALL_UPDATED"], CallStatus::Approved));
    assert_eq!((approval.status, approval.decided_by), (ApprovalStatus::Approved, Some(PERSON)));
    assert_eq!((approval.scope, approval.decided_at), (Some(GrantScope::Class), Some(now())));
    for (reason, detail) in
        [(None, "Rejected by the user"), (Some("no"), "Rejected by the user: no")]
    {
        let mut call = asked(Verdict::Medium);
        call.reject(QUESTION, PERSON, reason.map(str::to_owned), now()).unwrap();
        assert_eq!(call.error, Some(CallFailure::new(FailureCode::ApprovalRejected, detail)));
        assert_eq!(call.approval.unwrap().reason.as_deref(), reason);
    }
}

#[test]
fn an_answer_to_an_earlier_question_is_refused() {
    let mut call = asked(Verdict::Medium);
    call.ask(ApprovalId(Uuid::from_u128(60)), timeouts(), now());
    let approved = call.approve(QUESTION, PERSON, GrantScope::Once, timeouts(), now());
    assert_eq!(approved, Err(Refusal::AskedAnew));
    assert_eq!(call.reject(QUESTION, PERSON, None, now()), Err(Refusal::AskedAnew));
    assert_eq!(call.status, CallStatus::PendingApproval);
}

#[test]
fn a_changed_file_is_previewed_again() {
    let mut call = claimed();
    call.preview = Some(CallPreview { base_checksum: Some("c".into()), diff: "+x".into() });
    call.grant_id = Some(GrantId(Uuid::from_u128(9)));
    let events = call.stale(CLIENT, 1, distinct(), now()).unwrap();
    assert_eq!(names(&events), ["TOOL_RESULT_ACK", "TOOL_CALL_UPDATED", "TOOL_PREVIEW_REQUEST"]);
    assert_eq!((call.status, &call.preview, call.grant_id), (CallStatus::Previewing, &None, None));
    assert!(!call.claimed && call.client_id == Some(CLIENT));
}

/// TL-06.1: a machine makes the gate stricter, never looser.
#[test]
fn a_call_rated_higher_by_the_machine_is_asked_about_again() {
    let rating = |verdict, network| CallRating {
        verdict,
        rule: "file.secret".into(),
        reason: "It leads to a secret.".into(),
        network,
        class: CallClass::default(),
    };
    let sent = |tool: &str, risk: Verdict| {
        let mut call = call();
        (call.tool_name, call.risk_level, call.requires_approval) = (tool.into(), risk, false);
        call.allow(timeouts(), now());
        call.dispatch(CLIENT, timeouts(), now()).unwrap();
        call.grant_id = Some(GrantId(Uuid::from_u128(9)));
        call
    };
    for (risk, found, network) in [
        (Verdict::Low, Verdict::Medium, false),
        (Verdict::Medium, Verdict::High, false),
        (Verdict::Medium, Verdict::Medium, true),
    ] {
        let mut call = sent("read_file", risk);
        let events =
            call.rerate((CLIENT, 1), rating(found, network), |_| None, QUESTION, timeouts(), now());
        let expected = ["TOOL_RESULT_ACK", "TOOL_CALL_UPDATED", "TOOL_APPROVAL_REQUEST"];
        assert_eq!(names(&events.unwrap().unwrap()), expected);
        assert_eq!(
            (call.status, call.risk_level, call.network),
            (CallStatus::PendingApproval, found, network)
        );
        assert_eq!(call.grant_id, None);
        assert_eq!(call.rule == "file.secret", risk != found);
        assert_eq!(call.requires_approval, risk != found);
    }
    // A lower or equal rating changes nothing, and nobody is asked about a denied call.
    for found in [Verdict::Low, Verdict::Medium, Verdict::Deny] {
        let mut call = sent("read_file", Verdict::Medium);
        let before = call.clone();
        assert_eq!(
            call.rerate((CLIENT, 1), rating(found, false), |_| None, QUESTION, timeouts(), now()),
            Ok(None)
        );
        assert_eq!(call, before);
    }
    // A write that a permission covered without a preview is previewed first; another is not.
    let mut unseen = sent("write_file", Verdict::Medium);
    unseen
        .rerate((CLIENT, 1), rating(Verdict::High, false), |_| None, QUESTION, timeouts(), now())
        .unwrap();
    assert_eq!(unseen.status, CallStatus::Previewing);
    let mut seen = sent("edit_file", Verdict::Medium);
    seen.preview = Some(CallPreview { base_checksum: None, diff: "+x".into() });
    seen.rerate((CLIENT, 1), rating(Verdict::High, false), |_| None, QUESTION, timeouts(), now())
        .unwrap();
    assert_eq!(seen.status, CallStatus::PendingApproval);
    // A preview can bring the higher rating before a person is asked.
    let mut previewing = in_every_state().remove(0);
    let preview = CallPreview { base_checksum: None, diff: "+x".into() };
    let found = Some(rating(Verdict::High, false));
    previewing.previewed(CLIENT, shown(preview, found), QUESTION, distinct(), now()).unwrap();
    assert_eq!(previewing.approval.unwrap().expires_at, Some(later(600)));
}

#[test]
fn large_parameters_and_diffs_are_linked() {
    assert_eq!(MAX_IN_EVENT, 65_536);
    for (size, whole) in [(MAX_IN_EVENT - 14, true), (MAX_IN_EVENT, false)] {
        let mut call = call();
        call.tool_params = json!({"content": "x".repeat(size)});
        call.preview = Some(CallPreview { base_checksum: None, diff: "+".repeat(size + 14) });
        let events = call.ask(QUESTION, timeouts(), now());
        let Event::ToolApprovalRequest { tool_params, preview, .. } = &events[1] else {
            panic!("{events:?}")
        };
        assert_eq!(tool_params == &call.tool_params, whole);
        assert_eq!(tool_params.get(LINK).is_some(), !whole);
        assert_eq!(preview == &call.preview, whole);
    }
}

#[test]
fn a_permission_covers_what_it_names_and_nothing_else() {
    let (session, agent) = (Uuid::from_u128(20), AgentId(Uuid::from_u128(21)));
    let mut call = call();
    (call.rule, call.agent_id) = ("git.commit".into(), Some(agent));
    call.class = CallClass::of("git.commit");
    let grant = |scope| Grant {
        id: GrantId(Uuid::from_u128(22)),
        project_id: call.project_id,
        scope,
        session,
        rule: (scope == GrantScope::Class).then(|| "git.commit".to_owned()),
        class: CallClass::default(),
        agent_id: (scope == GrantScope::Agent).then_some(agent),
        include_high: false,
        words: String::new(),
        created_by: PERSON,
        created_at: now(),
        withdrawn_at: None,
    };
    let covers = |grant: &Grant, call: &GatedCall| grant.covers(call, Some(session));
    let (once, class, all) =
        (grant(GrantScope::Once), grant(GrantScope::Class), grant(GrantScope::Agent));
    assert!(!covers(&once, &call) && covers(&class, &call) && covers(&all, &call));
    for grant in [&class, &all] {
        assert!(!grant.covers(&call, None) && !grant.covers(&call, Some(Uuid::from_u128(99))));
        let withdrawn = Grant { withdrawn_at: Some(now()), ..grant.clone() };
        let elsewhere = Grant { project_id: ProjectId(Uuid::from_u128(99)), ..grant.clone() };
        assert!(!covers(&withdrawn, &call) && !covers(&elsewhere, &call));
    }
    let risk = |risk_level| GatedCall { risk_level, ..call.clone() };
    let high = Grant { include_high: true, ..all.clone() };
    let high_class = Grant { include_high: true, ..class.clone() };
    for (verdict, plain, with_high) in [
        (Verdict::Low, false, false),
        (Verdict::Medium, true, true),
        (Verdict::High, false, true),
        (Verdict::Deny, false, false),
    ] {
        assert_eq!(
            (covers(&all, &risk(verdict)), covers(&high, &risk(verdict))),
            (plain, with_high)
        );
        let classes = (covers(&class, &risk(verdict)), covers(&high_class, &risk(verdict)));
        assert_eq!(classes, (plain, with_high));
    }
    let other_rule =
        GatedCall { rule: "git.push".into(), class: CallClass::of("git.push"), ..call.clone() };
    assert!(!covers(&class, &other_rule));
    let nobody = Grant { agent_id: None, ..all.clone() };
    let unsaid = GatedCall { agent_id: None, ..call.clone() };
    assert!(!covers(&nobody, &unsaid) && !covers(&all, &unsaid));
}

#[test]
fn a_status_is_stored_and_sent_by_the_same_name() {
    for call in in_every_state() {
        assert_eq!(json!(call.status), json!(call.status.as_str()));
        if let Some(approval) = call.approval {
            assert_eq!(json!(approval.status), json!(approval.status.as_str()));
        }
    }
    assert_eq!(json!(ApprovalStatus::Approved), json!(ApprovalStatus::Approved.as_str()));
}

#[test]
fn a_call_that_no_machine_may_run_fails_with_the_reason() {
    let mut call = call();
    call.allow(timeouts(), now());
    let failure = CallFailure::new(FailureCode::IsolationRequired, "no sandbox");
    assert_eq!(names(&call.refuse(failure.clone(), now())), ["TOOL_CALL_UPDATED"]);
    assert_eq!((call.status, call.error, call.deadline), (CallStatus::Failed, Some(failure), None));
}

#[test]
fn parameters_of_a_call_that_did_not_run_are_shortened() {
    let content = "é".repeat(100_000);
    let large = json!({"path": "a.txt", "content": content});
    let pending = GatedCall { tool_params: large.clone(), ..asked(Verdict::Medium) };
    let id = pending.approval_id.unwrap();
    let mut rejected = pending.clone();
    rejected.reject(id, PERSON, None, now()).unwrap();
    let mut cancelled = pending.clone();
    cancelled.cancel(now()).unwrap();
    for call in [rejected, cancelled] {
        let kept = &call.tool_params[SHORTENED];
        assert_eq!(call.tool_params["path"], "a.txt");
        assert_eq!(call.tool_params.get("content"), None);
        assert_eq!(kept["bytes"], large.to_string().len());
        let beginning = kept["beginning"].as_str().unwrap();
        assert!(
            (1022..=1024).contains(&beginning.len()) && large.to_string().starts_with(beginning)
        );
    }
    // Small ones stay, and so do those of a call that has begun.
    let mut small = asked(Verdict::Medium);
    let before = small.tool_params.clone();
    small.cancel(now()).unwrap();
    assert_eq!(small.tool_params, before);
    let mut running = GatedCall { tool_params: large.clone(), ..claimed() };
    running.cancel(now()).unwrap();
    assert_eq!(running.tool_params, large);
}
