//! How much of the server each user may use at a time: requests, and event streams.
//!
//! Each node counts by itself.

use crate::{
    Settings,
    error::{Error, Result},
};
use atelier_core::UserId;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

/// When more users than this are known, idle ones are removed.
const MANY: usize = 10_000;

/// The load of all users.
pub struct Loads {
    per_second: u32,
    requests: usize,
    /// Streams of one user.
    streams: usize,
    /// Streams of all users: each holds a file, and other things need files as well.
    all_streams: usize,
    open_streams: Arc<AtomicUsize>,
    users: Mutex<HashMap<UserId, Arc<UserLoad>>>,
}

#[derive(Default)]
struct UserLoad {
    requests: AtomicUsize,
    streams: AtomicUsize,
    bucket: Mutex<Bucket>,
}

/// Requests that may begin at once. It fills up with time, to as many as one second allows.
#[derive(Default)]
struct Bucket {
    filled: Option<(f64, Instant)>,
}

/// A request that runs. Dropping it ends the request.
pub(crate) struct RunningRequest(Arc<UserLoad>);

/// An open stream. Dropping it closes the stream.
pub(crate) struct OpenStream {
    user: Arc<UserLoad>,
    all: Arc<AtomicUsize>,
}

impl Loads {
    /// `open_files` is how many files this process may have open, if that is limited.
    pub fn new(settings: &Settings, open_files: Option<u64>) -> Self {
        let all_streams = open_files.map_or(usize::MAX, |files| {
            let files = usize::try_from(files).unwrap_or(usize::MAX);
            // The database, the object store, tools and other requests need files as well.
            files - (files / 4).max(64).min(files / 2)
        });
        Self {
            per_second: settings.user_requests_per_second,
            requests: settings.user_requests,
            // Half of them at most, so that no user can keep the others from following anything.
            streams: settings.user_streams.min((all_streams / 2).max(1)),
            all_streams,
            open_streams: Arc::default(),
            users: Mutex::default(),
        }
    }

    /// The largest number of streams that one user can have open on this node.
    pub(crate) fn max_streams(&self) -> usize {
        self.streams
    }

    /// How many requests and streams of a user are open on this node.
    pub(crate) fn of(&self, user: UserId) -> (usize, usize) {
        let load = self.user(user);
        (load.requests.load(Relaxed), load.streams.load(Relaxed))
    }

    pub(crate) fn begin_request(&self, user: UserId) -> Result<RunningRequest> {
        let load = self.user(user);
        if !take(&load.requests, self.requests) {
            return Err(Error::TooManyRequests(
                "too many of your requests are running: wait for some to end",
            ));
        }
        let running = RunningRequest(load);
        let mut bucket = running.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = self.per_second == 0 || bucket.take(self.per_second);
        drop(bucket);
        match admitted {
            true => Ok(running),
            false => Err(Error::TooManyRequests(
                "you send more requests in a second than the server accepts",
            )),
        }
    }

    pub(crate) fn open_stream(&self, user: UserId) -> Result<OpenStream> {
        let load = self.user(user);
        if !take(&load.streams, self.streams) {
            return Err(Error::TooManyStreams(self.streams));
        }
        // Dropped if the next limit is reached.
        let stream = OpenStream { user: load, all: self.open_streams.clone() };
        match self.open_streams.fetch_add(1, Relaxed) < self.all_streams {
            true => Ok(stream),
            false => Err(Error::TooManyStreams(self.all_streams)),
        }
    }

    fn user(&self, user: UserId) -> Arc<UserLoad> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() > MANY {
            users.retain(|_, load| Arc::strong_count(load) > 1);
        }
        users.entry(user).or_default().clone()
    }
}

/// Adds one to a count, unless the count has reached its limit.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    count.fetch_update(Relaxed, Relaxed, |now| (now < limit).then_some(now + 1)).is_ok()
}

impl Bucket {
    fn take(&mut self, per_second: u32) -> bool {
        let (full, now) = (f64::from(per_second), Instant::now());
        let left = match self.filled {
            None => full,
            Some((left, at)) => (left + (now - at).as_secs_f64() * full).min(full),
        };
        let admitted = left >= 1.0;
        self.filled = Some((if admitted { left - 1.0 } else { left }, now));
        admitted
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.user.streams.fetch_sub(1, Relaxed);
        self.all.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn user(n: u128) -> UserId {
        UserId(Uuid::from_u128(n))
    }

    #[test]
    fn one_user_leaves_files_for_the_others() {
        for (files, all, each) in
            [(64, 32, 16), (256, 192, 96), (1024, 768, 384), (1_048_576, 786_432, 500)]
        {
            let loads = Loads::new(&Settings::default(), Some(files));
            assert_eq!((loads.all_streams, loads.streams), (all, each), "{files} files");
        }
        let loads = Loads::new(&Settings::default(), Some(64));
        let mut open: Vec<_> = (0..16).map(|_| loads.open_stream(user(1)).unwrap()).collect();
        assert!(matches!(loads.open_stream(user(1)), Err(Error::TooManyStreams(16))));
        open.extend((0..16).map(|_| loads.open_stream(user(2)).unwrap()));
        assert!(matches!(loads.open_stream(user(3)), Err(Error::TooManyStreams(32))));
        open.pop();
        open.push(loads.open_stream(user(3)).unwrap());
        drop(open);
        assert_eq!((loads.of(user(1)), loads.open_streams.load(Relaxed)), ((0, 0), 0));
    }

    #[test]
    fn requests_are_limited_in_number_and_rate() {
        let settings =
            Settings { user_requests: 2, user_requests_per_second: 3, ..Settings::default() };
        let loads = Loads::new(&settings, None);
        let running =
            [loads.begin_request(user(1)).unwrap(), loads.begin_request(user(1)).unwrap()];
        assert!(matches!(loads.begin_request(user(1)), Err(Error::TooManyRequests(_))));
        // Another user does not notice.
        drop(loads.begin_request(user(2)).unwrap());
        drop(running);
        assert_eq!(loads.of(user(1)), (0, 0));
        let mut bucket = Bucket::default();
        assert!((0..3).all(|_| bucket.take(3)));
        // Time has hardly passed, so less than one request was added.
        assert!(!bucket.take(3));
        bucket.filled = bucket.filled.map(|(left, at)| (left + 1.0, at));
        assert!(bucket.take(3));
    }
}
