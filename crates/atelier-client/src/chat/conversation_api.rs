//! What `atelier chat` asks the server: one conversation, and the work that a message starts.

use crate::{error::Result, project::ProjectApi, sse::Stream};
use atelier_api::{
    chat::{Accepted, MessageList, NewMessage, NewSession},
    work::PlanDetails,
};
use atelier_core::{
    ApprovalId, Conversation, ConversationId, Message, MessageRole, PlanStatus, Task, TaskFailure,
    TaskId, TaskStatus, Usage, gate::GatedCall,
};
use serde_json::json;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct ConversationApi {
    pub(crate) project: Arc<ProjectApi>,
    pub(crate) id: ConversationId,
}

/// A question of a task that has run out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunOut {
    approval: ApprovalId,
    task: TaskId,
}

/// The state of the work, or how it ended.
#[derive(Default)]
pub(crate) struct WorkStatus {
    pub(crate) settled: bool,
    pub(crate) completed: bool,
    pub(crate) error: Option<TaskFailure>,
    pub(crate) steps: u32,
    pub(crate) usage: Usage,
    pub(crate) cost: f64,
}

impl ConversationApi {
    /// Opens the conversation with the given id, or starts a new one.
    pub(crate) async fn open(project: Arc<ProjectApi>, id: Option<&str>) -> Result<Self> {
        let path = project.path("chat/sessions");
        let conversation: Conversation = match id {
            Some(id) => project.api.get(&format!("{path}/{id}")).await?,
            None => project.api.post(&path, &NewSession::default()).await?,
        };
        Ok(Self { id: conversation.id, project })
    }

    pub(crate) async fn events(&self, cursor: Option<&str>) -> Result<Stream> {
        self.project.events(&format!("chat/{}/events", self.id), cursor).await
    }

    pub(crate) async fn send_message(
        &self,
        content: &str,
        agent: Option<&str>,
    ) -> Result<Accepted> {
        let message = NewMessage {
            content: content.to_owned(),
            target_agent: agent.map(str::to_owned),
            attachments: Vec::new(),
            priority: 0,
        };
        self.project
            .api
            .post(&self.project.path(&format!("chat/{}/message", self.id)), &message)
            .await
    }

    /// Asks again about a call of a task, whose question has run out. Returns the work that goes on
    /// with it.
    pub(crate) async fn ask_again(&self, RunOut { approval, task }: RunOut) -> Result<Accepted> {
        self.project.ask_again(approval).await?;
        self.work_of(task).await
    }

    /// The state of the work that a question belongs to.
    pub(crate) async fn status_of(&self, question: RunOut) -> Result<WorkStatus> {
        self.status(self.work_of(question.task).await?).await
    }

    async fn work_of(&self, task: TaskId) -> Result<Accepted> {
        let task: Task = self.project.api.get(&self.project.path(&format!("tasks/{task}"))).await?;
        Ok(Accepted { message_id: task.message_id, task_id: task.id, plan_id: task.plan_id })
    }

    /// The newest question of this conversation that has run out and was not asked again.
    pub(crate) async fn newest_run_out(&self) -> Result<Option<RunOut>> {
        let calls = self.project.run_out().await?;
        let fits = |call: &GatedCall| {
            call.session_id == Some(self.id) && call.has_run_out() && call.asked_again.is_none()
        };
        let mut fitting = calls.into_iter().filter(fits);
        Ok(fitting
            .find_map(|call| Some(RunOut { approval: call.approval_id?, task: call.task_id? })))
    }

    /// The path of the plan with all its tasks or, without a plan, of the task.
    fn path(&self, work: Accepted) -> String {
        self.project.path(&match work.plan_id {
            Some(plan) => format!("plans/{plan}"),
            None => format!("tasks/{}", work.task_id),
        })
    }

    pub(crate) async fn status(&self, work: Accepted) -> Result<WorkStatus> {
        let Some(plan) = work.plan_id else {
            let task: Task = self.project.api.get(&self.path(work)).await?;
            return Ok(WorkStatus {
                settled: task.status.is_settled(),
                completed: task.status == TaskStatus::Completed,
                error: task.error,
                steps: task.steps,
                usage: task.usage,
                cost: task.cost,
            });
        };
        let PlanDetails { plan, tasks } = self.project.plan(plan).await?;
        let first_failure = tasks.iter().find_map(|task| task.error.clone());
        Ok(WorkStatus {
            settled: plan.status.is_settled(),
            completed: plan.status == PlanStatus::Completed,
            error: plan.error.or(first_failure),
            steps: tasks.iter().map(|task| task.steps).sum(),
            usage: Usage {
                input_tokens: tasks.iter().map(|task| task.usage.input_tokens).sum(),
                output_tokens: tasks.iter().map(|task| task.usage.output_tokens).sum(),
            },
            cost: tasks.iter().map(|task| task.cost).sum(),
        })
    }

    /// The last messages of the conversation, oldest first.
    pub(crate) async fn last_messages(&self, most: i64) -> Result<Vec<Message>> {
        let path = self.project.path(&format!("chat/sessions/{}/messages", self.id));
        let MessageList { total, .. } = self.project.api.get(&format!("{path}?limit=1")).await?;
        let offset = (total - most).max(0);
        let last: MessageList =
            self.project.api.get(&format!("{path}?limit=1000&offset={offset}")).await?;
        Ok(last.messages)
    }

    /// The whole answer. Events shorten long messages. The answer is among the last messages of the
    /// conversation.
    pub(crate) async fn answer(&self, work: Accepted) -> Result<Option<Message>> {
        let is_answer = |message: &Message| {
            message.role == MessageRole::Assistant
                && match work.plan_id {
                    Some(plan) => message.plan_id == Some(plan),
                    None => message.task_id == Some(work.task_id),
                }
        };
        Ok(self.last_messages(100).await?.into_iter().rev().find(is_answer))
    }

    pub(crate) async fn cancel(&self, work: Accepted) -> Result<()> {
        match self.project.api.post_only(&format!("{}/cancel", self.path(work)), &json!({})).await {
            // The work ended by itself in the meantime.
            Err(error) if error.status() == Some(409) => Ok(()),
            other => other,
        }
    }
}
