//! Turns what tools return into outcomes.

use atelier_core::FailureCode;
use atelier_core::gate::{OutcomeFailure, ToolOutcome};
use serde_json::{Map, Value, json};

use crate::entries::Info;
use crate::error::Error;
use crate::grep::Grepped;
use crate::search::{Found, Listed};
use crate::walk::Kind;

impl From<&Error> for ToolOutcome {
    fn from(error: &Error) -> Self {
        if let Error::Sandbox { source, .. } | Error::Io { source, .. } = error {
            tracing::warn!(%error, %source, "tool failed");
        }
        Self::failed(error.code(), error.to_string())
    }
}

/// The outcome of a tool that did its work.
pub(super) fn fields(value: Value) -> ToolOutcome {
    ToolOutcome::succeeded(match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("result".to_owned(), other)]),
    })
}

/// The outcome of a tool that ran a command, and the command failed.
pub(super) fn fields_and_failure(value: Value, code: FailureCode, detail: String) -> ToolOutcome {
    let failure = OutcomeFailure { code, detail, refusal: None };
    ToolOutcome { failure: Some(failure), ..fields(value) }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Other => "other",
    }
}

pub(super) fn listing(path: &str, listed: &Listed) -> ToolOutcome {
    let files: Vec<Value> = listed
        .entries
        .iter()
        .map(|entry| {
            let mut file = json!({
                "name": entry.name,
                "path": entry.path,
                "type": kind(entry.kind),
                "size": entry.size,
                "modified": entry.modified.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
            });
            if entry.lossy {
                file["lossy"] = Value::Bool(true);
            }
            file
        })
        .collect();
    let limited = listed.cut || (files.len() as u64) < listed.total;
    let mut body = json!({
        "path": path,
        "files": files,
        "total_count": listed.total,
        "limited": limited,
    });
    if !listed.unreadable.is_empty() {
        body["unreadable"] = json!(listed.unreadable);
    }
    fields(body)
}

pub(super) fn found(path: &str, found: &Found) -> ToolOutcome {
    let matches: Vec<Value> = found
        .hits
        .iter()
        .map(|hit| {
            let mut entry = json!({ "path": hit.path.to_string_lossy(), "type": kind(hit.kind) });
            if hit.path.to_str().is_none() {
                entry["lossy"] = Value::Bool(true);
            }
            entry
        })
        .collect();
    fields(
        json!({ "path": path, "count": matches.len(), "matches": matches, "limited": found.cut }),
    )
}

pub(super) fn grepped(found: &Grepped) -> ToolOutcome {
    fields(json!({
        "matches": found.lines,
        "count": found.matches,
        "files_searched": found.files_searched,
        "limited": found.cut,
    }))
}

pub(super) fn info(path: &str, info: &Info) -> ToolOutcome {
    let time = |time: chrono::DateTime<chrono::Utc>| {
        time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    };
    fields(json!({
        "path": path,
        "type": kind(info.kind),
        "size": info.size,
        "permissions": format!("{:o}", info.mode),
        "uid": info.uid,
        "gid": info.gid,
        "created": info.created.map(time),
        "modified": time(info.modified),
        "accessed": time(info.accessed),
        "entries": info.entries,
    }))
}
