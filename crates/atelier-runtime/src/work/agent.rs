//! An agent's work on a task: ask its model, make the calls that the model wants, and continue with
//! their results.

use super::{
    AgentServices, Allowance, Job, ProjectSettings,
    known_checksums::KnownChecksums,
    prompt,
    tools::{self, ADD_CONTEXT, tool},
};
use crate::{Error, LoadedAgent, OwnFiles, Result, WorkerSpace, gate::count_call, own_files};
use atelier_core::{
    CallId, Client, Conversation, Project, Task, TaskFailure, TaskFailureCode, TaskStatus,
    WorkspaceKind,
    gate::{AskedBy, GatedCall, NewCall},
    policy::Policy,
    task::{Step, StepCall, StepResult},
};
use atelier_model::{Answer, CallRequest, Finish, Model, Request, ToolSchema};
use atelier_store::{
    AgentRef, Error as StoreError, Owned, OwnedConversation, TaskAnswer, TaskLease,
};
use futures::future::OptionFuture;
use serde_json::{Map, Value};
use std::{collections::HashMap, sync::Arc, time::Duration};
use uuid::Uuid;

/// The most tool calls that a model may ask for in one step.
const MAX_CALLS: usize = 128;

/// What the steps of an agent depend on.
struct StepContext {
    agent: Arc<LoadedAgent>,
    project: Project,
    allowance: Allowance,
    tools: Arc<[ToolSchema]>,
    client: Option<Client>,
    /// The conversation, if the agent may use its files.
    files: Option<(OwnedConversation, Conversation)>,
    /// The rules for the conversation's own files.
    own_files: Arc<Policy>,
}

/// What happens after a step.
enum AfterStep {
    /// The agent takes another step. The journal now contains this one.
    TakeAnother(Step),
    /// The task ended or was parked. These tasks were leased in exchange.
    Leave(Vec<TaskLease>),
}

impl AgentServices {
    /// Asks the model until it gives an answer, or calls that have to wait for a person or a
    /// machine.
    pub(super) async fn work_as_agent(
        &self,
        job: Job<'_>,
        space: &WorkerSpace,
    ) -> Result<Vec<TaskLease>> {
        let Job { lease, .. } = job;
        let mut task = lease.task.clone();
        let context = match self.step_context(lease, space).await? {
            Ok(context) => context,
            Err(why) => return job.finish(self, task, None, Err(why)).await,
        };
        // Memory is read once for all steps, because the task stays the same.
        let memory = self.recall(&context.agent, &task).await;
        let retrieval = self.memory.report_retrieval(
            &lease.owned,
            context.agent.id,
            task.id,
            &lease.task.description,
            &memory,
        );
        let mut report = Some(retrieval);
        let opening = self.opening_request(&lease.owned, &context, &task, &memory.text).await?;
        let mut steps = if task.steps > 0 {
            self.store.steps(&lease.owned, task.id).await?
        } else {
            Vec::new()
        };
        loop {
            let model = match self.model_within_limits(lease, &task, &context).await? {
                Ok(model) => model,
                Err(why) => return job.finish(self, task, None, Err(why)).await,
            };
            let calls = self.settled_calls(&lease.owned, &steps).await?;
            let request = self.step_request(&context, &opening, &model, &steps, &calls).await;
            let time = context.allowance.limits.time_left(&task);
            // The model does not wait until the retrieval is reported.
            let (answered, _) = tokio::join!(
                self.ask(job, &mut task, &model, &request, time),
                OptionFuture::from(report.take())
            );
            job.request.progress(Duration::ZERO);
            let (answer, step) = match answered {
                Ok(answered) => answered,
                Err(why) => return job.no_answer(self, task, why).await,
            };
            let after = match answer.calls.is_empty() {
                true => self.finish_or_ask_again(job, &task, &model, &steps, step, &answer).await?,
                false => {
                    let known = KnownChecksums::on_machine(&steps, &calls);
                    let sorted = self.sort_calls(lease, &context, step, answer, &known);
                    self.make_calls(job, &task, &context, &steps, sorted).await?
                }
            };
            match after {
                AfterStep::TakeAnother(step) => steps.push(step),
                AfterStep::Leave(leases) => return Ok(leases),
            }
        }
    }

    /// The agent's model, or the limit or configuration error that keeps the task from asking it.
    async fn model_within_limits(
        &self,
        lease: &TaskLease,
        task: &Task,
        context: &StepContext,
    ) -> Result<Result<Model, TaskFailure>> {
        match self.limit_reached(&lease.owned, task, &context.allowance).await? {
            Some(limit) => Ok(Err(limit)),
            None => Ok(self.model(lease, &context.agent.config.model).await),
        }
    }

    /// The request of one step: the opening, the conversation's files, and the steps so far, cut to
    /// the model's window.
    async fn step_request(
        &self,
        context: &StepContext,
        opening: &Request,
        model: &Model,
        steps: &[Step],
        calls: &HashMap<CallId, GatedCall>,
    ) -> Request {
        let mut request = opening.clone();
        if let Some((conversation, _)) = &context.files {
            request.system.push_str("\n\n");
            request.system.push_str(&self.files_context(&context.project, conversation).await);
        }
        request.messages.extend(prompt::journal(steps, calls));
        prompt::fit(&mut request, model.context_window(), context.agent.config.max_tokens);
        request
    }

    /// Ends the task with the model's text. A model that returned nothing is asked once more.
    async fn finish_or_ask_again(
        &self,
        job: Job<'_>,
        task: &Task,
        model: &Model,
        steps: &[Step],
        step: Step,
        answer: &Answer,
    ) -> Result<AfterStep> {
        let was_empty_before = steps.last().is_some_and(Step::is_empty);
        if step.is_empty() && answer.finish == Finish::Stop && !was_empty_before {
            self.store.record_step(job.lease, task.clone(), step.clone()).await?;
            return Ok(AfterStep::TakeAnother(step));
        }
        let outcome = final_message(answer, model.name());
        Ok(AfterStep::Leave(job.finish(self, task.clone(), Some(step), outcome).await?))
    }

    /// Makes the calls of a step. Calls on memory and on the conversation's files run here; if
    /// there are calls for the gate, the task is parked until they are settled.
    async fn make_calls(
        &self,
        job: Job<'_>,
        task: &Task,
        context: &StepContext,
        steps: &[Step],
        sorted: SortedCalls,
    ) -> Result<AfterStep> {
        let SortedCalls { mut step, gated, on_files, on_memory } = sorted;
        let writes_memory =
            on_memory.iter().any(|(index, _)| tool(&step.calls[*index].name) == ADD_CONTEXT);
        if writes_memory || !on_files.is_empty() {
            // Recorded before any of the calls has an effect.
            self.store.record_step(job.lease, task.clone(), step.clone()).await?;
        }
        for (index, params) in on_memory {
            let call = &mut step.calls[index];
            call.result =
                Some(self.use_context(job.lease, &context.agent, tool(&call.name), params).await?);
        }
        if let (Some(conversation), false) = (&context.files, on_files.is_empty()) {
            let known = KnownChecksums::in_conversation(steps);
            let project = &context.project;
            self.run_on_own_files(project, conversation, &mut step, on_files, known).await;
        }
        if gated.is_empty() {
            // Every call has its result, so the model can continue immediately.
            self.store.record_step(job.lease, task.clone(), step.clone()).await?;
            return Ok(AfterStep::TakeAnother(step));
        }
        let calls = (self.gate.rules(), gated);
        match self.store.park(job.lease, task.clone(), step, calls, job.next).await? {
            Ok(parked) => {
                parked.verdicts.into_iter().for_each(count_call);
                self.gate.own_calls_handed_in();
                Ok(AfterStep::Leave(parked.leases))
            }
            Err(invalid) => {
                let why = TaskFailure::new(TaskFailureCode::InvalidSettings, invalid.to_string());
                Ok(AfterStep::Leave(job.finish(self, task.clone(), None, Err(why)).await?))
            }
        }
    }

    async fn step_context(
        &self,
        lease: &TaskLease,
        space: &WorkerSpace,
    ) -> Result<Result<StepContext, TaskFailure>> {
        let Some(agent) = lease.task.agent_id else {
            return Ok(Err(TaskFailure::new(TaskFailureCode::NoAgent, "the task has no agent")));
        };
        let agent = match space.agent(&AgentRef::Id(agent)).await {
            Err(Error::Store(StoreError::NotFound)) => {
                return Ok(Err(TaskFailure::new(
                    TaskFailureCode::AgentDeleted,
                    "the agent was deleted",
                )));
            }
            agent => agent?,
        };
        let project = self.store.project(&lease.owned).await?;
        let settings = match ProjectSettings::of(&project.settings) {
            Ok(settings) => settings,
            Err(invalid) => {
                return Ok(Err(TaskFailure::new(
                    TaskFailureCode::InvalidSettings,
                    invalid.to_string(),
                )));
            }
        };
        let mut allowance = Allowance::of(&self.settings, &settings);
        allowance.limits = allowance.limits.and(agent.config.limits);
        let client = self.store.clients(&lease.owned).await?.into_iter().next();
        let files = self.store.conversation(&lease.owned, lease.task.session_id).await?;
        let files = Some(files).filter(|(_, conversation)| conversation.workspace_enabled);
        let tools = tools::offered(&agent.config, project.workspace, files.is_some());
        let own_files = match self.gate.own_files_policy(&project) {
            Ok(policy) => policy,
            Err(invalid) => {
                return Ok(Err(TaskFailure::new(
                    TaskFailureCode::InvalidSettings,
                    invalid.to_string(),
                )));
            }
        };
        Ok(Ok(StepContext { tools, agent, project, allowance, client, files, own_files }))
    }

    /// What the model gets before the agent's own steps: instructions, memory, conversation and
    /// task.
    async fn opening_request(
        &self,
        owned: &Owned,
        context: &StepContext,
        task: &Task,
        memory: &str,
    ) -> Result<Request> {
        let config = &context.agent.config;
        let (client, own_files) = (context.client.as_ref(), context.files.is_some());
        let mut system =
            prompt::system(config, &context.project, client, own_files, &context.tools);
        let history = self.history(owned, task).await?;
        let plan_tasks = match task.plan_id {
            None => Vec::new(),
            Some(plan) => self.store.plan(owned, plan).await?.1,
        };
        let dependencies: Vec<&Task> = plan_tasks
            .iter()
            .filter(|other| {
                task.depends_on.contains(&other.id) && other.status == TaskStatus::Completed
            })
            .collect();
        if !memory.is_empty() {
            system.push_str("\n\n");
            system.push_str(memory);
        }
        Ok(Request {
            system,
            messages: prompt::conversation(&history, task, &dependencies),
            tools: context.tools.clone(),
            temperature: Some(config.temperature as f32),
            max_tokens: Some(config.max_tokens),
            format: None,
        })
    }

    /// The calls of earlier steps that went through the gate, by their ids.
    async fn settled_calls(
        &self,
        owned: &Owned,
        steps: &[Step],
    ) -> Result<HashMap<CallId, GatedCall>> {
        let calls = self.store.calls_of(owned, steps).await?;
        Ok(calls.into_iter().map(|call| (call.tool_id, call)).collect())
    }

    /// Sorts the calls that the model wants: calls for the gate, calls that run on the server, and
    /// invalid calls, which get an error as their result.
    fn sort_calls(
        &self,
        lease: &TaskLease,
        context: &StepContext,
        mut step: Step,
        answer: Answer,
        known: &KnownChecksums,
    ) -> SortedCalls {
        let (mut gated, mut on_files, mut on_memory) = (Vec::new(), Vec::new(), Vec::new());
        let total = answer.calls.len();
        let cut_at = (answer.finish == Finish::Length).then_some(context.agent.config.max_tokens);
        // One call more than allowed is kept, to tell the model that there were too many.
        for call in answer.calls.into_iter().take(MAX_CALLS + 1) {
            let name = tool(&call.name);
            let index = step.calls.len();
            let parsed = match index < MAX_CALLS {
                true => parse_arguments(&call, &context.tools, cut_at),
                false => Err(format!(
                    "A step may make at most {MAX_CALLS} calls: this one and the {} after it were \
                     not made",
                    total - MAX_CALLS - 1
                )),
            };
            let parsed = parsed.and_then(|mut params| {
                let target = context.target(name, &mut params)?;
                Ok((target, params))
            });
            let result = match parsed {
                Ok((target, mut params)) => {
                    match target {
                        CallTarget::Memory => on_memory.push((index, params)),
                        CallTarget::Workspace(WorkspaceKind::Conversation) => {
                            match context.asked_about(name, &params, &self.own_files) {
                                Some(params) => gated.push(new_call(
                                    lease,
                                    name,
                                    params,
                                    WorkspaceKind::Conversation,
                                )),
                                None => on_files.push((index, params)),
                            }
                        }
                        CallTarget::Workspace(WorkspaceKind::Client) => {
                            known.add_expected_checksum(name, &mut params);
                            let params = Value::Object(params);
                            gated.push(new_call(lease, name, params, WorkspaceKind::Client));
                        }
                    }
                    None
                }
                Err(why) => Some(StepResult::error(why)),
            };
            let CallRequest { id, name, arguments } = call;
            step.calls.push(StepCall { id, name, arguments, tool_id: None, result });
        }
        let runs_here =
            |index: usize| on_files.iter().chain(&on_memory).any(|(other, _)| *other == index);
        let for_the_gate = step
            .calls
            .iter_mut()
            .enumerate()
            .filter(|(index, call)| call.result.is_none() && !runs_here(*index));
        for ((_, call), new) in for_the_gate.zip(&gated) {
            call.tool_id = Some(new.id);
        }
        SortedCalls { step, gated, on_files, on_memory }
    }
}

/// A call of a task for the gate.
fn new_call(lease: &TaskLease, name: &str, params: Value, workspace: WorkspaceKind) -> NewCall {
    NewCall {
        id: CallId(Uuid::now_v7()),
        tool_name: name.to_owned(),
        tool_params: params,
        workspace,
        agent_id: lease.task.agent_id,
        session_id: Some(lease.task.session_id),
        task_id: Some(lease.task.id),
        asked_by: AskedBy::Owner,
        requested_by: None,
    }
}

/// The calls of a step, by where they run.
struct SortedCalls {
    step: Step,
    /// Calls for the gate.
    gated: Vec<NewCall>,
    /// Calls on the conversation's files: their index in the step, and their arguments.
    on_files: Vec<(usize, Map<String, Value>)>,
    /// Calls on the agent's memory: their index in the step, and their arguments.
    on_memory: Vec<(usize, Map<String, Value>)>,
}

/// What a call acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallTarget {
    /// The agent's own memory.
    Memory,
    Workspace(WorkspaceKind),
}

impl StepContext {
    /// The parameters of a call on the conversation's own files, in their canonical form, if a
    /// person has to be asked about it. `None` if it runs, or is refused, without a question.
    fn asked_about(
        &self,
        tool: &str,
        params: &Map<String, Value>,
        files: &OwnFiles,
    ) -> Option<Value> {
        let (_, conversation) = self.files.as_ref()?;
        let roots = own_files::roots(&files.files.folder(conversation.id));
        let params = Value::Object(params.clone());
        let (call, judgement) = self.own_files.judge_request(tool, params, &roots);
        let call = call.ok().filter(|_| judgement.verdict.needs_approval())?;
        Some(call.into_params())
    }

    /// What a call acts on, or the error for the model. Removes the argument that says so.
    fn target(&self, tool: &str, params: &mut Map<String, Value>) -> Result<CallTarget, String> {
        if tools::is_about_memory(tool) {
            return Ok(CallTarget::Memory);
        }
        let asked = params.remove(tools::WORKSPACE);
        if tool == tools::PRESENT {
            return Ok(CallTarget::Workspace(WorkspaceKind::Conversation));
        }
        target_workspace(asked, self.project.workspace, self.files.is_some())
            .map(CallTarget::Workspace)
    }
}

/// The workspace that a file tool acts on. An agent that names a workspace must get that one or an
/// error: the same call in the other one could overwrite the wrong file.
fn target_workspace(
    asked: Option<Value>,
    of_project: WorkspaceKind,
    has_conversation_files: bool,
) -> Result<WorkspaceKind, String> {
    let Some(asked) = asked.filter(|asked| !asked.is_null()) else { return Ok(of_project) };
    match serde_json::from_value(asked.clone()) {
        Ok(WorkspaceKind::Conversation) if !has_conversation_files => {
            Err("This conversation has no files: leave out `workspace`".into())
        }
        Ok(WorkspaceKind::Client) if of_project == WorkspaceKind::Conversation => {
            Err("This project has no machine: leave out `workspace`".into())
        }
        Ok(workspace) => Ok(workspace),
        Err(_) => Err(format!("`workspace` must be \"client\" or \"conversation\", not {asked}")),
    }
}

/// The arguments of a call, or the error for the model. `cut_at` is the `max_tokens` that the
/// answer reached.
fn parse_arguments(
    call: &CallRequest,
    tools: &[ToolSchema],
    cut_at: Option<u32>,
) -> Result<Map<String, Value>, String> {
    let name = tool(&call.name);
    if !tools.iter().any(|tool| tool.name == name) {
        let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        return Err(format!(
            "There is no tool {:?}. The tools are {}",
            call.name,
            known.join(", ")
        ));
    }
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err("The arguments must be a JSON object".into()),
        Err(error) => Err(match cut_at {
            Some(most) if error.is_eof() => format!(
                "This call was cut off and not made, because your answer reached max_tokens \
                 ({most}). Write in \
                 smaller parts, one in each step"
            ),
            _ => format!("The arguments are not JSON: {error}"),
        }),
    }
}

/// The answer of a task, from the model's last text.
pub(super) fn final_message(answer: &Answer, model: &str) -> Result<TaskAnswer, TaskFailure> {
    let text = match answer.finish {
        Finish::Stop | Finish::Calls if answer.text.trim().is_empty() => {
            return Err(TaskFailure::new(
                TaskFailureCode::ModelSaidNothing,
                "the model returned an empty answer",
            ));
        }
        Finish::Filtered => {
            let detail = match answer.text.as_str() {
                "" => "the provider withheld the model's answer".to_owned(),
                text => format!("the provider withheld the model's answer after: {text}"),
            };
            return Err(TaskFailure::new(TaskFailureCode::ModelFiltered, detail));
        }
        Finish::Length => {
            format!("{}\n\n(The answer was cut off at the agent's max_tokens.)", answer.text)
        }
        Finish::Stop | Finish::Calls => answer.text.clone(),
    };
    Ok(TaskAnswer { text, model: Some(model.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::target_workspace;
    use atelier_core::WorkspaceKind::{self, Client, Conversation};
    use serde_json::{Value, json};

    #[test]
    fn a_call_acts_on_the_workspace_that_it_names_or_on_none() {
        let cases: [(Option<Value>, WorkspaceKind, bool, Option<WorkspaceKind>); 10] = [
            (None, Client, true, Some(Client)),
            (None, Conversation, true, Some(Conversation)),
            (Some(json!(null)), Client, true, Some(Client)),
            (Some(json!("client")), Client, true, Some(Client)),
            (Some(json!("conversation")), Client, true, Some(Conversation)),
            (Some(json!("conversation")), Conversation, true, Some(Conversation)),
            (Some(json!("conversation")), Client, false, None),
            (Some(json!("client")), Conversation, true, None),
            (Some(json!("Conversation")), Client, true, None),
            (Some(json!(["conversation"])), Client, true, None),
        ];
        for (asked, of_project, has_files, target) in cases {
            let found = target_workspace(asked.clone(), of_project, has_files);
            assert_eq!(found.ok(), target, "{asked:?} in {of_project:?}, {has_files}");
        }
    }
}
