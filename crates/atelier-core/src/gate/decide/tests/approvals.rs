//! Tests of what a person decides, and of what follows from it.

use super::*;

#[test]
fn an_approval_sends_the_call_and_makes_the_permission_it_names() {
    for (scope, session, agent, made) in [
        (GrantScope::Once, Some(CONVERSATION), Some(AGENT), false),
        (GrantScope::Class, Some(CONVERSATION), None, true),
        (GrantScope::Class, None, None, true),
        (GrantScope::Agent, Some(CONVERSATION), Some(AGENT), true),
        (GrantScope::Agent, Some(CONVERSATION), None, false),
    ] {
        let new = NewCall { session_id: session, agent_id: agent, ..command("git commit -m x") };
        let call = asked(new, &sandboxed());
        let (call, effects) = decided(&rules(), call, approval(scope), &sandboxed());
        assert_eq!(call.status, CallStatus::Dispatched);
        assert_eq!(names(&effects), [UPDATED, UPDATED, SIGNAL]);
        let recorded = call.approval.as_ref().unwrap();
        let kept = if made { scope } else { GrantScope::Once };
        assert_eq!((recorded.status, recorded.scope), (ApprovalStatus::Approved, Some(kept)));
        let audit = effects.audit.unwrap();
        assert_eq!((audit.decision, audit.by), (AuditDecision::Approved, Some(PERSON)));
        assert_eq!(
            (audit.via.as_deref(), audit.approval_id),
            (Some("a test"), Some(FIRST.approval))
        );
        assert_eq!(audit.digest, call.digest.map(|digest| digest.to_string()));
        assert_eq!(audit.grant_id, made.then_some(NEXT.grant));
        let grant = made.then(|| Grant {
            id: NEXT.grant,
            scope,
            session: session.map_or(HERE.0, |conversation| conversation.0),
            rule: (scope == GrantScope::Class).then(|| "git.commit".to_owned()),
            class: match scope {
                GrantScope::Class => call.class.clone(),
                _ => CallClass::default(),
            },
            agent_id: agent.filter(|_| scope == GrantScope::Agent),
            words: match scope {
                GrantScope::Agent => {
                    "everything this agent asks for in this session, up to MEDIUM".to_owned()
                }
                _ => call.class_in_words(),
            },
            ..permission("")
        });
        assert_eq!(effects.grant, grant, "{scope:?} {session:?} {agent:?}");
    }
    // Without a conversation and without a machine there is no session.
    let call = asked(NewCall { session_id: None, ..command("git commit -m x") }, &nobody());
    let (call, effects) = decided(&rules(), call, approval(GrantScope::Class), &nobody());
    assert_eq!((call.status, effects.grant), (CallStatus::Approved, None));
}

#[test]
fn a_permission_reaches_high_only_if_the_person_saw_or_said_so() {
    let high = asked(command("git push --force origin main"), &sandboxed());
    assert_eq!(high.risk_level, Verdict::High);
    let (_, effects) = decided(&rules(), high, approval(GrantScope::Class), &sandboxed());
    assert!(effects.grant.unwrap().include_high);
    for include_high in [false, true] {
        let call = asked(command("git commit -m x"), &sandboxed());
        let (scope, by) = (GrantScope::Agent, decider());
        let input = GateInput::Approve { approval: FIRST.approval, by, scope, include_high };
        let (_, effects) = decided(&rules(), call, input, &sandboxed());
        let grant = effects.grant.unwrap();
        assert_eq!(grant.include_high, include_high);
        assert_eq!(grant.words.ends_with("up to HIGH"), include_high, "{}", grant.words);
    }
}

#[test]
fn an_approval_is_checked_against_what_holds_now() {
    use CallStatus::{Denied, Failed, PendingApproval};
    let deny = json!({"deny": ["git commit"]});
    let high = json!({"at_least": {"git commit": "HIGH"}});
    let unreadable = json!({"deny": 1});
    let rows = [
        (
            "denied by now",
            rules(),
            restricted(sandboxed(), deny),
            Denied,
            Some("command_not_allowed"),
        ),
        ("rated higher by now", rules(), restricted(sandboxed(), high), PendingApproval, None),
        (
            "unreadable",
            rules(),
            restricted(sandboxed(), unreadable),
            Denied,
            Some("invalid_settings"),
        ),
        ("no sandbox", strict(), unsandboxed(), Failed, Some("isolation_required")),
        ("another machine", rules(), context(&[machine(THERE, true)]), PendingApproval, None),
    ];
    for (what, rules, context, status, failure) in rows {
        let call = asked(command("git commit -m x"), &sandboxed());
        let (call, effects) = decided(&rules, call, approval(GrantScope::Class), &context);
        assert_eq!((call.status, code(&call)), (status, failure), "{what}");
        // The answer is recorded, but it makes no permission.
        let audit = effects.audit.as_ref().unwrap();
        assert_eq!((audit.decision, audit.grant_id), (AuditDecision::Approved, None), "{what}");
        assert_eq!(audit.approval_id, Some(FIRST.approval), "{what}");
        assert_eq!(effects.grant, None, "{what}");
        if status == PendingApproval {
            assert_eq!(call.approval_id, Some(NEXT.approval), "{what}");
            assert_eq!(names(&effects), [UPDATED, UPDATED, REQUEST], "{what}");
        }
    }
}

#[test]
fn an_approval_without_a_machine_is_for_the_machine_that_comes() {
    let call = asked(command("git commit -m x"), &nobody());
    let (call, _) = decided(&rules(), call, approval(GrantScope::Once), &nobody());
    assert_eq!(call.status, CallStatus::Approved);
    assert!(call.note.as_deref().unwrap().contains("No machine is connected"));
    assert_eq!(call.approval.as_ref().unwrap().client_id, None);
    let (call, effects) = decided(&rules(), call, GateInput::Assign, &sandboxed());
    assert_eq!((call.status, call.client_id), (CallStatus::Dispatched, Some(HERE)));
    assert_eq!((names(&effects), call.note), (vec![UPDATED, SIGNAL], None));
}

#[test]
fn a_person_rejects_or_cancels_and_it_is_recorded() {
    let reject = GateInput::Reject { approval: FIRST.approval, by: decider(), reason: None };
    for (input, status, decision) in [
        (reject, CallStatus::Rejected, AuditDecision::Rejected),
        (GateInput::Cancel { by: decider() }, CallStatus::Cancelled, AuditDecision::Cancelled),
    ] {
        let call = asked(command("git commit -m x"), &sandboxed());
        let (call, effects) = decided(&rules(), call, input, &nobody());
        let audit = effects.audit.unwrap();
        assert_eq!((call.status, audit.decision, audit.by), (status, decision, Some(PERSON)));
        assert_eq!((audit.tool_id, audit.approval_id), (Some(CALL), Some(FIRST.approval)));
    }
}

#[test]
fn a_new_permission_lets_a_waiting_call_run() {
    let covering = permitting(sandboxed(), permission("git.commit"));
    let call = asked(command("git commit -m x"), &sandboxed());
    let (call, effects) = decided(&rules(), call, GateInput::Cover, &covering);
    assert_eq!((call.status, call.grant_id), (CallStatus::Dispatched, Some(GRANT)));
    assert_eq!(names(&effects), [UPDATED, UPDATED, SIGNAL]);
    let audit = effects.audit.unwrap();
    assert_eq!((audit.decision, audit.grant_id), (AuditDecision::Granted, Some(GRANT)));
    assert_eq!((audit.by, effects.grant), (None, None));
    // An agent's permission covers the calls of its tasks, and not those of programs.
    for (task_id, covered) in [(Some(TaskId(Uuid::from_u128(30))), true), (None, false)] {
        let call = asked(NewCall { task_id, ..command("git commit -m x") }, &sandboxed());
        let context = permitting(sandboxed(), for_agent());
        let outcome = rules().decide(call, GateInput::Cover, &context, NEXT);
        assert_eq!(outcome.is_ok(), covered);
    }
    // A call that waits for something else is not touched.
    let (sent, _) = begun(&rules(), command("git commit -m x"), &covering);
    let late = rules().decide(sent, GateInput::Cover, &covering, NEXT).map(drop);
    assert_eq!(late, Err(Refusal::Already(CallStatus::Dispatched)));
}
