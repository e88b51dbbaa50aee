//! The load: a number of connections that each send the next request as soon as the last one is
//! answered.

use crate::wire::{Connection, PATIENCE};
use anyhow::{Result, ensure};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

const WARM_UP: Duration = Duration::from_millis(500);
/// Limits the memory for recorded times, however fast the answers are.
const MOST: u64 = 2_000_000;

/// The result of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p95: Duration,
    pub(crate) p99: Duration,
    /// How many requests were answered, including the warm-up.
    pub(crate) answered: u64,
}

/// Sends requests for `window` after a warm-up. `make` returns the n-th request. Every answer has
/// to have the status `expected`.
pub(crate) async fn run<M>(
    address: SocketAddr,
    connections: usize,
    window: Duration,
    expected: u16,
    make: M,
) -> Result<Pace>
where
    M: Fn(u64) -> Vec<u8> + Send + Sync + 'static,
{
    run_trips(address, connections, window, expected, 1, make).await
}

/// Works like `run`, but one operation takes several requests, one after the other.
pub(crate) async fn run_trips<M>(
    address: SocketAddr,
    connections: usize,
    window: Duration,
    expected: u16,
    trips: usize,
    make: M,
) -> Result<Pace>
where
    M: Fn(u64) -> Vec<u8> + Send + Sync + 'static,
{
    let (make, count) = (Arc::new(make), Arc::new(AtomicU64::new(0)));
    let begin = Instant::now() + WARM_UP;
    let end = begin + window;
    let mut workers = JoinSet::new();
    for _ in 0..connections {
        let (make, count) = (make.clone(), count.clone());
        workers.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let (mut times, mut answered) = (Vec::new(), 0);
            loop {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let request = make(number);
                let sent = Instant::now();
                if sent >= end || number >= MOST {
                    return anyhow::Ok((times, answered));
                }
                for _ in 0..trips {
                    let answer = tokio::time::timeout(PATIENCE, connection.ask(&request)).await??;
                    ensure!(
                        answer.status == expected,
                        "answered with {}: {}",
                        answer.status,
                        String::from_utf8_lossy(answer.body)
                    );
                }
                answered += 1;
                let now = Instant::now();
                if sent >= begin && now <= end {
                    times.push(now - sent);
                }
            }
        });
    }
    let (mut times, mut answered) = (Vec::new(), 0);
    while let Some(worker) = workers.join_next().await {
        let (more, count) = worker??;
        times.extend(more);
        answered += count;
    }
    ensure!(!times.is_empty(), "not a single answer in {window:?}");
    Ok(Pace {
        per_second: times.len() as f64 / window.as_secs_f64(),
        p50: quantile(&mut times, 0.5),
        p95: quantile(&mut times, 0.95),
        p99: quantile(&mut times, 0.99),
        answered,
    })
}

/// The quantile of all values.
pub(crate) fn quantile(times: &mut [Duration], part: f64) -> Duration {
    let last = times.len().saturating_sub(1);
    let at = ((times.len() as f64 * part).ceil() as usize).saturating_sub(1).min(last);
    *times.select_nth_unstable(at).1
}
