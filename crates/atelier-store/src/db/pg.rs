//! Connections to PostgreSQL, each with limits, so that nothing waits for ever: neither this
//! node for a server that is gone, nor other nodes for a transaction of a node that is frozen.

use super::{
    DbError, Usage,
    pool::{Pool, PoolConnection, PoolOptions, Pooled},
    pulse::Pulse,
};
use futures::{StreamExt, future::BoxFuture, stream, stream::BoxStream};
use sqlx::{
    ConnectOptions, Connection, Either, Execute, Executor, PgConnection, Postgres, SqlStr,
    postgres::{
        PgConnectOptions, PgDatabaseError, PgPoolOptions, PgQueryResult, PgRow, PgSeverity,
        PgStatement, PgTypeInfo,
    },
};
use std::{io, str::FromStr, time::Duration};

/// Connections beside the pool: for heartbeats, for the pulse and for notifications.
const OWN: u32 = 3;
/// The writer's lanes and a few readers need this many connections.
pub(crate) const MIN_CONNECTIONS: u32 = 8;
/// How long a statement waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Limits of every session. `idle_in_transaction_session_timeout` ends the transaction of a node
/// that is frozen or cut off, and with it its locks. `client_connection_check_interval`
/// (PostgreSQL 14) ends statements whose node is gone. The TCP settings end sessions whose node
/// does not acknowledge data; they count for nothing on a Unix socket.
const SESSION: &[(&str, &str)] = &[
    ("idle_in_transaction_session_timeout", "3s"),
    ("client_connection_check_interval", "2s"),
    ("statement_timeout", "30s"),
    ("lock_timeout", "15s"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "10s"),
];

/// Limits of the session that migrates. A migration may take long, and other nodes wait for it. A
/// frozen node that holds the lock for migrations is between two statements, but in no
/// transaction, so `idle_session_timeout` (PostgreSQL 14) ends its session.
const MIGRATION: &[(&str, &str)] = &[
    ("idle_in_transaction_session_timeout", "30s"),
    ("idle_session_timeout", "30s"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
];

/// The connections to PostgreSQL.
#[derive(Clone)]
pub(crate) struct Pg {
    options: PgConnectOptions,
    pool: Pool<PgConnection>,
    /// For heartbeats: they must not wait until a request returns its connection.
    vital: Pool<PgConnection>,
    pulse: Pulse,
}

/// A connection of the pool. Its statements end with an error when the database has stopped
/// answering.
pub(crate) struct PgConn {
    conn: Pooled<PgConnection>,
    /// `None` if statements wait until the database answers again.
    pulse: Option<Pulse>,
    /// Whether a statement was begun and not finished. Then the connection is closed instead of
    /// returned, because the answer may never come.
    busy: bool,
}

impl Pg {
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, DbError> {
        let options = PgConnectOptions::from_str(url)?.application_name("atelier");
        // The first connection shows what is wrong with the address, if anything is.
        let first = tokio::time::timeout(Duration::from_secs(10), open(&options)).await;
        Connection::close(first.map_err(|_| DbError::PoolTimedOut)??).await?;
        let pool = |size: u32| pool(&options, size, SESSION);
        let (vital, pulse) = (pool(1), Pulse::start(options.clone()));
        let pool = pool(connections.max(MIN_CONNECTIONS) - OWN);
        Ok(Self { options, pool, vital, pulse })
    }

    pub(crate) async fn connect(&self) -> Result<PgConn, DbError> {
        self.connection_of(&self.pool).await
    }

    /// A connection that no request uses.
    pub(crate) async fn connect_vital(&self) -> Result<PgConn, DbError> {
        self.connection_of(&self.vital).await
    }

    async fn connection_of(&self, pool: &Pool<PgConnection>) -> Result<PgConn, DbError> {
        if !self.pulse.is_beating() {
            return Err(DbError::no_answer());
        }
        let conn = pool.connect().await?;
        Ok(PgConn { conn, pulse: Some(self.pulse.clone()), busy: false })
    }

    /// A connection to migrate the schema with, which may take its time.
    pub(crate) async fn connect_to_migrate(&self) -> Result<PgConn, DbError> {
        let conn = pool(&self.options, 1, MIGRATION).connect().await?;
        Ok(PgConn { conn, pulse: None, busy: false })
    }

    /// A pool of one connection for notifications, which sqlx receives only from a pool of its own.
    pub(crate) fn listener_pool(&self) -> sqlx::PgPool {
        PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_TIMEOUT)
            .after_connect(|conn, _| Box::pin(limit(conn, SESSION)))
            .connect_lazy_with(self.options.clone())
    }

    pub(crate) fn usage(&self) -> Usage {
        self.pool.usage()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pulse.is_stopped()
    }

    pub(crate) async fn close(&self) {
        self.pulse.stop();
        self.pool.close().await;
        self.vital.close().await;
    }
}

/// A pool of connections with the limits of their sessions.
fn pool(
    options: &PgConnectOptions,
    size: u32,
    limits: &'static [(&'static str, &'static str)],
) -> Pool<PgConnection> {
    let options = options.clone();
    Pool::new(PoolOptions {
        size: size as usize,
        timeout: CONNECT_TIMEOUT,
        check: true,
        open: Box::new(move || {
            let options = options.clone();
            Box::pin(async move {
                let mut conn = open(&options).await?;
                if limits != SESSION {
                    limit(&mut conn, limits).await?;
                }
                Ok(conn)
            })
        }),
    })
}

/// Opens a connection and sets the limits of its session.
pub(super) async fn open(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut conn = options.connect().await?;
    limit(&mut conn, SESSION).await?;
    Ok(conn)
}

impl PoolConnection for PgConnection {
    async fn is_alive(&mut self) -> bool {
        self.ping().await.is_ok()
    }

    async fn close(self) -> Result<(), DbError> {
        Ok(Connection::close(self).await?)
    }
}

/// Sets those of the limits that this version of PostgreSQL knows.
async fn limit(conn: &mut PgConnection, limits: &[(&str, &str)]) -> Result<(), sqlx::Error> {
    let (names, values): (Vec<&str>, Vec<&str>) = limits.iter().copied().unzip();
    sqlx::query(
        "SELECT set_config(wanted.name, wanted.value, FALSE)
         FROM unnest($1::text[], $2::text[]) AS wanted (name, value)
         JOIN pg_settings known ON known.name = wanted.name",
    )
    .bind(names)
    .bind(values)
    .execute(conn)
    .await
    .map(drop)
}

fn not_answering() -> sqlx::Error {
    let message = "the database does not answer";
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, message))
}

/// Returns when the database stops answering.
async fn stops(pulse: &Option<Pulse>) {
    match pulse {
        Some(pulse) => pulse.stops().await,
        None => std::future::pending().await,
    }
}

/// Whether the server has refused a statement and the connection can be used again. After any other
/// error it is closed.
fn is_refusal(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error().and_then(|error| error.try_downcast_ref());
    refusal.is_some_and(|error: &PgDatabaseError| matches!(error.severity(), PgSeverity::Error))
}

impl PgConn {
    pub(crate) fn discard(mut self) {
        self.conn.discard();
    }

    /// Closes the connection, and tells the server so.
    pub(crate) async fn close(mut self) -> Result<(), DbError> {
        match self.conn.take() {
            Some(conn) => Ok(Connection::close(conn).await?),
            None => Ok(()),
        }
    }
}

impl Drop for PgConn {
    fn drop(&mut self) {
        if self.busy {
            self.conn.discard();
        }
    }
}

impl std::fmt::Debug for PgConn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgConn")
    }
}

/// A row, or the end of a statement.
type Rows = Result<Either<PgQueryResult, PgRow>, sqlx::Error>;

impl<'c> Executor<'c> for &'c mut PgConn {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Rows>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let PgConn { conn, pulse, busy } = self;
        *busy = true;
        let (rows, stopped) = ((&mut **conn).fetch_many(query), Box::pin(stops(pulse)));
        let next = async |(mut rows, mut stopped, busy): (BoxStream<'e, Rows>, _, &'e mut bool)| {
            let row = tokio::select! {
                biased;
                row = rows.next() => row,
                () = &mut stopped => return Some((Err(not_answering()), (rows, stopped, busy))),
            };
            if row.as_ref().is_none_or(|row| row.as_ref().is_err_and(is_refusal)) {
                *busy = false;
            }
            row.map(|row| (row, (rows, stopped, busy)))
        };
        stream::unfold((rows, stopped, busy), next).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let PgConn { conn, pulse, busy } = self;
        *busy = true;
        let row = (&mut **conn).fetch_optional(query);
        Box::pin(async move {
            let row = tokio::select! {
                biased;
                row = row => row,
                () = stops(pulse) => Err(not_answering()),
            };
            *busy = row.as_ref().is_err_and(|error| !is_refusal(error));
            row
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        (&mut *self.conn).prepare_with(sql, parameters)
    }
}
