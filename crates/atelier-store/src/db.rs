//! Connections to SQLite and PostgreSQL, and one body of queries for both.

mod lite;

use crate::{Error, Result};
use lite::{Lite, LiteConn};
use sqlx::{
    Connection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// Where the data is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the embedded database.
    pub data: PathBuf,
    /// `postgres://…` to use PostgreSQL instead of the embedded database.
    pub database_url: Option<String>,
}

#[derive(Clone)]
pub(crate) enum Db {
    Lite(Lite),
    Pg(PgPool),
}

/// A connection to either database, borrowed for a read or held by the writer.
pub(crate) enum Conn {
    Lite(LiteConn),
    Pg(PoolConnection<Postgres>),
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
                let $c: &mut sqlx::PgConnection = &mut *conn;
                $body
            }
        }
    };
}
pub(crate) use on;

const POOL: u32 = 16;
/// A connection that was used so recently is assumed to be alive.
const FRESH: Duration = Duration::from_secs(1);

impl Db {
    pub(crate) async fn open(settings: &Settings) -> Result<Self> {
        match &settings.database_url {
            None => Self::open_lite(settings).await,
            Some(url) => Self::open_pg(url).await,
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
        Lite::open(options)
            .await
            .map(Db::Lite)
            .map_err(|source| Error::Open { place: path.display().to_string(), source })
    }

    async fn open_pg(url: &str) -> Result<Self> {
        let open = async {
            let options = PgConnectOptions::from_str(url)?.application_name("atelier");
            // A first connection without the pool, because a pool reports only that it timed out.
            let first = sqlx::PgConnection::connect_with(&options);
            let first = tokio::time::timeout(Duration::from_secs(10), first).await;
            first.map_err(|_| sqlx::Error::PoolTimedOut)??.close().await?;
            PgPoolOptions::new()
                .max_connections(POOL)
                .acquire_timeout(Duration::from_secs(10))
                // Checking that a connection is alive costs a trip, so one that was just used is
                // not checked.
                .test_before_acquire(false)
                .before_acquire(|conn, meta| {
                    Box::pin(async move { Ok(meta.idle_for < FRESH || conn.ping().await.is_ok()) })
                })
                .connect_with(options)
                .await
        };
        open.await.map(Db::Pg).map_err(|source| Error::Open { place: masked(url), source })
    }

    pub(crate) async fn connect(&self) -> Result<Conn, sqlx::Error> {
        Ok(match self {
            Db::Lite(lite) => Conn::Lite(lite.connect().await?),
            Db::Pg(pool) => Conn::Pg(pool.acquire().await?),
        })
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
            Db::Pg(pool) => pool.close().await,
        }
    }
}

impl Conn {
    /// Closes the connection instead of returning it: it may be in the middle of a transaction.
    pub(crate) fn discard(self) {
        match self {
            Conn::Lite(conn) => conn.discard(),
            Conn::Pg(conn) => drop(conn.detach()),
        }
    }

    /// Runs statements without arguments, such as `BEGIN`.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        on!(self, |c| sqlx::raw_sql(sql).execute(c).await.map(drop))
    }
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
