//! The parts of a call that people see: the rows of a card, and one line.

use super::{Kind, Presence, TextLimit, ToolDef};
use serde_json::Value;

/// One row of a card. Names of parameters in braces are replaced by their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CardRow {
    pub label: &'static str,
    /// Such as `{path}`, or `{command} {args}`.
    pub value: &'static str,
}

impl CardRow {
    pub const fn new(label: &'static str, value: &'static str) -> CardRow {
        CardRow { label, value }
    }
}

impl ToolDef {
    /// The rows of a card for a call with these parameters, each with its label.
    pub fn card_rows(&self, params: &Value) -> Vec<(&'static str, String)> {
        self.card.iter().map(|row| (row.label, fill(self, row.value, params))).collect()
    }

    /// A call in one line, without the name of the tool. For a script, this is its first line.
    pub fn summarize(&self, params: &Value) -> String {
        let text = fill(self, self.summary, params);
        match text.trim().split_once('\n') {
            Some((first, _)) => format!("{} …", first.trim_end()),
            None => text,
        }
    }

    fn shown(&self, name: &str, params: &Value) -> String {
        let Some(param) = self.param(name) else { return String::new() };
        let names = std::iter::once(param.name).chain(param.aliases.iter().copied());
        let has_root = param.kind.access().is_some()
            && matches!(param.presence, Presence::Default | Presence::GateDefault);
        match names.map(|name| &params[name]).find(|value| !value.is_null()) {
            None if has_root => ".".to_owned(),
            None => String::new(),
            Some(Value::String(text)) if param.kind == Kind::Text(TextLimit::Argument) => {
                quoted(text)
            }
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(words)) => {
                let words = words.iter().map(|word| word.as_str().map_or(word.to_string(), quoted));
                words.collect::<Vec<_>>().join(" ")
            }
            Some(other) => other.to_string(),
        }
    }
}

/// A template in which the names of parameters are replaced by their values.
pub fn fill(tool: &ToolDef, template: &str, params: &Value) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, (name, after))) =
        rest.split_once('{').and_then(|(before, inside)| Some((before, inside.split_once('}')?)))
    {
        text.push_str(before);
        text.push_str(&tool.shown(name, params));
        rest = after;
    }
    text.push_str(rest);
    text.truncate(text.trim_end_matches(' ').len());
    text
}

/// An argument, quoted if it would be unclear where it begins or ends.
pub fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:@,+%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) { word.to_owned() } else { format!("{word:?}") }
}
