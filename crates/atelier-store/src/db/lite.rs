//! Connections to SQLite.
//!
//! A message to another thread and back costs more than most statements. So the writer has a thread
//! of its own and runs its statements right there, and a reader runs its statements on the calling
//! task. A statement that turns out to take longer than a moment is given up there, and runs on a
//! thread where it may block.

use super::{
    DbError, Usage,
    pool::{Pool, PoolConnection, PoolOptions, Pooled},
    sql::{Answer, Sql, Wanted},
    value::{FromRow, Row},
};
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// One connection for the writer, the others for readers.
const CONNECTIONS: usize = 5;
/// How long a reader waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a statement waits for the lock of the file.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long a heartbeat or a probe waits for the lock of the file.
const VITAL_LOCK_WAIT: Duration = Duration::from_secs(2);
/// How long a statement may keep the calling task from anything else.
const MOMENT: Duration = Duration::from_millis(2);
/// After how many instructions of SQLite the time is looked at: about every ten microseconds.
const INSTRUCTIONS: i32 = 1000;
/// A statement for several rows is prepared for a dozen numbers of rows (`rows_at_once`).
const CACHED_STATEMENTS: usize = 250;

/// The embedded database.
#[derive(Clone)]
pub(crate) struct Lite {
    pool: Pool<Connection>,
    /// For heartbeats and probes, which wait only a moment for the lock.
    vital: Pool<Connection>,
}

/// A connection of the pool.
pub(crate) struct LiteConn {
    /// `None` while a statement runs on another thread.
    conn: Option<Pooled<Connection>>,
    place: Place,
    lock_wait: Duration,
}

/// Where the statements of a connection run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the calling thread, which may block: the writer's.
    Here,
    /// On the calling task, if they only read and take no longer than a moment.
    HereForAMoment,
    /// On a thread for work that blocks.
    Elsewhere,
}

impl Lite {
    pub(super) async fn open(path: &Path) -> Result<Self, DbError> {
        let pool = |size: usize| {
            let path = path.to_owned();
            Pool::new(PoolOptions {
                size,
                timeout: CONNECT_TIMEOUT,
                check: false,
                open: Box::new(move || Box::pin(open_elsewhere(path.clone()))),
            })
        };
        // One for the heartbeat and one for probes, which must not wait for each other.
        let lite = Self { pool: pool(CONNECTIONS), vital: pool(2) };
        // The first connection shows what is wrong with the file, if anything is.
        drop(lite.pool.connect().await?);
        Ok(lite)
    }

    /// A connection for reads.
    pub(super) async fn connect(&self) -> Result<LiteConn, DbError> {
        let conn = self.pool.connect().await?;
        conn.busy_timeout(Duration::ZERO)?;
        Ok(LiteConn { conn: Some(conn), place: Place::HereForAMoment, lock_wait: LOCK_WAIT })
    }

    /// A connection whose statements may take long, on another thread.
    pub(super) async fn connect_elsewhere(&self) -> Result<LiteConn, DbError> {
        let conn = self.pool.connect().await?;
        Ok(LiteConn { conn: Some(conn), place: Place::Elsewhere, lock_wait: LOCK_WAIT })
    }

    /// The connection of the writer, to be used on its own thread only.
    pub(super) async fn connect_writer(&self) -> Result<LiteConn, DbError> {
        let conn = self.pool.connect().await?;
        conn.busy_timeout(LOCK_WAIT)?;
        Ok(LiteConn { conn: Some(conn), place: Place::Here, lock_wait: LOCK_WAIT })
    }

    pub(super) async fn connect_vital(&self) -> Result<LiteConn, DbError> {
        let conn = self.vital.connect().await?;
        Ok(LiteConn { conn: Some(conn), place: Place::Elsewhere, lock_wait: VITAL_LOCK_WAIT })
    }

    pub(super) fn usage(&self) -> Usage {
        self.pool.usage()
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
        self.vital.close().await;
    }
}

impl LiteConn {
    /// Closes the connection instead of returning it.
    pub(super) fn discard(mut self) {
        if let Some(conn) = &mut self.conn {
            conn.discard();
        }
    }

    /// Statements end with an error once so much time has passed.
    pub(crate) fn limit(&mut self, time: Duration) -> Result<(), DbError> {
        let end = Instant::now() + time;
        Ok(self.conn()?.progress_handler(INSTRUCTIONS, Some(move || Instant::now() >= end))?)
    }

    pub(super) async fn run<R: FromRow>(
        &mut self,
        sql: Sql,
        wanted: Wanted,
    ) -> Result<Answer<R>, DbError> {
        match self.place {
            Place::Here => return run(self.conn()?, &sql, wanted),
            Place::HereForAMoment => {
                if let Some(answer) = self.run_for_a_moment(&sql, wanted) {
                    return answer;
                }
            }
            Place::Elsewhere => {}
        }
        self.elsewhere(move |conn| run(conn, &sql, wanted)).await
    }

    /// Runs several statements without values.
    pub(super) async fn run_batch(&mut self, sql: &'static str) -> Result<(), DbError> {
        match self.place {
            Place::Here if sql.contains(';') => Ok(self.conn()?.execute_batch(sql)?),
            Place::Here => Ok(self.conn()?.prepare_cached(sql)?.raw_query().next().map(drop)?),
            _ => self.elsewhere(move |conn| Ok(conn.execute_batch(sql)?)).await,
        }
    }

    /// Runs a statement on the calling task. `None` if it changes something, waits for a lock or
    /// takes too long: then nothing was done.
    fn run_for_a_moment<R: FromRow>(
        &mut self,
        sql: &Sql,
        wanted: Wanted,
    ) -> Option<Result<Answer<R>, DbError>> {
        let answer = self.limit(MOMENT).and_then(|()| {
            let conn = self.conn()?;
            let mut statement = conn.prepare_cached(&sql.text)?;
            let only_reads = statement.readonly();
            only_reads.then(|| step(conn, &mut statement, sql, wanted)).transpose()
        });
        match answer {
            Err(error) if is_interrupted_or_locked(&error) => None,
            answer => answer.transpose(),
        }
    }

    /// Does work with the connection on a thread where it may block. If the caller does not wait
    /// for it any more, it is interrupted.
    async fn elsewhere<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, DbError> {
        let mut conn = self.conn.take().ok_or(DbError::PoolClosed)?;
        let lock_wait = self.lock_wait;
        let abandoned = Abandoned::default();
        let is_abandoned = abandoned.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let work = |conn: &mut Connection| {
                conn.busy_timeout(lock_wait)?;
                conn.progress_handler(
                    INSTRUCTIONS,
                    Some(move || is_abandoned.load(Ordering::Relaxed)),
                )?;
                let done = work(conn);
                conn.progress_handler(INSTRUCTIONS, None::<fn() -> bool>)?;
                conn.busy_timeout(Duration::ZERO)?;
                done
            };
            let done = work(&mut conn);
            (conn, done)
        });
        let (conn, done) = done
            .await
            .map_err(|_| DbError::Other("a statement was not finished: the program ends".into()))?;
        self.conn = Some(conn);
        done
    }

    fn conn(&self) -> Result<&Connection, DbError> {
        self.conn.as_deref().ok_or(DbError::PoolClosed)
    }
}

/// Becomes true when it is dropped.
#[derive(Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn is_interrupted_or_locked(error: &DbError) -> bool {
    let DbError::Sqlite { code, .. } = error else { return false };
    let code = rusqlite::ffi::Error::new(*code).code;
    matches!(code, ErrorCode::OperationInterrupted | ErrorCode::DatabaseBusy)
}

impl PoolConnection for Connection {
    /// A file does not go away as a server does.
    async fn is_alive(&mut self) -> bool {
        true
    }

    fn is_reusable(&self) -> bool {
        self.is_autocommit()
    }

    async fn close(self) -> Result<(), DbError> {
        // The last connection moves the log into the file.
        let close = || Connection::close(self).map_err(|(_, error)| DbError::from(error));
        tokio::task::spawn_blocking(close).await.map_err(|_| DbError::PoolClosed)?
    }
}

async fn open_elsewhere(path: PathBuf) -> Result<Connection, DbError> {
    let opened = tokio::task::spawn_blocking(move || {
        let access = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let conn = open_file(&path, access)?;
        // FULL makes a commit wait for the disk: what was answered survives a power cut.
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL;
             PRAGMA cache_size = -4000;",
        )?;
        Ok(conn)
    });
    opened.await.map_err(|_| DbError::PoolClosed)?
}

/// Opens a file as it is.
pub(crate) fn open_file(path: &Path, access: OpenFlags) -> Result<Connection, DbError> {
    let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(LOCK_WAIT)?;
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    Ok(conn)
}

/// Runs a statement on this thread, and returns its rows.
pub(crate) fn query<R: FromRow>(conn: &Connection, sql: &Sql) -> Result<Vec<R>, DbError> {
    Ok(run(conn, sql, Wanted::All)?.rows)
}

fn run<R: FromRow>(conn: &Connection, sql: &Sql, wanted: Wanted) -> Result<Answer<R>, DbError> {
    step(conn, &mut conn.prepare_cached(&sql.text)?, sql, wanted)
}

fn step<R: FromRow>(
    conn: &Connection,
    statement: &mut CachedStatement<'_>,
    sql: &Sql,
    wanted: Wanted,
) -> Result<Answer<R>, DbError> {
    bind(statement, sql)?;
    let only_reads = statement.readonly();
    let mut answer = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = answer.next()? {
        match wanted {
            Wanted::All => rows.push(R::read(&Row::Lite(row))?),
            Wanted::One if rows.is_empty() => rows.push(R::read(&Row::Lite(row))?),
            _ => {}
        }
        // A statement that changes something runs to its end.
        if wanted != Wanted::All && only_reads {
            break;
        }
    }
    drop(answer);
    Ok(Answer { rows, affected: conn.changes() })
}

fn bind(statement: &mut CachedStatement<'_>, sql: &Sql) -> Result<(), DbError> {
    if sql.is_in_order {
        for (number, value) in sql.values.iter().enumerate() {
            statement.raw_bind_parameter(number + 1, value)?;
        }
        return Ok(());
    }
    // SQLite numbers named placeholders in the order in which they appear.
    for position in 1..=statement.parameter_count() {
        let number = statement.parameter_name(position).and_then(|name| name.get(1..));
        let number: Option<usize> = number.and_then(|number| number.parse().ok());
        let value = number.and_then(|number| sql.values.get(number.checked_sub(1)?));
        let value = value.ok_or_else(|| {
            DbError::Other(format!("a placeholder without a value: {}", sql.text))
        })?;
        statement.raw_bind_parameter(position, value)?;
    }
    Ok(())
}
