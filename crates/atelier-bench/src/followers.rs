//! Many readers of one event stream. Each has a socket and a small state.

use crate::wire::{Connection, PATIENCE};
use anyhow::{Result, bail};
use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::Notify, task::JoinSet, time::timeout};

/// How many readers connect at the same time.
const OPENING: usize = 32;
const MARK: &[u8] = b"\nevent: ";

/// Dropping them closes their connections.
pub(crate) struct Followers {
    count: u64,
    shared: Arc<Shared>,
    _reading: JoinSet<()>,
}

struct Shared {
    seen: AtomicU64,
    /// Waiting tasks are woken when `seen` reaches this number.
    target: AtomicU64,
    reached: Notify,
    /// When the event was sent whose delays are recorded.
    sent: Mutex<Option<Instant>>,
    delays: Mutex<Vec<Duration>>,
}

impl Followers {
    /// Opens the given number of streams.
    pub(crate) async fn open(address: SocketAddr, count: usize, request: &[u8]) -> Result<Self> {
        let shared = Arc::new(Shared {
            seen: AtomicU64::new(0),
            target: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
            sent: Mutex::default(),
            delays: Mutex::default(),
        });
        let (mut opening, mut reading) = (JoinSet::new(), JoinSet::new());
        for _ in 0..count {
            if opening.len() == OPENING {
                keep(&mut opening, &mut reading, &shared).await?;
            }
            let request = request.to_vec();
            opening.spawn(async move { Connection::open(address).await?.follow(&request).await });
        }
        while !opening.is_empty() {
            keep(&mut opening, &mut reading, &shared).await?;
        }
        Ok(Self { count: count as u64, shared, _reading: reading })
    }

    /// How many events all followers have seen together.
    pub(crate) fn seen(&self) -> u64 {
        self.shared.seen.load(Ordering::SeqCst)
    }

    /// From now on, records how long after `sent` an event arrives.
    pub(crate) fn time_from(&self, sent: Instant) {
        *self.shared.sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
    }

    pub(crate) fn take_delays(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.shared.delays.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until each follower has seen `events` events in total.
    pub(crate) async fn until(&self, events: u64) -> Result<()> {
        let target = events * self.count;
        self.shared.target.store(target, Ordering::SeqCst);
        let all = async {
            while self.seen() < target {
                self.shared.reached.notified().await;
            }
        };
        if timeout(PATIENCE, all).await.is_err() {
            bail!("only {} of {target} events have arrived", self.seen());
        }
        // More events than were sent are an error as well.
        if self.seen() > target {
            bail!("{} events have arrived instead of {target}", self.seen());
        }
        Ok(())
    }
}

type Opened = Result<(TcpStream, Vec<u8>)>;

async fn keep(
    opening: &mut JoinSet<Opened>,
    reading: &mut JoinSet<()>,
    shared: &Arc<Shared>,
) -> Result<()> {
    if let Some(opened) = opening.join_next().await {
        let (stream, first) = opened??;
        reading.spawn(read(stream, first, shared.clone()));
    }
    Ok(())
}

/// Counts events until the stream ends. If it ends early, the count is too low.
async fn read(stream: TcpStream, first: Vec<u8>, shared: Arc<Shared>) {
    let mut matched = 0;
    note(&shared, count(&mut matched, &first));
    drop(first);
    while stream.readable().await.is_ok() {
        // On the stack and used only between two waits, so that ten thousand readers share it.
        let mut buffer = [0; 16 * 1024];
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => note(&shared, count(&mut matched, &buffer[..read])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

fn note(shared: &Shared, events: u64) {
    if events == 0 {
        return;
    }
    if let Some(sent) = *shared.sent.lock().unwrap_or_else(PoisonError::into_inner) {
        let mut delays = shared.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.push(sent.elapsed());
    }
    let seen = shared.seen.fetch_add(events, Ordering::SeqCst) + events;
    if seen >= shared.target.load(Ordering::SeqCst) {
        shared.reached.notify_one();
    }
}

/// Counts the marks in a piece of a stream. `matched` remembers a mark that was cut in two.
fn count(matched: &mut usize, bytes: &[u8]) -> u64 {
    let mut found = 0;
    for &byte in bytes {
        if byte == MARK[*matched] {
            *matched += 1;
            if *matched == MARK.len() {
                found += 1;
                *matched = 0;
            }
        } else {
            *matched = usize::from(byte == MARK[0]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn events_are_counted_across_pieces_and_not_within_data() {
        let stream =
            b": hello\n\nid: 1\nevent: A\ndata: {\"x\":\"event: \"}\n\nid: 2\nevent: B\ndata: \
                {}\n\n";
        for cut in 0..stream.len() {
            let mut matched = 0;
            let (left, right) = stream.split_at(cut);
            assert_eq!(count(&mut matched, left) + count(&mut matched, right), 2, "{cut}");
        }
    }
}
