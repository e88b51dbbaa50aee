//! Which decision each call gets in each context, as tables.

use super::*;
use crate::{
    gate::{ApprovalStatus, CallPreview, CallRating},
    isolation::ReportedIsolation,
    policy::class::CallClass,
};
use chrono::TimeDelta;
use proptest::prelude::*;
use serde_json::{Map, json};
use uuid::Uuid;

const PROJECT: ProjectId = ProjectId(Uuid::from_u128(1));
const CALL: CallId = CallId(Uuid::from_u128(2));
const HERE: ClientId = ClientId(Uuid::from_u128(3));
const THERE: ClientId = ClientId(Uuid::from_u128(4));
const AGENT: AgentId = AgentId(Uuid::from_u128(5));
const CONVERSATION: ConversationId = ConversationId(Uuid::from_u128(6));
const PERSON: UserId = UserId(Uuid::from_u128(7));
const GRANT: GrantId = GrantId(Uuid::from_u128(8));
const FIRST: NewIds =
    NewIds { approval: ApprovalId(Uuid::from_u128(9)), grant: GrantId(Uuid::from_u128(10)) };
const NEXT: NewIds =
    NewIds { approval: ApprovalId(Uuid::from_u128(11)), grant: GrantId(Uuid::from_u128(12)) };

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

fn rules() -> GateRules {
    let seconds = TimeDelta::seconds;
    GateRules {
        policy: Arc::new(Policy::builtin().clone()),
        own_files: Arc::new(Policy::builtin().for_own_files(Verdict::Low)),
        timeouts: GateTimeouts {
            medium: Some(seconds(300)),
            high: Some(seconds(600)),
            dispatch: seconds(120),
            result: seconds(60),
        },
        demand_isolation: false,
    }
}

fn strict() -> GateRules {
    GateRules { demand_isolation: true, ..rules() }
}

fn machine(id: ClientId, sandboxed: bool) -> Client {
    Client {
        id,
        project_id: PROJECT,
        root: "/home/ann/shop".into(),
        os: "linux".into(),
        isolation: ReportedIsolation { enforces_read_only: sandboxed, ..Default::default() },
        connected_at: now(),
        lease_until: now(),
    }
}

fn context(clients: &[Client]) -> DecisionContext {
    DecisionContext { clients: clients.into(), ..DecisionContext::time_only(now()) }
}

fn sandboxed() -> DecisionContext {
    context(&[machine(HERE, true)])
}

fn unsandboxed() -> DecisionContext {
    context(&[machine(HERE, false)])
}

fn nobody() -> DecisionContext {
    context(&[])
}

fn restricted(context: DecisionContext, restrictions: Value) -> DecisionContext {
    let restrictions = Restrictions::from_setting(Some(&restrictions));
    DecisionContext { restrictions: restrictions.map(|own| own.map(Arc::new)), ..context }
}

fn permitting(context: DecisionContext, grant: Grant) -> DecisionContext {
    DecisionContext { grants: [grant].into(), ..context }
}

fn permission(rule: &str) -> Grant {
    Grant {
        id: GRANT,
        project_id: PROJECT,
        scope: GrantScope::Class,
        session: CONVERSATION.0,
        rule: Some(rule.into()),
        class: CallClass::default(),
        agent_id: None,
        include_high: false,
        words: String::new(),
        created_by: PERSON,
        created_at: now(),
        withdrawn_at: None,
    }
}

fn for_agent() -> Grant {
    Grant { scope: GrantScope::Agent, rule: None, agent_id: Some(AGENT), ..permission("") }
}

fn request(tool: &str, params: Value) -> NewCall {
    NewCall {
        id: CALL,
        tool_name: tool.into(),
        tool_params: params,
        workspace: WorkspaceKind::Client,
        agent_id: Some(AGENT),
        session_id: Some(CONVERSATION),
        task_id: None,
        asked_by: AskedBy::Owner,
        requested_by: None,
    }
}

fn read() -> NewCall {
    request("read_file", json!({"path": "a.txt"}))
}

fn write() -> NewCall {
    request("write_file", json!({"path": "a.txt", "content": "x"}))
}

fn command(line: &str) -> NewCall {
    let mut words = line.split(' ');
    let command = words.next();
    let args: Vec<&str> = words.collect();
    request("execute_command", json!({"command": command, "args": args}))
}

fn decider() -> Decider {
    Decider { user: PERSON, via: Some("a test".into()) }
}

fn begun(rules: &GateRules, new: NewCall, context: &DecisionContext) -> (GatedCall, Effects) {
    rules.begin(PROJECT, new, context, FIRST).unwrap()
}

/// A call that waits for a person.
fn asked(new: NewCall, context: &DecisionContext) -> GatedCall {
    let (call, _) = begun(&rules(), new, context);
    assert_eq!(call.status, CallStatus::PendingApproval, "{call:?}");
    call
}

fn approval(scope: GrantScope) -> GateInput {
    let approval = FIRST.approval;
    GateInput::Approve { approval, by: decider(), scope, include_high: false }
}

/// What a machine reports about a call that changes something.
fn shown(preview: CallPreview, rating: Option<CallRating>) -> Previewed {
    Previewed { preview, rating, unchanged: false }
}

fn decided(
    rules: &GateRules,
    call: GatedCall,
    input: GateInput,
    context: &DecisionContext,
) -> (GatedCall, Effects) {
    rules.decide(call, input, context, NEXT).unwrap()
}

fn names(effects: &Effects) -> Vec<&'static str> {
    effects.events.iter().map(Event::name).collect()
}

fn code(call: &GatedCall) -> Option<&str> {
    call.error.as_ref().map(|error| error.code.as_str())
}

const UPDATED: &str = "TOOL_CALL_UPDATED";
const SIGNAL: &str = "TOOL_EXECUTION_SIGNAL";
const REQUEST: &str = "TOOL_APPROVAL_REQUEST";
const PREVIEW: &str = "TOOL_PREVIEW_REQUEST";
const ACK: &str = "TOOL_RESULT_ACK";

#[test]
fn a_new_call_runs_is_asked_about_or_is_refused() {
    use CallStatus::{Approved, Denied, Dispatched, PendingApproval, Previewing};
    let no_git = json!({"deny": ["git"]});
    let push_high = json!({"at_least": {"read_file": "HIGH"}});
    type Row =
        (&'static str, GateRules, NewCall, DecisionContext, CallStatus, &'static [&'static str]);
    let rows: Vec<Row> = vec![
        ("LOW is sent", rules(), read(), sandboxed(), Dispatched, &[UPDATED, UPDATED, SIGNAL]),
        ("LOW waits for a machine", rules(), read(), nobody(), Approved, &[UPDATED]),
        ("a write is shown first", rules(), write(), sandboxed(), Previewing, &[UPDATED, PREVIEW]),
        ("a write waits for a machine", rules(), write(), nobody(), Previewing, &[UPDATED]),
        (
            "MEDIUM is asked about",
            rules(),
            command("git commit -m x"),
            sandboxed(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "MEDIUM is asked about without a machine",
            rules(),
            command("git commit -m x"),
            nobody(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        ("DENY is refused", rules(), command("bash -c x"), sandboxed(), Denied, &[UPDATED]),
        (
            "what does not parse is refused",
            rules(),
            request("no", json!({})),
            nobody(),
            Denied,
            &[UPDATED],
        ),
        (
            "a LOW command runs in a sandbox",
            rules(),
            command("ls"),
            sandboxed(),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "every command is asked about outside a sandbox",
            rules(),
            command("ls"),
            unsandboxed(),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "a file is read outside a sandbox",
            rules(),
            read(),
            unsandboxed(),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        ("isolation is demanded", strict(), command("ls"), unsandboxed(), Denied, &[UPDATED]),
        (
            "isolation is there",
            strict(),
            command("ls"),
            sandboxed(),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "isolation is not demanded of files",
            strict(),
            read(),
            unsandboxed(),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "isolation of no machine is unknown",
            strict(),
            command("ls"),
            nobody(),
            Approved,
            &[UPDATED],
        ),
        (
            "a permission covers the class",
            rules(),
            command("git commit -m x"),
            permitting(sandboxed(), permission("git.commit")),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "a permission for another class does not",
            rules(),
            command("git commit -m x"),
            permitting(sandboxed(), permission("git.add")),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "a permission covers an agent",
            rules(),
            command("git commit -m x"),
            permitting(sandboxed(), for_agent()),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "a permission covers no program that says it is that agent",
            rules(),
            NewCall { asked_by: AskedBy::Program, ..command("git commit -m x") },
            permitting(sandboxed(), for_agent()),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "a class permission covers programs",
            rules(),
            NewCall { asked_by: AskedBy::Program, ..command("git commit -m x") },
            permitting(sandboxed(), permission("git.commit")),
            Dispatched,
            &[UPDATED, UPDATED, SIGNAL],
        ),
        (
            "a conversation's permission covers no token that only names the conversation",
            rules(),
            NewCall {
                asked_by: AskedBy::Program,
                requested_by: Some(TokenId(Uuid::from_u128(40))),
                ..command("git commit -m x")
            },
            permitting(sandboxed(), permission("git.commit")),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
        (
            "no permission covers DENY",
            rules(),
            command("bash -c x"),
            permitting(sandboxed(), for_agent()),
            Denied,
            &[UPDATED],
        ),
        (
            "the project denies it",
            rules(),
            command("git status"),
            restricted(sandboxed(), no_git),
            Denied,
            &[UPDATED],
        ),
        (
            "the project rates it higher",
            rules(),
            read(),
            restricted(sandboxed(), push_high),
            PendingApproval,
            &[UPDATED, REQUEST],
        ),
    ];
    for (what, rules, new, context, status, events) in rows {
        let (call, effects) = begun(&rules, new, &context);
        assert_eq!((call.status, &*names(&effects)), (status, events), "{what}: {call:?}");
        let granted = effects.audit.map(|audit| (audit.decision, audit.grant_id));
        let expected = call.grant_id.map(|grant| (AuditDecision::Granted, Some(grant)));
        assert_eq!(granted, expected, "{what}");
        assert_eq!((effects.grant, effects.problem), (None, None), "{what}");
        assert_eq!(call.error.is_some(), status == Denied, "{what}");
        let question = (status == PendingApproval).then_some(FIRST.approval);
        assert_eq!(call.approval_id, question, "{what}");
        let waits = context.clients.is_empty() && matches!(status, Approved | Previewing);
        assert_eq!(call.note.is_some(), waits, "{what}");
    }
}

#[test]
fn a_refusal_says_why() {
    for (rules, new, context, expected) in [
        (rules(), command("bash -c x"), sandboxed(), "command_not_allowed"),
        (rules(), request("no_such_tool", json!({})), sandboxed(), "unknown_tool"),
        (
            rules(),
            request("read_file", json!({"path": "/etc/passwd"})),
            sandboxed(),
            "path_outside_workspace",
        ),
        // Absolute paths are those of the connected machine.
        (
            rules(),
            request("read_file", json!({"path": "/home/ann/shop/a"})),
            nobody(),
            "path_outside_workspace",
        ),
        (strict(), command("ls"), unsandboxed(), "isolation_required"),
    ] {
        let (call, _) = begun(&rules, new, &context);
        assert_eq!((call.status, code(&call)), (CallStatus::Denied, Some(expected)));
    }
    let (inside, _) =
        begun(&rules(), request("read_file", json!({"path": "/home/ann/shop/a"})), &sandboxed());
    assert_eq!(inside.status, CallStatus::Dispatched);
    let (parsed, _) = begun(&rules(), request("tool_read_file", json!({"path": "a"})), &nobody());
    assert_eq!(parsed.tool_name, "read_file");
    assert!(parsed.digest.is_some());
}

#[test]
fn no_call_begins_by_restrictions_that_cannot_be_read() {
    let context = restricted(sandboxed(), json!({"deny": 1}));
    let refused = rules().begin(PROJECT, read(), &context, FIRST).map(drop);
    assert_eq!(refused.map_err(|invalid| invalid.field), Err("settings.policy"));
}

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
fn a_refused_input_is_refused_whole() {
    let call = asked(command("git commit -m x"), &sandboxed());
    let other = ApprovalId(Uuid::from_u128(99));
    let (by, scope) = (decider(), GrantScope::Once);
    let input = GateInput::Approve { approval: other, by, scope, include_high: false };
    let refused = rules().decide(call.clone(), input, &sandboxed(), NEXT).map(drop);
    assert_eq!(refused, Err(Refusal::AskedAnew));
    let uncovered = rules().decide(call, GateInput::Cover, &sandboxed(), NEXT).map(drop);
    assert_eq!(uncovered, Err(Refusal::Already(CallStatus::PendingApproval)));
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

fn refused(verdict: Verdict, network: bool) -> ToolOutcome {
    let judgement = Judgement::new(verdict, "cat file.secret", "It leads to a secret.");
    ToolOutcome::refused(&Judgement { network, ..judgement })
}

fn reported(outcome: ToolOutcome) -> GateInput {
    GateInput::Outcome { client: HERE, attempt: 1, outcome }
}

#[test]
fn time_expires_a_question_and_records_it() {
    let call = asked(command("git commit -m x"), &sandboxed());
    for (seconds, events, decision) in [
        (0, vec![], None),
        (240, vec!["TOOL_APPROVAL_WARNING"], None),
        (300, vec![UPDATED], Some(AuditDecision::Expired)),
    ] {
        let context = DecisionContext::time_only(now() + TimeDelta::seconds(seconds));
        let (_, effects) = decided(&rules(), call.clone(), GateInput::TimePassed, &context);
        assert_eq!(names(&effects), events, "{seconds}");
        assert_eq!(effects.audit.map(|audit| audit.decision), decision, "{seconds}");
    }
}

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

mod asked_again;
mod classes;
mod machines;

/// FS-17: the server itself runs calls on a conversation's own files, with or without a machine.
/// The person is asked where the project wants it.
#[test]
fn own_files_need_no_machine_and_are_asked_about_where_the_project_wants_it() {
    let server = ClientId(CONVERSATION.0);
    let own = |new: NewCall| NewCall { workspace: WorkspaceKind::Conversation, ..new };
    for context in [nobody(), unsandboxed()] {
        let (call, _) = rules().begin(PROJECT, own(write()), &context, FIRST).unwrap();
        assert_eq!((call.status, call.client_id), (CallStatus::Dispatched, Some(server)));
        let context = restricted(context, json!({"at_least": {"write_file": "medium"}}));
        let (call, _) = rules().begin(PROJECT, own(write()), &context, FIRST).unwrap();
        assert_eq!((call.status, call.client_id), (CallStatus::Previewing, Some(server)));
        let preview = CallPreview { base_checksum: None, diff: "+x".into() };
        let input = GateInput::Preview { client: server, shown: shown(preview, None) };
        let (call, _) = rules().decide(call, input, &context, FIRST).unwrap();
        assert_eq!(call.status, CallStatus::PendingApproval);
        let by = Decider { user: PERSON, via: None };
        let approve = GateInput::Approve {
            approval: call.approval_id.unwrap(),
            by,
            scope: GrantScope::Class,
            include_high: false,
        };
        let (call, effects) = rules().decide(call, approve, &context, FIRST).unwrap();
        assert_eq!((call.status, call.client_id), (CallStatus::Dispatched, Some(server)));
        // The permission covers the next call on the conversation's files, and none on a machine.
        let context = permitting(context, effects.grant.unwrap());
        let (call, _) = rules().begin(PROJECT, own(write()), &context, FIRST).unwrap();
        assert_eq!(call.status, CallStatus::Dispatched);
        let (call, _) = rules().begin(PROJECT, write(), &context, FIRST).unwrap();
        assert_eq!(call.status, CallStatus::Previewing);
    }
    let (call, _) = rules().begin(PROJECT, own(command("ls")), &nobody(), FIRST).unwrap();
    assert_eq!(call.status, CallStatus::Denied);
}
