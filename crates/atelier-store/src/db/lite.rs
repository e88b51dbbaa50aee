//! Connections to the embedded database.
//!
//! This is not sqlx's pool, which checks every connection that is returned. That is a trip to the
//! connection's thread, which costs as much as most reads, and a file does not go away as a server
//! does.

use sqlx::{ConnectOptions, Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One connection for the writer, the others for readers.
const CONNECTIONS: usize = 5;
/// How long a reader waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections to the embedded database.
#[derive(Clone)]
pub(crate) struct Lite(Arc<Inner>);

struct Inner {
    options: SqliteConnectOptions,
    /// One permit for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// The connection that was returned last is used last: it may still be ending a query that its
    /// reader did not wait for.
    idle: Mutex<VecDeque<SqliteConnection>>,
}

/// A connection in use. Dropping it returns the connection.
pub(crate) struct LiteConn {
    /// `None` once the connection is returned or discarded.
    conn: Option<SqliteConnection>,
    pool: Lite,
    _permit: OwnedSemaphorePermit,
}

impl Lite {
    pub(crate) async fn open(options: SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let lite = Self(Arc::new(Inner { options, permits, idle: Mutex::default() }));
        drop(lite.connect().await?);
        Ok(lite)
    }

    pub(crate) async fn connect(&self) -> Result<LiteConn, sqlx::Error> {
        let permit =
            tokio::time::timeout(CONNECT_TIMEOUT, self.0.permits.clone().acquire_owned()).await;
        let permit =
            permit.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.idle().pop_front();
        let conn = match idle {
            Some(conn) => conn,
            None => self.0.options.connect().await?,
        };
        Ok(LiteConn { conn: Some(conn), pool: self.clone(), _permit: permit })
    }

    /// Waits for the connections in use and closes all of them.
    pub(crate) async fn close(&self) {
        let all = self.0.permits.acquire_many(CONNECTIONS as u32).await;
        self.0.permits.close();
        drop(all);
        let idle = std::mem::take(&mut *self.idle());
        for conn in idle {
            if let Err(error) = conn.close().await {
                tracing::warn!(%error, "a connection to the database was not closed cleanly");
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<SqliteConnection>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiteConn {
    /// Closes the connection instead of returning it.
    pub(crate) fn discard(mut self) {
        self.conn = None;
    }
}

impl Deref for LiteConn {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.conn
            .as_ref()
            .unwrap_or_else(|| unreachable!("a connection is there until it is dropped"))
    }
}

impl DerefMut for LiteConn {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.conn
            .as_mut()
            .unwrap_or_else(|| unreachable!("a connection is there until it is dropped"))
    }
}

impl Drop for LiteConn {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.pool.idle().push_back(conn);
        }
    }
}
