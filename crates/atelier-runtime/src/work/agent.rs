//! One agent's part: ask its model, hand its calls to the gate, go on with what came of them.

use super::{
    AgentServices, Allowance, Job, ProjectSettings,
    known_checksums::KnownChecksums,
    prompt,
    tools::{self, ADD_CONTEXT, tool},
};
use crate::{Ask, Error, Result, WorkerSpace};
use atelier_core::{
    Agent, Conversation, Project, Task, TaskFailure, TaskStatus, WorkspaceKind,
    gate::GatedCall,
    task::{Step, StepCall, StepResult},
};
use atelier_model::{Answer, CallRequest, Finish, Request, ToolSchema};
use atelier_store::{AgentRef, Client, Error as StoreError, NewCall, Owned, TaskAnswer, TaskLease};
use futures::future::OptionFuture;
use serde_json::{Map, Value};
use std::{collections::HashMap, sync::Arc};

/// The most tool calls that a model may ask for in one step.
const MAX_CALLS: usize = 128;

/// Everything a step of an agent goes by.
struct StepContext {
    agent: Arc<Agent>,
    project: Project,
    allowance: Allowance,
    tools: Arc<[ToolSchema]>,
    client: Option<Client>,
    /// Where the agent may use the conversation's own files.
    files: Option<Conversation>,
}

impl AgentServices {
    pub(super) async fn work_as_agent(&self, job: Job<'_>) -> Result<Vec<TaskLease>> {
        let owned = &job.claim.owned;
        let what = format!("task {}", job.claim.task.id);
        // Held for as long as it works: the space is in use, and what hangs in it is seen.
        let (space, _turn) = self.spaces.begin(owned.owner, owned.project, &what).await?;
        self.take_steps(job, &space).await
    }

    /// Asks the model until it has an answer, or calls that somebody else has to settle.
    async fn take_steps(&self, job: Job<'_>, space: &WorkerSpace) -> Result<Vec<TaskLease>> {
        let claim = job.claim;
        let mut task = claim.task.clone();
        let context = match self.step_context(claim, space).await? {
            Ok(context) => context,
            Err(why) => return job.finish(self, task, None, Err(why)).await,
        };
        // Once for the steps that follow each other here: what they are about does not change in between.
        let memory = self.recall(&context.agent, &task).await;
        let mut telling = Some(self.memory.report_retrieval(
            &claim.owned,
            context.agent.id,
            &claim.task.description,
            &memory,
        ));
        let opening = self.request(&claim.owned, &context, &task, &memory.text).await?;
        let mut steps =
            if task.steps > 0 { self.store.steps(&claim.owned, task.id).await? } else { Vec::new() };
        loop {
            if let Some(reached) = self.limit_reached(&claim.owned, &task, &context.allowance).await? {
                return job.finish(self, task, None, Err(reached)).await;
            }
            let model = match self.model(claim, &context.agent.config.model).await {
                Ok(model) => model,
                Err(why) => return job.finish(self, task, None, Err(why)).await,
            };
            let calls = self.settled_calls(&claim.owned, &steps).await?;
            let mut request = opening.clone();
            if let Some(conversation) = &context.files {
                request.system.push_str("\n\n");
                request.system.push_str(&self.files_context(claim, &context.project, conversation).await);
            }
            request.messages.extend(prompt::journal(&steps, &calls));
            prompt::fit(&mut request, model.context_window(), context.agent.config.max_tokens);
            let time = context.allowance.limits.time_left(&task);
            // The model need not wait until it is written down what it was reminded of.
            let (answered, _) = tokio::join!(
                self.ask(job, &mut task, &model, &request, time),
                OptionFuture::from(telling.take())
            );
            let (answer, step) = match answered {
                Ok(answered) => answered,
                Err(why) => return job.no_answer(self, task, why).await,
            };
            if answer.calls.is_empty() {
                let silent_before = steps.last().is_some_and(Step::is_empty);
                if step.is_empty() && answer.finish == Finish::Stop && !silent_before {
                    // It may have more to say when it is asked once more.
                    self.store.record_step(claim, task.clone(), step.clone()).await?;
                    steps.push(step);
                    continue;
                }
                let outcome = final_message(&answer, model.name());
                return job.finish(self, task, Some(step), outcome).await;
            }
            let SortedCalls { mut step, asked, here, recalls } =
                self.sort_calls(claim, &context, step, answer, &KnownChecksums::on_machine(&steps, &calls));
            let notes = recalls.iter().any(|(place, _)| tool(&step.calls[*place].name) == ADD_CONTEXT);
            if notes || !here.is_empty() {
                // Before anything of it is done.
                self.store.record_step(claim, task.clone(), step.clone()).await?;
            }
            for (place, params) in recalls {
                let call = &mut step.calls[place];
                call.result = Some(self.use_context(claim, tool(&call.name), params).await?);
            }
            if let (Some(conversation), false) = (&context.files, here.is_empty()) {
                let known = KnownChecksums::in_conversation(&steps);
                self.run_on_own_files(claim, &context.project, conversation, &mut step, here, known).await;
            }
            if !asked.is_empty() {
                return match self.store.park(claim, task.clone(), step, asked, job.next).await? {
                    Ok(claims) => Ok(claims),
                    Err(invalid) => {
                        let why = TaskFailure::new("invalid_settings", invalid.to_string());
                        job.finish(self, task, None, Err(why)).await
                    }
                };
            }
            // Nothing of it has left the server: the model hears at once what came of it.
            self.store.record_step(claim, task.clone(), step.clone()).await?;
            steps.push(step);
        }
    }

    async fn step_context(
        &self,
        claim: &TaskLease,
        space: &WorkerSpace,
    ) -> Result<Result<StepContext, TaskFailure>> {
        let Some(agent) = claim.task.agent_id else {
            return Ok(Err(TaskFailure::new("no_agent", "the task belongs to no agent")));
        };
        let agent = match space.agent(&AgentRef::Id(agent)).await {
            Err(Error::Store(StoreError::NotFound)) => {
                return Ok(Err(TaskFailure::new("agent_deleted", "the agent was deleted")));
            }
            agent => agent?,
        };
        let project = self.store.project(&claim.owned).await?;
        let settings = match ProjectSettings::of(&project.settings) {
            Ok(settings) => settings,
            Err(invalid) => return Ok(Err(TaskFailure::new("invalid_settings", invalid.to_string()))),
        };
        let mut allowance = Allowance::of(&self.settings, &settings);
        allowance.limits = allowance.limits.and(agent.config.limits);
        let client = self.store.clients(&claim.owned).await?.into_iter().next();
        let conversation = self.store.conversation(&claim.owned, claim.task.session_id).await?;
        let files = conversation.workspace_enabled.then_some(conversation);
        let tools = tools::offered(&agent.config, project.workspace, files.is_some());
        Ok(Ok(StepContext { tools, agent, project, allowance, client, files }))
    }

    /// What the agent is told before its own steps.
    async fn request(
        &self,
        owned: &Owned,
        context: &StepContext,
        task: &Task,
        memory: &str,
    ) -> Result<Request> {
        let config = &context.agent.config;
        let mut system = prompt::system(config, &context.project, context.client.as_ref());
        let history = self.history(owned, task).await?;
        let done = match task.plan_id {
            None => Vec::new(),
            Some(plan) => self.store.plan(owned, plan).await?.1,
        };
        let done: Vec<&Task> = done
            .iter()
            .filter(|other| task.depends_on.contains(&other.id) && other.status == TaskStatus::Completed)
            .collect();
        if !memory.is_empty() {
            system.push_str("\n\n");
            system.push_str(memory);
        }
        Ok(Request {
            system,
            messages: prompt::conversation(&history, task, &done),
            tools: context.tools.clone(),
            temperature: Some(config.temperature as f32),
            max_tokens: Some(config.max_tokens),
            format: None,
        })
    }

    async fn settled_calls(
        &self,
        owned: &Owned,
        steps: &[Step],
    ) -> Result<HashMap<atelier_core::CallId, GatedCall>> {
        let calls = self.store.calls_of(owned, steps).await?;
        Ok(calls.into_iter().map(|call| (call.tool_id, call)).collect())
    }

    /// Sorts what the model asks for into what the gate decides about, what is done here, and what cannot even be
    /// asked.
    fn sort_calls(
        &self,
        claim: &TaskLease,
        context: &StepContext,
        mut step: Step,
        answer: Answer,
        known: &KnownChecksums,
    ) -> SortedCalls {
        let (mut asks, mut here, mut recalls) = (Vec::new(), Vec::new(), Vec::new());
        let all = answer.calls.len();
        let cut_at = (answer.finish == Finish::Length).then_some(context.agent.config.max_tokens);
        // One more than may run, for the model to be told that there were too many.
        for call in answer.calls.into_iter().take(MAX_CALLS + 1) {
            let name = tool(&call.name);
            let place = step.calls.len();
            let parsed = match place < MAX_CALLS {
                true => parse_arguments(&call, &context.tools, cut_at),
                false => Err(format!(
                    "At most {MAX_CALLS} calls a step: this one and the {} after it were not made",
                    all - MAX_CALLS - 1
                )),
            };
            let result = match parsed {
                Ok(mut params) => {
                    if tools::is_about_memory(name) {
                        recalls.push((place, params));
                    } else if context.targets_conversation_files(name, &mut params) {
                        here.push((place, params));
                    } else {
                        known.add_expected_checksum(name, &mut params);
                        asks.push(Ask {
                            tool_name: name.to_owned(),
                            tool_params: Value::Object(params),
                            agent_id: claim.task.agent_id,
                            session_id: Some(claim.task.session_id),
                            task_id: Some(claim.task.id),
                        });
                    }
                    None
                }
                Err(why) => Some(StepResult::error(why)),
            };
            let CallRequest { id, name, arguments } = call;
            step.calls.push(StepCall { id, name, arguments, tool_id: None, result });
        }
        let asked = self.gate.of_task(&claim.owned, asks);
        let here_at = |place: usize| here.iter().chain(&recalls).any(|(at, _)| *at == place);
        let open = step
            .calls
            .iter_mut()
            .enumerate()
            .filter(|(place, call)| call.result.is_none() && !here_at(*place));
        for ((_, call), new) in open.zip(&asked) {
            call.tool_id = Some(new.id);
        }
        SortedCalls { step, asked, here, recalls }
    }
}

/// The calls of a step, by who settles them.
struct SortedCalls {
    step: Step,
    asked: Vec<NewCall>,
    /// Places in the step, with the arguments.
    here: Vec<(usize, Map<String, Value>)>,
    /// The same, for calls about the agent's own memory.
    recalls: Vec<(usize, Map<String, Value>)>,
}

impl StepContext {
    /// Whether a call is about the conversation's own files. What says so is taken out of its arguments.
    fn targets_conversation_files(&self, tool: &str, params: &mut Map<String, Value>) -> bool {
        let place = params.remove(tools::PLACE);
        let own = match self.project.workspace {
            WorkspaceKind::Conversation => true,
            WorkspaceKind::Client => place.is_some_and(|place| place == "conversation"),
        };
        self.files.is_some() && (own || tool == tools::PRESENT)
    }
}

/// The arguments of a call to a tool that there is, or what to tell the model. `cut_at` is the `max_tokens` that its answer
/// ran into.
fn parse_arguments(
    call: &CallRequest,
    tools: &[ToolSchema],
    cut_at: Option<u32>,
) -> Result<Map<String, Value>, String> {
    let name = tool(&call.name);
    if !tools.iter().any(|tool| tool.name == name) {
        let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        return Err(format!("There is no tool {:?}; there are {}", call.name, known.join(", ")));
    }
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err("The arguments have to be a JSON object".into()),
        Err(error) => Err(match cut_at {
            Some(most) if error.is_eof() => format!(
                "This call was cut off and not made, because your answer reached max_tokens ({most}). Write in \
                 smaller parts, one a step"
            ),
            _ => format!("The arguments are not JSON: {error}"),
        }),
    }
}

pub(super) fn final_message(answer: &Answer, model: &str) -> Result<TaskAnswer, TaskFailure> {
    let text = match answer.finish {
        Finish::Stop | Finish::Calls if answer.text.trim().is_empty() => {
            return Err(TaskFailure::new("model_said_nothing", "the model said nothing"));
        }
        Finish::Filtered => {
            let said = if answer.text.is_empty() { "nothing" } else { &answer.text };
            return Err(TaskFailure::new(
                "model_filtered",
                format!("the model held its answer back; it said {said}"),
            ));
        }
        Finish::Length => format!("{}\n\n(The answer was cut at the agent's max_tokens.)", answer.text),
        Finish::Stop | Finish::Calls => answer.text.clone(),
    };
    Ok(TaskAnswer { text, model: Some(model.to_owned()) })
}
