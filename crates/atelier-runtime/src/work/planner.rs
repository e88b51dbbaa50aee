//! The orchestrator: a message becomes a graph of tasks, and their results become one answer.

use super::{AgentServices, Allowance, Job, NoAnswer, ProjectSettings, agent::final_message, prompt};
use crate::Result;
use atelier_core::{
    Agent, Task, TaskFailure, TaskKind, TaskStatus,
    plan::{ProposedTask, best_match, check, find_agent},
};
use atelier_model::{BYTES_PER_TOKEN, JsonFormat, Message, Request};
use atelier_store::{AssignedTask, TaskAnswer, TaskLease};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Deserialize)]
struct Proposal {
    tasks: Vec<ProposedTask>,
}

impl AgentServices {
    pub(super) async fn make_plan(&self, job: Job<'_>) -> Result<Vec<TaskLease>> {
        let claim = job.claim;
        let mut task = claim.task.clone();
        let (agents, _) = self.store.agents(&claim.owned, 100, 0).await?;
        if agents.is_empty() {
            let why = TaskFailure::new("no_agents", "the project has no agents: make one first");
            return job.finish(self, task, None, Err(why)).await;
        }
        let settings = match self.project_settings(claim).await? {
            Ok(settings) => settings,
            Err(why) => return job.finish(self, task, None, Err(why)).await,
        };
        let (tasks, step) = match self.propose(job, &mut task, &settings, &agents).await {
            Ok(proposed) => proposed,
            Err(why) => return job.no_answer(self, task, why).await,
        };
        let assigned = match assign(tasks, &agents, settings.planner.max_tasks) {
            Ok(assigned) => assigned,
            Err(why) => {
                let why = TaskFailure::new("invalid_plan", why);
                return job.finish(self, task, step, Err(why)).await;
            }
        };
        let ask = settings.planner.approve_above.is_some_and(|most| assigned.len() > most);
        Ok(self.store.finish_planning(claim, task, step, assigned, ask, job.next).await?)
    }

    async fn project_settings(&self, claim: &TaskLease) -> Result<Result<ProjectSettings, TaskFailure>> {
        let project = self.store.project(&claim.owned).await?;
        Ok(ProjectSettings::of(&project.settings)
            .map_err(|invalid| TaskFailure::new("invalid_settings", invalid.to_string())))
    }

    /// Asks for a plan, once more if it cannot be run; then one task for the agent that fits best will do.
    async fn propose(
        &self,
        job: Job<'_>,
        task: &mut Task,
        settings: &ProjectSettings,
        agents: &[Agent],
    ) -> Result<(Vec<ProposedTask>, Option<atelier_core::task::Step>), NoAnswer> {
        let (allowance, settings) = (Allowance::of(&self.settings, settings), &settings.planner);
        let model = self.model(job.claim, &settings.model).await?;
        let history = self.history(&job.claim.owned, task).await.map_err(unavailable)?;
        let mut request = Request {
            system: instructions(agents, settings.max_tasks),
            messages: prompt::conversation(&history, task, &[]),
            format: Some(JsonFormat { name: "plan".into(), schema: schema(agents) }),
            max_tokens: Some(4096),
            ..Request::default()
        };
        let mut said = None;
        for _ in 0..2 {
            match self.limit_reached(&job.claim.owned, task, &allowance).await.map_err(unavailable)? {
                Some(reached) if said.is_none() => return Err(reached.into()),
                Some(_) => break,
                None => {}
            }
            prompt::fit(&mut request, model.context_window(), 4096);
            let time = allowance.limits.time_left(task);
            let (answer, step) = self.ask(job, task, &model, &request, time).await?;
            said = Some(step);
            let why = match serde_json::from_str::<Proposal>(bare(&answer.text)) {
                Ok(Proposal { tasks }) => match check(&tasks, agents, settings.max_tasks) {
                    Ok(()) => return Ok((tasks, said)),
                    Err(why) => why,
                },
                Err(error) => format!("it is not the JSON that was asked for: {error}"),
            };
            tracing::info!(task = %task.id, why, "a plan was refused");
            request.messages.push(Message::Assistant { text: answer.text, calls: Vec::new() });
            request.messages.push(Message::User(format!("That plan cannot be run: {why}. Give another.")));
        }
        let agent = best_match(agents, &task.description).map(|agent| agent.name.to_string());
        let single = ProposedTask {
            id: "1".into(),
            description: task.description.chars().take(10_000).collect(),
            agent: agent.unwrap_or_default(),
            depends_on: Vec::new(),
        };
        Ok((vec![single], said))
    }

    /// The last step of a plan of several tasks.
    pub(super) async fn write_answer(&self, job: Job<'_>) -> Result<Vec<TaskLease>> {
        let mut task = job.claim.task.clone();
        let Some(plan) = task.plan_id else {
            let why = TaskFailure::new("no_plan", "an answer without a plan");
            return job.finish(self, task, None, Err(why)).await;
        };
        let (_, tasks) = self.store.plan(&job.claim.owned, plan).await?;
        let (spoken, step) = match self.sum_up(job, &mut task, &tasks).await {
            Ok((spoken, step)) => (spoken, Some(step)),
            Err(NoAnswer::Interrupted) => return Ok(Vec::new()),
            // The work is done; only the words for it are missing.
            Err(NoAnswer::Failed(why)) => {
                let text = format!(
                    "(No model could sum this up: {})\n\n{}",
                    why.detail,
                    results("", &tasks, usize::MAX)
                );
                (TaskAnswer { text, model: None }, None)
            }
        };
        job.finish(self, task, step, Ok(spoken)).await
    }

    async fn sum_up(
        &self,
        job: Job<'_>,
        task: &mut Task,
        tasks: &[Task],
    ) -> Result<(TaskAnswer, atelier_core::task::Step), NoAnswer> {
        let settings = self.project_settings(job.claim).await.map_err(unavailable)??;
        let allowance = Allowance::of(&self.settings, &settings);
        if let Some(reached) =
            self.limit_reached(&job.claim.owned, task, &allowance).await.map_err(unavailable)?
        {
            return Err(reached.into());
        }
        let model = self.model(job.claim, &settings.planner.model).await?;
        let history = self.history(&job.claim.owned, task).await.map_err(unavailable)?;
        let asked = history.iter().rfind(|said| said.id == task.message_id);
        let asked = asked.map_or("", |said| said.content.as_str());
        // Each gets its share of the window, so that none is cut for another's sake.
        let most = model.context_window() as usize * BYTES_PER_TOKEN / 2 / tasks.len().max(1);
        let mut request = Request {
            system:
                "You tell a person what came of what they asked for. Answer from the results below: short, \
                     plain, complete; say what failed and why."
                    .into(),
            messages: vec![Message::User(results(asked, tasks, most))],
            max_tokens: Some(4096),
            ..Request::default()
        };
        prompt::fit(&mut request, model.context_window(), 4096);
        let time = allowance.limits.time_left(task);
        let (answer, step) = self.ask(job, task, &model, &request, time).await?;
        Ok((final_message(&answer, model.name())?, step))
    }
}

/// Finds the agent of each task.
pub(super) fn assign(
    tasks: Vec<ProposedTask>,
    agents: &[Agent],
    max_tasks: usize,
) -> Result<Vec<AssignedTask>, String> {
    check(&tasks, agents, max_tasks)?;
    tasks
        .into_iter()
        .map(|proposed| {
            let agent = find_agent(agents, &proposed.agent)
                .ok_or_else(|| format!("there is no agent {:?}", proposed.agent))?;
            Ok(AssignedTask { agent_id: agent.id, agent_name: agent.name.clone(), proposed })
        })
        .collect()
}

fn instructions(agents: &[Agent], max_tasks: usize) -> String {
    let mut text = format!(
        "You split what a person asks for into tasks for the agents below. A small request is one task. Use at most \
         {max_tasks} tasks, and as few as the request needs. Tasks that do not need each other's results do not depend \
         on each other, so that they run at the same time. Each description stands by itself: the agent sees nothing \
         else of the plan. Answer with JSON only.\n\nAgents:\n"
    );
    for agent in agents {
        let about = |key: &str| match agent.config.metadata.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(words)) => {
                words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            _ => String::new(),
        };
        // Writing into a String does not fail.
        let _ = writeln!(text, "- {}: {}; {}", agent.name, about("role"), about("capabilities"));
    }
    text
}

fn schema(agents: &[Agent]) -> Value {
    let names: Vec<String> = agents.iter().map(|agent| agent.name.to_string()).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["tasks"],
        "properties": {"tasks": {"type": "array", "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["id", "description", "agent", "depends_on"],
            "properties": {
                "id": {"type": "string"},
                "description": {"type": "string"},
                "agent": {"type": "string", "enum": names},
                "depends_on": {"type": "array", "items": {"type": "string"}},
            },
        }}},
    })
}

/// JSON that a model has put into a code block all the same.
fn bare(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    inside.and_then(|rest| rest.strip_suffix("```")).unwrap_or(text).trim()
}

fn unavailable(error: crate::Error) -> TaskFailure {
    TaskFailure::new("store_unavailable", error.to_string())
}

/// What came of each task, in at most so many bytes.
fn results(asked: &str, tasks: &[Task], most: usize) -> String {
    let mut text = if asked.is_empty() { String::new() } else { format!("The person asked: {asked}\n\n") };
    for task in tasks.iter().filter(|task| task.kind == TaskKind::Work) {
        let came = match (task.status, &task.result, &task.error) {
            (TaskStatus::Completed, Some(result), _) if result.len() > most => prompt::cut(result, most),
            (TaskStatus::Completed, Some(result), _) => result.clone(),
            (_, _, Some(error)) => format!("FAILED: {}", error.detail),
            (status, ..) => status.as_str().to_owned(),
        };
        let _ = write!(text, "## {}\n{came}\n\n", task.description);
    }
    text.trim_end().to_owned()
}
