//! What is wrong with the database, told from its errors, and figures about its use.

use crate::{
    Error, Result, Store,
    db::{Conn, DbError, Usage, sql},
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
    pub(crate) fn of(error: &DbError) -> Self {
        match error {
            DbError::Sqlite { code, .. } => Self::of_sqlite(*code),
            DbError::Postgres { code, .. } => Self::of_postgres(code),
            DbError::Io(error) if error.kind() == ErrorKind::StorageFull => Self::DiskFull,
            DbError::PoolTimedOut => Self::TooManyConnections,
            DbError::Io(_) | DbError::PoolClosed => Self::NoAnswer,
            _ => Self::Refused,
        }
    }

    fn of_postgres(code: &str) -> Self {
        match code {
            "53100" => Self::DiskFull,
            "53300" => Self::TooManyConnections,
            "25006" => Self::ReadOnly,
            "XX001" | "XX002" => Self::Damaged,
            "57P01" | "57P02" | "57P03" => Self::NoAnswer,
            "55P03" | "57014" => Self::Locked,
            "58030" => Self::Disk,
            _ => Self::Refused,
        }
    }

    fn of_sqlite(code: i32) -> Self {
        /// The shared memory of the log could not be extended.
        const IOERR_SHMSIZE: i32 = 4874;
        match (code, code & 0xff) {
            (IOERR_SHMSIZE, _) | (_, 13) => Self::DiskFull,
            (_, 5 | 6) => Self::Locked,
            (_, 8) => Self::ReadOnly,
            // A statement that took too long was interrupted.
            (_, 9) => Self::NoAnswer,
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
    pub(crate) fn note(error: &DbError) {
        if Self::of(error) == Self::Damaged && !DAMAGED.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the database is damaged: stop the server, restore a backup");
        }
    }
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
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
        let mut conn = self.db.connect_for_long().await?;
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
        let (nodes,): (i64,) = sql("SELECT COUNT(*) FROM nodes WHERE lease_until > $1")
            .bind(time)
            .fetch_one(&mut conn)
            .await?;
        Ok(nodes)
    }
}

pub(crate) async fn check_integrity(conn: &mut Conn) -> Result<Option<String>> {
    if let Conn::Pg(_) = conn {
        return Ok(None);
    }
    let (found,): (String,) = sql("PRAGMA quick_check(1)").fetch_one(conn).await?;
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
    fn codes_of_both_databases_tell_what_is_wrong() {
        let postgres = |code| Trouble::of_postgres(code);
        assert_eq!([13, 4874].map(Trouble::of_sqlite), [Trouble::DiskFull; 2]);
        assert_eq!(postgres("53100"), Trouble::DiskFull);
        assert_eq!([5, 517, 261].map(Trouble::of_sqlite), [Trouble::Locked; 3]);
        assert_eq!([11, 26, 267].map(Trouble::of_sqlite), [Trouble::Damaged; 3]);
        assert_eq!(postgres("XX001"), Trouble::Damaged);
        assert_eq!(
            (Trouble::of_sqlite(8), postgres("25006")),
            (Trouble::ReadOnly, Trouble::ReadOnly)
        );
        assert_eq!([778, 14].map(Trouble::of_sqlite), [Trouble::Disk; 2]);
        assert_eq!(postgres("58030"), Trouble::Disk);
        assert_eq!(Trouble::of_sqlite(9), Trouble::NoAnswer);
        assert_eq!([1, 2067].map(Trouble::of_sqlite), [Trouble::Refused; 2]);
        assert_eq!(["23505", ""].map(postgres), [Trouble::Refused; 2]);
    }
}
