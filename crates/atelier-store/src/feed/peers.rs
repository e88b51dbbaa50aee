//! Messages between the nodes that share a PostgreSQL database: which logs have grown, wakeups, and
//! the words that models are writing. Redis carries them if it is configured and works, otherwise
//! PostgreSQL does.
//!
//! A message has the sending node in its first line, and one piece of news in each other line.
//!
//! Redis may let others send messages too. So a message can only make nodes look again, and deliver
//! events that are never stored ([`LiveEvent`]).

use super::{Delta, Feed, Feeds, Wakeup, live::LiveEvent, redis::Redis};
use crate::{
    db::{Conn, Pg, sql},
    events::{Scope, StoredEvent},
};
use atelier_core::{NodeId, ProjectId, UserId};
use metrics::counter;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};
use uuid::Uuid;

/// The channel of PostgreSQL for changes.
pub(super) const CHANGES: &str = "atelier";
/// The channel of PostgreSQL for words. Nodes of versions that do not know words do not listen to
/// it.
pub(super) const WORDS: &str = "atelier_words";
/// A notification of PostgreSQL has less than 8000 bytes.
const MESSAGE_BYTES: usize = 7800;
/// How many pieces of news wait to be sent.
const QUEUE: usize = 4096;
/// For how long words are collected, so that a fast model does not cost a message for each word.
const COLLECT: Duration = Duration::from_millis(30);
/// How long a task waits until its last words are sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How this node tells the other nodes something.
pub(super) struct Peers {
    queue: mpsc::Sender<News>,
    redis: Option<Arc<Redis>>,
    /// Whether there are other nodes.
    exist: AtomicBool,
}

/// Something to tell the other nodes.
enum News {
    Changes(Vec<String>),
    Words(String),
    /// Answer when all earlier news is sent.
    Flush(oneshot::Sender<()>),
}

impl Peers {
    /// The second value has to be run as a task.
    pub(super) fn new(
        node: NodeId,
        pg: Pg,
        redis: Option<Arc<Redis>>,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (queue, news) = mpsc::channel(QUEUE);
        let sender = Sender { node, pg, redis: redis.clone(), news, has_lost: false };
        (Self { queue, redis, exist: AtomicBool::new(false) }, sender.run())
    }

    pub(super) fn note(&self, exist: bool) {
        self.exist.store(exist, Ordering::Relaxed);
    }

    /// Whether Redis carries the messages now; `None` if it is not configured.
    pub(super) fn redis_works(&self) -> Option<bool> {
        self.redis.as_ref().map(|redis| redis.works())
    }

    /// Tells the other nodes of changes by Redis. Without room in the queue the other nodes look
    /// at everything.
    pub(super) fn tell_changes(&self, lines: Vec<String>) {
        if !lines.is_empty() && self.queue.try_send(News::Changes(lines)).is_err() {
            lost("queue");
        }
    }

    pub(super) fn tell_words(&self, owner: UserId, project: ProjectId, delta: &Delta) {
        let Delta { session, name, data } = delta;
        let line = format!("words {owner} {project} {session} {name} {data}");
        if self.queue.try_send(News::Words(line)).is_err() {
            lost("queue");
        }
    }

    /// Waits until the words that were queued are sent, so that the commit of the whole message
    /// cannot overtake them. Redis keeps the order by itself.
    pub(super) async fn flush(&self) {
        if self.redis_works() == Some(true) {
            return;
        }
        let (done, flushed) = oneshot::channel();
        if self.queue.try_send(News::Flush(done)).is_ok() {
            // A database that does not answer must not delay the task any further.
            drop(timeout(FLUSH_TIMEOUT, flushed).await);
        }
    }

    pub(super) fn exist(&self) -> bool {
        self.exist.load(Ordering::Relaxed)
    }
}

fn lost(cause: &'static str) {
    counter!("atelier_lost_notifications_total", "cause" => cause).increment(1);
}

/// The news of one commit, a line each. The lines hold fixed words and ids, so there is nothing to
/// quote in SQL.
pub(super) fn lines(events: &[Arc<StoredEvent>], wakeups: &[Wakeup]) -> Vec<String> {
    let logs: BTreeSet<_> = events.iter().map(|e| (e.user.0, e.project.0)).collect();
    let logs = logs.iter().map(|(user, project)| format!("events {user} {project}"));
    let wakeups = wakeups.iter().map(|wakeup| match wakeup {
        Wakeup::Agents(project) => format!("agents {project}"),
        Wakeup::ProjectDeleted(project) => format!("deleted {project}"),
        Wakeup::Memory => "memory".to_owned(),
        Wakeup::Queue(owner, queue) => format!("queue {owner} {queue}"),
        Wakeup::Work(id) => format!("work {id}"),
        Wakeup::Tokens => "tokens".to_owned(),
        Wakeup::Everything => EVERYTHING.to_owned(),
    });
    logs.chain(wakeups).collect()
}

const EVERYTHING: &str = "everything";

/// Puts lines into as few messages as possible. A line that is too long for a message is left out:
/// it can only be a word of a model, and the whole text follows when the model has finished.
pub(super) fn messages(node: NodeId, lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    let head = node.to_string();
    for line in lines {
        if head.len() + 1 + line.len() > MESSAGE_BYTES {
            lost("size");
            continue;
        }
        match messages.last_mut() {
            Some(last) if last.len() + 1 + line.len() <= MESSAGE_BYTES => {
                last.push('\n');
                last.push_str(&line);
            }
            _ => messages.push(format!("{head}\n{line}")),
        }
    }
    messages
}

/// Sends what [`Peers`] has queued.
struct Sender {
    node: NodeId,
    pg: Pg,
    redis: Option<Arc<Redis>>,
    news: mpsc::Receiver<News>,
    /// Whether changes could not be sent. Then the next message tells the other nodes to look at
    /// everything.
    has_lost: bool,
}

impl Sender {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch().await {
            let (mut changes, mut words, mut flushed) = (Vec::new(), Vec::new(), Vec::new());
            for news in batch {
                match news {
                    News::Changes(lines) => changes.extend(lines),
                    News::Words(line) => words.push(line),
                    News::Flush(done) => flushed.push(done),
                }
            }
            if self.has_lost {
                changes = vec![EVERYTHING.to_owned()];
            }
            let (changes, words) = (messages(self.node, changes), messages(self.node, words));
            self.send(changes, words).await;
            for done in flushed {
                // The task may have given up waiting.
                _ = done.send(());
            }
        }
    }

    /// Sends messages: words first, so that a message never arrives before its words.
    async fn send(&mut self, changes: Vec<String>, words: Vec<String>) {
        let Some(redis) = self.redis.as_deref().filter(|redis| redis.works()) else {
            self.send_by_postgres(WORDS, words).await;
            self.send_by_postgres(CHANGES, changes).await;
            return;
        };
        let both: Vec<&str> = words.iter().chain(&changes).map(String::as_str).collect();
        if redis.publish(&both).await {
            self.has_lost = false;
        } else {
            // Words are not sent again: they may have arrived, and would then be doubled.
            self.send_by_postgres(CHANGES, changes).await;
        }
    }

    /// Waits for news. Words wait a moment for more words; changes do not wait.
    async fn next_batch(&mut self) -> Option<Vec<News>> {
        let mut batch = vec![self.news.recv().await?];
        let until = Instant::now() + COLLECT;
        while batch.len() < QUEUE && matches!(batch.last(), Some(News::Words(_))) {
            match timeout_at(until, self.news.recv()).await {
                Ok(Some(news)) => batch.push(news),
                Ok(None) | Err(_) => break,
            }
        }
        while batch.len() < QUEUE
            && let Ok(news) = self.news.try_recv()
        {
            batch.push(news);
        }
        Some(batch)
    }

    async fn send_by_postgres(&mut self, channel: &str, messages: Vec<String>) {
        if messages.is_empty() {
            return;
        }
        let sent = async {
            let mut conn = Conn::Pg(self.pg.connect().await?);
            sql("SELECT pg_notify($1, message) FROM unnest($2::text[]) AS t (message)")
                .bind(channel)
                .bind(messages)
                .execute(&mut conn)
                .await
        };
        let sent = sent.await;
        if let Err(error) = &sent {
            tracing::debug!(%error, channel, "cannot notify the other nodes");
            lost("postgres");
        }
        if channel == CHANGES {
            self.has_lost = sent.is_err();
        }
    }
}

impl Feeds {
    /// Applies a message of another node: sends its wakeups, delivers its words, and returns the
    /// logs that have grown. This node has applied its own messages already.
    pub(super) fn apply(&self, message: &str) -> Vec<Scope> {
        let mut logs = Vec::new();
        let mut lines = message.lines();
        if lines.next() != Some(self.node.to_string().as_str()) {
            lines.for_each(|line| self.apply_line(line, &mut logs));
        }
        logs
    }

    fn apply_line(&self, line: &str, logs: &mut Vec<Scope>) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut parts = rest.split(' ');
        let mut id = || parts.next().and_then(|id| Uuid::parse_str(id).ok());
        let wakeup = match kind {
            "events" => {
                logs.extend(id().map(|user| Scope::User(UserId(user))));
                logs.extend(id().map(|project| Scope::Project(ProjectId(project))));
                return;
            }
            "words" => return self.apply_words(rest),
            "agents" => id().map(|project| Wakeup::Agents(ProjectId(project))),
            "deleted" => id().map(|project| Wakeup::ProjectDeleted(ProjectId(project))),
            "memory" => Some(Wakeup::Memory),
            "queue" => id().zip(id()).map(|(owner, queue)| Wakeup::Queue(UserId(owner), queue)),
            "work" => id().map(Wakeup::Work),
            "tokens" => Some(Wakeup::Tokens),
            // A node of a newer version may send what this one does not know.
            _ => Some(Wakeup::Everything),
        };
        if let Some(wakeup) = wakeup {
            self.wakeups.send(wakeup);
        }
    }

    fn apply_words(&self, rest: &str) {
        let mut parts = rest.splitn(5, ' ');
        let mut id = || parts.next().and_then(|id| Uuid::parse_str(id).ok());
        let (Some(owner), Some(project), Some(session)) = (id(), id(), id()) else { return };
        // The name is in the data as well.
        let (Some(_), Some(data)) = (parts.next(), parts.next()) else { return };
        let Ok(event) = serde_json::from_str::<LiveEvent>(data) else { return };
        if (event.project().0, event.session().0) != (project, session) {
            return;
        }
        let readers = self.readers(UserId(owner), ProjectId(project));
        if readers.is_empty() {
            return;
        }
        // Written anew, so that nothing of the message itself gets into a stream.
        deliver(&readers, &Arc::new(Delta::from(&event)));
    }

    /// The feeds that show the words of a project.
    pub(super) fn readers(&self, owner: UserId, project: ProjectId) -> Vec<Arc<Feed>> {
        let scopes = [Scope::Project(project), Scope::User(owner)];
        scopes.into_iter().filter_map(|scope| self.find(scope)).collect()
    }
}

pub(super) fn deliver(readers: &[Arc<Feed>], delta: &Arc<Delta>) {
    for feed in readers {
        feed.push_delta(delta.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_fit_into_a_notification_of_postgresql() {
        let node = NodeId(Uuid::now_v7());
        let lines: Vec<String> = (0..500).map(|n| format!("work {n} {}", "x".repeat(90))).collect();
        let too_long = "x".repeat(8000);
        let with_long = lines.iter().cloned().chain([too_long]);
        let messages = messages(node, with_long);
        assert!(messages.len() > 1);
        let mut arrived = Vec::new();
        for message in &messages {
            assert!(message.len() < 8000, "{}", message.len());
            let mut parts = message.lines();
            assert_eq!(parts.next(), Some(node.to_string().as_str()));
            arrived.extend(parts.map(str::to_owned));
        }
        assert_eq!(arrived, lines);
    }
}
