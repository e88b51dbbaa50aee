//! Messages of conversations, and the tasks and plans that they start.

use crate::{
    Error, Owned, Result, Store,
    auto_interactions::remember_message,
    db::sql,
    pending::PendingRows,
    request_keys::earlier_answer,
    rows::{new_id, now, page, read_record, request_keys::RequestKey},
    tasks::{QueueLoad, TaskLease, load_columns, start_or_queue},
    writer::GroupReader,
};
use atelier_core::{
    Agent, ConversationId, Event, Message, MessageId, MessageRole, NodeId, Plan, PlanId,
    PlanStatus, Task, TaskId, TaskKind, TaskStatus, Usage, remembered::KnownSecrets,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A message that a user sends.
#[derive(Debug, Clone)]
pub struct UserMessage {
    pub session: ConversationId,
    pub content: String,
    pub attachments: Vec<String>,
    /// The agent that the message is for. Without one, the planner makes a plan of the message.
    pub agent: Option<Agent>,
    /// Tasks of a higher priority run first.
    pub priority: i32,
    /// How many tasks may wait in the queue of the new task.
    pub max_queue: i64,
    /// The key under which the message may be sent again.
    pub key: Option<RequestKey>,
}

/// A stored message, and the work that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageIds {
    pub message: MessageId,
    pub task: TaskId,
    pub plan: Option<PlanId>,
}

/// A message that was stored now, or before with the same key.
#[derive(Debug)]
pub struct AcceptedMessage {
    pub ids: MessageIds,
    pub is_new: bool,
    /// The lease of the task, if the node that posted the message runs it at once.
    pub leases: Vec<TaskLease>,
}

impl Store {
    /// Stores a message and queues the task that it asks for. If the task can run at once, `node`
    /// gets its lease.
    pub async fn post_message(
        &self,
        owned: &Owned,
        message: UserMessage,
        node: Option<NodeId>,
    ) -> Result<AcceptedMessage> {
        let owned = owned.clone();
        // A person may quote what was read in the conversation, too.
        let secrets = self.secrets_shown_in(message.session).await?;
        self.write_deferred(owned.owner, None, move |group| {
            Box::pin(async move { accept_message(group, &owned, message, &secrets, node).await })
        })
        .await
    }

    /// The messages of a conversation, oldest first.
    pub async fn messages(
        &self,
        owned: &Owned,
        session: ConversationId,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Message>, i64)> {
        self.conversation(owned, session).await?;
        let mut conn = self.db.connect().await?;
        let (rows, total) = page!(
            &mut conn,
            SELECT "record",
            FROM "messages WHERE session_id = $1",
            ORDER BY "id",
            [session.0],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_record).collect::<Result<_>>()?, total))
    }

    /// The last `limit` messages up to and including the given one, oldest first.
    pub async fn messages_until(
        &self,
        owned: &Owned,
        session: ConversationId,
        last: MessageId,
        limit: i64,
    ) -> Result<Vec<Message>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = sql(
            "SELECT record FROM messages WHERE session_id = $1 AND id <= $2 AND project_id = $3
             ORDER BY id DESC LIMIT $4",
        )
        .bind(session.0)
        .bind(last.0)
        .bind(owned.project.0)
        .bind(limit)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().rev().map(read_record).collect()
    }
}

async fn accept_message(
    group: &mut GroupReader,
    owned: &Owned,
    sent: UserMessage,
    secrets: &KnownSecrets,
    node: Option<NodeId>,
) -> Result<(AcceptedMessage, PendingRows)> {
    if let Some(key) = &sent.key
        && let Some(ids) = earlier_answer(group, owned.project, key).await?
    {
        let accepted = AcceptedMessage { ids, is_new: false, leases: Vec::new() };
        return Ok((accepted, PendingRows::default()));
    }
    let queue = sent.agent.as_ref().map_or(owned.project.0, |agent| agent.id.0);
    let (archived, load) = check_conversation(group, owned, sent.session, queue).await?;
    if archived {
        return Err(Error::Archived);
    }
    // The agent was found before the write, perhaps in a cache.
    if sent.agent.is_some() && !load.of_agent {
        return Err(Error::AgentDeleted);
    }
    if load.waiting >= sent.max_queue {
        return Err(Error::QueueFull { waiting: load.waiting });
    }
    let (task_id, plan_id) = (TaskId(new_id()), sent.agent.is_none().then(|| PlanId(new_id())));
    let message = Message {
        id: MessageId(new_id()),
        project_id: owned.project,
        session_id: sent.session,
        role: MessageRole::User,
        content: sent.content,
        attachments: sent.attachments,
        agent_id: sent.agent.as_ref().map(|agent| agent.id),
        agent_name: sent.agent.as_ref().map(|agent| agent.name.clone()),
        model: None,
        usage: None,
        cost: None,
        task_id: Some(task_id),
        plan_id,
        created_at: now(),
    };
    let plan = plan_id.map(|id| Plan {
        id,
        project_id: owned.project,
        session_id: sent.session,
        message_id: message.id,
        status: PlanStatus::Planning,
        needs_approval: false,
        error: None,
        created_at: message.created_at,
        completed_at: None,
    });
    let task = Task {
        id: task_id,
        project_id: owned.project,
        session_id: sent.session,
        message_id: message.id,
        plan_id,
        kind: if plan_id.is_some() { TaskKind::Plan } else { TaskKind::Work },
        key: None,
        description: message.content.clone(),
        agent_id: message.agent_id,
        agent_name: message.agent_name.clone(),
        depends_on: Vec::new(),
        status: TaskStatus::Queued,
        priority: sent.priority,
        steps: 0,
        usage: Usage::default(),
        cost: 0.0,
        ran_ms: 0,
        result: None,
        error: None,
        created_at: message.created_at,
        started_at: None,
        completed_at: None,
    };
    let ids = MessageIds { message: message.id, task: task_id, plan: plan_id };
    let mut rows = PendingRows::default();
    rows.request_keys.extend(sent.key.map(|key| key.row(owned.project, &ids)));
    rows.plans.extend(plan);
    rows.touched.insert(sent.session, message.created_at);
    add_message(&mut rows, owned, message, secrets);
    let lease = start_or_queue(group, &mut rows, owned, &task, load, node);
    Ok((AcceptedMessage { ids, is_new: true, leases: lease.into_iter().collect() }, rows))
}

/// Whether a conversation is archived, and the load of the queue that a message in it would go to.
pub(crate) async fn check_conversation(
    group: &mut GroupReader,
    owned: &Owned,
    session: ConversationId,
    queue: Uuid,
) -> Result<(bool, QueueLoad)> {
    type Row = (bool, i64, i64, Option<String>);
    let row: Option<Row> = sql(concat!(
        "SELECT status = 'archived', ",
        load_columns!(),
        " FROM conversations WHERE id = $2 AND project_id = $3"
    ))
    .bind(queue)
    .bind(session.0)
    .bind(owned.project.0)
    .fetch_optional(&mut group.conn)
    .await?;
    let (archived, waiting, running, config) = row.ok_or(Error::NotFound)?;
    Ok((archived, QueueLoad::read(group, queue, (waiting, running, config))?))
}

/// Adds a message to its conversation, and to its agent's memory without the secrets in it.
pub(crate) fn add_message(
    rows: &mut PendingRows,
    owned: &Owned,
    message: Message,
    secrets: &KnownSecrets,
) {
    rows.emit(owned.project, owned.owner, &Event::MessageCreated { message: message.for_event() });
    remember_message(rows, owned, &message, secrets);
    rows.messages.push(message);
}
