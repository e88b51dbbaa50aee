//! Tests of every input in every context, and of random sequences of inputs.

use super::*;

/// Inputs that a call in some state may meet.
fn inputs() -> Vec<GateInput> {
    let preview = CallPreview { base_checksum: None, diff: "+x".into() };
    let rating = CallRating {
        verdict: Verdict::High,
        rule: "r".into(),
        reason: "why".into(),
        network: true,
        class: CallClass::default(),
    };
    let failure = CallFailure::new(FailureCode::NotFound, "no folder");
    vec![
        approval(GrantScope::Class),
        GateInput::Reject { approval: FIRST.approval, by: decider(), reason: Some("no".into()) },
        GateInput::Cancel { by: decider() },
        GateInput::Cover,
        GateInput::Assign,
        GateInput::Preview { client: HERE, shown: shown(preview, Some(rating)) },
        GateInput::PreviewFailed { client: HERE, failure },
        GateInput::Claim { client: HERE, attempt: 1 },
        reported(ToolOutcome::succeeded(Map::new())),
        reported(ToolOutcome::failed(FailureCode::Stale, "It changed.")),
        reported(refused(Verdict::High, false)),
        GateInput::TimePassed,
        GateInput::KeepWaiting {
            approval: FIRST.approval,
            by: decider(),
            wait: ApprovalWait::Seconds(900),
        },
    ]
}

#[test]
fn inputs_that_need_no_project_ignore_it() {
    let needy: Vec<bool> = inputs().iter().map(GateInput::needs_project).collect();
    let needed: Vec<usize> =
        needy.iter().enumerate().filter_map(|(n, needy)| needy.then_some(n)).collect();
    // Approve, cover, assign, preview, and a higher rating.
    assert_eq!((needed, needy.len()), (vec![0, 3, 4, 5, 10], 13));
    let full = restricted(
        permitting(context(&[machine(THERE, false)]), for_agent()),
        json!({"deny": ["git"], "no_network": true}),
    );
    for new in [read(), write(), command("git commit -m x")] {
        let (call, _) = begun(&rules(), new, &sandboxed());
        for input in inputs().into_iter().filter(|input| !input.needs_project()) {
            let alone = DecisionContext::time_only(now());
            assert_eq!(
                rules().decide(call.clone(), input.clone(), &alone, NEXT),
                rules().decide(call.clone(), input.clone(), &full, NEXT),
                "{input:?}"
            );
        }
    }
}

proptest! {
    /// Whatever happens in whatever order: nothing runs that a person, a permission or LOW did not
    /// allow, a settled call stays settled, and each approval is decided at most once.
    #[test]
    fn nothing_runs_that_was_not_allowed(
        which in 0..4usize,
        moves in prop::collection::vec((0..13usize, 0..4usize, 0..400i64), 1..12),
    ) {
        let new = [read(), write(), command("git commit -m x"), command("ls")][which].clone();
        let contexts = [
            sandboxed(),
            unsandboxed(),
            nobody(),
            permitting(context(&[machine(THERE, true)]), permission("git.commit")),
        ];
        let (mut call, _) = begun(&rules(), new, &contexts[0]);
        let mut time = now();
        for (input, context, seconds) in moves {
            time += TimeDelta::seconds(seconds);
            let context = DecisionContext { now: time, ..contexts[context].clone() };
            let before = call.clone();
            let Ok((after, effects)) =
                rules().decide(call.clone(), inputs()[input].clone(), &context, NEXT)
            else { continue };
            if before.status.is_settled() && before.status != CallStatus::Unknown {
                prop_assert_eq!(&after, &before);
            }
            let sent = effects.events.iter().any(|event| event.name() == SIGNAL);
            if sent {
                let approved = after.approval.as_ref()
                    .is_some_and(|approval| approval.status == ApprovalStatus::Approved);
                let low = !after.requires_approval;
                prop_assert!(approved || low || after.grant_id.is_some(), "{:?}", after);
                prop_assert_eq!(after.status, CallStatus::Dispatched);
                prop_assert_eq!(after.attempt, before.attempt + 1);
            }
            prop_assert_eq!(after.status.is_settled(), after.deadline.is_none());
            call = after;
        }
    }
}
