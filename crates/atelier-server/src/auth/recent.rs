//! Sessions whose use was stored a moment ago, so that not every request writes.

use super::Caller;
use atelier_core::TokenId;
use chrono::{DateTime, Utc};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The use of a session is stored at most this often.
const EVERY: Duration = Duration::from_secs(60);
/// When there are more entries than this, outdated ones are removed.
const MANY: usize = 10_000;

/// When the use of each session was stored, and until when the session was known to last.
#[derive(Default)]
pub(super) struct RecentSessions(Mutex<HashMap<TokenId, (Instant, DateTime<Utc>)>>);

impl RecentSessions {
    pub(super) fn is_recorded(&self, caller: &Caller) -> bool {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |(at, until): &(Instant, DateTime<Utc>)| {
            at.elapsed() < EVERY && *until >= caller.expires_at
        };
        recent.get(&caller.family).is_some_and(fresh)
    }

    pub(super) fn record(&self, caller: &Caller) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() > MANY {
            recent.retain(|_, (at, _)| at.elapsed() < EVERY);
        }
        recent.insert(caller.family, (Instant::now(), caller.expires_at));
    }
}
