//! What a group of writes has decided and not written yet.
//!
//! A trip to the database costs more than the row it carries, so messages, the tasks they begin and steps on calls
//! are kept here, and the group writes all of it in a few statements: before anything else in the group looks, and
//! before it commits. What agents remember of any of it nobody in the group has to see: that is written once, at the
//! end.

use crate::{
    CollectionState, Owned, Result, Tx,
    collections::{self, open_collection},
    db::{Conn, on},
    interactions::Prepared,
    messages::write_messages,
    new_id,
    projects::json,
    tasks::{KeptTask, call_settled, write_tasks},
};
use atelier_core::{
    AgentId, CallId, ConversationId, Message, NewInteraction, ProjectId, TaskId, UserId,
    gate::{Audit, GatedCall, Grant},
    task::Step,
};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use uuid::Uuid;

#[derive(Default)]
pub(crate) struct Unwritten {
    tasks: Vec<KeptTask>,
    messages: Vec<Message>,
    /// By their number in the task.
    steps: Vec<(TaskId, u32, Step)>,
    /// Conversations that something was said in, and when.
    touched: BTreeMap<ConversationId, DateTime<Utc>>,
    calls: BTreeMap<CallId, GatedCall>,
    grants: Vec<Grant>,
    audit: Vec<(ProjectId, Audit)>,
    /// Tasks that a call of theirs has settled for, once for each call.
    settled: Vec<TaskId>,
    memos: Vec<Noted>,
}

/// What an agent is to remember of something in this group.
pub(crate) struct Noted {
    project: ProjectId,
    owner: UserId,
    agent: AgentId,
    memo: Prepared,
}

/// How many rows a statement takes. Not any number of them: each is a statement of its own to the database, parsed once
/// and kept.
pub(crate) fn rows_at_once(left: usize) -> usize {
    match left {
        ..=8 => left.max(1),
        9..16 => 8,
        16..64 => 16,
        64.. => 64,
    }
}

/// Writes rows in as few statements as `rows_at_once` makes of them: what stands before the rows, the values of one of
/// them, and what stands after.
macro_rules! write_rows {
    ($conn:expr, $rows:expr, $before:expr, |$row:ident, $one:pat_param| $bind:block, $after:expr) => {{
        let mut left = $rows.into_iter();
        while left.len() > 0 {
            let size = $crate::unwritten::rows_at_once(left.len());
            $crate::db::on!(&mut *$conn, |c| {
                let mut statement = sqlx::QueryBuilder::new($before);
                statement.push_values(left.by_ref().take(size), |mut $row, $one| $bind);
                statement.push($after);
                statement.build().execute(c).await.map(drop)
            })?;
        }
        Ok::<(), sqlx::Error>(())
    }};
}
pub(crate) use write_rows;

impl Tx {
    /// As this group has left the call, if it has touched it.
    pub(crate) fn unwritten_call(&self, id: CallId) -> Option<&GatedCall> {
        self.unwritten.calls.get(&id)
    }

    pub(crate) fn keep_call(&mut self, call: GatedCall) {
        self.unwritten.calls.insert(call.tool_id, call);
    }

    pub(crate) fn keep_grant(&mut self, grant: Grant) {
        // The next step in this group goes by it already.
        if let Some(context) = self.contexts.get_mut(&grant.project_id) {
            context.grants = context.grants.iter().cloned().chain([grant.clone()]).collect();
        }
        self.unwritten.grants.push(grant);
    }

    pub(crate) fn keep_audit(&mut self, project: ProjectId, audit: Audit) {
        self.unwritten.audit.push((project, audit));
    }

    pub(crate) fn keep_settled(&mut self, task: TaskId) {
        self.unwritten.settled.push(task);
    }

    /// As this group leaves them: new ones, and those that have ended.
    pub(crate) fn unwritten_tasks(&self) -> impl Iterator<Item = &KeptTask> {
        self.unwritten.tasks.iter()
    }

    pub(crate) fn keep_task(&mut self, task: KeptTask) {
        self.unwritten.tasks.push(task);
    }

    pub(crate) fn keep_message(&mut self, message: Message) {
        self.unwritten.messages.push(message);
    }

    pub(crate) fn keep_step(&mut self, task: TaskId, number: u32, step: Step) {
        self.unwritten.steps.push((task, number, step));
    }

    pub(crate) fn keep_touched(&mut self, conversation: ConversationId, time: DateTime<Utc>) {
        self.unwritten.touched.insert(conversation, time);
    }

    /// Whether tasks that have begun may go on when this is written.
    pub(crate) fn settles_calls(&self) -> bool {
        !self.unwritten.settled.is_empty()
    }

    pub(crate) fn keep_memo(&mut self, owned: &Owned, agent: AgentId, memo: NewInteraction) {
        let (project, owner) = (owned.project, owned.owner);
        self.unwritten.memos.push(Noted { project, owner, agent, memo: Prepared::new(memo) });
    }

    pub(crate) fn memos(&mut self) -> &mut Vec<Noted> {
        &mut self.unwritten.memos
    }

    /// Writes what agents are to remember. One that is being deleted, or never was one of this project, remembers nothing.
    pub(crate) async fn write_memos(&mut self) -> Result<()> {
        let noted = std::mem::take(&mut self.unwritten.memos);
        let mut minds: HashMap<AgentId, bool> = HashMap::new();
        let agents: BTreeSet<Uuid> = noted.iter().map(|noted| noted.agent.0).collect();
        for (agent, project, state) in collections::states(&mut self.conn, &agents).await? {
            let one = noted.iter().find(|noted| noted.agent == agent);
            let there = state != CollectionState::Gone && one.is_some_and(|noted| noted.project == project);
            minds.insert(agent, there);
        }
        let mut memos = Vec::with_capacity(noted.len());
        for Noted { project, owner, agent, memo } in noted {
            let there = match minds.get(&agent) {
                Some(there) => *there,
                None => open_collection(self, project, owner, agent).await?,
            };
            minds.insert(agent, there);
            if there {
                memos.push((agent, memo));
            }
        }
        self.put_memos(&memos).await.map(drop)
    }

    /// Gives up what was kept, but for what agents remember.
    pub(crate) fn drop_kept(&mut self) {
        self.unwritten =
            Unwritten { memos: std::mem::take(&mut self.unwritten.memos), ..Unwritten::default() };
    }

    /// Writes what was kept.
    pub(crate) async fn flush_kept(&mut self) -> Result<(), sqlx::Error> {
        let Unwritten { tasks, messages, steps, touched, calls, grants, audit, settled, memos } =
            std::mem::take(&mut self.unwritten);
        self.unwritten.memos = memos;
        write_tasks(&mut self.conn, tasks).await?;
        write_messages(&mut self.conn, messages).await?;
        write_steps(&mut self.conn, steps).await?;
        touch(&mut self.conn, touched).await?;
        write_calls(&mut self.conn, calls).await?;
        for grant in grants {
            on!(&mut self.conn, |c| sqlx::query(
                "INSERT INTO grants (id, project_id, session, record) VALUES ($1, $2, $3, $4)"
            )
            .bind(grant.id.0)
            .bind(grant.project_id.0)
            .bind(grant.session)
            .bind(json(&grant))
            .execute(c)
            .await
            .map(drop))?;
        }
        write_audit(&mut self.conn, audit).await?;
        for task in settled {
            call_settled(self, task).await?;
        }
        Ok(())
    }
}

async fn write_steps(conn: &mut Conn, steps: Vec<(TaskId, u32, Step)>) -> Result<(), sqlx::Error> {
    write_rows!(
        conn,
        steps,
        "INSERT INTO task_steps (task_id, step, record) ",
        |row, (task, number, step)| {
            row.push_bind(task.0).push_bind(i64::from(number)).push_bind(json(&step));
        },
        " ON CONFLICT (task_id, step) DO UPDATE SET record = excluded.record"
    )
}

async fn touch(conn: &mut Conn, touched: BTreeMap<ConversationId, DateTime<Utc>>) -> Result<(), sqlx::Error> {
    write_rows!(
        conn,
        touched,
        "UPDATE conversations SET updated_at = v.column2 FROM (",
        |row, (conversation, time)| {
            row.push_bind(conversation.0).push_bind(time);
        },
        ") AS v WHERE id = v.column1"
    )
}

async fn write_audit(conn: &mut Conn, audit: Vec<(ProjectId, Audit)>) -> Result<(), sqlx::Error> {
    write_rows!(
        conn,
        audit,
        "INSERT INTO audit (id, project_id, record) ",
        |row, (project, audit)| {
            row.push_bind(new_id()).push_bind(project.0).push_bind(json(&audit));
        },
        ""
    )
}

async fn write_calls(conn: &mut Conn, calls: BTreeMap<CallId, GatedCall>) -> Result<(), sqlx::Error> {
    write_rows!(
        conn,
        calls,
        "INSERT INTO tool_calls (id, project_id, approval_id, approval_status, status, deadline, record) ",
        |row, (id, call)| {
            row.push_bind(id.0)
                .push_bind(call.project_id.0)
                .push_bind(call.approval_id.map(|id| id.0))
                .push_bind(call.approval.as_ref().map(|approval| approval.status.as_str()))
                .push_bind(call.status.as_str())
                .push_bind(call.deadline)
                .push_bind(json(&call));
        },
        " ON CONFLICT (id) DO UPDATE SET approval_id = excluded.approval_id,
          approval_status = excluded.approval_status, status = excluded.status, deadline = excluded.deadline,
          record = excluded.record"
    )
}
