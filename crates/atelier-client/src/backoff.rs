//! Exponential backoff with jitter.

use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub(crate) struct Backoff {
    next: Duration,
}

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(15);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Waits for a random part of the interval, between half and all of it, so that not all clients
    /// reconnect to a restarted server at once. Returns `false` if `stop` was cancelled.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let time = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(LONGEST);
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            () = stop.cancelled() => false,
        }
    }
}
