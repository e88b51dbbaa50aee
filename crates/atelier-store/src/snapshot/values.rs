//! Values of rows in the form that the embedded database stores, and their way into PostgreSQL.

use super::Column;
use crate::{
    Error, Result,
    db::{self, DbError, PgConn, Row, time_text},
    rows::corrupt,
};
use chrono::{DateTime, SubsecRound, Utc};
use rusqlite::types::ValueRef;
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, postgres::PgRow};
use std::fmt;
use uuid::Uuid;

/// A value, as SQLite stores it. Ids are bytes, times are text, and truth values are numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// Whatever SQLite has stored.
    AsStored,
    Uuid,
    Text,
    Time,
    Int,
    /// A number of 32 bits.
    ShortInt,
    Real,
    Bool,
    Bytes,
}

impl Type {
    pub(super) fn of_postgres(name: &str) -> Result<Self> {
        Ok(match name {
            "uuid" => Type::Uuid,
            "text" => Type::Text,
            "timestamp with time zone" => Type::Time,
            "bigint" => Type::Int,
            "integer" => Type::ShortInt,
            "double precision" => Type::Real,
            "boolean" => Type::Bool,
            "bytea" => Type::Bytes,
            other => {
                return Err(Error::Corrupt(format!("a column has the unknown type {other}")));
            }
        })
    }
}

impl From<Value> for db::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => None::<i64>.into(),
            Value::Int(number) => number.into(),
            Value::Real(number) => number.into(),
            Value::Text(text) => text.into(),
            Value::Bytes(bytes) => bytes.into(),
        }
    }
}

/// Cuts times to microseconds, the precision of PostgreSQL.
pub(super) fn with_microseconds(mut row: Vec<Value>, columns: &[Column]) -> Result<Vec<Value>> {
    for (value, column) in row.iter_mut().zip(columns) {
        if let (Value::Text(text), Type::Time) = (&mut *value, column.r#type) {
            let time = corrupt(DateTime::parse_from_rfc3339(text))?.to_utc();
            *text = time_text(time.trunc_subsecs(6));
        }
    }
    Ok(row)
}

pub(super) fn of_sqlite(row: &rusqlite::Row<'_>) -> Result<Vec<Value>> {
    let value = |index: usize| -> Result<Value> {
        let text = |text: &[u8]| corrupt(String::from_utf8(text.to_vec()));
        Ok(match row.get_ref(index).map_err(DbError::from)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Int(number),
            ValueRef::Real(number) => Value::Real(number),
            ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
            ValueRef::Text(bytes) => Value::Text(text(bytes)?),
        })
    };
    (0..row.as_ref().column_count()).map(value).collect()
}

pub(super) fn of_postgres(row: &PgRow, columns: &[Column]) -> Result<Vec<Value>> {
    let row = Row::Pg(row);
    let value = |(index, column): (usize, &Column)| -> Result<Value> {
        let value = match column.r#type {
            Type::Uuid => {
                let id: Option<Uuid> = row.get(index)?;
                id.map(|id| Value::Bytes(id.into_bytes().to_vec()))
            }
            Type::Time => {
                let time: Option<DateTime<Utc>> = row.get(index)?;
                time.map(|time| Value::Text(time_text(time)))
            }
            Type::Bool => {
                let truth: Option<bool> = row.get(index)?;
                truth.map(|truth| Value::Int(truth.into()))
            }
            Type::Int => row.get::<Option<i64>>(index)?.map(Value::Int),
            Type::ShortInt => {
                row.get::<Option<i32>>(index)?.map(|number| Value::Int(number.into()))
            }
            Type::Real => row.get::<Option<f64>>(index)?.map(Value::Real),
            Type::Bytes => row.get::<Option<Vec<u8>>>(index)?.map(Value::Bytes),
            Type::Text | Type::AsStored => row.get::<Option<String>>(index)?.map(Value::Text),
        };
        Ok(value.unwrap_or(Value::Null))
    };
    columns.iter().enumerate().map(value).collect()
}

/// Rows that wait to be inserted into PostgreSQL, column by column.
pub(super) struct Rows {
    columns: Vec<Values>,
    len: usize,
}

enum Values {
    Uuid(Vec<Option<Uuid>>),
    Text(Vec<Option<String>>),
    Time(Vec<Option<DateTime<Utc>>>),
    Int(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Values {
    fn new(r#type: Type) -> Self {
        match r#type {
            Type::Uuid => Values::Uuid(Vec::new()),
            Type::Text | Type::AsStored => Values::Text(Vec::new()),
            Type::Time => Values::Time(Vec::new()),
            // PostgreSQL converts them to the type of the column.
            Type::Int | Type::ShortInt => Values::Int(Vec::new()),
            Type::Real => Values::Real(Vec::new()),
            Type::Bool => Values::Bool(Vec::new()),
            Type::Bytes => Values::Bytes(Vec::new()),
        }
    }

    /// The type of an array of these values in PostgreSQL.
    fn array(&self) -> &'static str {
        match self {
            Values::Uuid(_) => "uuid[]",
            Values::Text(_) => "text[]",
            Values::Time(_) => "timestamptz[]",
            Values::Int(_) => "bigint[]",
            Values::Real(_) => "double precision[]",
            Values::Bool(_) => "boolean[]",
            Values::Bytes(_) => "bytea[]",
        }
    }

    fn push(&mut self, value: Value) -> Result<()> {
        match (self, value) {
            (Values::Uuid(values), Value::Null) => values.push(None),
            (Values::Text(values), Value::Null) => values.push(None),
            (Values::Time(values), Value::Null) => values.push(None),
            (Values::Int(values), Value::Null) => values.push(None),
            (Values::Real(values), Value::Null) => values.push(None),
            (Values::Bool(values), Value::Null) => values.push(None),
            (Values::Bytes(values), Value::Null) => values.push(None),
            (Values::Uuid(values), Value::Bytes(bytes)) => {
                values.push(Some(corrupt(Uuid::from_slice(&bytes))?));
            }
            (Values::Text(values), Value::Text(text)) => values.push(Some(text)),
            (Values::Time(values), Value::Text(text)) => {
                let time = corrupt(DateTime::parse_from_rfc3339(&text))?;
                values.push(Some(time.to_utc()));
            }
            (Values::Int(values), Value::Int(number)) => values.push(Some(number)),
            (Values::Real(values), Value::Real(number)) => values.push(Some(number)),
            (Values::Bool(values), Value::Int(number)) => values.push(Some(number != 0)),
            (Values::Bytes(values), Value::Bytes(bytes)) => values.push(Some(bytes)),
            (values, other) => {
                return Err(Error::Corrupt(format!("{other:?} does not fit {}", values.array())));
            }
        }
        Ok(())
    }
}

impl Rows {
    pub(super) fn new(columns: &[Column]) -> Self {
        let columns = columns.iter().map(|column| Values::new(column.r#type)).collect();
        Self { columns, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, row: Vec<Value>) -> Result<()> {
        for (values, value) in self.columns.iter_mut().zip(row) {
            values.push(value)?;
        }
        self.len += 1;
        Ok(())
    }

    /// Inserts the rows with one statement, and is empty then.
    pub(super) async fn insert(
        &mut self,
        conn: &mut PgConn,
        table: &str,
        column_list: &str,
    ) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        let arrays: Vec<String> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, values)| format!("${}::{}", index + 1, values.array()))
            .collect();
        let sql = format!(
            "INSERT INTO \"{table}\" ({column_list}) OVERRIDING SYSTEM VALUE
             SELECT * FROM unnest({})",
            arrays.join(", ")
        );
        let mut insert = sqlx::query(AssertSqlSafe(sql));
        for values in &mut self.columns {
            insert = match values {
                Values::Uuid(values) => insert.bind(std::mem::take(values)),
                Values::Text(values) => insert.bind(std::mem::take(values)),
                Values::Time(values) => insert.bind(std::mem::take(values)),
                Values::Int(values) => insert.bind(std::mem::take(values)),
                Values::Real(values) => insert.bind(std::mem::take(values)),
                Values::Bool(values) => insert.bind(std::mem::take(values)),
                Values::Bytes(values) => insert.bind(std::mem::take(values)),
            };
        }
        insert.execute(conn).await.map_err(DbError::from)?;
        self.len = 0;
        Ok(())
    }
}

/// A hash of rows that does not depend on their order: the sum of the hashes of the rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    rows: u64,
    sum: u128,
}

impl Digest {
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn add(&mut self, row: &[Value]) {
        let mut hash = Sha256::new();
        for value in row {
            let (tag, bytes): (u8, &[u8]) = match value {
                Value::Null => (0, &[]),
                Value::Int(number) => (1, &number.to_le_bytes()),
                Value::Real(number) => (2, &number.to_le_bytes()),
                Value::Text(text) => (3, text.as_bytes()),
                Value::Bytes(bytes) => (4, bytes),
            };
            hash.update([tag]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        let mut half = [0; 16];
        half.copy_from_slice(&hash.finalize()[..16]);
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(half));
        self.rows += 1;
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}
