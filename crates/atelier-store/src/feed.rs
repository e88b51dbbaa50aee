//! Delivery of events to their readers: a feed for each log that is followed, and wakeups between
//! nodes (`feed/peers.rs`).
//!
//! Correctness never depends on a notification; notifications only make delivery faster. A reader
//! always reads the log, and a look at the counters every few seconds finds what a lost
//! notification would have reported.

mod peers;
pub(crate) mod redis;

use crate::{
    Error, Result, Store,
    access::Owned,
    db::{Conn, Db, Pg},
    events::{Cursor, Scope, StoredEvent},
};
use atelier_core::{ConversationId, NodeId, ProjectId, TaskId, UserId, gate::GatedCall};
use peers::Peers;
use redis::Redis;
use sqlx::AssertSqlSafe;
use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{broadcast, watch};
use uuid::Uuid;

/// How many recent events a feed keeps in memory: those of a few groups. Readers that are further
/// behind ask the database.
const RECENT: usize = 2048;
/// How many bytes of recent events a feed keeps in memory.
const RECENT_BYTES: usize = 1 << 20;
const PAGE: i64 = 64;
/// How many bytes of output one delta carries, so that it fits into a notification of PostgreSQL
/// even if every byte has to be escaped.
const OUTPUT_PIECE: usize = 1100;
/// What stands for the conversation of a call outside of conversations.
const NO_CONVERSATION: ConversationId = ConversationId(Uuid::nil());
/// How long a lost notification can go unnoticed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A notification that something may have changed. It only tells a reader to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// Agents of this project changed.
    Agents(ProjectId),
    /// This project was deleted.
    ProjectDeleted(ProjectId),
    /// The memory index has something to process.
    Memory,
    /// A task of this owner's queue may be free to run.
    Queue(UserId, Uuid),
    /// A task or a plan has ended.
    Work(Uuid),
    /// Tokens were revoked.
    Tokens,
    /// Notifications may have been lost, so anything may have changed.
    Everything,
}

/// The wakeups of this node: for its own changes and, on PostgreSQL, for those of every other node.
#[derive(Clone)]
pub struct Wakeups(broadcast::Sender<Wakeup>);

impl Wakeups {
    pub fn subscribe(&self) -> WakeupReceiver {
        WakeupReceiver(self.0.subscribe())
    }

    pub(crate) fn send(&self, wakeup: Wakeup) {
        // There may be no receiver yet, or none any more.
        drop(self.0.send(wakeup));
    }
}

pub struct WakeupReceiver(broadcast::Receiver<Wakeup>);

impl WakeupReceiver {
    /// The next wakeup; `None` when the store is closed.
    pub async fn next(&mut self) -> Option<Wakeup> {
        match self.0.recv().await {
            Ok(wakeup) => Some(wakeup),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Wakeup::Everything),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

pub(crate) struct Feeds {
    /// This node. It ignores its own notifications.
    pub(crate) node: NodeId,
    followed: Mutex<HashMap<Scope, Weak<Feed>>>,
    wakeups: Wakeups,
    /// The other nodes. SQLite has none.
    peers: Option<Peers>,
}

impl Feeds {
    /// Starts to exchange messages with the other nodes that share the database.
    pub(crate) async fn start(db: &Db, redis_url: Option<&str>) -> Result<Arc<Self>> {
        let node = NodeId(Uuid::now_v7());
        let wakeups = Wakeups(broadcast::channel(1024).0);
        let feeds = |peers| Arc::new(Self { node, followed: Mutex::default(), wakeups, peers });
        let Db::Pg(pg) = db else { return Ok(feeds(None)) };
        let redis = match redis_url {
            Some(url) => Some(Arc::new(Redis::new(url, redis_channel(pg).await?)?)),
            None => None,
        };
        let (peers, sender) = Peers::new(node, (**pg).clone(), redis.clone());
        let feeds = feeds(Some(peers));
        tokio::spawn(sender);
        tokio::spawn(listen((**pg).clone(), Arc::downgrade(&feeds)));
        if let Some(redis) = redis {
            tokio::spawn(redis.run((**pg).clone(), Arc::downgrade(&feeds)));
        }
        Ok(feeds)
    }

    /// Whether Redis carries the messages between the nodes; `None` if it is not configured.
    pub(crate) fn redis_works(&self) -> Option<bool> {
        self.peers.as_ref().and_then(Peers::redis_works)
    }

    /// Records whether other nodes share the database. Words are sent only then.
    pub(crate) fn note_peers(&self, exist: bool) {
        if let Some(peers) = &self.peers {
            peers.note(exist);
        }
    }

    pub(crate) fn wakeups(&self) -> Wakeups {
        self.wakeups.clone()
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<Scope, Weak<Feed>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn follow(&self, scope: Scope) -> Arc<Feed> {
        let mut followed = self.followed();
        if let Some(feed) = followed.get(&scope).and_then(Weak::upgrade) {
            return feed;
        }
        followed.retain(|_, feed| feed.strong_count() > 0);
        let feed = Arc::new(Feed::default());
        followed.insert(scope, Arc::downgrade(&feed));
        feed
    }

    fn find(&self, scope: Scope) -> Option<Arc<Feed>> {
        self.followed().get(&scope).and_then(Weak::upgrade)
    }

    /// Delivers events that were just committed on this node to the readers that follow them.
    pub(crate) fn publish(&self, events: &[Arc<StoredEvent>]) {
        for event in events {
            for scope in [Scope::Project(event.project), Scope::User(event.user)] {
                if let Some(feed) = self.find(scope) {
                    feed.push(event.clone(), event.number(scope));
                }
            }
        }
    }
}

/// The recent events of one log that has readers, and the deltas that are sent with them.
pub(crate) struct Feed {
    head: watch::Sender<i64>,
    recent: Mutex<Recent>,
    /// Recent deltas, which are not stored, each with its number.
    deltas: Mutex<VecDeque<(u64, Arc<Delta>)>>,
    last_delta: watch::Sender<u64>,
}

/// A piece of a message that a model is still writing, or of what a command prints. It is delivered
/// to current readers and not stored.
#[derive(Debug)]
pub struct Delta {
    pub session: ConversationId,
    pub name: Cow<'static, str>,
    /// JSON in one line.
    pub data: String,
}

/// The last events of a log, without gaps.
#[derive(Default)]
struct Recent {
    events: VecDeque<(i64, Arc<StoredEvent>)>,
    bytes: usize,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            head: watch::Sender::new(0),
            recent: Mutex::default(),
            deltas: Mutex::default(),
            last_delta: watch::Sender::new(0),
        }
    }
}

impl Recent {
    fn push(&mut self, event: Arc<StoredEvent>, number: i64) {
        // Another node may have written in between, and what is kept here must have no gap.
        if self.events.back().is_some_and(|(last, _)| last + 1 != number) {
            *self = Self::default();
        }
        self.bytes += event.data.len();
        self.events.push_back((number, event));
        while self.events.len() > RECENT || (self.events.len() > 1 && self.bytes > RECENT_BYTES) {
            self.bytes -= self.events.pop_front().map_or(0, |(_, event)| event.data.len());
        }
    }
}

impl Feed {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Arc<StoredEvent>, number: i64) {
        self.recent().push(event, number);
        self.reach(number);
    }

    /// Records that the log has at least `number` events, and wakes its readers.
    pub(crate) fn reach(&self, number: i64) {
        self.head.send_if_modified(|head| {
            let moved = number > *head;
            *head = number.max(*head);
            moved
        });
    }

    fn push_delta(&self, delta: Arc<Delta>) {
        let mut deltas = self.deltas.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *self.last_delta.borrow() + 1;
        deltas.push_back((number, delta));
        if deltas.len() > RECENT {
            deltas.pop_front();
        }
        // Under the lock, before another delta can take the next number.
        self.last_delta.send_replace(number);
    }

    /// The events after `cursor`, if they are in memory.
    fn after(&self, cursor: i64) -> Option<Vec<Arc<StoredEvent>>> {
        let recent = self.recent();
        let (first, _) = recent.events.front()?;
        let skip = usize::try_from(cursor + 1 - first).ok()?;
        let events: Vec<_> =
            recent.events.iter().skip(skip).map(|(_, event)| event.clone()).collect();
        (!events.is_empty()).then_some(events)
    }
}

/// A reader of one log at its own pace. Events that it has not asked for stay in the log, so a slow
/// reader needs no memory.
pub struct Subscription {
    store: Store,
    scope: Scope,
    head: watch::Receiver<i64>,
    feed: Arc<Feed>,
    cursor: i64,
}

/// Receives the deltas of one project or user.
pub struct DeltaReceiver {
    feed: Arc<Feed>,
    last: watch::Receiver<u64>,
    received: u64,
}

impl Subscription {
    pub(crate) fn new(store: Store, scope: Scope, feed: Arc<Feed>, cursor: i64) -> Self {
        Self { store, scope, head: feed.head.subscribe(), feed, cursor }
    }

    /// The number of the last event that was read.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// The deltas from now on.
    pub fn deltas(&self) -> DeltaReceiver {
        let last = self.feed.last_delta.subscribe();
        let received = *last.borrow();
        DeltaReceiver { feed: self.feed.clone(), last, received }
    }

    /// The next events, at least one. Cancel-safe: an abandoned call loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Arc<StoredEvent>>> {
        while *self.head.borrow_and_update() <= self.cursor {
            self.head.changed().await.map_err(|_| Error::Closed)?;
        }
        let events = match self.feed.after(self.cursor) {
            Some(events) => events,
            None => self.store.events_after(self.scope, self.cursor, PAGE).await?,
        };
        // Retention may have removed events that a slow reader has not read. It removes by project,
        // so a user's log may have a hole anywhere. The reader must start again instead of seeing a
        // gap.
        match events.last().map(|last| last.number(self.scope)) {
            Some(last) if last - self.cursor == events.len() as i64 => self.cursor = last,
            _ => return Err(Error::Overtaken),
        }
        Ok(events)
    }
}

impl DeltaReceiver {
    /// The next deltas. Cancel-safe; a receiver that is too slow misses some of them.
    pub async fn next(&mut self) -> Vec<Arc<Delta>> {
        while *self.last.borrow_and_update() <= self.received {
            if self.last.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
        let deltas = self.feed.deltas.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<_> =
            deltas.iter().filter(|(number, _)| *number > self.received).cloned().collect();
        drop(deltas);
        self.received = new.last().map_or(self.received, |(number, _)| *number);
        new.into_iter().map(|(_, delta)| delta).collect()
    }
}

/// Sends the deltas of one task to the current readers on all nodes.
pub struct DeltaSender {
    feeds: Arc<Feeds>,
    owner: UserId,
    project: ProjectId,
    session: ConversationId,
    task: TaskId,
    /// Whether other nodes were told anything.
    has_peers: AtomicBool,
}

impl Store {
    /// Follows a log. The second value is `false` if the cursor is unknown or too old: then the
    /// reader has missed events and must read everything again.
    pub async fn subscribe(&self, scope: Scope, from: Cursor) -> Result<(Subscription, bool)> {
        // The feed comes first, so that events which are committed after this line are not missed.
        let feed = self.feeds.follow(scope);
        let (head, floor) = self.event_bounds(scope).await?;
        feed.reach(head);
        let (cursor, known) = match from {
            Cursor::Now => (head, true),
            Cursor::After(0) => (floor, true),
            Cursor::After(n) if (floor..=head).contains(&n) => (n, true),
            Cursor::After(_) => (head, false),
            Cursor::Last(n) => (floor.max(head - i64::from(n)), true),
        };
        Ok((Subscription::new(self.clone(), scope, feed, cursor), known))
    }

    /// A sender for the text that the model of a task is writing.
    pub fn delta_sender(
        &self,
        owned: &Owned,
        session: ConversationId,
        task: TaskId,
    ) -> DeltaSender {
        DeltaSender {
            feeds: self.feeds.clone(),
            owner: owned.owner,
            project: owned.project,
            session,
            task,
            has_peers: AtomicBool::new(false),
        }
    }
}

impl Feeds {
    /// Sends a delta to the current readers on all nodes. Returns whether other nodes were told.
    fn send_delta(
        &self,
        (owner, project): (UserId, ProjectId),
        session: Option<ConversationId>,
        name: &'static str,
        data: impl FnOnce() -> serde_json::Value,
    ) -> bool {
        let readers = self.readers(owner, project);
        let peers = self.peers.as_ref().filter(|peers| peers.exist());
        // Without a reader, nothing is formatted.
        if readers.is_empty() && peers.is_none() {
            return false;
        }
        let session = session.unwrap_or(NO_CONVERSATION);
        let delta = Arc::new(Delta { session, name: name.into(), data: data().to_string() });
        peers::deliver(&readers, &delta);
        if let Some(peers) = peers {
            peers.tell_words(owner, project, &delta);
        }
        peers.is_some()
    }
}

impl Store {
    /// Sends what a running call has printed to the current readers on all nodes.
    pub fn send_output(&self, owned: &Owned, call: &GatedCall, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(rest.floor_char_boundary(OUTPUT_PIECE));
            rest = later;
            let data = || {
                serde_json::json!({
                    "type": "TOOL_OUTPUT",
                    "project_id": owned.project,
                    "session_id": call.session_id,
                    "task_id": call.task_id,
                    "tool_id": call.tool_id,
                    "text": piece,
                })
            };
            let to = (owned.owner, owned.project);
            self.feeds.send_delta(to, call.session_id, "TOOL_OUTPUT", data);
        }
    }
}

impl DeltaSender {
    pub fn send(&self, text: &str) {
        let data = || {
            serde_json::json!({
                "type": "MESSAGE_DELTA",
                "project_id": self.project,
                "session_id": self.session,
                "task_id": self.task,
                "text": text,
            })
        };
        let to = (self.owner, self.project);
        if self.feeds.send_delta(to, Some(self.session), "MESSAGE_DELTA", data) {
            self.has_peers.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until other nodes get the deltas before anything that is committed after this call.
    pub async fn finish(self) {
        if self.has_peers.load(Ordering::Relaxed)
            && let Some(peers) = &self.feeds.peers
        {
            peers.flush().await;
        }
    }
}

/// Commits, and tells other nodes. PostgreSQL delivers its notifications with the commit. If Redis
/// works, it gets the message after the commit, and PostgreSQL has less to do.
pub(crate) async fn commit(
    conn: &mut Conn,
    events: &[Arc<StoredEvent>],
    wakeups: &[Wakeup],
    feeds: &Feeds,
) -> Result<(), sqlx::Error> {
    let (Conn::Pg(pg), Some(peers)) = (&mut *conn, &feeds.peers) else {
        return conn.run("COMMIT").await;
    };
    let lines = peers::lines(events, wakeups);
    if peers.redis_works() == Some(true) {
        conn.run("COMMIT").await?;
        peers.tell_changes(lines);
        return Ok(());
    }
    let mut sql = String::new();
    for message in peers::messages(feeds.node, lines) {
        sql += &format!("SELECT pg_notify('{}', '{message}'); ", peers::CHANGES);
    }
    sql += "COMMIT";
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pg).await.map(drop)
}

/// The channel in Redis for the nodes of this database. Installations that share a Redis are told
/// apart by the microsecond in which their database was set up.
async fn redis_channel(pg: &Pg) -> Result<String> {
    let mut conn = pg.connect().await?;
    let sql = "SELECT CAST(EXTRACT(EPOCH FROM MIN(installed_on)) * 1000000 AS BIGINT)
               FROM _sqlx_migrations";
    let (set_up,): (i64,) = sqlx::query_as(sql).fetch_one(&mut conn).await?;
    Ok(format!("atelier:{set_up}"))
}

/// Receives what other nodes send by PostgreSQL.
async fn listen(pg: Pg, feeds: Weak<Feeds>) {
    while let Err(error) = receive(&pg, &feeds).await {
        if pg.is_closed() || feeds.strong_count() == 0 {
            return;
        }
        tracing::warn!(%error, "lost the notifications of other nodes; listening again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn receive(pg: &Pg, feeds: &Weak<Feeds>) -> Result<(), sqlx::Error> {
    let mut listener = sqlx::postgres::PgListener::connect_with(&pg.listener_pool()).await?;
    listener.listen_all([peers::CHANGES, peers::WORDS]).await?;
    // Notifications before this moment were missed.
    if let Some(feeds) = feeds.upgrade() {
        feeds.wakeups.send(Wakeup::Everything);
    }
    let mut look_again = tokio::time::interval(LOOK_AGAIN);
    loop {
        let received = tokio::select! {
            received = listener.try_recv() => Some(received?),
            _ = look_again.tick() => None,
        };
        let Some(feeds) = feeds.upgrade() else { return Ok(()) };
        let logs = match received {
            Some(Some(notification)) => feeds.apply(notification.payload()),
            // The connection was lost and made again: notifications in between were missed.
            Some(None) => {
                feeds.wakeups.send(Wakeup::Everything);
                feeds.all_followed()
            }
            None => {
                // A connection that is dead delivers nothing, not even an error.
                let check = sqlx::query("SELECT 1").execute(&mut listener);
                let checked = tokio::time::timeout(LOOK_AGAIN, check).await;
                checked.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
                feeds.all_followed()
            }
        };
        catch_up(pg, &feeds, &logs).await?;
    }
}

impl Feeds {
    fn all_followed(&self) -> Vec<Scope> {
        self.followed().keys().copied().collect()
    }
}

/// Looks up how far the given logs go, and wakes their readers.
async fn catch_up(pg: &Pg, feeds: &Feeds, logs: &[Scope]) -> Result<(), sqlx::Error> {
    let followed: Vec<_> = logs.iter().filter_map(|&log| Some((log, feeds.find(log)?))).collect();
    let ids = |pick: fn(&Scope) -> Option<Uuid>| -> Vec<Uuid> {
        followed.iter().filter_map(|(log, _)| pick(log)).collect()
    };
    let projects = ids(|log| if let Scope::Project(id) = log { Some(id.0) } else { None });
    let users = ids(|log| if let Scope::User(id) = log { Some(id.0) } else { None });
    if followed.is_empty() {
        return Ok(());
    }
    let mut conn = pg.connect().await?;
    let mut heads: HashMap<Uuid, i64> = HashMap::new();
    for (sql, ids) in [
        ("SELECT id, event_seq FROM projects WHERE id = ANY($1)", projects),
        ("SELECT id, event_seq FROM users WHERE id = ANY($1)", users),
    ] {
        if !ids.is_empty() {
            let rows = sqlx::query_as::<_, (Uuid, i64)>(sql).bind(ids).fetch_all(&mut conn);
            heads.extend(rows.await?);
        }
    }
    for (log, feed) in followed {
        let (Scope::Project(ProjectId(id)) | Scope::User(UserId(id))) = log;
        if let Some(head) = heads.get(&id) {
            feed.reach(*head);
        }
    }
    Ok(())
}
