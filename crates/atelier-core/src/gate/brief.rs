//! Short forms of calls, for events, for lists, and for calls that did not run.

use super::{CallPreview, GatedCall, LINK, SHORTENED, ToolOutcome};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// How many bytes of parameters, or of a diff, an event carries. Larger ones are replaced by a link
/// to the call.
pub(super) const MAX_IN_EVENT: usize = 64 * 1024;

/// How many bytes are kept of the parameters, and of the preview, of a call that did not run.
const KEPT_BYTES: usize = 1024;

/// Texts of more bytes than this are shortened in events and lists.
const LONG_TEXT: usize = 4096;

/// A copy of the value in which long texts are shortened.
fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) if text.len() > LONG_TEXT => {
            let start: String = text.chars().take(200).collect();
            format!("{start}… ({} bytes)", text.len()).into()
        }
        Value::Array(items) => items.iter().map(shortened).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), shortened(value))).collect()
        }
        other => other.clone(),
    }
}

/// The first bytes of a text, without half a character at their end.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(KEPT_BYTES)]
}

impl GatedCall {
    pub(super) fn brief_params(&self) -> Value {
        self.brief(&self.tool_params)
    }

    /// The value as events and lists carry it: unchanged if it is small, otherwise shortened and
    /// with a link to the whole call.
    fn brief(&self, value: &Value) -> Value {
        let fits = |value: &Value| {
            serde_json::to_string(value).is_ok_and(|json| json.len() <= MAX_IN_EVENT)
        };
        if fits(value) {
            return value.clone();
        }
        let short = Some(shortened(value)).filter(|short| short.is_object() && fits(short));
        let mut brief = short.unwrap_or(json!({}));
        brief[LINK] = format!("/my/projects/{}/tools/{}", self.project_id, self.tool_id).into();
        brief
    }

    /// Replaces large parameters by their small fields, their size, their checksum and their
    /// beginning.
    pub(super) fn shorten_params(&mut self) {
        let json = self.tool_params.to_string();
        if json.len() > KEPT_BYTES {
            let mut kept = Map::new();
            let mut left = KEPT_BYTES;
            for (name, value) in self.tool_params.as_object().into_iter().flatten() {
                let size = name.len() + value.to_string().len();
                if size <= left {
                    left -= size;
                    kept.insert(name.clone(), value.clone());
                }
            }
            let checksum: String =
                Sha256::digest(json.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            let beginning = beginning(&json);
            let summary = json!({"bytes": json.len(), "sha256": checksum, "beginning": beginning});
            kept.insert(SHORTENED.to_owned(), summary);
            self.tool_params = Value::Object(kept);
        }
    }

    /// Replaces a long preview by its beginning.
    pub(super) fn shorten_preview(&mut self) {
        if let Some(preview) =
            self.preview.as_mut().filter(|preview| preview.diff.len() > KEPT_BYTES)
        {
            let whole = preview.diff.len();
            preview.diff = format!("{}\n… ({whole} bytes)", beginning(&preview.diff));
        }
    }

    /// The call as lists carry it: large parameters, diffs and results are shortened, because a
    /// list may have many calls.
    pub fn in_brief(mut self) -> Self {
        self.tool_params = self.brief_params();
        self.preview = self.brief_preview();
        self.result = self.brief_result();
        self
    }

    fn brief_result(&self) -> Option<ToolOutcome> {
        let outcome = self.result.as_ref()?;
        match self.brief(&Value::Object(outcome.fields.clone())) {
            Value::Object(fields) => Some(ToolOutcome { fields, failure: outcome.failure.clone() }),
            _ => None,
        }
    }

    pub(super) fn brief_preview(&self) -> Option<CallPreview> {
        let mut preview = self.preview.clone()?;
        if preview.diff.len() > MAX_IN_EVENT {
            preview.diff = format!("({} bytes: see the tool call)", preview.diff.len());
        }
        Some(preview)
    }
}
