//! The journal of calls that this machine has started, so that a crash never repeats one.
//!
//! Each line is one JSON object. After a crash the journal shows which calls never started (they
//! may start), which were running (their outcome is unknown), and which outcomes the server does
//! not have yet (they are sent again).

use crate::error::{Error, Result};
use atelier_core::{CallId, gate::ToolOutcome};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// One attempt at a call.
pub(crate) type Key = (CallId, u32);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum CallStage {
    /// The server is asked whether this machine may run the call.
    Claiming,
    /// The call starts now. From here on it may have had an effect.
    Running,
    Result {
        result: ToolOutcome,
    },
    /// The server has the outcome, or has refused it.
    Done,
}

#[derive(Serialize, Deserialize)]
struct Line {
    tool_id: CallId,
    attempt: u32,
    #[serde(flatten)]
    step: CallStage,
}

/// Calls that are not done yet.
pub(crate) type OpenCalls = BTreeMap<Key, CallStage>;

pub(crate) struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    size: u64,
    /// The size of the file after it was last rewritten.
    kept: u64,
    /// Calls that are not done, and whether they have started.
    open: BTreeMap<Key, bool>,
}

/// When the file has grown by this much, it is rewritten without the calls that are done.
const MAX_GROWTH: u64 = 1 << 20;

impl Journal {
    /// Opens the journal and returns the calls that an earlier process left open.
    pub(crate) fn open(path: PathBuf) -> Result<(Self, OpenCalls)> {
        let open = read(&path)?;
        let inner = rewrite(&path, &open).map_err(Error::io("write", &path))?;
        Ok((Self { path, inner: Mutex::new(inner) }, open))
    }

    /// Whether this or an earlier process has started the call, and its outcome is not delivered
    /// yet.
    pub(crate) fn has_begun(&self, key: Key) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).open.get(&key) == Some(&true)
    }

    /// Appends a line. `sync` writes it to disk immediately, so that a power failure cannot make
    /// the call run twice. Calls that change nothing do not need it, and a crash of the process
    /// alone loses no written line.
    pub(crate) fn record(
        &self,
        (tool_id, attempt): Key,
        step: CallStage,
        sync: bool,
    ) -> Result<()> {
        let fail = Error::io("write", &self.path);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let written = inner.write(&Line { tool_id, attempt, step }, sync);
        written.map_err(fail)?;
        if inner.size > 2 * inner.kept + MAX_GROWTH {
            let open = read(&self.path)?;
            *inner = rewrite(&self.path, &open).map_err(Error::io("write", &self.path))?;
        }
        Ok(())
    }
}

impl Inner {
    fn write(&mut self, line: &Line, sync: bool) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        // A single write, so that a crash leaves at most one incomplete line, and a full disk none.
        if let Err(error) = self.file.write_all(&text) {
            self.file.set_len(self.size)?;
            return Err(error);
        }
        self.size += text.len() as u64;
        let key = (line.tool_id, line.attempt);
        match line.step {
            CallStage::Done => self.open.remove(&key),
            CallStage::Claiming => self.open.insert(key, false),
            CallStage::Running | CallStage::Result { .. } => self.open.insert(key, true),
        };
        if sync { self.file.sync_data() } else { Ok(()) }
    }
}

fn read(path: &Path) -> Result<OpenCalls> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(OpenCalls::new()),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let mut open = OpenCalls::new();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    loop {
        text.clear();
        reader.read_until(b'\n', &mut text).map_err(Error::io("read", path))?;
        // An incomplete last line was never acted on: a line is written before its stage begins.
        if text.last() != Some(&b'\n') {
            return Ok(open);
        }
        let line: Line = serde_json::from_slice(&text)
            .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })?;
        let key = (line.tool_id, line.attempt);
        match line.step {
            CallStage::Done => drop(open.remove(&key)),
            step => drop(open.insert(key, step)),
        }
    }
}

/// Replaces the file as a whole or not at all.
fn rewrite(path: &Path, open: &OpenCalls) -> std::io::Result<Inner> {
    let draft = path.with_extension("new");
    if let Err(error) = std::fs::remove_file(&draft)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = File::options();
    options.create_new(true).append(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut inner = Inner { file: options.open(&draft)?, size: 0, kept: 0, open: BTreeMap::new() };
    for (&(tool_id, attempt), step) in open {
        inner.write(&Line { tool_id, attempt, step: step.clone() }, false)?;
    }
    inner.kept = inner.size;
    inner.file.sync_all()?;
    std::fs::rename(&draft, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;
    use uuid::Uuid;

    fn with_content(content: &str) -> ToolOutcome {
        ToolOutcome::succeeded(Map::from_iter([("content".to_owned(), content.into())]))
    }

    fn key(n: u128) -> Key {
        (CallId(Uuid::from_u128(n)), 1)
    }

    #[test]
    fn open_calls_survive_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, open) = Journal::open(path.clone()).unwrap();
        assert_eq!(open, OpenCalls::new());
        let result = CallStage::Result { result: ToolOutcome::succeeded(Map::new()) };
        for (n, stages) in [
            (1, vec![CallStage::Claiming]),
            (2, vec![CallStage::Claiming, CallStage::Running]),
            (3, vec![CallStage::Claiming, CallStage::Running, result.clone()]),
            (4, vec![CallStage::Claiming, CallStage::Running, result.clone(), CallStage::Done]),
        ] {
            for stage in stages {
                journal.record(key(n), stage, true).unwrap();
            }
        }
        drop(journal);
        // A crash in the middle of a line.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"tool_id\":\"0000").unwrap();
        let expected = OpenCalls::from([
            (key(1), CallStage::Claiming),
            (key(2), CallStage::Running),
            (key(3), result),
        ]);
        for _ in 0..2 {
            let (_journal, open) = Journal::open(path.clone()).unwrap();
            assert_eq!(open, expected);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn journal_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, _) = Journal::open(path.clone()).unwrap();
        let big = "x".repeat(100_000);
        for n in 0..50 {
            journal.record(key(n), CallStage::Running, false).unwrap();
            journal
                .record(key(n), CallStage::Result { result: with_content(&big) }, false)
                .unwrap();
            if n > 0 {
                journal.record(key(n), CallStage::Done, false).unwrap();
            }
        }
        assert!(path.metadata().unwrap().len() < 2 * MAX_GROWTH);
        let (_, open) = Journal::open(path).unwrap();
        assert_eq!(open.keys().collect::<Vec<_>>(), [&key(0)]);
    }

    /// Outcomes that wait for delivery are not rewritten with every line.
    #[test]
    fn waiting_outcomes_are_rarely_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, _) = Journal::open(path).unwrap();
        let (big, mut rewrites, mut last) = ("x".repeat(100_000), 0, 0);
        for n in 0..100 {
            journal
                .record(key(n), CallStage::Result { result: with_content(&big) }, false)
                .unwrap();
            let kept = journal.inner.lock().unwrap().kept;
            rewrites += u32::from(std::mem::replace(&mut last, kept) != kept);
        }
        assert!(rewrites < 5, "{rewrites}");
        assert!(journal.has_begun(key(0)) && !journal.has_begun(key(100)));
    }
}
