//! Waiting longer and longer between tries, and never all at the same moment.

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

    /// Somewhere between half and the whole of the time, so that a restarted server is not met by everybody
    /// at once. False when it was interrupted.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let time = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(LONGEST);
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            () = stop.cancelled() => false,
        }
    }
}
