//! Messages between nodes by Redis (or Valkey). Nothing rests on it: while it does not work,
//! PostgreSQL carries the messages.

use super::{Feeds, Wakeup, catch_up};
use crate::{Error, Result, db::Pg};
use futures::StreamExt;
use redis::{AsyncConnectionConfig, Client, RedisError, aio::MultiplexedConnection};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::timeout};

/// How long Redis may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long Redis may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often this node sends a message to itself, to notice a connection that is dead.
const BEAT: Duration = Duration::from_secs(2);
/// After this time without a message, its own included, this node connects again.
const SILENCE: Duration = Duration::from_secs(7);
/// How long to wait before the next attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Redis {
    client: Client,
    /// Nodes of other installations may use the same Redis, so the channel has a name of its own.
    channel: String,
    /// Present while messages can be sent and received.
    publisher: Mutex<Option<MultiplexedConnection>>,
    /// A message could not be sent.
    broken: Notify,
}

impl Redis {
    pub(super) fn new(url: &str, channel: String) -> Result<Self> {
        let client = open(url)?;
        Ok(Self { client, channel, publisher: Mutex::default(), broken: Notify::new() })
    }

    pub(super) fn works(&self) -> bool {
        self.publisher.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, publisher: Option<MultiplexedConnection>) {
        *self.publisher.lock().unwrap_or_else(PoisonError::into_inner) = publisher;
    }

    /// Sends messages, and returns whether Redis has all of them.
    pub(super) async fn publish(&self, messages: &[&str]) -> bool {
        let publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(mut publisher) = publisher else { return false };
        let mut commands = redis::pipe();
        for message in messages {
            commands.publish(&self.channel, message).ignore();
        }
        let sent = commands.query_async::<()>(&mut publisher).await;
        if let Err(error) = &sent {
            tracing::debug!(%error, "Redis did not take a message");
            self.set(None);
            self.broken.notify_one();
        }
        sent.is_ok()
    }

    /// Connects, and receives the messages of other nodes until this node has no feeds any more.
    pub(super) async fn run(self: Arc<Self>, pg: Pg, feeds: Weak<Feeds>) {
        let mut is_told = false;
        loop {
            let ended = self.receive(&pg, &feeds, &mut is_told).await;
            self.set(None);
            let Err(error) = ended else { return };
            if pg.is_closed() || feeds.strong_count() == 0 {
                return;
            }
            if !is_told {
                is_told = true;
                tracing::warn!(
                    %error,
                    "Redis does not answer: PostgreSQL carries the messages between the nodes"
                );
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn receive(
        &self,
        pg: &Pg,
        feeds: &Weak<Feeds>,
        is_told: &mut bool,
    ) -> Result<(), RedisError> {
        let publisher = publisher(&self.client).await?;
        let subscriber = async {
            let mut subscriber = self.client.get_async_pubsub().await?;
            subscriber.subscribe(&self.channel).await?;
            Ok(subscriber.into_on_message())
        };
        let mut messages =
            timeout(CONNECT_TIMEOUT, subscriber).await.unwrap_or_else(|_| Err(silent()))?;
        self.set(Some(publisher));
        if std::mem::take(is_told) {
            tracing::info!("Redis answers again");
        }
        let Some(own) = feeds.upgrade().map(|feeds| feeds.node.to_string()) else { return Ok(()) };
        let beat = format!("{own}\nbeat");
        let mut beats = tokio::time::interval(BEAT);
        let mut heard = Instant::now();
        let mut is_first = true;
        loop {
            let message = tokio::select! {
                message = messages.next() => Some(message.ok_or_else(silent)?),
                _ = beats.tick() => None,
                () = self.broken.notified() => return Err(silent()),
            };
            let Some(feeds) = feeds.upgrade() else { return Ok(()) };
            let logs = match message {
                Some(message) => {
                    heard = Instant::now();
                    // Nodes send text. Anything else is from somebody else and says nothing.
                    let text = std::str::from_utf8(message.get_payload_bytes());
                    text.map_or_else(|_| Vec::new(), |text| feeds.apply(text))
                }
                None if heard.elapsed() > SILENCE => return Err(silent()),
                None => {
                    if !self.publish(&[&beat]).await {
                        return Err(silent());
                    }
                    // Messages before this moment were missed.
                    if !std::mem::take(&mut is_first) {
                        continue;
                    }
                    feeds.wakeups.send(Wakeup::Everything);
                    feeds.all_followed()
                }
            };
            if let Err(error) = catch_up(pg, &feeds, &logs).await {
                // The listener of PostgreSQL, which notices the same, looks again.
                tracing::debug!(%error, "cannot look up how far the logs go");
            }
        }
    }
}

fn open(url: &str) -> Result<Client> {
    Client::open(url).map_err(|error| Error::Redis(error.to_string()))
}

async fn publisher(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let limits = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    client.get_multiplexed_async_connection_with_config(&limits).await
}

fn silent() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "Redis does not answer").into()
}

/// Whether a Redis answers at `url`, for `atelier doctor`.
pub(crate) async fn ping(url: &str) -> Result<()> {
    let client = open(url)?;
    let answer = async {
        let mut connection = publisher(&client).await?;
        redis::cmd("PING").query_async::<String>(&mut connection).await
    };
    let answer = timeout(CONNECT_TIMEOUT + ANSWER_TIMEOUT, answer).await;
    match answer.unwrap_or_else(|_| Err(silent())) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Redis(error.to_string())),
    }
}
