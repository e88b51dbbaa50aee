//! What comes of a question that ran out and is asked again.

use super::*;

const AGAIN: CallId = CallId(Uuid::from_u128(60));

fn waiting(context: DecisionContext, wait: ApprovalWait) -> DecisionContext {
    DecisionContext { approvals: ApprovalSettings { wait: Some(wait) }, ..context }
}

/// A call whose question ran out.
fn expired(new: NewCall) -> GatedCall {
    let call = asked(new, &sandboxed());
    let late = DecisionContext::time_only(now() + TimeDelta::seconds(600));
    let (call, effects) = decided(&rules(), call, GateInput::TimePassed, &late);
    assert_eq!(effects.audit.map(|audit| audit.decision), Some(AuditDecision::Expired));
    call
}

/// TL-02.5
#[test]
fn the_new_call_is_decided_about_as_any_other() {
    use CallStatus::{Denied, Dispatched, PendingApproval};
    let commit = || NewCall { task_id: Some(TaskId(Uuid::from_u128(61))), ..command("git commit") };
    for (what, context, status) in [
        ("it is asked about", sandboxed(), PendingApproval),
        ("a permission covers it", permitting(sandboxed(), permission("git.commit")), Dispatched),
        ("the project denies it", restricted(sandboxed(), json!({"deny": ["git"]})), Denied),
    ] {
        let call = expired(commit());
        let asked = rules().ask_again(call.clone(), AGAIN, decider(), &context, NEXT);
        let AskedAgain { expired, of_expired, call: new, .. } = asked.unwrap().unwrap();
        assert_eq!((new.tool_id, new.status), (AGAIN, status), "{what}");
        assert_eq!(
            (&new.tool_params, &new.digest, new.task_id, new.agent_id, new.session_id),
            (&call.tool_params, &call.digest, call.task_id, call.agent_id, call.session_id)
        );
        let audit = of_expired.audit.unwrap();
        assert_eq!(
            (audit.decision, audit.by, audit.tool_id, audit.approval_id),
            (AuditDecision::AskedAgain, Some(PERSON), Some(CALL), Some(FIRST.approval))
        );
        assert_eq!(expired, GatedCall { asked_again: Some(AGAIN), ..call });
    }
}

/// TL-02.5
#[test]
fn settings_that_cannot_be_read_ask_nobody() {
    let unreadable = restricted(sandboxed(), json!({"deny": 7}));
    let call = expired(command("git commit -m x"));
    let asked = rules().ask_again(call, AGAIN, decider(), &unreadable, NEXT);
    assert!(matches!(asked, Ok(Err(Invalid { .. }))), "{asked:?}");
}

/// TL-02.4
#[test]
fn the_time_of_the_project_holds_wherever_a_person_is_asked() {
    let context = waiting(sandboxed(), ApprovalWait::Seconds(40));
    let after = |call: &GatedCall| call.approval.as_ref().unwrap().expires_at;
    let expected = Some(now() + TimeDelta::seconds(40));
    let (call, _) = begun(&rules(), command("git commit -m x"), &context);
    assert_eq!(after(&call), expected);
    let (previewing, _) = begun(&rules(), write(), &context);
    let preview = CallPreview { base_checksum: None, diff: "+x".into() };
    let input = GateInput::Preview { client: HERE, shown: shown(preview, None) };
    assert!(input.needs_project());
    let (call, _) = decided(&rules(), previewing, input, &context);
    assert_eq!(after(&call), expected);
    let call = expired(command("git commit -m x"));
    let asked = rules().ask_again(call, AGAIN, decider(), &context, NEXT).unwrap().unwrap();
    assert_eq!(after(&asked.call), expected);
}

/// TL-02.4
#[test]
fn a_person_who_wants_more_time_is_in_the_audit() {
    let call = asked(command("git commit -m x"), &sandboxed());
    let wait = ApprovalWait::UntilAnswered;
    let input = GateInput::KeepWaiting { approval: FIRST.approval, by: decider(), wait };
    let (call, effects) = decided(&rules(), call, input, &sandboxed());
    assert_eq!(names(&effects), ["TOOL_APPROVAL_EXTENDED"]);
    let audit = effects.audit.unwrap();
    assert_eq!((audit.decision, audit.by), (AuditDecision::Extended, Some(PERSON)));
    assert_eq!(call.status, CallStatus::PendingApproval);
}
