//! The one way to write: closures are grouped into commits, and answered when their group is on
//! disk.
//!
//! A commit costs one flush however large it is, so everything that waits goes into the next group.
//! A deferred write only reads and returns the rows it wants. The deferred writes of a group run
//! first, and their rows are written together. Then the direct writes run, each behind a savepoint.
//! Events are numbered last, just before the commit: so their counters are locked for the shortest
//! time, and the numbers follow the order of commits.
//!
//! This module knows no resource. What the rows of a write are is known to `pending`, and what a
//! group reads ahead to `read_cache`.

mod busy;
mod job;
mod owner_locks;

use crate::{
    Error, Result, Store,
    db::{Conn, Db, DbError},
    events,
    feed::{Feeds, Wakeup},
    pending::{CommitRows, PendingRows},
    read_cache::{Prefetch, ReadCache},
    rows::database_time,
    trouble::Trouble,
};
use atelier_core::{Event, ProjectId, UserId};
use busy::BusyLanes;
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use futures::future::BoxFuture;
use job::{Job, OnceFlag, Write, WriteMode};
use owner_locks::{OwnerLock, OwnerLocks};
use std::{
    io, mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How many lanes a node has on PostgreSQL. Writes of one owner use the same lane, so that they
/// share commits and do not wait for each other's row locks. SQLite has one writer, so it has one
/// lane.
const PG_LANES: usize = 4;
/// How many writes wait in a lane before senders have to wait.
const QUEUE: usize = 1024;
/// How many writes share a commit.
const GROUP: usize = 128;
/// How long a group may take. A database that has stopped answering must not block its lane for
/// ever.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a write on PostgreSQL waits until it is begun. It is longer than a frozen node can keep
/// a transaction open (`db/pg.rs`), and short enough for a request to be answered in five seconds.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a patient write waits until it is begun.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long writes that were set aside wait before their locks are tried again.
const RETRY: Duration = Duration::from_millis(100);

/// What a deferred write may use: it reads in the transaction of its group and returns the rows it
/// wants.
pub(crate) struct GroupReader {
    pub(crate) conn: Conn,
    /// Rows of earlier writes of this group that are not in the database yet.
    pub(crate) unwritten: PendingRows,
    pub(crate) cache: ReadCache,
    /// The database's time, and when it was asked for.
    clock: Option<(DateTime<Utc>, Instant)>,
}

/// What a direct write may use: it reads and writes in the transaction of its group.
pub(crate) struct Tx {
    reader: GroupReader,
    /// Rows of this write that the group writes after it. Adding one cannot fail.
    pub(crate) rows: PendingRows,
}

impl Deref for Tx {
    type Target = GroupReader;
    fn deref(&self) -> &GroupReader {
        &self.reader
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut GroupReader {
        &mut self.reader
    }
}

impl GroupReader {
    /// The database's time: asked for once in a transaction, and advanced by the local clock from
    /// there.
    pub(crate) async fn time(&mut self) -> Result<DateTime<Utc>, DbError> {
        let (time, asked) = match self.clock {
            Some(clock) => clock,
            None => *self.clock.insert((database_time(&mut self.conn).await?, Instant::now())),
        };
        let passed = TimeDelta::from_std(asked.elapsed()).unwrap_or(TimeDelta::zero());
        Ok((time + passed).trunc_subsecs(6))
    }
}

impl Tx {
    fn new(conn: Conn) -> Self {
        let (unwritten, cache) = (PendingRows::default(), ReadCache::default());
        let reader = GroupReader { conn, unwritten, cache, clock: None };
        Self { reader, rows: PendingRows::default() }
    }

    /// Forgets what was read in the last transaction.
    fn reset(&mut self) {
        self.rows = PendingRows::default();
        self.unwritten = PendingRows::default();
        self.cache.clear();
        self.clock = None;
    }

    /// Appends an event to the log of a project, in the same transaction as the change it reports.
    pub(crate) fn emit(&mut self, project: ProjectId, owner: UserId, event: &Event) {
        self.rows.emit(project, owner, event);
    }

    /// Sends a wakeup when the group is committed.
    pub(crate) fn wake(&mut self, wakeup: Wakeup) {
        self.rows.wake(wakeup);
    }
}

impl Store {
    /// This store, for work that nobody waits for. On PostgreSQL, a write that cannot begin,
    /// because its owner is locked or the database does not answer, waits for a minute instead of
    /// failing.
    #[must_use]
    pub fn patient(&self) -> Self {
        let mut store = self.clone();
        store.writer.patient = store.writer.begin_timeout.is_some();
        store.writer.begin_timeout = store.writer.begin_timeout.map(|_| PATIENT_TIMEOUT);
        store
    }

    /// Runs a direct write in the transaction of a group, and answers when it is durable. `owner`
    /// chooses the lane. `work` must await nothing but the database.
    pub(crate) async fn write<T, F>(&self, owner: UserId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.submit_direct(owner, WriteMode::Direct, work).await
    }

    /// Runs a direct write that changes nothing of what a [`ReadCache`] holds: no machine, no
    /// permission, no project. It can use what earlier writes of the group have read.
    pub(crate) async fn write_with_cache<T, F>(&self, owner: UserId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.submit_direct(owner, WriteMode::DirectWithCache, work).await
    }

    /// Runs a deferred write. It only reads, and returns the rows that its group writes for it: so
    /// there is nothing to undo if it fails, and it needs no savepoint.
    pub(crate) async fn write_deferred<T, F>(
        &self,
        owner: UserId,
        prefetch: Option<Prefetch>,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut GroupReader) -> BoxFuture<'t, Result<(T, PendingRows)>>
            + Send
            + 'static,
    {
        self.submit(owner, WriteMode::Deferred(prefetch), move |tx| work(&mut tx.reader)).await
    }

    async fn submit_direct<T, F>(&self, owner: UserId, mode: WriteMode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.submit(owner, mode, move |tx| {
            Box::pin(async move {
                let answer = work(&mut *tx).await?;
                Ok((answer, mem::take(&mut tx.rows)))
            })
        })
        .await
    }

    async fn submit<T, F>(&self, owner: UserId, mode: WriteMode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<(T, PendingRows)>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let begun = OnceFlag::default();
        let (lock, given_up) = (OwnerLock::of(owner), begun.clone());
        let (patient, submitted) = (self.writer.patient, Instant::now());
        let job = Box::new(Write {
            work: Some(work),
            mode,
            lock,
            begun,
            patient,
            submitted,
            outcome: None,
            reply,
        });
        let lane = self.writer.lane(owner);
        let written = async {
            lane.send(job).await.map_err(|_| Error::Closed)?;
            answer.await.map_err(|_| Error::Closed)?
        };
        let Some(limit) = self.writer.begin_timeout else { return written.await };
        tokio::pin!(written);
        match tokio::time::timeout(limit, &mut written).await {
            Ok(answer) => answer,
            Err(_) if given_up.take() => Err(Error::NotBegun),
            // The write has begun, so its answer follows.
            Err(_) => written.await,
        }
    }
}

/// Hands writes to the lanes.
#[derive(Clone)]
pub(crate) struct Writer {
    lanes: Arc<[mpsc::Sender<Box<dyn Job>>]>,
    busy: BusyLanes,
    /// How long a write waits until it is begun, if that is limited.
    begin_timeout: Option<Duration>,
    /// Whether a write that cannot be begun waits on.
    patient: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Writer {
    pub(crate) fn start(db: &Db, feeds: Arc<Feeds>) -> Result<Self> {
        let (lanes, begin_timeout) = match db {
            Db::Lite(_) => (1, None),
            Db::Pg(_) => (PG_LANES, Some(BEGIN_TIMEOUT)),
        };
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let busy = BusyLanes::new(lanes);
        let lane = |number: usize| {
            let (sender, jobs) = mpsc::channel(QUEUE);
            let (db, feeds, blocked) = (db.clone(), feeds.clone(), OwnerLocks::new());
            let busy = (busy.clone(), number);
            let blocks = matches!(db, Db::Lite(_));
            let lane = Lane { db, feeds, tx: None, blocked, busy }.run(jobs, stop.clone());
            if blocks {
                run_on_own_thread(tasks.track_future(lane))?;
            } else {
                tasks.spawn(lane);
            }
            Ok(sender)
        };
        let lanes = (0..lanes).map(lane).collect::<io::Result<_>>()?;
        tasks.close();
        Ok(Self { lanes, busy, begin_timeout, patient: false, tasks, stop })
    }

    /// How many lanes there are, how many of them have been busy with one group for longer than
    /// `stuck_after`, and how many writes wait in their queues.
    pub(crate) fn load(&self, stuck_after: Duration) -> (usize, usize, usize) {
        let waiting = self.lanes.iter().map(|lane| lane.max_capacity() - lane.capacity()).sum();
        (self.lanes.len(), self.busy.stuck(stuck_after), waiting)
    }

    fn lane(&self, owner: UserId) -> &mpsc::Sender<Box<dyn Job>> {
        &self.lanes[owner.0.as_u128() as usize % self.lanes.len()]
    }

    /// Accepts no more writes and finishes those that were submitted.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// Runs the lane of SQLite, which blocks while SQLite works and the disk writes. Between the
/// statements of a group it does not leave its thread.
fn run_on_own_thread(lane: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::Builder::new().name("writer".into());
    thread.spawn(move || runtime.block_on(lane)).map(drop)
}

type Group = Vec<Box<dyn Job>>;

/// Commits the writes of one queue, group by group, on one connection.
struct Lane {
    db: Db,
    feeds: Arc<Feeds>,
    /// Reused by the next group, dropped after an error.
    tx: Option<Tx>,
    /// Locks that the last group could not get. Their writes were set aside.
    blocked: OwnerLocks,
    /// Where to say since when a group has been running, and the number of this lane.
    busy: (BusyLanes, usize),
}

impl Lane {
    async fn run(mut self, mut jobs: mpsc::Receiver<Box<dyn Job>>, stop: CancellationToken) {
        let (mut group, mut aside) = (Group::new(), Group::new());
        while next_group(&mut group, &mut jobs, &stop).await {
            self.busy.0.set(self.busy.1, Some(Instant::now()));
            let committed = self.commit(&mut group, &mut aside);
            let outcome = tokio::time::timeout(TIMEOUT, committed).await;
            let outcome = outcome.unwrap_or_else(|_| Err(DbError::no_answer()));
            self.busy.0.set(self.busy.1, None);
            if let Err(error) = &outcome {
                Trouble::note(error);
                self.disconnect();
                // Nothing of these was done.
                let waits = |job: &mut Box<dyn Job>| job.is_patient() && job.can_begin();
                aside.extend(group.extract_if(.., waits));
            }
            let outcome = outcome.map_err(|error| {
                if !group.is_empty() {
                    tracing::error!(%error, writes = group.len(), "a group of writes was not \
                        committed");
                }
                Arc::new(error)
            });
            for job in group.drain(..) {
                job.settle(outcome.clone());
            }
            group.append(&mut aside);
        }
    }

    /// Begins a transaction on the lane's connection or, if that was lost, on a new one.
    async fn begin(&mut self, locks: &OwnerLocks) -> Result<(), DbError> {
        if let Some(tx) = &mut self.tx {
            match begin(tx, locks, &mut self.blocked).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the writer lost its connection; connecting again");
                }
            }
            self.disconnect();
        }
        let conn = self.db.connect_writer().await?;
        begin(self.tx.insert(Tx::new(conn)), locks, &mut self.blocked).await
    }

    /// Runs the group in one transaction. An error fails all of it. Writes of owners whose lock is
    /// held elsewhere are put into `aside`.
    async fn commit(&mut self, group: &mut Group, aside: &mut Group) -> Result<(), DbError> {
        let locks: OwnerLocks = group.iter().map(|job| job.lock()).collect();
        self.begin(&locks).await?;
        if !self.blocked.is_empty() {
            aside.extend(group.extract_if(.., |job| self.blocked.contains(&job.lock())));
        }
        let Some(tx) = &mut self.tx else { return Err(DbError::PoolClosed) };
        let committed = run_group(tx, group, &self.feeds).await?;
        self.feeds.publish(&committed.events);
        for wakeup in committed.wakeups {
            self.feeds.wakeups().send(wakeup);
        }
        Ok(())
    }

    /// Closes the connection: it may be in the middle of a transaction.
    fn disconnect(&mut self) {
        if let Some(tx) = self.tx.take() {
            tx.reader.conn.discard();
        }
    }
}

/// Waits for writes. `group` holds those that were set aside; they are tried again after a moment,
/// or with the next writes. Returns whether there is anything to do.
async fn next_group(
    group: &mut Group,
    jobs: &mut mpsc::Receiver<Box<dyn Job>>,
    stop: &CancellationToken,
) -> bool {
    group.retain(|job| job.can_begin());
    let again = !group.is_empty();
    let received = tokio::select! {
        biased;
        received = jobs.recv_many(group, GROUP) => received,
        () = stop.cancelled() => {
            // What was submitted before is finished; what comes later is refused.
            jobs.close();
            jobs.recv_many(group, GROUP).await
        }
        () = tokio::time::sleep(RETRY), if again => return true,
    };
    if received == 0 && again {
        tokio::time::sleep(RETRY).await;
    }
    received > 0 || again
}

/// Begins a transaction. On PostgreSQL it locks the owners of the group on every node, except those
/// in `blocked`, which is updated.
async fn begin(tx: &mut Tx, locks: &OwnerLocks, blocked: &mut OwnerLocks) -> Result<(), DbError> {
    tx.reset();
    match &mut tx.reader.conn {
        // IMMEDIATE, so that waiting for another process happens here and not in the middle.
        Conn::Lite(conn) => {
            conn.limit(TIMEOUT)?;
            tx.conn.run("BEGIN IMMEDIATE").await
        }
        Conn::Pg(conn) => {
            let time = owner_locks::begin(conn, locks, blocked).await?;
            tx.clock = Some((time.trunc_subsecs(6), Instant::now()));
            Ok(())
        }
    }
}

/// What others learn of a group after its commit.
#[derive(Default)]
struct Committed {
    events: Vec<Arc<events::StoredEvent>>,
    wakeups: Vec<Wakeup>,
}

/// Runs the writes of a group and commits those that succeed.
async fn run_group(
    tx: &mut Tx,
    group: &mut [Box<dyn Job>],
    feeds: &Feeds,
) -> Result<Committed, DbError> {
    // Deferred writes run first, so that all their rows are written at once. Nobody was answered
    // yet, so no write of the group can depend on another one.
    let is_deferred = |job: &dyn Job| matches!(job.mode(), WriteMode::Deferred(_));
    group.sort_by_key(|job| !is_deferred(job.as_ref()));
    let first_direct = group.partition_point(|job| is_deferred(job.as_ref()));
    let (deferred, direct) = group.split_at_mut(first_direct);
    let mut at_commit = CommitRows::default();
    let mut succeeded = run_deferred(tx, deferred).await?;
    let alone = deferred.is_empty() && direct.len() == 1;
    if !direct.is_empty() && !alone {
        flush(tx, &mut at_commit).await?;
        tx.conn.run("SAVEPOINT w").await?;
    }
    let mut left = direct.len();
    for job in direct {
        left -= 1;
        if let WriteMode::Direct = job.mode() {
            tx.cache.clear();
        }
        tx.rows = PendingRows::default();
        match job.run(tx).await {
            Some(rows) => {
                succeeded += 1;
                tx.cache.add(&rows);
                tx.unwritten.append(rows);
                // The commit releases the savepoint of the last write.
                if left > 0 {
                    // The next write reads these rows, and does not undo them if it fails.
                    flush(tx, &mut at_commit).await?;
                    // Both statements are sent in one round trip.
                    tx.conn.run("RELEASE w; SAVEPOINT w").await?;
                }
            }
            None => {
                tx.cache.clear();
                if !alone {
                    tx.conn.run("ROLLBACK TO w").await?;
                }
            }
        }
    }
    if succeeded == 0 {
        tx.conn.run("ROLLBACK").await?;
        return Ok(Committed::default());
    }
    flush(tx, &mut at_commit).await?;
    commit(tx, at_commit, feeds).await
}

/// Runs the deferred writes of a group and collects their rows. Returns how many succeeded.
async fn run_deferred(tx: &mut Tx, deferred: &mut [Box<dyn Job>]) -> Result<usize, DbError> {
    let prefetch = |job: &dyn Job| match job.mode() {
        WriteMode::Deferred(prefetch) => prefetch,
        WriteMode::Direct | WriteMode::DirectWithCache => None,
    };
    let wanted: Vec<Prefetch> = deferred.iter().filter_map(|job| prefetch(job.as_ref())).collect();
    let GroupReader { conn, cache, .. } = &mut tx.reader;
    cache.prefetch(conn, &wanted).await?;
    let mut succeeded = 0;
    for job in deferred {
        if let Some(rows) = job.run(tx).await {
            succeeded += 1;
            tx.cache.add(&rows);
            tx.unwritten.append(rows);
        }
    }
    tx.cache.drop_prefetched();
    Ok(succeeded)
}

/// Writes the rows that wait, except those for the commit.
async fn flush(tx: &mut Tx, at_commit: &mut CommitRows) -> Result<(), DbError> {
    let rows = mem::take(&mut tx.unwritten);
    at_commit.append(rows.write(&mut tx.conn).await?);
    Ok(())
}

/// Writes the rows that come with the commit, numbers the events, and commits.
async fn commit(
    tx: &mut Tx,
    mut at_commit: CommitRows,
    feeds: &Feeds,
) -> Result<Committed, DbError> {
    at_commit.write(&mut tx.conn).await.map_err(|error| match error {
        Error::Sql(error) => error,
        other => DbError::Other(other.to_string()),
    })?;
    let CommitRows { events, wakeups, .. } = at_commit;
    let events = events::append(&mut tx.conn, events).await?;
    crate::feed::commit(&mut tx.conn, &events, &wakeups, feeds).await?;
    Ok(Committed { events, wakeups })
}

#[cfg(test)]
mod tests;
