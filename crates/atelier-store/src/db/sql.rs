//! Statements, written once for both databases.

use super::{
    Conn, DbError,
    value::{FromRow, Row, Value},
};
use futures::TryStreamExt;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr, postgres::PgArguments};
use std::{borrow::Cow, fmt::Display, mem};

/// A statement with the values of its placeholders `$1`, `$2` and so on.
#[derive(Clone)]
pub(crate) struct Sql {
    pub(super) text: Cow<'static, str>,
    pub(super) values: Vec<Value>,
    /// Whether each placeholder is there once, in the order of the values.
    pub(super) is_in_order: bool,
}

/// How many rows of its answer a statement is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    None,
    One,
    All,
}

/// What a statement did.
pub(super) struct Answer<R> {
    pub(super) rows: Vec<R>,
    pub(super) affected: u64,
}

/// A statement. Its text must not hold what a user has entered.
pub(crate) fn sql(text: impl Into<Cow<'static, str>>) -> Sql {
    Sql { text: text.into(), values: Vec::new(), is_in_order: false }
}

impl Sql {
    #[must_use]
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Returns how many rows were changed.
    pub(crate) async fn execute(self, conn: &mut Conn) -> Result<u64, DbError> {
        Ok(self.run::<()>(conn, Wanted::None).await?.affected)
    }

    pub(crate) async fn fetch_all<R: FromRow>(self, conn: &mut Conn) -> Result<Vec<R>, DbError> {
        Ok(self.run(conn, Wanted::All).await?.rows)
    }

    pub(crate) async fn fetch_optional<R: FromRow>(
        self,
        conn: &mut Conn,
    ) -> Result<Option<R>, DbError> {
        Ok(self.run(conn, Wanted::One).await?.rows.into_iter().next())
    }

    pub(crate) async fn fetch_one<R: FromRow>(self, conn: &mut Conn) -> Result<R, DbError> {
        self.fetch_optional(conn).await?.ok_or(DbError::RowNotFound)
    }

    async fn run<R: FromRow>(self, conn: &mut Conn, wanted: Wanted) -> Result<Answer<R>, DbError> {
        let conn = match conn {
            Conn::Lite(conn) => return conn.run(self, wanted).await,
            Conn::Pg(conn) => conn,
        };
        let mut arguments = PgArguments::default();
        for value in self.values {
            value.add_to(&mut arguments)?;
        }
        let query = sqlx::query_with(as_sqlx(self.text), arguments);
        let (mut rows, mut affected) = (Vec::new(), 0);
        match wanted {
            Wanted::None => affected = query.execute(conn).await?.rows_affected(),
            Wanted::One => {
                if let Some(row) = query.fetch_optional(conn).await? {
                    rows.push(R::read(&Row::Pg(&row))?);
                }
            }
            Wanted::All => {
                let mut answers = query.fetch(conn);
                while let Some(row) = answers.try_next().await? {
                    rows.push(R::read(&Row::Pg(&row))?);
                }
            }
        }
        Ok(Answer { rows, affected })
    }
}

pub(crate) fn as_sqlx(text: Cow<'static, str>) -> SqlStr {
    match text {
        Cow::Borrowed(text) => text.into_sql_str(),
        Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
    }
}

/// A statement that is put together from pieces, such as one for several rows.
pub(crate) struct SqlBuilder {
    text: String,
    values: Vec<Value>,
}

/// Writes values of a list, with commas between them.
pub(crate) struct List<'b> {
    builder: &'b mut SqlBuilder,
    separator: &'static str,
    is_begun: bool,
}

impl SqlBuilder {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    pub(crate) fn push(&mut self, text: impl Display) -> &mut Self {
        use std::fmt::Write;
        write!(self.text, "{text}").unwrap_or_else(|_| unreachable!("a string accepts all text"));
        self
    }

    /// Adds a placeholder with its value.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        let number = self.values.len();
        self.push(format_args!("${number}"))
    }

    /// Adds `VALUES` with a list in parentheses for each row.
    pub(crate) fn push_values<T>(
        &mut self,
        rows: impl IntoIterator<Item = T>,
        mut write_row: impl FnMut(List<'_>, T),
    ) -> &mut Self {
        self.push("VALUES ");
        for (number, row) in rows.into_iter().enumerate() {
            self.push(if number == 0 { "(" } else { ", (" });
            write_row(self.separated(", "), row);
            self.push(")");
        }
        self
    }

    pub(crate) fn separated(&mut self, separator: &'static str) -> List<'_> {
        List { builder: self, separator, is_begun: false }
    }

    /// The statement. The builder is empty then.
    pub(crate) fn take(&mut self) -> Sql {
        let text = Cow::Owned(mem::take(&mut self.text));
        Sql { text, values: mem::take(&mut self.values), is_in_order: true }
    }

    /// Returns how many rows were changed.
    pub(crate) async fn execute(&mut self, conn: &mut Conn) -> Result<u64, DbError> {
        self.take().execute(conn).await
    }

    pub(crate) async fn fetch_all<R: FromRow>(
        &mut self,
        conn: &mut Conn,
    ) -> Result<Vec<R>, DbError> {
        self.take().fetch_all(conn).await
    }

    pub(crate) async fn fetch_optional<R: FromRow>(
        &mut self,
        conn: &mut Conn,
    ) -> Result<Option<R>, DbError> {
        self.take().fetch_optional(conn).await
    }
}

impl List<'_> {
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.separate();
        self.push_bind_unseparated(value)
    }

    pub(crate) fn push(&mut self, text: impl Display) -> &mut Self {
        self.separate();
        self.push_unseparated(text)
    }

    pub(crate) fn push_bind_unseparated(&mut self, value: impl Into<Value>) -> &mut Self {
        self.builder.push_bind(value);
        self
    }

    pub(crate) fn push_unseparated(&mut self, text: impl Display) -> &mut Self {
        self.builder.push(text);
        self
    }

    fn separate(&mut self) {
        if mem::replace(&mut self.is_begun, true) {
            self.builder.push(self.separator);
        }
    }
}
