//! What this client has begun and what came of it, written down before and after.
//!
//! One JSON object a line, appended. After a crash it tells the calls that never began (they may begin), those
//! that were running (nobody knows) and those whose result the server has not taken yet (it is posted again).

use crate::error::{Error, Result};
use atelier_core::CallId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
pub(crate) enum Step {
    /// The server is asked whether the call is ours to run.
    Claiming,
    /// It begins now: from here on it may have happened.
    Running,
    Result {
        result: Value,
    },
    /// The server has the result, or does not want it.
    Done,
}

#[derive(Serialize, Deserialize)]
struct Line {
    tool_id: CallId,
    attempt: u32,
    #[serde(flatten)]
    step: Step,
}

/// What is not done yet.
pub(crate) type Open = BTreeMap<Key, Step>;

pub(crate) struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    size: u64,
    /// How much of it was not done when it was last written anew.
    kept: u64,
    /// What is not done, and whether it has begun.
    open: BTreeMap<Key, bool>,
}

/// With so much more in it than was kept, what is done is left out.
const LONG: u64 = 1 << 20;

impl Journal {
    /// Opens it, without what is done, and says what an earlier run left open.
    pub(crate) fn open(path: PathBuf) -> Result<(Self, Open)> {
        let open = read(&path)?;
        let inner = rewrite(&path, &open).map_err(Error::io("write", &path))?;
        Ok((Self { path, inner: Mutex::new(inner) }, open))
    }

    /// Whether a call may have had its effect, by this run or an earlier one, and what came of it is still to be told.
    pub(crate) fn has_begun(&self, key: Key) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).open.get(&key) == Some(&true)
    }

    /// Adds a line. `sync` where losing it with the whole machine could make a call run twice: for a call
    /// that changes nothing it cannot, and the process's own death loses no written line.
    pub(crate) fn note(&self, (tool_id, attempt): Key, step: Step, sync: bool) -> Result<()> {
        let fail = Error::io("write", &self.path);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let written = inner.write(&Line { tool_id, attempt, step }, sync);
        written.map_err(fail)?;
        if inner.size > 2 * inner.kept + LONG {
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
        // One write, so that a crash leaves a whole line or a torn last one; a full disk leaves none.
        if let Err(error) = self.file.write_all(&text) {
            self.file.set_len(self.size)?;
            return Err(error);
        }
        self.size += text.len() as u64;
        let key = (line.tool_id, line.attempt);
        match line.step {
            Step::Done => self.open.remove(&key),
            Step::Claiming => self.open.insert(key, false),
            Step::Running | Step::Result { .. } => self.open.insert(key, true),
        };
        if sync { self.file.sync_data() } else { Ok(()) }
    }
}

fn read(path: &Path) -> Result<Open> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Open::new()),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let mut open = Open::new();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    loop {
        text.clear();
        reader.read_until(b'\n', &mut text).map_err(Error::io("read", path))?;
        // A last line without its end was never acted on: it is written before the step it tells of.
        if text.last() != Some(&b'\n') {
            return Ok(open);
        }
        let line: Line = serde_json::from_slice(&text)
            .map_err(|error| Error::Damaged { path: path.to_owned(), why: error.to_string() })?;
        let key = (line.tool_id, line.attempt);
        match line.step {
            Step::Done => drop(open.remove(&key)),
            step => drop(open.insert(key, step)),
        }
    }
}

/// Whole or not at all.
fn rewrite(path: &Path, open: &Open) -> std::io::Result<Inner> {
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
    use serde_json::json;
    use uuid::Uuid;

    fn key(n: u128) -> Key {
        (CallId(Uuid::from_u128(n)), 1)
    }

    #[test]
    fn what_is_open_is_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, open) = Journal::open(path.clone()).unwrap();
        assert_eq!(open, Open::new());
        let result = Step::Result { result: json!({"success": true}) };
        for (n, steps) in [
            (1, vec![Step::Claiming]),
            (2, vec![Step::Claiming, Step::Running]),
            (3, vec![Step::Claiming, Step::Running, result.clone()]),
            (4, vec![Step::Claiming, Step::Running, result.clone(), Step::Done]),
        ] {
            for step in steps {
                journal.note(key(n), step, true).unwrap();
            }
        }
        drop(journal);
        // A crash in the middle of a line.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"tool_id\":\"0000").unwrap();
        let expected = Open::from([(key(1), Step::Claiming), (key(2), Step::Running), (key(3), result)]);
        for _ in 0..2 {
            let (_journal, open) = Journal::open(path.clone()).unwrap();
            assert_eq!(open, expected);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn it_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, _) = Journal::open(path.clone()).unwrap();
        let big = "x".repeat(100_000);
        for n in 0..50 {
            journal.note(key(n), Step::Running, false).unwrap();
            journal.note(key(n), Step::Result { result: json!({"content": big}) }, false).unwrap();
            if n > 0 {
                journal.note(key(n), Step::Done, false).unwrap();
            }
        }
        assert!(path.metadata().unwrap().len() < 2 * LONG);
        let (_, open) = Journal::open(path).unwrap();
        assert_eq!(open.keys().collect::<Vec<_>>(), [&key(0)]);
    }

    /// What nobody has taken yet is not written anew with every line.
    #[test]
    fn what_waits_is_left_in_peace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, _) = Journal::open(path).unwrap();
        let (big, mut anew, mut last) = ("x".repeat(100_000), 0, 0);
        for n in 0..100 {
            journal.note(key(n), Step::Result { result: json!({"content": big}) }, false).unwrap();
            let kept = journal.inner.lock().unwrap().kept;
            anew += u32::from(std::mem::replace(&mut last, kept) != kept);
        }
        assert!(anew < 5, "{anew}");
        assert!(journal.has_begun(key(0)) && !journal.has_begun(key(100)));
    }
}
