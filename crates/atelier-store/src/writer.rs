//! The one door for writes: closures are grouped into commits, and answered when they are on disk.
//!
//! A commit costs a flush whatever its size, so whatever is waiting goes into the next one: first what only looks and
//! keeps what it decides (`unwritten.rs`), then the rest, each behind a savepoint of its own. Events are numbered last,
//! just before the commit: the counters they take are locked for the shortest time, and numbers follow the order of
//! commits.

use crate::{
    Error, Result, Store,
    db::{Conn, Db},
    events::{self, Pending},
    feed::{Feeds, Wakeup},
    unwritten::Unwritten,
};
use atelier_core::{CallId, Event, NodeId, ProjectId, UserId, gate::DecisionContext};
use chrono::{DateTime, SubsecRound, Utc};
use futures::{FutureExt, future::BoxFuture};
use sqlx::{AssertSqlSafe, Row};
use std::{
    collections::HashMap,
    io,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Writes of one owner share a lane, so that they share commits and do not wait for each other's
/// row locks. SQLite has one writer anyway.
const PG_LANES: i32 = 4;
/// Sets our advisory locks apart from those of others in the same database.
const LOCKS: i32 = 0x0061_746c;
const QUEUE: usize = 1024;
const GROUP: usize = 128;
/// A database that has stopped answering must not hold up its lane for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a write may do: query its connection, tell events, ring the bell.
pub struct Tx {
    pub(crate) conn: Conn,
    events: Vec<Pending>,
    rings: Vec<Wakeup>,
    pub(crate) unwritten: Unwritten,
    /// What decisions about calls depend on, for the projects that this group is about.
    pub(crate) contexts: HashMap<ProjectId, DecisionContext>,
    /// The database's time, and when it was asked for.
    pub(crate) clock: Option<(DateTime<Utc>, Instant)>,
    /// Calls as they were when the group began, for those in it that only keep.
    pub(crate) calls_ahead: HashMap<CallId, String>,
}

impl Tx {
    fn new(conn: Conn) -> Self {
        Self {
            conn,
            events: Vec::new(),
            rings: Vec::new(),
            unwritten: Unwritten::default(),
            contexts: HashMap::new(),
            clock: None,
            calls_ahead: HashMap::new(),
        }
    }

    /// What was known in one transaction is not known in the next.
    fn forget(&mut self) {
        self.unwritten = Unwritten::default();
        self.contexts.clear();
        self.clock = None;
        self.calls_ahead.clear();
    }

    /// Appends an event to the log of a project, in the same transaction as the change it tells about.
    pub fn emit(&mut self, project: ProjectId, owner: UserId, event: &Event) {
        self.events.push(Pending::new(project, owner, event));
    }

    pub(crate) fn wake(&mut self, wakeup: Wakeup) {
        self.rings.push(wakeup);
    }
}

impl Store {
    /// Runs `work` in a transaction of its own or of a group, and answers when it is durable.
    ///
    /// `owner` chooses the lane. `work` must await nothing but the database.
    pub(crate) async fn write<T, F>(&self, owner: UserId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.hand_in(owner, Manner::Writes, work).await
    }

    /// The same for work that only reads and then, as its last act, keeps what it decides (`Tx::keep_call` and its
    /// like): there is nothing to undo when it fails, so it needs no savepoint.
    pub(crate) async fn write_kept<T, F>(&self, owner: UserId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.hand_in(owner, Manner::Keeps(None), work).await
    }

    /// Whichever of these it is.
    pub(crate) async fn hand_in<T, F>(&self, owner: UserId, manner: Manner, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Write { work: Some(work), manner, outcome: None, reply });
        self.writer.lane(owner).send(job).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

#[derive(Clone)]
pub(crate) struct Writer {
    lanes: Arc<[mpsc::Sender<Box<dyn Job>>]>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Writer {
    pub(crate) fn start(db: &Db, feeds: Arc<Feeds>) -> Self {
        let lanes = match db {
            Db::Lite(_) => 1,
            Db::Pg(_) => PG_LANES,
        };
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let lanes = (0..lanes)
            .map(|number| {
                let (sender, jobs) = mpsc::channel(QUEUE);
                let lane = Lane { number, db: db.clone(), feeds: feeds.clone(), tx: None };
                tasks.spawn(lane.run(jobs, stop.clone()));
                sender
            })
            .collect();
        tasks.close();
        Self { lanes, tasks, stop }
    }

    fn lane(&self, owner: UserId) -> &mpsc::Sender<Box<dyn Job>> {
        &self.lanes[owner.0.as_u128() as usize % self.lanes.len()]
    }

    /// Takes no more writes and finishes those under way.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// What a write does with the database.
#[derive(Clone, Copy)]
pub(crate) enum Manner {
    Writes,
    /// It writes nothing itself, so there is nothing to roll back. Where it is a step with a call, that is fetched for it.
    Keeps(Option<(ProjectId, CallId)>),
}

/// One waiting write, its result type hidden.
trait Job: Send {
    fn keeps(&self) -> bool;
    /// The call that it takes a step with, if it only keeps.
    fn steps_on(&self) -> Option<(ProjectId, CallId)>;
    /// Whether it succeeded; if not, its savepoint is rolled back.
    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, bool>;
    fn settle(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>);
}

struct Write<T, F> {
    work: Option<F>,
    manner: Manner,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send + 'static,
    F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T>> + Send + 'static,
{
    fn keeps(&self) -> bool {
        matches!(self.manner, Manner::Keeps(_))
    }

    fn steps_on(&self) -> Option<(ProjectId, CallId)> {
        match self.manner {
            Manner::Keeps(call) => call,
            Manner::Writes => None,
        }
    }

    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, bool> {
        Box::pin(async move {
            // Nobody waits for it any more, so nobody was told that it happens.
            if self.reply.is_closed() {
                return false;
            }
            let Some(work) = self.work.take() else { return false };
            // A panic in one write must not take its lane, and so every later write, with it.
            let outcome = AssertUnwindSafe(work(tx)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|_| Err(Error::Corrupt("a write panicked".into())));
            self.outcome.insert(outcome).is_ok()
        })
    }

    fn settle(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>) {
        let outcome = match (commit, self.outcome) {
            // A write that failed by itself keeps its own error, whatever became of the group.
            (_, Some(Err(error))) => Err(error),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Err(error), _) => Err(Error::Commit(error)),
            (Ok(()), None) => Err(Error::Closed),
        };
        // The asker may have gone; the write stands all the same.
        drop(self.reply.send(outcome));
    }
}

struct Lane {
    number: i32,
    db: Db,
    feeds: Arc<Feeds>,
    /// Kept between groups, dropped after an error.
    tx: Option<Tx>,
}

impl Lane {
    async fn run(mut self, mut jobs: mpsc::Receiver<Box<dyn Job>>, stop: CancellationToken) {
        let mut group: Vec<Box<dyn Job>> = Vec::new();
        loop {
            tokio::select! {
                biased;
                got = jobs.recv_many(&mut group, GROUP) => if got == 0 { break },
                () = stop.cancelled() => {
                    // What was already taken in is finished; what comes later is refused.
                    jobs.close();
                    if jobs.recv_many(&mut group, GROUP).await == 0 { break }
                }
            }
            let outcome = tokio::time::timeout(PATIENCE, self.commit(&mut group)).await;
            let outcome = outcome.unwrap_or_else(|_| {
                Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the database does not answer")))
            });
            let outcome = outcome.map_err(|error| {
                self.give_up();
                tracing::error!(%error, writes = group.len(), "a group of writes was not committed");
                Arc::new(error)
            });
            for job in group.drain(..) {
                job.settle(outcome.clone());
            }
        }
    }

    /// Begins a transaction on the connection at hand or, where that has gone bad meanwhile, on a new one.
    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        if let Some(tx) = &mut self.tx {
            match enter(tx, self.number).await {
                Ok(()) => return Ok(()),
                Err(error) => tracing::warn!(%error, "the writer lost its connection; connecting again"),
            }
            self.give_up();
        }
        let conn = self.db.connect().await?;
        enter(self.tx.insert(Tx::new(conn)), self.number).await
    }

    /// Runs the group in one transaction. An error fails all of it.
    async fn commit(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), sqlx::Error> {
        self.begin().await?;
        let Some(tx) = &mut self.tx else { return Err(sqlx::Error::PoolClosed) };
        let stored = run_group(tx, group, self.feeds.node).await?;
        self.feeds.publish(&stored);
        for ring in tx.rings.drain(..) {
            self.feeds.wakeups().send(ring);
        }
        Ok(())
    }

    /// Closes the connection: it may be in the middle of anything.
    fn give_up(&mut self) {
        if let Some(tx) = self.tx.take() {
            tx.conn.discard();
        }
    }
}

/// Begins, and has its lane to itself on every node: what belongs to one owner is always written in one lane,
/// so that two nodes never hold a row that the other waits for.
async fn enter(tx: &mut Tx, lane: i32) -> Result<(), sqlx::Error> {
    tx.forget();
    match &mut tx.conn {
        // IMMEDIATE, so that waiting for another process happens here and not in the middle.
        Conn::Lite(_) => tx.conn.run("BEGIN IMMEDIATE").await,
        Conn::Pg(conn) => {
            // In one trip. The time is asked for last: it may take a while until the lane is ours.
            let begin = format!(
                "BEGIN; SELECT pg_advisory_xact_lock({LOCKS}, {lane}); SELECT clock_timestamp() AS time"
            );
            let rows = sqlx::raw_sql(AssertSqlSafe(begin)).fetch_all(&mut **conn).await?;
            let time: DateTime<Utc> = rows.last().ok_or(sqlx::Error::RowNotFound)?.try_get("time")?;
            tx.clock = Some((time.trunc_subsecs(6), Instant::now()));
            Ok(())
        }
    }
}

async fn run_group(
    tx: &mut Tx,
    group: &mut [Box<dyn Job>],
    node: NodeId,
) -> Result<Vec<Arc<events::StoredEvent>>, sqlx::Error> {
    // Those that only keep come first, so that all they keep is written at once. Nobody was answered yet, so none of
    // the group can have come before another.
    group.sort_by_key(|job| !job.keeps());
    let (keeping, writing) = group.split_at_mut(group.partition_point(|job| job.keeps()));
    read_ahead(tx, keeping.iter().filter_map(|job| job.steps_on()).collect()).await?;
    let mut kept = 0;
    for job in keeping.iter_mut() {
        kept += usize::from(attempt(tx, job).await);
    }
    tx.calls_ahead.clear();
    let alone = keeping.is_empty() && writing.len() == 1;
    if !writing.is_empty() && !alone {
        tx.flush_kept().await?;
        tx.conn.run("SAVEPOINT w").await?;
    }
    let mut left = writing.len();
    for job in writing {
        left -= 1;
        let done = attempt(tx, job).await;
        kept += usize::from(done);
        if !done {
            tx.drop_kept();
            tx.forget_contexts();
        }
        match (done, alone) {
            // The commit takes what the last one holds.
            (true, _) if left == 0 => {}
            (true, _) => {
                // The next one may look at it, and does not undo it.
                tx.flush_kept().await?;
                // Each statement is a trip to the database, so these go together.
                tx.conn.run("RELEASE w; SAVEPOINT w").await?;
            }
            (false, false) => tx.conn.run("ROLLBACK TO w").await?,
            (false, true) => {}
        }
    }
    if kept == 0 {
        tx.conn.run("ROLLBACK").await?;
        return Ok(Vec::new());
    }
    tx.flush_kept().await?;
    tx.write_memos().await.map_err(|error| match error {
        Error::Sql(error) => error,
        other => sqlx::Error::Protocol(other.to_string()),
    })?;
    let pending = std::mem::take(&mut tx.events);
    // The embedded database takes two statements in one trip, and has nobody to notify.
    let at_once = matches!(tx.conn, Conn::Lite(_)) && !pending.is_empty();
    let stored = events::append(&mut tx.conn, pending, if at_once { "; COMMIT" } else { "" }).await?;
    if !at_once {
        crate::feed::commit(&mut tx.conn, &stored, &tx.rings, node).await?;
    }
    Ok(stored)
}

/// Fetches the calls that the group takes a step with, in one trip instead of one for each.
async fn read_ahead(tx: &mut Tx, calls: Vec<(ProjectId, CallId)>) -> Result<(), sqlx::Error> {
    if calls.len() > 1 {
        tx.calls_ahead = crate::gate::lock_calls(&mut tx.conn, &calls).await?;
    }
    Ok(())
}

/// Runs a job; one that fails tells of nothing.
async fn attempt(tx: &mut Tx, job: &mut Box<dyn Job>) -> bool {
    let (events, rings, memos) = (tx.events.len(), tx.rings.len(), tx.memos().len());
    let done = job.run(tx).await;
    if !done {
        tx.events.truncate(events);
        tx.rings.truncate(rings);
        tx.memos().truncate(memos);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use atelier_core::gate::{Audit, AuditDecision};
    use uuid::Uuid;

    type Handed = (Box<dyn Job>, oneshot::Receiver<Result<()>>);

    fn job(
        keeps: bool,
        work: impl for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<()>> + Send + 'static,
    ) -> Handed {
        let (reply, answer) = oneshot::channel();
        let manner = if keeps { Manner::Keeps(None) } else { Manner::Writes };
        (Box::new(Write { work: Some(work), manner, outcome: None, reply }), answer)
    }

    fn audit() -> Audit {
        Audit {
            tool_id: Some(CallId(Uuid::now_v7())),
            approval_id: None,
            decision: AuditDecision::Approved,
            by: None,
            via: None,
            digest: None,
            grant_id: None,
            at: Utc::now(),
        }
    }

    const PROJECT: ProjectId = ProjectId(Uuid::from_u128(1));

    /// Keeps a decision, and goes well or not.
    fn decides(keeps: bool, well: bool) -> Handed {
        job(keeps, move |tx| {
            tx.keep_audit(PROJECT, audit());
            Box::pin(async move { if well { Ok(()) } else { Err(Error::NotFound) } })
        })
    }

    fn fails(keeps: bool) -> Handed {
        job(keeps, |_| Box::pin(async { Err(Error::NotFound) }))
    }

    /// Runs such a group and tells how many of the decisions that it kept are on disk.
    async fn decisions_of(group: Vec<Handed>) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { data: folder.path().into(), database_url: None };
        let store = Store::open(&settings).await.unwrap();
        let (mut group, _answers): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let mut tx = Tx::new(store.db.connect().await.unwrap());
        enter(&mut tx, 0).await.unwrap();
        run_group(&mut tx, &mut group, NodeId(Uuid::nil())).await.unwrap();
        let owned = crate::Owned::from_row((PROJECT.0, Uuid::nil(), "acme".into())).unwrap();
        store.audit(&owned, 10, 0).await.unwrap().0.len()
    }

    #[tokio::test]
    async fn what_a_write_has_kept_does_not_go_with_the_next_one() {
        let group = vec![decides(false, true), fails(false), decides(false, true), fails(false)];
        assert_eq!(decisions_of(group).await, 2);
    }

    #[tokio::test]
    async fn what_a_write_has_kept_goes_with_it() {
        let group = vec![decides(false, false), decides(false, true), decides(false, false)];
        assert_eq!(decisions_of(group).await, 1);
        assert_eq!(decisions_of(vec![decides(false, false)]).await, 0);
    }

    #[tokio::test]
    async fn what_is_kept_first_outlives_whatever_fails() {
        let group =
            vec![fails(false), decides(true, true), fails(true), decides(false, false), decides(true, true)];
        assert_eq!(decisions_of(group).await, 2);
        assert_eq!(decisions_of(vec![fails(true), decides(false, true)]).await, 1);
    }
}
