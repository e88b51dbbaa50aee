//! What is said in conversations, and the work that comes of it.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, on},
    memos, new_id, now,
    projects::{corrupt, json},
    tasks::{self, Standing, TaskLease, counted},
    unwritten::write_rows,
    writer::Manner,
};
use atelier_core::{
    Agent, ConversationId, Event, Message, MessageId, MessageRole, NodeId, Plan, PlanId, PlanStatus, Task,
    TaskId, TaskKind, TaskStatus, Usage,
};
use uuid::Uuid;

/// Something a person says.
#[derive(Debug, Clone)]
pub struct UserMessage {
    pub session: ConversationId,
    pub content: String,
    pub attachments: Vec<String>,
    /// Whom it is for; nobody in particular makes it a matter for the planner.
    pub agent: Option<Agent>,
    /// Higher goes first in the queue.
    pub priority: i32,
    /// How many tasks may wait in the queue it goes to.
    pub max_queue: i64,
}

/// What a message has set going.
#[derive(Debug)]
pub struct AcceptedMessage {
    pub message: Message,
    pub task: Task,
    pub plan: Option<Plan>,
    /// Tasks that were taken for the node that asked, if it did.
    pub leases: Vec<TaskLease>,
}

impl Store {
    /// Takes a message and queues the task it asks for, in one step. With `node`, what is free to run is taken
    /// for that node at once.
    pub async fn post_message(
        &self,
        owned: &Owned,
        said: UserMessage,
        node: Option<NodeId>,
    ) -> Result<AcceptedMessage> {
        let owned = owned.clone();
        // A plan is written at once; what comes of a message to an agent is only kept.
        let manner = if said.agent.is_some() { Manner::Keeps(None) } else { Manner::Writes };
        self.hand_in(owned.owner, manner, move |tx| {
            Box::pin(async move { say(tx, &owned, said, node).await })
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
        let (rows, total): (Vec<(String,)>, (i64,)) = on!(&mut conn, |c| {
            let rows = sqlx::query_as(
                "SELECT record FROM messages WHERE session_id = $1 ORDER BY id LIMIT $2 OFFSET $3",
            )
            .bind(session.0)
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *c)
            .await?;
            let total = sqlx::query_as("SELECT COUNT(*) FROM messages WHERE session_id = $1")
                .bind(session.0)
                .fetch_one(&mut *c)
                .await?;
            (rows, total)
        });
        Ok((rows.into_iter().map(read_message).collect::<Result<_>>()?, total.0))
    }

    /// The messages up to and with the given one, oldest first, at most `limit` of the last.
    pub async fn messages_until(
        &self,
        owned: &Owned,
        session: ConversationId,
        last: MessageId,
        limit: i64,
    ) -> Result<Vec<Message>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT record FROM messages WHERE session_id = $1 AND id <= $2 AND project_id = $3
             ORDER BY id DESC LIMIT $4"
        )
        .bind(session.0)
        .bind(last.0)
        .bind(owned.project.0)
        .bind(limit)
        .fetch_all(c)
        .await)?;
        rows.into_iter().rev().map(read_message).collect()
    }
}

pub(crate) fn read_message((record,): (String,)) -> Result<Message> {
    corrupt(serde_json::from_str(&record))
}

/// Where the message is for an agent, this only looks, and keeps what comes of it at the end.
async fn say(tx: &mut Tx, owned: &Owned, said: UserMessage, node: Option<NodeId>) -> Result<AcceptedMessage> {
    let queue = said.agent.as_ref().map_or(owned.project.0, |agent| agent.id.0);
    let (archived, standing) = room_for(tx, owned, said.session, queue).await?;
    if archived {
        return Err(Error::Archived);
    }
    if standing.waiting >= said.max_queue {
        return Err(Error::QueueFull { waiting: standing.waiting });
    }
    let (task_id, plan_id) = (TaskId(new_id()), said.agent.is_none().then(|| PlanId(new_id())));
    let message = Message {
        id: MessageId(new_id()),
        project_id: owned.project,
        session_id: said.session,
        role: MessageRole::User,
        content: said.content,
        attachments: said.attachments,
        agent_id: said.agent.as_ref().map(|agent| agent.id),
        agent_name: said.agent.as_ref().map(|agent| agent.name.clone()),
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
        session_id: said.session,
        message_id: message.id,
        status: PlanStatus::Planning,
        needs_approval: false,
        error: None,
        created_at: message.created_at,
        completed_at: None,
    });
    if let Some(plan) = &plan {
        crate::plans::insert_plan(tx, plan).await?;
    }
    let task = Task {
        id: task_id,
        project_id: owned.project,
        session_id: said.session,
        message_id: message.id,
        plan_id,
        kind: if plan_id.is_some() { TaskKind::Plan } else { TaskKind::Work },
        key: None,
        description: message.content.clone(),
        agent_id: message.agent_id,
        agent_name: message.agent_name.clone(),
        depends_on: Vec::new(),
        status: TaskStatus::Queued,
        priority: said.priority,
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
    tx.keep_touched(said.session, message.created_at);
    add_message(tx, owned, message.clone());
    let leases = tasks::begin_or_queue(tx, owned, &task, standing, node).into_iter().collect();
    Ok(AcceptedMessage { message, task, plan, leases })
}

/// Whether a conversation is archived, and how the queue stands that is spoken to in it.
pub(crate) async fn room_for(
    tx: &mut Tx,
    owned: &Owned,
    session: ConversationId,
    queue: Uuid,
) -> Result<(bool, Standing)> {
    type Row = (bool, i64, i64, Option<String>);
    let row: Option<Row> = on!(&mut tx.conn, |c| sqlx::query_as(concat!(
        "SELECT status = 'archived', ",
        counted!(),
        " FROM conversations WHERE id = $2 AND project_id = $3"
    ))
    .bind(queue)
    .bind(session.0)
    .bind(owned.project.0)
    .fetch_optional(c)
    .await)?;
    let (archived, waiting, running, config) = row.ok_or(Error::NotFound)?;
    Ok((archived, Standing::read(tx, queue, (waiting, running, config))?))
}

pub(crate) fn add_message(tx: &mut Tx, owned: &Owned, message: Message) {
    tx.emit(owned.project, owned.owner, &Event::MessageCreated { message: message.told() });
    memos::message(tx, owned, &message);
    tx.keep_message(message);
}

pub(crate) async fn write_messages(conn: &mut Conn, messages: Vec<Message>) -> Result<(), sqlx::Error> {
    let answers = |message: &Message| match message.role {
        MessageRole::User => None,
        MessageRole::Assistant => message.plan_id.map(|id| id.0).or_else(|| message.task_id.map(|id| id.0)),
    };
    write_rows!(
        conn,
        messages,
        "INSERT INTO messages (id, project_id, session_id, answers, record) ",
        |row, message| {
            row.push_bind(message.id.0)
                .push_bind(message.project_id.0)
                .push_bind(message.session_id.0)
                .push_bind(answers(&message))
                .push_bind(json(&message));
        },
        ""
    )
}
