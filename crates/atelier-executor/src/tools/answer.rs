//! Answers in the seed's shape: `success`, the tool's own fields, and on failure `error` with its code.

use atelier_core::policy::verdict::{Judgement, Verdict};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use crate::entries::Info;
use crate::error::Error;
use crate::grep::Grepped;
use crate::search::{Found, Listed};
use crate::walk::Kind;

/// Why a call did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable, for programs.
    pub code: String,
    /// For people and models.
    pub detail: String,
    /// Set when the policy refused: nothing was tried.
    pub refusal: Option<Refused>,
}

/// What the policy found a refused call to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub verdict: Verdict,
    pub rule: String,
    pub network: bool,
}

/// What a tool answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    pub fields: Map<String, Value>,
    pub failure: Option<Failure>,
}

impl ToolResult {
    pub fn success(&self) -> bool {
        self.failure.is_none()
    }

    /// The policy says no, or says that a person must be asked first.
    pub fn refused(judgement: &Judgement) -> Self {
        let code = judgement.code.unwrap_or(match judgement.verdict {
            Verdict::Deny => "denied",
            _ => "approval_required",
        });
        let failure = Failure {
            code: code.to_owned(),
            detail: judgement.reason.clone(),
            refusal: Some(Refused {
                verdict: judgement.verdict,
                rule: judgement.rule.clone(),
                network: judgement.network,
            }),
        };
        Self { fields: Map::new(), failure: Some(failure) }
    }

    pub fn failed(error: &Error) -> Self {
        if let Error::Sandbox { source, .. } | Error::Io { source, .. } = error {
            tracing::warn!(%error, %source, "tool failed");
        }
        let failure = Failure { code: error.code().to_owned(), detail: error.to_string(), refusal: None };
        Self { fields: Map::new(), failure: Some(failure) }
    }
}

impl Serialize for ToolResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("success", &self.success())?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        if let Some(failure) = &self.failure {
            map.serialize_entry("error", &failure.detail)?;
            map.serialize_entry("code", &failure.code)?;
            if let Some(Refused { verdict, rule, network }) = &failure.refusal {
                map.serialize_entry("verdict", verdict)?;
                map.serialize_entry("rule", rule)?;
                if *network {
                    map.serialize_entry("network", network)?;
                }
            }
        }
        map.end()
    }
}

/// What one tool came to.
pub(super) enum Answer {
    Done(Map<String, Value>),
    /// It ran, and what it ran failed.
    DoneBadly(Map<String, Value>, Failure),
    Failed(&'static str, String),
}

impl From<Answer> for ToolResult {
    fn from(answer: Answer) -> Self {
        let plain = |code: &str, detail| Failure { code: code.to_owned(), detail, refusal: None };
        match answer {
            Answer::Done(fields) => Self { fields, failure: None },
            Answer::DoneBadly(fields, failure) => Self { fields, failure: Some(failure) },
            Answer::Failed(code, detail) => Self { fields: Map::new(), failure: Some(plain(code, detail)) },
        }
    }
}

pub(super) fn fields(value: Value) -> Answer {
    match value {
        Value::Object(fields) => Answer::Done(fields),
        other => Answer::Done(Map::from_iter([("result".to_owned(), other)])),
    }
}

pub(super) fn fields_and_failure(value: Value, code: &str, detail: String) -> Answer {
    let failure = Failure { code: code.to_owned(), detail, refusal: None };
    match fields(value) {
        Answer::Done(fields) => Answer::DoneBadly(fields, failure),
        other => other,
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Other => "other",
    }
}

pub(super) fn listing(path: &str, listed: &Listed) -> Answer {
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
    fields(json!({ "path": path, "files": files, "total_count": listed.total, "limited": limited }))
}

pub(super) fn found(path: &str, found: &Found) -> Answer {
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
    fields(json!({ "path": path, "count": matches.len(), "matches": matches, "limited": found.cut }))
}

pub(super) fn grepped(found: &Grepped) -> Answer {
    fields(json!({
        "matches": found.lines,
        "count": found.matches,
        "files_searched": found.files_searched,
        "limited": found.cut,
    }))
}

pub(super) fn info(path: &str, info: &Info) -> Answer {
    let time =
        |time: chrono::DateTime<chrono::Utc>| time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
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
