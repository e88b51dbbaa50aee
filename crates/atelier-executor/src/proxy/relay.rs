//! Moves the bytes of one connection, counts them, and ends it when it is silent for too long.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::serving::Shared;

/// How many bytes of a connection went in each direction.
pub(super) struct Meter<'a> {
    shared: &'a Shared,
    began: Instant,
    /// When something was last moved, in milliseconds from the beginning.
    moved_at: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// A direction, as the script sees it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    Sent,
    Received,
}

impl<'a> Meter<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        let zero = || AtomicU64::new(0);
        Self { shared, began: Instant::now(), moved_at: zero(), sent: zero(), received: zero() }
    }

    fn count(&self, direction: Direction, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        let counter = match direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.moved_at.store(self.now(), Ordering::Relaxed);
        let before = self.shared.moved.fetch_add(bytes, Ordering::Relaxed);
        match before.saturating_add(bytes) > self.shared.limits.bytes {
            true => Err(io::ErrorKind::QuotaExceeded.into()),
            false => Ok(()),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether nothing went in either direction for too long.
    fn is_idle(&self) -> bool {
        let silent = self.now().saturating_sub(self.moved_at.load(Ordering::Relaxed));
        Duration::from_millis(silent) >= self.shared.limits.idle
    }
}

/// One side of a connection, with what was read from it and not used yet.
pub(super) struct Input<'a> {
    stream: &'a TcpStream,
    kept: Vec<u8>,
}

impl<'a> Input<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Self {
        Self { stream, kept: Vec::new() }
    }

    /// Reads until `end`, and returns everything up to it. Fails if there is more than `most`, or if
    /// it takes longer than `time`. `None` if the other side ended before it began.
    pub(super) fn until(
        &mut self,
        end: &[u8],
        most: usize,
        time: Duration,
    ) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(at) = self.kept.windows(end.len()).position(|window| window == end) {
                let rest = self.kept.split_off(at + end.len());
                return Ok(Some(std::mem::replace(&mut self.kept, rest)));
            }
            if self.kept.len() > most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 4 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) if self.kept.is_empty() => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.kept.extend(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what is there. Returns 0 at the end.
    fn read(&mut self, chunk: &mut [u8], meter: &Meter<'_>) -> io::Result<usize> {
        if !self.kept.is_empty() {
            let n = chunk.len().min(self.kept.len());
            chunk[..n].copy_from_slice(&self.kept[..n]);
            self.kept.drain(..n);
            return Ok(n);
        }
        self.stream.set_read_timeout(Some(meter.shared.limits.idle))?;
        loop {
            match self.stream.read(chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A timeout here is no error if bytes are moving in the other direction.
                Err(error) if is_timeout(&error) && !meter.is_idle() => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                read => return read,
            }
        }
    }

    /// Copies until the other side ends, or `most` bytes.
    pub(super) fn copy(
        &mut self,
        to: &TcpStream,
        most: u64,
        direction: Direction,
        meter: &Meter<'_>,
    ) -> io::Result<u64> {
        let mut chunk = vec![0; 64 << 10];
        let mut left = most;
        while left > 0 {
            let room = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
            match self.read(&mut chunk[..room], meter)? {
                0 => break,
                n => {
                    write(to, &chunk[..n], direction, meter)?;
                    left -= n as u64;
                }
            }
        }
        Ok(most - left)
    }
}

/// Writes, and counts what was written.
pub(super) fn write(
    mut to: &TcpStream,
    bytes: &[u8],
    direction: Direction,
    meter: &Meter<'_>,
) -> io::Result<()> {
    meter.count(direction, bytes.len())?;
    to.set_write_timeout(Some(meter.shared.limits.idle))?;
    to.write_all(bytes).map_err(|error| match is_timeout(&error) {
        true => io::ErrorKind::TimedOut.into(),
        false => error,
    })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Passes bytes in both directions until both sides have ended.
pub(super) fn tunnel(mut script: Input<'_>, host: &TcpStream, meter: &Meter<'_>) -> io::Result<()> {
    let to_script = script.stream;
    let pass = |from: &mut Input<'_>, to: &TcpStream, direction| {
        let passed = from.copy(to, u64::MAX, direction, meter);
        match &passed {
            // The end of one direction is passed on; the other may go on.
            Ok(_) => to.shutdown(Shutdown::Write).ok(),
            Err(_) => close([to_script, host]),
        };
        passed.map(drop)
    };
    std::thread::scope(|scope| {
        let down = scope.spawn(|| pass(&mut Input::new(host), to_script, Direction::Received));
        let up = pass(&mut script, host, Direction::Sent);
        let down = down.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        first_failure(up, down)
    })
}

/// Ends both sides. Whichever has ended already is fine, too.
pub(super) fn close(sides: [&TcpStream; 2]) -> Option<()> {
    for side in sides {
        side.shutdown(Shutdown::Both).ok();
    }
    Some(())
}

/// If both directions failed, returns the error of the one that was too large or too slow. The
/// other direction failed only because of it.
pub(super) fn first_failure(up: io::Result<()>, down: io::Result<()>) -> io::Result<()> {
    use io::ErrorKind::{QuotaExceeded, TimedOut};
    match (up, down) {
        (Err(up), Err(down)) if matches!(down.kind(), QuotaExceeded | TimedOut) => {
            drop(up);
            Err(down)
        }
        (Err(up), _) => Err(up),
        (Ok(()), down) => down,
    }
}
