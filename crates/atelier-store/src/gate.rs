//! Tool calls, the clients that run them, standing permissions and the record of every decision.
//!
//! What happens to a call is decided by the pure steps of `atelier_core::gate`; here they get the call and
//! everything they have to know in one transaction, and what they decide is written and told in the same.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, on},
    memos, now,
    projects::corrupt,
    situation::{Situation, database_time, grants},
    writer::Manner,
};
use atelier_core::{
    ApprovalId, CallId, Event, GrantId, Invalid, ProjectId, UserId,
    gate::{ApprovalStatus, GatedCall, Grant, Refusal},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::{BTreeSet, HashMap};
use uuid::Uuid;

/// What a step decided, beside what became of the call.
#[derive(Debug, Default)]
pub struct Decided {
    pub events: Vec<Event>,
    pub grant: Option<Grant>,
    pub audit: Option<Audit>,
}

impl From<Vec<Event>> for Decided {
    fn from(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }
}

/// One decision, about a call or about a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// None where a permission was withdrawn.
    pub tool_id: Option<CallId>,
    pub approval_id: Option<ApprovalId>,
    /// approved, rejected, expired, cancelled, granted, withdrawn.
    pub decision: String,
    /// Nobody where time or a permission decided.
    pub by: Option<UserId>,
    /// The program that said so.
    pub via: Option<String>,
    /// What exactly was decided about.
    pub digest: Option<String>,
    pub grant_id: Option<GrantId>,
    pub at: DateTime<Utc>,
}

/// In SQL: of a permission, that nobody can come back to its session. One that is only silent may.
macro_rules! sessionless {
    () => {
        "NOT EXISTS (SELECT 1 FROM clients c WHERE c.id = grants.session)
         AND NOT EXISTS (SELECT 1 FROM conversations v WHERE v.id = grants.session)"
    };
}

/// Makes a call, judged, and says what happens to it first.
pub type Begin = Box<dyn FnOnce(&Situation) -> Result<(GatedCall, Decided), Invalid> + Send>;

/// A call of a task on its way to the gate.
pub struct NewCall {
    pub id: CallId,
    pub begin: Begin,
}

impl Store {
    /// Keeps a new call that `begin` makes, knowing how things stand.
    pub async fn add_call<F, E>(&self, owned: &Owned, begin: F) -> Result<Result<GatedCall, E>>
    where
        F: FnOnce(&Situation) -> Result<(GatedCall, Decided), E> + Send + 'static,
        E: Send + 'static,
    {
        let owned = owned.clone();
        self.write_kept(owned.owner, move |tx| {
            Box::pin(async move {
                let situation = tx.situation(owned.project).await?;
                if situation.deleted {
                    return Err(Error::NotFound);
                }
                let begun = begin(&situation);
                Ok(begun.map(|(call, decided)| {
                    carry_out(tx, &owned, call.clone(), decided);
                    remember(tx, &owned, &call);
                    call
                }))
            })
        })
        .await
    }

    /// Takes one step with a call. Steps on one call happen one after the other, on every node.
    pub async fn step<F>(&self, owned: &Owned, id: CallId, step: F) -> Result<Result<GatedCall, Refusal>>
    where
        F: FnOnce(&mut GatedCall, &Situation) -> Result<Decided, Refusal> + Send + 'static,
    {
        let owned = owned.clone();
        self.hand_in(owned.owner, Manner::Keeps(Some((owned.project, id))), move |tx| {
            Box::pin(async move {
                let mut call = lock_call(tx, owned.project, id).await?;
                let situation = tx.situation(owned.project).await?;
                let was_open = !call.status.is_settled();
                Ok(step(&mut call, &situation).map(|decided| {
                    carry_out(tx, &owned, call.clone(), decided);
                    tell_task(tx, &owned, &call, was_open);
                    call
                }))
            })
        })
        .await
    }

    /// The same for a step that has to know nothing beside the call but the time.
    pub async fn step_alone<F>(
        &self,
        owned: &Owned,
        id: CallId,
        step: F,
    ) -> Result<Result<GatedCall, Refusal>>
    where
        F: FnOnce(&mut GatedCall, DateTime<Utc>) -> Result<Decided, Refusal> + Send + 'static,
    {
        let owned = owned.clone();
        self.hand_in(owned.owner, Manner::Keeps(Some((owned.project, id))), move |tx| {
            Box::pin(async move {
                let mut call = lock_call(tx, owned.project, id).await?;
                let now = tx.time().await?;
                let was_open = !call.status.is_settled();
                Ok(step(&mut call, now).map(|decided| {
                    carry_out(tx, &owned, call.clone(), decided);
                    tell_task(tx, &owned, &call, was_open);
                    call
                }))
            })
        })
        .await
    }

    pub async fn call(&self, owned: &Owned, id: CallId) -> Result<GatedCall> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT record FROM tool_calls WHERE id = $1 AND project_id = $2"
        )
        .bind(id.0)
        .bind(owned.project.0)
        .fetch_optional(c)
        .await)?;
        read(row.ok_or(Error::NotFound)?)
    }

    /// Which call an approval is about. One that the call was asked about before is not known any more.
    pub async fn call_of_approval(&self, owned: &Owned, id: ApprovalId) -> Result<CallId> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT id FROM tool_calls WHERE approval_id = $1 AND project_id = $2"
        )
        .bind(id.0)
        .bind(owned.project.0)
        .fetch_optional(c)
        .await)?;
        row.map(|(id,)| CallId(id)).ok_or(Error::NotFound)
    }

    /// The project's calls, newest first, in one state or in any.
    pub async fn calls(
        &self,
        owned: &Owned,
        status: Option<&str>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<GatedCall>, i64)> {
        let mut conn = self.db.connect().await?;
        let any = status.is_none();
        let status = status.unwrap_or_default().to_owned();
        let (rows, total): (Vec<(String,)>, (i64,)) = on!(&mut conn, |c| {
            let rows = sqlx::query_as(
                "SELECT record FROM tool_calls WHERE project_id = $1 AND ($2 OR status = $3)
                 ORDER BY id DESC LIMIT $4 OFFSET $5",
            )
            .bind(owned.project.0)
            .bind(any)
            .bind(&status)
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *c)
            .await?;
            let total = sqlx::query_as(
                "SELECT COUNT(*) FROM tool_calls WHERE project_id = $1 AND ($2 OR status = $3)",
            )
            .bind(owned.project.0)
            .bind(any)
            .bind(&status)
            .fetch_one(&mut *c)
            .await?;
            (rows, total)
        });
        Ok((rows.into_iter().map(read).collect::<Result<_>>()?, total.0))
    }

    /// Calls that a person was asked about, newest first, by what became of that or all of them.
    pub async fn approvals(
        &self,
        owned: &Owned,
        status: Option<ApprovalStatus>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<GatedCall>, i64)> {
        let mut conn = self.db.connect().await?;
        let (any, status) = (status.is_none(), status.map_or("", ApprovalStatus::as_str));
        let (rows, total): (Vec<(String,)>, (i64,)) = on!(&mut conn, |c| {
            let rows = sqlx::query_as(
                "SELECT record FROM tool_calls
                 WHERE project_id = $1 AND approval_status IS NOT NULL AND ($2 OR approval_status = $3)
                 ORDER BY id DESC LIMIT $4 OFFSET $5",
            )
            .bind(owned.project.0)
            .bind(any)
            .bind(status)
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *c)
            .await?;
            let total = sqlx::query_as(
                "SELECT COUNT(*) FROM tool_calls
                 WHERE project_id = $1 AND approval_status IS NOT NULL AND ($2 OR approval_status = $3)",
            )
            .bind(owned.project.0)
            .bind(any)
            .bind(status)
            .fetch_one(&mut *c)
            .await?;
            (rows, total)
        });
        Ok((rows.into_iter().map(read).collect::<Result<_>>()?, total.0))
    }

    /// Removes calls that are settled and were made before `calls`, permissions from before then whose session is gone, and
    /// decisions from before `audit`.
    pub async fn sweep_calls(&self, calls: DateTime<Utc>, audit: DateTime<Utc>) -> Result<u64> {
        let (first, audit) = (first_id(calls), first_id(audit));
        let mut conn = self.db.connect().await?;
        let owners: Vec<(Uuid, Uuid)> = on!(&mut conn, |c| {
            sqlx::query_as(concat!(
                "SELECT id, user_id FROM projects p
                 WHERE EXISTS (SELECT 1 FROM tool_calls t
                               WHERE t.project_id = p.id AND t.id < $1 AND t.deadline IS NULL)
                    OR EXISTS (SELECT 1 FROM grants WHERE project_id = p.id AND id < $1 AND ",
                sessionless!(),
                ") OR EXISTS (SELECT 1 FROM audit a WHERE a.project_id = p.id AND a.id < $2)"
            ))
            .bind(first)
            .bind(audit)
            .fetch_all(c)
            .await
        })?;
        drop(conn);
        let mut removed = 0;
        for (project, owner) in owners {
            removed += self
                .write(UserId(owner), move |tx| {
                    Box::pin(async move {
                        tx.forget_situations();
                        on!(&mut tx.conn, |c| {
                            // What is not settled has a deadline.
                            let calls = sqlx::query(
                                "DELETE FROM tool_calls WHERE project_id = $1 AND id < $2 AND deadline IS NULL",
                            )
                            .bind(project)
                            .bind(first)
                            .execute(&mut *c)
                            .await?
                            .rows_affected();
                            sqlx::query(concat!(
                                "DELETE FROM grants WHERE project_id = $1 AND id < $2 AND ",
                                sessionless!()
                            ))
                            .bind(project)
                            .bind(first)
                            .execute(&mut *c)
                            .await?;
                            sqlx::query("DELETE FROM audit WHERE project_id = $1 AND id < $2")
                                .bind(project)
                                .bind(audit)
                                .execute(&mut *c)
                                .await?;
                            Ok(calls)
                        })
                    })
                })
                .await?;
        }
        Ok(removed)
    }

    /// What waits for the user's decision, in one project or in all, oldest first.
    pub async fn pending_calls(&self, user: UserId, project: Option<ProjectId>) -> Result<Vec<GatedCall>> {
        let mut conn = self.db.connect().await?;
        let (any, project) = (project.is_none(), project.map_or(Uuid::nil(), |project| project.0));
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            // CROSS JOIN: SQLite would begin with the calls, all of them.
            "SELECT t.record FROM projects p CROSS JOIN tool_calls t
             WHERE p.user_id = $1 AND ($2 OR p.id = $3) AND p.deleted_at IS NULL
             AND t.project_id = p.id AND t.deadline IS NOT NULL AND t.status = 'pending_approval'
             ORDER BY t.id LIMIT 1000"
        )
        .bind(user.0)
        .bind(any)
        .bind(project)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// The calls a task has made at the gate.
    pub async fn calls_by_id(&self, owned: &Owned, ids: &[CallId]) -> Result<Vec<GatedCall>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = on!(&mut conn, |c| {
            let mut query = sqlx::QueryBuilder::new("SELECT record FROM tool_calls WHERE project_id = ");
            query.push_bind(owned.project.0).push(" AND id IN (");
            let mut list = query.separated(", ");
            for id in ids {
                list.push_bind(id.0);
            }
            query.push(")");
            query.build_query_as().fetch_all(c).await
        })?;
        rows.into_iter().map(read).collect()
    }

    /// Calls for which time has something to decide, with their project's owner.
    pub async fn due_calls(&self, limit: i64) -> Result<Vec<(Owned, CallId)>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT t.id, p.id, p.user_id, p.tenant_id FROM tool_calls t JOIN projects p ON p.id = t.project_id
             WHERE t.deadline <= $1 ORDER BY t.deadline LIMIT $2"
        )
        .bind(time)
        .bind(limit)
        .fetch_all(c)
        .await
        })?;
        let due = |(call, project, owner, tenant): (Uuid, Uuid, Uuid, String)| {
            Ok((Owned::from_row((project, owner, tenant))?, CallId(call)))
        };
        rows.into_iter().map(due).collect()
    }

    pub async fn grants(&self, owned: &Owned) -> Result<Vec<Grant>> {
        let mut conn = self.db.connect().await?;
        grants(&mut conn, owned.project).await
    }

    pub async fn withdraw_grant(&self, owned: &Owned, id: GrantId, audit: Audit) -> Result<Grant> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                tx.forget_situations();
                let row: Option<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
                    "UPDATE grants SET withdrawn_at = $1 WHERE id = $2 AND project_id = $3 AND withdrawn_at IS NULL
                     RETURNING record"
                )
                .bind(now())
                .bind(id.0)
                .bind(owned.project.0)
                .fetch_optional(c)
                .await)?;
                let mut grant: Grant = read(row.ok_or(Error::NotFound)?)?;
                grant.withdrawn_at = Some(now());
                tx.keep_audit(owned.project, audit);
                tx.emit(owned.project, owned.owner, &Event::GrantWithdrawn { grant_id: id });
                Ok(grant)
            })
        })
        .await
    }

    /// The project's decisions, newest first, and how many there are.
    pub async fn audit(&self, owned: &Owned, limit: i64, offset: i64) -> Result<(Vec<Audit>, i64)> {
        let mut conn = self.db.connect().await?;
        let (rows, total): (Vec<(String,)>, (i64,)) = on!(&mut conn, |c| {
            let rows = sqlx::query_as(
                "SELECT record FROM audit WHERE project_id = $1 ORDER BY id DESC LIMIT $2 OFFSET $3",
            )
            .bind(owned.project.0)
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *c)
            .await?;
            let total = sqlx::query_as("SELECT COUNT(*) FROM audit WHERE project_id = $1")
                .bind(owned.project.0)
                .fetch_one(&mut *c)
                .await?;
            (rows, total)
        });
        Ok((rows.into_iter().map(read).collect::<Result<_>>()?, total.0))
    }
}

/// Withdraws what was permitted for a session that is over.
pub(crate) async fn end_session(tx: &mut Tx, owned: &Owned, session: Uuid) -> Result<()> {
    let ended: Vec<(Uuid,)> = on!(&mut tx.conn, |c| {
        sqlx::query_as(
        "UPDATE grants SET withdrawn_at = $1 WHERE project_id = $2 AND session = $3 AND withdrawn_at IS NULL
         RETURNING id"
    )
    .bind(now())
    .bind(owned.project.0)
    .bind(session)
    .fetch_all(c)
    .await
    })?;
    for (id,) in ended {
        tx.emit(owned.project, owned.owner, &Event::GrantWithdrawn { grant_id: GrantId(id) });
    }
    Ok(())
}

pub(crate) fn read<T: DeserializeOwned>((record,): (String,)) -> Result<T> {
    corrupt(serde_json::from_str(&record))
}

/// The smallest id that is given at this time: ids begin with it.
fn first_id(time: DateTime<Utc>) -> Uuid {
    let milliseconds = u64::try_from(time.timestamp_millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(milliseconds, &[0; 10]).into_uuid()
}

/// The call, for this transaction alone.
async fn lock_call(tx: &mut Tx, project: ProjectId, id: CallId) -> Result<GatedCall> {
    let call = match tx.unwritten_call(id) {
        Some(call) => call.clone(),
        None => {
            let record = match tx.calls_ahead.get(&id) {
                Some(record) => record.clone(),
                None => {
                    lock_calls(&mut tx.conn, &[(project, id)]).await?.remove(&id).ok_or(Error::NotFound)?
                }
            };
            read((record,))?
        }
    };
    if call.project_id == project { Ok(call) } else { Err(Error::NotFound) }
}

/// The last one again and again, so that there are a few statements and not one for each number.
fn padded(ids: BTreeSet<Uuid>) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = ids.into_iter().collect();
    let last = ids.last().copied().unwrap_or_default();
    ids.resize(ids.len().next_power_of_two(), last);
    ids
}

/// The calls as they are stored, for this transaction alone. SQLite has one writer; elsewhere the rows are locked,
/// although their owner's lane is, too: a lock on what is changed does not depend on how writers are spread.
pub(crate) async fn lock_calls(
    conn: &mut Conn,
    calls: &[(ProjectId, CallId)],
) -> Result<HashMap<CallId, String>, sqlx::Error> {
    // Calls of other projects than those that are asked about are not even locked.
    let projects = padded(calls.iter().map(|(project, _)| project.0).collect());
    let ids = padded(calls.iter().map(|(_, id)| id.0).collect());
    let lock = if matches!(conn, Conn::Lite(_)) { "" } else { " FOR UPDATE" };
    let rows: Vec<(Uuid, String)> = on!(conn, |c| {
        let mut query = sqlx::QueryBuilder::new("SELECT id, record FROM tool_calls WHERE id IN (");
        let mut list = query.separated(", ");
        for id in &ids {
            list.push_bind(*id);
        }
        query.push(") AND project_id IN (");
        let mut list = query.separated(", ");
        for project in &projects {
            list.push_bind(*project);
        }
        query.push(")").push(lock).build_query_as().fetch_all(c).await
    })?;
    Ok(rows.into_iter().map(|(id, record)| (CallId(id), record)).collect())
}

/// The agent remembers a call that is settled.
pub(crate) fn remember(tx: &mut Tx, owned: &Owned, call: &GatedCall) {
    if call.status.is_settled() {
        memos::call(tx, owned, call);
    }
}

/// The task that waits for a call goes on when the last of them is settled.
pub(crate) fn tell_task(tx: &mut Tx, owned: &Owned, call: &GatedCall, was_open: bool) {
    if was_open {
        remember(tx, owned, call);
    }
    if let Some(task) = call.task_id.filter(|_| was_open && call.status.is_settled()) {
        tx.keep_settled(task);
    }
}

/// Keeps the call as it is now and what was decided with it. The last act of a write: nothing in it can fail.
pub(crate) fn carry_out(tx: &mut Tx, owned: &Owned, call: GatedCall, decided: Decided) {
    if let Some(grant) = decided.grant {
        tx.keep_grant(grant.clone());
        tx.emit(owned.project, owned.owner, &Event::GrantMade { grant });
    }
    if let Some(audit) = decided.audit {
        tx.keep_audit(owned.project, audit);
    }
    for event in &decided.events {
        tx.emit(owned.project, owned.owner, event);
    }
    tx.keep_call(call);
}
