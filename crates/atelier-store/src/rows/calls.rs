//! Rows of tool calls, permissions and the audit.

use crate::{
    db::{Conn, DbError, SqlBuilder},
    rows::{json, new_id, write_rows},
};
use atelier_core::{
    CallId, ConversationId, ProjectId,
    gate::{Audit, GatedCall, Grant},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use uuid::Uuid;

/// The ids, with the last one repeated up to a power of two: so there are only a few different
/// statements to prepare.
fn padded(ids: BTreeSet<Uuid>) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = ids.into_iter().collect();
    let last = ids.last().copied().unwrap_or_default();
    ids.resize(ids.len().next_power_of_two(), last);
    ids
}

/// The stored calls, locked for this transaction. SQLite has one writer anyway. PostgreSQL locks
/// the rows, although their owner is locked too, so that correctness does not depend on how owners
/// are locked.
pub(crate) async fn lock_calls(
    conn: &mut Conn,
    calls: &[(ProjectId, CallId)],
) -> Result<HashMap<CallId, String>, DbError> {
    // A call of another project is not even locked.
    let projects = padded(calls.iter().map(|(project, _)| project.0).collect());
    let ids = padded(calls.iter().map(|(_, id)| id.0).collect());
    let lock = if matches!(conn, Conn::Lite(_)) { "" } else { " FOR UPDATE" };
    let mut query = SqlBuilder::new("SELECT id, record FROM tool_calls WHERE id IN (");
    let mut list = query.separated(", ");
    for id in &ids {
        list.push_bind(*id);
    }
    query.push(") AND project_id IN (");
    let mut list = query.separated(", ");
    for project in &projects {
        list.push_bind(*project);
    }
    let rows: Vec<(Uuid, String)> = query.push(")").push(lock).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, record)| (CallId(id), record)).collect())
}

pub(crate) async fn write_calls(
    conn: &mut Conn,
    calls: BTreeMap<CallId, GatedCall>,
) -> Result<(), DbError> {
    write_rows!(
        conn,
        calls,
        "INSERT INTO tool_calls (id, project_id, approval_id, approval_status, status, deadline, \
         requested_by, workspace, record) ",
        |row, (id, call)| {
            row.push_bind(id.0)
                .push_bind(call.project_id.0)
                .push_bind(call.approval_id.map(|id| id.0))
                .push_bind(call.approval.as_ref().map(|approval| approval.status.as_str()))
                .push_bind(call.status.as_str())
                .push_bind(call.deadline)
                .push_bind(call.requested_by.map(|token| token.0))
                .push_bind(call.workspace.as_str())
                .push_bind(json(&call));
        },
        " ON CONFLICT (id) DO UPDATE SET approval_id = excluded.approval_id,
          approval_status = excluded.approval_status, status = excluded.status, deadline = \
          excluded.deadline,
          record = excluded.record"
    )
}

pub(crate) async fn write_grants(conn: &mut Conn, grants: Vec<Grant>) -> Result<(), DbError> {
    write_rows!(
        conn,
        grants,
        "INSERT INTO grants (id, project_id, session, record) ",
        |row, grant| {
            row.push_bind(grant.id.0)
                .push_bind(grant.project_id.0)
                .push_bind(grant.session)
                .push_bind(json(&grant));
        },
        ""
    )
}

pub(crate) async fn write_audit(
    conn: &mut Conn,
    audit: Vec<(ProjectId, Audit)>,
) -> Result<(), DbError> {
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

/// Records which conversations have seen results that may hold secrets.
pub(crate) async fn write_withheld_calls(
    conn: &mut Conn,
    calls: Vec<(CallId, ConversationId)>,
) -> Result<(), DbError> {
    write_rows!(
        conn,
        calls,
        "INSERT INTO withheld_calls (call_id, session_id) ",
        |row, (call, session)| {
            row.push_bind(call.0).push_bind(session.0);
        },
        " ON CONFLICT (call_id) DO NOTHING"
    )
}
