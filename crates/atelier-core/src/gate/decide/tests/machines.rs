//! Tests of which machine gets a call, and of what machines report about it.

use super::*;

#[test]
fn an_unsandboxed_machine_is_named_in_the_rule() {
    let (call, _) = begun(&rules(), command("ls"), &unsandboxed());
    assert_eq!((call.rule.as_str(), call.risk_level), ("ls isolation", Verdict::Medium));
    // A permission for one command on this machine covers no other command.
    let context = permitting(unsandboxed(), permission("ls isolation"));
    assert_eq!(begun(&rules(), command("ls"), &context).0.status, CallStatus::Dispatched);
    assert_eq!(begun(&rules(), command("pwd"), &context).0.status, CallStatus::PendingApproval);
    // A command that is asked about anyway keeps its own reason.
    let (commit, _) = begun(&rules(), command("git commit -m x"), &unsandboxed());
    assert_eq!(commit.rule, "git.commit");
}

#[test]
fn calls_are_assigned_to_the_machine_that_is_there() {
    use CallStatus::{Approved, Dispatched, Failed, PendingApproval, Previewing};
    let elsewhere = || context(&[machine(THERE, true)]);
    let both = || context(&[machine(THERE, true), machine(HERE, true)]);
    let low = |at: &DecisionContext| begun(&rules(), read(), at).0;
    let approved = |at: &DecisionContext| {
        let call = asked(command("git commit -m x"), at);
        decided(&rules(), call, approval(GrantScope::Once), at).0
    };
    let granted = |at: DecisionContext| {
        begun(&rules(), command("git commit -m x"), &permitting(at, permission("git.commit"))).0
    };
    let claimed = |mut call: GatedCall| {
        call.claimed = true;
        call
    };
    let shown = |at: &DecisionContext| {
        let (call, _) = begun(&rules(), write(), at);
        let preview = CallPreview { base_checksum: None, diff: "+x".into() };
        let input = GateInput::Preview { client: HERE, shown: shown(preview, None) };
        let (call, _) = rules().decide(call, input, at, FIRST).unwrap();
        decided(&rules(), call, approval(GrantScope::Once), at).0
    };
    let preview = |at: &DecisionContext| begun(&rules(), write(), at).0;
    type Row =
        (&'static str, GatedCall, GateRules, DecisionContext, CallStatus, &'static [&'static str]);
    let rows: Vec<Row> = vec![
        (
            "LOW waits, one comes",
            low(&nobody()),
            rules(),
            sandboxed(),
            Dispatched,
            &[UPDATED, SIGNAL],
        ),
        ("LOW waits, none comes", low(&nobody()), rules(), nobody(), Approved, &[]),
        ("its machine is there", low(&sandboxed()), rules(), both(), Dispatched, &[]),
        (
            "its machine has gone",
            low(&sandboxed()),
            rules(),
            elsewhere(),
            Dispatched,
            &[UPDATED, SIGNAL],
        ),
        ("all have gone", low(&sandboxed()), rules(), nobody(), Dispatched, &[]),
        ("it has begun there", claimed(low(&sandboxed())), rules(), elsewhere(), Dispatched, &[]),
        (
            "approved for another machine",
            approved(&sandboxed()),
            rules(),
            elsewhere(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "a write that was shown",
            shown(&sandboxed()),
            rules(),
            elsewhere(),
            Dispatched,
            &[UPDATED, SIGNAL],
        ),
        (
            "its permission has ended",
            granted(nobody()),
            rules(),
            sandboxed(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "its permission holds",
            granted(nobody()),
            rules(),
            permitting(sandboxed(), permission("git.commit")),
            Dispatched,
            &[UPDATED, SIGNAL],
        ),
        (
            "its permission holds elsewhere",
            granted(sandboxed()),
            rules(),
            permitting(elsewhere(), permission("git.commit")),
            Dispatched,
            &[UPDATED, SIGNAL],
        ),
        ("no sandbox there", granted(nobody()), strict(), unsandboxed(), Failed, &[UPDATED]),
        (
            "rated higher there",
            begun(&rules(), command("ls"), &nobody()).0,
            rules(),
            unsandboxed(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "a write is previewed elsewhere",
            preview(&sandboxed()),
            rules(),
            elsewhere(),
            Previewing,
            &[UPDATED, PREVIEW],
        ),
        ("a write is being previewed", preview(&sandboxed()), rules(), both(), Previewing, &[]),
        (
            "a write waits, one comes",
            preview(&nobody()),
            rules(),
            sandboxed(),
            Previewing,
            &[UPDATED, PREVIEW],
        ),
        ("a write waits, none comes", preview(&nobody()), rules(), nobody(), Previewing, &[]),
        (
            "a person is asked",
            asked(command("git commit -m x"), &sandboxed()),
            rules(),
            elsewhere(),
            PendingApproval,
            &[],
        ),
    ];
    for (what, call, rules, context, status, events) in rows {
        let before = call.clone();
        let (call, effects) = decided(&rules, call, GateInput::Assign, &context);
        assert_eq!((call.status, &*names(&effects)), (status, events), "{what}");
        if events.is_empty() {
            assert_eq!(GatedCall { note: before.note.clone(), ..call }, before, "{what}");
        } else if status == PendingApproval {
            assert_eq!((call.grant_id, call.approval_id), (None, Some(NEXT.approval)), "{what}");
            assert_eq!(call.client_id, context.machine().map(|client| client.id), "{what}");
        } else if status != Failed {
            assert_eq!(call.client_id, context.machine().map(|client| client.id), "{what}");
        }
        assert_eq!((effects.audit, effects.grant, effects.problem), (None, None, None), "{what}");
    }
}

#[test]
fn a_note_says_why_a_call_is_asked_about_again() {
    let call = asked(command("git commit -m x"), &sandboxed());
    let (sent, _) = decided(&rules(), call, approval(GrantScope::Once), &sandboxed());
    let elsewhere = context(&[machine(THERE, true)]);
    let (call, _) = decided(&rules(), sent, GateInput::Assign, &elsewhere);
    assert!(call.note.unwrap().contains("approved for another machine"));
    let permitted = permitting(nobody(), permission("git.commit"));
    let (waiting, _) = begun(&rules(), command("git commit -m x"), &permitted);
    let (call, _) = decided(&rules(), waiting, GateInput::Assign, &sandboxed());
    assert!(call.note.unwrap().contains("permission that covered this call has ended"));
}

#[test]
fn a_call_waits_while_restrictions_cannot_be_read() {
    let (call, _) = begun(&rules(), read(), &nobody());
    let context = restricted(sandboxed(), json!({"deny": 1}));
    let (after, effects) = decided(&rules(), call.clone(), GateInput::Assign, &context);
    assert_eq!((after, effects.events.len()), (call, 0));
    assert_eq!(effects.problem.unwrap().field, "settings.policy");
}

#[test]
fn an_outcome_settles_the_call_or_brings_a_new_question() {
    use CallStatus::{Cancelled, Completed, Dispatched, Failed, PendingApproval, Unknown};
    let failed = |code| ToolOutcome::failed(code, "why");
    let secret = || Grant { include_high: true, ..permission("cat file.secret") };
    let rows: Vec<(&str, ToolOutcome, DecisionContext, CallStatus, &[&str])> = vec![
        ("done", ToolOutcome::succeeded(Map::new()), sandboxed(), Completed, &[UPDATED, ACK]),
        ("failed", failed(FailureCode::CommandFailed), sandboxed(), Failed, &[UPDATED, ACK]),
        ("unknown", failed(FailureCode::Unknown), sandboxed(), Unknown, &[UPDATED, ACK]),
        ("cancelled", failed(FailureCode::Cancelled), sandboxed(), Cancelled, &[UPDATED, ACK]),
        (
            "rated higher there",
            refused(Verdict::High, false),
            sandboxed(),
            PendingApproval,
            &[ACK, UPDATED, REQUEST],
        ),
        (
            "a permission covers the higher rating",
            refused(Verdict::High, false),
            permitting(sandboxed(), secret()),
            Dispatched,
            &[ACK, UPDATED, UPDATED, SIGNAL],
        ),
        (
            "no permission covers the network",
            refused(Verdict::High, true),
            permitting(sandboxed(), secret()),
            PendingApproval,
            &[ACK, UPDATED, REQUEST],
        ),
        (
            "rated the same there",
            refused(Verdict::Low, false),
            sandboxed(),
            Failed,
            &[UPDATED, ACK],
        ),
        ("denied there", refused(Verdict::Deny, false), sandboxed(), Failed, &[UPDATED, ACK]),
    ];
    for (what, outcome, context, status, events) in rows {
        let (call, _) = begun(&rules(), command("cat a.txt"), &context);
        assert_eq!(call.status, Dispatched, "{what}");
        let (call, effects) = decided(&rules(), call, reported(outcome), &context);
        assert_eq!((call.status, &*names(&effects)), (status, events), "{what}");
        let granted = effects.audit.map(|audit| (audit.decision, audit.grant_id));
        let expected = call.grant_id.map(|grant| (AuditDecision::Granted, Some(grant)));
        assert_eq!(granted, expected, "{what}");
        assert_eq!(call.grant_id.is_some(), what.starts_with("a permission covers"), "{what}");
    }
}

#[test]
fn a_stale_write_is_previewed_again() {
    let context = permitting(sandboxed(), permission("write_file"));
    let (call, _) = begun(&rules(), write(), &context);
    assert_eq!(call.status, CallStatus::Dispatched);
    let stale = ToolOutcome::failed(FailureCode::Stale, "It changed.");
    let (call, effects) = decided(&rules(), call, reported(stale), &context);
    assert_eq!((call.status, call.grant_id), (CallStatus::Previewing, None));
    assert_eq!(names(&effects), [ACK, UPDATED, PREVIEW]);
}

#[test]
fn a_late_higher_rating_settles_nothing_twice() {
    let (call, _) = begun(&rules(), command("cat a.txt"), &sandboxed());
    let done = reported(ToolOutcome::succeeded(Map::new()));
    let (call, _) = decided(&rules(), call, done, &sandboxed());
    let late = rules().decide(call, reported(refused(Verdict::High, false)), &sandboxed(), NEXT);
    assert_eq!(late.map(drop), Err(Refusal::OtherResult));
}

#[test]
fn a_machine_previews_claims_and_fails() {
    let at = sandboxed();
    let (previewing, _) = begun(&rules(), write(), &at);
    let preview = CallPreview { base_checksum: None, diff: "+x".into() };
    let input = GateInput::Preview { client: HERE, shown: shown(preview, None) };
    let (asked, effects) = decided(&rules(), previewing.clone(), input, &at);
    assert_eq!(asked.approval_id, Some(NEXT.approval));
    assert_eq!(names(&effects), [UPDATED, REQUEST]);
    let failure = CallFailure::new(FailureCode::NotFound, "no folder");
    let input = GateInput::PreviewFailed { client: HERE, failure: failure.clone() };
    let (call, _) = decided(&rules(), previewing, input, &at);
    assert_eq!((call.status, call.error), (CallStatus::Failed, Some(failure)));
    let (sent, _) = begun(&rules(), read(), &at);
    let claim = GateInput::Claim { client: HERE, attempt: 1 };
    let (call, effects) = decided(&rules(), sent, claim, &at);
    assert!(call.claimed && effects == Effects::default());
}
