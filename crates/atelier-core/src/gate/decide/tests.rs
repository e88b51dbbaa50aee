//! Tables of the decision that each call gets in each context.

use super::*;
use crate::{
    AgentId, CallId, ConversationId, GrantId, TaskId, TokenId, UserId,
    gate::{ApprovalSettings, ApprovalStatus, ApprovalWait, CallPreview, CallRating, Previewed},
    isolation::ReportedIsolation,
    policy::class::CallClass,
};
use chrono::{DateTime, TimeDelta, Utc};
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

mod approvals;
mod asked_again;
mod classes;
mod machines;
mod sequences;

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
