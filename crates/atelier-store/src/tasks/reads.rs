//! Reads of tasks and queues.

use crate::{
    Error, Owned, Result, Store,
    db::sql,
    rows::{
        page, read_record,
        tasks::{TaskRow, read_task},
    },
};
use atelier_core::{
    CallId, ConversationId, Message, Task, TaskId, TaskStatus, gate::GatedCall, task::Step,
};
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

/// How many calls one query asks for: databases limit the number of placeholders.
const AT_ONCE: usize = 1000;

/// How many tasks of a queue wait, run and are parked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueState {
    pub queued: i64,
    pub active: i64,
    pub parked: i64,
    pub oldest: Option<DateTime<Utc>>,
}

impl Store {
    pub async fn task(&self, owned: &Owned, id: TaskId) -> Result<Task> {
        let mut conn = self.db.connect().await?;
        let row: Option<TaskRow> =
            sql("SELECT record, status, started_at FROM tasks WHERE id = $1 AND project_id = $2")
                .bind(id.0)
                .bind(owned.project.0)
                .fetch_optional(&mut conn)
                .await?;
        read_task(row.ok_or(Error::NotFound)?)
    }

    /// The journal of a task, first step first.
    pub async fn steps(&self, owned: &Owned, id: TaskId) -> Result<Vec<Step>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> =
            sql("SELECT s.record FROM task_steps s JOIN tasks t ON t.id = s.task_id
             WHERE s.task_id = $1 AND t.project_id = $2 ORDER BY s.step")
            .bind(id.0)
            .bind(owned.project.0)
            .fetch_all(&mut conn)
            .await?;
        rows.into_iter().map(read_record).collect()
    }

    /// The tool calls of these steps.
    pub async fn calls_of(&self, owned: &Owned, steps: &[Step]) -> Result<Vec<GatedCall>> {
        let ids: Vec<CallId> =
            steps.iter().flat_map(|step| &step.calls).filter_map(|call| call.tool_id).collect();
        let mut calls = Vec::with_capacity(ids.len());
        for some in ids.chunks(AT_ONCE) {
            calls.extend(self.calls_by_id(owned, some).await?);
        }
        Ok(calls)
    }

    /// Whether a task or a plan has ended, and its answer.
    pub async fn work_answer(&self, owned: &Owned, work: Uuid) -> Result<(bool, Option<Message>)> {
        let mut conn = self.db.connect().await?;
        let row: Option<(bool, Option<String>)> =
            sql("SELECT status IN ('completed', 'failed', 'cancelled'),
                    (SELECT record FROM messages WHERE answers = $1 AND project_id = $2 ORDER BY \
                    id DESC LIMIT 1)
             FROM (SELECT status FROM tasks WHERE id = $1 AND project_id = $2
                   UNION ALL
                   SELECT status FROM plans WHERE id = $1 AND project_id = $2) AS work")
            .bind(work)
            .bind(owned.project.0)
            .fetch_optional(&mut conn)
            .await?;
        let (settled, answer) = row.ok_or(Error::NotFound)?;
        Ok((settled, answer.map(|record| read_record((record,))).transpose()?))
    }

    /// The project's tasks, newest first.
    pub async fn tasks(
        &self,
        owned: &Owned,
        session: Option<ConversationId>,
        status: Option<TaskStatus>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Task>, i64)> {
        let mut conn = self.db.connect().await?;
        let (any, session) = (session.is_none(), session.map_or(Uuid::nil(), |session| session.0));
        let (every, status) = (status.is_none(), status.map_or("", TaskStatus::as_str));
        let (rows, total) = page!(
            &mut conn,
            SELECT "record, status, started_at",
            FROM "tasks WHERE project_id = $1 AND ($2 OR session_id = $3) AND ($4 OR status = $5)",
            ORDER BY "id DESC",
            [owned.project.0, any, session, every, status],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_task).collect::<Result<_>>()?, total))
    }

    /// A running task of the project, if there is one.
    pub async fn running_task(&self, owned: &Owned) -> Result<Option<TaskId>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid,)> = sql(
            "SELECT id FROM tasks WHERE project_id = $1 AND status = 'running' ORDER BY id LIMIT 1",
        )
        .bind(owned.project.0)
        .fetch_optional(&mut conn)
        .await?;
        Ok(row.map(|(id,)| TaskId(id)))
    }

    /// The state of each queue of a project, its own included.
    pub async fn queues(&self, owned: &Owned) -> Result<Vec<(Uuid, QueueState)>> {
        let mut conn = self.db.connect().await?;
        type Row = (Uuid, String, i64, Option<DateTime<Utc>>);
        let rows: Vec<Row> = sql("SELECT queue, status, COUNT(*), MIN(queued_at) FROM tasks
             WHERE project_id = $1 AND status IN ('queued', 'running', 'parked') GROUP BY queue, \
             status")
        .bind(owned.project.0)
        .fetch_all(&mut conn)
        .await?;
        let mut queues: std::collections::BTreeMap<Uuid, QueueState> = Default::default();
        for (queue, status, count, oldest) in rows {
            let state = queues.entry(queue).or_default();
            match status.as_str() {
                "queued" => (state.queued, state.oldest) = (count, oldest),
                "running" => state.active = count,
                _ => state.parked = count,
            }
        }
        Ok(queues.into_iter().collect())
    }

    /// How many tasks wait, and how many agents are at work, in all projects of the database.
    pub async fn work_figures(&self) -> Result<(i64, i64)> {
        let mut conn = self.db.connect().await?;
        let (queued, agents): (i64, i64) =
            sql("SELECT COUNT(CASE WHEN status = 'queued' THEN 1 END),
                    COUNT(DISTINCT CASE WHEN status = 'running' AND queue <> project_id
                                        THEN queue END)
             FROM tasks WHERE status IN ('queued', 'running')")
            .fetch_one(&mut conn)
            .await?;
        Ok((queued, agents))
    }

    /// Queues with waiting tasks, and how many wait.
    pub async fn waiting_queues(&self) -> Result<Vec<(Uuid, i64)>> {
        let mut conn = self.db.connect().await?;
        Ok(sql("SELECT queue, COUNT(*) FROM tasks WHERE status = 'queued' GROUP BY queue")
            .fetch_all(&mut conn)
            .await?)
    }

    /// The project of a queue with waiting tasks.
    pub async fn queue_owner(&self, queue: Uuid) -> Result<Option<Owned>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid, Uuid, String)> =
            sql("SELECT p.id, p.user_id, p.tenant_id FROM tasks t
             JOIN projects p ON p.id = t.project_id WHERE t.queue = $1 AND t.status = 'queued' \
             LIMIT 1")
            .bind(queue)
            .fetch_optional(&mut conn)
            .await?;
        row.map(Owned::from_row).transpose()
    }

    /// Whether this node still has the lease of a task.
    pub async fn runs_task(&self, id: TaskId) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        let (held,): (bool,) = sql(
            "SELECT EXISTS (SELECT 1 FROM tasks WHERE id = $1 AND node = $2 AND status = 'running')"
        )
        .bind(id.0)
        .bind(self.node().0)
        .fetch_one(&mut conn)
        .await?;
        Ok(held)
    }

    /// The tasks that this node has leased.
    pub async fn leased_tasks(&self) -> Result<Vec<TaskId>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid,)> = sql("SELECT id FROM tasks WHERE node = $1 AND status = 'running'")
            .bind(self.node().0)
            .fetch_all(&mut conn)
            .await?;
        Ok(rows.into_iter().map(|(id,)| TaskId(id)).collect())
    }
}
