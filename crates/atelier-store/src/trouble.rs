//! What is wrong with the database, told from its errors, and figures about its use.

use crate::{
    Error, Result, Store,
    db::{Conn, Usage, on},
    rows::database_time,
};
use std::{
    fmt,
    io::ErrorKind,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Why the database does not do what it is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    DiskFull,
    /// Another program or a long write holds the lock that writes need.
    Locked,
    /// The file, or a part of it, is not a database any more.
    Damaged,
    ReadOnly,
    /// The disk, not the database, returned an error.
    Disk,
    TooManyConnections,
    NoAnswer,
    Refused,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "the disk is full",
            Self::Locked => "the database is locked",
            Self::Damaged => "the database is damaged: restore a backup",
            Self::ReadOnly => "the database is read-only",
            Self::Disk => "the disk returned an error",
            Self::TooManyConnections => "all connections to the database are in use",
            Self::NoAnswer => "the database does not answer",
            Self::Refused => "the database returned an error",
        })
    }
}

/// Whether this process has seen that the database is damaged. A process has one database. A damaged
/// page is read only now and then, so a probe alone would not notice it.
static DAMAGED: AtomicBool = AtomicBool::new(false);

impl Trouble {
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::of_code(error.code().as_deref().unwrap_or("")),
            sqlx::Error::Io(error) if error.kind() == ErrorKind::StorageFull => Self::DiskFull,
            sqlx::Error::PoolTimedOut => Self::TooManyConnections,
            sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::NoAnswer
            }
            _ => Self::Refused,
        }
    }

    /// PostgreSQL's codes have five characters, those of SQLite are numbers below ten thousand.
    fn of_code(code: &str) -> Self {
        match code {
            "53100" => Self::DiskFull,
            "53300" => Self::TooManyConnections,
            "25006" => Self::ReadOnly,
            "XX001" | "XX002" => Self::Damaged,
            "57P01" | "57P02" | "57P03" => Self::NoAnswer,
            "55P03" | "57014" => Self::Locked,
            "58030" => Self::Disk,
            _ if code.len() == 5 => Self::Refused,
            _ => Self::of_sqlite(code.parse().unwrap_or(0)),
        }
    }

    fn of_sqlite(code: u32) -> Self {
        /// The shared memory of the log could not be extended.
        const IOERR_SHMSIZE: u32 = 4874;
        match (code, code & 0xff) {
            (IOERR_SHMSIZE, _) | (_, 13) => Self::DiskFull,
            (_, 5 | 6) => Self::Locked,
            (_, 8) => Self::ReadOnly,
            (_, 10 | 14) => Self::Disk,
            (_, 11 | 26) => Self::Damaged,
            _ => Self::Refused,
        }
    }

    /// Whether only writes fail, so that requests which read should be answered.
    pub fn allows_reads(self) -> bool {
        matches!(self, Self::DiskFull | Self::ReadOnly | Self::Damaged)
    }

    /// Remembers damage, wherever it is noticed.
    pub(crate) fn note(error: &sqlx::Error) {
        if Self::of(error) == Self::Damaged && !DAMAGED.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the database is damaged: stop the server, restore a backup");
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Trouble::note(&error);
        Error::Sql(error)
    }
}

impl Error {
    /// What is wrong with the database, if this is an error of the database.
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            Error::Sql(error) | Error::Open { source: error, .. } => Some(Trouble::of(error)),
            Error::Commit(error) => Some(Trouble::of(error)),
            Error::Damaged(_) => Some(Trouble::Damaged),
            Error::NotBegun => Some(Trouble::Locked),
            Error::Closed => Some(Trouble::NoAnswer),
            _ => None,
        }
    }
}

/// How busy the database connections and the lanes of this node are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub connections_in_use: usize,
    pub connections: usize,
    /// Whether somebody waited in vain for a connection within the last seconds.
    pub is_exhausted: bool,
    pub lanes: usize,
    /// Lanes whose current group takes longer than the given time.
    pub stuck_lanes: usize,
    /// Writes that wait in the queues of the lanes.
    pub waiting_writes: usize,
}

impl Store {
    /// Writes something, to find out whether the database can be written.
    pub async fn probe(&self) -> Result<(), Trouble> {
        if DAMAGED.load(Ordering::Relaxed) {
            return Err(Trouble::Damaged);
        }
        self.renew_node().await.map_err(|error| error.trouble().unwrap_or(Trouble::Refused))
    }

    /// Reads all of an embedded database and returns what is wrong with it, if anything. Takes
    /// seconds for gigabytes. A database server checks its own pages.
    pub async fn check_integrity(&self) -> Result<Option<String>> {
        let mut conn = self.db.connect().await?;
        check_integrity(&mut conn).await
    }

    pub fn load(&self, stuck_after: Duration) -> Load {
        let Usage { in_use, size, is_exhausted } = self.db.usage();
        let (lanes, stuck_lanes, waiting_writes) = self.writer.load(stuck_after);
        let connections_in_use = in_use;
        Load {
            connections_in_use,
            connections: size,
            is_exhausted,
            lanes,
            stuck_lanes,
            waiting_writes,
        }
    }

    /// How many nodes are alive, this one included.
    pub async fn live_nodes(&self) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let (nodes,): (i64,) = on!(&mut conn, |c| {
            sqlx::query_as("SELECT COUNT(*) FROM nodes WHERE lease_until > $1")
                .bind(time)
                .fetch_one(c)
                .await
        })?;
        Ok(nodes)
    }
}

pub(crate) async fn check_integrity(conn: &mut Conn) -> Result<Option<String>> {
    let Conn::Lite(conn) = conn else { return Ok(None) };
    let (found,): (String,) =
        sqlx::query_as("PRAGMA quick_check(1)").fetch_one(&mut **conn).await?;
    if found == "ok" {
        return Ok(None);
    }
    if !DAMAGED.swap(true, Ordering::Relaxed) {
        tracing::error!(found, "the database is damaged: stop the server, restore a backup");
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_databases_are_told_apart() {
        let of = |code| Trouble::of_code(code);
        assert_eq!(["13", "53100", "4874"].map(of), [Trouble::DiskFull; 3]);
        assert_eq!(["5", "517", "261"].map(of), [Trouble::Locked; 3]);
        assert_eq!(["11", "26", "267", "XX001"].map(of), [Trouble::Damaged; 4]);
        assert_eq!(["8", "25006"].map(of), [Trouble::ReadOnly; 2]);
        assert_eq!(["778", "14", "58030"].map(of), [Trouble::Disk; 3]);
        assert_eq!(["1", "2067", "23505", ""].map(of), [Trouble::Refused; 4]);
    }
}
