//! Values that statements carry to the database, and columns that come back.
//!
//! SQLite stores ids as bytes, times as text and truth values as numbers. Databases of earlier
//! versions hold these forms, so they never change.

use super::DbError;
use chrono::{DateTime, NaiveDateTime, SecondsFormat, Utc};
use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::{
    Arguments, Postgres,
    postgres::{PgArguments, PgRow},
};
use uuid::Uuid;

/// A value for a placeholder. An absent value has a type too, because PostgreSQL asks for it.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Uuid(Option<Uuid>),
    Text(Option<String>),
    Time(Option<DateTime<Utc>>),
    Int(Option<i64>),
    /// A number of 32 bits.
    ShortInt(Option<i32>),
    Real(Option<f64>),
    Bool(Option<bool>),
    Bytes(Option<Vec<u8>>),
    /// An array, which only PostgreSQL knows.
    Uuids(Vec<Uuid>),
    Texts(Vec<String>),
}

/// The form in which SQLite stores a time.
pub(crate) fn time_text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, false)
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let borrowed = |value| Ok(ToSqlOutput::Borrowed(value));
        match self {
            Value::Uuid(Some(id)) => borrowed(ValueRef::Blob(id.as_bytes())),
            Value::Text(Some(text)) => borrowed(ValueRef::Text(text.as_bytes())),
            Value::Time(Some(time)) => Ok(ToSqlOutput::Owned(time_text(*time).into())),
            Value::Int(Some(number)) => borrowed(ValueRef::Integer(*number)),
            Value::ShortInt(Some(number)) => borrowed(ValueRef::Integer((*number).into())),
            Value::Real(Some(number)) => borrowed(ValueRef::Real(*number)),
            Value::Bool(Some(truth)) => borrowed(ValueRef::Integer((*truth).into())),
            Value::Bytes(Some(bytes)) => borrowed(ValueRef::Blob(bytes)),
            Value::Uuids(_) | Value::Texts(_) => {
                Err(rusqlite::Error::ToSqlConversionFailure("SQLite knows no arrays".into()))
            }
            _ => borrowed(ValueRef::Null),
        }
    }
}

impl Value {
    pub(super) fn add_to(self, arguments: &mut PgArguments) -> Result<(), DbError> {
        let added = match self {
            Value::Uuid(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Time(value) => arguments.add(value),
            Value::Int(value) => arguments.add(value),
            Value::ShortInt(value) => arguments.add(value),
            Value::Real(value) => arguments.add(value),
            Value::Bool(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Uuids(values) => arguments.add(values),
            Value::Texts(values) => arguments.add(values),
        };
        added.map_err(|error| DbError::Other(error.to_string()))
    }
}

macro_rules! values {
    ($($variant:ident: $($from:ty)|+, |$value:pat_param| $owned:expr;)+) => {$($(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                Value::$variant($owned)
            }
        }
    )+)+};
}

values! {
    Uuid: Uuid, |id| Some(id);
    Uuid: Option<Uuid>, |id| id;
    Text: String, |text| Some(text);
    Text: &str | &String, |text| Some(text.to_owned());
    Text: Option<String>, |text| text;
    Text: Option<&str> | &Option<String>, |text| text.to_owned().map(|text| text.to_owned());
    Time: DateTime<Utc>, |time| Some(time);
    Time: Option<DateTime<Utc>>, |time| time;
    Int: i64, |number| Some(number);
    Int: Option<i64>, |number| number;
    ShortInt: i32, |number| Some(number);
    ShortInt: Option<i32>, |number| number;
    Real: f64, |number| Some(number);
    Real: Option<f64>, |number| number;
    Bool: bool, |truth| Some(truth);
    Bool: Option<bool>, |truth| truth;
    Bytes: Vec<u8>, |bytes| Some(bytes);
    Bytes: &[u8] | &Vec<u8>, |bytes| Some(bytes.to_vec());
    Bytes: Option<Vec<u8>>, |bytes| bytes;
    Bytes: &Option<Vec<u8>>, |bytes| bytes.clone();
    Uuids: Vec<Uuid>, |ids| ids;
    Texts: Vec<String>, |texts| texts;
}

/// A row of either database.
pub(crate) enum Row<'r> {
    Lite(&'r rusqlite::Row<'r>),
    Pg(&'r PgRow),
}

impl Row<'_> {
    pub(crate) fn get<T: Column>(&self, index: usize) -> Result<T, DbError> {
        match self {
            Row::Lite(row) => {
                let value = row.get_ref(index)?;
                T::of_lite(value).ok_or_else(|| DbError::Column {
                    column: index,
                    reason: format!("unexpected {}", value.data_type()),
                })
            }
            Row::Pg(row) => Ok(sqlx::Row::try_get(*row, index)?),
        }
    }
}

/// A type that a column can have.
pub(crate) trait Column: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> {
    /// `None` if the value is something else.
    fn of_lite(value: ValueRef<'_>) -> Option<Self>;
}

macro_rules! columns {
    ($($type:ty, $($value:pat => $read:expr),+;)+) => {$(
        impl Column for $type {
            fn of_lite(value: ValueRef<'_>) -> Option<Self> {
                match value {
                    $($value => $read,)+
                    _ => None,
                }
            }
        }
    )+};
}

columns! {
    Uuid, ValueRef::Blob(bytes) => Uuid::from_slice(bytes).ok();
    String, ValueRef::Text(text) => String::from_utf8(text.to_vec()).ok();
    i64, ValueRef::Integer(number) => Some(number);
    i32, ValueRef::Integer(number) => i32::try_from(number).ok();
    f64, ValueRef::Real(number) => Some(number), ValueRef::Integer(number) => Some(number as f64);
    bool, ValueRef::Integer(number) => Some(number != 0);
    Vec<u8>, ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Some(bytes.to_vec());
    DateTime<Utc>, ValueRef::Text(text) => read_time(str::from_utf8(text).ok()?);
}

/// Reads a time in the form of [`time_text`], or in the form of `CURRENT_TIMESTAMP`.
fn read_time(text: &str) -> Option<DateTime<Utc>> {
    match DateTime::parse_from_rfc3339(text) {
        Ok(time) => Some(time.to_utc()),
        Err(_) => NaiveDateTime::parse_from_str(text, "%F %T%.f").ok().map(|time| time.and_utc()),
    }
}

impl<T: Column> Column for Option<T>
where
    Option<T>: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    fn of_lite(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Null => Some(None),
            value => T::of_lite(value).map(Some),
        }
    }
}

/// What a row is read as.
pub(crate) trait FromRow: Sized + Send + 'static {
    fn read(row: &Row<'_>) -> Result<Self, DbError>;
}

/// A row that nobody reads.
impl FromRow for () {
    fn read(_: &Row<'_>) -> Result<Self, DbError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+))+) => {$(
        impl<$($name: Column + Send + 'static),+> FromRow for ($($name,)+) {
            fn read(row: &Row<'_>) -> Result<Self, DbError> {
                Ok(($(row.get::<$name>($index)?,)+))
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15)
}
