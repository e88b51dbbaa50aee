//! Records of what was changed, by whom, and how to undo it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::apply::{ChangeSet, PathChange, Source};
use super::{Door, Entry, Held, hex, io_error, is_in_git, now, replace_file, stat_at};
use crate::error::{Error, Result};
use crate::tools::Origin;
use crate::workspace::to_workspace_path;

/// A change of the folder that has happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Names of later records sort after those of earlier ones.
    pub(crate) id: String,
    pub(crate) at: DateTime<Utc>,
    pub(crate) tool: String,
    /// The layer, call, task and conversation that it belongs to.
    pub(crate) layer: String,
    pub(crate) tool_id: Option<String>,
    pub(crate) task_id: Option<String>,
    pub(crate) session_id: Option<String>,
    pub(crate) steps: Vec<RecordedChange>,
    /// The records that this one has undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) undoes: Vec<String>,
    /// False until the call has ended, for calls that change the folder themselves.
    #[serde(default = "yes")]
    pub(crate) complete: bool,
    /// A command that ran in the folder itself, without a layer, so that nobody knows what it
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

fn yes() -> bool {
    true
}

/// What one path was before, and what it is after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedChange {
    pub(crate) path: PathBuf,
    pub(crate) before: Entry,
    pub(crate) after: Entry,
    /// Whether git ignored the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_ignored: bool,
}

/// Which changes are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UndoOf {
    /// The newest change that the layer has made and that was not undone.
    Latest {
        layer: String,
    },
    Call(String),
    Task(String),
    Conversation(String),
}

impl Record {
    pub(crate) fn new(tool: &str, origin: &Origin, steps: Vec<RecordedChange>) -> Self {
        let at = now();
        let id = format!("{:016x}-{:08x}", at.timestamp_micros(), rand::random::<u32>());
        Self {
            id,
            at,
            tool: tool.to_owned(),
            layer: origin.layer.clone(),
            tool_id: Some(origin.tool_id.map_or_else(random_id, |id| id.to_string())),
            task_id: origin.task_id.map(|id| id.to_string()),
            session_id: origin.session_id.map(|id| id.to_string()),
            steps,
            undoes: Vec::new(),
            complete: true,
            command: None,
        }
    }

    fn is_of(&self, wanted: &UndoOf) -> bool {
        match wanted {
            UndoOf::Latest { layer } => self.undoes.is_empty() && self.layer == *layer,
            UndoOf::Call(id) => self.tool_id.as_ref() == Some(id),
            UndoOf::Task(id) => self.task_id.as_ref() == Some(id),
            UndoOf::Conversation(id) => self.session_id.as_ref() == Some(id),
        }
    }
}

impl Door {
    pub(super) fn record_path(&self, id: &str) -> PathBuf {
        self.folder.join("records").join(format!("{id}.json"))
    }

    /// All records, oldest first.
    pub(super) fn records(&self) -> Result<Vec<Record>> {
        let folder = self.folder.join("records");
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io_error("list", &folder))? {
            let path = entry.map_err(io_error("list", &folder))?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut records = Vec::new();
        for path in paths {
            let text = std::fs::read(&path).map_err(io_error("read", &path))?;
            match serde_json::from_slice(&text) {
                Ok(record) => records.push(record),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "a record cannot be read");
                }
            }
        }
        Ok(records)
    }

    pub(super) fn write_record(&self, record: &Record, durable: bool) -> Result<()> {
        let path = self.record_path(&record.id);
        let text =
            serde_json::to_vec(record).map_err(|error| io_error("write", &path)(error.into()))?;
        replace_file(&path, &text, durable)
    }
}

/// What undoing would do.
pub(crate) struct Undoing {
    pub(crate) set: ChangeSet,
    /// The records that are undone.
    pub(crate) records: Vec<String>,
    /// Paths that were changed since, and stay as they are.
    pub(crate) refused: Vec<(PathBuf, String)>,
}

impl Held<'_> {
    /// Works out how to undo changes. Files that somebody else has changed since are left out.
    pub(crate) fn plan_undo(&self, wanted: &UndoOf) -> Result<Undoing> {
        let records = self.door.records()?;
        let undone: HashSet<&String> = records.iter().flat_map(|record| &record.undoes).collect();
        let mut chosen: Vec<&Record> = records
            .iter()
            .filter(|record| record.is_of(wanted) && !undone.contains(&record.id))
            .collect();
        if let UndoOf::Latest { .. } = wanted {
            // Commands that ran in the folder itself are passed by, and named.
            let latest = chosen.iter().rposition(|record| record.command.is_none());
            chosen = chosen.split_off(latest.unwrap_or(chosen.len().saturating_sub(1)));
        }
        if chosen.is_empty() {
            let what = match wanted {
                UndoOf::Latest { .. } => "a change that can be undone".to_owned(),
                UndoOf::Call(id) => format!("a change by the call {id} that can be undone"),
                UndoOf::Task(id) => format!("a change by the task {id} that can be undone"),
                UndoOf::Conversation(id) => {
                    format!("a change in the conversation {id} that can be undone")
                }
            };
            return Err(Error::Unknown { what });
        }
        // For each path: what it was before the first of the changes, and after the last.
        let mut spans: BTreeMap<&PathBuf, Result<(Entry, Entry), String>> = BTreeMap::new();
        for record in &chosen {
            for step in &record.steps {
                let between = "it was changed in between";
                match spans.get_mut(&step.path) {
                    None if !record.complete => {
                        let why = "the call that changed it was interrupted".to_owned();
                        spans.insert(&step.path, Err(why));
                    }
                    None => {
                        spans.insert(&step.path, Ok((step.before.clone(), step.after.clone())));
                    }
                    Some(Ok((_, after))) if *after == step.before && record.complete => {
                        *after = step.after.clone();
                    }
                    Some(span) => *span = Err(between.to_owned()),
                }
            }
        }
        let mut refused: Vec<(PathBuf, String)> = Vec::new();
        for command in chosen.iter().filter_map(|record| record.command.as_ref()) {
            let why = format!("`{command}` ran in the folder itself; what it did is not undone");
            refused.push((PathBuf::from("."), why));
        }
        let ignored: HashSet<&PathBuf> = chosen
            .iter()
            .flat_map(|record| &record.steps)
            .filter(|step| step.is_ignored)
            .map(|step| &step.path)
            .collect();
        let mut steps = Vec::new();
        for (path, span) in spans {
            if let Some(repository) = path.ancestors().filter(|above| is_in_git(above)).last() {
                let why = "it is a new repository, which only you remove".to_owned();
                let known = refused.iter().any(|(path, _)| path == repository);
                refused.extend((!known).then(|| (repository.to_owned(), why)));
                continue;
            }
            let (before, after) = match span {
                Ok(span) => span,
                Err(why) => {
                    refused.push((path.clone(), why));
                    continue;
                }
            };
            if to_workspace_path(path, "").is_err() {
                refused.push((path.clone(), "its name cannot be used in a workspace".to_owned()));
                continue;
            }
            let there = Entry::at(self.workspace.handle(), path).map_err(|source| Error::Io {
                action: "read",
                path: shown(path),
                source,
            })?;
            if there == before {
                continue;
            }
            if there != after {
                let why = format!("it was changed since, and is {} now", there.in_words());
                refused.push((path.clone(), why));
                continue;
            }
            if before.checksum().is_some_and(|checksum| !self.door.images.has(checksum)) {
                refused.push((path.clone(), "its old content is no longer kept".to_owned()));
                continue;
            }
            let is_ignored = ignored.contains(path);
            let step = PathChange::new(path.clone(), after, before, Source::Image);
            steps.push(PathChange { is_ignored, ..step });
        }
        let undone = chosen.iter().filter(|record| record.command.is_none());
        let records = undone.map(|record| record.id.clone()).collect();
        Ok(Undoing { set: ChangeSet { steps, ..ChangeSet::default() }, records, refused })
    }

    /// A file that is kept, if it is at most `most` bytes long.
    pub(crate) fn image(&self, checksum: &str, most: u64) -> Option<Vec<u8>> {
        self.door.images.bytes(checksum, most).ok().flatten()
    }

    /// Keeps what a call is about to change by itself. The record is incomplete until
    /// [`Held::finish`] is called.
    pub(crate) fn begin(&self, tool: &str, origin: &Origin, paths: &[PathBuf]) -> Result<Record> {
        let mut steps = Vec::new();
        let handle = self.workspace.handle();
        // Folders that the call may make on the way belong to it.
        let above = paths.iter().flat_map(|path| path.ancestors().skip(1));
        let above: BTreeSet<&Path> = above
            .filter(|dir| !dir.as_os_str().is_empty())
            .filter(|dir| matches!(stat_at(handle, dir), Ok(None)))
            .collect();
        for path in above.into_iter().chain(paths.iter().map(PathBuf::as_path)) {
            let before = self.keep(path)?;
            let (path, after) = (path.to_owned(), before.clone());
            steps.push(RecordedChange { path, before, after, is_ignored: false });
        }
        let record = Record { complete: false, ..Record::new(tool, origin, steps) };
        // What a power failure loses here is only the way back.
        self.door.write_record(&record, false)?;
        Ok(record)
    }

    /// Notes that a command is about to run in the folder itself.
    pub(crate) fn note_command(&self, tool: &str, origin: &Origin, command: String) -> Result<()> {
        let record = Record { command: Some(command), ..Record::new(tool, origin, Vec::new()) };
        self.door.write_record(&record, false)
    }

    /// Completes a record with what the call has made of the files, or removes it if the call has
    /// changed nothing.
    pub(crate) fn finish(&self, mut record: Record) -> Result<()> {
        for step in &mut record.steps {
            step.after = Entry::at(self.workspace.handle(), &step.path)
                .map_err(|source| Error::Io { action: "read", path: shown(&step.path), source })?;
        }
        record.steps.retain(|step| step.before != step.after);
        record.complete = true;
        let path = self.door.record_path(&record.id);
        if record.steps.is_empty() {
            return std::fs::remove_file(&path).map_err(io_error("remove", &path));
        }
        self.door.write_record(&record, false)?;
        self.tidy();
        Ok(())
    }

    /// Forgets the oldest records, so that what is kept stays within its bounds.
    pub(super) fn tidy(&self) {
        // All records are read for it, so it is not done each time.
        if !self.door.changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
            return;
        }
        if let Err(error) = self.try_tidy() {
            tracing::warn!(%error, "cannot remove old records of changes");
        }
    }

    fn try_tidy(&self) -> Result<()> {
        let keeping = self.door.keeping;
        let oldest = now() - chrono::Duration::days(i64::from(keeping.days));
        let mut records = self.door.records()?;
        let size = |record: &Record| -> u64 {
            record.steps.iter().fold(0, |sum, step| match &step.before {
                Entry::File { size, checksum, .. } if self.door.images.has(checksum) => {
                    sum.saturating_add(*size)
                }
                _ => sum,
            })
        };
        let mut total = records.iter().map(size).fold(0, u64::saturating_add);
        let mut gone = 0;
        while let Some(first) = records.get(gone) {
            let newest = gone + 1 == records.len();
            if newest || (first.at >= oldest && total <= keeping.bytes) {
                break;
            }
            total = total.saturating_sub(size(first));
            gone += 1;
        }
        if gone == 0 {
            return Ok(());
        }
        let kept = records.split_off(gone);
        for record in &records {
            let path = self.door.record_path(&record.id);
            std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        let used = kept
            .iter()
            .flat_map(|record| &record.steps)
            .flat_map(|step| [&step.before, &step.after])
            .filter_map(Entry::checksum)
            .map(str::to_owned)
            .collect();
        self.door.images.retain(&used).map_err(io_error("clean", &self.door.folder))
    }
}

/// An id for a call from the command line, which has none: a random UUID.
fn random_id() -> String {
    let id = hex(&rand::random::<[u8; 16]>());
    format!("{}-{}-4{}-8{}-{}", &id[..8], &id[8..12], &id[13..16], &id[17..20], &id[20..])
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}
