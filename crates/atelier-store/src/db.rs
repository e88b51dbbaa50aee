//! Connections to SQLite and PostgreSQL, and one way to ask both.
//!
//! A query is written once: `sql("…").bind(…).fetch_all(&mut conn)`.

mod error;
mod lite;
mod pg;
mod pool;
mod pulse;
mod sql;
mod value;

use crate::{Error, Result};
pub use error::DbError;
pub(crate) use lite::{Lite, LiteConn, open_file, query};
pub(crate) use pg::{Pg, PgConn};
pub(crate) use sql::{Sql, SqlBuilder, sql};
use std::path::PathBuf;
pub(crate) use value::{Row, Value, time_text};

/// Where the data is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the embedded database.
    pub data: PathBuf,
    /// `postgres://…` to use PostgreSQL instead of the embedded database.
    pub database_url: Option<String>,
    /// How many connections to PostgreSQL this node may open, at least
    /// [`Settings::MIN_CONNECTIONS`].
    pub connections: u32,
    /// `redis://…` to carry messages between nodes. Without it, PostgreSQL does.
    pub redis_url: Option<String>,
}

impl Settings {
    pub const MIN_CONNECTIONS: u32 = pg::MIN_CONNECTIONS;
}

impl Default for Settings {
    fn default() -> Self {
        Self { data: PathBuf::new(), database_url: None, connections: 16, redis_url: None }
    }
}

#[derive(Clone)]
pub(crate) enum Db {
    Lite(Box<Lite>),
    Pg(Box<Pg>),
}

/// How many of the pooled connections are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) in_use: usize,
    pub(crate) size: usize,
    /// Whether somebody waited in vain for a connection within the last seconds.
    pub(crate) is_exhausted: bool,
}

/// A connection to either database, borrowed for a read or held by the writer.
pub(crate) enum Conn {
    Lite(LiteConn),
    Pg(PgConn),
}

impl Db {
    pub(crate) async fn open(settings: &Settings) -> Result<Self> {
        match &settings.database_url {
            None => Self::open_lite(settings).await,
            Some(url) => match Pg::open(url, settings.connections).await {
                Ok(pg) => Ok(Db::Pg(Box::new(pg))),
                Err(source) => Err(Error::Open { place: masked(url), source }),
            },
        }
    }

    async fn open_lite(settings: &Settings) -> Result<Self> {
        let path = settings.data.join("atelier.db");
        match Lite::open(&path).await {
            Ok(lite) => Ok(Db::Lite(Box::new(lite))),
            Err(source) => Err(Error::Open { place: path.display().to_string(), source }),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Conn, DbError> {
        Ok(match self {
            Db::Lite(lite) => Conn::Lite(lite.connect().await?),
            Db::Pg(pg) => Conn::Pg(pg.connect().await?),
        })
    }

    /// A connection for statements that are known to take long. They block no task.
    pub(crate) async fn connect_for_long(&self) -> Result<Conn, DbError> {
        Ok(match self {
            Db::Lite(lite) => Conn::Lite(lite.connect_elsewhere().await?),
            Db::Pg(pg) => Conn::Pg(pg.connect().await?),
        })
    }

    /// A connection for a lane of the writer. On SQLite it blocks the thread that uses it.
    pub(crate) async fn connect_writer(&self) -> Result<Conn, DbError> {
        Ok(match self {
            Db::Lite(lite) => Conn::Lite(lite.connect_writer().await?),
            Db::Pg(pg) => Conn::Pg(pg.connect().await?),
        })
    }

    /// A connection for what must not wait until a request returns its connection.
    pub(crate) async fn connect_vital(&self) -> Result<Conn, DbError> {
        match self {
            Db::Lite(lite) => Ok(Conn::Lite(lite.connect_vital().await?)),
            Db::Pg(pg) => Ok(Conn::Pg(pg.connect_vital().await?)),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        match self {
            Db::Lite(lite) => lite.usage(),
            Db::Pg(pg) => pg.usage(),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Db::Lite(_) => "sqlite",
            Db::Pg(_) => "postgres",
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Db::Lite(lite) => lite.close().await,
            Db::Pg(pg) => pg.close().await,
        }
    }
}

impl Conn {
    /// Closes the connection instead of returning it: it may be in the middle of a transaction.
    pub(crate) fn discard(self) {
        match self {
            Conn::Lite(conn) => conn.discard(),
            Conn::Pg(conn) => conn.discard(),
        }
    }

    /// Runs statements without arguments, such as `BEGIN`.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), DbError> {
        match self {
            Conn::Lite(conn) => conn.run_batch(sql).await,
            Conn::Pg(conn) => Ok(sqlx::raw_sql(sql).execute(conn).await.map(drop)?),
        }
    }
}

/// A place that a user has named: a path as it is, a URL without credentials.
pub fn masked_place(place: &str) -> String {
    if place.contains("://") { masked(place) } else { place.to_owned() }
}

/// A URL without its user, password and query, which may hold credentials.
pub fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".into() };
    let (place, query) = rest.split_once('?').map_or((rest, ""), |(place, _)| (place, "?…"));
    match place.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}://…@{place}{query}"),
        None => format!("{scheme}://{place}{query}"),
    }
}

#[cfg(test)]
mod tests;
