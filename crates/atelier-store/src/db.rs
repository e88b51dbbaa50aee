//! Connections to SQLite and PostgreSQL, and one body of queries for both.

mod pg;
mod pool;
mod pulse;

use crate::{Error, Result};
pub(crate) use pg::{Pg, PgConn};
use pool::{Pool, PoolOptions, Pooled};
use sqlx::{
    ConnectOptions, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use std::{path::PathBuf, time::Duration};

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

/// The connections to SQLite.
#[derive(Clone)]
pub(crate) struct Lite {
    pub(crate) pool: Pool<SqliteConnection>,
    /// For heartbeats and probes, which wait only a moment for the lock.
    vital: Pool<SqliteConnection>,
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
    Lite(Pooled<SqliteConnection>),
    Pg(PgConn),
}

/// Runs one body of code on the database of a connection. The body is compiled for both databases,
/// so a query that fits only one of them does not build.
macro_rules! on {
    ($conn:expr, |$c:ident| $body:expr) => {
        match $conn {
            $crate::db::Conn::Lite(conn) => {
                let $c: &mut sqlx::SqliteConnection = &mut *conn;
                $body
            }
            $crate::db::Conn::Pg(conn) => {
                let $c: &mut $crate::db::PgConn = &mut *conn;
                $body
            }
        }
    };
}
pub(crate) use on;

/// Connections to SQLite: one for the writer, the others for readers.
const LITE_CONNECTIONS: usize = 5;
/// How long a heartbeat or a probe waits for the lock of SQLite.
const LITE_VITAL_WAIT: Duration = Duration::from_secs(2);
/// How long a reader waits for a connection to SQLite.
const LITE_TIMEOUT: Duration = Duration::from_secs(10);

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
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // FULL makes a commit wait for the disk: what was answered survives a power cut.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5))
            // A statement for several rows is prepared for a dozen numbers of rows
            // (`rows_at_once`).
            .statement_cache_capacity(250)
            .pragma("cache_size", "-4000");
        let pool = |size: usize, options: SqliteConnectOptions| {
            Pool::new(PoolOptions {
                size,
                timeout: LITE_TIMEOUT,
                check: false,
                open: Box::new(move || {
                    let options = options.clone();
                    Box::pin(async move { options.connect().await })
                }),
            })
        };
        // One for the heartbeat and one for probes, which must not wait for each other.
        let vital = pool(2, options.clone().busy_timeout(LITE_VITAL_WAIT));
        let pool = pool(LITE_CONNECTIONS, options);
        match pool.connect().await {
            Ok(conn) => drop(conn),
            Err(source) => return Err(Error::Open { place: path.display().to_string(), source }),
        }
        Ok(Db::Lite(Box::new(Lite { pool, vital })))
    }

    pub(crate) async fn connect(&self) -> Result<Conn, sqlx::Error> {
        Ok(match self {
            Db::Lite(lite) => Conn::Lite(lite.pool.connect().await?),
            Db::Pg(pg) => Conn::Pg(pg.connect().await?),
        })
    }

    /// A connection for what must not wait until a request returns its connection.
    pub(crate) async fn connect_vital(&self) -> Result<Conn, sqlx::Error> {
        match self {
            Db::Lite(lite) => Ok(Conn::Lite(lite.vital.connect().await?)),
            Db::Pg(pg) => Ok(Conn::Pg(pg.connect_vital().await?)),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        match self {
            Db::Lite(lite) => lite.pool.usage(),
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
            Db::Lite(lite) => {
                lite.pool.close().await;
                lite.vital.close().await;
            }
            Db::Pg(pg) => pg.close().await,
        }
    }
}

impl Conn {
    /// Closes the connection instead of returning it: it may be in the middle of a transaction.
    pub(crate) fn discard(self) {
        match self {
            Conn::Lite(mut conn) => conn.discard(),
            Conn::Pg(conn) => conn.discard(),
        }
    }

    /// Runs statements without arguments, such as `BEGIN`.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        on!(self, |c| sqlx::raw_sql(sql).execute(c).await.map(drop))
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
