//! What can go wrong between this program and its database.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// `code` is SQLite's extended result code.
    #[error("{message} (SQLite {code})")]
    Sqlite { code: i32, message: String },
    /// `code` is PostgreSQL's SQLSTATE.
    #[error("{message} (PostgreSQL {code})")]
    Postgres { code: String, message: String },
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no connection to the database became free in time")]
    PoolTimedOut,
    #[error("the connections to the database are closed")]
    PoolClosed,
    #[error("a row that should be there is missing")]
    RowNotFound,
    /// A column does not hold what the program expects there.
    #[error("column {column} of a row: {reason}")]
    Column { column: usize, reason: String },
    #[error("{0}")]
    Other(String),
}

impl DbError {
    /// The error of a database that has stopped answering.
    pub(crate) fn no_answer() -> Self {
        Self::Io(io::Error::new(io::ErrorKind::TimedOut, "the database does not answer"))
    }

    /// Whether a row was refused because another row has the same key.
    pub(crate) fn is_unique_violation(&self) -> bool {
        const UNIQUE: i32 = rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE;
        const PRIMARY_KEY: i32 = rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY;
        match self {
            Self::Sqlite { code, .. } => matches!(*code, UNIQUE | PRIMARY_KEY),
            Self::Postgres { code, .. } => code == "23505",
            _ => false,
        }
    }
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, message) => Self::Sqlite {
                code: failure.extended_code,
                message: message.unwrap_or_else(|| failure.to_string()),
            },
            rusqlite::Error::SqlInputError { error, msg, .. } => {
                Self::Sqlite { code: error.extended_code, message: msg }
            }
            rusqlite::Error::QueryReturnedNoRows => Self::RowNotFound,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::Postgres {
                code: error.code().unwrap_or_default().into_owned(),
                message: error.message().to_owned(),
            },
            sqlx::Error::Io(error) => Self::Io(error),
            sqlx::Error::PoolTimedOut => Self::PoolTimedOut,
            sqlx::Error::PoolClosed => Self::PoolClosed,
            sqlx::Error::RowNotFound => Self::RowNotFound,
            other => Self::Other(other.to_string()),
        }
    }
}
