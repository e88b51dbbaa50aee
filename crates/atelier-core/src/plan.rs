//! Plans: whether the tasks that a planner proposes are valid, and which of them may run next.

use crate::{
    Agent, ConversationId, MessageId, PlanId, ProjectId, Task, TaskFailure, TaskFailureCode,
    TaskId, TaskStatus, agent::STARTER_PREFIX,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The tasks that the planner made of one message, and their dependencies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Plan {
    pub id: PlanId,
    pub project_id: ProjectId,
    pub session_id: ConversationId,
    pub message_id: MessageId,
    pub status: PlanStatus,
    /// Whether the owner still has to approve the plan. Until then none of its tasks may run, not
    /// even a task that is resumed after the plan has ended.
    #[serde(default)]
    pub needs_approval: bool,
    pub error: Option<TaskFailure>,
    pub created_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    Planning,
    /// The owner is asked whether the plan may run.
    PendingApproval,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl PlanStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            PlanStatus::Planning => "planning",
            PlanStatus::PendingApproval => "pending_approval",
            PlanStatus::Running => "running",
            PlanStatus::Completed => "completed",
            PlanStatus::Failed => "failed",
            PlanStatus::Cancelled => "cancelled",
        }
    }

    pub fn is_settled(self) -> bool {
        matches!(self, PlanStatus::Completed | PlanStatus::Failed | PlanStatus::Cancelled)
    }
}

/// A task that the planner proposes, or that a person puts in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProposedTask {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64))]
    pub id: String,
    /// The work for the agent.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 10_000))]
    pub description: String,
    /// The name or the id of the agent.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub agent: String,
    /// The ids of the tasks that have to be completed first.
    #[serde(default)]
    pub depends_on: Vec<String>,
}

/// The most tasks of a plan, whatever the settings say.
pub const MAX_TASKS: usize = 20;
/// The longest description of a task in a plan, in characters.
const MAX_DESCRIPTION: usize = 10_000;

/// Checks that a proposed plan can run: its agents and dependencies exist, it has no cycle, and it
/// is not too large. The error is a sentence that a model or a person can act on.
pub fn check(tasks: &[ProposedTask], agents: &[Agent], max_tasks: usize) -> Result<(), String> {
    let max = max_tasks.clamp(1, MAX_TASKS);
    if tasks.is_empty() || tasks.len() > max {
        return Err(format!("a plan has 1 to {max} tasks; this one has {}", tasks.len()));
    }
    let mut ids = BTreeSet::new();
    for task in tasks {
        if task.id.is_empty() || task.id.chars().count() > 64 || !ids.insert(task.id.as_str()) {
            return Err(format!(
                "every task needs an id of its own of 1 to 64 characters: {:?}",
                task.id
            ));
        }
        if task.description.trim().is_empty() || task.description.chars().count() > MAX_DESCRIPTION
        {
            return Err(format!("task {:?} needs a description of 1 to 10000 characters", task.id));
        }
        if find_agent(agents, &task.agent).is_none() {
            let known: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
            return Err(format!(
                "there is no agent {:?}; there are {}",
                task.agent,
                known.join(", ")
            ));
        }
    }
    for task in tasks {
        if let Some(unknown) = task.depends_on.iter().find(|id| !ids.contains(id.as_str())) {
            return Err(format!(
                "task {:?} depends on {unknown:?}, which is no task of the plan",
                task.id
            ));
        }
    }
    match order(tasks) {
        Some(_) => Ok(()),
        None => Err("tasks depend on each other in a circle".into()),
    }
}

/// The positions of the tasks in an order in which each comes after the tasks that it depends on;
/// `None` if there is a cycle.
pub fn order(tasks: &[ProposedTask]) -> Option<Vec<usize>> {
    let place: BTreeMap<&str, usize> =
        tasks.iter().enumerate().map(|(n, task)| (task.id.as_str(), n)).collect();
    let mut done = vec![false; tasks.len()];
    let mut order = Vec::with_capacity(tasks.len());
    while order.len() < tasks.len() {
        let free = |id: &String| place.get(id.as_str()).is_none_or(|&n| done[n]);
        let next: Vec<usize> = (0..tasks.len())
            .filter(|&n| !done[n] && tasks[n].depends_on.iter().all(free))
            .collect();
        if next.is_empty() {
            return None;
        }
        next.iter().for_each(|&n| done[n] = true);
        order.extend(next);
    }
    Some(order)
}

/// Finds an agent by its id or name. A starter agent is also found without the prefix of its name.
pub fn find_agent<'a>(agents: &'a [Agent], wanted: &str) -> Option<&'a Agent> {
    let named = |agent: &&Agent| agent.name.as_str() == wanted || agent.id.to_string() == wanted;
    let short = |agent: &&Agent| agent.name.as_str().strip_prefix(STARTER_PREFIX) == Some(wanted);
    agents.iter().find(named).or_else(|| agents.iter().find(short))
}

/// The agent whose name, metadata and instructions share the most words with the text; the first
/// agent if none shares any.
pub fn best_match<'a>(agents: &'a [Agent], text: &str) -> Option<&'a Agent> {
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|w| w.len() > 2)
            .map(str::to_lowercase)
            .collect()
    };
    let asked = words(text);
    let score = |agent: &Agent| {
        let about = format!(
            "{} {} {}",
            agent.name.as_str(),
            serde_json::Value::Object(agent.config.metadata.clone()),
            agent.config.system_prompt
        );
        words(&about).intersection(&asked).count()
    };
    agents.iter().rev().max_by_key(|agent| score(agent))
}

/// Queues the waiting tasks whose dependencies are completed, and fails those with a dependency
/// that did not succeed. Returns the positions of the tasks that changed.
pub fn advance(tasks: &mut [Task], now: DateTime<Utc>) -> Vec<usize> {
    let mut changed = fail_dependants(tasks, now);
    let done: BTreeSet<TaskId> = tasks
        .iter()
        .filter(|task| task.status == TaskStatus::Completed)
        .map(|task| task.id)
        .collect();
    for (n, task) in tasks.iter_mut().enumerate() {
        if task.status == TaskStatus::Waiting && task.depends_on.iter().all(|id| done.contains(id))
        {
            task.status = TaskStatus::Queued;
            changed.push(n);
        }
    }
    changed
}

/// Fails the waiting tasks with a dependency that did not succeed, and queues none. Returns the
/// positions of the tasks that failed.
pub fn fail_dependants(tasks: &mut [Task], now: DateTime<Utc>) -> Vec<usize> {
    let mut changed = Vec::new();
    loop {
        let states: BTreeMap<_, _> = tasks.iter().map(|task| (task.id, task.status)).collect();
        let next = tasks.iter_mut().enumerate().find_map(|(n, task)| {
            if task.status != TaskStatus::Waiting {
                return None;
            }
            let state = |id| states.get(id).copied().unwrap_or(TaskStatus::Failed);
            let broken = task
                .depends_on
                .iter()
                .find(|id| matches!(state(id), TaskStatus::Failed | TaskStatus::Cancelled))?;
            task.status = TaskStatus::Failed;
            task.completed_at = Some(now);
            let detail = format!("task {broken}, which it depends on, did not succeed");
            task.error = Some(TaskFailure::new(TaskFailureCode::DependencyFailed, detail));
            Some(n)
        });
        match next {
            Some(n) => changed.push(n),
            None => return changed,
        }
    }
}

#[cfg(test)]
mod tests;
