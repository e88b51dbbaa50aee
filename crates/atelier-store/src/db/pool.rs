//! Pools of connections, for both databases.
//!
//! A returned connection is not checked: that would be a trip to the database, which costs as much
//! as most reads, and it would wait for ever if the database has stopped answering.

use super::{DbError, Usage};
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A connection that was used so recently is assumed to be alive.
const FRESH: Duration = Duration::from_secs(1);
/// How long a pool counts as exhausted after somebody has waited in vain for a connection.
const EXHAUSTED: Duration = Duration::from_secs(10);

/// A connection that a pool can hold.
pub(crate) trait PoolConnection: Send + 'static {
    fn is_alive(&mut self) -> impl Future<Output = bool> + Send;
    /// Whether the connection can be returned. In the middle of a transaction it cannot.
    fn is_reusable(&self) -> bool {
        true
    }
    fn close(self) -> impl Future<Output = Result<(), DbError>> + Send;
}

/// What a pool needs to know about its connections.
pub(crate) struct PoolOptions<C> {
    /// How many connections may be in use.
    pub(crate) size: usize,
    /// How long to wait for a connection.
    pub(crate) timeout: Duration,
    /// Whether a connection that was not used for a while is checked. A file does not go away as a
    /// server does.
    pub(crate) check: bool,
    pub(crate) open: Box<dyn Fn() -> BoxFuture<'static, Result<C, DbError>> + Send + Sync>,
}

/// Connections to one database.
pub(crate) struct Pool<C>(Arc<Inner<C>>);

impl<C> Clone for Pool<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<C> {
    options: PoolOptions<C>,
    /// One permit for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// Idle connections, each with the time of its last use. The connection that was returned last
    /// is used last: it may still be ending a query that its reader did not wait for.
    idle: Mutex<VecDeque<(C, Instant)>>,
    /// When somebody last waited in vain while all connections were in use.
    exhausted: Mutex<Option<Instant>>,
}

/// A connection in use. Dropping it returns the connection.
pub(crate) struct Pooled<C: PoolConnection> {
    /// `None` once the connection is returned or discarded.
    conn: Option<C>,
    pool: Pool<C>,
    _permit: OwnedSemaphorePermit,
}

impl<C: PoolConnection> Pool<C> {
    pub(crate) fn new(options: PoolOptions<C>) -> Self {
        let permits = Arc::new(Semaphore::new(options.size));
        Self(Arc::new(Inner {
            options,
            permits,
            idle: Mutex::default(),
            exhausted: Mutex::default(),
        }))
    }

    pub(crate) async fn connect(&self) -> Result<Pooled<C>, DbError> {
        let connect = async {
            let permit = self.0.permits.clone().acquire_owned().await;
            let permit = permit.map_err(|_| DbError::PoolClosed)?;
            let conn = match self.idle_connection().await {
                Some(conn) => conn,
                None => (self.0.options.open)().await?,
            };
            Ok(Pooled { conn: Some(conn), pool: self.clone(), _permit: permit })
        };
        let connected = tokio::time::timeout(self.0.options.timeout, connect).await;
        connected.unwrap_or_else(|_| {
            if self.0.permits.available_permits() == 0 {
                *self.exhausted() = Some(Instant::now());
            }
            Err(DbError::PoolTimedOut)
        })
    }

    pub(crate) fn usage(&self) -> Usage {
        let size = self.0.options.size;
        let in_use = size.saturating_sub(self.0.permits.available_permits());
        let is_exhausted = self.exhausted().is_some_and(|last| last.elapsed() < EXHAUSTED);
        Usage { in_use, size, is_exhausted }
    }

    fn exhausted(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.exhausted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection that is alive. Connections that were lost are removed.
    async fn idle_connection(&self) -> Option<C> {
        loop {
            let (mut conn, used) = self.idle().pop_front()?;
            if !self.0.options.check || used.elapsed() < FRESH || conn.is_alive().await {
                return Some(conn);
            }
        }
    }

    /// Waits for the connections in use and closes all of them.
    pub(crate) async fn close(&self) {
        let all = self.0.permits.acquire_many(self.0.options.size as u32).await;
        self.0.permits.close();
        drop(all);
        let idle = std::mem::take(&mut *self.idle());
        for (conn, _) in idle {
            if let Err(error) = conn.close().await {
                tracing::warn!(%error, "a connection to the database was not closed cleanly");
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(C, Instant)>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: PoolConnection> Pooled<C> {
    /// Closes the connection instead of returning it.
    pub(crate) fn discard(&mut self) {
        drop(self.take());
    }

    /// The connection, which is not returned then.
    pub(crate) fn take(&mut self) -> Option<C> {
        self.conn.take()
    }
}

impl<C: PoolConnection> Deref for Pooled<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.conn
            .as_ref()
            .unwrap_or_else(|| unreachable!("a connection is there until it is dropped"))
    }
}

impl<C: PoolConnection> DerefMut for Pooled<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.conn
            .as_mut()
            .unwrap_or_else(|| unreachable!("a connection is there until it is dropped"))
    }
}

impl<C: PoolConnection> Drop for Pooled<C> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take().filter(C::is_reusable) {
            self.pool.idle().push_back((conn, Instant::now()));
        }
    }
}
