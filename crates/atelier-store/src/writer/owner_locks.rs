//! Locks on owners, which keep nodes on one PostgreSQL from writing for the same owner at the same
//! time.
//!
//! Limits (running tasks of an agent, open calls, waiting messages) are counted over many rows, so
//! the fence of a single row cannot keep two nodes from counting at the same time and both adding
//! one. The locks are advisory locks of the transaction: they end with it. If a node freezes in
//! the middle, PostgreSQL ends its transaction after three seconds (`db/pg.rs`). Until then only
//! the owners wait whose writes it holds: writes of owners that are blocked are set aside, and the
//! others of the same lane go on.

use crate::db::{DbError, PgConn};
use atelier_core::UserId;
use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, Row};
use std::{collections::BTreeSet, fmt::Write};

/// The first key of our advisory locks, which no other program in the same database should use.
const LOCK_KEY: i32 = 0x0061_746c;

/// The second key of the lock on an owner. Two owners may share one, which costs only time. Locks
/// are taken in their order, so that two groups cannot wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnerLock(i32);

pub(super) type OwnerLocks = BTreeSet<OwnerLock>;

impl OwnerLock {
    pub(super) fn of(owner: UserId) -> Self {
        let id = owner.0.as_u128();
        Self((id ^ (id >> 32) ^ (id >> 64) ^ (id >> 96)) as i32)
    }
}

/// Begins a transaction, locks the owners and returns the database's time. Waits a moment for locks
/// that are held elsewhere. Locks in `blocked` are only tried, as long as others have something to
/// do. Then `blocked` holds the locks that it did not get.
pub(super) async fn begin(
    conn: &mut PgConn,
    locks: &OwnerLocks,
    blocked: &mut OwnerLocks,
) -> Result<DateTime<Utc>, DbError> {
    let none = OwnerLocks::new();
    let (tried, awaited): (OwnerLocks, OwnerLocks) =
        locks.iter().partition(|lock| blocked.contains(lock));
    // Who waits stands in PostgreSQL's queue, so that nodes with many writes of one owner take
    // turns. The shorter wait keeps new writes of other owners from waiting long.
    let begun = if awaited.is_empty() {
        begin_with(conn, &tried, &none, "300ms").await
    } else {
        begin_with(conn, &awaited, &tried, "1s").await
    };
    let (time, taken) = match begun {
        Err(error) if is_lock_timeout(&error) => {
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            begin_with(conn, &none, locks, "1s").await?
        }
        begun => begun?,
    };
    *blocked = locks.difference(&taken).copied().collect();
    Ok(time)
}

/// Begins a transaction that waits for some locks and tries others. Returns the database's time and
/// the locks that it got.
async fn begin_with(
    conn: &mut PgConn,
    awaited: &OwnerLocks,
    tried: &OwnerLocks,
    wait: &str,
) -> Result<(DateTime<Utc>, OwnerLocks), DbError> {
    // All statements are sent in one round trip. The time comes last, because it may take a while
    // to get the locks.
    let mut sql = format!("BEGIN; SET LOCAL lock_timeout = '{wait}'; ");
    for lock in awaited {
        write_sql(&mut sql, format_args!("SELECT pg_advisory_xact_lock({LOCK_KEY}, {}); ", lock.0));
    }
    for lock in tried {
        let lock = lock.0;
        write_sql(
            &mut sql,
            format_args!(
                "SELECT {lock} AS tried, pg_try_advisory_xact_lock({LOCK_KEY}, {lock}) AS taken; "
            ),
        );
    }
    sql += "SET LOCAL lock_timeout = '15s'; SELECT clock_timestamp() AS time";
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    let mut taken = awaited.clone();
    for row in rows.iter().filter(|row| row.try_get("taken").unwrap_or(false)) {
        taken.insert(OwnerLock(row.try_get("tried")?));
    }
    let time = rows.last().ok_or(DbError::RowNotFound)?.try_get("time")?;
    Ok((time, taken))
}

fn write_sql(sql: &mut String, statement: std::fmt::Arguments<'_>) {
    sql.write_fmt(statement).unwrap_or_else(|_| unreachable!("a string accepts all text"));
}

fn is_lock_timeout(error: &DbError) -> bool {
    matches!(error, DbError::Postgres { code, .. } if code == "55P03")
}
