//! What `atelier chat` asks of the server: one conversation, and the work that a message sets going.

use crate::{
    error::{Error, Result},
    project::{PlanDetails, ProjectApi},
    sse::Stream,
};
use atelier_core::{
    Conversation, ConversationId, Message, MessageRole, PlanId, PlanStatus, Task, TaskFailure, TaskId,
    TaskStatus, Usage,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) struct Room {
    pub(crate) project: Arc<ProjectApi>,
    pub(crate) session: ConversationId,
}

/// What a message has set going.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Work {
    pub(crate) task_id: TaskId,
    pub(crate) plan_id: Option<PlanId>,
}

/// How the work stands, or how it ended.
pub(crate) struct Standing {
    pub(crate) settled: bool,
    pub(crate) completed: bool,
    pub(crate) error: Option<TaskFailure>,
    pub(crate) steps: u32,
    pub(crate) usage: Usage,
    pub(crate) cost: f64,
}

#[derive(Deserialize)]
struct Messages {
    messages: Vec<Message>,
    total: usize,
}

impl Room {
    pub(crate) async fn open(project: Arc<ProjectApi>, session: Option<&str>) -> Result<Self> {
        let sessions = project.path("chat/sessions");
        let conversation: Conversation = match session {
            Some(id) => project.api.get(&format!("{sessions}/{id}")).await?,
            None => project.api.post(&sessions, &json!({})).await?,
        };
        Ok(Self { session: conversation.id, project })
    }

    pub(crate) async fn events(&self, after: Option<&str>) -> Result<Stream> {
        self.project.events(&format!("chat/{}/events", self.session), after).await
    }

    pub(crate) async fn say(&self, content: &str, agent: Option<&str>) -> Result<Work> {
        let body = json!({"content": content, "target_agent": agent});
        let path = self.project.path(&format!("chat/{}/message", self.session));
        self.project.api.post(&path, &body).await
    }

    /// The plan where there is one, with all its tasks; the task otherwise.
    fn path(&self, work: Work) -> String {
        self.project.path(&match work.plan_id {
            Some(plan) => format!("plans/{plan}"),
            None => format!("tasks/{}", work.task_id),
        })
    }

    pub(crate) async fn standing(&self, work: Work) -> Result<Standing> {
        let Some(plan) = work.plan_id else {
            let task: Task = self.project.api.get(&self.path(work)).await?;
            return Ok(Standing {
                settled: task.status.is_settled(),
                completed: task.status == TaskStatus::Completed,
                error: task.error,
                steps: task.steps,
                usage: task.usage,
                cost: task.cost,
            });
        };
        let PlanDetails { plan, tasks } = self.project.plan(plan).await?;
        let failed = tasks.iter().find_map(|task| task.error.clone());
        Ok(Standing {
            settled: plan.status.is_settled(),
            completed: plan.status == PlanStatus::Completed,
            error: plan.error.or(failed),
            steps: tasks.iter().map(|task| task.steps).sum(),
            usage: Usage {
                input_tokens: tasks.iter().map(|task| task.usage.input_tokens).sum(),
                output_tokens: tasks.iter().map(|task| task.usage.output_tokens).sum(),
            },
            cost: tasks.iter().map(|task| task.cost).sum(),
        })
    }

    /// Whole, as events do not tell it when it is long. It is among the last of the conversation.
    pub(crate) async fn answer(&self, work: Work) -> Result<Option<Message>> {
        let path = self.project.path(&format!("chat/sessions/{}/messages", self.session));
        let Messages { total, .. } = self.project.api.get(&format!("{path}?limit=1")).await?;
        let offset = total.saturating_sub(100);
        let last: Messages = self.project.api.get(&format!("{path}?limit=1000&offset={offset}")).await?;
        let ours = |message: &Message| match work.plan_id {
            Some(plan) => message.plan_id == Some(plan),
            None => message.task_id == Some(work.task_id),
        };
        let said = |message: &Message| message.role == MessageRole::Assistant && ours(message);
        Ok(last.messages.into_iter().rev().find(said))
    }

    pub(crate) async fn cancel(&self, work: Work) -> Result<()> {
        match self.project.api.post::<Value>(&format!("{}/cancel", self.path(work)), &json!({})).await {
            // It ended by itself meanwhile.
            Err(Error::Refused { status: 409, .. }) => Ok(()),
            other => other.map(drop),
        }
    }
}
