//! Rows and their columns: JSON in and out, times and ids, statements for several rows, pages of a
//! list.
//!
//! The submodules write the rows of one kind each. They know the database and nothing of the
//! modules that decide what to write.

pub(crate) mod calls;
pub(crate) mod collections;
pub(crate) mod interactions;
pub(crate) mod messages;
pub(crate) mod request_keys;
pub(crate) mod tasks;
pub(crate) mod usage;

use crate::{Error, Result, db::Conn};
use chrono::{DateTime, SubsecRound, Utc};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use uuid::Uuid;

/// The current time with the precision that both databases store: microseconds.
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now().trunc_subsecs(6)
}

/// A day of UTC as the database has it. Texts of days have the order of the days.
pub(crate) fn day(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d").to_string()
}

/// The database's time, so that all nodes agree.
pub(crate) async fn database_time(conn: &mut Conn) -> Result<DateTime<Utc>, sqlx::Error> {
    match conn {
        // SQLite has one node, whose clock counts.
        Conn::Lite(_) => Ok(now()),
        Conn::Pg(conn) => {
            let (time,): (DateTime<Utc>,) =
                sqlx::query_as("SELECT clock_timestamp()").fetch_one(&mut *conn).await?;
            Ok(time.trunc_subsecs(6))
        }
    }
}

pub(crate) fn new_id() -> Uuid {
    Uuid::now_v7()
}

/// The smallest id that can be made at this time: ids begin with their time.
pub(crate) fn first_id(time: DateTime<Utc>) -> Uuid {
    let milliseconds = u64::try_from(time.timestamp_millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(milliseconds, &[0; 10]).into_uuid()
}

/// Turns a stored value that does not parse into an error. This happens only if somebody has
/// changed the database by hand.
pub(crate) fn corrupt<T>(parsed: Result<T, impl std::fmt::Display>) -> Result<T> {
    parsed.map_err(|error| Error::Corrupt(error.to_string()))
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value)
        .unwrap_or_else(|error| unreachable!("plain values with string keys are JSON: {error}"))
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    corrupt(serde_json::from_str(text))
}

/// Reads a row of the one column `record`.
pub(crate) fn read_record<T: DeserializeOwned>((record,): (String,)) -> Result<T> {
    from_json(&record)
}

/// Reads a value that is stored by its name on the wire.
pub(crate) fn from_name<T: DeserializeOwned>(name: String) -> Result<T> {
    corrupt(serde_json::from_value(Value::String(name)))
}

/// Reads a time that is stored as microseconds since 1970.
pub(crate) fn from_micros(micros: i64) -> Result<DateTime<Utc>> {
    let time = DateTime::from_timestamp_micros(micros);
    time.ok_or_else(|| Error::Corrupt(format!("{micros} is not a time")))
}

/// Names the error of a write that would store a name twice.
pub(crate) fn name_taken(error: sqlx::Error) -> Error {
    match error.as_database_error() {
        Some(refusal) if refusal.is_unique_violation() => Error::NameTaken,
        _ => Error::Sql(error),
    }
}

/// How many of the remaining rows the next statement takes. A database prepares a statement once
/// for each number of rows, so only a dozen different numbers are used.
pub(crate) fn rows_at_once(left: usize) -> usize {
    match left {
        ..=8 => left.max(1),
        9..16 => 8,
        16..64 => 16,
        64.. => 64,
    }
}

/// Writes rows in as few statements as `rows_at_once` allows. The arguments are the SQL before the
/// rows, the values of one row, and the SQL after the rows.
macro_rules! write_rows {
    ($conn:expr, $rows:expr, $before:expr, |$row:ident, $one:pat_param| $bind:block, $after:expr) => {{
        let mut left = $rows.into_iter();
        while left.len() > 0 {
            let size = $crate::rows::rows_at_once(left.len());
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

/// One page of a list, and how long the whole list is: `(Vec<row>, i64)`. `$from` is the SQL after
/// `FROM` with its conditions, and `$bind` are the values of its placeholders, in order.
macro_rules! page {
    (
        $conn:expr, SELECT $columns:expr, FROM $from:expr, ORDER BY $order:expr,
        [$($bind:expr),+ $(,)?], $limit:expr, $offset:expr $(,)?
    ) => {{
        let values = [$(stringify!($bind)),+].len();
        let (limit, offset): (i64, i64) = ($limit, $offset);
        let select = sqlx::AssertSqlSafe(format!(
            "SELECT {} FROM {} ORDER BY {} LIMIT ${} OFFSET ${}",
            $columns, $from, $order, values + 1, values + 2
        ));
        let count = sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {}", $from));
        $crate::db::on!($conn, |c| {
            let rows = sqlx::query_as(select)$(.bind($bind))+.bind(limit).bind(offset);
            let rows = rows.fetch_all(&mut *c).await?;
            let total: (i64,) = sqlx::query_as(count)$(.bind($bind))+.fetch_one(&mut *c).await?;
            (rows, total.0)
        })
    }};
}
pub(crate) use page;
