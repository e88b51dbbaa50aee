use super::*;
use crate::{AgentConfig, AgentId, AgentName, AgentStatus, TaskId, TaskKind, Usage};
use serde_json::json;
use uuid::Uuid;

fn agent(name: &str, role: &str) -> Agent {
    let metadata = json!({"role": role});
    Agent {
        id: AgentId(Uuid::from_u128(name.len() as u128)),
        project_id: ProjectId(Uuid::nil()),
        name: AgentName::try_from(name).expect("a name"),
        status: AgentStatus::Active,
        config: AgentConfig {
            metadata: metadata.as_object().cloned().expect("an object"),
            ..AgentConfig::default()
        },
        created_at: DateTime::UNIX_EPOCH,
        updated_at: DateTime::UNIX_EPOCH,
    }
}

fn proposed(id: &str, agent: &str, depends_on: &[&str]) -> ProposedTask {
    ProposedTask {
        id: id.into(),
        description: format!("do {id}"),
        agent: agent.into(),
        depends_on: depends_on.iter().map(|&id| id.into()).collect(),
    }
}

fn task(number: u128, status: TaskStatus, depends_on: &[u128]) -> Task {
    Task {
        id: TaskId(Uuid::from_u128(number)),
        project_id: ProjectId(Uuid::nil()),
        session_id: ConversationId(Uuid::nil()),
        message_id: MessageId(Uuid::nil()),
        plan_id: None,
        kind: TaskKind::Work,
        key: None,
        description: "do it".into(),
        agent_id: None,
        agent_name: None,
        depends_on: depends_on.iter().map(|&n| TaskId(Uuid::from_u128(n))).collect(),
        status,
        priority: 0,
        steps: 0,
        usage: Usage::default(),
        cost: 0.0,
        ran_ms: 0,
        result: None,
        error: None,
        created_at: DateTime::UNIX_EPOCH,
        started_at: None,
        completed_at: None,
    }
}

#[test]
fn a_plan_that_can_be_run_is_taken_and_what_cannot_is_told_why() {
    let agents = [agent("agent_coder", "developer"), agent("writer", "writer")];
    let check = |tasks: &[ProposedTask]| check(tasks, &agents, 3);
    assert_eq!(check(&[proposed("a", "coder", &[]), proposed("b", "writer", &["a"])]), Ok(()));
    for (tasks, why) in [
        (vec![], "1 to 3 tasks"),
        (vec![proposed("a", "coder", &[]); 4], "1 to 3 tasks"),
        (vec![proposed("a", "coder", &[]), proposed("a", "coder", &[])], "an id of its own"),
        (vec![proposed("", "coder", &[])], "an id of its own"),
        (vec![proposed("a", "nobody", &[])], "there is no agent"),
        (vec![proposed("a", "coder", &["z"])], "no task of the plan"),
        (vec![proposed("a", "coder", &["a"])], "in a circle"),
        (vec![proposed("a", "coder", &["b"]), proposed("b", "coder", &["a"])], "in a circle"),
        (
            vec![ProposedTask { description: " ".into(), ..proposed("a", "coder", &[]) }],
            "a description",
        ),
    ] {
        let refusal = check(&tasks).expect_err(why);
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn the_best_matching_agent_shares_most_words() {
    let agents = [agent("agent_coder", "developer"), agent("agent_writer", "documentation")];
    let best = |text| best_match(&agents, text).map(|agent| agent.name.as_str());
    assert_eq!(best("write the documentation of the API"), Some("agent_writer"));
    assert_eq!(best("今日は"), Some("agent_coder"), "the first where nothing fits");
    assert_eq!(best_match(&[], "x"), None);
}

#[test]
fn a_task_goes_when_all_it_depends_on_is_done_and_fails_with_what_failed() {
    use TaskStatus::{Completed, Failed, Queued, Running, Waiting};
    let mut tasks = vec![
        task(1, Completed, &[]),
        task(2, Failed, &[]),
        task(3, Waiting, &[1]),
        task(4, Waiting, &[1, 2]),
        task(5, Waiting, &[4]),
        task(6, Waiting, &[7]),
        task(7, Running, &[]),
    ];
    let mut changed = advance(&mut tasks, DateTime::UNIX_EPOCH);
    changed.sort_unstable();
    assert_eq!(changed, [2, 3, 4]);
    let states: Vec<_> = tasks.iter().map(|task| task.status).collect();
    assert_eq!(states, [Completed, Failed, Queued, Failed, Failed, Waiting, Running]);
    assert_eq!(tasks[3].error.as_ref().map(|error| error.code.as_str()), Some("dependency_failed"));
}
