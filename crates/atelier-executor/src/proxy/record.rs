//! Records the connections of a script.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::door::io_error;
use crate::error::Result;

/// The file in a script's folder that has one line for each connection.
const FILE: &str = "connections";
/// How many connections an answer lists one by one. The others are summed up by destination.
const LISTED: usize = 100;

/// One connection through the proxy, or several to the same destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connection {
    /// As the script named it; empty if it named none.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) allowed: bool,
    /// How many bytes went to the host, and came from it.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Why it was refused, or ended before its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// How many connections this is the sum of, if it is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
}

impl Connection {
    pub(crate) fn refused(host: &str, port: u16, why: String) -> Self {
        let (host, why) = (host.to_owned(), Some(why));
        Self { host, port, allowed: false, sent: 0, received: 0, why, count: None }
    }
}

/// Records connections as they end.
#[derive(Debug)]
pub(crate) struct Record(Mutex<File>);

impl Record {
    /// Begins the record of a script whose folder this is.
    pub(crate) fn begin(job: &Path) -> Result<Self> {
        let path = job.join(FILE);
        let file = File::options().create(true).append(true).open(&path);
        Ok(Self(Mutex::new(file.map_err(io_error("make", &path))?)))
    }

    pub(crate) fn write(&self, connection: &Connection) {
        let written =
            serde_json::to_vec(connection).map_err(std::io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                // One write, so that a reader sees whole lines.
                self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
            });
        if let Err(error) = written {
            tracing::warn!(%error, ?connection, "cannot write down a connection of a script");
        }
    }
}

/// The connections of a script that have ended, in order. `None` if it could make none.
pub(crate) fn connections(job: &Path) -> Result<Option<Vec<Connection>>> {
    let path = job.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    // The last line may be cut off, if this process was killed while it wrote.
    let whole = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(Some(summed_up(whole)))
}

/// The first connections as they are, and the others summed up by destination.
fn summed_up(all: impl Iterator<Item = Connection>) -> Vec<Connection> {
    let mut listed: Vec<Connection> = Vec::new();
    for connection in all {
        if listed.len() < LISTED {
            listed.push(connection);
            continue;
        }
        let key = |it: &Connection| (it.host.clone(), it.port, it.allowed);
        let wanted = key(&connection);
        match listed[LISTED..].iter().position(|other| key(other) == wanted) {
            Some(at) => {
                let sum = &mut listed[LISTED + at];
                sum.sent += connection.sent;
                sum.received += connection.received;
                sum.count = Some(sum.count.unwrap_or(1) + 1);
            }
            // A script may name any number of hosts. After this many, one line stands for all
            // further ones.
            None if listed.len() == 2 * LISTED => {
                let rest = "Connections to further destinations were made or refused.".to_owned();
                listed.push(Connection::refused("", 0, rest));
            }
            None if listed.len() > 2 * LISTED => {}
            None => listed.push(connection),
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(host: &str, sent: u64) -> Connection {
        let host = host.to_owned();
        Connection { host, port: 443, allowed: true, sent, received: 1, why: None, count: None }
    }

    #[test]
    fn many_connections_are_summed_up_by_destination() {
        let all = (0..LISTED as u64).map(|_| connection("a.example", 1)).chain([
            connection("a.example", 5),
            connection("b.example", 7),
            connection("a.example", 6),
        ]);
        let listed = summed_up(all);
        assert_eq!(listed.len(), LISTED + 2);
        assert_eq!(
            listed[LISTED..],
            [
                Connection { received: 2, count: Some(2), ..connection("a.example", 11) },
                connection("b.example", 7),
            ]
        );
        let flood = summed_up((0..100_000).map(|n| connection(&format!("h{n}.example"), 1)));
        assert_eq!(flood.len(), 2 * LISTED + 1);
    }
}
