//! Tool calls, standing permissions and the audit of every decision.
//!
//! Decisions are pure functions of `atelier_core::gate`. The store reads the call and its context,
//! lets them decide, and writes the call, its effects and their events, all in one transaction.

use crate::{
    Error, Owned, Result, Store, Tx,
    auto_interactions::remember_call,
    db::on,
    decision_context::grants,
    pending::PendingRows,
    read_cache::Prefetch,
    request_keys::earlier_answer,
    rows::{
        calls::lock_calls, database_time, first_id, now, page, read_record,
        request_keys::RequestKey,
    },
    writer::GroupReader,
};
use atelier_core::{
    ApprovalId, CallId, Event, GrantId, Invalid, ProjectId, TokenId, UserId,
    gate::{
        ApprovalStatus, Audit, DecisionContext, Effects, GateInput, GateRules, GatedCall, Grant,
        NewCall, NewIds, Refusal,
    },
};
use chrono::{DateTime, Utc};
use std::sync::Arc;
use uuid::Uuid;

/// SQL condition on `grants`: the permission's session is over. A machine that is only silent may
/// come back to its session.
macro_rules! session_is_over {
    () => {
        "NOT EXISTS (SELECT 1 FROM clients c WHERE c.id = grants.session)
         AND NOT EXISTS (SELECT 1 FROM conversations v WHERE v.id = grants.session)"
    };
}

/// A decision that was stored.
#[derive(Debug)]
pub struct Decided {
    pub call: GatedCall,
    /// The permission that an approval made.
    pub grant: Option<Grant>,
}

impl Store {
    /// Stores a new call with what the gate decides about it. If a call was stored before with the
    /// same key, returns only the id of that call.
    pub async fn add_call(
        &self,
        owned: &Owned,
        rules: Arc<GateRules>,
        new: NewCall,
        key: Option<RequestKey>,
    ) -> Result<Result<Result<GatedCall, CallId>, Invalid>> {
        let owned = owned.clone();
        self.write_deferred(owned.owner, None, move |group| {
            Box::pin(async move {
                if let Some(key) = &key
                    && let Some(earlier) = earlier_answer(group, owned.project, key).await?
                {
                    return Ok((Ok(Err(earlier)), PendingRows::default()));
                }
                let context = group.decision_context(owned.project).await?;
                if context.deleted {
                    return Err(Error::NotFound);
                }
                let mut rows = PendingRows::default();
                let begun = rules.begin(owned.project, new, &context, new_ids());
                let stored = begun.map(|(call, effects)| {
                    store_decision(&mut rows, &owned, call.clone(), effects);
                    remember(&mut rows, &owned, &call);
                    rows.request_keys.extend(key.map(|key| key.row(owned.project, &call.tool_id)));
                    Ok(call)
                });
                Ok((stored, rows))
            })
        })
        .await
    }

    /// Decides what an input does to a call, and stores it. Decisions about one call are made one
    /// after the other, on every node.
    pub async fn decide(
        &self,
        owned: &Owned,
        id: CallId,
        rules: Arc<GateRules>,
        input: GateInput,
    ) -> Result<Result<Decided, Refusal>> {
        let owned = owned.clone();
        let prefetch = Prefetch { project: owned.project, call: id };
        self.write_deferred(owned.owner, Some(prefetch), move |group| {
            Box::pin(async move {
                let call = lock_call(group, owned.project, id).await?;
                let context = match input.needs_project() {
                    true => group.decision_context(owned.project).await?,
                    false => DecisionContext::time_only(group.time().await?),
                };
                let was_open = !call.status.is_settled();
                let mut rows = PendingRows::default();
                let decided = rules.decide(call, input, &context, new_ids());
                let stored = decided.map(|(call, effects)| {
                    let grant = effects.grant.clone();
                    store_decision(&mut rows, &owned, call.clone(), effects);
                    wake_task(&mut rows, &owned, &call, was_open);
                    Decided { call, grant }
                });
                Ok((stored, rows))
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
        read_record(row.ok_or(Error::NotFound)?)
    }

    /// The call that an approval is about. Only a call's newest approval is known.
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

    /// The project's calls, newest first, optionally of one status.
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
        let (rows, total) = page!(
            &mut conn,
            SELECT "record",
            FROM "tool_calls WHERE project_id = $1 AND ($2 OR status = $3)",
            ORDER BY "id DESC",
            [owned.project.0, any, &status],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_record).collect::<Result<_>>()?, total))
    }

    /// Calls that a person was asked about, newest first, optionally by the status of the approval.
    pub async fn approvals(
        &self,
        owned: &Owned,
        status: Option<ApprovalStatus>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<GatedCall>, i64)> {
        let mut conn = self.db.connect().await?;
        let (any, status) = (status.is_none(), status.map_or("", ApprovalStatus::as_str));
        let (rows, total) = page!(
            &mut conn,
            SELECT "record",
            FROM "tool_calls WHERE project_id = $1 AND approval_status IS NOT NULL
                  AND ($2 OR approval_status = $3)",
            ORDER BY "id DESC",
            [owned.project.0, any, status],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_record).collect::<Result<_>>()?, total))
    }

    /// Removes settled calls that were made before `calls`, machines that were last heard of before
    /// then, permissions from before then whose session is over, and audit records from before
    /// `audit`.
    pub async fn sweep_calls(&self, calls: DateTime<Utc>, audit: DateTime<Utc>) -> Result<u64> {
        let (first, audit, before) = (first_id(calls), first_id(audit), calls);
        let mut conn = self.db.connect().await?;
        let owners: Vec<(Uuid, Uuid)> = on!(&mut conn, |c| {
            sqlx::query_as(concat!(
                "SELECT id, user_id FROM projects p
                 WHERE EXISTS (SELECT 1 FROM tool_calls t
                               WHERE t.project_id = p.id AND t.id < $1 AND t.deadline IS NULL)
                    OR EXISTS (SELECT 1 FROM clients c
                               WHERE c.project_id = p.id AND c.silent AND c.lease_until < $3)
                    OR EXISTS (SELECT 1 FROM grants WHERE project_id = p.id AND id < $1 AND ",
                session_is_over!(),
                ") OR EXISTS (SELECT 1 FROM audit a WHERE a.project_id = p.id AND a.id < $2)"
            ))
            .bind(first)
            .bind(audit)
            .bind(before)
            .fetch_all(c)
            .await
        })?;
        drop(conn);
        let mut removed = 0;
        for (project, owner) in owners {
            removed += self
                .write(UserId(owner), move |tx| {
                    Box::pin(async move {
                        on!(&mut tx.conn, |c| {
                            // A call without a deadline is settled.
                            let calls = sqlx::query(
                                "DELETE FROM tool_calls WHERE project_id = $1 AND id < $2 AND \
                                 deadline IS NULL",
                            )
                            .bind(project)
                            .bind(first)
                            .execute(&mut *c)
                            .await?
                            .rows_affected();
                            sqlx::query(
                                "DELETE FROM clients WHERE project_id = $1 AND silent
                                 AND lease_until < $2",
                            )
                            .bind(project)
                            .bind(before)
                            .execute(&mut *c)
                            .await?;
                            sqlx::query(concat!(
                                "DELETE FROM grants WHERE project_id = $1 AND id < $2 AND ",
                                session_is_over!()
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

    /// Calls that wait for the user's decision, in one project or in all, oldest first.
    pub async fn pending_calls(
        &self,
        user: UserId,
        project: Option<ProjectId>,
    ) -> Result<Vec<GatedCall>> {
        let mut conn = self.db.connect().await?;
        let (any, project) = (project.is_none(), project.map_or(Uuid::nil(), |project| project.0));
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            // CROSS JOIN, because SQLite would otherwise scan all calls first.
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
        rows.into_iter().map(read_record).collect()
    }

    /// How many calls of a user are not settled: all, or those that one agent token asked for.
    pub async fn open_calls(&self, user: UserId, token: Option<TokenId>) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let (any, token) = (token.is_none(), token.map_or(Uuid::nil(), |token| token.0));
        let (open,): (i64,) = on!(&mut conn, |c| sqlx::query_as(
            // CROSS JOIN, because SQLite would otherwise scan all calls first.
            "SELECT COUNT(*) FROM projects p CROSS JOIN tool_calls t
             WHERE p.user_id = $1 AND t.project_id = p.id AND t.deadline IS NOT NULL
             AND ($2 OR t.requested_by = $3)"
        )
        .bind(user.0)
        .bind(any)
        .bind(token)
        .fetch_one(c)
        .await)?;
        Ok(open)
    }

    /// How many bytes the calls of a user take, with their results.
    pub async fn stored_call_bytes(&self, user: UserId) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let (bytes,): (i64,) = on!(&mut conn, |c| sqlx::query_as(
            "SELECT CAST(COALESCE(SUM(octet_length(t.record)), 0) AS BIGINT)
             FROM projects p CROSS JOIN tool_calls t WHERE p.user_id = $1 AND t.project_id = p.id"
        )
        .bind(user.0)
        .fetch_one(c)
        .await)?;
        Ok(bytes)
    }

    /// Calls by their ids. Ids of other projects are left out.
    pub async fn calls_by_id(&self, owned: &Owned, ids: &[CallId]) -> Result<Vec<GatedCall>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = on!(&mut conn, |c| {
            let mut query =
                sqlx::QueryBuilder::new("SELECT record FROM tool_calls WHERE project_id = ");
            query.push_bind(owned.project.0).push(" AND id IN (");
            let mut list = query.separated(", ");
            for id in ids {
                list.push_bind(id.0);
            }
            query.push(")");
            query.build_query_as().fetch_all(c).await
        })?;
        rows.into_iter().map(read_record).collect()
    }

    /// Calls whose deadline has passed, with their project and its owner.
    pub async fn due_calls(&self, limit: i64) -> Result<Vec<(Owned, CallId)>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT t.id, p.id, p.user_id, p.tenant_id FROM tool_calls t JOIN projects p ON p.id \
             = t.project_id
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

    /// Calls on conversations' own files that the server has to preview or to run.
    pub async fn own_file_calls(&self, limit: i64) -> Result<Vec<(Owned, GatedCall)>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String, Uuid, Uuid, String)> = on!(&mut conn, |c| {
            sqlx::query_as(
                "SELECT t.record, p.id, p.user_id, p.tenant_id FROM tool_calls t
                 JOIN projects p ON p.id = t.project_id
                 WHERE t.workspace = 'conversation' AND t.deadline IS NOT NULL
                   AND t.status IN ('previewing', 'dispatched')
                 ORDER BY t.deadline LIMIT $1",
            )
            .bind(limit)
            .fetch_all(c)
            .await
        })?;
        let open = |(record, project, owner, tenant): (String, Uuid, Uuid, String)| {
            Ok((Owned::from_row((project, owner, tenant))?, read_record((record,))?))
        };
        rows.into_iter().map(open).collect()
    }

    pub async fn grants(&self, owned: &Owned) -> Result<Vec<Grant>> {
        let mut conn = self.db.connect().await?;
        grants(&mut conn, owned.project).await
    }

    pub async fn withdraw_grant(&self, owned: &Owned, id: GrantId, audit: Audit) -> Result<Grant> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let row: Option<(String,)> = on!(&mut tx.conn, |c| {
                    sqlx::query_as(
                    "UPDATE grants SET withdrawn_at = $1 WHERE id = $2 AND project_id = $3 AND \
                     withdrawn_at IS NULL
                     RETURNING record"
                )
                .bind(now())
                .bind(id.0)
                .bind(owned.project.0)
                .fetch_optional(c)
                .await
                })?;
                let mut grant: Grant = read_record(row.ok_or(Error::NotFound)?)?;
                grant.withdrawn_at = Some(now());
                tx.rows.audit.push((owned.project, audit));
                tx.emit(owned.project, owned.owner, &Event::GrantWithdrawn { grant_id: id });
                Ok(grant)
            })
        })
        .await
    }

    /// The project's audit records, newest first, and how many there are.
    pub async fn audit(&self, owned: &Owned, limit: i64, offset: i64) -> Result<(Vec<Audit>, i64)> {
        let mut conn = self.db.connect().await?;
        let (rows, total) = page!(
            &mut conn,
            SELECT "record",
            FROM "audit WHERE project_id = $1",
            ORDER BY "id DESC",
            [owned.project.0],
            limit,
            offset,
        );
        Ok((rows.into_iter().map(read_record).collect::<Result<_>>()?, total))
    }
}

/// Withdraws the permissions of a session that is over.
pub(crate) async fn end_session(tx: &mut Tx, owned: &Owned, session: Uuid) -> Result<()> {
    let ended: Vec<(Uuid,)> = on!(&mut tx.conn, |c| {
        sqlx::query_as(
            "UPDATE grants SET withdrawn_at = $1 WHERE project_id = $2 AND session = $3 AND \
         withdrawn_at IS NULL
         RETURNING id",
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

/// The call, locked for this transaction.
pub(crate) async fn lock_call(
    group: &mut GroupReader,
    project: ProjectId,
    id: CallId,
) -> Result<GatedCall> {
    let call = match group.unwritten.calls.get(&id) {
        Some(call) => call.clone(),
        None => {
            let record = match group.cache.calls.get(&id) {
                Some(record) => record.clone(),
                None => {
                    let mut locked = lock_calls(&mut group.conn, &[(project, id)]).await?;
                    locked.remove(&id).ok_or(Error::NotFound)?
                }
            };
            read_record((record,))?
        }
    };
    if call.project_id == project { Ok(call) } else { Err(Error::NotFound) }
}

/// Ids for what a decision may make.
pub(crate) fn new_ids() -> NewIds {
    NewIds { approval: ApprovalId(Uuid::now_v7()), grant: GrantId(Uuid::now_v7()) }
}

/// Adds a settled call to the memory of its agent.
pub(crate) fn remember(rows: &mut PendingRows, owned: &Owned, call: &GatedCall) {
    if call.status.is_settled() {
        remember_call(rows, owned, call);
    }
}

/// Notes for the task of a call that the call is settled. The task continues after its last call.
/// `was_open` says whether the call was open before the decision.
pub(crate) fn wake_task(rows: &mut PendingRows, owned: &Owned, call: &GatedCall, was_open: bool) {
    if was_open {
        remember(rows, owned, call);
    }
    if let Some(task) = call.task_id.filter(|_| was_open && call.status.is_settled()) {
        rows.settled_calls.push(task);
    }
}

/// Logs why a call has to wait although a machine is connected.
pub(crate) fn log_problem(effects: &Effects, call: CallId) {
    if let Some(invalid) = &effects.problem {
        tracing::warn!(%invalid, %call, "a call waits: the project's restrictions cannot be read");
    }
}

/// Adds the call and the effects of a decision to the rows of a write.
pub(crate) fn store_decision(
    rows: &mut PendingRows,
    owned: &Owned,
    call: GatedCall,
    effects: Effects,
) {
    log_problem(&effects, call.tool_id);
    if let Some(grant) = effects.grant {
        rows.grants.push(grant.clone());
        rows.emit(owned.project, owned.owner, &Event::GrantMade { grant });
    }
    if let Some(audit) = effects.audit {
        rows.audit.push((owned.project, audit));
    }
    for event in &effects.events {
        rows.emit(owned.project, owned.owner, event);
    }
    rows.calls.insert(call.tool_id, call);
}
