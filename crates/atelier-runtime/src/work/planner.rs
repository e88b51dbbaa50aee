//! The orchestrator: turns a message into a plan of tasks, and their results into one answer.

use super::{
    AgentServices, Allowance, Job, NoAnswer, ProjectSettings, agent::final_message, prompt,
};
use crate::Result;
use atelier_core::{
    Agent, Task, TaskFailure, TaskFailureCode, TaskKind, TaskStatus,
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
        let lease = job.lease;
        let mut task = lease.task.clone();
        let (agents, _) = self.store.agents(&lease.owned, 100, 0).await?;
        if agents.is_empty() {
            let why = TaskFailure::new(
                TaskFailureCode::NoAgents,
                "the project has no agents: create one first",
            );
            return job.finish(self, task, None, Err(why)).await;
        }
        let settings = match self.project_settings(lease).await? {
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
                let why = TaskFailure::new(TaskFailureCode::InvalidPlan, why);
                return job.finish(self, task, step, Err(why)).await;
            }
        };
        let ask = settings.planner.approve_above.is_some_and(|most| assigned.len() > most);
        Ok(self.store.finish_planning(lease, task, step, assigned, ask, job.next).await?)
    }

    async fn project_settings(
        &self,
        lease: &TaskLease,
    ) -> Result<Result<ProjectSettings, TaskFailure>> {
        let project = self.store.project(&lease.owned).await?;
        Ok(ProjectSettings::of(&project.settings).map_err(|invalid| {
            TaskFailure::new(TaskFailureCode::InvalidSettings, invalid.to_string())
        }))
    }

    /// Asks the model for a plan, and once more if the plan is not valid. Without a valid plan, the
    /// agent that fits best gets a single task.
    async fn propose(
        &self,
        job: Job<'_>,
        task: &mut Task,
        settings: &ProjectSettings,
        agents: &[Agent],
    ) -> Result<(Vec<ProposedTask>, Option<atelier_core::task::Step>), NoAnswer> {
        let (allowance, settings) = (Allowance::of(&self.settings, settings), &settings.planner);
        let model = self.model(job.lease, &settings.model).await?;
        let history = self.history(&job.lease.owned, task).await.map_err(unavailable)?;
        let mut request = Request {
            system: instructions(agents, settings.max_tasks),
            messages: prompt::conversation(&history, task, &[]),
            format: Some(JsonFormat { name: "plan".into(), schema: schema(agents) }),
            max_tokens: Some(4096),
            ..Request::default()
        };
        let mut is_first = true;
        for _ in 0..2 {
            match self
                .limit_reached(&job.lease.owned, task, &allowance)
                .await
                .map_err(unavailable)?
            {
                Some(reached) if is_first => return Err(reached.into()),
                Some(_) => break,
                None => {}
            }
            prompt::fit(&mut request, model.context_window(), 4096);
            let time = allowance.limits.time_left(task);
            let (answer, step) = self.ask(job, task, &model, &request, time).await?;
            let why = match serde_json::from_str::<Proposal>(without_code_block(&answer.text)) {
                Ok(Proposal { tasks }) => match check(&tasks, agents, settings.max_tasks) {
                    Ok(()) => return Ok((tasks, Some(step))),
                    Err(why) => why,
                },
                Err(error) => format!("it is not the required JSON: {error}"),
            };
            tracing::info!(task = %task.id, why, "the model's plan is not valid");
            // Recorded now, because the next proposal is another step of the task.
            let recorded = self.store.record_step(job.lease, task.clone(), step).await;
            recorded.map_err(|error| unavailable(error.into()))?;
            is_first = false;
            request.messages.push(Message::Assistant { text: answer.text, calls: Vec::new() });
            request
                .messages
                .push(Message::User(format!("That plan is not valid: {why}. Write another one.")));
        }
        let agent = best_match(agents, &task.description).map(|agent| agent.name.to_string());
        let single = ProposedTask {
            id: "1".into(),
            description: task.description.chars().take(10_000).collect(),
            agent: agent.unwrap_or_default(),
            depends_on: Vec::new(),
        };
        Ok((vec![single], None))
    }

    /// Writes the answer of a plan with several tasks.
    pub(super) async fn write_answer(&self, job: Job<'_>) -> Result<Vec<TaskLease>> {
        let mut task = job.lease.task.clone();
        let Some(plan) = task.plan_id else {
            let why = TaskFailure::new(TaskFailureCode::NoPlan, "the task has no plan");
            return job.finish(self, task, None, Err(why)).await;
        };
        let (_, tasks) = self.store.plan(&job.lease.owned, plan).await?;
        let (answer_text, step) = match self.summarise(job, &mut task, &tasks).await {
            Ok((answer_text, step)) => (answer_text, Some(step)),
            Err(NoAnswer::Interrupted) => return Ok(Vec::new()),
            // The work is done; only the summary is missing.
            Err(NoAnswer::Failed(why)) => {
                let text = format!(
                    "(No model could summarise the results: {})\n\n{}",
                    why.detail,
                    results("", &tasks, usize::MAX)
                );
                (TaskAnswer { text, model: None }, None)
            }
        };
        job.finish(self, task, step, Ok(answer_text)).await
    }

    async fn summarise(
        &self,
        job: Job<'_>,
        task: &mut Task,
        tasks: &[Task],
    ) -> Result<(TaskAnswer, atelier_core::task::Step), NoAnswer> {
        let settings = self.project_settings(job.lease).await.map_err(unavailable)??;
        let allowance = Allowance::of(&self.settings, &settings);
        if let Some(reached) =
            self.limit_reached(&job.lease.owned, task, &allowance).await.map_err(unavailable)?
        {
            return Err(reached.into());
        }
        let model = self.model(job.lease, &settings.planner.model).await?;
        let history = self.history(&job.lease.owned, task).await.map_err(unavailable)?;
        let asked = history.iter().rfind(|message| message.id == task.message_id);
        let asked = asked.map_or("", |message| message.content.as_str());
        // Each result gets the same share of the window, so that a long one does not displace the
        // others.
        let most = model.context_window() as usize * BYTES_PER_TOKEN / 2 / tasks.len().max(1);
        let mut request = Request {
            system: "You tell the user what came of their request. Answer from the results below, \
                 briefly, plainly \
                     and completely. Say what failed and why."
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

/// Assigns an agent to each task.
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
        "You split the user's request into tasks for the agents below. A small request is one \
         task. Use at most \
         {max_tasks} tasks, and as few as the request needs. Let a task depend on another only if \
         it needs the other \
         task's result, so that independent tasks run at the same time. Each description must be \
         complete: the agent \
         sees nothing else of the plan. Answer with JSON only.\n\nAgents:\n"
    );
    for agent in agents {
        let about = |key: &str| match agent.config.metadata.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(words)) => {
                words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
            }
            _ => String::new(),
        };
        // Writing to a String cannot fail.
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

/// Removes the code block that some models put around JSON.
fn without_code_block(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    inside.and_then(|rest| rest.strip_suffix("```")).unwrap_or(text).trim()
}

fn unavailable(error: crate::Error) -> TaskFailure {
    TaskFailure::new(TaskFailureCode::StoreUnavailable, error.to_string())
}

/// The result of each task, each cut to at most `most` bytes.
fn results(asked: &str, tasks: &[Task], most: usize) -> String {
    let mut text =
        if asked.is_empty() { String::new() } else { format!("The user asked: {asked}\n\n") };
    for task in tasks.iter().filter(|task| task.kind == TaskKind::Work) {
        let result = match (task.status, &task.result, &task.error) {
            (TaskStatus::Completed, Some(result), _) if result.len() > most => {
                prompt::cut(result, most)
            }
            (TaskStatus::Completed, Some(result), _) => result.clone(),
            (_, _, Some(error)) => format!("FAILED: {}", error.detail),
            (status, ..) => status.as_str().to_owned(),
        };
        let _ = write!(text, "## {}\n{result}\n\n", task.description);
    }
    text.trim_end().to_owned()
}
