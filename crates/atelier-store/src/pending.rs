//! Rows that a write wants and that its group writes.
//!
//! A trip to the database costs more than the row it carries. A deferred write therefore returns
//! its rows, and the group writes the rows of all its deferred writes in a few statements: before a
//! direct write of the group reads them, and before the commit. Adding a row here cannot fail.

use crate::{
    access::Owned,
    db::Conn,
    events::PendingEvent,
    feed::Wakeup,
    rows::{
        calls::{write_audit, write_calls, write_grants, write_withheld_calls},
        interactions::{PendingInteraction, PreparedInteraction, write_interactions},
        messages::{touch_conversations, write_messages},
        request_keys::{RequestKeyRow, write_request_keys},
        tasks::{TaskWrite, settle_call, write_plans, write_steps, write_tasks},
        usage::UsageRows,
    },
};
use atelier_core::{
    AgentId, CallId, ConversationId, Event, Message, NewInteraction, Plan, ProjectId, Task, TaskId,
    UserId,
    gate::{Audit, GatedCall, Grant},
    task::Step,
};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;

/// Rows that a write wants and that its group has not written yet.
#[derive(Default)]
pub(crate) struct PendingRows {
    pub(crate) plans: Vec<Plan>,
    pub(crate) tasks: Vec<TaskWrite>,
    pub(crate) messages: Vec<Message>,
    /// Steps by their number in their task.
    pub(crate) steps: Vec<(TaskId, u32, Step)>,
    /// Conversations that got a message, and when.
    pub(crate) touched: BTreeMap<ConversationId, DateTime<Utc>>,
    pub(crate) calls: BTreeMap<CallId, GatedCall>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) audit: Vec<(ProjectId, Audit)>,
    /// The task of each call that was settled, once for each call.
    pub(crate) settled_calls: Vec<TaskId>,
    /// Calls whose results may hold secrets, and the conversations that have seen them.
    pub(crate) withheld_calls: Vec<(CallId, ConversationId)>,
    pub(crate) request_keys: Vec<RequestKeyRow>,
    pub(crate) at_commit: CommitRows,
}

/// Rows that are written, and wakeups that are sent, with the commit. Nothing in the group reads
/// them.
#[derive(Default)]
pub(crate) struct CommitRows {
    pub(crate) events: Vec<PendingEvent>,
    pub(crate) interactions: Vec<PendingInteraction>,
    pub(crate) usage: UsageRows,
    pub(crate) wakeups: Vec<Wakeup>,
}

impl PendingRows {
    /// Appends an event to the log of a project.
    pub(crate) fn emit(&mut self, project: ProjectId, owner: UserId, event: &Event) {
        self.at_commit.events.push(PendingEvent::new(project, owner, event));
    }

    /// Sends a wakeup when the group is committed.
    pub(crate) fn wake(&mut self, wakeup: Wakeup) {
        self.at_commit.wakeups.push(wakeup);
    }

    /// Reports what a step of a task has used, and counts it.
    pub(crate) fn count_step(&mut self, owned: &Owned, task: &Task, step: &Step) {
        let used = Event::Usage {
            task_id: task.id,
            session_id: task.session_id,
            agent_id: task.agent_id,
            model: step.model.clone(),
            usage: step.usage,
            cost: step.cost,
        };
        self.emit(owned.project, owned.owner, &used);
        self.at_commit.usage.add_step(owned, task, step);
    }

    /// Adds an interaction to an agent's memory.
    pub(crate) fn remember(&mut self, owned: &Owned, agent: AgentId, new: NewInteraction) {
        let interaction = PreparedInteraction::new(new);
        let (project, owner) = (owned.project, owned.owner);
        self.at_commit.interactions.push(PendingInteraction { project, owner, agent, interaction });
    }

    /// Adds the rows of a later write.
    pub(crate) fn append(&mut self, later: PendingRows) {
        let PendingRows {
            plans,
            tasks,
            messages,
            steps,
            touched,
            calls,
            grants,
            audit,
            settled_calls,
            withheld_calls,
            request_keys,
            at_commit,
        } = later;
        self.plans.extend(plans);
        self.tasks.extend(tasks);
        self.messages.extend(messages);
        self.steps.extend(steps);
        self.touched.extend(touched);
        self.calls.extend(calls);
        self.grants.extend(grants);
        self.audit.extend(audit);
        self.settled_calls.extend(settled_calls);
        self.withheld_calls.extend(withheld_calls);
        self.request_keys.extend(request_keys);
        self.at_commit.append(at_commit);
    }

    /// Writes the rows, and returns those that wait for the commit.
    pub(crate) async fn write(self, conn: &mut Conn) -> Result<CommitRows, sqlx::Error> {
        let mut at_commit = self.at_commit;
        write_plans(conn, self.plans).await?;
        write_tasks(conn, self.tasks).await?;
        write_messages(conn, self.messages).await?;
        write_steps(conn, self.steps).await?;
        touch_conversations(conn, self.touched).await?;
        write_calls(conn, self.calls).await?;
        write_grants(conn, self.grants).await?;
        write_audit(conn, self.audit).await?;
        write_withheld_calls(conn, self.withheld_calls).await?;
        write_request_keys(conn, self.request_keys).await?;
        for task in self.settled_calls {
            if let Some((owner, queue)) = settle_call(conn, task).await? {
                at_commit.wakeups.push(Wakeup::Queue(owner, queue));
            }
        }
        Ok(at_commit)
    }
}

impl CommitRows {
    pub(crate) fn append(&mut self, later: CommitRows) {
        self.events.extend(later.events);
        self.interactions.extend(later.interactions);
        self.usage.append(later.usage);
        self.wakeups.extend(later.wakeups);
    }

    /// Writes the interactions and the usage. The index is woken if any interaction is new. Usage
    /// comes last, because owners share the rows of their totals, which stay locked until the
    /// commit.
    pub(crate) async fn write(&mut self, conn: &mut Conn) -> crate::Result<()> {
        let interactions = std::mem::take(&mut self.interactions);
        if write_interactions(conn, interactions).await?.new > 0 {
            self.wakeups.push(Wakeup::Memory);
        }
        std::mem::take(&mut self.usage).write(conn).await?;
        Ok(())
    }
}
